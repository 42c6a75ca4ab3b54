"""Each technique beside its baseline: size, AUC and throughput, trained in pairs.

python -m benchmarks.claims [--rows S3 ...] [--quick] [--json FILE]
"""

import argparse
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.claims import (
    headline,
    monitor,
    paging,
    shared_vocabularies,
    small_rows,
    storages,
    tied_layers,
)
from benchmarks.claims.row import Options, Row, Side
from benchmarks.figures import write_figures

ROWS = {
    "S1": storages.fp16,
    "S1-bands": storages.hot_fp32,
    "S2": small_rows.sparse28,
    "S2-pq": small_rows.product_quantization,
    "S3": tied_layers.row,
    "S4": shared_vocabularies.ecommerce,
    "S4-kuairand": shared_vocabularies.kuairand,
    "S5": paging.chunks,
    "S6": paging.larger_than_memory,
    "S7": storages.rare_fp32,
    "S7-opposite": storages.rare_int2,
    "S8": shared_vocabularies.levels,
    "S9": paging.page_rows,
    "S10": monitor.row,
    "S11": storages.low_precision,
    "S12": headline.row,
}


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", nargs="*", choices=list(ROWS), help="default: all")
    parser.add_argument("--seeds", type=int, default=5, help="pairs of runs")
    parser.add_argument("--quick", action="store_true", help="one pair a row")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    num_seeds = 1 if args.quick else args.seeds
    options = Options(seeds=range(1, num_seeds + 1), num_threads=args.threads)
    rows = [ROWS[name](options) for name in args.rows or ROWS]
    print_rows(rows)
    write_figures([figure for row in rows for figure in row.figures], json_path=args.json)


def print_rows(rows: list[Row]) -> None:
    """Prints baseline and technique of every row below each other."""
    table = Table("technique", "side", "size", "test AUC", "rows/s")
    for row in rows:
        table.add_row(row.name, "baseline", *_cells(row.baseline))
        table.add_row("", "edorec", *_cells(row.edorec), end_section=True)
    Console(emoji=False).print(table)


def _cells(side: Side) -> tuple[str, str, str]:
    aucs = ", ".join(f"{task} {auc:.4f}" for task, auc in side.auc.items())
    return f"{side.size:,.0f} {side.unit}", aucs, f"{side.rows_per_second:,.0f}"


if __name__ == "__main__":
    main()
