"""Bytes and AUC of an exported model in several formats, beside FP32 rows.

A run with FP32 rows is exported as it is and in smaller formats. The headline is tables and index
of a folder against those of the FP32 folder; tables alone, which the bounds of single formats are
about, stand beside it. The loss is the largest
fall of the test AUC of any task. A folder is also compared with the sum of its tables, index and
dense program: nothing else in it should take room.

    python -m benchmarks.serving_sizes [--run RUN] [--json FILE]

Without --run it trains configs/ecommerce.yaml with FP32 rows first.
"""

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, write_figures
from edorec.config import load_config
from edorec.serving.card import sizes
from edorec.serving.export import export
from edorec.serving.formats import parse_formats
from edorec.train import run


@dataclass(frozen=True)
class Export:
    """A way to store a model, and its bounds.

    Attributes:
        formats: as for ``edorec export --format``.
        min_count: ids seen less often have no row.
        most_tables: tables of FP32's.
        most_bytes: tables and index of FP32's.
        most_loss: of AUC.
    """

    formats: str
    min_count: int
    most_tables: float | None
    most_bytes: float | None
    most_loss: float

    @property
    def name(self) -> str:
        """How figures call it."""
        seen = f", ids seen {self.min_count} times" if self.min_count > 1 else ""
        return self.formats + seen


EXPORTS = (
    Export("int8", 1, 1 / 3, None, 0.002),
    Export("int4", 1, 1 / 5, None, 0.002),
    Export("int8:100:pq", 1, 1 / 14, None, 0.0005),
    Export("int4:100:pq", 1, 1 / 14, None, 0.0005),
    Export("int8:100:pq", 2, 1 / 14, 1 / 14, 0.0005),
    Export("int4:100:pq", 2, 1 / 14, 1 / 14, 0.0005),
)
MOST_OVERHEAD = 1.05


def exported(
    run_dir: Path, folder: Path, formats: str, *, min_count: int = 1
) -> tuple[dict[str, Any], float]:
    """Manifest of a folder, and its bytes over those of its parts."""
    manifest = export(
        run_dir,
        folder,
        formats=parse_formats([formats]),
        min_count=min_count,
        max_auc_loss=1,
        verbosity=-1,
    )
    total = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return manifest, total / sum(sizes(manifest).values())


def loss(manifest: dict[str, Any]) -> float:
    """Largest fall of the AUC of a task."""
    tasks: dict[str, dict[str, float]] = manifest["evaluation"]["tasks"]
    return max(aucs["auc_before"] - aucs["auc_after"] for aucs in tasks.values())


def measure(run_dir: Path) -> list[Figure]:
    """Figures of each format."""
    figures = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        manifest, _ = exported(run_dir, folder / "fp32", "as-trained")
        whole = sizes(manifest)
        figures.append(Figure("fp32: tables", whole["tables"] / 1e6, "MB"))
        figures.append(Figure("fp32: index", whole["index"] / 1e6, "MB"))
        for number, e in enumerate(EXPORTS):
            out = folder / str(number)
            manifest, overhead = exported(run_dir, out, e.formats, min_count=e.min_count)
            parts = sizes(manifest)
            both = (parts["tables"] + parts["index"]) / (whole["tables"] + whole["index"])
            alone = parts["tables"] / whole["tables"]
            figures += [
                Figure(f"{e.name}: tables, index of FP32's", both, "ratio", at_most=e.most_bytes),
                Figure(f"{e.name}: tables of FP32's", alone, "ratio", at_most=e.most_tables),
                Figure(f"{e.name}: loss of AUC", loss(manifest), "AUC", at_most=e.most_loss),
                Figure(f"{e.name}: folder over parts", overhead, "ratio", at_most=MOST_OVERHEAD),
            ]
    return figures


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--run", type=Path, help="folder of a finished run with FP32 rows")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run_dir = args.run or Path(folder) / "run"
        if args.run is None:
            config = load_config("ecommerce.yaml", ["memory.format=fp32"]).config
            run(config, run_dir=run_dir, verbosity=0)
        figures = measure(run_dir)
    write_figures(figures, json_path=args.json)


if __name__ == "__main__":
    main()
