"""Builds the tables of a run from its vocabularies and settings."""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import torch
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, PoolingType
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from edorec.data.schema import SparseFeature, is_sequence
from edorec.embedding import fused
from edorec.embedding.accounting import TableBytes
from edorec.embedding.admission import I64, RowMap
from edorec.embedding.bands import (
    NO_ROWS,
    Band,
    Formats,
    num_bytes,
    plan_bands,
    with_formats,
    with_step,
)
from edorec.embedding.collection import EdoEmbeddingBagCollection
from edorec.embedding.fused import FusedEmbeddingBagCollection
from edorec.embedding.host_rows import bytes_of_rows, choose_host_rows
from edorec.embedding.kernels.layout import UpdateWatch
from edorec.embedding.placement import PLACEMENTS, disk_settings, placements_of
from edorec.embedding.row_tables import EdoTableConfig
from edorec.embedding.sharded_tables import ShardedTables, place_tables
from edorec.embedding.shards import Shard
from edorec.embedding.tables import EmbeddingConfig, MemoryConfig, Placement
from edorec.errors import ConfigError
from edorec.memory_use import format_bytes, free_memory_bytes
from edorec.processes import ONE, Processes

POOLINGS = {"sum": PoolingType.SUM, "mean": PoolingType.MEAN}
FBGEMM_TYPES = {"fp32": DataType.FP32, "fp16": DataType.FP16}


class EmbeddingTables(Protocol):
    """What training, evaluation and checkpoints need of a collection.

    Attributes:
        num_updates: updates so far, where rounding depends on it, else 0.
    """

    num_updates: int

    @property
    def table_names(self) -> list[str]:
        """Names of all tables, in order."""

    def __call__(self, features: KeyedJaggedTensor) -> KeyedTensor:
        """Pooled rows by feature."""

    def prefetch(self, features: KeyedJaggedTensor) -> None:
        """Fetches the rows of the batch after the present one, from disk or the host's memory."""

    def paging(self) -> dict[str, Any] | None:
        """What paging or caching of rows did so far, None where all are in memory."""

    def in_order(self) -> AbstractContextManager[None]:
        """Inside the block rows are read one after the other: those on disk are read ahead."""

    def set_learning_rate(self, learning_rate: float) -> None:
        """Sets the learning rate of the next backward pass."""

    def tables_state(self) -> dict[str, dict[str, torch.Tensor]]:
        """By table that this process has rows of, the live tensors of rows and optimizer state."""

    def shards(self) -> dict[str, Shard]:
        """By table of ``tables_state``, which of its rows those are."""

    def table_bytes(self) -> dict[str, tuple[int, int]]:
        """By table, bytes allocated for rows and for optimizer state, in all processes."""

    def bands(self) -> dict[str, list[Band]]:
        """By table, its bands that have rows, as they are stored now."""

    def take_rows(self, states: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        """Takes over rows of the same tables in other formats; see ``tables_state``."""

    def compressible_bands(self) -> dict[str, list[Band]]:
        """By table whose memory can be made smaller, its bands as they are stored now."""

    def reencode(self, table: str, band: int, row_format: str) -> int:
        """Stores a band in a smaller format, between two steps, and returns the bytes freed.

        FBGEMM's tables have one format for all: all are stored anew.
        """

    def watch_updates(self, watch: UpdateWatch | None) -> bool:
        """Has updates of rows watched, or no longer (None).

        Returns:
            Whether they will be: False where the CPU's kernel does not update the rows.
        """


def build_tables(
    *,
    features: Mapping[str, SparseFeature],
    row_maps: Mapping[str, RowMap],
    counts: Mapping[str, I64],
    dims: Mapping[str, int],
    embedding: EmbeddingConfig,
    memory: MemoryConfig,
    seed: int,
    device: torch.device,
    processes: Processes = ONE,
    cache: Path,
    formats: Formats | None = None,
) -> EmbeddingTables:
    """One table for each vocabulary, shared by the features that use it.

    Args:
        features: sparse features by name.
        row_maps: row map by vocabulary.
        counts: training look-ups of each id, descending, by vocabulary.
        dims: embedding dim by vocabulary.
        embedding: initial rows and optimizer.
        memory: row formats.
        seed: seed of the initial rows.
        device: where the rows go.
        processes: that the tables are spread over.
        cache: default folder of tables on disk.
        formats: of the bands that have rows where they differ from the settings, because memory
            ran short in the run that the rows will come from.

    Raises:
        ConfigError: if they cannot be where they should, or there is not enough room for them.
    """
    placements = placements_of(memory, row_maps, device=device)
    bands = {
        name: with_step(
            plan_bands(memory.bands_of(name), row_map=row_map, counts=counts[name]),
            embedding.learning_rate,
        )
        for name, row_map in row_maps.items()
    }
    if formats is not None:
        bands = {
            name: with_formats(planned, formats.get(name, ())) for name, planned in bands.items()
        }
    disk = None
    if "disk" in placements.values():
        disk = disk_settings(memory.disk, default_folder=cache)
    sequences = [name for name, feature in features.items() if is_sequence(feature)]
    uses_fbgemm = _uses_fbgemm(
        embedding,
        memory,
        placements=placements,
        has_sequences=bool(sequences),
        device=device,
        num_processes=processes.world_size,
    )
    host_rows = {
        name: range(row_map.num_rows)
        if uses_fbgemm
        else choose_host_rows(
            bands[name],
            row_map=row_map,
            counts=counts[name],
            dim=dims[name],
            optimizer=embedding.optimizer,
            load_factor=memory.uvm.load_factor,
        )
        for name, row_map in row_maps.items()
        if placements[name] == "uvm"
    }
    check_memory = partial(
        _check_memory,
        bands,
        placements=placements,
        host_rows=host_rows,
        dims=dims,
        optimizer=embedding.optimizer,
        device=device,
    )
    users: dict[str, list[str]] = {name: [] for name in row_maps}
    for name, feature in features.items():
        users[feature.vocabulary or name].append(name)
    pooling = {n: POOLINGS[f.pooling] for n, f in features.items() if n not in sequences}
    if uses_fbgemm:
        check_memory()
        return FusedEmbeddingBagCollection(
            [
                EmbeddingBagConfig(
                    name=name,
                    num_embeddings=row_map.num_rows,
                    embedding_dim=dims[name],
                    feature_names=users[name],
                    data_type=FBGEMM_TYPES[bands[name][0].format],
                )
                for name, row_map in row_maps.items()
            ],
            pooling=pooling,
            num_zero_rows={name: row_map.num_buckets for name, row_map in row_maps.items()},
            optimizer=embedding.optimizer,
            learning_rate=embedding.learning_rate,
            initial_accumulator=embedding.initial_accumulator,
            init_std=embedding.init_std,
            seed=seed,
            device=device,
            uvm=[name for name, placement in placements.items() if placement == "uvm"],
            load_factor=memory.uvm.load_factor,
            algorithm=memory.uvm.algorithm,
        )
    if device.type == "cuda" and find_spec("triton") is None:
        raise ConfigError(
            [
                "tables with these settings need Triton on CUDA, which CUDA builds of torch bring: "
                "pip install triton, or set train.device to cpu"
            ]
        )
    configs = [
        EdoTableConfig(
            name=name,
            num_embeddings=row_map.num_rows,
            embedding_dim=dims[name],
            feature_names=users[name],
            bands=bands[name],
            num_zero_rows=row_map.num_buckets,
            qat=memory.qat,
            on_disk=placements[name] == "disk",
            host_rows=host_rows.get(name, NO_ROWS),
        )
        for name, row_map in row_maps.items()
    ]
    settings: dict[str, Any] = {
        "pooling": pooling,
        "optimizer": embedding.optimizer,
        "learning_rate": embedding.learning_rate,
        "weight_decay": embedding.weight_decay,
        "initial_accumulator": embedding.initial_accumulator,
        "init_std": embedding.init_std,
        "seed": seed,
    }
    if processes.world_size > 1:
        shardings = place_tables(
            configs,
            {
                name: num_bytes(table, dim=dims[name], optimizer=embedding.optimizer)
                for name, table in bands.items()
            },
            bag_sizes={name: int(counts[name].sum()) / len(users[name]) for name in row_maps},
            sharding=embedding.sharding,
            world_size=processes.world_size,
        )
        ranks_here = processes.ranks_here
        own = range(processes.rank, processes.rank + 1)
        check_memory(
            device_share={
                name: sharding.share(own if device.type == "cuda" else ranks_here)
                for name, sharding in shardings.items()
            },
            host_share={name: sharding.share(ranks_here) for name, sharding in shardings.items()},
        )
        processes.barrier()  # all have looked before the first takes memory
        return ShardedTables(
            configs, placements=shardings, processes=processes, device=device, **settings
        )
    check_memory()
    try:
        return EdoEmbeddingBagCollection(configs, **settings, device=device, disk=disk)
    except OSError as error:
        assert disk is not None  # nothing else here reads or writes files
        raise ConfigError(
            [
                f"memory.disk.folder: the tables' files could not be made in {disk.folder} "
                f"({error.strerror}); give a folder on a disk with more room"
            ]
        ) from error


def _check_memory(
    bands: Mapping[str, list[Band]],
    *,
    placements: Mapping[str, Placement],
    host_rows: Mapping[str, range],
    dims: Mapping[str, int],
    optimizer: str,
    device: torch.device,
    device_share: Mapping[str, float] | None = None,
    host_share: Mapping[str, float] | None = None,
) -> None:
    """Refuses tables that do not fit into memory before any of them is allocated.

    Tables on disk do not count, nor FBGEMM's cache, which takes what it gets.

    Args:
        bands: by table.
        placements: by table.
        host_rows: rows in the host's memory by table.
        dims: by table.
        optimizer: of the rows.
        device: of the tables.
        device_share: of several processes, by table the share of its rows in this device's memory.
        host_share: likewise that of its ``host_rows`` on this machine.

    Raises:
        ConfigError: naming the largest table and what to change.
    """
    sizes, host_sizes = {}, {}
    for name, table in bands.items():
        if placements[name] == "disk":
            continue
        size = num_bytes(table, dim=dims[name], optimizer=optimizer)
        rows = host_rows.get(name, NO_ROWS)
        on_host = bytes_of_rows(table, rows, dim=dims[name], optimizer=optimizer)
        sizes[name] = int((size - on_host) * (device_share or {}).get(name, 1))
        host_sizes[name] = int(on_host * (host_share or {}).get(name, 1))
    on_cuda = device.type == "cuda"
    free = torch.cuda.mem_get_info(device)[0] if on_cuda else free_memory_bytes()
    elsewhere = PLACEMENTS[device.type][1]
    is_there = all(placement == elsewhere for placement in placements.values())
    last = "lower memory.uvm.load_factor" if is_there else f"set memory.placement to {elsewhere}"
    if elsewhere == "disk" and device_share is not None:
        last = "take more machines"  # rows on disk are of one process
    _check_fit("the embedding tables take", sizes, free, advice=f"or {last}")
    if host_rows:
        _check_fit(
            "the embedding tables' rows in the host's memory take",
            host_sizes,
            free_memory_bytes(),
            advice="or raise memory.uvm.load_factor",
        )


def _check_fit(what: str, sizes: Mapping[str, int], free: int, *, advice: str) -> None:
    total = sum(sizes.values())
    if total <= free:
        return
    largest = max(sizes, key=lambda name: sizes[name])
    raise ConfigError(
        [
            f"{what} {format_bytes(total)}, and {format_bytes(free)} of memory "
            f"are free; {largest} alone takes {format_bytes(sizes[largest])}: store rows smaller "
            "with memory.format or memory.bands, give fewer ids a row of their own with "
            f"vocabularies.{largest}.min_count, {advice}"
        ]
    )


def _uses_fbgemm(
    embedding: EmbeddingConfig,
    memory: MemoryConfig,
    *,
    placements: Mapping[str, Placement],
    has_sequences: bool,
    device: torch.device,
    num_processes: int,
) -> bool:
    """Whether the tables are FBGEMM's, which are in one process.

    Raises:
        ConfigError: if they must be and cannot.
    """
    can = (
        not has_sequences
        and "disk" not in placements.values()
        and fbgemm_has(embedding, memory, placements)
    )
    must = embedding.backend == "fbgemm"
    if must and not can:
        raise ConfigError(
            [
                "embedding.backend is fbgemm: FBGEMM has tables with fp32 or fp16 rows (one format "
                f"for all), {', '.join(fused.OPTIMIZERS)}, an fp32 state, pooled lists, no weight "
                "decay, no qat and no rows on disk; change those keys, or that one"
            ]
        )
    can = can and num_processes == 1
    return must or (can and embedding.backend == "auto" and device.type == "cuda")


def fbgemm_has(embedding: EmbeddingConfig, memory: MemoryConfig, tables: Iterable[str]) -> bool:
    """Whether FBGEMM's fused tables do the same as ours."""
    by_table = [memory.bands_of(name) for name in tables]
    formats = {band.format for bands in by_table for band in bands}
    return (
        len(formats) == 1
        and formats <= FBGEMM_TYPES.keys()
        and all(len(bands) == 1 and bands[0].state == "fp32" for bands in by_table)
        and memory.qat is None
        and embedding.optimizer in fused.OPTIMIZERS
        and embedding.weight_decay == 0
    )


def report_bytes(
    tables: EmbeddingTables,
    *,
    row_maps: Mapping[str, RowMap],
    num_ids: Mapping[str, int],
    dims: Mapping[str, int],
    memory: MemoryConfig,
    device: torch.device,
) -> list[TableBytes]:
    """What each table holds in memory; ``num_ids``: ids of the training data by vocabulary."""
    return [
        TableBytes(
            name=name,
            num_ids=num_ids[name],
            rows=row_maps[name].num_rows,
            buckets=row_maps[name].num_buckets,
            dim=dims[name],
            format="+".join(dict.fromkeys(band.format for band in tables.bands()[name])),
            placement=memory.placement_of(name, device.type),
            weights_bytes=weights_bytes,
            optimizer_bytes=optimizer_bytes,
        )
        for name, (weights_bytes, optimizer_bytes) in tables.table_bytes().items()
    ]
