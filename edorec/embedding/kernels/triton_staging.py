"""Copies rows in the host's memory to the device before their batch is looked up.

While a batch trains, the rows that the next one looks up there, each once, are copied with their
states on a stream of their own. The look-up of that batch reads the copies, its update changes them
and writes each back once (see ``triton_rows``).

A copy always has the bytes of its row. Copying begins when all earlier updates are done, and the
next update begins when copying is done; it then changes every copy of the rows that it updates. So
it does not matter which batch is looked up or updated next. On CPU tensors there are no streams.
"""

from collections import Counter, deque
from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl

from edorec.embedding.kernels import layout
from edorec.embedding.kernels.layout import Lookups, StagedRows
from edorec.embedding.kernels.triton_rows import (
    BYTES_PER_BLOCK,
    FEATURE_COLUMNS,
    FIRST_OFFSET,
    NUM_BAGS,
    ON_HOST,
    OPTIONS,
    READ_BYTES,
    ROW_STRIDE,
    TABLE,
    TABLE_COLUMNS,
    TABLE_ROWS,
    TRAFFIC,
    _band_of,
    _byte,
    _count,
    _on,
    _row_address,
    _store_byte,
)

NO_KEY = tl.constexpr(layout.NO_KEY)
MOST_BATCHES = 2  # the one that is looked up, and the one after it


@triton.jit
def find_kernel(bands, tables, features, firsts, values, offsets, keys):
    """Keys of the look-ups of a bag whose rows are in the host's memory."""
    bag = tl.program_id(0).to(tl.int64)
    feature = features + tl.program_id(1) * FEATURE_COLUMNS
    table = tables + tl.load(feature + TABLE) * TABLE_COLUMNS
    if (bag < tl.load(feature + NUM_BAGS)) & (tl.load(table + TRAFFIC) != 0):
        first = offsets + tl.load(feature + FIRST_OFFSET)
        lookups = keys + tl.load(firsts + tl.program_id(1))
        for i in range(tl.load(first + bag), tl.load(first + bag + 1)):
            row = tl.load(values + i)
            is_row = (row >= 0) & (row < tl.load(table + TABLE_ROWS))
            on_host = tl.load(_band_of(bands, table, row) + ON_HOST) != 0
            tl.store(lookups + i, (tl.load(feature + TABLE) << 32) | row, mask=is_row & on_host)


@triton.jit
def stage_kernel(bands, tables, keys, addresses, BLOCK: tl.constexpr):
    """Copies one row and its state."""
    n = tl.program_id(0).to(tl.int64)
    key = tl.load(keys + n)
    if key != NO_KEY:
        table, row = tables + (key >> 32) * TABLE_COLUMNS, key & 0xFFFFFFFF
        band = _band_of(bands, table, row)
        source, target = _row_address(band, row), tl.load(addresses + n)
        size = tl.load(band + ROW_STRIDE)
        for begin in range(0, size, BLOCK):
            d = begin + tl.arange(0, BLOCK)
            _store_byte(target + d, _byte(source + d, d < size), d < size)
        _count(table, READ_BYTES, size)


def stage(
    arrays: list[torch.Tensor], lookups: Lookups, *, num_lookups: int, row_bytes: int
) -> StagedRows:
    """Copies the rows in the host's memory that a batch looks up.

    Args:
        arrays: bands, tables, features and ``StagedRows.firsts``, on the device.
        lookups: of a batch that has any.
        num_lookups: L, at least as many as it has.
        row_bytes: most bytes of a row with its state.
    """
    bands, tables, features, firsts = arrays
    keys_L = torch.full((num_lookups,), layout.NO_KEY, device=firsts.device)
    find_kernel[(int(lookups.features[:, layout.NUM_BAGS].max()), len(features))](
        bands,
        tables,
        features,
        firsts,
        lookups.values,
        lookups.offsets.clamp(max=len(lookups.values)),
        keys_L,
        **OPTIONS,
    )
    sorted_L, order = keys_L.sort()
    is_new = torch.ones_like(sorted_L)
    is_new[1:] = sorted_L[1:] != sorted_L[:-1]
    numbers = is_new.cumsum(0) - 1
    rows_L = torch.full_like(keys_L, layout.NO_KEY).scatter_(0, numbers, sorted_L)
    copies = torch.empty(num_lookups * row_bytes, dtype=torch.uint8, device=firsts.device)
    addresses_L = torch.arange(num_lookups, device=firsts.device) * row_bytes + copies.data_ptr()
    stage_kernel[(num_lookups,)](
        bands, tables, rows_L, addresses_L, BLOCK=BYTES_PER_BLOCK, **OPTIONS
    )
    return StagedRows(
        values=lookups.values,
        firsts=firsts,
        lookup_keys=keys_L,
        lookup_addresses=torch.empty_like(keys_L).scatter_(0, order, addresses_L[numbers]),
        keys=rows_L,
        addresses=addresses_L,
        copies=copies,
    )


@dataclass(frozen=True)
class _Batch:
    """Rows of a batch, and what is over when they are there, None on a CPU."""

    rows: StagedRows
    done: torch.cuda.Event | None

    def is_of(self, lookups: Lookups) -> bool:
        """Whether these are its values: the same memory, which is held here."""
        mine, theirs = self.rows.values, lookups.values
        return len(mine) == len(theirs) and mine.data_ptr() == theirs.data_ptr()

    def ready(self) -> StagedRows:
        """The rows, for the present stream, which waits for them."""
        if self.done is not None:
            stream = torch.cuda.current_stream(self.rows.copies.device)
            stream.wait_event(self.done)
            for tensor in vars(self.rows).values():
                tensor.record_stream(stream)
        return self.rows


class Staging:
    """Rows of the batches that come next.

    Args:
        device: of the tables.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._batches: deque[_Batch] = deque(maxlen=MOST_BATCHES)

    def fetch(self, bands: np.ndarray, tables: np.ndarray, lookups: Lookups) -> None:
        """Copies the rows of a batch, beside what runs at present; see ``kernels.layout``."""
        values, device = lookups.values, lookups.values.device
        if not len(values):
            return
        firsts = _first_lookups(lookups.features, len(values))
        arrays = (bands, tables, lookups.features, firsts)
        sizes = {
            "num_lookups": int(firsts.max()) + len(values),
            "row_bytes": int(bands[bands[:, layout.ON_HOST] != 0, layout.ROW_STRIDE].max()),
        }
        if self._stream is None:
            self._batches.append(_Batch(stage(_on(device, *arrays), lookups, **sizes), None))
            return
        present = torch.cuda.current_stream(device)
        with torch.cuda.stream(self._stream):
            on_device = _on(device, *arrays)  # first: a copy to the device waits for its stream
            self._stream.wait_stream(present)
            rows = stage(on_device, lookups, **sizes)
            self._batches.append(_Batch(rows, self._stream.record_event()))
        for tensor in (values, lookups.offsets):
            tensor.record_stream(self._stream)

    def rows_of(self, lookups: Lookups) -> StagedRows | None:
        """Rows of a batch, None if they were not fetched."""
        return next((batch.ready() for batch in self._batches if batch.is_of(lookups)), None)

    def all_rows(self) -> list[StagedRows]:
        """Rows of all batches that were fetched and not used up."""
        return [batch.ready() for batch in self._batches]

    def use_up(self, lookups: Lookups) -> None:
        """The batch was updated: its rows are not needed any more."""
        others = [batch for batch in self._batches if not batch.is_of(lookups)]
        self._batches = deque(others, maxlen=MOST_BATCHES)

    def clear(self) -> None:
        """Rows are changed by other means than an update: copies are not those of rows."""
        self._batches.clear()


def _first_lookups(features: np.ndarray, num_values: int) -> np.ndarray:
    """``StagedRows.firsts``: a feature that several tables have is as many in a row."""
    seen: Counter[int] = Counter()
    firsts = []
    for offset in features[:, layout.FIRST_OFFSET].tolist():
        firsts.append(seen[offset] * num_values)
        seen[offset] += 1
    return np.array(firsts, np.int64)
