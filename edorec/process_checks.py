"""What a run in several processes cannot do, refused before anything is read."""

from edorec.config import RunConfig
from edorec.data.schema import is_sequence
from edorec.embedding.shards import NUM_BUCKETS
from edorec.errors import ConfigError
from edorec.processes import Processes


def check_processes(config: RunConfig, processes: Processes) -> None:
    """Refuses what works in one process alone.

    Raises:
        ConfigError: naming every key to change.
    """
    if processes.world_size == 1:
        return
    train = config.train
    faults = {
        "model.batch_norm: each of several processes would see its own part of a batch; set it to "
        "false": config.model.batch_norm,
        "train.task_weights: weights are learned in one process; several take loss_weight of the "
        "tasks": train.task_weights == "uncertainty",
        "train.warm_start: a run starts from another in one process": train.warm_start is not None,
        "embedding.backend: fbgemm works in one process; take edorec": (
            config.embedding.backend == "fbgemm"
        ),
        "memory.placement: disk works in one process; take ram": any(
            placement == "disk"
            for placement in (
                config.memory.placement,
                *(table.placement for table in config.memory.tables.values()),
            )
        ),
        "memory.monitor.compress_below: tables are made smaller in one process; set it to null": (
            config.memory.monitor.compress_below is not None
        ),
        f"tables are spread over at most {NUM_BUCKETS} processes, and torchrun has started "
        f"{processes.world_size}": processes.world_size > NUM_BUCKETS,
    }
    problems = [sentence for sentence, is_fault in faults.items() if is_fault]
    problems += [
        f"features.sparse.{name}.pooling is {feature.pooling}, which works in one process; several "
        "take sum or mean"
        for name, feature in config.features.sparse.items()
        if is_sequence(feature)
    ]
    if problems:
        raise ConfigError(problems)
