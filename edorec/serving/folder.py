"""What a serving folder holds, and the checks before anything in it is used.

model.json          signature, tables, how columns are read, checksums, figures
MODEL_CARD.md       the same for people
dense.pt2           dense part (torch.export), without pickled objects
tables/*.rows       rows of one band each
index/*.npy         from hashes of ids to rows (``edorec.serving.index``)
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from edorec.errors import InputError
from edorec.serving.dense import pickled_parts

FORMAT = 1
MANIFEST, CARD, DENSE = "model.json", "MODEL_CARD.md", "dense.pt2"
TABLES, INDEX = "tables", "index"


def file_entries(folder: Path) -> dict[str, dict[str, Any]]:
    """Size and checksum of every file but the manifest, by relative name."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): {"bytes": path.stat().st_size, "sha256": _digest(path)}
        for path in paths
        if path.name != MANIFEST
    }


def read_manifest(folder: Path, *, verify: bool, unfinished: bool = False) -> dict[str, Any]:
    """The manifest of a sound folder.

    Args:
        folder: of the model.
        verify: read all files against their checksums; else tables, which are large, by size only.
        unfinished: its export has not been checked yet.

    Raises:
        InputError: if it is no such folder, a file is missing, damaged or unknown, or holds
            pickled objects.
    """
    path = folder / MANIFEST
    if not path.exists():
        raise InputError(f"{folder} holds no exported model ({MANIFEST} is missing)")
    try:
        manifest: dict[str, Any] = json.loads(path.read_text())
    except ValueError as error:
        raise InputError(f"{path} is damaged: {error}") from error
    if manifest.get("format") != FORMAT:
        raise InputError(
            f"{path} has format {manifest.get('format')}, this version of edorec reads {FORMAT}"
        )
    if "evaluation" not in manifest and not unfinished:
        raise InputError(f"{folder}: its export was not finished; export again")
    for name, entry in manifest["files"].items():
        _check_file(folder, name, entry, verify=verify or not name.startswith(f"{TABLES}/"))
    found = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    if unknown := sorted(found - {MANIFEST, *manifest["files"]}):
        raise InputError(f"{folder} holds a file that is not the model's: {unknown[0]}")
    if parts := pickled_parts(folder / DENSE):
        raise InputError(f"{folder / DENSE} holds pickled objects ({parts[0]}); not loaded")
    return manifest


def _check_file(folder: Path, name: str, entry: dict[str, Any], *, verify: bool) -> None:
    path = folder / name
    if not path.is_file():
        raise InputError(f"{folder} is incomplete: {name} is missing")
    size = path.stat().st_size
    if size != entry["bytes"]:
        raise InputError(
            f"{path} is damaged: it has {size} bytes, and {entry['bytes']} were written"
        )
    if verify and _digest(path) != entry["sha256"]:
        raise InputError(f"{path} is damaged: its checksum differs")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
