"""Rows to score, and what the trainer makes of them."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from edorec.data.prepare import load_prepared, prepare_extra
from edorec.data.reader import Reader
from edorec.serving.export import load_run
from tests.toy import toy_rows


def odd_rows() -> pa.Table:
    """Rows with unseen ids, nulls and empty lists among usual ones."""
    usual = toy_rows(1500, seed=9)
    odd = pa.table(
        {
            "user": pa.array([None, 123456, -5, 2**62], pa.int64()),
            "item": pa.array(["never", None, "i3", "777"]),
            "viewed": pa.array([[], None, [5, None, 10**9], [7] * 50], pa.list_(pa.int64())),
            "price": pa.array([None, np.nan, np.inf, 1e30]),
            "click": pa.array([0, 1, 0, 1], pa.int8()),
            "buy": pa.array([0, 0, 0, 1], pa.int8()),
        }
    )
    return pa.concat_tables([odd, usual])


def trainer_batches(run_dir: Path, rows: pa.Table, folder: Path):
    """The run's own recommender, and its batches of these rows."""
    path = folder / "rows.parquet"
    pq.write_table(rows, path)
    run = load_run(run_dir)
    prepared = prepare_extra(
        load_prepared(run_dir / "vocabularies"), str(path), data=run.config.data, split="extra"
    )
    reader = Reader(
        prepared,
        "extra",
        batch_size=len(rows),
        row_maps=run.recommender.row_maps,
        shuffle=False,
        shuffle_rows=1000,
        seed=0,
        training=False,
    )
    run.recommender.model.eval()
    return run.recommender, list(reader.batches(0))
