"""S1, S7 and S11: how rows are stored while training, against FP32 rows.

The claims: FP16 beside FP32 takes 42 % less memory at 99.2 % of the metric (S1); rows of ids seen
fewer than 100 times stay in FP32 (S7), beside which stands the opposite; INT8 rows with a dense
part in TF32 (S11), for which a CPU has bf16.
"""

from benchmarks.claims.row import Options, Row, auc_figures, side, speed_figure, train_pairs
from benchmarks.figures import Figure
from edorec.config import load_config

CONFIG = "ecommerce"
FP32 = ["memory={format: fp32}"]


def fp16(options: Options) -> Row:
    """S1, one format."""
    return _row("S1 FP16 rows, shop", ["memory={format: fp16}"], options, at_most=0.58)


def hot_fp32(options: Options) -> Row:
    """S1 in bands."""
    bands = "memory={bands: [{min_count: 1000, format: fp32}, {format: int8, state: bf16}]}"
    return _row("S1 hot rows FP32, others INT8, shop", [bands], options, at_most=0.58)


def rare_fp32(options: Options) -> Row:
    """S7 as it was claimed; without a bound, since it saves next to nothing."""
    bands = "memory={bands: [{min_count: 100, format: int8}, {format: fp32}]}"
    return _row("S7 rare ids FP32, shop", [bands], options, at_most=None)


def rare_int2(options: Options) -> Row:
    """The opposite of S7."""
    bands = (
        "memory={bands: [{min_count: 10, format: int8, state: log8}, {format: int2, state: log8}]}"
    )
    return _row("S7 opposite: rare ids INT2, shop", [bands], options, at_most=1 / 6)


def low_precision(options: Options) -> Row:
    """S11."""
    technique = ["memory={format: int8}", "train.matmul_precision=bf16"]
    return _row("S11 INT8 rows, bf16 products, shop", technique, options, at_most=0.4)


def _row(name: str, technique: list[str], options: Options, *, at_most: float | None) -> Row:
    pairs = train_pairs(CONFIG, FP32, technique, options=options)
    sizes = [report["memory"]["total_bytes"] for report in pairs[0]]
    baseline, edorec = (
        side([pair[k] for pair in pairs], size=sizes[k], unit="bytes") for k in (0, 1)
    )
    task = next(iter(load_config(CONFIG, []).config.tasks))
    ratio = edorec.auc[task] / baseline.auc[task]
    figures = [
        Figure(f"{name}: bytes of baseline's", sizes[1] / sizes[0], "ratio", at_most=at_most),
        Figure(f"{name}: {task} AUC of baseline's", ratio, "ratio", at_least=0.999),
        *auc_figures(name, pairs, margin=0.0005),
        speed_figure(name, pairs),
    ]
    return Row(name, baseline, edorec, figures)
