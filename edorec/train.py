"""A whole run: prepare, build, train, evaluate, report.

``fit`` trains and selects, which a search does again and again; the loop is in ``_train``, and
everything it uses is a part with a name of its own.
"""

import math
import platform
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from edorec import __version__
from edorec.checkpoint import load_model, save_model, saved_formats
from edorec.checkpoints.config import CheckpointConfig
from edorec.checkpoints.folder import Saved
from edorec.checkpoints.identity import check_identity, identity
from edorec.checkpoints.saver import Checkpoints
from edorec.config import RunConfig, dump_config
from edorec.data.batch import Batch
from edorec.data.funnel import check_funnel
from edorec.data.prepare import Prepared, copy_vocabularies, prepare
from edorec.data.reader import Reader, rows_by_rank
from edorec.data.source import read_best_auc
from edorec.devices import check_precision, pick_device, set_num_threads
from edorec.diagnosis import diagnose
from edorec.embedding.accounting import TableBytes, memory_report
from edorec.embedding.bands import formats_of
from edorec.embedding.build import report_bytes
from edorec.errors import InputError
from edorec.evaluate import evaluate_split
from edorec.memory_use import peak_rss_bytes, rss_bytes
from edorec.monitor import MemoryMonitor
from edorec.output_folder import locked_folder
from edorec.planning.plan import Plan, apply_plan, write_plan
from edorec.planning.planner import make_plan
from edorec.planning.show import print_plan
from edorec.process_checks import check_processes
from edorec.processes import ONE, Processes
from edorec.progress import Progress, StageProgress
from edorec.recommender import Recommender
from edorec.report import MetricsLog, print_summary, write_report
from edorec.run_folder import CHECKPOINTS, begin_run_dir, find_checkpoint, find_run_dir, new_run_dir
from edorec.run_state import Position, RunState
from edorec.selection import Selection
from edorec.sharing import sharing_report
from edorec.step import TrainingStep
from edorec.warm_start import new_recommender, print_warm_start

LOG_EVERY_STEPS = 20
PACKAGES = (
    "torch",
    "torchrec",
    "fbgemm-gpu-cpu",
    "fbgemm-gpu",
    "numba",
    "duckdb",
    "pyarrow",
    "numpy",
)


def run(
    config: RunConfig,
    *,
    run_dir: Path | None,
    verbosity: int,
    resume: bool = False,
    plan: Plan | None = None,
    processes: Processes = ONE,
) -> dict[str, Any]:
    """Trains the model that ``config`` describes and writes the run folder.

    Args:
        config: the whole run.
        run_dir: folder to write, new or empty unless resuming; default ``runs/<name>-<time>``, or
            the newest such folder to resume.
        verbosity: -1 quiet, 0 normal, 1 verbose.
        resume: go on from the newest complete checkpoint in the run folder; from the beginning
            where there is none.
        plan: of ``config``, if it was made before.
        processes: that train together; each calls this.

    Returns:
        The content of report.json.

    Raises:
        ConfigError: if the configuration cannot run here.
        InputError: if data are bad, a checkpoint is of another run, or training diverges.
    """
    check_processes(config, processes)
    verbosity = verbosity if processes.is_first else -1
    console = Console(stderr=True, quiet=verbosity < 0)
    device, num_threads = set_up(config, processes)
    find = find_run_dir if resume else new_run_dir
    run_dir = processes.from_first(partial(find, config.name, run_dir))
    with locked_folder(run_dir) if processes.is_first else nullcontext():
        saved = None
        if resume:
            saved = processes.from_first(partial(find_checkpoint, run_dir, console))
        prepared = processes.first_then_all(
            "prepared", partial(prepare_splits, config, console=console, verbosity=verbosity)
        )
        plan = plan or make_plan(config, prepared, num_processes=processes.world_size)
        config = apply_plan(config, plan)
        formats = None if saved is None else saved.manifest["progress"].get("formats")
        recommender, warm = new_recommender(
            config, prepared, device=device, processes=processes, formats=formats
        )
        identified = identity(config, prepared, recommender)
        processes.from_first(
            partial(
                _begin, run_dir, config, prepared, plan=plan, identified=identified, saved=saved
            )
        )
        if verbosity > 0:
            print_plan(plan, console)
        if warm is not None and saved is None:
            print_warm_start(warm, console)
        state, seconds = fit(
            recommender,
            prepared,
            config,
            run_dir=run_dir,
            console=console,
            verbosity=verbosity,
            identified=identified,
            saved=saved,
        )
        selection, step = state.selection, state.step
        _load_best(selection.path, recommender)
        report = _report(config, prepared, recommender, verbosity=verbosity)
        report |= {
            "run": str(run_dir),
            "device": {"type": device.type, "num_threads": num_threads},
            "processes": processes.gather(_process(recommender)),
            "validation": selection.validation,
            "resumed_from_step": None if saved is None else saved.step,
            "warm_start": warm,
            "events": selection.events + step.events() + state.monitor.events,
        }
        report["speed"] |= {
            "train_seconds": seconds,
            "train_rows_per_second": step.num_rows / seconds,
            "train_steps": step.num_steps,
        }
        report["diagnosis"] = diagnose(report)
        processes.from_first(partial(write_report, run_dir, report))
    print_summary(report, Console(quiet=verbosity < 0))
    return report


def _begin(
    run_dir: Path,
    config: RunConfig,
    prepared: Prepared,
    *,
    plan: Plan,
    identified: dict[str, Any],
    saved: Saved | None,
) -> None:
    """Writes what a run folder has before training; refuses a checkpoint of another run."""
    if saved is not None:
        check_identity(saved, identified)
    begin_run_dir(run_dir, dump_config(config), saved=saved)
    copy_vocabularies(prepared, run_dir / "vocabularies")
    write_plan(run_dir / "plan.json", plan)


def set_up(config: RunConfig, processes: Processes = ONE) -> tuple[torch.device, int]:
    """Device and number of threads of a run, which are then set.

    Raises:
        ConfigError: if the configuration cannot run here.
    """
    device = processes.device or pick_device(config.train.device)
    check_precision("train.matmul_precision", config.train.matmul_precision, device)
    check_precision("train.eval_precision", config.train.eval_precision, device)
    return device, set_num_threads(config.train.num_threads, num_processes=processes.num_here)


def prepare_splits(config: RunConfig, *, console: Console, verbosity: int) -> Prepared:
    """Prepares the splits that ``config`` names; shows progress.

    Raises:
        ConfigError: if columns do not fit the configuration.
        InputError: if rows are bad, or labels are no funnel where the model wants one.
    """
    with StageProgress(unit="rows", verbosity=verbosity, console=console) as on_progress:
        prepared = prepare(
            data=config.data,
            features=config.features,
            vocabularies=config.vocabularies,
            tasks=config.tasks,
            on_progress=on_progress,
        )
    if config.model.head.name == "esmm":
        check_funnel(prepared)
    return prepared


def fit(
    recommender: Recommender,
    prepared: Prepared,
    config: RunConfig,
    *,
    run_dir: Path,
    console: Console,
    verbosity: int,
    trial: str | None = None,
    identified: dict[str, Any] | None = None,
    saved: Saved | None = None,
) -> tuple[RunState, float]:
    """Trains on the training split and selects on the validation split; reads no other.

    Args:
        recommender: trained in place.
        prepared: data with a split ``train``.
        config: the whole run.
        run_dir: gets metrics.jsonl and, unless this is a trial, checkpoints and the best model.
        console: where to show progress.
        verbosity: -1 quiet, 0 normal, 1 verbose.
        trial: what to show for a trial of a search, of which only the figures are wanted.
        identified: the run's ``identity``, without which it saves no checkpoints.
        saved: checkpoint to go on from, which fits the run.

    Returns:
        The state behind the last step, and the seconds of training without evaluations.

    Raises:
        InputError: if training diverges or a checkpoint cannot be written.
    """
    epoch_rows = prepared.splits["train"].rows
    total_steps = config.train.epochs * math.ceil(epoch_rows / config.train.batch_size)
    resumed_step = None if saved is None else saved.step
    is_first, with_events = recommender.processes.is_first, config.train.tensorboard
    with MetricsLog(
        run_dir / "metrics.jsonl" if is_first else None,
        tensorboard_folder=run_dir / "tensorboard" if is_first and with_events else None,
        after_step=resumed_step or 0,
    ) as log:
        selection = Selection(
            recommender,
            prepared,
            config,
            run_dir=run_dir,
            log=log,
            console=console if trial is None or verbosity > 0 else Console(quiet=True),
            keeps_model=trial is None,
        )
        step = TrainingStep(recommender, config, total_steps=total_steps)
        monitor = MemoryMonitor(
            config.memory.monitor,
            recommender.tables,
            counts={
                name: prepared.vocabularies[recommender.vocabulary_of(name)].counts
                for name in recommender.row_maps
            },
            row_maps=recommender.row_maps,
            dims=recommender.dims,
            device=recommender.device,
            say=lambda text: console.print(text, highlight=False, soft_wrap=True, markup=False),
        )
        state = RunState(step, selection, log, monitor)
        if saved is not None:
            state.restore(saved)
        progress = Progress(
            total=config.train.epochs * epoch_rows - step.num_rows,
            unit="rows",
            description=trial or "train",
            verbosity=verbosity,
            console=console,
        )
        checkpoints = Checkpoints(
            run_dir / CHECKPOINTS,
            config.checkpoint if identified else CheckpointConfig(every_minutes=None),
            tables=recommender.tables,
            identity=identified or {},
            capture=state.capture,
            best=selection.path,
            resumed_step=resumed_step,
            processes=recommender.processes,
        )
        with checkpoints, progress:
            _train(prepared, config, state=state, log=log, checkpoints=checkpoints, bar=progress)
        return state, state.seconds


def _load_best(path: Path, recommender: Recommender) -> None:
    """Loads the best model; rows that were saved before memory ran short take their new formats."""
    saved = saved_formats(path)
    step = load_model(path, model=recommender.model, tables=recommender.tables, may_reencode=True)
    if saved != formats_of(recommender.tables.bands()):
        save_model(path, model=recommender.model, tables=recommender.tables, step=step)


def _report(
    config: RunConfig, prepared: Prepared, recommender: Recommender, *, verbosity: int
) -> dict[str, Any]:
    """What report.json says of the data and of the loaded model."""
    split = next(name for name in ("test", "valid", "train") if name in prepared.splits)
    tasks, seconds = evaluate_split(
        recommender, prepared, split, config=config, verbosity=verbosity
    )
    best_auc = read_best_auc(config.data.folder) if split == "test" else {}
    for name, metrics in tasks.items():
        metrics["best_reachable_auc"] = best_auc.get(name)
    return {
        "config": config.model_dump(mode="json"),
        "versions": _versions(),
        "tasks_split": split,
        "data": {
            **{f"{name}_rows": part.rows for name, part in prepared.splits.items()},
            "rows_by_rank": rows_by_rank(
                prepared.splits["train"].rows,
                batch_size=config.train.batch_size,
                world_size=recommender.processes.world_size,
            ),
            "counts": prepared.counts,
        },
        "tasks": tasks,
        "memory": memory_report(
            _table_bytes(config, recommender),
            peak_rss_bytes=peak_rss_bytes(),
            paging=recommender.tables.paging(),
        ),
        "sharing": sharing_report(config, prepared.vocabularies, recommender),
        "speed": {
            "prepare_seconds": prepared.seconds,
            "eval_rows_per_second": prepared.splits[split].rows / seconds,
        },
    }


def _process(recommender: Recommender) -> dict[str, int]:
    """What the report says of this process."""
    bands = recommender.tables.tables_state().values()
    return {
        "rank": recommender.processes.rank,
        "table_bytes": sum(rows.nbytes for table in bands for rows in table.values()),
        "peak_rss_bytes": peak_rss_bytes(),
    }


def _table_bytes(config: RunConfig, recommender: Recommender) -> list[TableBytes]:
    return report_bytes(
        recommender.tables,
        row_maps=recommender.row_maps,
        num_ids=recommender.num_ids,
        dims=recommender.dims,
        memory=config.memory,
        device=recommender.device,
    )


def _train(
    prepared: Prepared,
    config: RunConfig,
    *,
    state: RunState,
    log: MetricsLog,
    checkpoints: Checkpoints,
    bar: Progress,
) -> None:
    """Trains from the state's position to the end, or until selection stops it."""
    settings = config.train
    step, selection, monitor = state.step, state.selection, state.monitor
    reader = Reader(
        prepared,
        "train",
        batch_size=settings.batch_size,
        row_maps=step.recommender.row_maps,
        shuffle=config.data.shuffle,
        shuffle_rows=config.data.shuffle_rows,
        seed=settings.seed,
        training=True,
        rank=step.recommender.processes.rank,
        world_size=step.recommender.processes.world_size,
    )
    step.recommender.model.train()
    epochs = 0 if selection.should_stop else settings.epochs
    for epoch, batch in _epochs(step.recommender, reader, epochs, start=state.position):
        rows_before = step.num_rows
        loss = step(batch)
        state.position = Position(epoch, batch.end)
        bar.advance(step.num_rows - rows_before, loss=loss, note=monitor.text())
        if step.num_steps % LOG_EVERY_STEPS == 1:
            log.write(_train_line(config, state, epoch=epoch, loss=loss))
        if _evaluation_is_due(batch, step, reader.num_rows, settings.evaluate_every_steps):
            selection.update(step=step.num_steps, epoch=epoch)
        if monitor.is_short(step.num_steps):
            with checkpoints.paused():
                monitor.compress(step.num_steps)
        checkpoints.step_done(step.num_steps)
        if selection.should_stop or monitor.must_stop:
            break
    checkpoints.finish(step.num_steps)
    if monitor.must_stop:
        raise InputError(monitor.why_stopped(step.num_steps))


def _epochs(
    recommender: Recommender, reader: Reader, epochs: int, *, start: Position
) -> Iterator[tuple[int, Batch]]:
    for epoch in range(start.epoch, epochs):
        batches = reader.batches(epoch, start.row if epoch == start.epoch else 0)
        for batch in recommender.ahead(batches):
            yield epoch, batch


def _evaluation_is_due(
    batch: Batch, step: TrainingStep, epoch_rows: int, every_steps: int | None
) -> bool:
    if batch.end == epoch_rows:
        return True
    return every_steps is not None and step.num_steps % every_steps == 0


def _train_line(config: RunConfig, state: RunState, *, epoch: int, loss: float) -> dict[str, Any]:
    step = state.step
    return {
        "step": step.num_steps,
        "epoch": epoch,
        "rows": step.num_rows,
        "split": "train",
        "loss": loss,
        "losses": dict(zip(config.tasks, step.losses_T.tolist(), strict=True)),
        "rows_per_second": step.num_rows / state.seconds,
        "rss_bytes": rss_bytes(),
        "paging": step.recommender.tables.paging(),
        "memory": state.monitor.summary(),
    }


def _versions() -> dict[str, str]:
    versions = {"edorec": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):  # one of the two fbgemm wheels is there
            versions[name] = metadata.version(name)
    return versions
