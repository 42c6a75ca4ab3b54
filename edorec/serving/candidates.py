"""Candidates of users: what follows from a user's columns alone is read and looked up once a user.

A request to rank 200 items for one user holds the user's columns 200 times over; hashing and
pooling them again for each item would be most of the work.
"""

from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from edorec.serving.inputs import InputReader
from edorec.serving.model import BATCH_ROWS, ServingModel


class CandidateScorer:
    """Scores rows whose columns come in two tables; any number of threads may use it.

    The scores are those of ``ServingModel.predict`` on the joined table, embedding vectors bit for
    bit.

    Args:
        model: an exported model.
        user_columns: columns of the model that are the user's; the others are the candidates'.
    """

    def __init__(self, model: ServingModel, user_columns: Collection[str]) -> None:
        self._model = model
        columns = set(model.reader.columns)
        self._user = _Side(model, columns & set(user_columns))
        self._candidate = _Side(model, columns - set(user_columns))
        # Where each column of the joined vectors stands when the user's come first.
        self._pooled_order = _inverse(self._user.pooled_places + self._candidate.pooled_places)
        self._dense_order = _inverse(self._user.dense_places + self._candidate.dense_places)

    @torch.inference_mode()
    def predict(
        self, users: pa.Table, candidates: pa.Table, user_of_R: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float32]:
        """Probabilities, float32 (R, T).

        Args:
            users: the user columns, any number of users.
            candidates: the other columns, R rows.
            user_of_R: row of ``users`` for each candidate.

        Raises:
            ConfigError: if a column is missing or of another type.
        """
        of_users = self._user.embed(users)
        scores = [np.empty((0, len(self._model.signature.tasks)), np.float32)]
        for start in range(0, len(user_of_R), BATCH_ROWS):
            chosen = torch.from_numpy(user_of_R[start : start + BATCH_ROWS])
            of_candidates = self._candidate.embed(candidates.slice(start, BATCH_ROWS))
            if self._user.is_empty:
                pooled_BE, dense_BN = of_candidates
            else:
                repeated = [values.index_select(0, chosen) for values in of_users]
                if self._candidate.is_empty:
                    pooled_BE, dense_BN = repeated
                else:
                    pairs = zip(repeated, of_candidates, strict=True)
                    pooled_BE, dense_BN = (torch.cat(pair, dim=1) for pair in pairs)
            pooled_BE = pooled_BE.index_select(1, self._pooled_order)
            dense_BN = dense_BN.index_select(1, self._dense_order)
            logits_BT = self._model.logits_of_embedded(pooled_BE, dense_BN)
            scores.append(torch.sigmoid(logits_BT).numpy())
        return np.concatenate(scores)


class _Side:
    """The features of some columns.

    Attributes:
        pooled_places: where their pooled values stand among those of all look-ups.
        dense_places: where their dense values stand.
        is_empty: whether there are none; a table without columns has no number of rows.
    """

    def __init__(self, model: ServingModel, columns: Collection[str]) -> None:
        self._reader = model.reader.subset(columns)
        whole = model.lookups
        sparse = [use.name for use in self._reader.uses if use.kind in ("id", "bins")]
        self._lookups = whole.subset(sparse)
        self.is_empty = not self._reader.uses
        ends = np.cumsum(whole.widths).tolist()
        self.pooled_places = [
            place
            for number in whole.numbers(sparse)
            for place in range(ends[number] - whole.widths[number], ends[number])
        ]
        all_dense = _dense_features(model.reader)
        self.dense_places = [all_dense.index(name) for name in _dense_features(self._reader)]

    def embed(self, table: pa.Table) -> tuple[torch.Tensor, torch.Tensor]:
        """Pooled rows (B, sum of widths) and dense values (B, N) of its features."""
        inputs = self._reader.read(table)
        return self._lookups.embed(inputs), torch.from_numpy(inputs.dense_BN)


def _inverse(places: list[int]) -> torch.Tensor:
    return torch.from_numpy(np.argsort(np.array(places, np.int64)))


def _dense_features(reader: InputReader) -> list[str]:
    return [use.name for use in reader.uses if use.kind == "dense"]
