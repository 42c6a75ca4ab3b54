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
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import CacheAlgorithm
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    EmbeddingLocation,
    PoolingMode,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollectionInterface
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from edorec.embedding.bands import Band
from edorec.embedding.kernels.layout import UpdateWatch
from edorec.embedding.shards import WHOLE, Shard

PADDING = 4
SPARSE_TYPES = {DataType.FP32: SparseType.FP32, DataType.FP16: SparseType.FP16}
CACHE_ALGORITHMS = {"lru": CacheAlgorithm.LRU, "lfu": CacheAlgorithm.LFU}
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
        uvm: tables whose rows are in the host's memory, the most used of them cached on the
            device (FBGEMM's MANAGED_CACHING); CUDA only.
        load_factor: rows of the cache as a share of those of the tables in ``uvm``.
        algorithm: which rows leave the cache, those not used for longest (lru) or least used (lfu).
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
        uvm: Collection[str] = (),
        load_factor: float = 0.2,
        algorithm: str = "lru",
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
        self._load_factor = load_factor
        self._build = partial(
            _build_fbgemm,
            optimizer=optimizer,
            learning_rate=learning_rate,
            device=device,
            uvm=uvm,
            load_factor=load_factor,
            algorithm=algorithm,
        )
        self._fbgemm = self._build(tables)
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
        """By table, the live rows (``weight``) and optimizer state (``state0``, ...).

        Cached rows are written back and the cache is emptied, so these are the newest, and what is
        written into them counts.
        """
        self._fbgemm.flush()
        self._fbgemm.reset_cache_states()
        return self._tensors()

    def _tensors(self) -> dict[str, dict[str, torch.Tensor]]:
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

    def watch_updates(self, watch: UpdateWatch | None) -> bool:
        """FBGEMM updates rows without a call before it: always False."""
        return False

    def table_bytes(self) -> dict[str, tuple[int, int]]:
        """By table, bytes allocated for rows (padding included) and for optimizer state."""
        return {
            name: (
                state["weight"].nbytes,
                sum(tensor.nbytes for key, tensor in state.items() if key != "weight"),
            )
            for name, state in self._tensors().items()
        }

    def prefetch(self, features: KeyedJaggedTensor) -> None:
        """No row is on disk: nothing to do."""

    def in_order(self) -> AbstractContextManager[None]:
        """No row is on disk: nothing to do."""
        return nullcontext()

    def paging(self) -> dict[str, Any] | None:
        """What the cache of rows did so far, None without one.

        FBGEMM makes it smaller than asked for, without a word, where the device has no room.
        """
        cache = self._fbgemm.lxu_cache_weights
        if not cache.numel():
            return None
        _, _, unique, misses, *_ = self._fbgemm.get_uvm_cache_stats().tolist()
        return {
            "hit_rate": 1 - misses / unique if unique else None,
            "read_bytes": misses * cache.shape[1] * cache.element_size(),
            "cache_bytes": cache.nbytes,
            "load_factor": self._load_factor,
            "effective_load_factor": len(cache) / int(self._fbgemm.total_cache_hash_size),
        }

    def bands(self) -> dict[str, list[Band]]:
        """By table, its one band."""
        row_format = "fp32" if self._tables[0].data_type == DataType.FP32 else "fp16"
        return {table.name: [Band(table.num_embeddings, row_format)] for table in self._tables}

    def compressible_bands(self) -> dict[str, list[Band]]:
        """The same of FP32 tables; FP16 is the smallest that FBGEMM trains."""
        return self.bands() if self._tables[0].data_type == DataType.FP32 else {}

    def take_rows(self, states: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        """Takes over rows of the same tables in another precision."""
        for name, tensors in self.tables_state().items():
            for key, tensor in tensors.items():
                tensor.copy_(states[name][key])

    def reencode(self, table: str, band: int, row_format: str) -> int:
        """Stores all tables in FP16, optimizer state as it is; see ``EmbeddingTables``.

        They go by way of the host, so that the device never holds them twice.

        Raises:
            ValueError: if that is not what is asked for.
        """
        if row_format != "fp16" or table not in self.compressible_bands():
            raise ValueError(f"FBGEMM's tables go from fp32 to fp16, not to {row_format}")
        before = sum(sum(sizes) for sizes in self.table_bytes().values())
        held = {
            name: {key: _narrow(key, tensor).cpu() for key, tensor in tensors.items()}
            for name, tensors in self.tables_state().items()
        }
        self._tables = [replace(config, data_type=DataType.FP16) for config in self._tables]
        del self._fbgemm
        self._fbgemm = self._build(self._tables)
        for name, tensors in self.tables_state().items():
            for key, tensor in tensors.items():
                tensor.copy_(held[name][key])
        return before - sum(sum(sizes) for sizes in self.table_bytes().values())

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


def _narrow(key: str, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.half() if key == "weight" else tensor


def _padded(dim: int) -> int:
    return -(-dim // PADDING) * PADDING


def _build_fbgemm(
    tables: list[EmbeddingBagConfig],
    *,
    optimizer: str,
    learning_rate: float,
    device: torch.device,
    uvm: Collection[str],
    load_factor: float,
    algorithm: str,
) -> Any:
    on_cuda = device.type == "cuda"
    location = EmbeddingLocation.DEVICE if on_cuda else EmbeddingLocation.HOST
    compute = ComputeDevice.CUDA if on_cuda else ComputeDevice.CPU
    precision = SPARSE_TYPES[tables[0].data_type]
    return SplitTableBatchedEmbeddingBagsCodegen(
        [
            (
                table.num_embeddings,
                _padded(table.embedding_dim),
                EmbeddingLocation.MANAGED_CACHING if table.name in uvm else location,
                compute,
            )
            for table in tables
        ],
        feature_table_map=[
            index for index, table in enumerate(tables) for _ in table.feature_names
        ],
        weights_precision=precision,
        output_dtype=SparseType.FP32,
        optimizer=OPTIMIZERS[optimizer],
        learning_rate=learning_rate,
        stochastic_rounding=tables[0].data_type == DataType.FP16,
        pooling_mode=PoolingMode.SUM,
        device=device,
        cache_load_factor=load_factor,
        cache_algorithm=CACHE_ALGORITHMS[algorithm],
        cache_precision=precision,  # so that a row is the same in and out of the cache
        gather_uvm_cache_stats=bool(uvm),
    )
