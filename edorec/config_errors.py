"""Sentences for what pydantic finds wrong, and the key that a wrong key was meant to be."""

import difflib
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from edorec.config_file import Source, show, show_key
from edorec.config_schema import ANY_ITEM, ANY_NAME, Path, find, walk, wanted
from edorec.sections import Section

# Names from other programs for keys that are spelt quite differently here.
ALIASES = {
    "lr": "train.learning_rate",
    "wd": "train.weight_decay",
    "l2": "train.weight_decay",
    "bs": "train.batch_size",
    "batch": "train.batch_size",
    "num_epochs": "train.epochs",
    "max_epochs": "train.epochs",
    "random_seed": "train.seed",
    "grad_clip": "train.clip_norm",
    "max_grad_norm": "train.clip_norm",
    "threads": "train.num_threads",
    "precision": "train.matmul_precision",
    "amp": "train.matmul_precision",
    "embedding_dim": "embedding.dim",
    "emb_dim": "embedding.dim",
    "train_path": "data.train",
    "valid_path": "data.valid",
    "validation": "data.valid",
    "val": "data.valid",
    "path": "data.folder",
    "root": "data.folder",
    "group_column": "data.group",
    "sample_weight": "data.weight",
    "weight_column": "data.weight",
    "labels": "tasks",
    "targets": "tasks",
    "target": "tasks.*.label",
    "tables": "vocabularies",
    "table": "features.sparse.*.vocabulary",
    "vocab": "features.sparse.*.vocabulary",
    "combiner": "features.sparse.*.pooling",
    "max_len": "features.sparse.*.max_length",
    "min_freq": "vocabularies.*.min_count",
    "min_frequency": "vocabularies.*.min_count",
    "categorical": "features.sparse",
    "numeric": "features.dense",
    "mlp": "model.backbone.hidden",
    "hidden_units": "model.backbone.hidden",
    "experts": "model.head.num_experts",
}


def validation_problems(
    root: type[Section], source: Source, error: ValidationError
) -> list[tuple[Path, str]]:
    """(key path, sentence) for everything that pydantic found, one for each key."""
    found: dict[Path, str] = {}
    for detail in error.errors(include_url=False, include_context=False):
        path = _real_path(source.values, detail)
        key = find(root, path)
        if detail["type"].startswith("union_tag") and key and key.default_choice:
            path = (*path, key.default_choice[0])
        if path not in found:
            found[path] = _sentence(root, source, path, detail=detail)
    # A wrong item of a list is also told for the whole, as no text: drop that.
    outer = {path[:-1] for path in found if isinstance(path[-1], int)}
    return [(path, sentence) for path, sentence in found.items() if path not in outer]


def unknown_key(root: type[Section], path: Path, *, value: Any, values: dict[str, Any]) -> str:
    """The sentence for a key that does not exist, with the nearest one that does."""
    if find(root, path):
        choice = _dig(values, path[:-1])["name"]
        return f"{choice} takes no {path[-1]}"
    guess = nearest_key(root, path, value=value, values=values)
    return f"unknown key; did you mean {guess}?" if guess else "unknown key"


def nearest_key(
    root: type[Section], path: Path, *, value: Any, values: dict[str, Any]
) -> str | None:
    """The key that a wrong key was probably meant to be, as a full path.

    In this order: a sibling of like name; an entry of a mapping of names that was put one level too
    high; a known alias; the same last part elsewhere; a like last part elsewhere.
    """
    last = str(path[-1])
    places = (
        key.path for key in walk(root) if key.path[-1] != ANY_NAME and ANY_ITEM not in key.path
    )
    keys = [key for key in places if _shared(key, path) < len(key)]
    siblings = [key for key in keys if len(key) == len(path) and _shared(key, path) == len(key) - 1]
    alias = ALIASES.get(last.lower())
    alias_path = tuple(alias.split(".")) if alias else ()
    steps = (
        [key for key in siblings if alias_path and key[-1] == alias_path[-1]],
        _like(last, siblings, cutoff=0.65),
        _as_entry(root, path, value=value),
        [alias_path] if alias_path else [],
        [key for key in keys if key[-1] == last.lower()],
        _like(last, keys, cutoff=0.75),
    )
    candidates = next((step for step in steps if step), [])
    if not candidates:
        return None
    best = max(candidates, key=lambda key: _rank(key, path))
    return show_key(_named(best, path, values=values))


def _like(last: str, keys: list[tuple[str, ...]], *, cutoff: float) -> list[tuple[str, ...]]:
    names = {key[-1] for key in keys}
    near = difflib.get_close_matches(last.lower(), sorted(names), n=1, cutoff=cutoff)
    if not near and len(last) >= 3:
        near = [name for name in names if name.startswith(last.lower())]
    return [key for key in keys if key[-1] in near]


def _as_entry(root: type[Section], path: Path, *, value: Any) -> list[tuple[str, ...]]:
    """Mappings of names at or below the place of ``path`` whose entries look like ``value``."""
    if not isinstance(value, dict) or not value:
        return []
    found = []
    for key in walk(root):
        at_hand = _shared(key.path, path) >= min(len(path) - 1, len(key.path))
        if (
            key.entry
            and at_hand
            and key.path != path[:-1]
            and set(value) <= set(key.entry.model_fields)
        ):
            found.append((*key.path, ANY_NAME))
    return found


def _shared(key: tuple[str, ...], path: Path) -> int:
    """How many leading parts agree."""
    count = 0
    for mine, given in zip(key, path, strict=False):
        if mine not in (ANY_NAME, given):
            break
        count += 1
    return count


def _rank(key: tuple[str, ...], path: Path) -> tuple[int, bool, bool, bool, int]:
    """Prefers keys near ``path``, then those that need no name, then ``train``, then short ones.

    What is said of an id feature by mistake is most likely meant for its vocabulary.
    """
    of_table = path[:2] == ("features", "sparse") and key[0] == "vocabularies"
    return _shared(key, path), of_table, ANY_NAME not in key, key[0] == "train", -len(key)


def _named(key: tuple[str, ...], path: Path, *, values: dict[str, Any]) -> tuple[str, ...]:
    """``key`` with the user's name in place of ``*`` where it can be told."""
    name = "NAME"
    if key[-1] == ANY_NAME:
        name = str(path[-1])
    elif path[:2] == ("features", "sparse") and len(path) > 3:
        name = str(path[2])
        if key[0] == "vocabularies":
            feature = values["features"]["sparse"][name]
            name = str(feature.get("vocabulary") or name)
    elif path[0] == key[0] and len(path) >= len(key):
        name = str(path[len(key) - 2])
    return tuple(name if part == ANY_NAME else part for part in key)


def _real_path(values: dict[str, Any], detail: ErrorDetails) -> Path:
    """The key path of an error: its ``loc`` without the labels that pydantic adds for unions."""
    path: list[str | int] = []
    here: Any = values
    for part in detail["loc"]:
        is_key = isinstance(here, dict) and part in here
        if is_key or (isinstance(here, list) and isinstance(part, int)):
            here = here[part]
        elif detail["type"] != "missing" or part != detail["loc"][-1]:
            continue
        path.append(part)
    return tuple(path)


def _sentence(root: type[Section], source: Source, path: Path, *, detail: ErrorDetails) -> str:
    value = detail["input"]
    if detail["type"] == "missing":
        return f"required and not given; wanted {wanted(root, path)}"
    if detail["type"] == "extra_forbidden":
        return unknown_key(root, path, value=value, values=source.values)
    text = f"wanted {wanted(root, path)}, got {show(_dig(source.values, path))}"
    key = find(root, path)
    if key is not None and key.path[-1] == ANY_NAME:
        # Not an entry of that name but, most likely, a key that belongs elsewhere.
        guess = nearest_key(root, path, value=value, values=source.values)
        text += f"; did you mean {guess}?" if guess else ""
    return text


def _dig(values: Any, path: Path) -> Any:
    for part in path:
        values = values[part]
    return values
