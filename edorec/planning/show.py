"""A plan on the screen."""

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from edorec.embedding.formats import FORMATS
from edorec.memory_use import format_bytes
from edorec.planning.plan import Plan, PlannedTable


def print_plan(plan: Plan, console: Console) -> None:
    """Prints the tables of a plan, the largest first, then the reasons, then the sum."""
    tables = sorted(plan.tables, key=lambda table: -table.total_bytes)
    used = {band.format for table in tables for band in table.bands if band.rows}
    formats = [name for name in FORMATS if name in used]
    shown = Table(box=SIMPLE, padding=(0, 1, 0, 0))  # so that nine columns fit on a terminal
    shown.add_column("table", no_wrap=True)
    for title in ("ids", *formats, "buckets", "bytes", "kept"):
        shown.add_column(title, justify="right", no_wrap=True)
    for table in tables:
        rows = (sum(b.rows for b in table.bands if b.format == name) for name in formats)
        shown.add_row(
            table.name,
            f"{table.num_ids:,}",
            *(f"{count:,}" if count else "" for count in rows),
            f"{table.buckets:,}",
            format_bytes(table.total_bytes),
            "" if table.kept is None else f"{table.kept:.1%}",
        )
    console.print(shown)
    for table in tables if plan.budget is not None else ():
        given = f" (given: {', '.join(table.pinned)})" if table.pinned else ""
        _say(console, f"{table.name}{given}: {_bands(table)}; {table.why}")
    share = plan.total_bytes / max(plan.baseline_bytes, 1)
    budget = "" if plan.budget_bytes is None else f", budget {format_bytes(plan.budget_bytes)}"
    _say(
        console,
        f"tables and optimizer state: {format_bytes(plan.total_bytes)}, {share:.4f} of FP32's "
        f"{format_bytes(plan.baseline_bytes)}{budget}",
    )


def _bands(table: PlannedTable) -> str:
    """Where each format begins: ``int8 from 30, int2 from 2``."""
    parts = []
    for band in table.bands:
        count = max(band.min_count, table.min_count)
        parts += [f"{band.format} from {count:,}" if count > 1 else band.format] * bool(band.rows)
    return ", ".join(parts) or "buckets alone"


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True, markup=False)
