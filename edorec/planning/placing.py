"""Which tables the planner puts elsewhere, because not all fit into memory.

On the CPU they go to disk; on CUDA they go to ``uvm``, with as many of their rows on the device as
find room. Those with the fewest look-ups a byte go first.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from edorec.embedding.placement import PLACEMENTS
from edorec.embedding.tables import EmbeddingConfig, MemoryConfig, Placement
from edorec.memory_use import format_bytes, free_memory_bytes, own_memory_bytes, parse_bytes

SHARE = 0.8  # of free memory for tables; the rest is for batches, gradients and the dense part
LEAST_LOAD_FACTOR = 0.01


@dataclass(frozen=True)
class Moved:
    """What goes elsewhere.

    Attributes:
        placement: where.
        tables: names.
        load_factor: for ``memory.uvm.load_factor`` where that was not given.
        why: a sentence.
    """

    placement: Placement
    tables: frozenset[str]
    load_factor: float | None
    why: str


def move_tables(
    memory: MemoryConfig,
    embedding: EmbeddingConfig,
    sizes: Mapping[str, int],
    lookups: Mapping[str, int],
    *,
    device: torch.device,
    num_processes: int,
) -> Moved | None:
    """Decides where the configuration leaves open where tables are.

    Args:
        memory: settings of the run.
        embedding: likewise.
        sizes: bytes of rows and optimizer state by table.
        lookups: of each table in training.
        device: of the run.
        num_processes: of the run.

    Returns:
        None where everything fits, or nothing can go elsewhere; tables that do not fit are then
        refused when they are built.
    """
    home, elsewhere = PLACEMENTS[device.type]
    given = {name: memory.tables.get(name, memory).placement or memory.placement for name in sizes}
    can_move = num_processes == 1 and (
        device.type == "cuda" or (sys.platform == "linux" and embedding.backend != "fbgemm")
    )
    free = _free_bytes(memory.monitor.limit, device)
    rest = sum(size for name, size in sizes.items() if given[name] in (None, home))
    if not can_move or rest <= SHARE * free:
        return None
    fixed = "load_factor" in memory.uvm.model_fields_set
    share = memory.uvm.load_factor if fixed and device.type == "cuda" else 0.0
    moved: list[str] = []
    room = SHARE * free
    open_ = [name for name in sizes if given[name] is None]
    for name in sorted(open_, key=lambda name: lookups[name] / max(sizes[name], 1)):
        if rest <= room:
            break
        moved.append(name)
        rest -= sizes[name]
        room -= share * sizes[name]
    if not moved:
        return None
    load_factor = None
    if device.type == "cuda" and not fixed:
        left = (room - rest) / sum(sizes[name] for name in moved)
        load_factor = max(round(left - 0.005, 2), LEAST_LOAD_FACTOR)
    why = (
        f"{elsewhere}, because tables of {format_bytes(sum(sizes.values()))} do not fit into "
        f"{SHARE:.0%} of the {format_bytes(free)} of memory that are free"
    )
    return Moved(elsewhere, frozenset(moved), load_factor, why)


def _free_bytes(limit: str | None, device: torch.device) -> int:
    """What the run may still take, of its own limit too."""
    if device.type == "cuda":
        free, used = torch.cuda.mem_get_info(device)[0], torch.cuda.memory_allocated(device)
    else:
        free, used = free_memory_bytes(), own_memory_bytes()
    return free if limit is None else max(min(free, parse_bytes(limit) - used), 0)
