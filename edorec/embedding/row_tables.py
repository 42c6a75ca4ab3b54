"""Tables of compressed rows with their kernel and optimizer: what the collections look up in."""

import hashlib
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torchrec.modules.embedding_configs import EmbeddingBagConfig

from edorec.embedding.bands import (
    NO_ROWS,
    Band,
    BandMemory,
    init_bands,
    make_bands,
    whole_bands,
)
from edorec.embedding.carry import Origin, carry_rows
from edorec.embedding.formats import SELF_SCALED, format_code, format_of
from edorec.embedding.host_rows import HostTraffic, Traffic
from edorec.embedding.kernels import cpu, reference
from edorec.embedding.kernels.layout import Lookups, UpdateWatch, index_of
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
        host_rows: rows that are in the host's memory where the tables are on a device.
    """

    feature_names: list[str] = field(default_factory=list)
    format: str = "fp32"
    bands: Sequence[Band] = field(default_factory=list)
    num_zero_rows: int = 0
    qat: str | None = None
    shard: Shard = WHOLE
    number: int | None = None
    on_disk: bool = False
    host_rows: range = NO_ROWS

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
        if self.qat is not None and self.qat not in SELF_SCALED:
            raise ValueError(
                f"table {self.name}: qat must be one of {', '.join(SELF_SCALED)}, got {self.qat}"
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
        self.kernel = kernel or _default_kernel(device)
        if self.kernel not in KERNELS:
            raise ValueError(f"kernel must be one of {', '.join(KERNELS)}, got {kernel}")
        if self.kernel == "cpu" and device.type != "cpu":
            raise ValueError(f"kernel cpu works on the CPU, got device {device}")
        if self.kernel == "triton":
            _check_triton()
        elif device.type != "cpu" and any(table.host_rows for table in tables):
            raise ValueError(
                f"kernel {self.kernel} reads no rows in the host's memory; take triton"
            )
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
        self.watch: UpdateWatch | None = None
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
                host_rows=table.host_rows,
            )
            for table in tables
        ]
        self._shards = [_shard_array(table.shard) for table in tables]  # their addresses are used
        self._traffic = Traffic(device)
        self._staging = self._make_staging()
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

    def _make_staging(self) -> Any:
        """A ``Staging`` for rows in the host's memory, None where there are none."""
        if self.kernel != "triton" or not any(config.host_rows for config in self.configs):
            return None
        return import_module("edorec.embedding.kernels.triton_staging").Staging(self.device)

    def _make_arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """The bands and tables of ``kernels.layout``."""
        bands: list[list[int]] = []
        tables: list[list[int]] = []
        entries = zip(self.configs, self.memories, self._shards, strict=True)
        for config, memories, shard in entries:
            first_band = len(bands)
            bands += [_band_entry(memory) for memory in memories]
            qat = -1 if config.qat is None else format_code(config.qat)
            num_rows = config.shard.count_below(config.num_embeddings)
            address = 0 if config.shard.is_whole else shard.ctypes.data
            traffic = self._traffic.address if config.host_rows else 0
            entry = [first_band, len(bands), config.embedding_dim, qat, num_rows, address, traffic]
            tables.append(entry)
        return np.array(bands, np.int64), np.array(tables, np.int64)

    def _reference_tables(self) -> list[reference.TableRows]:
        return [
            reference.TableRows(
                bands=[
                    reference.BandRows(
                        memory.first_row,
                        memory.rows_RS,
                        format_of(memory.band.format),
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

    @property
    def prefetches(self) -> bool:
        """Whether there is anything to fetch ahead of a batch."""
        return self.pager is not None or self._staging is not None

    def prefetch(self, lookups: Lookups) -> None:
        """Fetches the rows of the batch after the present one, in the background.

        From disk, or from the host's memory to a device; then the batch has the same memory of
        ``values`` when it is looked up.
        """
        if self.pager is not None:
            self.pager.prefetch(lookups, will_change=torch.is_grad_enabled())
        if self._staging is not None:
            self._staging.fetch(*self._arrays, lookups)

    def read(self, lookups: Lookups) -> torch.Tensor:
        """Looks up and pools; see ``kernels.cpu.forward``."""
        fused = _fused_kernel(self.kernel)
        if fused is None:
            return reference.forward(self._reference_tables(), lookups)
        staged = () if self._staging is None else (self._staging.rows_of(lookups),)
        result: torch.Tensor = fused.forward(*self._arrays, lookups, *staged)
        return result

    def update(self, lookups: Lookups, gradients: torch.Tensor) -> None:
        """One step of the optimizer on the rows that were looked up."""
        special: dict[str, Any] = {}  # only the CPU's kernel is watched, only Triton's has copies
        if self.watch is not None:
            self.watch.before_update(*self._arrays, lookups)
            special["page_flags"] = self.watch.page_flags
        if self._staging is not None:
            special["staged"] = self._staging.all_rows()
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
        fused = _fused_kernel(self.kernel)
        if fused is None:
            reference.backward(
                self._reference_tables(),
                lookups,
                gradients,
                optimizer=self._optimizer,
                step=step,
                table_keys=keys,
            )
            return
        fused.backward(
            *self._arrays,
            lookups,
            gradients,
            optimizer=self._optimizer,
            step=step,
            table_keys=np.array(keys, np.uint64).view(np.int64),
            **special,
        )
        if self._staging is not None:
            self._staging.use_up(lookups)

    def state(self) -> dict[str, dict[str, torch.Tensor]]:
        """By table, each band's live bytes, uint8 (rows, row and state bytes).

        Keys such as ``band0_int8_fp32`` name the formats of row and state, so that a checkpoint
        does not load into others that take as many bytes; see ``bands``. As the caller may change
        them, what was fetched ahead is forgotten.
        """
        self._settle()
        self._forget_staged()
        return {
            config.name: {memory.key: memory.rows_RS for memory in memories}
            for config, memories in zip(self.configs, self.memories, strict=True)
        }

    def _settle(self) -> None:
        """Waits for kernels that still read or write rows in the host's memory."""
        if self.device.type == "cuda" and any(config.host_rows for config in self.configs):
            torch.cuda.synchronize(self.device)

    @contextmanager
    def in_order(self) -> Iterator[None]:
        """Inside the block rows are read one after the other: those on disk are read ahead."""
        files = [m for memories in self.memories for m in memories if m.file_number is not None]
        for memory in files:
            memory.read_in_order(True)
        try:
            yield
        finally:
            for memory in files:
                memory.read_in_order(False)

    def _forget_staged(self) -> None:
        if self._staging is not None:
            self._staging.clear()

    def paging(self) -> dict[str, Any] | None:
        """What paging did so far, None where the rows are all in one memory.

        Of tables on disk see ``PagingFigures``, of rows on the host ``HostTraffic.summary``.
        """
        if self.pager is not None:
            return self.pager.figures.summary()
        has_host_rows = any(config.host_rows for config in self.configs)
        return self.host_traffic().summary() if has_host_rows else None

    def host_traffic(self) -> HostTraffic:
        """Of the tables with rows in the host's memory."""
        self._settle()  # rows may be on their way
        tables = zip(self.configs, self.memories, strict=True)
        return self._traffic.of(
            [memory for config, table in tables if config.host_rows for memory in table]
        )

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
        self._settle()
        self._forget_staged()
        index = [config.name for config in self.configs].index(name)
        config, memories = self.configs[index], self.memories[index]
        freed = sum(
            memory.reencode(row_format, dim=config.embedding_dim)
            for memory in memories
            if memory.number == band
        )
        config.bands = whole_bands(memories)
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
        self._settle()
        index = [config.name for config in self.configs].index(name)
        dim = self.configs[index].embedding_dim
        return torch.cat(
            [
                format_of(m.band.format).decode(m.rows_RS[:, : m.row_bytes], dim).to(self.device)
                for m in self.memories[index]
            ]
        )


def _default_kernel(device: torch.device) -> str:
    return "cpu" if device.type == "cpu" else "triton"


def _fused_kernel(name: str) -> ModuleType | None:
    """The kernel that takes arrays of addresses, None for the reference."""
    if name == "triton":
        return import_module("edorec.embedding.kernels.triton_rows")  # an optional dependency
    return cpu if name == "cpu" else None


def _check_triton() -> None:
    if find_spec("triton") is None:
        raise ValueError(
            "tables on a GPU need Triton, which CUDA builds of torch bring: pip install triton"
        )


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
        format_code(memory.band.format),
        index_of(list(STATES), memory.band.state),
        memory.on_host,
    ]
