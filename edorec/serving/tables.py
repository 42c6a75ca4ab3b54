"""Tables of a serving folder: rows without optimizer state, in the order of the index, mapped.

A table's own rows lie in bands, each a plain file of rows in one format, and the bucket rows follow
in one more. Files are memory-mapped: start-up reads nothing, and processes share the pages.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from edorec.embedding.formats import format_code, format_of
from edorec.embedding.kernels import cpu
from edorec.embedding.kernels.layout import BAND_COLUMNS, TABLE_COLUMNS, Lookups
from edorec.serving import pq

PQ = "pq"
CHUNK_ROWS = 65_536
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ServedBand:
    """Consecutive rows of a table in one file.

    Attributes:
        file: name in the folder.
        format: row format, or ``pq``.
        num_rows: rows.
        centroids: file of a ``pq`` band's centroids, float16 (256, D); else empty.
    """

    file: str
    format: str
    num_rows: int
    centroids: str = ""


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


@dataclass(frozen=True)
class _PqBand:
    first_row: int
    codes: npt.NDArray[np.uint8]
    centroids: npt.NDArray[np.float32]


@dataclass(frozen=True)
class Use:
    """How a feature looks up a table.

    Attributes:
        table: its name.
        is_mean: pooled by mean, not by sum.
        max_length: of a list that the model pools itself, else None.
    """

    table: str
    is_mean: bool
    max_length: int | None


class ServedTables:
    """Look-ups in the tables of a folder; any number of threads may use it.

    Args:
        folder: of the model.
        tables: what it holds.
        features: in the order of the model.

    Attributes:
        widths: numbers that each feature has in a row of ``embed``.
    """

    def __init__(
        self,
        folder: Path,
        tables: Sequence[ServedTable],
        features: Sequence[Use],
    ) -> None:
        largest = max((table.dim for table in tables), default=0)
        self._zeros = np.zeros(largest, np.float32)
        self._maps: list[npt.NDArray[np.uint8]] = []
        self._pq: dict[int, list[_PqBand]] = {}
        bands: list[list[int]] = []
        entries: list[list[int]] = []
        for number, table in enumerate(tables):
            first_band, first_row = len(bands), 0
            for band in table.bands:
                if not band.num_rows:
                    continue
                data = np.memmap(folder / band.file, np.uint8, "r")
                entry = [first_row, band.num_rows]
                if band.format == PQ:
                    # To the kernel each of its rows is the same row of zeros.
                    halves = np.load(folder / band.centroids, allow_pickle=False)
                    centroids = halves.astype(np.float32)
                    codes = data.reshape(band.num_rows, -1)
                    pq_bands = self._pq.setdefault(number, [])
                    pq_bands.append(_PqBand(first_row, codes, centroids))
                    entry += [self._zeros.ctypes.data, 0, 0, format_code("fp32"), 0, 0]
                else:
                    self._maps.append(data)
                    row_bytes = format_of(band.format).row_bytes(table.dim)
                    code = format_code(band.format)
                    entry += [data.ctypes.data, row_bytes, row_bytes, code, 0, 0]
                bands.append(entry)
                first_row += band.num_rows
            entries.append([first_band, len(bands), table.dim, -1, table.num_rows, 0, 0])
        self._bands = np.array(bands, np.int64).reshape(-1, BAND_COLUMNS)
        self._tables = np.array(entries, np.int64).reshape(-1, TABLE_COLUMNS)
        self._dims = {table.name: table.dim for table in tables}
        self._arrange(features)

    def _arrange(self, features: Sequence[Use]) -> None:
        """Lays the rows of features side by side."""
        self._features = features
        self.widths = [width(use.max_length, self._dims[use.table]) for use in features]
        self._ends = np.cumsum(self.widths, dtype=np.int64)
        numbers = list(self._dims)
        layout = []
        for use, end, size in zip(features, self._ends.tolist(), self.widths, strict=True):
            # Each place of a list that the model pools is a look-up of one row, or none.
            for place in range(use.max_length or 1):
                out = end - size + place * self._dims[use.table]
                layout.append([numbers.index(use.table), 0, 0, out, sum(self.widths), use.is_mean])
        self._layout = np.array(layout, np.int64).reshape(-1, 6)

    def subset(self, features: Sequence[int]) -> "ServedTables":
        """Look-ups of some of the features, given by number, in the same tables."""
        tables = copy.copy(self)
        tables._arrange([self._features[feature] for feature in features])
        return tables

    def embed(self, ids: Sequence[Ids], batch_size: int) -> torch.Tensor:
        """Rows of all features, float32 (B, sum of widths).

        Of a list that the model pools these are its rows, zeros up to ``max_length``, and its
        length; of another feature its pooled rows.

        Args:
            ids: of each feature, in the order of the model.
            batch_size: rows of the batch.
        """
        if not ids:
            return torch.empty(batch_size, 0)
        bags = [
            bag
            for use, part in zip(self._features, ids, strict=True)
            for bag in ([part] if use.max_length is None else _places(part, use.max_length))
        ]
        layout = self._layout.copy()
        starts = np.cumsum([0, *(len(bag.rows) for bag in bags)])
        layout[:, 1] = np.arange(len(bags)) * (batch_size + 1)
        layout[:, 2] = batch_size
        offsets = [bag.offsets + start for bag, start in zip(bags, starts, strict=False)]
        num_columns = sum(self.widths)
        lookups = Lookups(
            features=layout,
            values=torch.from_numpy(np.concatenate([bag.rows for bag in bags])),
            offsets=torch.from_numpy(np.concatenate(offsets)),
            weights=None,
            out_size=batch_size * num_columns,
        )
        embedded = cpu.forward(self._bands, self._tables, lookups).view(batch_size, num_columns)
        embedded_BE = embedded.numpy()
        for bag, (table, _, _, out, _, is_mean) in zip(bags, self._layout.tolist(), strict=True):
            for band in self._pq.get(table, []):
                target = embedded_BE[:, out : out + band.centroids.shape[1]]
                pq.add_rows(
                    bag.rows,
                    bag.offsets,
                    band.first_row,
                    band.codes,
                    band.centroids,
                    bool(is_mean),
                    target,
                )
        for use, part, end in zip(self._features, ids, self._ends.tolist(), strict=True):
            if use.max_length is not None:
                embedded_BE[:, end - 1] = np.diff(part.offsets)
        return embedded


def width(max_length: int | None, dim: int) -> int:
    """Numbers of a feature in a row: of a list that the model pools also its length."""
    return dim if max_length is None else max_length * dim + 1


def _places(ids: Ids, max_length: int) -> list[Ids]:
    """For each place of a list a look-up of the row there, or of none."""
    lengths = np.diff(ids.offsets)
    places = []
    for place in range(max_length):
        has_row = lengths > place
        rows = ids.rows[ids.offsets[:-1][has_row] + place]
        places.append(Ids(rows, np.concatenate([[0], np.cumsum(has_row)])))
    return places


def decode_rows(source_RS: torch.Tensor, order: I64, *, row_format: str, dim: int) -> torch.Tensor:
    """Rows of a trained band, float32 (len(order), D)."""
    chosen = source_RS[torch.from_numpy(order), : format_of(row_format).row_bytes(dim)]
    return format_of(row_format).decode(chosen, dim)


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
        path: file to write; rows are added to what it holds.
        source_RS: uint8 (rows, row and state bytes).
        order: which of them, in the order of the file.
        from_format: format they are in.
        to_format: format to write; another one is rounded to the nearest.
        dim: of the rows.
    """
    nearest = torch.tensor(0.5)
    with path.open("ab") as file:
        for start in range(0, len(order), CHUNK_ROWS):
            part = order[start : start + CHUNK_ROWS]
            if from_format == to_format:
                rows = source_RS[torch.from_numpy(part), : format_of(to_format).row_bytes(dim)]
            else:
                values = decode_rows(source_RS, part, row_format=from_format, dim=dim)
                rows = format_of(to_format).encode(values, nearest)
            file.write(rows.contiguous().numpy().tobytes())


def table_from(entry: Mapping[str, Any]) -> ServedTable:
    """A table as model.json describes it."""
    bands = tuple(ServedBand(**band) for band in entry["bands"])
    return ServedTable(entry["name"], entry["dim"], entry["num_buckets"], bands)
