"""Batches of encoded rows: shuffled, refilled, resumable, read ahead by one thread.

An epoch is one fixed order of all rows of a split. Without shuffling it is theirs; with it, row
groups are put in a random order, cut into windows of ``shuffle_rows`` rows, and the rows of each
window are shuffled. The order depends on seed and epoch alone, so an epoch can be resumed at any
row, and every row comes exactly once. Batches are cut from that order whatever the row groups and
files: 20 rows in batches of 8 are 8, 8, 4. With several ranks a batch is global: each rank gets its
slice, so a step covers the same rows for any number of ranks.
"""

import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from edorec.data.batch import Batch
from edorec.data.prepared import Prepared
from edorec.data.window import Window, WindowBuilder
from edorec.embedding.admission import RowMap
from edorec.errors import InputError

# Enough rows for training to go on while the next window is built.
QUEUE_ROWS = 65_536
LEAST_QUEUE = 4
Piece = tuple[Window, int, int]


class Reader:
    """Reads one split of prepared data; see the head of the module."""

    def __init__(
        self,
        prepared: Prepared,
        split: str,
        *,
        batch_size: int,
        row_maps: Mapping[str, RowMap] | None,
        shuffle: bool,
        shuffle_rows: int,
        seed: int,
        training: bool,
        frequency_features: Sequence[str] = (),
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        """Reads the footer of the encoded file.

        Args:
            prepared: prepared data.
            split: name of the split.
            batch_size: rows of a batch of all ranks together.
            row_maps: by vocabulary; None leaves encoded ids as they are.
            shuffle: whether epochs are shuffled.
            shuffle_rows: rows of the shuffle window.
            seed: of the order and of the draws.
            training: whether rare ids may take bucket rows; also leaves out ``unseen_B``.
            frequency_features: scalar features whose deciles of frequency batches carry.
            rank: of this process.
            world_size: number of processes.
        """
        if not 0 <= rank < world_size:
            raise ValueError(f"rank must lie in [0, {world_size}), got {rank}")
        self._prepared = prepared
        self._path = prepared.splits[split].path
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._seed = seed
        self._rank = rank
        self._world_size = world_size
        try:
            with pq.ParquetFile(self._path) as file:
                groups = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"prepared rows {self._path} are damaged: {error}") from error
        self._group_rows = np.array(groups, dtype=np.int64)
        self._group_starts = np.cumsum(self._group_rows) - self._group_rows
        self.num_rows = int(self._group_rows.sum())
        # Unshuffled rows need no window; a smaller one starts sooner.
        self._window_rows = shuffle_rows if shuffle else max(batch_size, 32_768)
        self._builder = WindowBuilder(
            prepared,
            row_maps=row_maps,
            frequency_features=frequency_features,
            training=training,
            num_windows=-(-batch_size // self._window_rows) + 1,  # that one batch may span
        )

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Batches of an epoch from its row ``start`` on.

        They are made by a thread that ends when the iterator is exhausted, closed or dropped.

        Raises:
            InputError: if the prepared rows are damaged.
        """
        items: queue.Queue[Batch | BaseException | None] = queue.Queue(
            max(QUEUE_ROWS // self._batch_size, LEAST_QUEUE)
        )
        stop = threading.Event()

        def put(item: Batch | BaseException | None) -> None:
            while not stop.is_set():
                try:
                    items.put(item, timeout=0.1)
                    return
                except queue.Full:
                    continue

        def work() -> None:
            try:
                for batch in self._batches(epoch, start):
                    put(batch)
                    if stop.is_set():
                        return
                put(None)
            except BaseException as error:  # raised again where the batches are used
                put(error)

        thread = threading.Thread(target=work, name="edorec-reader", daemon=True)
        thread.start()
        try:
            while (item := items.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            stop.set()
            thread.join()

    def _batches(self, epoch: int, start: int) -> Iterator[Batch]:
        pieces: list[Piece] = []
        wanted = self._batch_size
        for window in self._windows(epoch, start):
            at = max(start - window.first, 0)
            size = window.end - window.first
            while size - at >= wanted:
                pieces.append((window, at, at + wanted))
                yield self._batch(pieces)
                at += wanted
                pieces, wanted = [], self._batch_size
            if at < size:
                pieces.append((window, at, size))
                wanted -= size - at
        if pieces:
            yield self._batch(pieces)

    def _windows(self, epoch: int, start: int) -> Iterator[Window]:
        """Windows from the one that holds row ``start`` on."""
        groups = np.arange(len(self._group_rows))
        if self._shuffle:
            groups = np.random.default_rng([self._seed, epoch, 0]).permutation(groups)
        sizes = self._group_rows[groups]
        ends = np.cumsum(sizes)
        size = self._window_rows
        held: dict[int, pa.Table] = {}
        with pq.ParquetFile(self._path) as file:
            for index in range(start // size, -(-self.num_rows // size)):
                first, end = index * size, min((index + 1) * size, self.num_rows)
                inside = range(
                    int(np.searchsorted(ends, first, side="right")),
                    int(np.searchsorted(ends, end, side="left")) + 1,
                )
                held = {i: held[i] if i in held else self._read(file, groups[i]) for i in inside}
                parts, row_ids = [], []
                for i in inside:
                    begin = int(ends[i] - sizes[i])
                    low, high = max(first - begin, 0), min(end - begin, int(sizes[i]))
                    parts.append(held[i].slice(low, high - low))
                    row_ids.append(self._group_starts[groups[i]] + np.arange(low, high))
                own = self._own_rows(first, end, start)
                yield self._window(
                    pa.concat_tables(parts), np.concatenate(row_ids), first, epoch, own
                )

    def _own_rows(self, first: int, end: int, start: int) -> npt.NDArray[np.int64] | None:
        """Which rows of a window are in this rank's slices of batches from ``start`` on."""
        if self._world_size == 1:
            return None
        positions = np.arange(first, end)
        batch = start + (positions - start) // self._batch_size * self._batch_size
        total = np.minimum(self._batch_size, self.num_rows - batch)
        low = batch + self._rank * total // self._world_size
        high = batch + (self._rank + 1) * total // self._world_size
        return np.flatnonzero((positions >= start) & (positions >= low) & (positions < high))

    def _window(
        self,
        rows: pa.Table,
        row_ids: npt.NDArray[np.int64],
        first: int,
        epoch: int,
        own: npt.NDArray[np.int64] | None,
    ) -> Window:
        order = None
        if self._shuffle:
            rng = np.random.default_rng([self._seed, epoch, 1, first])
            order = rng.permutation(len(row_ids))
            row_ids = row_ids[order]
        draw_seed = int(np.random.default_rng([self._seed, epoch, 2]).integers(2**63))
        return self._builder.build(
            rows, first=first, order=order, row_ids=row_ids, seed=draw_seed, own=own
        )

    def _read(self, file: pq.ParquetFile, group: int) -> pa.Table:
        try:
            return file.read_row_group(int(group))
        except (pa.ArrowException, OSError) as error:
            raise InputError(
                f"prepared rows {self._path} are damaged in row group {group}: {error}"
            ) from error

    def _batch(self, pieces: list[Piece]) -> Batch:
        """A batch of the rows of this rank."""
        last, _, stop = pieces[-1]
        end = last.first + stop
        if self._world_size > 1:
            pieces = [(w, w.index(a), w.index(b)) for w, a, b in self._own(pieces)]
        return Batch(
            sparse=self._sparse(pieces),
            dense_BN=_join([w.dense_RN[a:b] for w, a, b in pieces]),
            labels_BT=_join([w.labels_RT[a:b] for w, a, b in pieces]),
            weights_B=_join_optional([(w.weights_R, a, b) for w, a, b in pieces]),
            groups_B=_join_optional([(w.groups_R, a, b) for w, a, b in pieces]),
            end=end,
            deciles_BK=_join_optional([(w.deciles_RK, a, b) for w, a, b in pieces]),
            unseen_B=_join_optional([(w.unseen_R, a, b) for w, a, b in pieces]),
        )

    def _own(self, pieces: list[Piece]) -> list[Piece]:
        """This rank's slice of a global batch; it may be empty."""
        total = sum(b - a for _, a, b in pieces)
        low, high = _slice_of(total, self._rank, self._world_size)
        own, passed = [], 0
        for window, a, b in pieces:
            first, end = max(a, a + low - passed), min(b, a + high - passed)
            if first < end:
                own.append((window, first, end))
            passed += b - a
        return own or [(pieces[0][0], 0, 0)]

    def _sparse(self, pieces: list[Piece]) -> KeyedJaggedTensor:
        num_rows = sum(b - a for _, a, b in pieces)
        names = self._prepared.sparse
        lengths = np.ones((len(names), num_rows), dtype=np.int32)
        values: list[npt.NDArray[np.int64]] = []
        scalar = 0
        for index, name in enumerate(names):
            if name not in self._prepared.list_features:
                values += [w.scalars_FR[scalar, a:b] for w, a, b in pieces]
                scalar += 1
                continue
            at = 0
            for window, a, b in pieces:
                part = window.lists[name]
                offsets = part.offsets[a : b + 1]
                np.subtract(
                    offsets[1:], offsets[:-1], out=lengths[index, at : at + b - a], casting="unsafe"
                )
                values.append(part.values[offsets[0] : offsets[-1]])
                at += b - a
        joined = np.concatenate(values) if values else np.empty(0, dtype=np.int64)
        return KeyedJaggedTensor(
            keys=list(names),
            values=torch.from_numpy(joined),
            lengths=torch.from_numpy(lengths.reshape(-1)),
            stride=num_rows,
        )


def rows_by_rank(num_rows: int, *, batch_size: int, world_size: int) -> list[int]:
    """Rows of an epoch that each rank reads."""
    counts = []
    for rank in range(world_size):
        whole, rest = (_slice_of(n, rank, world_size) for n in (batch_size, num_rows % batch_size))
        counts.append(num_rows // batch_size * (whole[1] - whole[0]) + rest[1] - rest[0])
    return counts


def _slice_of(num_rows: int, rank: int, world_size: int) -> tuple[int, int]:
    """First row of a global batch that a rank takes, and the one behind its last."""
    return rank * num_rows // world_size, (rank + 1) * num_rows // world_size


def _join(parts: list[npt.NDArray[Any]]) -> torch.Tensor:
    """Parts of windows as one tensor with memory of its own."""
    return torch.from_numpy(np.concatenate(parts))


def _join_optional(
    parts: list[tuple[npt.NDArray[Any] | None, int, int]],
) -> torch.Tensor | None:
    found = [array[a:b] for array, a, b in parts if array is not None]
    return _join(found) if found else None
