"""One batch of rows as the model sees it."""

from dataclasses import dataclass

import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor


@dataclass(frozen=True)
class Batch:
    """B rows. F sparse features, N dense features, T tasks, in the order of the configuration.

    Attributes:
        sparse: keys are the sparse features; values int64 (see ``edorec.data.vocabulary`` for
            what a value holds before and after the row map), lengths int32, B per key.
        dense_BN: float32, standardized, no NaN.
        labels_BT: float32, 0 or 1, NaN where the label is null.
        weights_B: float32 sample weights, None when the data have none.
        groups_B: int64 group of each row for GAUC, None when there is no group column.
        end: rows of this epoch consumed up to and including this batch (resume position).
    """

    sparse: KeyedJaggedTensor
    dense_BN: torch.Tensor
    labels_BT: torch.Tensor
    weights_B: torch.Tensor | None
    groups_B: torch.Tensor | None
    end: int

    def __len__(self) -> int:
        return self.labels_BT.shape[0]
