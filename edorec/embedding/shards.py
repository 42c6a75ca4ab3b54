"""Which rows of a table a process holds.

Rows are dealt into a fixed number of buckets, row r into bucket r % 64, and a process holds whole
buckets. Rows are in order of frequency, so the buckets are about equally busy, and the layout of a
table does not depend on the number of processes. What a process holds stays in the table's order:
the bands of a table are cuts of each shard too.
"""

from dataclasses import dataclass

import torch

NUM_BUCKETS = 64


@dataclass(frozen=True)
class Shard:
    """The rows of some buckets, numbered in their order from 0 on (local rows).

    Attributes:
        buckets: ascending.
    """

    buckets: tuple[int, ...]

    @property
    def is_whole(self) -> bool:
        """Whether it is all rows, whose local number is their own."""
        return len(self.buckets) == NUM_BUCKETS

    def count_below(self, row: int) -> int:
        """How many of its rows come before a row of the table."""
        turns, place = divmod(row, NUM_BUCKETS)
        return turns * len(self.buckets) + sum(bucket < place for bucket in self.buckets)

    def rows(self, local: torch.Tensor) -> torch.Tensor:
        """Rows of the table, int64, of local rows."""
        if self.is_whole:
            return local
        size = len(self.buckets)
        buckets = torch.tensor(self.buckets, device=local.device)
        return local // size * NUM_BUCKETS + buckets[local % size]

    def find(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Places of the rows that it holds among int64 rows of the table, and their local rows."""
        if self.is_whole:
            return torch.arange(len(rows)), rows
        place = torch.full((NUM_BUCKETS,), -1)
        place[list(self.buckets)] = torch.arange(len(self.buckets))
        places = (place[rows % NUM_BUCKETS] >= 0).nonzero().flatten()
        held = rows[places]
        return places, held // NUM_BUCKETS * len(self.buckets) + place[held % NUM_BUCKETS]


WHOLE = Shard(tuple(range(NUM_BUCKETS)))


def deal_buckets(world_size: int, *, first: int) -> list[Shard]:
    """A table's shards by rank, in turns there and back; ``first`` takes the busiest bucket.

    Raises:
        ValueError: if there are more processes than buckets.
    """
    if world_size > NUM_BUCKETS:
        raise ValueError(f"rows are spread over at most {NUM_BUCKETS} processes, got {world_size}")
    buckets: list[list[int]] = [[] for _ in range(world_size)]
    for bucket in range(NUM_BUCKETS):
        turn, place = divmod(bucket, world_size)
        rank = place if turn % 2 == 0 else world_size - 1 - place
        buckets[(first + rank) % world_size].append(bucket)
    return [Shard(tuple(held)) for held in buckets]
