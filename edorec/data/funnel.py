"""Tasks that can only happen where the one before them did."""

import pyarrow.parquet as pq

from edorec.data.prepared import Prepared
from edorec.errors import InputError


def check_funnel(prepared: Prepared) -> None:
    """Refuses rows where a task happened and the one before it, in their order, did not.

    Raises:
        InputError: naming split, tasks and the number of such rows.
    """
    columns = {task: prepared.columns["label", task] for task in prepared.tasks}
    for split in prepared.splits.values():
        bad = dict.fromkeys(zip(prepared.tasks, prepared.tasks[1:], strict=False), 0)
        for batch in pq.ParquetFile(split.path).iter_batches(columns=list(columns.values())):
            labels = {task: batch.column(column).to_numpy() for task, column in columns.items()}
            for before, after in bad:
                is_bad = (labels[after] == 1) & (labels[before] == 0)
                bad[before, after] += int(is_bad.sum())
        for (before, after), num_rows in bad.items():
            if num_rows:
                raise InputError(
                    f"model.head esmm takes tasks as a funnel, and {num_rows:,} rows of "
                    f"{split.name} have {after} without {before}; list the tasks in their order, "
                    "or use another head"
                )
