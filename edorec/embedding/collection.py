"""Embedding collections whose tables stay compressed while they train.

They take the place of torchrec's EmbeddingBagCollection (a pooled vector a feature) and
EmbeddingCollection (a vector a look-up): KeyedJaggedTensor in, KeyedTensor or JaggedTensors out.
The optimizer acts inside the backward pass, so tables are not among ``parameters()``.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torchrec.modules.embedding_configs import (
    EmbeddingBagConfig,
    EmbeddingConfig,
    PoolingType,
)
from torchrec.modules.embedding_modules import (
    EmbeddingBagCollectionInterface,
    EmbeddingCollectionInterface,
    get_embedding_names_by_table,
)
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor

from edorec.embedding.bands import Band, whole_bands
from edorec.embedding.kernels.layout import FEATURE_COLUMNS, Lookups, UpdateWatch
from edorec.embedding.paging import DiskSettings
from edorec.embedding.row_tables import EdoTableConfig, RowTables
from edorec.embedding.shards import Shard


class _LookUp(torch.autograd.Function):
    """Reads rows; its backward updates them and has no gradient of its own."""

    @staticmethod
    def forward(ctx: Any, _hook: torch.Tensor, tables: RowTables, lookups: Lookups) -> torch.Tensor:
        ctx.tables, ctx.lookups = tables, lookups
        return tables.read(lookups)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, None, None]:
        ctx.tables.update(ctx.lookups, gradients[0].float().contiguous())
        return None, None, None


class EdoEmbeddingBagCollection(EmbeddingBagCollectionInterface):
    """Pooled embeddings; takes the place of torchrec's EmbeddingBagCollection.

    Args:
        tables: one config a table. A table's ``pooling`` holds for its features that ``pooling``
            does not name.
        pooling: pooling by feature.
        is_weighted: look-ups come with weights. A mean divides the weighted sum by the number of
            look-ups in the bag. Weights get no gradient.
        optimizer: sgd, rowwise_adagrad, adagrad or adam; see ``optimizers``.
        learning_rate: see ``set_learning_rate``.
        weight_decay: decoupled; acts on the rows that a step looks up.
        initial_accumulator: initial sum of squared gradients of (row-wise) Adagrad.
        init_std: standard deviation of the initial rows, independent of the number of rows.
        seed: initial values and stochastic rounding depend on it.
        device: where the rows are.
        kernel: cpu or reference; default by device.
        disk: how tables with ``on_disk`` are paged; they need it.
    """

    def __init__(
        self,
        tables: Sequence[EdoTableConfig],
        *,
        pooling: Mapping[str, PoolingType] | None = None,
        is_weighted: bool = False,
        optimizer: str = "rowwise_adagrad",
        learning_rate: float = 0.05,
        weight_decay: float = 0.0,
        initial_accumulator: float = 0.0,
        init_std: float = 0.01,
        seed: int = 0,
        device: torch.device | None = None,
        kernel: str | None = None,
        disk: DiskSettings | None = None,
    ) -> None:
        super().__init__()
        self.tables = RowTables(
            tables,
            optimizer=optimizer,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            initial_accumulator=initial_accumulator,
            init_std=init_std,
            seed=seed,
            device=device or torch.device("cpu"),
            kernel=kernel,
            disk=disk,
        )
        self._is_weighted = is_weighted
        self._features = [name for table in tables for name in table.feature_names]
        self._keys = [key for keys in get_embedding_names_by_table(tables) for key in keys]
        self._dims = [table.embedding_dim for table in tables for _ in table.feature_names]
        self._hook = torch.zeros(0, requires_grad=True)  # autograd calls back for it
        pooling = pooling or {}
        self._uses = [
            (index, pooling.get(name, table.pooling))
            for index, table in enumerate(tables)
            for name in table.feature_names
        ]

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        """Looks up and pools rows.

        Args:
            features: values int64 rows; every feature of the tables is among its keys, in any
                order.

        Returns:
            KeyedTensor of float32 (B, D) by feature, in the order of the tables; a feature that
            several tables have has the keys ``feature@table``, as in torchrec.

        Raises:
            IndexError: if a value is not a row of its table, naming feature, value and table.
            ValueError: if a feature is missing, or lengths and values do not belong together.
        """
        pooled, _ = self.look_up(features, unpooled=())
        return pooled

    def look_up(
        self, features: KeyedJaggedTensor, *, unpooled: Collection[str]
    ) -> tuple[KeyedTensor, dict[str, JaggedTensor]]:
        """As ``forward``, but the features ``unpooled`` keep a vector for each of their values.

        Both come from one pass over the rows and have one update, so a row that a pooled and an
        un-pooled feature look up moves once a step.

        Returns:
            KeyedTensor of the pooled features, and of the others JaggedTensors as those of
            ``EdoEmbeddingCollection``.
        """
        uses = [
            (table, None if name in unpooled else pooling)
            for name, (table, pooling) in zip(self._features, self._uses, strict=True)
        ]
        pooled, rows = _look_up(
            self.tables, self._features, self._hook, features, uses, is_weighted=self._is_weighted
        )
        keys = [key for key, (_, kind) in zip(self._keys, uses, strict=True) if kind is not None]
        dims = [dim for dim, (_, kind) in zip(self._dims, uses, strict=True) if kind is not None]
        others = [key for key, (_, kind) in zip(self._keys, uses, strict=True) if kind is None]
        return KeyedTensor(keys, dims, pooled), dict(zip(others, rows, strict=True))

    def prefetch(self, features: KeyedJaggedTensor) -> None:
        """Fetches the rows of the batch after the present one, in the background.

        Args:
            features: on the device of the tables; rows in the host's memory are fetched for the
                look-up of the same tensor of values.

        Raises:
            ValueError: as ``forward``; on a CUDA device wrong lengths are found there alone.
        """
        if not self.tables.prefetches:
            return
        positions, batch_size = _positions(features, self._features), features.stride()
        if self.device.type == "cpu":  # a device would be waited for
            _check_lengths(features)
        layout = [
            [table, k * batch_size, batch_size, 0, 0, 0]
            for (table, _), k in zip(self._uses, positions, strict=True)
        ]
        lookups = Lookups(
            features=np.array(layout, np.int64).reshape(-1, FEATURE_COLUMNS),
            values=_numbers(features.values(), torch.int64),
            offsets=_numbers(features.offsets(), torch.int64),
            weights=None,
            out_size=0,
        )
        self.tables.prefetch(lookups)

    def paging(self) -> dict[str, Any] | None:
        """What paging did so far; see ``RowTables.paging``."""
        return self.tables.paging()

    def in_order(self) -> AbstractContextManager[None]:
        """Inside the block rows are read one after the other: those on disk are read ahead."""
        return self.tables.in_order()

    def set_learning_rate(self, learning_rate: float) -> None:
        """Sets the learning rate of the next backward pass."""
        self.tables.learning_rate = learning_rate

    def tables_state(self) -> dict[str, dict[str, torch.Tensor]]:
        """By table, each band's live bytes; see ``RowTables.state``."""
        return self.tables.state()

    @property
    def num_updates(self) -> int:
        """Updates so far; rounding draws other numbers in each."""
        return self.tables.num_updates

    @num_updates.setter
    def num_updates(self, number: int) -> None:
        self.tables.num_updates = number

    def watch_updates(self, watch: UpdateWatch | None) -> bool:
        """Has updates watched; see ``EmbeddingTables``."""
        if self.tables.kernel != "cpu":
            return False
        self.tables.watch = watch
        return True

    @property
    def table_names(self) -> list[str]:
        """Names of the tables, in order."""
        return [config.name for config in self.tables.configs]

    def shards(self) -> dict[str, Shard]:
        """By table, the rows that are here."""
        return {config.name: config.shard for config in self.tables.configs}

    def table_bytes(self) -> dict[str, tuple[int, int]]:
        """By table, bytes allocated for rows and for optimizer state."""
        return self.tables.bytes()

    def bands(self) -> dict[str, list[Band]]:
        """By table, its bands that have rows, as they are stored now."""
        tables = zip(self.tables.configs, self.tables.memories, strict=True)
        return {config.name: whole_bands(memories) for config, memories in tables}

    def compressible_bands(self) -> dict[str, list[Band]]:
        """The same of tables that are not on disk."""
        on_disk = {config.name for config in self.tables.configs if config.on_disk}
        return {name: bands for name, bands in self.bands().items() if name not in on_disk}

    def take_rows(self, states: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        """Takes over rows of the same tables in other formats, a chunk at a time."""
        self.tables.take_rows(states)

    def reencode(self, table: str, band: int, row_format: str) -> int:
        """Stores a band in a smaller format in place, between two steps.

        Returns:
            Bytes freed.
        """
        return self.tables.reencode(table, band, row_format)

    def embedding_bag_configs(self) -> list[EmbeddingBagConfig]:
        """The configs of the tables, in order."""
        return list(self.tables.configs)

    def is_weighted(self) -> bool:
        """Whether look-ups come with weights."""
        return self._is_weighted

    @property
    def device(self) -> torch.device:
        """Where the rows are."""
        return self.tables.device


class EdoEmbeddingCollection(EmbeddingCollectionInterface):
    """Embeddings of sequences, one a look-up; takes the place of torchrec's EmbeddingCollection.

    Args: as ``EdoEmbeddingBagCollection``; all tables have one dim.
    """

    def __init__(
        self,
        tables: Sequence[EdoTableConfig],
        *,
        optimizer: str = "rowwise_adagrad",
        learning_rate: float = 0.05,
        weight_decay: float = 0.0,
        initial_accumulator: float = 0.0,
        init_std: float = 0.01,
        seed: int = 0,
        device: torch.device | None = None,
        kernel: str | None = None,
        disk: DiskSettings | None = None,
    ) -> None:
        super().__init__()
        dims = {table.embedding_dim for table in tables}
        if len(dims) != 1:
            raise ValueError(f"all tables must have one embedding_dim, got {sorted(dims)}")
        (self._dim,) = dims
        self.tables = RowTables(
            tables,
            optimizer=optimizer,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            initial_accumulator=initial_accumulator,
            init_std=init_std,
            seed=seed,
            device=device or torch.device("cpu"),
            kernel=kernel,
            disk=disk,
        )
        self._features = [name for table in tables for name in table.feature_names]
        self._names_by_table: list[list[str]] = get_embedding_names_by_table(tables)
        self._uses = [
            (index, None) for index, table in enumerate(tables) for _ in table.feature_names
        ]
        self._hook = torch.zeros(0, requires_grad=True)

    def forward(self, features: KeyedJaggedTensor) -> dict[str, JaggedTensor]:
        """Looks up rows.

        Args:
            features: values int64 rows; every feature of the tables is among its keys.

        Returns:
            By feature a JaggedTensor of float32 (number of its values, D); a feature that several
            tables have has the keys ``feature@table``, as in torchrec.

        Raises:
            IndexError: if a value is not a row of its table, naming feature, value and table.
            ValueError: if a feature is missing, or lengths and values do not belong together.
        """
        _, rows = _look_up(
            self.tables, self._features, self._hook, features, self._uses, is_weighted=False
        )
        names = [name for names in self._names_by_table for name in names]
        return dict(zip(names, rows, strict=True))

    def set_learning_rate(self, learning_rate: float) -> None:
        """Sets the learning rate of the next backward pass."""
        self.tables.learning_rate = learning_rate

    def embedding_configs(self) -> list[EmbeddingConfig]:
        """The configs of the tables, in order."""
        return list(self.tables.configs)

    def need_indices(self) -> bool:
        """Results do not carry the values that were looked up."""
        return False

    def embedding_dim(self) -> int:
        """Dim of all tables."""
        return int(self._dim)

    def embedding_names_by_table(self) -> list[list[str]]:
        """The keys of the result by table."""
        return self._names_by_table

    @property
    def device(self) -> torch.device:
        """Where the rows are."""
        return self.tables.device


def _positions(features: KeyedJaggedTensor, names: Sequence[str]) -> list[int]:
    """Where features stand in a batch.

    Raises:
        ValueError: if one is missing.
    """
    if features.variable_stride_per_key():
        raise ValueError("features must have one batch size; a stride for each key is not taken")
    keys = features.keys()
    for name in names:
        if name not in keys:
            raise ValueError(f"feature {name} is not in the batch, which has {', '.join(keys)}")
    return [keys.index(name) for name in names]


def _check_lengths(features: KeyedJaggedTensor) -> None:
    """Waits for a device that has them.

    Raises:
        ValueError: if lengths and values do not belong together.
    """
    offsets = features.offsets()
    if len(offsets) and int(offsets[-1]) != len(features.values()):
        raise ValueError(
            f"the lengths of the batch add up to {int(offsets[-1])}, and it has "
            f"{len(features.values())} values"
        )


def _numbers(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """As the kernels want them: of a type, without gaps, without a gradient."""
    return tensor.detach().to(dtype).contiguous()


def _look_up(
    tables: RowTables,
    names: Sequence[str],
    hook: torch.Tensor,
    features: KeyedJaggedTensor,
    uses: Sequence[tuple[int, PoolingType | None]],
    *,
    is_weighted: bool,
) -> tuple[torch.Tensor, list[JaggedTensor]]:
    """Looks up all features at once.

    Args:
        tables: where.
        names: of the features, those of a table behind each other.
        hook: what autograd calls back for.
        features: a batch.
        uses: of each feature its table, and how it is pooled, None for not at all.
        is_weighted: whether pooled look-ups have weights.

    Returns:
        The pooled features, float32 (B, sum of their dims), and of each other one its rows.
    """
    positions, batch_size = _positions(features, names), features.stride()
    _check_lengths(features)
    values, offsets = (_numbers(t, torch.int64) for t in (features.values(), features.offsets()))
    dims = [tables.configs[table].embedding_dim for table, _ in uses]
    width = sum(dim for dim, (_, pooling) in zip(dims, uses, strict=True) if pooling is not None)
    layout, sizes, column = [], [batch_size * width], 0
    lengths = features.lengths().view(len(features.keys()), batch_size)
    unpooled: list[tuple[int, torch.Tensor]] = []
    for (table, pooling), dim, k in zip(uses, dims, positions, strict=True):
        if pooling is not None:
            is_mean = pooling == PoolingType.MEAN
            layout.append([table, k * batch_size, batch_size, column, width, is_mean])
            column += dim
            continue
        # Each value is a bag of its own, and the results stand behind all pooled vectors.
        low, high = (int(offsets[n * batch_size]) for n in (k, k + 1))
        layout.append([table, len(offsets) + low, high - low, sum(sizes), dim, 0])
        sizes.append((high - low) * dim)
        unpooled.append((dim, lengths[k]))
    if unpooled:
        offsets = torch.cat([offsets, torch.arange(len(values) + 1, device=values.device)])
    lookups = Lookups(
        features=np.array(layout, np.int64).reshape(-1, FEATURE_COLUMNS),
        values=values,
        offsets=offsets,
        weights=_numbers(features.weights(), torch.float32) if is_weighted else None,
        out_size=sum(sizes),
    )
    flat = _rows(tables, names, hook, lookups)
    if not unpooled:  # the gradient of a split is a copy
        return flat.view(batch_size, width), []
    pooled, *rows = torch.split(flat, sizes)
    return pooled.view(batch_size, width), [
        JaggedTensor(flat.view(-1, dim), lengths=lengths_B)
        for flat, (dim, lengths_B) in zip(rows, unpooled, strict=True)
    ]


def _rows(
    tables: RowTables, features: Sequence[str], hook: torch.Tensor, lookups: Lookups
) -> torch.Tensor:
    if tables.pager is not None:
        tables.pager.use(lookups, will_change=torch.is_grad_enabled())
    look_up: Any = _LookUp.apply
    try:
        result: torch.Tensor = look_up(hook, tables, lookups)
    except IndexError as error:
        position, value = error.args
        config = tables.configs[lookups.features[position, 0]]
        raise IndexError(
            f"feature {features[position]}: {value} is not a row of table {config.name}, which "
            f"has {config.num_embeddings}"
        ) from None
    return result
