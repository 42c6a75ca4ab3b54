"""Look-up and update of rows in plain torch, on any device: what the other kernels must do."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from edorec.embedding.formats import format_of
from edorec.embedding.formats.row_format import RowFormat
from edorec.embedding.kernels.layout import (
    FIRST_OFFSET,
    IS_MEAN,
    NUM_BAGS,
    OUT,
    OUT_STRIDE,
    TABLE,
    Lookups,
    first_outside,
)
from edorec.embedding.kernels.noise import row_keys, row_noise
from edorec.embedding.optimizers import Step, keeps_idle_rows, update_rows
from edorec.embedding.shards import WHOLE, Shard
from edorec.embedding.states import StateFormat


@dataclass(frozen=True)
class BandRows:
    """The rows of one band, as the reference kernel sees them.

    Attributes:
        first_row: of the band in its table.
        rows_RS: uint8, each row's bytes and then its state.
        format: of the rows.
        state: format of the accumulator.
    """

    first_row: int
    rows_RS: torch.Tensor
    format: RowFormat
    state: StateFormat


@dataclass(frozen=True)
class TableRows:
    """One table, as the reference kernel sees it.

    Attributes:
        bands: in the order of their rows.
        dim: of its rows.
        qat: format that rows are read through, None for their own.
        shard: which rows of the table these are.
    """

    bands: Sequence[BandRows]
    dim: int
    qat: str | None
    shard: Shard = WHOLE

    @property
    def num_rows(self) -> int:
        """Rows of all bands."""
        return self.bands[-1].first_row + len(self.bands[-1].rows_RS)

    def read(self, rows_L: torch.Tensor) -> torch.Tensor:
        """Float32 (L, D) of int64 rows, as the forward pass sees them."""
        values_LD = torch.empty(len(rows_L), self.dim, device=rows_L.device)
        for band in self.bands:
            places, rows = _in_band(band, rows_L)
            size = band.format.row_bytes(self.dim)
            values_LD[places] = band.format.decode(band.rows_RS[rows, :size], self.dim)
        if self.qat is not None:
            small = format_of(self.qat)
            half = torch.tensor(0.5, device=rows_L.device)
            values_LD = small.decode(small.encode(values_LD, half), self.dim)
        return values_LD


def forward(tables: Sequence[TableRows], lookups: Lookups) -> torch.Tensor:
    """As ``kernels.cpu.forward``; undefined numbers are 0."""
    out = torch.zeros(lookups.out_size, device=lookups.values.device)
    for feature in lookups.features.tolist():
        rows_L, starts_L, scales_L = _of_feature(lookups, feature)
        table = tables[feature[TABLE]]
        if ((rows_L < 0) | (rows_L >= table.num_rows)).any():
            raise IndexError(*first_outside(lookups, [table.num_rows for table in tables]))
        values_LD = table.read(rows_L) * scales_L.unsqueeze(1)
        places_LD = starts_L.unsqueeze(1) + torch.arange(table.dim, device=out.device)
        out.index_add_(0, places_LD.flatten(), values_LD.flatten())
    return out


def backward(
    tables: Sequence[TableRows],
    lookups: Lookups,
    gradients: torch.Tensor,
    *,
    optimizer: str,
    step: Step,
    table_keys: Sequence[int],
) -> None:
    """As ``kernels.cpu.backward``."""
    for index, table in enumerate(tables):
        rows, sums_ND = _sum_by_row(table, index, lookups, gradients)
        if keeps_idle_rows(optimizer, step):
            moves = sums_ND.any(dim=1)
            rows, sums_ND = rows[moves], sums_ND[moves]
        for band in table.bands:
            places, local = _in_band(band, rows)
            if not len(places):
                continue
            size = band.format.row_bytes(table.dim)
            keys_N = row_keys(table_keys[index], table.shard.rows(rows[places]))
            noise_ND = row_noise(keys_N, table.dim + 1)
            values_ND, states_NS = update_rows(
                optimizer,
                band.format.decode(band.rows_RS[local, :size], table.dim),
                sums_ND[places],
                band.rows_RS[local, size:],
                state=band.state,
                noise_N=noise_ND[:, -1],
                step=step,
            )
            rows_NB = band.format.encode(values_ND, noise_ND[:, :-1])
            band.rows_RS[local] = torch.cat([rows_NB, states_NS], dim=1)


def _in_band(band: BandRows, rows_L: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Places of the look-ups that fall into a band, and their rows in it."""
    local = rows_L - band.first_row
    places = ((local >= 0) & (local < len(band.rows_RS))).nonzero().flatten()
    return places, local[places]


def _of_feature(
    lookups: Lookups, feature: list[int]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A feature's look-ups: rows (L), where their bag's result starts (L), scales (L)."""
    first, num_bags = feature[FIRST_OFFSET], feature[NUM_BAGS]
    offsets = lookups.offsets[first : first + num_bags + 1]
    low, high = int(offsets[0]), int(offsets[-1])
    lengths_B = offsets.diff()
    bag_L = torch.arange(num_bags, device=offsets.device).repeat_interleave(lengths_B)
    scales_L = torch.ones(high - low, device=offsets.device)
    if feature[IS_MEAN]:
        scales_L = scales_L / lengths_B[bag_L]
    if lookups.weights is not None:
        scales_L = scales_L * lookups.weights[low:high]
    return lookups.values[low:high], feature[OUT] + bag_L * feature[OUT_STRIDE], scales_L


def _sum_by_row(
    table: TableRows, index: int, lookups: Lookups, gradients: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of a table that were looked up (N), and the sums of their gradients (N, D)."""
    device = gradients.device
    parts = [
        _of_feature(lookups, feature)
        for feature in lookups.features.tolist()
        if feature[TABLE] == index
    ]
    if not parts:
        return torch.empty(0, dtype=torch.int64, device=device), gradients.new_empty(0, table.dim)
    rows_L, starts_L, scales_L = (torch.cat(pieces) for pieces in zip(*parts, strict=True))
    places_LD = starts_L.unsqueeze(1) + torch.arange(table.dim, device=device)
    gradients_LD = gradients[places_LD] * scales_L.unsqueeze(1)
    rows, inverse = rows_L.unique(return_inverse=True)
    sums_ND = gradients.new_zeros(len(rows), table.dim)
    return rows, sums_ND.index_add_(0, inverse, gradients_LD)
