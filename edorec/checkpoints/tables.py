"""Tables of a checkpoint: any rows of any band, read without the rest."""

from pathlib import Path

import numpy as np
import torch

from edorec.checkpoints.folder import PAGES, ROWS, Saved
from edorec.embedding.build import EmbeddingTables
from edorec.embedding.kernels.pages import PAGE_BYTES
from edorec.embedding.snapshot import BandPages

CHUNK_BYTES = 1 << 24


class SavedTables:
    """Rows of a checkpoint.

    Attributes:
        bands: by table and band, in order; see ``BandPages``.
    """

    def __init__(self, saved: Saved) -> None:
        bands = [BandPages(**band) for band in saved.manifest["bands"]]
        self.bands = {(band.table, band.band): band for band in bands}
        num_pages = bands[-1].end_page if bands else 0
        base = saved.manifest["base"]
        folders = [saved.folder.with_name(base)] if base else []
        self._layers = [_open(path, num_pages) for path in (*folders, saved.folder)]

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
    for table, tensors in tables.tables_state().items():
        for band, tensor in tensors.items():
            step = max(1, CHUNK_BYTES // max(1, saved.bands[table, band].row_bytes))
            for first in range(0, len(tensor), step):
                target = tensor[first : first + step]
                rows = saved.rows(table, band, first, first + len(target))
                target.copy_(rows.view(tensor.dtype).view(target.shape))


def _open(folder: Path, num_pages: int) -> tuple[np.ndarray, np.ndarray]:
    """Where each page is in the file (-1: nowhere), and the pages of the file."""
    numbers = np.load(folder / PAGES, allow_pickle=False)
    positions = np.full(num_pages, -1, np.int64)
    positions[numbers] = np.arange(len(numbers))
    if not len(numbers):  # an empty file cannot be mapped
        return positions, np.empty((0, PAGE_BYTES), np.uint8)
    content = np.memmap(folder / ROWS, np.uint8, mode="r")
    return positions, content.reshape(-1, PAGE_BYTES)
