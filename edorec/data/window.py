"""A window of rows in memory: read from encoded Parquet, shuffled, mapped to table rows.

Work per window instead of per batch keeps the cost of a batch to a few slices and copies.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from edorec.data.hashing import mix
from edorec.data.prepared import Prepared
from edorec.embedding.admission import RowMap

I64 = npt.NDArray[np.int64]


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
        first: position of the first row in the epoch.
        scalars_FR: int64, scalar sparse features.
        lists: list features by name.
    """

    first: int
    scalars_FR: I64
    lists: dict[str, Lists]
    dense_RN: npt.NDArray[np.float32]
    labels_RT: npt.NDArray[np.float32]
    weights_R: npt.NDArray[np.float32] | None
    groups_R: I64 | None
    deciles_RK: npt.NDArray[np.uint8] | None
    unseen_R: npt.NDArray[np.bool_] | None

    @property
    def end(self) -> int:
        """Position behind the last row in the epoch."""
        return self.first + len(self.labels_RT)


class WindowBuilder:
    """Turns Arrow rows of a split into windows."""

    def __init__(
        self,
        prepared: Prepared,
        *,
        row_maps: Mapping[str, RowMap] | None,
        frequency_features: Sequence[str],
        training: bool,
    ) -> None:
        self.scalars = [name for name in prepared.sparse if name not in prepared.list_features]
        self.lists = [name for name in prepared.sparse if name in prepared.list_features]
        self._prepared = prepared
        self._row_maps = row_maps
        self._training = training
        self._frequency_features = tuple(frequency_features)
        self._cuts = {
            name: prepared.vocabularies[prepared.feature_vocabulary[name]].decile_cuts()
            for name in frequency_features
        }

    def build(
        self, rows: pa.Table, *, first: int, order: I64 | None, row_ids: I64, seed: int
    ) -> Window:
        """A window.

        Args:
            rows: encoded rows.
            first: position in the epoch of the window's first row.
            order: order in which the rows are used; None keeps theirs.
            row_ids: index in the split of each row, in the order of use.
            seed: seed of the draws of this epoch.
        """
        prepared, columns = self._prepared, self._prepared.columns

        def column(kind: str, name: str) -> npt.NDArray[Any]:
            values: npt.NDArray[Any] = rows.column(columns[kind, name]).to_numpy()
            return values if order is None else values[order]

        scalars_FR = np.empty((len(self.scalars), len(rows)), dtype=np.int64)
        for index, name in enumerate(self.scalars):
            scalars_FR[index] = column("sparse", name)
        lists = {name: _lists(rows.column(columns["sparse", name]), order) for name in self.lists}
        dense_RN = np.empty((len(rows), len(prepared.dense)), dtype=np.float32)
        for index, name in enumerate(prepared.dense):
            dense_RN[:, index] = column("dense", name)
        labels_RT = np.empty((len(rows), len(prepared.tasks)), dtype=np.float32)
        for index, name in enumerate(prepared.tasks):
            labels_RT[:, index] = column("label", name)
        deciles_RK = self._deciles(scalars_FR) if self._frequency_features else None
        unseen_R = None if self._training else self._unseen(scalars_FR, lists)
        if self._row_maps is not None:
            keys = _draw_keys(row_ids, seed) if self._training else None
            scalars_FR, lists = self._to_rows(scalars_FR, lists, keys)
        return Window(
            first=first,
            scalars_FR=scalars_FR,
            lists=lists,
            dense_RN=dense_RN,
            labels_RT=labels_RT,
            weights_R=column("weight", "weight") if ("weight", "weight") in columns else None,
            groups_R=column("group", "group") if ("group", "group") in columns else None,
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
    ) -> tuple[I64, dict[str, Lists]]:
        """Rows of the tables in place of encoded ids."""
        assert self._row_maps is not None
        rows_FR = np.empty_like(scalars_FR)
        for index, name in enumerate(self.scalars):
            row_map = self._row_maps[self._prepared.feature_vocabulary[name]]
            draws = None
            if keys is not None and row_map.draws_matter:
                draws = _draws(keys, self._prepared.sparse.index(name))
            rows_FR[index] = row_map.rows(scalars_FR[index], draws=draws)
        row_lists = {}
        for name, part in lists.items():
            row_map = self._row_maps[self._prepared.feature_vocabulary[name]]
            draws = None
            if keys is not None and row_map.draws_matter:
                places = np.arange(len(part.values)) - np.repeat(part.offsets[:-1], part.lengths)
                of_item = np.repeat(keys, part.lengths) + places.astype(np.uint32) * np.uint32(
                    0x9E3779B9
                )
                draws = _draws(of_item, self._prepared.sparse.index(name))
            row_lists[name] = Lists(row_map.rows(part.values, draws=draws), part.offsets)
        return rows_FR, row_lists


def _lists(column: pa.ChunkedArray, order: I64 | None) -> Lists:
    """Items and offsets of a list column, in the order of use."""
    chunks = column.chunks
    values = np.concatenate([_own_values(chunk) for chunk in chunks])
    lengths = np.concatenate([np.diff(chunk.offsets.to_numpy()) for chunk in chunks])
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if order is None:
        return Lists(values, offsets)
    moved = lengths[order]
    new_offsets = np.zeros_like(offsets)
    np.cumsum(moved, out=new_offsets[1:])
    shift = np.repeat(offsets[:-1][order] - new_offsets[:-1], moved)
    return Lists(values[np.arange(len(values)) + shift], new_offsets)


def _own_values(chunk: pa.ListArray) -> I64:
    offsets = chunk.offsets
    start, end = offsets[0].as_py(), offsets[len(chunk)].as_py()
    values: I64 = chunk.values.slice(start, end - start).to_numpy()
    return values


def _draw_keys(row_ids: I64, seed: int) -> npt.NDArray[np.uint32]:
    """A random word for each row that depends on its index in the split and the seed alone."""
    words = row_ids.view(np.uint64) + mix(np.array([seed], dtype=np.uint64))
    return (mix(words) >> np.uint64(32)).astype(np.uint32)


def _draws(keys: npt.NDArray[np.uint32], feature: int) -> npt.NDArray[np.uint32]:
    """Uniform uint32 numbers from the rows' words, others for each feature."""
    z = keys + np.uint32(feature * 0x85EBCA77 & 0xFFFFFFFF)
    z ^= z >> np.uint32(16)
    z *= np.uint32(0x85EBCA6B)
    z ^= z >> np.uint32(13)
    z *= np.uint32(0xC2B2AE35)
    z ^= z >> np.uint32(16)
    return z
