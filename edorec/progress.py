"""Progress of long work: a bar on a terminal, one plain line every 30 seconds elsewhere."""

import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from edorec.memory_use import format_bytes, rss_bytes

REFRESH_SECONDS = 0.25
LINE_SECONDS = 30.0


class Progress:
    """Shows how much of ``total`` is done, as a context manager.

    Args:
        total: number of units in all.
        unit: what is counted, in the plural.
        description: what is being done.
        verbosity: below 0 shows nothing.
        console: where to show it; default standard error.
        clock: seconds, for tests.
    """

    def __init__(
        self,
        *,
        total: int,
        unit: str,
        description: str,
        verbosity: int,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = total
        self._unit = unit
        self._description = description
        self._console = console or Console(stderr=True)
        self._is_shown = verbosity >= 0
        self._clock = clock
        self._done = 0
        self._loss = math.nan
        self._note = ""
        self._started = self._shown_at = clock()
        self._bar: RichProgress | None = None

    def __enter__(self) -> Self:
        self._started = self._shown_at = self._clock()
        if self._is_shown and self._console.is_terminal:
            self._bar = RichProgress(
                TextColumn("{task.description}"),
                BarColumn(),
                TaskProgressColumn(),
                TextColumn("{task.fields[text]}"),
                TimeRemainingColumn(),
                console=self._console,
            )
            self._bar.start()
            self._task = self._bar.add_task(self._description, total=self._total, text="")
        return self

    def advance(self, num: int, *, loss: float | None = None, note: str = "") -> None:
        """Counts ``num`` more units; cheap, as the screen changes a few times a second only."""
        self._done += num
        self._note = note
        if loss is not None:
            self._loss = loss
        if not self._is_shown:
            return
        interval = REFRESH_SECONDS if self._bar else LINE_SECONDS
        if self._clock() - self._shown_at >= interval:
            self._show()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._is_shown:
            self._show()
        if self._bar:
            self._bar.stop()

    def _show(self) -> None:
        self._shown_at = self._clock()
        seconds = max(self._shown_at - self._started, 1e-9)
        rate = self._done / seconds
        parts = [f"{rate:,.0f} {self._unit}/s"]
        if math.isfinite(self._loss):
            parts.append(f"loss {self._loss:.4f}")
        parts.append(f"memory {format_bytes(rss_bytes())}")
        if self._note:
            parts.append(self._note)
        if self._bar:
            self._bar.update(self._task, completed=self._done, text=", ".join(parts))
            return
        left = (self._total - self._done) / rate if rate else math.inf
        parts.append(f"{_duration(left)} left" if self._done < self._total else _duration(seconds))
        share = self._done / self._total if self._total else 1.0
        counts = f"{self._done:,} of {self._total:,} {self._unit} ({share:.0%})"
        self._console.print(
            f"{self._description}: {counts}, {', '.join(parts)}", highlight=False, soft_wrap=True
        )


class StageProgress:
    """Progress of work in stages, as a context manager that is called with (stage, done, total).

    A stage ends where another begins.
    """

    def __init__(self, *, unit: str, verbosity: int, console: Console | None = None) -> None:
        self._unit = unit
        self._verbosity = verbosity
        self._console = console
        self._stage: str | None = None
        self._done = 0
        self._open = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.close()

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Says that ``done`` of ``total`` units of ``stage`` are done."""
        if stage != self._stage:
            self._open.close()
            self._stage, self._done = stage, 0
            self._progress = self._open.enter_context(
                Progress(
                    total=total,
                    unit=self._unit,
                    description=stage,
                    verbosity=self._verbosity,
                    console=self._console,
                )
            )
        self._progress.advance(done - self._done)
        self._done = done


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds))) if math.isfinite(seconds) else "unknown time"
