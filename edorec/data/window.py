"""A window of rows in memory: read from encoded Parquet, shuffled, mapped to table rows.

Work per window instead of per batch keeps the cost of a batch to a few slices and copies.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from edorec.data.hashing import mix
from edorec.data.prepared import Prepared
from edorec.data.window_kernels import NO_KEYS, take, take_lists, to_rows
from edorec.embedding.admission import RowMap

I64 = npt.NDArray[np.int64]
NO_OFFSETS = np.empty(0, np.int64)


@dataclass(frozen=True)
class Lists:
    """A list feature: the items of row i are ``values[offsets[i] : offsets[i + 1]]``."""

    values: I64
    offsets: I64

    @property
    def lengths(self) -> I64:
        """Number of items of each row."""
        return np.diff(self.offsets)


@dataclass(frozen=True)
class Window:
    """R rows in the order in which they are used; see ``Batch`` for what the parts mean.

    Attributes:
        first: position of its first row in the epoch.
        end: position behind its last row in the epoch.
        own: of the rows that this process reads, their positions behind ``first``; None for all.
        scalars_FR: int64, scalar sparse features.
        lists: list features by name.
    """

    first: int
    end: int
    own: I64 | None
    scalars_FR: I64
    lists: dict[str, Lists]
    dense_RN: npt.NDArray[np.float32]
    labels_RT: npt.NDArray[np.float32]
    weights_R: npt.NDArray[np.float32] | None
    groups_R: I64 | None
    deciles_RK: npt.NDArray[np.uint8] | None
    unseen_R: npt.NDArray[np.bool_] | None

    def index(self, position: int) -> int:
        """How many rows read here come before a position behind ``first``."""
        return position if self.own is None else int(np.searchsorted(self.own, position))


class WindowBuilder:
    """Turns Arrow rows of a split into windows.

    Arrays of windows are used again, because new memory costs more than what is written to it: a
    window is valid until ``num_windows`` others have been built.
    """

    def __init__(
        self,
        prepared: Prepared,
        *,
        row_maps: Mapping[str, RowMap] | None,
        frequency_features: Sequence[str],
        training: bool,
        num_windows: int,
    ) -> None:
        self.scalars = [name for name in prepared.sparse if name not in prepared.list_features]
        self.lists = [name for name in prepared.sparse if name in prepared.list_features]
        self._prepared = prepared
        self._row_maps = row_maps
        self._training = training
        self._frequency_features = tuple(frequency_features)
        self._memory: deque[dict[str, npt.NDArray[Any]]] = deque({} for _ in range(num_windows))
        self._cuts = {
            name: prepared.vocabularies[prepared.feature_vocabulary[name]].decile_cuts()
            for name in frequency_features
        }

    def build(
        self,
        rows: pa.Table,
        *,
        first: int,
        order: I64 | None,
        row_ids: I64,
        seed: int,
        own: I64 | None = None,
    ) -> Window:
        """A window.

        Args:
            rows: encoded rows.
            first: position in the epoch of the window's first row.
            order: order in which the rows are used; None keeps theirs.
            row_ids: index in the split of each row, in the order of use.
            seed: seed of the draws of this epoch.
            own: places in that order of the rows to read; default all.
        """
        prepared, columns = self._prepared, self._prepared.columns

        if order is None:
            order = np.arange(len(rows))
        if own is not None:
            order, row_ids = order[own], row_ids[own]
        num_rows = len(order)
        self._memory.rotate()

        def column(kind: str, name: str, out: npt.NDArray[Any]) -> npt.NDArray[Any]:
            take(rows.column(columns[kind, name]).to_numpy(), order, out)
            return out

        def optional(kind: str, dtype: type[np.generic]) -> npt.NDArray[Any] | None:
            has = (kind, kind) in columns
            return column(kind, kind, self._array(kind, (num_rows,), dtype)) if has else None

        scalars_FR = self._array("scalars", (len(self.scalars), num_rows), np.int64)
        for index, name in enumerate(self.scalars):
            column("sparse", name, scalars_FR[index])
        lists = {
            name: self._lists(name, rows.column(columns["sparse", name]), order)
            for name in self.lists
        }
        dense_RN = self._array("dense", (num_rows, len(prepared.dense)), np.float32)
        for index, name in enumerate(prepared.dense):
            column("dense", name, dense_RN[:, index])
        labels_RT = self._array("labels", (num_rows, len(prepared.tasks)), np.float32)
        for index, name in enumerate(prepared.tasks):
            column("label", name, labels_RT[:, index])
        deciles_RK = self._deciles(scalars_FR) if self._frequency_features else None
        unseen_R = None if self._training else self._unseen(scalars_FR, lists)
        if self._row_maps is not None:
            keys = _draw_keys(row_ids, seed) if self._training else None
            self._to_rows(scalars_FR, lists, keys)
        return Window(
            first=first,
            end=first + len(rows),
            own=own,
            scalars_FR=scalars_FR,
            lists=lists,
            dense_RN=dense_RN,
            labels_RT=labels_RT,
            weights_R=optional("weight", np.float32),
            groups_R=optional("group", np.int64),
            deciles_RK=deciles_RK,
            unseen_R=unseen_R,
        )

    def _deciles(self, scalars_FR: I64) -> npt.NDArray[np.uint8]:
        deciles_RK = np.empty((scalars_FR.shape[1], len(self._cuts)), dtype=np.uint8)
        for index, (name, cuts) in enumerate(self._cuts.items()):
            ranks = (scalars_FR[self.scalars.index(name)] & 0xFFFFFFFF) - 1
            deciles = np.searchsorted(cuts, ranks, side="right")
            deciles_RK[:, index] = np.where(ranks < 0, 10, deciles)
        return deciles_RK

    def _unseen(self, scalars_FR: I64, lists: Mapping[str, Lists]) -> npt.NDArray[np.bool_]:
        unseen_R = np.zeros(scalars_FR.shape[1], dtype=bool)
        for ids in scalars_FR:
            unseen_R |= (ids & 0xFFFFFFFF) == 0
        if not self.scalars:
            for part in lists.values():
                at = np.flatnonzero((part.values & 0xFFFFFFFF) == 0)
                unseen_R[np.searchsorted(part.offsets, at, side="right") - 1] = True
        return unseen_R

    def _to_rows(
        self, scalars_FR: I64, lists: Mapping[str, Lists], keys: npt.NDArray[np.uint32] | None
    ) -> None:
        """Writes rows of the tables over encoded ids."""
        for index, name in enumerate(self.scalars):
            self._map(name, scalars_FR[index], NO_OFFSETS, keys)
        for name, part in lists.items():
            self._map(name, part.values, part.offsets, keys)

    def _map(self, name: str, ids: I64, offsets: I64, keys: npt.NDArray[np.uint32] | None) -> None:
        assert self._row_maps is not None
        row_map = self._row_maps[self._prepared.feature_vocabulary[name]]
        to_rows(
            ids,
            offsets,
            keys if keys is not None and row_map.draws_matter else NO_KEYS,
            self._prepared.sparse.index(name),
            row_map.num_own_rows,
            row_map.num_buckets,
            row_map.rare_from,
            int(row_map.oov_rate * 2**32),
        )

    def _lists(self, name: str, column: pa.ChunkedArray, order: I64) -> Lists:
        """Items and offsets of a list column, in the order of use."""
        chunks = column.chunks
        values = np.concatenate([_own_values(chunk) for chunk in chunks])
        lengths = np.concatenate([np.diff(chunk.offsets.to_numpy()) for chunk in chunks])
        offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        taken = self._array(f"values of {name}", values.shape, np.int64)
        starts = self._array(f"offsets of {name}", (len(order) + 1,), np.int64)
        take_lists(values, offsets, order, taken, starts)
        return Lists(taken[: starts[-1]], starts)

    def _array(self, use: str, shape: tuple[int, ...], dtype: type[np.generic]) -> npt.NDArray[Any]:
        """An array with arbitrary content in memory that a use had some windows ago."""
        size = math.prod(shape)
        memory = self._memory[0].get(use)
        if memory is None or len(memory) < size:
            memory = self._memory[0][use] = np.empty(size + size // 8, dtype)
        return memory[:size].reshape(shape)


def _own_values(chunk: pa.ListArray) -> I64:
    offsets = chunk.offsets
    start, end = offsets[0].as_py(), offsets[len(chunk)].as_py()
    values: I64 = chunk.values.slice(start, end - start).to_numpy()
    return values


def _draw_keys(row_ids: I64, seed: int) -> npt.NDArray[np.uint32]:
    """A random word for each row that depends on its index in the split and the seed alone."""
    words = row_ids.view(np.uint64) + mix(np.array([seed], dtype=np.uint64))
    return (mix(words) >> np.uint64(32)).astype(np.uint32)
