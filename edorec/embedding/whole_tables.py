"""Whole tables from the shards of several processes, and shards from whole tables."""

import torch

from edorec.embedding.build import EmbeddingTables
from edorec.embedding.shards import Shard
from edorec.processes import Processes

State = dict[str, dict[str, torch.Tensor]]


def gather_tables(tables: EmbeddingTables, processes: Processes) -> State:
    """By table each band's rows of all processes, as ``tables_state`` of one; for the first.

    One table at a time travels. In one process the tensors are the live ones.
    """
    live, shards = tables.tables_state(), tables.shards()
    if processes.world_size == 1:
        return live
    state: State = {}
    for name in tables.table_names:
        own = (_on_host(live[name]), shards[name]) if name in live else None
        parts = [part for part in processes.gather(own) if part is not None]
        if parts:
            state[name] = _join(parts)
    return state


def rows_of_shard(bands: dict[str, torch.Tensor], shard: Shard) -> dict[str, torch.Tensor]:
    """A shard of a whole table; of a whole shard the same tensors."""
    if shard.is_whole:
        return bands
    held, first_row = {}, 0
    for key, rows in bands.items():
        places, _ = shard.find(torch.arange(first_row, first_row + len(rows)))
        held[key] = rows[places]
        first_row += len(rows)
    return held


def _on_host(bands: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The first process would have no room for the tables of all on its own GPU."""
    return {key: rows.cpu() for key, rows in bands.items()}


def _join(parts: list[tuple[dict[str, torch.Tensor], Shard]]) -> dict[str, torch.Tensor]:
    """A table of the parts that processes have; all have the same bands."""
    if len(parts) == 1:
        return parts[0][0]
    bands: dict[str, torch.Tensor] = {}
    first_row, first_local = 0, [0] * len(parts)
    for key, sample in parts[0][0].items():
        num_rows = sum(len(state[key]) for state, _ in parts)
        whole = sample.new_empty(num_rows, *sample.shape[1:])
        for k, (state, shard) in enumerate(parts):
            local = torch.arange(first_local[k], first_local[k] + len(state[key]))
            whole[shard.rows(local) - first_row] = state[key]
            first_local[k] += len(local)
        bands[key] = whole
        first_row += num_rows
    return bands
