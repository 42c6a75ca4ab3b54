"""Tables spread over processes by torchrec's DistributedModelParallel, with our row kernel.

torchrec moves look-ups to the process that holds a row and pooled vectors back; what reads and
updates rows there is ours, as its customized compute kernel: sharder, sharded module, look-up and
kernel below are subclasses of torchrec's along that chain. torchrec sums everything: a mean is
divided where the bag is (see ``sharded_tables``). It divides gradients by the number of processes,
as DistributedDataParallel does.

Table-wise, a table is in one process. Row-wise, each process has a shard of it (see ``shards``);
torchrec deals rows in blocks, so look-ups are renamed first: local row l of rank k is row
k * block + l, with one block for the largest shard. torchrec's reduce-scatter of row-wise results
does not take parts of different sizes on gloo; ours is an all-to-all and a sum.

Names with an underscore are torchrec 1.8.0's: the version is pinned (docs/install.md).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed.comm_ops import get_gradient_division
from torchrec.distributed.embedding_kernel import BaseEmbedding
from torchrec.distributed.embedding_lookup import GroupedPooledEmbeddingsLookup
from torchrec.distributed.embedding_sharding import BaseEmbeddingDist
from torchrec.distributed.embedding_types import EmbeddingComputeKernel, GroupedEmbeddingConfig
from torchrec.distributed.embeddingbag import (
    EmbeddingBagCollectionSharder,
    ShardedEmbeddingBagCollection,
)
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding.rw_sharding import RwPooledEmbeddingSharding
from torchrec.distributed.sharding.tw_sharding import TwPooledEmbeddingSharding
from torchrec.distributed.sharding_plan import (
    construct_module_sharding_plan,
    row_wise,
    table_wise,
)
from torchrec.distributed.types import (
    EmbeddingModuleShardingPlan,
    NoWait,
    ShardingPlan,
    ShardingType,
)
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollectionInterface
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from edorec.embedding.collection import EdoEmbeddingBagCollection
from edorec.embedding.shards import NUM_BUCKETS, Shard

CUSTOM = EmbeddingComputeKernel.CUSTOMIZED_KERNEL.value
# Tables of these names with the rows that this process holds.
Build = Callable[[list[str]], EdoEmbeddingBagCollection]


@dataclass(frozen=True)
class Placement:
    """Where the rows of a table are.

    Attributes:
        shards: by rank; one that is whole, or all with some buckets.
    """

    shards: tuple[Shard, ...]

    @property
    def owner(self) -> int | None:
        """The rank that has all rows, None for a table in shards."""
        return next((rank for rank, shard in enumerate(self.shards) if shard.is_whole), None)

    def share(self, ranks: range) -> float:
        """The share of its rows that some processes have."""
        return sum(len(self.shards[rank].buckets) for rank in ranks) / NUM_BUCKETS

    def block(self, num_rows: int) -> int:
        """Rows of the largest shard."""
        return max(shard.count_below(num_rows) for shard in self.shards)


class TableShapes(EmbeddingBagCollectionInterface):
    """Tables as torchrec sees them before they are sharded: names and shapes, no memory.

    Args:
        configs: of the tables, rows as torchrec is to deal them.
        build: makes this process's tables.
    """

    def __init__(self, configs: Sequence[EmbeddingBagConfig], build: Build) -> None:
        super().__init__()
        self._configs = list(configs)
        self.build = build
        self.embedding_bags = nn.ModuleDict()
        for config in configs:
            shape = (config.num_embeddings, config.embedding_dim)
            self.embedding_bags[config.name] = nn.Module()
            weight = nn.Parameter(torch.empty(shape, device="meta"))
            self.embedding_bags[config.name].register_parameter("weight", weight)

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        """Refused: there are no rows before sharding."""
        raise RuntimeError("these tables have no rows before they are sharded")

    def embedding_bag_configs(self) -> list[EmbeddingBagConfig]:
        """The configs of the tables, in order."""
        return self._configs

    def is_weighted(self) -> bool:
        """Look-ups come without weights."""
        return False

    @property
    def device(self) -> torch.device:
        """The device without memory."""
        return torch.device("meta")


class RowKernel(BaseEmbedding):
    """This process's rows of a group of tables, pooled by sum."""

    def __init__(self, config: GroupedEmbeddingConfig, build: Build) -> None:
        super().__init__()
        self._config = config
        self.tables = build([table.name for table in config.embedding_tables])

    @property
    def config(self) -> GroupedEmbeddingConfig:
        """The group."""
        return self._config

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        """Float32 (samples of all processes, sum of dims)."""
        pooled: torch.Tensor = self.tables(features).values()
        return pooled

    def state_dict(self, *arguments: Any, **named: Any) -> Any:
        """Nothing: checkpoints have another way (``edorec.checkpoints``)."""
        return arguments[0] if arguments else named.get("destination") or {}

    def named_parameters_by_table(self) -> Iterator[tuple[str, nn.Parameter]]:
        """None: rows are no parameters."""
        yield from ()

    def flush(self) -> None:
        """Nothing is cached."""

    def purge(self) -> None:
        """Nothing is cached."""


class _Lookup(GroupedPooledEmbeddingsLookup):
    def __init__(self, build: Build, **arguments: Any) -> None:
        self._build = build  # used by the constructor
        super().__init__(**arguments)

    def _create_embedding_kernel(
        self, config: GroupedEmbeddingConfig, *_arguments: Any
    ) -> BaseEmbedding:
        return RowKernel(config, self._build)


class _Exchange(torch.autograd.Function):
    """Rows to and from every process; the gradient goes the other way."""

    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, sent: list[int], got: list[int], group: dist.ProcessGroup
    ) -> torch.Tensor:
        ctx.sent, ctx.got, ctx.group = sent, got, group
        out = rows.new_empty(sum(got), rows.shape[1])
        dist.all_to_all_single(out, rows.contiguous(), got, sent, group=group)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        (gradient,) = gradients
        out = gradient.new_empty(sum(ctx.sent), gradient.shape[1])
        dist.all_to_all_single(out, gradient.contiguous(), ctx.sent, ctx.got, group=ctx.group)
        return out, None, None, None


class _SumOverRanks(BaseEmbeddingDist[Any, torch.Tensor, torch.Tensor]):
    """Each process gets its own samples' vectors from all, and adds them."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self._group = group

    def forward(self, local: torch.Tensor, sharding_ctx: Any = None) -> NoWait[torch.Tensor]:
        world_size = dist.get_world_size(self._group)
        sizes = list(sharding_ctx.batch_size_per_rank)
        own = sizes[dist.get_rank(self._group)]
        exchange: Any = _Exchange.apply
        out = exchange(local, sizes, [own] * world_size, self._group)
        total = out.view(world_size, own, local.shape[1]).sum(0)
        if get_gradient_division() and total.requires_grad:
            total.register_hook(lambda gradient: gradient / world_size)
        return NoWait(total)


class _RowWise(RwPooledEmbeddingSharding):
    def create_output_dist(
        self, device: torch.device | None = None
    ) -> BaseEmbeddingDist[Any, Any, Any]:
        return _SumOverRanks(self._pg)


_SHARDINGS = {
    ShardingType.TABLE_WISE.value: TwPooledEmbeddingSharding,
    ShardingType.ROW_WISE.value: _RowWise,
}


class ShardedRows(ShardedEmbeddingBagCollection):
    """torchrec's sharded collection with our kernels."""

    def __init__(self, module: TableShapes, *arguments: Any, **named: Any) -> None:
        self._build = module.build  # used by the constructor
        super().__init__(module, *arguments, **named)

    @classmethod
    def create_embedding_bag_sharding(
        cls,
        sharding_infos: list[Any],
        env: Any,
        device: torch.device | None = None,
        permute_embeddings: bool = False,
        qcomm_codecs_registry: Any = None,
    ) -> Any:
        """Table-wise or row-wise."""
        kind = sharding_infos[0].param_sharding.sharding_type
        return _SHARDINGS[kind](
            sharding_infos, env, device, qcomm_codecs_registry=qcomm_codecs_registry
        )

    def _create_lookups(self) -> None:
        for sharding in self._embedding_shardings:
            self._lookups.append(
                _Lookup(
                    self._build,
                    grouped_configs=sharding._grouped_embedding_configs,
                    pg=sharding._pg,
                    device=sharding._device,
                    env=sharding._env,
                )
            )

    def reset_parameters(self) -> None:
        """Rows are initialized where they are made."""

    def kernels(self) -> Iterator[EdoEmbeddingBagCollection]:
        """The tables of this process by group; there may be none."""
        for lookup in self._lookups:
            for kernel in lookup._emb_modules:
                yield kernel.tables


class RowSharder(EmbeddingBagCollectionSharder):
    """Tells torchrec which modules our kernels take, and how they can be sharded."""

    def shard(
        self,
        module: TableShapes,
        params: Any,
        env: Any,
        device: torch.device | None = None,
        module_fqn: str | None = None,
    ) -> ShardedRows:
        """The sharded module."""
        return ShardedRows(module, params, env, self.fused_params, device, module_fqn=module_fqn)

    @property
    def module_type(self) -> type[TableShapes]:
        """What it shards."""
        return TableShapes

    @property
    def sharded_module_type(self) -> type[ShardedRows]:
        """What becomes of it."""
        return ShardedRows

    def sharding_types(self, compute_device_type: str) -> list[str]:
        """A shard of columns would have a scale of its own, which is another format."""
        return list(_SHARDINGS)

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        """Ours."""
        return [CUSTOM]


def shard_tables(
    configs: Sequence[EmbeddingBagConfig],
    placements: Mapping[str, Placement],
    *,
    world_size: int,
    num_here: int,
    device: torch.device,
    build: Build,
) -> tuple[nn.Module, ShardedRows]:
    """The model-parallel module that looks up features, and the sharded tables in it.

    Args:
        configs: name, rows, dim and features of the tables.
        placements: by table.
        world_size: processes of the default group.
        num_here: how many of them are on each machine.
        device: of this one.
        build: see ``TableShapes``.
    """
    shapes, plan = shapes_and_plan(
        configs,
        placements,
        world_size=world_size,
        num_here=num_here,
        device_type=device.type,
        build=build,
    )
    parallel = DistributedModelParallel(
        nn.Sequential(shapes),
        device=device,
        plan=ShardingPlan({"0": plan}),
        sharders=[RowSharder()],
        init_data_parallel=False,
    )
    sharded = parallel.module[0]
    assert isinstance(sharded, ShardedRows)
    return parallel, sharded


def shapes_and_plan(
    configs: Sequence[EmbeddingBagConfig],
    placements: Mapping[str, Placement],
    *,
    world_size: int,
    num_here: int,
    device_type: str,
    build: Build,
) -> tuple[TableShapes, EmbeddingModuleShardingPlan]:
    """What torchrec is told: tables with rows as it is to deal them, and on which device each is.

    Args: see ``shard_tables``.
    """
    shapes, wanted = [], {}
    for config in configs:
        placement, rows = placements[config.name], config.num_embeddings
        owner = placement.owner
        if owner is None:
            rows = placement.block(rows) * world_size
            wanted[config.name] = row_wise(compute_kernel=CUSTOM)
        else:
            wanted[config.name] = table_wise(rank=owner, compute_kernel=CUSTOM)
        shapes.append(
            EmbeddingBagConfig(
                name=config.name,
                num_embeddings=rows,
                embedding_dim=config.embedding_dim,
                feature_names=list(config.feature_names),
            )
        )
    tables = TableShapes(shapes, build)
    return tables, construct_module_sharding_plan(
        tables,
        wanted,
        sharder=RowSharder(),
        local_size=num_here,
        world_size=world_size,
        device_type=device_type,
    )
