"""Faults that need two places of a configuration to see, found on the values as they were written.

They work on plain values, which may also have faults of their own, so that all problems are told at
once: what has the wrong type is passed over here.
"""

import difflib
from collections.abc import Iterator
from typing import Any

from edorec.config_file import show_key
from edorec.config_schema import Path
from edorec.data.schema import SEQUENCE_POOLINGS
from edorec.memory_use import parse_budget, parse_bytes
from edorec.models.config import TransformerConfig

Problem = tuple[Path, str]


def cross_check(values: dict[str, Any]) -> list[Problem]:
    """(key path, sentence) of every fault between keys."""
    checks = (
        _features,
        _vocabularies,
        _sequences,
        _task_specific,
        _labels,
        _tasks,
        _memory,
        _training,
    )
    return [problem for check in checks for problem in check(values)]


def near(name: str, names: list[str]) -> str:
    """``; did you mean X?`` for the nearest of ``names``, else a list of them (at most ten)."""
    match = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if match:
        return f"; did you mean {match[0]}?"
    shown = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
    return f"; there are {shown}" if names else ""


def _mapping(values: Any, *keys: str) -> dict[str, Any]:
    """The mapping at a key path, an empty one where there is none."""
    for key in keys:
        values = values.get(key) if isinstance(values, dict) else None
    return values if isinstance(values, dict) else {}


def _entries(values: dict[str, Any], *keys: str) -> dict[str, dict[str, Any]]:
    """The entries of a mapping of names that are mappings themselves."""
    entries = _mapping(values, *keys).items()
    return {name: entry for name, entry in entries if isinstance(entry, dict)}


def _text(entry: Any, key: str) -> str | None:
    """The text at a key of a mapping, None where there is none."""
    value = entry.get(key) if isinstance(entry, dict) else None
    return value if isinstance(value, str) else None


def _features(values: dict[str, Any]) -> Iterator[Problem]:
    sparse = _mapping(values, "features", "sparse")
    dense = _mapping(values, "features", "dense")
    features = values.get("features")
    if isinstance(features, dict) and not any(features.get(kind) for kind in ("sparse", "dense")):
        yield ("features",), "there are no features; give some under sparse or dense"
    for name in dense:
        if name in sparse:
            yield (
                ("features", "dense", name),
                f"{show_key(('features', 'sparse', name))} has the same name; features need "
                "different names (column says what they read)",
            )


def _used_vocabularies(values: dict[str, Any]) -> set[str]:
    features = _mapping(values, "features", "sparse")
    return {_text(feature, "vocabulary") or name for name, feature in features.items()}


def _vocabularies(values: dict[str, Any]) -> Iterator[Problem]:
    sparse = _entries(values, "features", "sparse")
    declared = _mapping(values, "vocabularies")
    given = {name: _text(feature, "vocabulary") for name, feature in sparse.items()}
    own = {name for name, vocabulary in given.items() if vocabulary in (None, name)}
    used = _used_vocabularies(values)
    names = [*declared, *(name for name in own if name not in declared)]
    for name, vocabulary in given.items():
        if vocabulary is not None and vocabulary != name and vocabulary not in names:
            yield (
                ("features", "sparse", name, "vocabulary"),
                f"there is no vocabulary {vocabulary}, nor a feature of that name that has its own"
                + near(vocabulary, names),
            )
    files = {name: _text(settings, "file") for name, settings in declared.items()}
    for name, feature in sparse.items():
        if feature.get("bins") is not None and files.get(given[name] or name) is not None:
            yield (
                ("vocabularies", given[name] or name, "file"),
                f"the ids of {name} are bins of training values, so no file has them",
            )
    for name, settings in declared.items():
        if name not in used and (settings is None or isinstance(settings, dict)):
            yield (
                ("vocabularies", name),
                "no feature uses this vocabulary" + near(name, sorted(used)),
            )


def _sequences(values: dict[str, Any]) -> Iterator[Problem]:
    sparse = _entries(values, "features", "sparse")
    pooling = {name: _text(feature, "pooling") for name, feature in sparse.items()}
    vocabulary = {name: _text(feature, "vocabulary") or name for name, feature in sparse.items()}
    for name, feature in sparse.items():
        path: Path = ("features", "sparse", name)
        if pooling[name] not in SEQUENCE_POOLINGS:
            if feature.get("candidate") is not None:
                yield (*path, "candidate"), "it is for lists with pooling din or transformer"
            continue
        fit = [
            other
            for other in sparse
            if vocabulary[other] == vocabulary[name] and pooling[other] not in SEQUENCE_POOLINGS
        ]
        given = _text(feature, "candidate")
        if given is not None and given not in fit:
            yield (
                (*path, "candidate"),
                f"{pooling[name]} attends from a feature of the list's own vocabulary, "
                f"{vocabulary[name]}, that is no such list itself" + near(given, fit),
            )
        elif given is None and len(fit) != 1:
            found = f"{', '.join(fit)} have it; name one as candidate" if fit else "there is none"
            yield (
                (*path, "pooling"),
                f"{pooling[name]} attends from another feature of vocabulary {vocabulary[name]}, "
                f"and {found}",
            )
        if feature.get("max_length") is None:
            yield (*path, "pooling"), f"{pooling[name]} needs a longest list; give max_length"
    settings = _mapping(values, "model", "transformer")
    default = TransformerConfig()
    layers = settings.get("num_layers", default.num_layers)
    shared = settings.get("share_layers", default.share_layers)
    if all(isinstance(n, int) and n > 0 for n in (layers, shared)) and layers % shared:
        yield (
            ("model", "transformer", "share_layers"),
            f"it must divide num_layers, which is {layers}",
        )


def _task_specific(values: dict[str, Any]) -> Iterator[Problem]:
    tasks = list(_mapping(values, "tasks"))
    features = _mapping(values, "features", "sparse")
    names = [*tasks, *features, *(_text(f, "vocabulary") or "" for f in features.values())]
    for vocabulary in _entries(values, "vocabularies"):
        for task in _mapping(values, "vocabularies", vocabulary, "task_specific"):
            path: Path = ("vocabularies", vocabulary, "task_specific", task)
            if tasks and task not in tasks:
                yield path, f"there is no task {task}" + near(task, tasks)
            for name in dict.fromkeys(name for name in names if "@" in name):
                yield path, f"its table is called {vocabulary}@{task}, so {name} may hold no @"


def _labels(values: dict[str, Any]) -> Iterator[Problem]:
    roles: dict[str | None, str] = {
        _text(task, "label"): f"the label of task {name}; a label"
        for name, task in _entries(values, "tasks").items()
    }
    roles.setdefault(_text(values.get("data"), "weight"), "the weight of rows; a weight")
    for kind in ("sparse", "dense"):
        for name, feature in _mapping(values, "features", kind).items():
            column = _text(feature, "column")
            role = roles.get(column or name)
            if role is not None:
                path: Path = ("features", kind, name, *(["column"] if column else []))
                yield path, f"column {column or name} is {role} cannot be a feature too"


def _tasks(values: dict[str, Any]) -> Iterator[Problem]:
    if _mapping(values, "train").get("task_weights") == "uncertainty":
        for name, task in _entries(values, "tasks").items():
            if task.get("loss_weight") not in (None, 1):
                yield (
                    ("tasks", name, "loss_weight"),
                    "train.task_weights is uncertainty, which learns the weights; leave it out",
                )
    head = _text(_mapping(values, "model", "head"), "name")
    if head == "esmm" and len(_mapping(values, "tasks")) == 1:
        yield (
            ("model", "head", "name"),
            "esmm multiplies the probabilities of a chain of tasks, such as click and buy, and "
            "there is one task",
        )
    vocabularies = _entries(values, "vocabularies").values()
    if head == "stem" and not any(entry.get("task_specific") for entry in vocabularies):
        yield (
            ("model", "head", "name"),
            "stem is for tasks with embeddings of their own; give vocabularies.NAME.task_specific, "
            "or use ple",
        )


def _memory(values: dict[str, Any]) -> Iterator[Problem]:
    memory = _mapping(values, "memory")
    yield from _storage(values, memory, ("memory",))
    for name, table in _entries(values, "memory", "tables").items():
        yield from _storage(values, table, ("memory", "tables", name))
    names = _used_vocabularies(values)
    for vocabulary in list(names):
        of_tasks = _mapping(values, "vocabularies", vocabulary, "task_specific")
        names |= {f"{vocabulary}@{task}" for task in of_tasks}
    for name in _mapping(values, "memory", "tables"):
        if name not in names:
            yield ("memory", "tables", name), "there is no such table" + near(name, sorted(names))
    if memory.get("budget") is not None:
        yield from _budget(memory)
    for section, key in (("disk", "resident"), ("monitor", "limit")):
        size = _mapping(memory, section).get(key)
        if isinstance(size, str):
            try:
                parse_bytes(size)
            except ValueError as error:
                yield ("memory", section, key), str(error)


def _budget(memory: dict[str, Any]) -> Iterator[Problem]:
    for key in ("format", "state", "bands"):
        if memory.get(key):
            yield (
                ("memory", key),
                f"memory.budget decides it; leave it out, or give memory.tables.NAME.{key} for "
                "tables that are to keep it",
            )
    try:
        parse_budget(memory["budget"])
    except ValueError as error:
        yield ("memory", "budget"), str(error)


def _storage(values: dict[str, Any], storage: dict[str, Any], prefix: Path) -> Iterator[Problem]:
    """Faults of formats, states and bands, of all tables or of one."""
    bands = storage.get("bands")
    entries = list(enumerate(bands)) if isinstance(bands, list) else []
    entries = [(k, band) for k, band in entries if isinstance(band, dict)]
    optimizer = _mapping(values, "embedding").get("optimizer", "rowwise_adagrad")
    places: list[tuple[Path, str | None]] = [((*prefix, "state"), _text(storage, "state"))]
    places += [((*prefix, "bands", k, "state"), _text(band, "state")) for k, band in entries]
    for path, state in places if isinstance(optimizer, str) else ():
        if state not in (None, "fp32") and optimizer != "rowwise_adagrad":
            yield path, f"{state} is for rowwise_adagrad, and embedding.optimizer is {optimizer}"
    formats: list[tuple[Path, str | None]] = [((*prefix, "format"), _text(storage, "format"))]
    formats += [((*prefix, "bands", k, "format"), _text(band, "format")) for k, band in entries]
    for path, row_format in formats if optimizer == "sgd" else ():
        if row_format == "ternary":
            yield (
                path,
                "ternary has the learning rate as its step, which is what Adagrad moves a value "
                "by, and embedding.optimizer is sgd",
            )
    for key in ("format", "state") if entries else ():
        if storage.get(key) is not None:
            yield (
                (*prefix, key),
                f"the bands have formats and states of their own; leave {key} out",
            )
    counts = [band.get("min_count", 0) for _, band in entries]
    if isinstance(bands, list) and len(counts) == len(bands):
        yield from _band_counts(counts, (*prefix, "bands"))


def _band_counts(counts: list[Any], prefix: Path) -> Iterator[Problem]:
    """Of the smallest counts of all bands; passed over where one is no count."""
    if not all(isinstance(count, int) and count >= 0 for count in counts):
        return
    for k in range(1, len(counts)):
        if counts[k] >= counts[k - 1]:
            path = (*prefix, k, "min_count")
            yield path, f"must be below that of the band before, {counts[k - 1]}, got {counts[k]}"
    if counts and counts[-1] != 0:
        path = (*prefix, len(counts) - 1, "min_count")
        yield path, f"the last band takes all other ids, so its min_count is 0, not {counts[-1]}"


def _training(values: dict[str, Any]) -> Iterator[Problem]:
    train, data = _mapping(values, "train"), _mapping(values, "data")
    stopping = _mapping(train, "early_stopping")
    tasks = list(_mapping(values, "tasks"))
    prefix = ("train", "early_stopping")
    task = _text(stopping, "task")
    if task is not None and tasks and task not in tasks:
        yield (*prefix, "task"), f"there is no task {task}" + near(task, tasks)
    if stopping.get("patience") is not None and data.get("valid") is None:
        yield (*prefix, "patience"), "early stopping needs validation files: give data.valid"
    if train.get("evaluate_every_steps") is not None and data.get("valid") is None:
        yield (
            ("train", "evaluate_every_steps"),
            "evaluation while training needs validation files: give data.valid",
        )
    if stopping.get("metric") == "gauc" and data.get("group") is None:
        yield (*prefix, "metric"), "gauc needs a column that groups rows: give data.group"
    if _mapping(values, "model").get("batch_norm") is True and train.get("batch_size") == 1:
        yield (
            ("model", "batch_norm"),
            "batch normalization needs at least two rows in a batch, and train.batch_size is 1",
        )
