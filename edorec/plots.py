"""The pictures of a run folder, as PNG."""

import json
from pathlib import Path
from typing import Any

from edorec.memory_use import format_bytes

COLORS = ("#1f6f8b", "#d1603d", "#5b8c5a", "#7d5ba6", "#c2a83e")
MOST_TABLES = 20


def plot_run(run_dir: Path, report: dict[str, Any]) -> list[str]:
    """Draws what a run has to show into its folder; returns the names of the files."""
    # matplotlib takes a second to import: only where something is drawn.
    import matplotlib

    matplotlib.use("Agg")
    names = [
        _learning_curves(run_dir / "learning_curves.png", run_dir / "metrics.jsonl"),
        _calibration(run_dir / "calibration.png", report),
        _memory(run_dir / "memory_by_table.png", report),
        _memory_over_steps(run_dir / "memory_over_steps.png", run_dir / "metrics.jsonl"),
    ]
    return [name for name in names if name is not None]


def _learning_curves(path: Path, metrics: Path) -> str | None:
    """Training loss over steps, and the AUC of every task on the validation split."""
    from matplotlib import pyplot as plt

    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    train = [line for line in lines if line["split"] == "train"]
    valid = [line for line in lines if line["split"] == "valid"]
    if not train:
        return None
    figure, axes = plt.subplots(1, 2 if valid else 1, figsize=(9 if valid else 5, 3.4))
    left = axes[0] if valid else axes
    left.plot([x["step"] for x in train], [x["loss"] for x in train], color=COLORS[0])
    left.set(title="training loss", xlabel="step", ylabel="loss")
    for index, task in enumerate(valid[0]["tasks"] if valid else ()):
        points = [(x["step"], x["tasks"][task]["auc"]) for x in valid]
        known = [point for point in points if point[1] is not None]
        if known:
            axes[1].plot(*zip(*known, strict=True), "o-", color=_color(index), label=task)
    if valid:
        axes[1].set(title="validation AUC", xlabel="step", ylabel="AUC")
        if axes[1].lines:
            axes[1].legend(frameon=False)
    return _save(figure, path)


def _calibration(path: Path, report: dict[str, Any]) -> str | None:
    """Share of positives over mean probability, in bins of equally many rows."""
    from matplotlib import pyplot as plt

    curves = {task: m["calibration_curve"] for task, m in report["tasks"].items()}
    curves = {task: curve for task, curve in curves.items() if len(curve) > 1}
    if not curves:
        return None
    figure, axis = plt.subplots(figsize=(4.6, 4.2))
    values = [p[k] for c in curves.values() for p in c for k in ("predicted", "observed")]
    low = max(min(value for value in values if value > 0), 1e-5) if max(values) > 0 else 1e-5
    axis.plot([low, 1], [low, 1], color="#999999", linewidth=1, linestyle="--")
    for index, (task, curve) in enumerate(curves.items()):
        shown = [p for p in curve if p["predicted"] > 0 and p["observed"] > 0]
        predicted, observed = ([p[k] for p in shown] for k in ("predicted", "observed"))
        axis.plot(predicted, observed, "o-", markersize=3, color=_color(index), label=task)
    axis.set(xscale="log", yscale="log", xlabel="mean probability", ylabel="share of positives")
    axis.set_title(f"calibration ({report['tasks_split']})")
    axis.legend(frameon=False)
    return _save(figure, path)


def _memory(path: Path, report: dict[str, Any]) -> str | None:
    """Bytes of rows and optimizer state of the largest tables."""
    from matplotlib import pyplot as plt

    tables = sorted(
        report["memory"]["tables"], key=lambda t: t["weights_bytes"] + t["optimizer_bytes"]
    )[-MOST_TABLES:]
    if not tables:
        return None
    figure, axis = plt.subplots(figsize=(7, 0.8 + 0.28 * len(tables)))
    names = [f"{t['name']} ({t['rows']:,} x {t['dim']} {t['format']})" for t in tables]
    weights = [t["weights_bytes"] / 1e6 for t in tables]
    states = [t["optimizer_bytes"] / 1e6 for t in tables]
    axis.barh(names, weights, color=COLORS[0], label="rows")
    axis.barh(names, states, left=weights, color=COLORS[1], label="optimizer state")
    axis.set(xlabel="MB", title="memory by table")
    axis.legend(frameon=False, loc="lower right")
    return _save(figure, path)


def plot_sweep(run_dir: Path, result: dict[str, Any]) -> None:
    """Draws sweep.png and sweep.svg: test AUC of the deciding task over bytes, and FP32's."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import NullFormatter

    task = result["task"]
    points = [c for c in result["contenders"] if c["auc"][task]["mean"] is not None]
    if not points:
        return
    figure, axis = plt.subplots(figsize=(7, 4.2))
    for contender in points:
        auc, is_base = contender["auc"][task], contender["name"] == "FP32"
        label = result["baseline"] if is_base else contender["name"].removeprefix("budget ")
        axis.errorbar(
            contender["total_bytes"],
            auc["mean"],
            yerr=auc["sd"] or 0,
            fmt="s" if is_base else "o",
            color=_color(1 if is_base else 0),
            capsize=3,
        )
        place = (contender["total_bytes"], auc["mean"])
        axis.annotate(label, place, xytext=(5, 5), textcoords="offset points")
        if is_base:
            axis.axhline(auc["mean"], color=_color(1), linewidth=1, linestyle="--")
    axis.set(xscale="log", xlabel="rows and optimizer state while training")
    axis.xaxis.set_major_formatter(lambda size, _: format_bytes(size))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_ylabel(f"test AUC of {task}")
    axis.margins(x=0.2, y=0.15)
    figure.tight_layout()
    figure.savefig(run_dir / "sweep.svg")
    _save(figure, run_dir / "sweep.png")


def _memory_over_steps(path: Path, metrics: Path) -> str | None:
    """What the process held, and what was free, while it trained."""
    from matplotlib import pyplot as plt

    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    lines = [line for line in lines if line["split"] == "train" and line.get("memory")]
    if not lines:
        return None
    figure, axis = plt.subplots(figsize=(5, 3.4))
    steps = [line["step"] for line in lines]
    axis.plot(steps, [x["rss_bytes"] / 1e9 for x in lines], color=COLORS[0], label="process")
    axis.plot(
        steps, [x["memory"]["free_bytes"] / 1e9 for x in lines], color=COLORS[1], label="free"
    )
    axis.set(title="memory while training", xlabel="step", ylabel="GB", ylim=(0, None))
    axis.legend(frameon=False)
    return _save(figure, path)


def _color(index: int) -> str:
    return COLORS[index % len(COLORS)]


def _save(figure: Any, path: Path) -> str:
    from matplotlib import pyplot as plt

    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path.name
