"""Bytes of tables as reported against what the process holds for them.

For each storage a process of its own builds a table, touches every row, and compares the growth of
its resident memory with the bytes that the table reports. Then a table of 20 million INT8 rows: its
peak while it is made and takes a first step, against its final size.

    python -m benchmarks.table_memory [--quick] [--json FILE]
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, write_figures

DIM = 16
ROWS, QUICK_ROWS, LARGE_ROWS = 4_000_000, 1_000_000, 20_000_000
# Row format and state; the largest bytes a row, where there is a bound.
STORAGES = {
    ("fp32", "fp32"): None,
    ("fp16", "fp32"): 36,
    ("int8", "fp32"): 24,
    ("int8", "bf16"): None,
    ("int4", "fp32"): None,
    ("int2", "log8"): None,
}
CONSTANT_MB = 4  # what the first look-up allocates besides, whatever the table
SCRIPT = """
import json, sys
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from edorec.embedding.bands import Band
from edorec.embedding.collection import EdoEmbeddingBagCollection
from edorec.embedding.row_tables import EdoTableConfig
from edorec.memory_use import peak_rss_bytes, rss_bytes

def build(rows, row_format, state):
    table = EdoTableConfig(name="t", num_embeddings=rows, embedding_dim=16, feature_names=["t"],
                           bands=[Band(rows, row_format, state)])
    return EdoEmbeddingBagCollection([table], initial_accumulator=1e-5)

def step(tables, rows):
    ids = torch.arange(0, rows, max(1, rows // 4096))
    lengths = torch.ones(len(ids), dtype=torch.int32)
    tables(KeyedJaggedTensor(["t"], ids, lengths=lengths)).values().sum().backward()

rows, row_format, state = int(sys.argv[1]), sys.argv[2], sys.argv[3]
step(build(100, row_format, state), 100)  # loads and compiles everything
before, peak_before = rss_bytes(), peak_rss_bytes()
tables = build(rows, row_format, state)
step(tables, rows)
weights, optimizer = tables.table_bytes()["t"]
print(json.dumps({"weights": weights, "optimizer": optimizer, "grown": rss_bytes() - before,
                  "peak": peak_rss_bytes() - before, "rss": rss_bytes(),
                  "rss_peak": peak_rss_bytes()}))
"""


def measure(rows: int, row_format: str, state: str) -> dict[str, Any]:
    """What a process of its own reports and holds, in bytes."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(rows), row_format, state],
        check=True,
        capture_output=True,
        text=True,
    )
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="smaller tables")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = QUICK_ROWS if args.quick else ROWS
    figures = []
    for (row_format, state), most in STORAGES.items():
        found = measure(rows, row_format, state)
        reported = found["weights"] + found["optimizer"]
        name = f"{row_format} rows, {state} state"
        figures.append(Figure(f"{name}: bytes a row", reported / rows, "bytes", at_most=most))
        excess = abs(found["grown"] - reported) - CONSTANT_MB * 1e6
        figures.append(
            Figure(
                f"{name}: held but not reported, beyond {CONSTANT_MB} MB",
                max(0.0, excess) / reported,
                "ratio",
                at_most=0.01,
            )
        )
    large = measure(LARGE_ROWS // (10 if args.quick else 1), "int8", "fp32")
    figures.append(
        Figure("20 M INT8 rows: peak over final size", large["peak"] / large["grown"], "ratio")
    )
    figures.append(
        Figure(
            "20 M INT8 rows: process peak over its final memory",
            large["rss_peak"] / large["rss"],
            "ratio",
            at_most=1.1,
        )
    )
    write_figures(figures, json_path=args.json)


if __name__ == "__main__":
    main()
