"""Embedding collections whose tables stay compressed while they train.

They take the place of torchrec's EmbeddingBagCollection (a pooled vector a feature) and
EmbeddingCollection (a vector a look-up): KeyedJaggedTensor in, KeyedTensor or JaggedTensors out.
The optimizer acts inside the backward pass, so tables are not among ``parameters()``.
"""

import hashlib
import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
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

from edorec.embedding.bands import Band, BandMemory, init_bands, make_bands
from edorec.embedding.carry import Origin, carry_rows
from edorec.embedding.formats import FORMATS
from edorec.embedding.kernels import cpu, reference
from edorec.embedding.kernels.layout import FEATURE_COLUMNS, BeforeUpdate, Lookups, index_of
from edorec.embedding.kernels.noise import table_key
from edorec.embedding.optimizers import OPTIMIZERS, Step
from edorec.embedding.paging import DiskSettings, Pager, PagingFigures
from edorec.embedding.shards import WHOLE, Shard
from edorec.embedding.states import STATES

KERNELS = ("cpu", "triton", "reference")
MOST_ROWS = 1 << 32  # the kernels sort look-ups by 32 bits


@dataclass
class EdoTableConfig(EmbeddingBagConfig):
    """A table; torchrec's config with formats.

    ``data_type`` and ``init_fn`` are not looked at: a format of ours is none of torchrec's types.

    Attributes:
        feature_names: that look up its rows; by default one of the table's name, as in torchrec.
        bands: consecutive rows in one format each, ``num_embeddings`` in all; by default all rows
            in ``format``.
        format: row format of a table without bands.
        num_zero_rows: how many of the last rows (the buckets) start at zero.
        qat: format that rows are read through while training (quantization-aware training); the
            gradient goes straight through to the row. None: rows are read as they are.
        shard: the rows that are here, by default all; look-ups are then local rows.
        number: of the table, which rounding depends on; default its place among the tables.
        on_disk: rows are in files and paged (see ``paging``), on the CPU.
    """

    feature_names: list[str] = field(default_factory=list)
    format: str = "fp32"
    bands: Sequence[Band] = field(default_factory=list)
    num_zero_rows: int = 0
    qat: str | None = None
    shard: Shard = WHOLE
    number: int | None = None
    on_disk: bool = False

    def __post_init__(self) -> None:
        if not self.feature_names:
            self.feature_names = [self.name]
        if not self.bands:
            self.bands = [Band(self.num_embeddings, self.format)]
        num_rows = sum(band.num_rows for band in self.bands)
        if num_rows != self.num_embeddings:
            raise ValueError(
                f"table {self.name}: bands have {num_rows} rows, num_embeddings is "
                f"{self.num_embeddings}"
            )
        if num_rows > MOST_ROWS:
            raise ValueError(f"table {self.name}: {num_rows} rows are more than {MOST_ROWS}")
        if self.qat is not None and self.qat not in FORMATS:
            raise ValueError(
                f"table {self.name}: qat must be one of {', '.join(FORMATS)}, got {self.qat}"
            )


class RowTables:
    """Tables and their kernel: what the two collections share.

    Args:
        tables: one config a table.
        optimizer: one of ``optimizers.OPTIMIZERS``.
        learning_rate: see ``set_learning_rate``.
        weight_decay: decoupled; acts on the rows that a step looks up.
        initial_accumulator: initial sum of squared gradients of (row-wise) Adagrad.
        init_std: standard deviation of the initial rows, independent of the number of rows.
        seed: initial values and rounding depend on it; initial values also on the table's name.
        device: where the rows are.
        kernel: cpu (numba), triton, or reference (plain torch); default by device.
        disk: how tables with ``on_disk`` are paged; they need it.
    """

    def __init__(
        self,
        tables: Sequence[EdoTableConfig],
        *,
        optimizer: str,
        learning_rate: float,
        weight_decay: float,
        initial_accumulator: float,
        init_std: float,
        seed: int,
        device: torch.device,
        kernel: str | None,
        disk: DiskSettings | None,
    ) -> None:
        if optimizer not in OPTIMIZERS:
            raise ValueError(f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {optimizer}")
        self.kernel = kernel or _default_kernel(tables, device)
        if self.kernel not in KERNELS:
            raise ValueError(f"kernel must be one of {', '.join(KERNELS)}, got {kernel}")
        if self.kernel == "cpu" and device.type != "cpu":
            raise ValueError(f"kernel cpu works on the CPU, got device {device}")
        if self.kernel == "triton":
            _check_triton(tables)
        names = [table.name for table in tables]
        if len(set(names)) < len(names):
            raise ValueError(f"tables must have different names, got {', '.join(names)}")
        self.configs = list(tables)
        self.device = device
        self.learning_rate = learning_rate
        self._weight_decay = weight_decay
        self._optimizer = optimizer
        self._seed = seed
        self.num_updates = 0
        self.before_update: BeforeUpdate | None = None
        self._disk = disk
        self._paging_figures = PagingFigures()
        self.memories = [
            make_bands(
                table.bands,
                dim=table.embedding_dim,
                optimizer=optimizer,
                device=device,
                shard=table.shard,
                folder=_folder(table, disk, device),
            )
            for table in tables
        ]
        self._shards = [_shard_array(table.shard) for table in tables]  # their addresses are used
        self._arrays = self._make_arrays()
        self.pager = self._make_pager()
        for table, memories in zip(tables, self.memories, strict=True):
            digest = hashlib.blake2b(f"{seed}/{table.name}".encode(), digest_size=7).digest()
            init_bands(
                memories,
                dim=table.embedding_dim,
                optimizer=optimizer,
                initial_accumulator=initial_accumulator,
                init_std=init_std,
                num_zero_rows=table.num_zero_rows,
                generator=torch.Generator().manual_seed(int.from_bytes(digest, "little")),
                num_rows=table.num_embeddings,
                shard=table.shard,
            )

    def _make_pager(self) -> Pager | None:
        """Of the tables on disk, None where there are none."""
        if self._disk is None or not any(config.on_disk for config in self.configs):
            return None
        bands, tables = self._arrays
        pager = Pager(
            [memory for memories in self.memories for memory in memories],
            bands=bands,
            tables=tables,
            settings=self._disk,
            figures=self._paging_figures,
        )
        weakref.finalize(self, pager.close)
        return pager

    def _make_arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """The bands and tables of ``kernels.layout``."""
        bands: list[list[int]] = []
        tables: list[list[int]] = []
        entries = zip(self.configs, self.memories, self._shards, strict=True)
        for config, memories, shard in entries:
            first_band = len(bands)
            bands += [_band_entry(memory) for memory in memories]
            qat = -1 if config.qat is None else index_of(list(FORMATS), config.qat)
            num_rows = config.shard.count_below(config.num_embeddings)
            address = 0 if config.shard.is_whole else shard.ctypes.data
            tables.append([first_band, len(bands), config.embedding_dim, qat, num_rows, address])
        return np.array(bands, np.int64), np.array(tables, np.int64)

    def _reference_tables(self) -> list[reference.TableRows]:
        return [
            reference.TableRows(
                bands=[
                    reference.BandRows(
                        memory.first_row,
                        memory.rows_RS,
                        FORMATS[memory.band.format],
                        STATES[memory.band.state],
                    )
                    for memory in memories
                ],
                dim=config.embedding_dim,
                qat=config.qat,
                shard=config.shard,
            )
            for config, memories in zip(self.configs, self.memories, strict=True)
        ]

    def read(self, lookups: Lookups) -> torch.Tensor:
        """Looks up and pools; see ``kernels.cpu.forward``."""
        if self.kernel == "cpu":
            return cpu.forward(*self._arrays, lookups)
        if self.kernel == "triton":
            from edorec.embedding.kernels import triton_rows

            return triton_rows.forward(*self._arrays, lookups)
        return reference.forward(self._reference_tables(), lookups)

    def update(self, lookups: Lookups, gradients: torch.Tensor) -> None:
        """One step of the optimizer on the rows that were looked up."""
        if self.before_update is not None:
            self.before_update(*self._arrays, lookups)
        self.num_updates += 1
        keys = [
            table_key(
                seed=self._seed,
                step=self.num_updates,
                table=index if config.number is None else config.number,
            )
            for index, config in enumerate(self.configs)
        ]
        step = Step(self.learning_rate, self._weight_decay, self.num_updates)
        if self.kernel == "cpu":
            cpu.backward(
                *self._arrays,
                lookups,
                gradients,
                optimizer=self._optimizer,
                step=step,
                table_keys=np.array(keys, np.uint64).view(np.int64),
            )
        elif self.kernel == "triton":
            from edorec.embedding.kernels import triton_rows

            triton_rows.backward(
                *self._arrays,
                lookups,
                gradients,
                optimizer=self._optimizer,
                step=step,
                table_keys=keys,
            )
        else:
            reference.backward(
                self._reference_tables(),
                lookups,
                gradients,
                optimizer=self._optimizer,
                step=step,
                table_keys=keys,
            )

    def state(self) -> dict[str, dict[str, torch.Tensor]]:
        """By table, each band's live bytes, uint8 (rows, row and state bytes).

        Keys such as ``band0_int8_fp32`` name the formats of row and state, so that a checkpoint
        does not load into others that take as many bytes.
        """
        return {
            config.name: {
                f"band{k}_{memory.band.format}_{memory.band.state}": memory.rows_RS
                for k, memory in enumerate(memories)
            }
            for config, memories in zip(self.configs, self.memories, strict=True)
        }

    def take_rows(self, states: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        """See ``EdoEmbeddingBagCollection.take_rows``."""
        live = self.state()
        for config in self.configs:
            rows = np.arange(config.num_embeddings)
            carry_rows(
                live[config.name],
                states[config.name],
                Origin(rows, np.zeros(len(rows), np.bool_)),
                dim=config.embedding_dim,
                optimizer=self._optimizer,
                with_state=True,
            )

    def reencode(self, name: str, band: int, row_format: str) -> int:
        """Stores a band in a smaller format in place, between two steps; see ``BandMemory``.

        Returns:
            Bytes freed.
        """
        index = [config.name for config in self.configs].index(name)
        config, memories = self.configs[index], self.memories[index]
        freed = memories[band].reencode(row_format, dim=config.embedding_dim)
        config.bands = [memory.band for memory in memories]
        self._arrays = self._make_arrays()
        return freed

    def bytes(self) -> dict[str, tuple[int, int]]:
        """By table, bytes allocated for rows and for optimizer state."""
        return {
            config.name: (
                sum(memory.weights_bytes for memory in memories),
                sum(memory.optimizer_bytes for memory in memories),
            )
            for config, memories in zip(self.configs, self.memories, strict=True)
        }

    def weight(self, name: str) -> torch.Tensor:
        """A table's rows decoded, float32 (R, D), without QAT; for tests and export."""
        index = [config.name for config in self.configs].index(name)
        dim = self.configs[index].embedding_dim
        return torch.cat(
            [
                FORMATS[memory.band.format].decode(memory.rows_RS[:, : memory.row_bytes], dim)
                for memory in self.memories[index]
            ]
        )


def _default_kernel(tables: Sequence[EdoTableConfig], device: torch.device) -> str:
    if device.type == "cpu":
        return "cpu"
    return "triton" if all(table.shard.is_whole for table in tables) else "reference"


def _check_triton(tables: Sequence[EdoTableConfig]) -> None:
    """Refuses what the Triton kernel cannot do."""
    if find_spec("triton") is None:
        raise ValueError(
            "tables on a GPU need Triton, which CUDA builds of torch bring: pip install triton"
        )
    parts = [table.name for table in tables if not table.shard.is_whole]
    if parts:
        raise ValueError(f"kernel triton takes whole tables; {parts[0]} is in shards")


def _shard_array(shard: Shard) -> np.ndarray:
    return np.array([len(shard.buckets), *shard.buckets], np.int64)


def _folder(table: EdoTableConfig, disk: DiskSettings | None, device: torch.device) -> Path | None:
    """Where a table's files are, None for a table in memory.

    Raises:
        ValueError: if the table cannot be on disk.
    """
    if not table.on_disk:
        return None
    if disk is None or device.type != "cpu":
        raise ValueError(f"table {table.name}: rows on disk need the CPU and settings of the disk")
    return disk.folder


def _band_entry(memory: BandMemory) -> list[int]:
    return [
        memory.first_row,
        memory.band.num_rows,
        memory.rows_RS.data_ptr(),
        memory.rows_RS.shape[1],
        memory.row_bytes,
        index_of(list(FORMATS), memory.band.format),
        index_of(list(STATES), memory.band.state),
    ]


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
        """Fetches the rows of the batch after the present one from disk, in the background."""
        pager = self.tables.pager
        if pager is None:
            return
        positions, batch_size = _positions(features, self._features), features.stride()
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
        pager.prefetch(lookups, will_change=torch.is_grad_enabled())

    def paging(self) -> dict[str, Any] | None:
        """What paging did so far (see ``PagingFigures``), None without tables on disk."""
        return None if self.tables.pager is None else self.tables.pager.figures.summary()

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

    def watch_updates(self, before_update: BeforeUpdate | None) -> bool:
        """Has ``before_update`` called before each update; see ``EmbeddingTables``."""
        if self.device.type != "cpu":
            return False
        self.tables.before_update = before_update
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
        return {config.name: [memory.band for memory in memories] for config, memories in tables}

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
        ValueError: if one is missing, or lengths and values do not belong together.
    """
    if features.variable_stride_per_key():
        raise ValueError("features must have one batch size; a stride for each key is not taken")
    keys, offsets = features.keys(), features.offsets()
    for name in names:
        if name not in keys:
            raise ValueError(f"feature {name} is not in the batch, which has {', '.join(keys)}")
    if len(offsets) and int(offsets[-1]) != len(features.values()):
        raise ValueError(
            f"the lengths of the batch add up to {int(offsets[-1])}, and it has "
            f"{len(features.values())} values"
        )
    return [keys.index(name) for name in names]


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
    pooled, *rows = torch.split(_rows(tables, names, hook, lookups), sizes)
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
