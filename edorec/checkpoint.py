"""Files that hold a model: dense weights and tables, written whole or not at all."""

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from edorec.embedding.bands import Formats, band_of, formats_of
from edorec.embedding.build import EmbeddingTables
from edorec.embedding.storage import forget_pages
from edorec.embedding.whole_tables import State, gather_tables, rows_of_shard
from edorec.errors import InputError
from edorec.processes import ONE, Processes

VERSION = 1
COPIED_ROWS = 1 << 18

# By table or group and name of a band or weight, its tensors in order.
Pieces = dict[str, dict[str, list[torch.Tensor]]]


def save_model(
    path: Path,
    *,
    model: nn.Module,
    tables: EmbeddingTables,
    step: int,
    processes: Processes = ONE,
) -> None:
    """Writes a model to a temporary name, syncs it to disk and renames it to ``path``.

    Of several processes the first writes it, with the rows of all.

    Raises:
        InputError: if the disk is full or cannot be written; ``path`` is then what it was before.
    """
    state = gather_tables(tables, processes)
    content = {
        "version": VERSION,
        "step": step,
        "dense": model.state_dict(),
        "tables": state,
        "formats": formats_of(tables.bands()),
    }
    with tables.in_order():
        processes.from_first(lambda: _write(path, content))


def _write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except (OSError, RuntimeError) as error:  # torch's writer has errors of its own
        temporary.unlink(missing_ok=True)
        raise InputError(f"{path} could not be written: {error}") from error


def load_model(
    path: Path, *, model: nn.Module, tables: EmbeddingTables, may_reencode: bool = False
) -> int:
    """Loads a model in place and returns the training step it was saved at.

    Args:
        path: of the file.
        model: dense weights.
        tables: of the same rows.
        may_reencode: whether rows may be in other formats than the tables, which they then take.

    Raises:
        InputError: if the file is missing or damaged, or holds other tables or shapes.
    """
    content = read_model(path)
    live = {name: _pieces(state) for name, state in tables.tables_state().items()}
    held = _held(content["tables"], tables)
    saved = {name: _pieces(state) for name, state in held.items()}
    is_same = not may_reencode or content.get("formats") == formats_of(tables.bands())
    problems = _differences(saved, live) if is_same else []
    there, here = (
        {"dense": {name: [weight] for name, weight in weights.items()}}
        for weights in (content["dense"], model.state_dict())
    )
    problems += _differences(there, here)
    if problems:
        raise InputError(f"{path} does not fit this configuration: " + "; ".join(problems))
    if not is_same:
        tables.take_rows(content["tables"])
    with tables.in_order():
        for table, bands in live.items() if is_same else ():
            for key, pieces in bands.items():
                _copy(pieces, saved[table][key])
    model.load_state_dict(content["dense"])
    return int(content["step"])


def _pieces(tensors: Mapping[str, torch.Tensor]) -> dict[str, list[torch.Tensor]]:
    """The pieces of each band, in order."""
    pieces: dict[str, list[torch.Tensor]] = {}
    for key, tensor in tensors.items():
        pieces.setdefault(band_of(key), []).append(tensor)
    return pieces


def _copy(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """Copies the rows of a band, which may be cut into other pieces on either side.

    Copies a part of a mapped file after the other, so that it is never in memory as a whole.
    """
    left = [[piece for piece in pieces if len(piece)] for pieces in (targets, sources)]
    while all(left):
        target, source = (pieces.pop(0) for pieces in left)
        size = min(len(target), len(source), COPIED_ROWS)
        target[:size].copy_(source[:size])
        forget_pages(source[:size])
        for pieces, piece in zip(left, (target, source), strict=True):
            if size < len(piece):
                pieces.insert(0, piece[size:])


def saved_formats(path: Path) -> Formats | None:
    """Formats of the tables of a model's file, None where it does not name them.

    Raises:
        InputError: see ``read_model``.
    """
    formats: Formats | None = read_model(path).get("formats")
    return formats


def read_model(path: Path) -> dict[str, Any]:
    """Content of a model's file (step, dense, tables), its tensors mapped into memory.

    Raises:
        InputError: if the file is missing or damaged.
    """
    if not path.exists():
        raise InputError(f"{path}: no such checkpoint")
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise InputError(f"{path}: not a complete checkpoint ({error})") from error
    if content.get("version") != VERSION:
        raise InputError(f"{path}: checkpoint version {content.get('version')}, wanted {VERSION}")
    return content


def _held(saved: State, tables: EmbeddingTables) -> State:
    """Of saved tables the rows that this process holds."""
    shards, held = tables.shards(), {}
    for name, bands in saved.items():
        if name in shards:
            held[name] = rows_of_shard(bands, shards[name])
        elif name not in tables.table_names:
            held[name] = bands
    return held


def _differences(saved: Pieces, live: Pieces) -> list[str]:
    saved_shapes = _shapes(saved)
    live_shapes = _shapes(live)
    problems = []
    for name in sorted(saved_shapes.keys() | live_shapes.keys()):
        have, want = saved_shapes.get(name), live_shapes.get(name)
        if have != want:
            problems.append(f"{name} is {have or 'absent'} there and {want or 'absent'} here")
    return problems


def _shapes(groups: Pieces) -> dict[str, str]:
    return {
        f"{group}.{name}": _shape(pieces)
        for group, tensors in groups.items()
        for name, pieces in tensors.items()
    }


def _shape(pieces: list[torch.Tensor]) -> str:
    dtype = str(pieces[0].dtype).removeprefix("torch.")
    if not pieces[0].shape:
        return f"{dtype} ()"
    return f"{dtype} {(sum(map(len, pieces)), *pieces[0].shape[1:])}"
