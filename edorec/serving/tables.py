"""Tables of a serving folder: rows without optimizer state, in the order of the index, mapped.

A table's own rows lie in bands, each a plain file of rows in one format, and the bucket rows follow
in one more. Files are memory-mapped: start-up reads nothing, and processes share the pages.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from edorec.embedding.formats import FORMATS
from edorec.embedding.kernels import cpu
from edorec.embedding.kernels.layout import Lookups, index_of

CHUNK_ROWS = 65_536
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ServedBand:
    """Consecutive rows of a table in one file.

    Attributes:
        file: name in the folder.
        format: row format.
        num_rows: rows.
    """

    file: str
    format: str
    num_rows: int


@dataclass(frozen=True)
class ServedTable:
    """One table.

    Attributes:
        name: its vocabulary.
        dim: of its rows.
        num_buckets: how many of its last rows are buckets.
        bands: in order of rows.
    """

    name: str
    dim: int
    num_buckets: int
    bands: tuple[ServedBand, ...]

    @property
    def num_rows(self) -> int:
        """Rows of all bands."""
        return sum(band.num_rows for band in self.bands)


@dataclass(frozen=True)
class Ids:
    """Rows that one feature looks up: those of bag b are ``rows[offsets[b] : offsets[b + 1]]``."""

    rows: I64
    offsets: I64


class ServedTables:
    """Look-ups in the tables of a folder; any number of threads may use it.

    Args:
        folder: of the model.
        tables: what it holds.
        features: (table, is pooled by mean) by feature, in the order of the model.
    """

    def __init__(
        self,
        folder: Path,
        tables: Sequence[ServedTable],
        features: Mapping[str, tuple[str, bool]],
    ) -> None:
        self._maps: list[npt.NDArray[np.uint8]] = []
        bands: list[list[int]] = []
        entries: list[list[int]] = []
        for table in tables:
            first_band, first_row = len(bands), 0
            for band in table.bands:
                row_bytes = FORMATS[band.format].row_bytes(table.dim)
                if not band.num_rows:
                    continue
                data = np.memmap(folder / band.file, np.uint8, "r")
                self._maps.append(data)
                code = index_of(list(FORMATS), band.format)
                address = data.ctypes.data
                bands.append([first_row, band.num_rows, address, row_bytes, row_bytes, code, 0])
                first_row += band.num_rows
            entries.append([first_band, len(bands), table.dim, -1, table.num_rows])
        self._bands = np.array(bands, np.int64).reshape(-1, 7)
        self._tables = np.array(entries, np.int64).reshape(-1, 5)
        names = [table.name for table in tables]
        order = [(names.index(table), is_mean) for table, is_mean in features.values()]
        self.dims = [tables[index].dim for index, _ in order]
        outs = np.cumsum([0, *self.dims]).tolist()
        self._layout = np.array(
            [
                [index, 0, 0, out, outs[-1], is_mean]
                for (index, is_mean), out in zip(order, outs, strict=False)
            ],
            np.int64,
        ).reshape(-1, 6)

    def embed(self, ids: Sequence[Ids], batch_size: int) -> torch.Tensor:
        """Pooled rows of all features, float32 (B, sum of dims).

        Args:
            ids: of each feature, in the order of the model.
            batch_size: rows of the batch.
        """
        if not ids:
            return torch.empty(batch_size, 0)
        layout = self._layout.copy()
        starts = np.cumsum([0, *(len(part.rows) for part in ids)])
        layout[:, 1] = np.arange(len(ids)) * (batch_size + 1)
        layout[:, 2] = batch_size
        offsets = [part.offsets + start for part, start in zip(ids, starts, strict=False)]
        lookups = Lookups(
            features=layout,
            values=torch.from_numpy(np.concatenate([part.rows for part in ids])),
            offsets=torch.from_numpy(np.concatenate(offsets)),
            weights=None,
            out_size=batch_size * sum(self.dims),
        )
        pooled = cpu.forward(self._bands, self._tables, lookups)
        return pooled.view(batch_size, sum(self.dims))


def write_rows(
    path: Path,
    source_RS: torch.Tensor,
    order: I64,
    *,
    from_format: str,
    to_format: str,
    dim: int,
) -> None:
    """Writes rows of a trained band, without state, in another order and format.

    Args:
        path: file to write.
        source_RS: uint8 (rows, row and state bytes).
        order: which of them, in the order of the file.
        from_format: format they are in.
        to_format: format to write; another one is rounded to the nearest.
        dim: of the rows.
    """
    source, target = FORMATS[from_format], FORMATS[to_format]
    nearest = torch.tensor(0.5)
    with path.open("wb") as file:
        for start in range(0, len(order), CHUNK_ROWS):
            chosen = torch.from_numpy(order[start : start + CHUNK_ROWS])
            rows = source_RS[chosen, : source.row_bytes(dim)]
            if from_format != to_format:
                rows = target.encode(source.decode(rows, dim), nearest)
            file.write(rows.contiguous().numpy().tobytes())


def table_from(entry: Mapping[str, Any]) -> ServedTable:
    """A table as model.json describes it."""
    bands = tuple(ServedBand(**band) for band in entry["bands"])
    return ServedTable(entry["name"], entry["dim"], entry["num_buckets"], bands)
