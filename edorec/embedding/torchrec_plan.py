"""Whole tables dealt to processes by torchrec's planner.

What edorec's own plan has decided is told it as constraints: how a table is sharded, our kernel,
the bytes of its rows in their format with optimizer state, and how many ids a bag has. torchrec's
partitioner then balances the time that look-ups take, and bytes where that costs little time.

torchrec has no estimate for a customized kernel: its bandwidth is given here. All tables have the
same kernel, so neither its value nor the batch's size change which table goes where. torchrec's
partitioner balances the memory of GPUs alone, so processes are told it as such.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from torch import nn
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.estimator.annotations import device_bw
from torchrec.distributed.planner.estimator.config import EmbeddingPerfEstimatorConfig
from torchrec.distributed.planner.estimator.estimator import EmbeddingPerfEstimator
from torchrec.distributed.planner.partitioners import MemoryBalancedPartitioner
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import (
    SharderDataMap,
    ShardEstimator,
    ShardingOption,
    Storage,
    Topology,
)
from torchrec.distributed.types import ParameterSharding, ShardingType
from torchrec.modules.embedding_configs import EmbeddingBagConfig

from edorec.embedding.collection import EdoEmbeddingBagCollection
from edorec.embedding.sharding import CUSTOM, RowSharder, TableShapes

BYTES_PER_MS = 20 * 2**30 / 1000
BATCH_SIZE = 1024
DEVICE = "cuda"  # as the plan names it
TOLERANCE = 0.1  # of the time, for better balanced bytes


@device_bw(bandwidth=BYTES_PER_MS, device=DEVICE, compute_kernel=CUSTOM)
class _RowKernelTimes(EmbeddingPerfEstimatorConfig):
    """torchrec's estimates of the time that sharded look-ups take, with our kernel."""


class _PlannedBytes(ShardEstimator):
    """The bytes of tables as edorec stores them."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = sizes

    def estimate(
        self, sharding_options: list[ShardingOption], sharder_data_map: SharderDataMap
    ) -> None:
        """Sets the storage of every shard."""
        for option in sharding_options:
            for shard in option.shards:
                size = self._sizes[option.name] // len(option.shards)
                shard.storage = Storage(hbm=size, ddr=0)


def plan_owners(
    configs: Sequence[EmbeddingBagConfig],
    sizes: Mapping[str, int],
    *,
    bag_sizes: Mapping[str, float],
    world_size: int,
) -> dict[str, int]:
    """The rank that holds each table, the same in every process.

    Args:
        configs: of the tables to deal.
        sizes: bytes by table.
        bag_sizes: mean number of ids in a bag by table; only ratios matter.
        world_size: processes.
    """
    if not configs:
        return {}
    least = max(min(bag_sizes[config.name] for config in configs), 1e-9)
    constraints = {
        config.name: ParameterConstraints(
            sharding_types=[ShardingType.TABLE_WISE.value],
            compute_kernels=[CUSTOM],
            pooling_factors=[max(bag_sizes[config.name] / least, 1.0)] * len(config.feature_names),
        )
        for config in configs
    }
    with _quiet():
        planner = _planner(constraints, sizes, world_size=world_size)
        plan = planner.plan(nn.Sequential(TableShapes(configs, _no_rows)), [RowSharder()])
    owners = {}
    for name, sharding in plan.plan["0"].items():
        assert isinstance(sharding, ParameterSharding)
        assert sharding.ranks is not None
        owners[name] = sharding.ranks[0]
    return owners


def _planner(
    constraints: dict[str, ParameterConstraints], sizes: Mapping[str, int], *, world_size: int
) -> EmbeddingShardingPlanner:
    # Whether tables fit into memory is checked elsewhere, before any is made.
    topology = Topology(
        world_size=world_size,
        local_world_size=world_size,
        compute_device=DEVICE,
        hbm_cap=sum(sizes.values()) + 1,
    )
    times = EmbeddingPerfEstimator(
        topology=topology, constraints=constraints, config=_RowKernelTimes()
    )
    return EmbeddingShardingPlanner(
        topology=topology,
        batch_size=BATCH_SIZE,
        constraints=constraints,
        enumerator=EmbeddingEnumerator(
            topology=topology,
            batch_size=BATCH_SIZE,
            constraints=constraints,
            estimator=[times, _PlannedBytes(sizes)],
        ),
        storage_reservation=FixedPercentageStorageReservation(percentage=0),
        partitioner=MemoryBalancedPartitioner(tolerance=TOLERANCE),
    )


def _no_rows(names: list[str]) -> EdoEmbeddingBagCollection:
    raise RuntimeError(f"a plan makes no tables, asked for {', '.join(names)}")


@contextmanager
def _quiet() -> Iterator[None]:
    """The planner logs its whole plan, and warnings about how a topology is made."""
    logger = logging.getLogger("torchrec.distributed.planner")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
