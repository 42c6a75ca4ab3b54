"""Rows that come to be scored: the same reading of columns as in training, without files.

Every rule of ``edorec.data.stage`` holds: null ids, missing values, lists, bins, dense values.
"""

import copy
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from edorec.data.columns import check_again, column_uses
from edorec.data.encode import bin_hashes
from edorec.data.numbers import standardize
from edorec.data.schema import FeaturesConfig
from edorec.data.source import SourceFile
from edorec.data.stage_columns import IdColumn, Place, build_columns

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
ROWS = Path("the rows to score")


@dataclass(frozen=True)
class Inputs:
    """B rows as hashes and numbers.

    Attributes:
        hashes: by sparse feature, hashes of ids and int64 offsets (B + 1) of each row's.
        dense_BN: float32, standardized.
    """

    hashes: list[tuple[U64, I64]]
    dense_BN: npt.NDArray[np.float32]


class InputReader:
    """Reads columns as a run did.

    Args:
        features: of the run.
        lists: sparse features that hold lists.
        bin_edges: by feature with bins.
        dense_scale: (mean, deviation) by dense feature.
        missing_columns: ``error`` or ``null``, see ``data.missing_columns``.
    """

    def __init__(
        self,
        features: FeaturesConfig,
        *,
        lists: frozenset[str],
        bin_edges: Mapping[str, list[float]],
        dense_scale: Mapping[str, tuple[float, float]],
        missing_columns: str,
    ) -> None:
        self.uses = column_uses(features, {}, weight=None, group=None)
        self.columns = list(dict.fromkeys(use.column for use in self.uses))
        self._features = features
        self._lists = lists
        self._edges = {name: np.array(edges, np.float64) for name, edges in bin_edges.items()}
        self._scale = dense_scale
        self._missing_columns = missing_columns
        self._sound: pa.Schema | None = None  # the last that was checked

    def subset(self, columns: Collection[str]) -> "InputReader":
        """A reader of the features that are made from some of the columns."""
        features = FeaturesConfig.model_construct(
            sparse={n: f for n, f in self._features.sparse.items() if (f.column or n) in columns},
            dense={n: f for n, f in self._features.dense.items() if (f.column or n) in columns},
        )
        reader = copy.copy(self)
        reader.uses = column_uses(features, {}, weight=None, group=None)
        reader._sound = None
        reader.columns = list(dict.fromkeys(use.column for use in reader.uses))
        return reader

    def check(self, files: list[SourceFile]) -> None:
        """Checks columns and types of files.

        Raises:
            ConfigError: with all that does not fit.
        """
        check_again(self.uses, files, lists=self._lists, missing_columns=self._missing_columns)

    def read(self, table: pa.Table, place: Place | None = None) -> Inputs:
        """Hashes and numbers of rows; other columns are not looked at.

        Args:
            table: checked here unless it has a place.
            place: where the rows lie in a checked file, for messages.

        Raises:
            ConfigError: if a column is missing or of another type.
        """
        if place is None:
            if table.schema != self._sound:  # the check takes longer than reading a few rows
                self.check([_as_file(table)])
                self._sound = table.schema
            place = Place(ROWS, 0, 0)
        columns = dict(zip(table.column_names, table.columns, strict=True))
        hashes: list[tuple[U64, I64]] = []
        dense: list[npt.NDArray[np.float32]] = []
        for column in build_columns(self.uses, self._features, self._lists):
            use = column.use
            found = columns.get(use.column)
            array = pa.nulls(len(table)) if found is None else _array(found)
            staged = column.stage(array, place)
            if use.kind == "dense":
                dense.append(standardize(staged.to_numpy(), *self._scale[use.name])[0])
            elif use.kind == "bins":
                bins = bin_hashes(staged.to_numpy(), self._edges[use.name])
                hashes.append((bins, np.arange(len(bins) + 1)))
            else:
                assert isinstance(column, IdColumn)
                hashes.append(_ids(staged))
        stacked = np.stack(dense, axis=1) if dense else np.empty((len(table), 0), np.float32)
        return Inputs(hashes, stacked)


def _ids(staged: Any) -> tuple[U64, I64]:
    if pa.types.is_list(staged.type):
        offsets = staged.offsets.to_numpy().astype(np.int64)
        return staged.values.to_numpy()[offsets[0] : offsets[-1]], offsets - offsets[0]
    return staged.to_numpy(), np.arange(len(staged) + 1)


def _array(column: pa.ChunkedArray) -> pa.Array:
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.cast(column.type.storage_type)
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _as_file(table: pa.Table) -> SourceFile:
    """A table in memory as the checks of files see it."""
    types = [
        kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
        for kind in table.schema.types
    ]
    return SourceFile(
        path=ROWS,
        names=tuple(table.column_names),
        types=tuple(types),
        num_rows=len(table),
        row_groups=(len(table),),
        fingerprint=("", 0, 0, ""),
    )
