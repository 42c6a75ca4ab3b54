"""Second pass: staged rows to encoded rows, in the same order.

Encoded rows of a split are one Parquet file whose row groups have ``ROW_GROUP`` rows whatever the
layout of the input: scalar ids int64, lists list<int64>, dense float32 (standardized, filled,
clipped), labels float32 with NaN for null, weight float32, group int64. Columns keep the names c0,
c1, ... of the uses they hold. Along the way it counts unseen ids and watches for features that
alone tell a label.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from edorec.cpus import num_cpus
from edorec.data.columns import ColumnUse
from edorec.data.hashing import NULL_HASH, mix
from edorec.data.numbers import F64, standardize
from edorec.data.stage import WRITE_OPTIONS, Progress, Staged
from edorec.data.vocabulary import RankTable

ROW_GROUP = 32_768
ENCODED_TYPES = {
    "id": pa.int64(),
    "bins": pa.int64(),
    "dense": pa.float32(),
    "label": pa.float32(),
    "weight": pa.float32(),
    "group": pa.int64(),
}


class Encoder:
    """Encodes the column of one use.

    Attributes:
        use: what it encodes.
        counts: unseen ids, look-ups, clipped values.
    """

    def __init__(
        self,
        use: ColumnUse,
        *,
        is_list: bool = False,
        table: RankTable | None = None,
        edges: F64 | None = None,
        scale: tuple[float, float] | None = None,
    ) -> None:
        self.use = use
        self.counts: Counter[str] = Counter()
        self.type = pa.list_(pa.int64()) if is_list else ENCODED_TYPES[use.kind]
        self._is_list = is_list
        self._table = table
        self._edges = edges
        self._scale = scale

    def encode(self, array: pa.Array) -> pa.Array:
        """Encoded chunk."""
        if self._is_list:
            return pa.ListArray.from_arrays(
                array.offsets, pa.array(self._ids(array.values.to_numpy()))
            )
        values = array.to_numpy()
        if self._edges is not None:
            values = bin_hashes(values, self._edges)
        if self._table is not None:
            return pa.array(self._ids(values))
        if self._scale is not None:
            scaled, clipped = standardize(values, *self._scale)
            self.counts["clipped_dense"] += clipped
            return pa.array(scaled)
        return pa.array(values.view(np.int64)) if self.use.kind == "group" else array

    def _ids(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        assert self._table is not None
        encoded = self._table.encode(hashes)
        self.counts["lookups"] += len(encoded)
        self.counts["unseen_ids"] += int(np.count_nonzero((encoded & 0xFFFFFFFF) == 0))
        return encoded


def bin_hashes(values: F64, edges: F64) -> npt.NDArray[np.uint64]:
    """Hashes of the bins that values lie in, ``NULL_HASH`` for NaN."""
    hashes = mix(np.searchsorted(edges, values, side="left").astype(np.uint64))
    hashes[np.isnan(values)] = NULL_HASH
    return hashes


def encode_split(
    name: str,
    staged: Staged,
    encoders: Sequence[Encoder],
    *,
    path: Path,
    watch: "LeakWatch | None" = None,
    on_progress: Progress | None = None,
) -> None:
    """Writes the encoded rows of a split; updates the encoders' counts."""
    schema = pa.schema([(f"c{index}", encoder.type) for index, encoder in enumerate(encoders)])
    done = 0
    with (
        pq.ParquetFile(staged.path) as source,
        pq.ParquetWriter(path, schema, **WRITE_OPTIONS) as writer,
        ThreadPoolExecutor(num_cpus()) as pool,
    ):
        for rows in source.iter_batches(ROW_GROUP):
            arrays = list(pool.map(lambda e, a: e.encode(a), encoders, rows.columns))
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
            if watch is not None:
                watch.add(arrays, rows.columns)
            done += len(rows)
            if on_progress:
                on_progress(f"encode {name}", done, staged.rows)


class LeakWatch:
    """Finds features that alone separate a task's labels in the training rows.

    A dense feature does if all values of one class lie below all of the other; a scalar id feature
    if every id has one class only, with at least ``ROWS_PER_ID`` rows an id.
    """

    ROWS_PER_ID = 5

    def __init__(
        self, uses: Sequence[ColumnUse], *, num_ids: Mapping[str, int], num_rows: int
    ) -> None:
        """``num_ids``: ids of each scalar sparse feature's vocabulary."""
        self._labels = [i for i, use in enumerate(uses) if use.kind == "label"]
        self._uses = uses
        self._classes = {label: [0, 0] for label in self._labels}
        self._dense = {
            (i, label): [[np.inf, -np.inf], [np.inf, -np.inf]]
            for i, use in enumerate(uses)
            for label in self._labels
            if use.kind == "dense"
        }
        self._seen: dict[tuple[int, int], npt.NDArray[np.uint8]] = {
            (i, label): np.zeros(num_ids[use.name] + 1, dtype=np.uint8)
            for i, use in enumerate(uses)
            for label in self._labels
            if use.kind in ("id", "bins")
            and num_ids.get(use.name, num_rows) * self.ROWS_PER_ID <= num_rows
        }

    def add(self, encoded: Sequence[pa.Array], staged: Sequence[pa.Array]) -> None:
        """Takes in a chunk of encoded rows, and of the staged rows they come from."""
        for label in self._labels:
            labels = encoded[label].to_numpy()
            classes = [np.flatnonzero(labels == value) for value in (0, 1)]
            for value in (0, 1):
                self._classes[label][value] += len(classes[value])
            self._add_dense(label, classes, staged)
            self._add_ids(label, classes, encoded)

    def _add_dense(
        self, label: int, classes: list[npt.NDArray[np.int64]], staged: Sequence[pa.Array]
    ) -> None:
        for i, task in [key for key in self._dense if key[1] == label]:
            values = staged[i].to_numpy()
            ranges = self._dense[i, task]
            for value, rows in enumerate(classes):
                if len(rows):
                    chosen = values[rows]
                    ranges[value][0] = np.minimum(ranges[value][0], chosen.min())
                    ranges[value][1] = np.maximum(ranges[value][1], chosen.max())
            (low0, high0), (low1, high1) = ranges
            if np.isnan([low0, high0, low1, high1]).any() or (low0 <= high1 and low1 <= high0):
                del self._dense[i, task]

    def _add_ids(
        self, label: int, classes: list[npt.NDArray[np.int64]], encoded: Sequence[pa.Array]
    ) -> None:
        for i, task in [key for key in self._seen if key[1] == label]:
            ranks = encoded[i].to_numpy() & 0xFFFFFFFF
            seen = self._seen[i, task]
            for value, rows in enumerate(classes):
                seen[ranks[rows]] |= 1 << value
            if (seen == 3).any():
                del self._seen[i, task]

    def warnings(self) -> list[str]:
        """One sentence for each feature and task."""
        found = []
        for i, label in [*self._dense, *self._seen]:
            negatives, positives = self._classes[label]
            if not negatives or not positives:
                continue
            if (i, label) in self._seen:
                used = int(np.count_nonzero(self._seen[i, label]))
                if used * self.ROWS_PER_ID > negatives + positives:
                    continue
            use, task = self._uses[i], self._uses[label]
            found.append(
                f"feature {use.name} (column {use.column}) alone predicts task {task.name} with "
                f"AUC 1.0 on the training rows; is it a copy of the label {task.column}?"
            )
        return found
