"""Rows of one table that go on in another: in another order, and in another format where they must.

A row whose format is the same keeps its exact bytes, optimizer state included; any other is decoded
and rounded to the nearest. It is done a chunk at a time from the file of the earlier table, mapped
into memory, so no second table is ever held.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from edorec.embedding.admission import I64, RANK_MASK, RowMap
from edorec.embedding.formats import format_of
from edorec.embedding.states import STATES

CHUNK_ROWS = 1 << 14
NOWHERE = -1
State = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Origin:
    """Where the rows of a table come from.

    Attributes:
        rows_R: int64, a row of the earlier table for each row, ``NOWHERE`` for none.
        is_new_R: bool, rows of ids that had no row of their own: they start from the values of the
            bucket that they were in, without its optimizer state.
    """

    rows_R: I64
    is_new_R: npt.NDArray[np.bool_]


def find_origin(
    row_map: RowMap, earlier: RowMap, *, hashes: npt.NDArray[np.uint64], ranks: I64
) -> Origin:
    """Which row of the earlier table each row goes on from.

    Args:
        row_map: of the table.
        earlier: of the earlier table.
        hashes: of the vocabulary's ids, by rank.
        ranks: new rank of each earlier rank, -1 for an id that has left.
    """
    earlier_rank = np.full(len(hashes), NOWHERE)
    kept = np.flatnonzero(ranks >= 0)
    earlier_rank[ranks[kept]] = kept
    own = row_map.num_own_rows
    high = hashes[:own].view(np.int64) & ~RANK_MASK
    rows = earlier.rows(high | (earlier_rank[:own] + 1), draws=None)
    buckets = np.full(row_map.num_buckets, NOWHERE)
    if row_map.num_buckets == earlier.num_buckets:
        buckets = np.arange(earlier.num_own_rows, earlier.num_rows)
    is_new = np.concatenate([rows >= earlier.num_own_rows, np.zeros(len(buckets), np.bool_)])
    return Origin(np.concatenate([rows, buckets]), is_new)


def carry_rows(
    target: State, source: State, origin: Origin, *, dim: int, optimizer: str, with_state: bool
) -> int:
    """Writes rows of a table over its initial ones, in place.

    Args:
        target: live bands of the table, keys as in ``RowTables.state``; or FBGEMM's tensors.
        source: those of the earlier table.
        origin: of the rows.
        dim: of the rows.
        optimizer: of both tables.
        with_state: carry the optimizer state too, else it stays initial.

    Returns:
        How many rows changed their format.

    Raises:
        ValueError: if one side has bands and the other has not.
    """
    if ("weight" in target) != ("weight" in source):
        raise ValueError("one table has bands and the other is FBGEMM's")
    if "weight" in target:
        _carry_tensors(target, source, origin, with_state=with_state)
        return 0
    earlier, changed = _bands(source, dim), 0
    for band in _bands(target, dim):
        for low in range(0, len(band.rows_RS), CHUNK_ROWS):
            chunk = band.rows_RS[low : low + CHUNK_ROWS]
            at = slice(band.first_row + low, band.first_row + low + len(chunk))
            rows = torch.from_numpy(origin.rows_R[at])
            fresh = torch.from_numpy(origin.is_new_R[at]) | (not with_state)
            for other in earlier:
                places, local = other.find(rows)
                if not len(places):
                    continue
                moved = other.rows_RS[local]
                if other.formats != band.formats:
                    moved = _encoded(moved, other, band, dim=dim, optimizer=optimizer)
                    changed += len(places)
                _write(chunk, places, moved, fresh[places], row_bytes=band.row_bytes)
    return changed


def _write(
    chunk: torch.Tensor,
    places: torch.Tensor,
    rows_NS: torch.Tensor,
    fresh_N: torch.Tensor,
    *,
    row_bytes: int,
) -> None:
    """Writes rows, and the states of those that are not fresh."""
    places, rows_NS = places.to(chunk.device), rows_NS.to(chunk.device)
    chunk[places, :row_bytes] = rows_NS[:, :row_bytes]
    keeps = (~fresh_N).nonzero().flatten().to(chunk.device)
    if len(keeps):
        chunk[places[keeps], row_bytes:] = rows_NS[keeps, row_bytes:]


@dataclass(frozen=True)
class _Band:
    """Rows of a table in one format."""

    first_row: int
    rows_RS: torch.Tensor
    formats: tuple[str, str]
    row_bytes: int

    def find(self, rows_R: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Places of the rows that lie in the band, and where they lie in it."""
        local = rows_R - self.first_row
        places = ((local >= 0) & (local < len(self.rows_RS))).nonzero().flatten()
        return places, local[places]


def _bands(state: State, dim: int) -> list[_Band]:
    bands: list[_Band] = []
    for key, rows in state.items():
        _, row_format, state_format, *_ = key.split("_")
        first = bands[-1].first_row + len(bands[-1].rows_RS) if bands else 0
        row_bytes = format_of(row_format).row_bytes(dim)
        bands.append(_Band(first, rows, (row_format, state_format), row_bytes))
    return bands


def _encoded(
    rows_RS: torch.Tensor, source: _Band, target: _Band, *, dim: int, optimizer: str
) -> torch.Tensor:
    """Rows and their state in the formats of another band, rounded to the nearest."""
    nearest = torch.tensor(0.5)
    values = format_of(source.formats[0]).decode(rows_RS[:, : source.row_bytes], dim)
    rows = format_of(target.formats[0]).encode(values, nearest)
    states = rows_RS[:, source.row_bytes :]
    if optimizer == "rowwise_adagrad" and source.formats[1] != target.formats[1]:
        sums = STATES[source.formats[1]].decode(states.contiguous())
        states = STATES[target.formats[1]].encode(sums, nearest)
    return torch.cat([rows, states], dim=1)


def _carry_tensors(target: State, source: State, origin: Origin, *, with_state: bool) -> None:
    """The same for tables that hold rows and states in tensors of their own."""
    for key, tensor in target.items():
        for low in range(0, len(tensor), CHUNK_ROWS):
            chunk = tensor[low : low + CHUNK_ROWS]
            at = slice(low, low + len(chunk))
            wanted = origin.rows_R[at] >= 0
            if key != "weight":
                wanted &= ~origin.is_new_R[at] & with_state
            places = torch.from_numpy(np.flatnonzero(wanted))
            rows = torch.from_numpy(origin.rows_R[at][wanted])
            chunk[places.to(chunk.device)] = source[key][rows].to(chunk)
