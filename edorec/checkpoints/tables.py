"""Tables of a checkpoint: any rows of any band, read without the rest."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from edorec.checkpoints.folder import PAGES, ROWS, Saved, part_file
from edorec.embedding.bands import band_of
from edorec.embedding.build import EmbeddingTables
from edorec.embedding.kernels.layout import PAGE_BYTES
from edorec.embedding.shards import Shard
from edorec.embedding.snapshot import BandPages, band_pages

CHUNK_BYTES = 1 << 24


class SavedTables:
    """Rows of a checkpoint.

    Attributes:
        parts: of the processes that saved it, by rank.
    """

    def __init__(self, saved: Saved) -> None:
        base = saved.manifest["base"]
        folders = [saved.folder.with_name(base)] if base else []
        self.parts = [
            SavedPart(bands, rank=rank, folders=[*folders, saved.folder])
            for rank, bands in enumerate(saved.manifest["parts"])
        ]

    def load(self, table: str, band: str, shard: Shard, first_row: int, out: torch.Tensor) -> None:
        """Reads a shard's rows of a band, whoever has saved them.

        Args:
            table: name.
            band: key of the band, or of a piece of it.
            shard: of the table.
            first_row: of the rows in the shard.
            out: uint8 (rows, bytes of a row), filled.
        """
        rows = shard.rows(torch.arange(first_row, first_row + len(out)))
        num_found = 0
        for part in self.parts:
            for entry in part.pieces(table, band):
                places, local = Shard(entry.buckets).find(rows)
                local = local - entry.first_row
                inside = (local >= 0) & (local < entry.num_rows)
                places, local = places[inside], local[inside]
                if len(places):
                    first = int(local[0])
                    held = part.rows(table, entry.band, first, int(local[-1]) + 1)
                    out[places] = held[local - first]
                num_found += len(places)
        if num_found != len(out):
            raise ValueError(f"table {table}, {band}: {len(out) - num_found} rows are not saved")


class SavedPart:
    """Rows that one process has saved.

    Attributes:
        bands: by table and band, in order; see ``BandPages``.
    """

    def __init__(self, bands: list[dict[str, Any]], *, rank: int, folders: list[Path]) -> None:
        entries = [BandPages(**{**band, "buckets": tuple(band["buckets"])}) for band in bands]
        self.bands = {(band.table, band.band): band for band in entries}
        num_pages = entries[-1].end_page if entries else 0
        self._layers = [_open(folder, rank, num_pages) for folder in folders]

    def pieces(self, table: str, band: str) -> list[BandPages]:
        """Where a band is: its pieces, in whatever rows they were cut."""
        return [
            entry
            for entry in self.bands.values()
            if entry.table == table and band_of(entry.band) == band_of(band)
        ]

    def rows(self, table: str, band: str, first_row: int, end_row: int) -> torch.Tensor:
        """Rows ``first_row`` to ``end_row`` (excluded) of a band, each with its optimizer state.

        Returns:
            uint8 (rows, bytes of a row), a copy.
        """
        entry = self.bands[table, band]
        if not 0 <= first_row <= end_row <= entry.num_rows:
            raise ValueError(
                f"table {table}, {band}: rows {first_row} to {end_row} are not among its "
                f"{entry.num_rows}"
            )
        low, high = first_row * entry.row_bytes, end_row * entry.row_bytes
        first, end = low // PAGE_BYTES, -(-high // PAGE_BYTES)
        pages = np.empty((end - first, PAGE_BYTES), np.uint8)
        for positions, content in self._layers:
            at = positions[entry.first_page + first : entry.first_page + end]
            pages[at >= 0] = content[at[at >= 0]]
        start = low - first * PAGE_BYTES
        flat = torch.from_numpy(pages.reshape(-1)[start : start + high - low])
        return flat.view(end_row - first_row, entry.row_bytes)


def load_tables(saved: SavedTables, tables: EmbeddingTables) -> None:
    """Loads all rows and their optimizer state in place; the bands must be the same."""
    state = tables.tables_state()
    for band in band_pages(tables):
        tensor, shard = state[band.table][band.band], Shard(band.buckets)
        step = max(1, CHUNK_BYTES // max(1, band.row_bytes))
        for first in range(0, len(tensor), step):
            target = tensor[first : first + step]
            rows = torch.empty(len(target), band.row_bytes, dtype=torch.uint8)
            saved.load(band.table, band.band, shard, band.first_row + first, rows)
            with tables.in_order():
                target.copy_(rows.view(tensor.dtype).view(target.shape))


def _open(folder: Path, rank: int, num_pages: int) -> tuple[np.ndarray, np.ndarray]:
    """Where each page is in the file (-1: nowhere), and the pages of the file."""
    numbers = np.fromfile(folder / part_file(PAGES, rank), np.int64)
    positions = np.full(num_pages, -1, np.int64)
    positions[numbers] = np.arange(len(numbers))
    if not len(numbers):  # an empty file cannot be mapped
        return positions, np.empty((0, PAGE_BYTES), np.uint8)
    content = np.memmap(folder / part_file(ROWS, rank), np.uint8, mode="r")
    return positions, content.reshape(-1, PAGE_BYTES)
