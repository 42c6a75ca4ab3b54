"""From hashes of ids to rows: each feature's index and table."""

from collections.abc import Collection, Sequence

import torch

from edorec.serving.index import I64, U64, Index
from edorec.serving.inputs import Inputs
from edorec.serving.tables import Ids, ServedTables


class Lookups:
    """Look-ups of sparse features; any number of threads may use them.

    Args:
        features: the sparse feature that each reads; several look-ups may read one, in tables of
            its own and of single tasks.
        indexes: (index, number of buckets) of each.
        tables: where their rows are.
    """

    def __init__(
        self,
        features: Sequence[str],
        indexes: Sequence[tuple[Index, int]],
        tables: ServedTables,
    ) -> None:
        self.widths = tables.widths
        self._features = list(features)
        self._indexes = list(indexes)
        self._tables = tables

    def embed(self, inputs: Inputs) -> torch.Tensor:
        """Rows side by side, float32 (B, sum of widths); see ``ServedTables.embed``."""
        return self.embed_rows(self.ids(inputs), len(inputs.dense_BN))

    def embed_rows(self, ids: Sequence[Ids], batch_size: int) -> torch.Tensor:
        """The same for rows that are known."""
        return self._tables.embed(ids, batch_size)

    def ids(self, inputs: Inputs) -> list[Ids]:
        """Rows that each look-up reads."""
        hashes = dict(zip(dict.fromkeys(self._features), inputs.hashes, strict=True))
        ids = []
        for number, feature in enumerate(self._features):
            of_feature, offsets = hashes[feature]
            ids.append(Ids(self.rows(number, of_feature), offsets))
        return ids

    def rows(self, number: int, hashes: U64) -> I64:
        """Rows of hashes in the table of a look-up."""
        index, num_buckets = self._indexes[number]
        return index.rows(hashes, num_buckets)

    def numbers(self, features: Collection[str]) -> list[int]:
        """Which look-ups read some of the features."""
        return [k for k, feature in enumerate(self._features) if feature in features]

    def subset(self, features: Collection[str]) -> "Lookups":
        """Those that read some of the features."""
        numbers = self.numbers(features)
        return Lookups(
            [self._features[k] for k in numbers],
            [self._indexes[k] for k in numbers],
            self._tables.subset(numbers),
        )
