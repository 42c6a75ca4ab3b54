"""The tables of a run in several processes, with the methods of those of one."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from edorec.embedding.bands import Band
from edorec.embedding.collection import EdoEmbeddingBagCollection
from edorec.embedding.host_rows import HostTraffic
from edorec.embedding.kernels.layout import TRAFFIC_COLUMNS, UpdateWatch
from edorec.embedding.row_tables import EdoTableConfig
from edorec.embedding.sharding import Placement, shard_tables
from edorec.embedding.shards import NUM_BUCKETS, WHOLE, Shard, deal_buckets
from edorec.embedding.torchrec_plan import plan_owners
from edorec.processes import Processes

EMPTY = Shard(())


def place_tables(
    tables: Sequence[EmbeddingBagConfig],
    sizes: Mapping[str, int],
    *,
    bag_sizes: Mapping[str, float],
    sharding: str,
    world_size: int,
) -> dict[str, Placement]:
    """Which process holds which rows.

    Args:
        tables: of the run.
        sizes: bytes by table.
        bag_sizes: see ``plan_owners``.
        sharding: table_wise, whole tables dealt by torchrec's planner; or row_wise, each table with
            a row or more a bucket in shards of equal size, smaller ones whole.
        world_size: number of processes.

    Raises:
        ValueError: if there are more processes than buckets.
    """
    rows = {table.name: table.num_embeddings for table in tables}
    spread = [name for name in rows if sharding == "row_wise" and rows[name] >= NUM_BUCKETS]
    owners = plan_owners(
        [table for table in tables if table.name not in spread],
        sizes,
        bag_sizes=bag_sizes,
        world_size=world_size,
    )
    placements = {}
    for name, owner in owners.items():
        shards = [WHOLE if rank == owner else EMPTY for rank in range(world_size)]
        placements[name] = Placement(tuple(shards))
    for turn, name in enumerate(sorted(spread, key=lambda name: (-sizes[name], name))):
        placements[name] = Placement(tuple(deal_buckets(world_size, first=turn % world_size)))
    return placements


class ShardedTables:
    """Implements ``build.EmbeddingTables``; every process must make each call that looks up.

    Args:
        tables: as in one process.
        pooling: by feature, sum or mean.
        placements: by table.
        processes: of the run.
        device: of this one.
        settings: further arguments of ``EdoEmbeddingBagCollection``.
    """

    def __init__(
        self,
        tables: Sequence[EdoTableConfig],
        *,
        pooling: Mapping[str, PoolingType],
        placements: Mapping[str, Placement],
        processes: Processes,
        device: torch.device,
        **settings: Any,
    ) -> None:
        self._processes = processes
        self._tables: dict[str, EdoTableConfig] = {}
        for number, config in enumerate(tables):
            shard = placements[config.name].shards[processes.rank]
            self._tables[config.name] = replace(config, shard=shard, number=number)
            self._tables[config.name].pooling = PoolingType.SUM

        def build(names: list[str]) -> EdoEmbeddingBagCollection:
            held = [self._tables[name] for name in names]
            return EdoEmbeddingBagCollection(held, device=device, **settings)

        self._parallel, sharded = shard_tables(
            tables,
            placements,
            world_size=processes.world_size,
            num_here=processes.num_here,
            device=device,
            build=build,
        )
        self._kernels = list(sharded.kernels())
        self._features = [name for table in tables for name in table.feature_names]
        self._dims = [table.embedding_dim for table in tables for _ in table.feature_names]
        self._is_mean = [pooling[name] == PoolingType.MEAN for name in self._features]
        self._targets = {
            name: _target(placements[table.name], table.num_embeddings, device)
            for table in tables
            if placements[table.name].owner is None
            for name in table.feature_names
        }

    def __call__(self, features: KeyedJaggedTensor) -> KeyedTensor:
        """Looks up and pools rows of the whole tables.

        Args:
            features: this process's samples, which may be none; values int64 rows.

        Returns:
            KeyedTensor of float32 (B, D) by feature, in the order of the tables.
        """
        pooled = self._parallel(self._renamed(features)).wait().to_dict()
        lengths_FB = features.lengths().view(len(features.keys()), -1)
        outputs = []
        for name, is_mean in zip(self._features, self._is_mean, strict=True):
            values_BD = pooled[name]
            if is_mean:
                lengths_B = lengths_FB[features.keys().index(name)]
                values_BD = values_BD / lengths_B.clamp(min=1).unsqueeze(1)
            outputs.append(values_BD)
        return KeyedTensor(self._features, self._dims, torch.cat(outputs, dim=1))

    def _renamed(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        """With rows of tables in shards as torchrec deals them."""
        if not self._targets:
            return features
        keys, starts, parts = features.keys(), features.offset_per_key(), []
        for at, name in enumerate(keys):
            rows = features.values()[starts[at] : starts[at + 1]]
            if name in self._targets:
                first_V, step_V = self._targets[name]
                bucket = rows % NUM_BUCKETS
                rows = first_V[bucket] + rows // NUM_BUCKETS * step_V[bucket]
            parts.append(rows)
        return KeyedJaggedTensor(
            keys, torch.cat(parts), lengths=features.lengths(), stride=features.stride()
        )

    @property
    def num_updates(self) -> int:
        """Updates so far; 0 in a process without tables."""
        return self._kernels[0].num_updates if self._kernels else 0

    @num_updates.setter
    def num_updates(self, number: int) -> None:
        for kernel in self._kernels:
            kernel.num_updates = number

    def prefetch(self, features: KeyedJaggedTensor) -> None:
        """No row is on disk: nothing to do."""

    def paging(self) -> dict[str, Any] | None:
        """Of rows in the host's memory, in all processes; None without any. A call of all."""
        if not any(table.host_rows for table in self._tables.values()):
            return None
        counters = torch.zeros(TRAFFIC_COLUMNS, dtype=torch.int64)
        sizes = torch.zeros(2, dtype=torch.int64)
        for kernel in self._kernels:
            traffic = kernel.tables.host_traffic()
            counters += torch.tensor(traffic.counters)
            sizes += torch.tensor([traffic.device_bytes, traffic.host_bytes])
        total = self._processes.sum(torch.cat([counters, sizes])).tolist()
        return HostTraffic(total[:TRAFFIC_COLUMNS], *total[TRAFFIC_COLUMNS:]).summary()

    def in_order(self) -> AbstractContextManager[None]:
        """No row is on disk: nothing to do."""
        return nullcontext()

    def bands(self) -> dict[str, list[Band]]:
        """By table, its bands that have rows, in all processes."""
        return {
            name: [band for band in config.bands if band.num_rows]
            for name, config in self._tables.items()
        }

    def take_rows(self, states: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        """Rows in other formats are of runs in one process.

        Raises:
            ValueError: always.
        """
        raise ValueError("tables of several processes take rows in their own formats alone")

    def compressible_bands(self) -> dict[str, list[Band]]:
        """Tables are made smaller in one process: none."""
        return {}

    def reencode(self, table: str, band: int, row_format: str) -> int:
        """Tables are made smaller in one process.

        Raises:
            ValueError: always.
        """
        raise ValueError("tables of several processes keep their formats")

    def set_learning_rate(self, learning_rate: float) -> None:
        """Sets the learning rate of the next backward pass."""
        for kernel in self._kernels:
            kernel.set_learning_rate(learning_rate)

    def tables_state(self) -> dict[str, dict[str, torch.Tensor]]:
        """By table that this process has rows of, each band's live bytes."""
        return {name: state for k in self._kernels for name, state in k.tables_state().items()}

    @property
    def table_names(self) -> list[str]:
        """Names of all tables, in order."""
        return list(self._tables)

    def shards(self) -> dict[str, Shard]:
        """By table that this process has rows of, which those are."""
        return {name: self._tables[name].shard for name in self.tables_state()}

    def table_bytes(self) -> dict[str, tuple[int, int]]:
        """By table, bytes allocated for rows and for optimizer state; a call of all."""
        held = {name: size for k in self._kernels for name, size in k.table_bytes().items()}
        own = torch.tensor([held.get(name, (0, 0)) for name in self._tables])
        total = self._processes.sum(own).tolist()
        return {
            name: (rows, state) for name, (rows, state) in zip(self._tables, total, strict=True)
        }

    def watch_updates(self, watch: UpdateWatch | None) -> bool:
        """Has updates watched; see ``EmbeddingTables``."""
        first = 0
        for kernel in self._kernels:
            end = first + sum(len(bands) for bands in kernel.tables_state().values())
            kernel.watch_updates(
                watch
                and UpdateWatch(
                    partial(watch.before_update, first_band=first), watch.page_flags[first:end]
                )
            )
            first = end
        return True


def _target(
    placement: Placement, num_rows: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """By bucket, the row that its first row is for torchrec, and the distance to its next."""
    first_V = torch.empty(NUM_BUCKETS, dtype=torch.int64)
    step_V = torch.empty(NUM_BUCKETS, dtype=torch.int64)
    block = placement.block(num_rows)
    for rank, shard in enumerate(placement.shards):
        for place, bucket in enumerate(shard.buckets):
            first_V[bucket], step_V[bucket] = rank * block + place, len(shard.buckets)
    return first_V.to(device), step_V.to(device)
