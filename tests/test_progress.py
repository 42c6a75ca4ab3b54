"""Progress: plain lines off a terminal, a bar on one, nothing when quiet."""

import io

import pytest
from rich.console import Console

from edorec.progress import Progress, StageProgress


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def lines(*, steps: int, seconds: float, verbosity: int = 0, terminal: bool = False) -> list[str]:
    """Output of ``steps`` steps of 10 rows, each ``seconds`` long, out of 100 rows."""
    clock, output = Clock(), io.StringIO()
    console = Console(file=output, force_terminal=terminal, width=120)
    progress = Progress(
        total=100,
        unit="rows",
        description="train",
        verbosity=verbosity,
        console=console,
        clock=clock,
    )
    with progress:
        for step in range(steps):
            clock.now += seconds
            progress.advance(10, loss=0.5 - step / 100)
    return output.getvalue().splitlines()


def test_a_line_every_thirty_seconds_and_one_at_the_end() -> None:
    shown = lines(steps=10, seconds=12.0)
    assert len(shown) == 4  # after 36, 72 and 108 seconds, and at the end
    assert shown[0].startswith("train: 30 of 100 rows (30%), 1 rows/s, loss 0.4800, memory ")
    assert shown[0].endswith("0:01:24 left")
    assert shown[-1].startswith("train: 100 of 100 rows (100%)")
    assert shown[-1].endswith("0:02:00")


def test_short_work_shows_its_end_alone() -> None:
    assert len(lines(steps=10, seconds=0.1)) == 1


def test_quiet_shows_nothing() -> None:
    assert lines(steps=10, seconds=12.0, verbosity=-1) == []
    assert lines(steps=10, seconds=12.0, verbosity=-1, terminal=True) == []


def test_a_terminal_gets_a_bar() -> None:
    text = "\n".join(lines(steps=10, seconds=12.0, terminal=True))
    assert "100%" in text
    assert "rows/s, loss 0.4100" in text


def test_the_last_state_is_shown_when_work_fails() -> None:
    output = io.StringIO()
    progress = Progress(
        total=100, unit="rows", description="train", verbosity=0, console=Console(file=output)
    )

    def work() -> None:
        with progress:
            progress.advance(40)
            raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        work()
    assert "40 of 100 rows (40%)" in output.getvalue()


def test_stages_end_where_the_next_begins() -> None:
    output = io.StringIO()
    console = Console(file=output, width=120)
    with StageProgress(unit="rows", verbosity=0, console=console) as on_progress:
        for stage in ("read", "encode"):
            for done in (50, 100):
                on_progress(stage, done, 100)
    shown = output.getvalue().splitlines()
    assert [line.split(",")[0] for line in shown] == [
        "read: 100 of 100 rows (100%)",
        "encode: 100 of 100 rows (100%)",
    ]
