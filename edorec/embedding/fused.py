"""FP32 and FP16 tables on FBGEMM's fused kernels, on CPU and CUDA.

One FBGEMM module (SplitTableBatchedEmbeddingBagsCodegen) holds all tables and applies the
optimizer inside the backward pass. It pools by sum; the mean of a bag is that sum divided by the
bag's length, so features that pool differently can share a table. Keys of the result are in the
order of ``tables``, whatever the pooling or dim. torchrec's own FusedEmbeddingBagCollection has
neither: it returns mixed poolings under each other's keys and keeps FP16 configurations in FP32.

FBGEMM wants dims divisible by 4: rows are padded with zeros that stay zero, results are cut back.
Row-wise Adagrad then averages squared gradients over the padded dim.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    EmbeddingLocation,
    PoolingMode,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollectionInterface
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from edorec.embedding.kernels.layout import BeforeUpdate
from edorec.embedding.shards import WHOLE, Shard

PADDING = 4
SPARSE_TYPES = {DataType.FP32: SparseType.FP32, DataType.FP16: SparseType.FP16}
OPTIMIZERS = {
    "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    "adagrad": EmbOptimType.EXACT_ADAGRAD,
    "sgd": EmbOptimType.EXACT_SGD,
}


class FusedEmbeddingBagCollection(EmbeddingBagCollectionInterface):
    """Tables with the optimizer fused into the backward pass.

    Args:
        tables: one config a table; ``data_type`` FP32 or FP16. A table's ``pooling`` holds for the
            features that ``pooling`` does not name.
        pooling: pooling by feature.
        num_zero_rows: by table, how many of its last rows (the buckets) start at zero.
        optimizer: rowwise_adagrad, adagrad or sgd.
        learning_rate: see ``set_learning_rate``.
        initial_accumulator: initial sum of squared gradients of (row-wise) Adagrad.
        init_std: standard deviation of the initial rows, independent of the number of rows.
        seed: initial values depend on it and on the table's name alone.
        device: cpu or cuda.
    """

    num_updates = 0  # nothing of these optimizers depends on it

    def __init__(
        self,
        tables: list[EmbeddingBagConfig],
        *,
        pooling: Mapping[str, PoolingType],
        num_zero_rows: Mapping[str, int],
        optimizer: str,
        learning_rate: float,
        initial_accumulator: float,
        init_std: float,
        seed: int,
        device: torch.device,
    ) -> None:
        super().__init__()
        self._tables = tables
        self._device = device
        self._features = [name for table in tables for name in table.feature_names]
        self._dims = [table.embedding_dim for table in tables for _ in table.feature_names]
        self._is_mean = [
            pooling.get(name, table.pooling) == PoolingType.MEAN
            for table in tables
            for name in table.feature_names
        ]
        self._fbgemm = _build_fbgemm(
            tables, optimizer=optimizer, learning_rate=learning_rate, device=device
        )
        for table in tables:
            for key, tensor in self.tables_state()[table.name].items():
                if key != "weight":
                    tensor.fill_(initial_accumulator)
            self._init_rows(
                table, init_std=init_std, seed=seed, num_zero_rows=num_zero_rows.get(table.name, 0)
            )

    def _init_rows(
        self, table: EmbeddingBagConfig, *, init_std: float, seed: int, num_zero_rows: int
    ) -> None:
        weight_RD = self.table_weight(table.name)
        digest = hashlib.blake2b(f"{seed}/{table.name}".encode(), digest_size=7).digest()
        generator = torch.Generator(device=weight_RD.device)
        generator.manual_seed(int.from_bytes(digest, "little"))
        weight_RD.zero_()
        weight_RD[:, : table.embedding_dim].normal_(0.0, init_std, generator=generator)
        if num_zero_rows:
            weight_RD[-num_zero_rows:] = 0

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        """Looks up and pools row indexes.

        Args:
            features: values int64 row indexes, every feature of ``tables`` among its keys.

        Returns:
            KeyedTensor of float32 (B, D) by feature, in the order of ``tables``.
        """
        if features.keys() != self._features:
            keys = features.keys()
            features = features.permute([keys.index(name) for name in self._features])
        pooled = self._fbgemm(features.values(), features.offsets().to(features.values().dtype))
        padded = torch.split(pooled, [_padded(dim) for dim in self._dims], dim=1)
        lengths_FB = features.lengths().view(len(self._features), -1)
        outputs = []
        for index, (values_BD, dim) in enumerate(zip(padded, self._dims, strict=True)):
            cut_BD = values_BD[:, :dim]
            if self._is_mean[index]:
                cut_BD = cut_BD / lengths_FB[index].clamp(min=1).unsqueeze(1)
            outputs.append(cut_BD)
        return KeyedTensor(self._features, self._dims, torch.cat(outputs, dim=1))

    def table_weight(self, name: str) -> torch.Tensor:
        """The live rows of a table, (R, padded D), fp32 or fp16."""
        index = [table.name for table in self._tables].index(name)
        weight: torch.Tensor = self._fbgemm.split_embedding_weights()[index]
        return weight.detach()

    def tables_state(self) -> dict[str, dict[str, torch.Tensor]]:
        """By table, the live rows (``weight``) and optimizer state (``state0``, ...)."""
        weights = self._fbgemm.split_embedding_weights()
        # SGD has no state, and then FBGEMM gives an empty list rather than one a table.
        optimizer_states = self._fbgemm.split_optimizer_states() or [()] * len(self._tables)
        return {
            table.name: {
                "weight": weight.detach(),
                **{f"state{k}": tensor.detach() for k, tensor in enumerate(tensors)},
            }
            for table, weight, tensors in zip(self._tables, weights, optimizer_states, strict=True)
        }

    @property
    def table_names(self) -> list[str]:
        """Names of the tables, in order."""
        return [table.name for table in self._tables]

    def shards(self) -> dict[str, Shard]:
        """All rows of every table."""
        return {table.name: WHOLE for table in self._tables}

    def watch_updates(self, before_update: BeforeUpdate | None) -> bool:
        """FBGEMM updates rows without a call before it: always False."""
        return False

    def table_bytes(self) -> dict[str, tuple[int, int]]:
        """By table, bytes allocated for rows (padding included) and for optimizer state."""
        return {
            name: (
                state["weight"].nbytes,
                sum(tensor.nbytes for key, tensor in state.items() if key != "weight"),
            )
            for name, state in self.tables_state().items()
        }

    def set_learning_rate(self, learning_rate: float) -> None:
        """Sets the learning rate of the next backward pass."""
        self._fbgemm.set_learning_rate(learning_rate)

    def embedding_bag_configs(self) -> list[EmbeddingBagConfig]:
        """The configs of the tables, in order."""
        return self._tables

    def is_weighted(self) -> bool:
        """Per-sample weights are not taken."""
        return False

    @property
    def device(self) -> torch.device:
        """Where the rows are."""
        return self._device


def _padded(dim: int) -> int:
    return -(-dim // PADDING) * PADDING


def _build_fbgemm(
    tables: list[EmbeddingBagConfig], *, optimizer: str, learning_rate: float, device: torch.device
) -> Any:
    on_cuda = device.type == "cuda"
    location = EmbeddingLocation.DEVICE if on_cuda else EmbeddingLocation.HOST
    compute = ComputeDevice.CUDA if on_cuda else ComputeDevice.CPU
    return SplitTableBatchedEmbeddingBagsCodegen(
        [
            (table.num_embeddings, _padded(table.embedding_dim), location, compute)
            for table in tables
        ],
        feature_table_map=[
            index for index, table in enumerate(tables) for _ in table.feature_names
        ],
        weights_precision=SPARSE_TYPES[tables[0].data_type],
        output_dtype=SparseType.FP32,
        optimizer=OPTIMIZERS[optimizer],
        learning_rate=learning_rate,
        stochastic_rounding=tables[0].data_type == DataType.FP16,
        pooling_mode=PoolingMode.SUM,
        device=device,
    )
