"""The serving model: rows in, one probability a task out."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import torch

from edorec.data.schema import FeaturesConfig
from edorec.data.stage_columns import Place
from edorec.errors import InputError
from edorec.serving.dense import load_program
from edorec.serving.folder import DENSE, INDEX, read_manifest
from edorec.serving.index import Index
from edorec.serving.inputs import InputReader, Inputs
from edorec.serving.lookups import Lookups
from edorec.serving.tables import ServedTables, Use, table_from

BATCH_ROWS = 8192
Rows = TypeVar("Rows", pd.DataFrame, pa.Table)


@dataclass(frozen=True)
class Input:
    """A column that the model reads.

    Attributes:
        column: its name.
        kind: ``id``, ``ids`` (a list of them) or ``number``.
        type: ``int64`` or ``string`` for ids, as training saw them (either is accepted), else
            ``float64``.
        features: that are made from it.
    """

    column: str
    kind: str
    type: str
    features: tuple[str, ...]


@dataclass(frozen=True)
class Signature:
    """What goes in and what comes out.

    Attributes:
        inputs: columns, in any order; others are not looked at.
        tasks: a column ``score_<task>`` each, float32 probabilities.
    """

    inputs: tuple[Input, ...]
    tasks: tuple[str, ...]


class ServingModel:
    """An exported model; any number of threads may use it at once.

    A row's embedding vectors do not depend on the rows that come with it, and its probability only
    in the last bits, by how matrix products are cut.

    Args:
        folder: written by ``edorec export``.
        verify: also check the tables, which are large, against their checksums.
        unfinished: the folder may be of an export that is still being checked.

    Attributes:
        folder: the same.
        name: of the run.
        manifest: content of model.json.
        signature: columns in and out.
        reader: of columns.
        lookups: of all sparse features.

    Raises:
        InputError: if the folder is not sound.
    """

    def __init__(
        self, folder: str | Path, *, verify: bool = False, unfinished: bool = False
    ) -> None:
        self.folder = Path(folder)
        self.manifest = read_manifest(self.folder, verify=verify, unfinished=unfinished)
        self.name: str = self.manifest["name"]
        self.signature = Signature(
            tuple(
                Input(i["column"], i["kind"], i["type"], tuple(i["features"]))
                for i in self.manifest["signature"]["inputs"]
            ),
            tuple(self.manifest["signature"]["tasks"]),
        )
        reading = self.manifest["reading"]
        self.reader = InputReader(
            FeaturesConfig.model_validate(reading["features"]),
            lists=frozenset(reading["lists"]),
            bin_edges=reading["bin_edges"],
            dense_scale=reading["dense_scale"],
            missing_columns=reading["missing_columns"],
        )
        features = self.manifest["lookups"]
        tables = [table_from(entry) for entry in self.manifest["tables"]]
        indexes = {
            table.name: (_open_index(self.folder, entry["index"]), table.num_buckets)
            for table, entry in zip(tables, self.manifest["tables"], strict=True)
        }
        self.lookups = Lookups(
            [f["feature"] for f in features],
            [indexes[f["vocabulary"]] for f in features],
            ServedTables(
                self.folder,
                tables,
                [Use(f["vocabulary"], f["pooling"] == "mean", f["max_length"]) for f in features],
            ),
        )
        self._program = load_program(self.folder / DENSE)

    def predict(self, rows: Rows) -> Rows:
        """Probabilities of each task.

        Args:
            rows: pandas DataFrame or pyarrow Table with the columns of the signature.

        Returns:
            The same kind, columns ``score_<task>`` (float32), one row for each of ``rows``, with
            the index of a DataFrame.

        Raises:
            ConfigError: if a column is missing, or its type does not fit.
        """
        is_frame = isinstance(rows, pd.DataFrame)
        table = self._to_table(rows) if is_frame else rows
        scores_RT = torch.sigmoid(torch.cat(list(self.logits(table)))).numpy()
        columns = {f"score_{task}": scores_RT[:, k] for k, task in enumerate(self.signature.tasks)}
        if is_frame:
            return pd.DataFrame(columns, index=rows.index)
        return pa.table(columns)

    def logits(self, table: pa.Table, place: Place | None = None) -> Iterator[torch.Tensor]:
        """Logits float32 (B, T), some rows at a time; at least one tensor.

        Args:
            table: rows.
            place: where they lie in a file whose columns ``reader.check`` has seen.
        """
        for start in range(0, max(len(table), 1), BATCH_ROWS):
            yield self.logits_of(self.reader.read(table.slice(start, BATCH_ROWS), place))

    @torch.inference_mode()
    def logits_of(self, inputs: Inputs) -> torch.Tensor:
        """Logits float32 (B, T) of rows that are read."""
        dense_BN = torch.from_numpy(inputs.dense_BN)
        if not len(dense_BN):
            return torch.empty(0, len(self.signature.tasks))
        return self.logits_of_embedded(self.embed(inputs), dense_BN)

    def logits_of_embedded(self, embedded_BE: torch.Tensor, dense_BN: torch.Tensor) -> torch.Tensor:
        """Logits float32 (B, T) of at least one row of ``embed``."""
        logits_BT: torch.Tensor = self._program(embedded_BE, dense_BN)
        return logits_BT

    def embed(self, inputs: Inputs) -> torch.Tensor:
        """Rows of all features, float32 (B, E), features in the order of the manifest."""
        return self.lookups.embed(inputs)

    def _to_table(self, frame: pd.DataFrame) -> pa.Table:
        wanted = [i.column for i in self.signature.inputs if i.column in frame.columns]
        try:
            return pa.Table.from_pandas(frame[wanted], preserve_index=False)
        except pa.ArrowException as error:
            raise InputError(f"the rows to score cannot be read: {error}") from error


def _open_index(folder: Path, stem: str) -> Index:
    parts: dict[str, npt.NDArray[Any]] = {
        name: np.load(folder / INDEX / f"{stem}.{name}.npy", mmap_mode="r", allow_pickle=False)
        for name in ("levels", "words", "counts", "fingerprints")
    }
    return Index(**parts)
