"""S2: two of eight values in two bits, and product quantization beside it, against FP32 rows.

The claim: 1/16 of the memory at 0.3 less of the metric. Bytes are those of the exported tables, AUC
that of the exported model. The first trains for its format (``qat``), the second has hot rows in
INT8 and is made from rows that trained in INT8.
"""

from typing import Any

from benchmarks.claims.row import Options, Row, auc_figures, exported, side, speed_figure
from benchmarks.figures import Figure
from edorec.config import load_config

CONFIG = "kuairand"


def sparse28(options: Options) -> Row:
    """The format of the claim."""
    memory = "memory={format: int8, qat: sparse28}"
    name = "S2 2-of-8 sparse 2-bit rows, KuaiRand"
    return _row(name, memory, "sparse28", options, at_most=1 / 16, margin=0.006)


def product_quantization(options: Options) -> Row:
    """What does better."""
    name = "S2 cold rows in product quantization, KuaiRand"
    return _row(name, "memory={format: int8}", "int8:100:pq", options, at_most=1 / 14, margin=0.002)


def _row(
    name: str, memory: str, formats: str, options: Options, *, at_most: float, margin: float
) -> Row:
    pairs = []
    for seed in options.seeds:
        both = [f"train.seed={seed}", f"train.num_threads={options.num_threads}"]
        baseline = exported(
            load_config(CONFIG, ["memory={format: fp32}", *both]).config, "as-trained"
        )
        small = exported(load_config(CONFIG, [memory, *both]).config, formats)
        pairs.append((baseline, small))
        print(f"{name}, seed {seed}: {_aucs(baseline)} and {_aucs(small)}", flush=True)
    sizes = [report["bytes"]["tables"] for report in pairs[0]]
    baseline_side, edorec_side = (
        side([pair[k] for pair in pairs], size=sizes[k], unit="bytes served") for k in (0, 1)
    )
    figures = [
        Figure(f"{name}: tables of FP32's", sizes[1] / sizes[0], "ratio", at_most=at_most),
        *auc_figures(name, pairs, margin=margin),
        speed_figure(name, pairs),
    ]
    return Row(name, baseline_side, edorec_side, figures)


def _aucs(report: dict[str, Any]) -> str:
    return " ".join(f"{metrics['auc']:.4f}" for metrics in report["tasks"].values())
