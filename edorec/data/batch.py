"""One batch of rows as the model sees it."""

from dataclasses import dataclass, replace

import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor


@dataclass(frozen=True)
class Batch:
    """B rows. N dense features, T tasks, in the order of the configuration; K as stated below.

    Attributes:
        sparse: keys are the sparse features in table order; values int64, rows of the features'
            tables if there are row maps, else encoded ids (see ``edorec.data.vocabulary``);
            lengths int32, B per key.
        dense_BN: float32, standardized, no NaN.
        labels_BT: float32, 0 or 1, NaN where the label is null.
        weights_B: float32 sample weights, None when the data have none.
        groups_B: int64 group of each row for GAUC, None when there is no group column.
        end: rows of this epoch consumed up to and including this batch, by all ranks together
            (resume position).
        deciles_BK: uint8, for each of the K frequency features 0 (the id is among the most frequent
            ones, which make up a tenth of the training look-ups) to 9, 10 for an id not seen in
            training; None when there are no frequency features.
        unseen_B: bool, whether any scalar id of the row was not seen in training (of the lists'
            where all sparse features are lists); None while training.
    """

    sparse: KeyedJaggedTensor
    dense_BN: torch.Tensor
    labels_BT: torch.Tensor
    weights_B: torch.Tensor | None
    groups_B: torch.Tensor | None
    end: int
    deciles_BK: torch.Tensor | None = None
    unseen_B: torch.Tensor | None = None

    def __len__(self) -> int:
        return self.labels_BT.shape[0]


def without_ids(batch: Batch) -> Batch:
    """Labels and groups alone, as metrics want them."""
    nothing = KeyedJaggedTensor.empty()
    return replace(batch, sparse=nothing, dense_BN=batch.dense_BN[:, :0])
