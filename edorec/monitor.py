"""Watches memory while a run trains, and stores tables smaller when it runs short.

Between two steps, every ``interval`` seconds, it looks at what bounds the process most tightly: the
machine, the control group, ``memory.monitor.limit``, or the device. Where less than
``compress_below`` is free, bands of tables move to their next smaller format, those with the least
expected loss for a byte first (``edorec.planning.costs``), until ``hysteresis`` more would be free;
then not before ``min_seconds`` again, and never back, so it cannot thrash. With nothing left it
says so once, and ``must_stop`` tells the run to end before the system kills it.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from edorec.embedding.admission import I64, RowMap
from edorec.embedding.build import EmbeddingTables
from edorec.embedding.formats import FORMATS, format_of, kind_of
from edorec.embedding.tables import MonitorConfig
from edorec.memory_use import MemoryUse, format_bytes, memory_uses, own_memory_bytes, parse_bytes
from edorec.planning.costs import losses, option_of
from edorec.planning.value import Worth, classes_of

TRAINED = [name for name, row_format in FORMATS.items() if row_format.trains]
VALUE = 0.01  # of a look-up, where nothing is known of the ids but how often they are seen

Event = dict[str, Any]


@dataclass(frozen=True)
class Move:
    """A band to its next smaller format.

    Attributes:
        table: name.
        band: number of the band.
        source: its format.
        target: the smaller one.
        bytes: what that frees.
        loss: expected, in shares of the labels' variance, summed over look-ups.
    """

    table: str
    band: int
    source: str
    target: str
    bytes: int
    loss: float


class MemoryMonitor:
    """See the head of the module.

    Args:
        settings: what the user says.
        tables: of the run.
        counts: training look-ups of each id, descending, by table.
        row_maps: by table.
        dims: by table.
        device: where the tables are.
        say: shows a sentence to the user.
        clock: seconds, for tests.

    Attributes:
        use: memory at the last look.
        events: what was made smaller, and warnings, for the report.
        must_stop: memory runs out and nothing is left to make smaller.
    """

    def __init__(
        self,
        settings: MonitorConfig,
        tables: EmbeddingTables,
        *,
        counts: Mapping[str, I64],
        row_maps: Mapping[str, RowMap],
        dims: Mapping[str, int],
        device: torch.device,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._limit = None if settings.limit is None else parse_bytes(settings.limit)
        self._tables = tables
        self._counts, self._row_maps, self._dims = counts, row_maps, dims
        self._device = device
        self._say = say
        self._clock = clock
        self._looked_at = clock()
        self._changed_at: float | None = None
        self._has_warned = False
        self._losses: dict[tuple[str, int, str], float] = {}
        self.use = tightest_use(device, limit=self._limit)
        self.events: list[Event] = []
        self.must_stop = False

    def is_short(self, step: int) -> bool:
        """Looks at memory if it is time; whether ``compress`` should be called."""
        if self._clock() - self._looked_at < self._settings.interval:
            return False
        self._looked_at = self._clock()
        self.use = tightest_use(self._device, limit=self._limit)
        below = self._settings.compress_below
        if below is None or self.use.free_share >= below:
            return False
        if not self._moves():
            self._warn(step)
            self.must_stop = self.use.free_share < self._settings.stop_below
            return False
        since = np.inf if self._changed_at is None else self._clock() - self._changed_at
        return bool(since >= self._settings.min_seconds)

    def compress(self, step: int) -> None:
        """Makes tables smaller; between two steps, and two checkpoints."""
        assert self._settings.compress_below is not None
        wanted = self._settings.compress_below + self._settings.hysteresis
        missing = wanted * self.use.total_bytes - self.use.free_bytes
        while missing > 0 and (moves := self._moves()):
            move = min(moves, key=lambda move: move.loss / move.bytes)
            freed = self._tables.reencode(move.table, move.band, move.target)
            self._note(step, move, freed)
            missing -= freed
        self._changed_at = self._clock()

    def why_stopped(self, step: int) -> str:
        """Of a run that must stop."""
        return (
            f"memory runs out: {format_bytes(self.use.free_bytes)} of {self.use.bound} "
            f"({format_bytes(self.use.total_bytes)}) are free, and no table can be made smaller; "
            f"the run stopped behind step {step:,}. Give it more memory (memory.monitor.limit, if "
            "that is the bound) and go on with --resume"
        )

    def text(self) -> str:
        """For the progress bar."""
        return f"{format_bytes(self.use.free_bytes)} free of the {self.use.bound}"

    def summary(self) -> dict[str, Any]:
        """For metrics.jsonl."""
        return {
            "bound": self.use.bound,
            "used_bytes": self.use.used_bytes,
            "free_bytes": self.use.free_bytes,
        }

    def figures(self) -> dict[str, Any]:
        """The state, as JSON can hold it."""
        return {"events": self.events, "has_warned": self._has_warned}

    def restore(self, figures: dict[str, Any]) -> None:
        """Takes over what ``figures`` of another monitor returned."""
        self.events = list(figures["events"])
        self._has_warned = figures["has_warned"]

    def _moves(self) -> list[Move]:
        """All that can be made smaller now."""
        moves = []
        last = TRAINED.index(self._settings.smallest_format)
        for table, bands in self._tables.compressible_bands().items():
            first_row = 0
            for index, band in enumerate(bands):
                end_row = first_row + band.num_rows
                target = self._smaller(band.format, self._dims[table], last)
                if target is not None:
                    sizes = [
                        format_of(f).row_bytes(self._dims[table]) for f in (band.format, target)
                    ]
                    loss = self._loss(table, first_row, end_row, target)
                    loss -= self._loss(table, first_row, end_row, band.format)
                    freed = band.num_rows * (sizes[0] - sizes[1])
                    moves.append(Move(table, index, band.format, target, freed, loss))
                first_row = end_row
        return moves

    def _smaller(self, row_format: str, dim: int, last: int) -> str | None:
        """The next format whose rows are smaller, None if there is none."""
        size = format_of(row_format).row_bytes(dim)
        for name in TRAINED[TRAINED.index(kind_of(row_format)) + 1 : last + 1]:
            if format_of(name).row_bytes(dim) < size:
                return name
        return None

    def _loss(self, table: str, first_row: int, end_row: int, row_format: str) -> float:
        key = (table, first_row, row_format)
        if key not in self._losses:
            self._losses[key] = self._expected_loss(table, first_row, end_row, row_format)
        return self._losses[key]

    def _expected_loss(self, table: str, first_row: int, end_row: int, row_format: str) -> float:
        """Of rows in a format; see ``edorec.planning.costs``."""
        counts, row_map = self._counts[table], self._row_maps[table]
        own = row_map.num_own_rows
        shared = np.full(row_map.num_buckets, counts[own:].sum() // max(row_map.num_buckets, 1))
        rows = np.concatenate([counts[:own], shared])[first_row:end_row]
        classes = classes_of(np.sort(rows[rows > 0])[::-1])
        worth = Worth(np.full(len(classes.lookups), VALUE), classes.lookups.astype(np.float64))
        return float(losses(option_of(row_format, "fp32"), worth, classes).sum())

    def _note(self, step: int, move: Move, freed: int) -> None:
        event = {"kind": "compressed", "step": step, **asdict(move), "bytes": freed}
        self.events.append({**event, "free_bytes": self.use.free_bytes})
        self._say(
            f"step {step:,}: {format_bytes(self.use.free_bytes)} free of the {self.use.bound}: "
            f"table {move.table}, band {move.band + 1}, goes from {move.source} to {move.target}, "
            f"which frees {format_bytes(freed)}"
        )

    def _warn(self, step: int) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        free = self.use.free_bytes
        self.events.append({"kind": "memory_short", "step": step, "free_bytes": free})
        self._say(
            f"step {step:,}: {format_bytes(free)} free of the {self.use.bound}, and no table can "
            "be made smaller; the run stops with a checkpoint if less than "
            f"{self._settings.stop_below:.0%} is left"
        )


def tightest_use(device: torch.device, *, limit: int | None) -> MemoryUse:
    """Memory of what has the smallest share free."""
    uses = _device_uses(device) if device.type == "cuda" else memory_uses()
    if limit is not None:
        own = torch.cuda.memory_allocated(device) if device.type == "cuda" else own_memory_bytes()
        uses.append(MemoryUse("limit", limit, own))
    return min(uses, key=lambda use: use.free_share)


def _device_uses(device: torch.device) -> list[MemoryUse]:
    free, total = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return [MemoryUse("device", total, total - free)]
