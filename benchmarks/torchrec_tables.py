"""torchrec's own tables in place of edorec's, to train the same model on the same batches.

EmbeddingBagCollection (a gradient of the whole table, then an optimizer of torch or torchrec) and
FusedEmbeddingBagCollection (FBGEMM, FP32). All features are pooled by their mean, which for one id
is the id's row, because the fused one returns mixed poolings under each other's keys.
"""

import hashlib
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from edorec.config import RunConfig
from edorec.embedding.kernels.layout import UpdateWatch
from edorec.recommender import Recommender

OPTIMIZERS: dict[str, Any] = {
    "sgd": torch.optim.SGD,
    "rowwise_adagrad": RowWiseAdagrad,
    "adagrad": torch.optim.Adagrad,
}
CPU = torch.device("cpu")


class TorchrecTables(nn.Module):
    """FP32 tables of torchrec that update themselves in the backward pass.

    Args:
        recommender: whose tables these replace.
        config: of the run; its learning rate must be constant.
        lists: features that are lists.
        is_fused: FusedEmbeddingBagCollection, else EmbeddingBagCollection.

    Raises:
        ValueError: if a list is pooled otherwise than by its mean.
    """

    num_updates = 0

    def __init__(
        self, recommender: Recommender, config: RunConfig, *, lists: Collection[str], is_fused: bool
    ) -> None:
        super().__init__()
        for name in lists:
            if config.features.sparse[name].pooling != "mean":
                raise ValueError(f"{name}: torchrec's tables here pool by the mean alone")
        self._learning_rate = config.embedding.learning_rate
        tables = [
            EmbeddingBagConfig(
                name=name,
                num_embeddings=row_map.num_rows,
                embedding_dim=recommender.dims[name],
                feature_names=[
                    lookup
                    for lookup, feature in recommender.lookups.items()
                    if (feature.vocabulary or lookup) == name
                ],
                pooling=PoolingType.MEAN,
            )
            for name, row_map in recommender.row_maps.items()
        ]
        optimizer = OPTIMIZERS[config.embedding.optimizer]
        accumulator = config.embedding.initial_accumulator
        self._optimizers: dict[str, torch.optim.Optimizer] = {}
        if is_fused:
            self.ebc: Any = FusedEmbeddingBagCollection(
                tables=tables,
                optimizer_type=optimizer,
                optimizer_kwargs={"lr": self._learning_rate},
                device=CPU,
            )
            for name in recommender.row_maps:
                for state in self._squares(name):
                    state.fill_(accumulator)
        else:
            self.ebc = EmbeddingBagCollection(tables=tables, device=CPU)
            is_sgd = optimizer is torch.optim.SGD
            settings = {} if is_sgd else {"initial_accumulator_value": accumulator}
            for name, bag in self.ebc.embedding_bags.items():
                own = optimizer([bag.weight], lr=self._learning_rate, **settings)
                self._optimizers[name] = _update_in_backward(bag.weight, own)
        for name, weight_RD in self._weights().items():
            self._start(name, weight_RD, recommender, config)

    @torch.no_grad()
    def _start(
        self, name: str, weight_RD: torch.Tensor, recommender: Recommender, config: RunConfig
    ) -> None:
        """Initial rows like edorec's: normal, buckets at zero."""
        digest = hashlib.blake2b(f"{config.train.seed}/{name}".encode(), digest_size=7).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "little"))
        weight_RD.normal_(0.0, config.embedding.init_std, generator=generator)
        weight_RD[-recommender.row_maps[name].num_buckets :] = 0

    def _weights(self) -> dict[str, torch.Tensor]:
        """The live rows, by table."""
        return {key.split(".")[-2]: weight for key, weight in self.ebc.state_dict().items()}

    def _squares(self, name: str) -> list[torch.Tensor]:
        """The live sums of squared gradients of a table; SGD has none."""
        if self._optimizers:
            states = list(self._optimizers[name].state.values())
        else:
            states = [self.ebc.fused_optimizer().state_dict()["state"].get(f"{name}.weight", {})]
        # torch's Adagrad also has a step counter.
        return [t for state in states for t in state.values() if t.numel() > 1]

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        """Pooled rows in the order of the features."""
        pooled: Mapping[str, torch.Tensor] = self.ebc(features).to_dict()
        values = [pooled[name] for name in features.keys()]  # noqa: SIM118
        return KeyedTensor(features.keys(), [v.shape[1] for v in values], torch.cat(values, dim=1))

    def set_learning_rate(self, learning_rate: float) -> None:
        """Takes no rate but the one that it was built with."""
        if learning_rate != self._learning_rate:
            raise ValueError("torchrec's tables here have a constant learning rate")

    def tables_state(self) -> dict[str, dict[str, torch.Tensor]]:
        """By table, the live rows (``weight``) and optimizer state (``state0``)."""
        return {
            name: {"weight": weight}
            | {f"state{k}": square for k, square in enumerate(self._squares(name))}
            for name, weight in self._weights().items()
        }

    def paging(self) -> None:
        """Nothing is paged."""

    def in_order(self) -> AbstractContextManager[None]:
        """Nothing is on disk."""
        return nullcontext()

    def table_bytes(self) -> dict[str, tuple[int, int]]:
        """By table, bytes of rows and of optimizer state."""
        return {
            name: (
                state["weight"].nbytes,
                sum(t.nbytes for key, t in state.items() if key != "weight"),
            )
            for name, state in self.tables_state().items()
        }

    def watch_updates(self, watch: UpdateWatch | None) -> bool:
        """No update can be watched."""
        return False


def _update_in_backward(
    weight: nn.Parameter, optimizer: torch.optim.Optimizer
) -> torch.optim.Optimizer:
    def update(_weight: torch.Tensor) -> None:
        optimizer.step()
        optimizer.zero_grad()

    weight.register_post_accumulate_grad_hook(update)
    return optimizer
