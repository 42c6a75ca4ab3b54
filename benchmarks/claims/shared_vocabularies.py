"""S4 and S8: sharing across tasks and features (and layers), against a table for each of them.

The claims: one vocabulary an entity with rows of single tasks takes half the memory at 1.2 % more
AUC (S4); share across tasks first, then within a task, then across layers (S8, guidance). The
baseline trains each task alone, with a table for each of its features, so it also has a dense part,
a learning rate and an early stop for each task; its bytes and seconds are those of all its runs.
Learning rates of the tables are chosen on the validation rows of the first seed, from the same grid
for each run of either side.
"""

from typing import Any

from benchmarks.claims import tied_layers
from benchmarks.claims.row import Options, Row, auc_figures, side, speed_figure, trained
from benchmarks.figures import Figure
from edorec.config import RunConfig, load_config
from edorec.data.schema import candidate_of, is_sequence

LEARNING_RATES = (0.05, 0.1, 0.2)
MARGIN = 0.0005
# Chosen on the validation rows for tasks together: what single tasks have of their own is rows of
# the ids that have labels enough to fill them; the loss of click, which has the most to learn from,
# weighs more where tasks would else pull its rows away.
TOGETHER = {
    "ecommerce": [
        "vocabularies.item.task_specific={cart: {rows: 2000, dim: 4}, buy: {rows: 2000, dim: 4}}",
        "tasks.click.loss_weight=3",
    ],
    "kuairand": [
        "vocabularies.video.task_specific={long_view: {rows: 1000, dim: 4}}",
        "tasks.click.loss_weight=1.4",
    ],
}
BOTH = {
    "ecommerce": ["model.head={name: shared_bottom, tower_hidden: [64, 32]}"],
    "kuairand": [],
}


def ecommerce(options: Options) -> Row:
    """S4 on the shop log."""
    return _row("S4 shared vocabularies, ecommerce", "ecommerce", options, [], [])[0]


def kuairand(options: Options) -> Row:
    """S4 on KuaiRand."""
    return _row("S4 shared vocabularies, kuairand", "kuairand", options, [], [])[0]


def levels(options: Options) -> Row:
    """S8: with Transformers over histories, whose neighbouring layers are one module."""
    name = "S8 sharing by level, KuaiRand"
    row, sharing = _row(name, tied_layers.CONFIG, options, tied_layers.UNTIED, tied_layers.TIED)
    for level, saved in sharing["saved_bytes"].items():
        row.figures.append(Figure(f"{name}: saved {level.replace('_', ' ')}", saved / 1e6, "MB"))
    back = sharing["task_specific_bytes"] / 1e6
    row.figures.append(Figure(f"{name}: given back as rows of single tasks", back, "MB"))
    return row


def _row(
    title: str, name: str, options: Options, apart: list[str], together: list[str]
) -> tuple[Row, dict[str, Any]]:
    """Trains both sides of a configuration with overrides; the row, and what sharing saved."""
    both = [f"train.num_threads={options.num_threads}", *BOTH[name]]
    shared = load_config(name, [*both, *TOGETHER[name], *together]).config
    whole = load_config(name, [*both, *apart]).config
    alone = [best_rate(separate(whole, task), options.seeds[0], task) for task in whole.tasks]
    shared = best_rate(shared, options.seeds[0], next(iter(whole.tasks)))
    pairs = []
    for seed in options.seeds:
        baseline = merged([trained(with_train(config, seed=seed)) for config in alone])
        pairs.append((baseline, trained(with_train(shared, seed=seed))))
        aucs = [[f"{m['auc']:.4f}" for m in report["tasks"].values()] for report in pairs[-1]]
        print(f"{title}, seed {seed}: {' '.join(aucs[0])} and {' '.join(aucs[1])}", flush=True)
    sizes = [pairs[0][k]["memory"]["total_bytes"] for k in (0, 1)]
    baseline_side, edorec_side = (
        side([pair[k] for pair in pairs], size=sizes[k], unit="bytes") for k in (0, 1)
    )
    saved = Figure(f"{title}: bytes of baseline's", sizes[1] / sizes[0], "ratio", at_most=0.5)
    figures = [saved, *auc_figures(title, pairs, margin=MARGIN), speed_figure(title, pairs)]
    return Row(title, baseline_side, edorec_side, figures), pairs[0][1]["sharing"]


def separate(config: RunConfig, task: str) -> RunConfig:
    """One task alone, with a table for each feature; a sequence needs that of its candidate."""
    settings = config.model_dump()
    sparse = config.features.sparse
    for name, feature in settings["features"]["sparse"].items():
        feature["vocabulary"] = candidate_of(name, sparse) if is_sequence(sparse[name]) else None
    settings["tasks"] = {task: settings["tasks"][task]}
    settings["vocabularies"] = {}
    settings["train"]["early_stopping"]["task"] = task
    return RunConfig.model_validate(settings)


def with_train(config: RunConfig, **values: Any) -> RunConfig:
    """The configuration with other values in its section ``train``."""
    return config.model_copy(update={"train": config.train.model_copy(update=values)})


def best_rate(config: RunConfig, seed: int, task: str) -> RunConfig:
    """The configuration with the learning rate of the tables that is best on validation."""
    candidates = [
        config.model_copy(
            update={"embedding": config.embedding.model_copy(update={"learning_rate": rate})}
        )
        for rate in LEARNING_RATES
    ]
    return max(
        candidates, key=lambda c: trained(with_train(c, seed=seed))["validation"][task]["auc"]
    )


def merged(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Runs of one task each as if they were one run."""
    seconds = sum(report["speed"]["train_seconds"] for report in reports)
    rows = max(r["speed"]["train_rows_per_second"] * r["speed"]["train_seconds"] for r in reports)
    return {
        "tasks": {task: m for report in reports for task, m in report["tasks"].items()},
        "memory": {"total_bytes": sum(report["memory"]["total_bytes"] for report in reports)},
        "speed": {"train_rows_per_second": rows / seconds},
    }
