"""Metrics of a model on a split, while training and for a finished run."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from edorec.checkpoint import load_model, saved_formats
from edorec.config import RunConfig, load_config
from edorec.data.batch import Batch, without_ids
from edorec.data.prepare import Prepared, load_prepared, prepare_extra
from edorec.data.reader import Reader
from edorec.devices import dense_arithmetic, pick_device, set_num_threads
from edorec.errors import InputError
from edorec.metrics import TaskMetrics
from edorec.progress import Progress
from edorec.recommender import Recommender, build_recommender

NUM_FREQUENCY_FEATURES = 3


def frequency_features(config: RunConfig, prepared: Prepared) -> tuple[str, ...]:
    """Scalar features, one for each of the largest vocabularies; AUC by frequency is theirs."""
    largest: dict[str, str] = {}
    for name in config.features.sparse:
        if name not in prepared.list_features:
            largest.setdefault(prepared.feature_vocabulary[name], name)
    by_size = sorted(largest, key=lambda name: (-prepared.vocabularies[name].num_ids, name))
    return tuple(largest[name] for name in by_size[:NUM_FREQUENCY_FEATURES])


@torch.no_grad()
def evaluate_batches(
    recommender: Recommender,
    batches: Iterable[Batch],
    *,
    config: RunConfig,
    frequency_features: tuple[str, ...],
    spill_folder: Path,
    progress: Progress,
) -> dict[str, dict[str, Any]]:
    """Metrics of every task over ``batches`` of all processes, by task name."""
    metrics = [
        TaskMetrics(
            name,
            sampling_rate=task.sampling_rate,
            frequency_features=frequency_features,
            spill_folder=spill_folder,
        )
        for name, task in config.tasks.items()
    ]
    was_training = recommender.model.training
    recommender.model.eval()
    with dense_arithmetic(config.train.eval_precision, recommender.device):
        for batch in recommender.ahead(batches):
            logits_BT = recommender.logits(batch).float().cpu()
            for part_BT, part in recommender.processes.gather((logits_BT, without_ids(batch))):
                for index, task_metrics in enumerate(metrics):
                    task_metrics.update(
                        part_BT[:, index],
                        part.labels_BT[:, index],
                        weights_B=part.weights_B,
                        groups_B=part.groups_B,
                        deciles_BK=part.deciles_BK,
                        unseen_B=part.unseen_B,
                    )
                progress.advance(len(part))
    recommender.model.train(was_training)
    return recommender.processes.from_first(
        lambda: {name: metric.compute() for name, metric in zip(config.tasks, metrics, strict=True)}
    )


def evaluate_split(
    recommender: Recommender,
    prepared: Prepared,
    split: str,
    *,
    config: RunConfig,
    verbosity: int,
) -> tuple[dict[str, dict[str, Any]], float]:
    """Metrics of every task on a split of prepared data, and the seconds it took."""
    features = frequency_features(config, prepared)
    reader = Reader(
        prepared,
        split,
        batch_size=config.train.eval_batch_size,
        row_maps=recommender.row_maps,
        shuffle=False,
        shuffle_rows=config.data.shuffle_rows,
        seed=config.train.seed,
        frequency_features=features,
        training=False,
        rank=recommender.processes.rank,
        world_size=recommender.processes.world_size,
    )
    started = time.perf_counter()
    with Progress(
        total=prepared.splits[split].rows,
        unit="rows",
        description=f"evaluate {split}",
        verbosity=verbosity,
    ) as progress:
        metrics = evaluate_batches(
            recommender,
            reader.batches(epoch=0),
            config=config,
            frequency_features=features,
            spill_folder=Path(config.data.cache),
            progress=progress,
        )
    return metrics, time.perf_counter() - started


def evaluate(
    run_dir: Path, *, files: list[str] | None, split: str, verbosity: int
) -> dict[str, Any]:
    """Evaluates the best model of a finished run.

    Ids are looked up in the run's own vocabularies, so a row's score depends on nothing else.

    Args:
        run_dir: folder of the run.
        files: Parquet files to score; default those of ``split`` in the run's configuration.
        split: train, valid or test.
        verbosity: -1 quiet, 0 normal, 1 verbose.

    Returns:
        ``{"run", "files", "rows", "tasks": {task: metrics}, "counts"}``.

    Raises:
        InputError: if the folder holds no finished run or the data do not fit it.
    """
    if not (run_dir / "config.yaml").exists():
        raise InputError(f"{run_dir} holds no run (config.yaml is missing)")
    config = load_config(str(run_dir / "config.yaml"), []).config
    chosen = files or getattr(config.data, split)
    if chosen is None:
        raise InputError(
            f"data.{split} is not set in {run_dir / 'config.yaml'}; pass files with --data"
        )
    set_num_threads(config.train.num_threads)
    device = pick_device(config.train.device)
    prepared = prepare_extra(
        load_prepared(run_dir / "vocabularies"), chosen, data=config.data, split=split
    )
    best = run_dir / "checkpoints" / "best.pt"
    recommender = build_recommender(
        config, prepared.vocabularies, device=device, formats=saved_formats(best)
    )
    load_model(best, model=recommender.model, tables=recommender.tables)
    metrics, _ = evaluate_split(recommender, prepared, split, config=config, verbosity=verbosity)
    return {
        "run": str(run_dir),
        "files": chosen,
        "rows": prepared.splits[split].rows,
        "tasks": metrics,
        "counts": prepared.counts,
    }
