"""What a run leaves: metrics.jsonl, report.json, report.md and plots, a table on the screen."""

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.table import Table

from edorec.errors import InputError
from edorec.memory_use import format_bytes
from edorec.output_folder import write_file
from edorec.plots import plot_run

METRICS = ("auc", "gauc", "logloss", "ne", "calibration")
SEEN_DECILES = 10


class MetricsLog:
    """Appends lines to metrics.jsonl, and to TensorBoard when asked; a context manager.

    Args:
        path: file to append to, None for none.
        tensorboard_folder: folder for TensorBoard events, None for none.
        after_step: step that a run goes on from; TensorBoard forgets what came after it.

    Raises:
        InputError: if TensorBoard is asked for and not installed.
    """

    def __init__(
        self, path: Path | None, *, tensorboard_folder: Path | None = None, after_step: int = 0
    ) -> None:
        self._file = (path or Path(os.devnull)).open("a")
        self._is_kept = path is not None
        self._writer: Any = None
        if tensorboard_folder is not None:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as error:
                raise InputError(
                    "train.tensorboard needs the package tensorboard: "
                    "pip install 'edorec[tensorboard]', or set it to false"
                ) from error
            self._writer = SummaryWriter(str(tensorboard_folder), purge_step=after_step + 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
        if self._writer is not None:
            self._writer.close()

    @property
    def num_bytes(self) -> int:
        """Bytes written so far."""
        return self._file.tell() if self._is_kept else 0

    def cut(self, num_bytes: int) -> None:
        """Removes the lines after the first ``num_bytes``."""
        if not self._is_kept:
            return
        self._file.truncate(min(num_bytes, self.num_bytes))
        self._file.seek(0, os.SEEK_END)

    def write(self, line: dict[str, Any]) -> None:
        """Appends a line, stamped with the time."""
        self._file.write(json.dumps({"time": time.time(), **line}, allow_nan=False) + "\n")
        self._file.flush()
        if self._writer is not None:
            for name, value in _scalars(line, line["split"]):
                self._writer.add_scalar(name, value, line["step"])


def write_report(run_dir: Path, report: dict[str, Any]) -> None:
    """Writes report.json, the plots and report.md; each file is complete or absent."""
    write_file(run_dir / "report.json", json.dumps(report, indent=2, allow_nan=False) + "\n")
    pictures = plot_run(run_dir, report)
    write_file(run_dir / "report.md", "\n".join(_markdown(report, pictures)) + "\n")


def print_summary(report: dict[str, Any], console: Console) -> None:
    """Prints metrics by task, memory, speed and where the run is."""
    best = any(m.get("best_reachable_auc") for m in report["tasks"].values())
    table = Table("task", title=f"{report['tasks_split']} split")
    for title in ("AUC", *(["best reachable"] if best else []), "GAUC", "NE", "calibration"):
        table.add_column(title, justify="right")
    for task, metrics in report["tasks"].items():
        reachable = [_figure(metrics.get("best_reachable_auc"))] if best else []
        rest = [_figure(metrics[name]) for name in ("gauc", "ne", "calibration")]
        table.add_row(task, _figure(metrics["auc"]), *reachable, *rest)
    console.print(table)
    for line in (*_memory_lines(report), *_speed_lines(report), *report["diagnosis"]):
        console.print(line, highlight=False, soft_wrap=True)
    console.print(f"report: {report['run']}/report.md", highlight=False, soft_wrap=True)


def _markdown(report: dict[str, Any], pictures: list[str]) -> Iterable[str]:
    yield f"# {Path(report['run']).name}\n"
    yield f"## Metrics ({report['tasks_split']} split)\n"
    yield from _task_table(report)
    for sentence in report["diagnosis"]:
        yield f"\n**{sentence}**"
    yield "\n## Memory\n"
    yield from (f"- {line}" for line in _memory_lines(report))
    yield "\n| table | rows | buckets | ids seen | dim | format | rows, bytes | optimizer, bytes |"
    yield "|---|--:|--:|--:|--:|---|--:|--:|"
    for t in report["memory"]["tables"]:
        sizes = f"{t['weights_bytes']:,} | {t['optimizer_bytes']:,}"
        counts = f"{t['rows']:,} | {t['buckets']:,} | {t['num_ids']:,} | {t['dim']}"
        yield f"| {t['name']} | {counts} | {t['format']} | {sizes} |"
    yield from _sharing_lines(report["sharing"], report["memory"]["total_bytes"])
    yield "\n## Speed\n"
    yield from (f"- {line}" for line in _speed_lines(report))
    yield from _frequency_tables(report)
    yield from _data_lines(report)
    for event in report["events"]:
        yield f"- event: {json.dumps(event)}"
    yield ""
    yield from (f"![{Path(name).stem.replace('_', ' ')}]({name})\n" for name in pictures)


def _task_table(report: dict[str, Any]) -> Iterable[str]:
    yield "| task | AUC | best reachable | GAUC | logloss | NE | calibration | rows | positives |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|--:|"
    for task, metrics in report["tasks"].items():
        auc, *rest = (_figure(metrics[name]) for name in METRICS)
        figures = [auc, _figure(metrics.get("best_reachable_auc")), *rest]
        counts = [f"{metrics['rows']:,}", f"{metrics['positives']:,}"]
        yield f"| {' | '.join([task, *figures, *counts])} |"


def _frequency_tables(report: dict[str, Any]) -> Iterable[str]:
    yield "\n## By frequency of ids\n"
    yield "Decile 1 holds the most frequent ids, a tenth of the training look-ups; 10 the rarest."
    yield "\n| task | feature | decile | rows | positives | AUC | calibration |"
    yield "|---|---|---|--:|--:|--:|--:|"
    for task, metrics in report["tasks"].items():
        for entry in metrics["by_frequency"]:
            decile = entry["decile"] + 1 if entry["decile"] < SEEN_DECILES else "unseen"
            counts = f"{entry['rows']:,} | {entry['positives']:,}"
            figures = f"{_figure(entry['auc'])} | {_figure(entry['calibration'])}"
            yield f"| {task} | {entry['feature']} | {decile} | {counts} | {figures} |"
        unseen = metrics["unseen_ids"]
        if unseen:
            counts = f"{unseen['rows']:,} | {unseen['positives']:,}"
            figures = f"{_figure(unseen['auc'])} | {_figure(unseen['calibration'])}"
            yield f"| {task} | any | unseen | {counts} | {figures} |"


def _data_lines(report: dict[str, Any]) -> Iterable[str]:
    data = report["data"]
    yield "\n## Data\n"
    for split in ("train", "valid", "test"):
        if f"{split}_rows" in data:
            yield f"- {split}: {data[f'{split}_rows']:,} rows"
    counts = data["counts"]
    yield from (f"- warning: {warning}" for warning in counts.get("warnings", ()))
    split = report["tasks_split"]
    lookups = counts.get("lookups", {}).get(split, {})
    unseen = counts.get("unseen_ids", {}).get(split, {})
    yield f"\n| feature | look-ups ({split}) | ids not seen in training |"
    yield "|---|--:|--:|"
    for feature, total in lookups.items():
        share = f"{unseen.get(feature, 0) / total:.2%}" if total else "n/a"
        yield f"| {feature} | {total:,} | {share} |"
    yield "\n| met in the data | split | column | count |"
    yield "|---|---|---|--:|"
    for kind, splits in counts.items():
        if kind in ("warnings", "lookups", "unseen_ids"):
            continue
        for name, columns in splits.items():
            for column, count in columns.items():
                yield f"| {kind.replace('_', ' ')} | {name} | {column} | {count:,} |"


def _memory_lines(report: dict[str, Any]) -> list[str]:
    memory = report["memory"]
    total, baseline = memory["total_bytes"], memory["baseline_bytes"]
    share = f", {total / baseline:.2f} of FP32" if baseline else ""
    return [
        f"tables: {format_bytes(total)} (rows {format_bytes(memory['weights_bytes'])}, optimizer "
        f"state {format_bytes(memory['optimizer_bytes'])}){share}",
        f"FP32 rows and state of all ids: {format_bytes(baseline)}",
        f"process at its peak: {format_bytes(memory['peak_rss_bytes'])}",
    ]


def _sharing_lines(sharing: dict[str, Any], total: int) -> Iterable[str]:
    saved = sharing["saved_bytes"]
    yield "\n## Sharing\n"
    yield "| tables | bytes |"
    yield "|---|--:|"
    yield f"| one for each feature and task | {sharing['separate_bytes']:,} |"
    yield f"| saved across tasks: one for each feature | -{saved['across_tasks']:,} |"
    yield f"| saved within a task: one for each vocabulary | -{saved['within_task']:,} |"
    yield f"| rows of single tasks | +{sharing['task_specific_bytes']:,} |"
    yield f"| this run | {total:,} |"
    if saved["across_layers"]:
        yield (
            f"\nLayers that are tied save {format_bytes(saved['across_layers'])} more, of dense "
            "weights and their optimizer state."
        )


def _speed_lines(report: dict[str, Any]) -> list[str]:
    speed = report["speed"]
    return [
        f"prepared in {speed['prepare_seconds']:.1f} s; trained {speed['train_steps']:,} steps in "
        f"{speed['train_seconds']:.1f} s, {speed['train_rows_per_second']:,.0f} rows/s; evaluated "
        f"{speed['eval_rows_per_second']:,.0f} rows/s"
    ]


def _scalars(values: dict[str, Any], prefix: str) -> Iterable[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _scalars(value, f"{prefix}/{name}")
        elif isinstance(value, float) and name != "time":
            yield f"{prefix}/{name}", value


def _figure(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.4f}"
