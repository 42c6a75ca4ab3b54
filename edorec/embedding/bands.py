"""A table's rows: bands of consecutive rows, each in one format, each in a memory of its own.

Where a part of the rows is in the host's memory (``host_rows``), a band that is cut by it has a
memory for each piece. Bands are what plans, reports and the monitor know; pieces are what kernels
and the keys of ``RowTables.state`` know: ``band1_int8_fp32``, ``band1_int8_fp32_1`` ...
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np
import torch

from edorec.embedding.admission import I64, RowMap
from edorec.embedding.formats import format_of
from edorec.embedding.optimizers import initial_state, state_bytes
from edorec.embedding.shards import WHOLE, Shard
from edorec.embedding.states import STATES
from edorec.embedding.storage import MappedBytes
from edorec.embedding.tables import BandConfig

CHUNK_ROWS = 1 << 12  # small, so that making a large table takes no memory besides its own
# torch draws normal numbers in blocks of 16: of whole blocks, the first do not depend on how many.
DRAWN_ROWS = 16
NO_ROWS = range(0)


@dataclass(frozen=True)
class Band:
    """Consecutive rows of a table in one format.

    Attributes:
        num_rows: how many.
        format: row format, see ``formats.format_of``.
        state: format of row-wise Adagrad's accumulator, one of ``states.STATES``.
    """

    num_rows: int
    format: str
    state: str = "fp32"

    def __post_init__(self) -> None:
        if self.num_rows < 0:
            raise ValueError(f"num_rows must be at least 0, got {self.num_rows}")
        if not format_of(self.format).trains:
            raise ValueError(f"rows cannot be updated in {self.format}; use it for qat")
        if self.state not in STATES:
            raise ValueError(f"state must be one of {', '.join(STATES)}, got {self.state}")


# By table, (row format, format of the state) of each band that has rows.
Formats = Mapping[str, Sequence[Sequence[str]]]


def formats_of(bands: Mapping[str, Sequence[Band]]) -> dict[str, list[list[str]]]:
    """The formats of bands, as JSON can hold them."""
    return {name: [[b.format, b.state] for b in table] for name, table in bands.items()}


def with_formats(bands: Sequence[Band], formats: Sequence[Sequence[str]]) -> list[Band]:
    """The bands that have rows, in other formats; as they are where those are of other bands.

    Whoever loads rows compares both sides and tells the difference.
    """
    with_rows = [band for band in bands if band.num_rows]
    if len(with_rows) != len(formats):
        return with_rows
    return [
        replace(band, format=row_format, state=state)
        for band, (row_format, state) in zip(with_rows, formats, strict=True)
    ]


def with_step(bands: Sequence[Band], step: float) -> list[Band]:
    """The bands, ternary ones with this step."""
    return [
        replace(b, format=f"{b.format}:{step:g}") if b.format == "ternary" else b for b in bands
    ]


def band_of(key: str) -> str:
    """The key of the band that a piece is of; keys of FBGEMM's tensors stay as they are."""
    return "_".join(key.split("_")[:3])


class BandMemory:
    """The bytes of a band or a piece of one: each row's own and then its optimizer state.

    Row and state lie together because they are read and written together: one cache line, not two.

    Attributes:
        band: what it holds.
        number: of the band among those of the table that have rows.
        piece: number among the pieces of the band.
        first_row: of what it holds in its table.
        on_host: whether it is in the host's memory though the table is on a device.
        row_bytes: bytes of a row without its state.
        rows_RS: uint8 (rows, row_bytes + state bytes), live.
    """

    def __init__(
        self,
        band: Band,
        *,
        first_row: int,
        dim: int,
        optimizer: str,
        device: torch.device,
        folder: Path | None = None,
        number: int = 0,
        piece: int = 0,
        on_host: bool = False,
    ) -> None:
        self.band = band
        self.number, self.piece = number, piece
        self.first_row = first_row
        self.on_host = on_host
        self.row_bytes = format_of(band.format).row_bytes(dim)
        self.state_bytes = state_bytes(optimizer, dim=dim, state=STATES[band.state])
        stride = self.row_bytes + self.state_bytes
        size = band.num_rows * stride
        self._memory: MappedBytes | None = None
        if on_host or device.type == "cpu":
            self._memory = MappedBytes(size, folder, is_pinned=device.type == "cuda")
            flat = self._memory.tensor
        else:
            flat = torch.zeros(size, dtype=torch.uint8, device=device)
        self.rows_RS = flat.view(band.num_rows, stride)

    def reencode(self, row_format: str, *, dim: int) -> int:
        """Stores the rows in a smaller format, in place; states stay as they are.

        A chunk is decoded and written, rounded to the nearest, before where it was; what is then
        behind the last row goes back to the system. On a device, where memory cannot be cut, the
        band is copied.

        Returns:
            Bytes freed.

        Raises:
            ValueError: if a row of that format is not smaller.
        """
        before, after = format_of(self.band.format), format_of(row_format)
        row_bytes = after.row_bytes(dim)
        if row_bytes >= self.row_bytes:
            raise ValueError(f"a row of {row_format} is no smaller than one of {before.name}")
        num_rows, stride = self.band.num_rows, row_bytes + self.state_bytes
        flat = self.rows_RS.view(-1)
        target = flat if self._memory is not None else flat.new_empty(num_rows * stride)
        for first in range(0, num_rows, CHUNK_ROWS):
            rows = self.rows_RS[first : first + CHUNK_ROWS]
            values = before.decode(rows[:, : self.row_bytes].contiguous(), dim)
            encoded = after.encode(values, torch.tensor(0.5, device=values.device))
            smaller = torch.cat([encoded, rows[:, self.row_bytes :]], dim=1)
            target[first * stride : first * stride + smaller.numel()] = smaller.view(-1)
        freed = len(flat) - num_rows * stride
        if self._memory is not None:
            self._memory.shrink(num_rows * stride)
            target = self._memory.tensor
        self.band = replace(self.band, format=row_format)
        self.row_bytes = row_bytes
        self.rows_RS = target.view(num_rows, stride)
        return freed

    @property
    def key(self) -> str:
        """Its name, with the formats of row and state; see the head of the module."""
        key = f"band{self.number}_{self.band.format}_{self.band.state}"
        return f"{key}_{self.piece}" if self.piece else key

    @property
    def file_number(self) -> int | None:
        """Descriptor of the file that holds the band, None where it is in memory."""
        return None if self._memory is None else self._memory.file_number

    def read_in_order(self, is_in_order: bool) -> None:
        """See ``MappedBytes.read_in_order``; of memory that is mapped from a file."""
        assert self._memory is not None
        self._memory.read_in_order(is_in_order)

    @property
    def weights_bytes(self) -> int:
        """Bytes of the rows without state."""
        return self.band.num_rows * self.row_bytes

    @property
    def optimizer_bytes(self) -> int:
        """Bytes of the optimizer state."""
        return self.band.num_rows * self.state_bytes


def plan_bands(bands: Sequence[BandConfig], *, row_map: RowMap, counts: I64) -> list[Band]:
    """The bands of a table: the settings' by frequency, then its buckets.

    Args:
        bands: settings, the most frequent ids first.
        row_map: which ids have rows of their own.
        counts: training look-ups of each id, descending.
    """
    thresholds = [band.min_count for band in bands[:-1]]
    cuts = np.searchsorted(-counts, [-count for count in thresholds], side="right")
    ends = [*np.minimum(cuts, row_map.num_own_rows).tolist(), row_map.num_own_rows]
    planned, first = [], 0
    for band, end in zip(bands, ends, strict=True):
        planned.append(Band(end - first, band.format, band.state))
        first = end
    if len(planned) == 1:
        return [Band(row_map.num_rows, planned[0].format, planned[0].state)]
    # A bucket is updated as often as all ids that share it: it is stored like one id as frequent.
    lookups = bucket_lookups(row_map, counts)
    like = next(band for band in bands if lookups >= band.min_count)
    return [*planned, Band(row_map.num_buckets, like.format, like.state)]


def bucket_lookups(row_map: RowMap, counts: I64) -> float:
    """Training look-ups of one bucket on average."""
    shared = counts[row_map.num_own_rows :].sum()
    drawn = row_map.oov_rate * counts[row_map.rare_from : row_map.num_own_rows].sum()
    return float((shared + drawn) / row_map.num_buckets)


def num_bytes(bands: Sequence[Band], *, dim: int, optimizer: str) -> int:
    """Bytes that the rows of a table and their optimizer state take."""
    return sum(
        band.num_rows
        * (
            format_of(band.format).row_bytes(dim)
            + state_bytes(optimizer, dim=dim, state=STATES[band.state])
        )
        for band in bands
    )


def make_bands(
    bands: Sequence[Band],
    *,
    dim: int,
    optimizer: str,
    device: torch.device,
    shard: Shard = WHOLE,
    folder: Path | None = None,
    host_rows: range = NO_ROWS,
) -> list[BandMemory]:
    """Zeroed memory for a shard of the bands of a table that have rows; a table has at least one.

    The shard may have no rows of a band, whose memory is then empty. On the CPU it is in files of
    ``folder`` if one is given. Rows ``host_rows`` of the table are in memories of their own.
    """
    memories, first_row = [], 0
    for number, band in enumerate(band for band in bands if band.num_rows):
        rows = range(first_row, first_row + band.num_rows)
        inside = {row for row in (host_rows.start, host_rows.stop) if row in rows}
        for piece, (low, high) in enumerate(pairwise(sorted({*inside, rows.start, rows.stop}))):
            first = shard.count_below(low)
            memories.append(
                BandMemory(
                    replace(band, num_rows=shard.count_below(high) - first),
                    first_row=first,
                    dim=dim,
                    optimizer=optimizer,
                    device=device,
                    folder=folder,
                    number=number,
                    piece=piece,
                    on_host=low in host_rows,
                )
            )
        first_row = rows.stop
    if not memories:
        raise ValueError("a table must have at least one row")
    return memories


def whole_bands(memories: Sequence[BandMemory]) -> list[Band]:
    """The bands of a table, pieces put together."""
    bands = []
    for _, pieces in groupby(memories, key=lambda memory: memory.number):
        held = [memory.band for memory in pieces]
        bands.append(replace(held[0], num_rows=sum(band.num_rows for band in held)))
    return bands


def init_bands(
    memories: Sequence[BandMemory],
    *,
    dim: int,
    optimizer: str,
    initial_accumulator: float,
    init_std: float,
    num_zero_rows: int,
    generator: torch.Generator,
    num_rows: int | None = None,
    shard: Shard = WHOLE,
) -> None:
    """Writes initial rows and states, a chunk at a time.

    Row r gets the same normal numbers whatever the number of rows or their formats: only rounding
    (to the nearest) differs.

    Args:
        memories: the bands of a table.
        dim: of its rows.
        optimizer: whose state to write.
        initial_accumulator: of Adagrad.
        init_std: standard deviation of the rows.
        num_zero_rows: how many of the table's last rows are zero.
        generator: of the numbers, on the CPU.
        num_rows: of the whole table; default those of the bands.
        shard: which of them the bands hold.
    """
    if num_rows is None:
        num_rows = memories[-1].first_row + memories[-1].band.num_rows
    nearest = torch.tensor(0.5)
    for start in range(0, num_rows, CHUNK_ROWS):
        drawn = min(CHUNK_ROWS, -(-(num_rows - start) // DRAWN_ROWS) * DRAWN_ROWS)
        values = torch.empty(drawn, dim).normal_(0.0, init_std, generator=generator)
        values[max(0, num_rows - num_zero_rows - start) :] = 0
        places, held = shard.find(torch.arange(start, min(start + CHUNK_ROWS, num_rows)))
        values, first = values[places], int(held[0]) if len(held) else 0
        for memory in memories:
            low = max(first, memory.first_row)
            high = min(first + len(held), memory.first_row + memory.band.num_rows)
            if low >= high:
                continue
            rows = format_of(memory.band.format).encode(values[low - first : high - first], nearest)
            target = memory.rows_RS[low - memory.first_row : high - memory.first_row]
            target[:, : memory.row_bytes] = rows.to(target.device)
            target[:, memory.row_bytes :] = initial_state(
                optimizer, dim=dim, state=STATES[memory.band.state], accumulator=initial_accumulator
            ).to(target.device)
