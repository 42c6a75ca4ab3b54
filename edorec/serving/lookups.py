"""From hashes of ids to rows: each feature's index and table."""

from collections.abc import Sequence

import torch

from edorec.serving.index import I64, U64, Index
from edorec.serving.inputs import Inputs
from edorec.serving.tables import Ids, ServedTables


class Lookups:
    """Look-ups of sparse features; any number of threads may use them.

    Args:
        features: names.
        indexes: (index, number of buckets) of each.
        tables: where their rows are.
    """

    def __init__(
        self,
        features: Sequence[str],
        indexes: Sequence[tuple[Index, int]],
        tables: ServedTables,
    ) -> None:
        self.features = list(features)
        self.widths = tables.widths
        self._indexes = dict(zip(features, indexes, strict=True))
        self._tables = tables

    def embed(self, inputs: Inputs) -> torch.Tensor:
        """Rows side by side, float32 (B, sum of widths); see ``ServedTables.embed``."""
        ids = [
            Ids(self.rows(feature, hashes), offsets)
            for feature, (hashes, offsets) in zip(self.features, inputs.hashes, strict=True)
        ]
        return self._tables.embed(ids, len(inputs.dense_BN))

    def rows(self, feature: str, hashes: U64) -> I64:
        """Rows of a feature's hashes in its table."""
        index, num_buckets = self._indexes[feature]
        return index.rows(hashes, num_buckets)

    def subset(self, features: Sequence[str]) -> "Lookups":
        """Those of some of the features."""
        numbers = [self.features.index(name) for name in features]
        return Lookups(
            features, [self._indexes[name] for name in features], self._tables.subset(numbers)
        )
