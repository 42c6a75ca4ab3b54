"""Where the rows of each table are: ``ram`` or ``disk`` on the CPU, ``device`` or ``uvm`` on CUDA.

``memory.placement`` and ``memory.tables.NAME.placement`` decide it; whoever plans placement sets
these keys.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

import torch

from edorec.embedding.paging import DiskSettings
from edorec.embedding.storage import is_in_memory
from edorec.embedding.tables import DiskConfig, MemoryConfig, Placement
from edorec.errors import ConfigError
from edorec.memory_use import parse_bytes

PLACEMENTS: dict[str, tuple[Placement, Placement]] = {
    "cpu": ("ram", "disk"),
    "cuda": ("device", "uvm"),
}


def placements_of(
    memory: MemoryConfig, tables: Iterable[str], *, device: torch.device
) -> dict[str, Placement]:
    """The placement of each table.

    Raises:
        ConfigError: if a device does not have it, naming the key.
    """
    placements, problems = {}, {}
    for name in tables:
        placement = placements[name] = memory.placement_of(name, device.type)
        if placement not in PLACEMENTS[device.type]:
            own = memory.tables.get(name)
            is_own = own is not None and own.placement is not None
            key = f"memory.tables.{name}.placement" if is_own else "memory.placement"
            other = "CUDA" if device.type == "cpu" else "the CPU"
            here = "the CPU" if device.type == "cpu" else "CUDA"
            problems[key] = (
                f"{key} is {placement}, which needs {other}, and the tables are on {here}: take "
                f"{' or '.join(PLACEMENTS[device.type])}, or change train.device"
            )
    if problems:
        raise ConfigError(list(problems.values()))
    return placements


def disk_settings(disk: DiskConfig, *, default_folder: Path) -> DiskSettings:
    """How tables on disk are paged; makes the folder.

    Raises:
        ConfigError: if there can be no such tables here.
    """
    if sys.platform != "linux":
        raise ConfigError(["memory.placement is disk, which needs Linux; take ram"])
    folder = Path(disk.folder) if disk.folder else default_folder
    key = "memory.disk.folder" if disk.folder else "memory.disk.folder (default data.cache)"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError([f"{key}: {folder} cannot be made ({error.strerror})"]) from error
    if is_in_memory(folder):
        raise ConfigError(
            [f"{key}: files in {folder} are held in memory (tmpfs); give a folder on a disk"]
        )
    limit = None if disk.resident is None else parse_bytes(disk.resident)
    return DiskSettings(folder, disk.page_rows, limit, disk.keep_cached)


def moved_to_cpu(memory: MemoryConfig) -> MemoryConfig:
    """The settings for a copy of the tables on the CPU: what was on CUDA is in RAM."""
    tables = {
        name: own.model_copy(update={"placement": None})
        for name, own in memory.tables.items()
        if own.placement in PLACEMENTS["cuda"]
    }
    placement = None if memory.placement in PLACEMENTS["cuda"] else memory.placement
    return memory.model_copy(update={"placement": placement, "tables": {**memory.tables, **tables}})
