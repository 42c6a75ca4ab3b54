"""Checkpoints on disk: how one is written, checked, found and removed.

A checkpoint is a folder ``step-000001200``, written under another name and renamed when everything
in it is on disk::

    manifest.json   step, what the run must agree with, progress, bands; bytes and CRC-32 of files
    rows.bin        pages of the tables' memory (rows and optimizer state), in any order
    pages.bin       int64 number of each of those pages; see ``edorec.embedding.snapshot``
    rows-1.bin      those of the process of rank 1, and so on
    pages-1.bin
    state.pt        dense weights, dense optimizer, random-number state (torch, tensors only)
    best.pt         the best model so far: a hard link to that of the run

It is whole, or an increment: the pages that changed since the whole checkpoint that ``base`` names,
which lies beside it.
"""

import io
import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from edorec.embedding.snapshot import I64, U8, BandPages

VERSION = 3
MANIFEST, ROWS, PAGES, STATE, BEST = (
    "manifest.json",
    "rows.bin",
    "pages.bin",
    "state.pt",
    "best.pt",
)
NAME = re.compile(r"step-(\d{9,})")
LEAST_WHOLE = 2  # so that one damaged file never takes every checkpoint with it
CHUNK_BYTES = 1 << 22
SYNC_BYTES = 1 << 24  # so many are written, then synced and dropped from the system's cache

Say = Callable[[str], None]
Part = dict[str, Any]


@dataclass(frozen=True)
class Saved:
    """A sound checkpoint.

    Attributes:
        folder: where it is, until the run has saved newer ones.
        manifest: content of its manifest.json.
    """

    folder: Path
    manifest: dict[str, Any]

    @property
    def step(self) -> int:
        """Training steps that were done when it was saved."""
        return int(self.manifest["step"])


def step_folder(parent: Path, step: int) -> Path:
    """Where the checkpoint of a step is."""
    return parent / f"step-{step:09}"


def temporary_folder(folder: Path) -> Path:
    """Where a checkpoint is before it is complete, or while it is removed."""
    return folder.with_name(f"{folder.name}.tmp")


def part_file(name: str, rank: int) -> str:
    """Name of a process's own file: ``rows.bin``, ``rows-1.bin`` ..."""
    stem, ending = name.split(".")
    return f"{stem}-{rank}.{ending}" if rank else name


def write_part(
    folder: Path, *, rank: int, bands: list[BandPages], chunks: Iterable[tuple[I64, U8]]
) -> Part:
    """Writes a process's rows into the temporary folder of a checkpoint and syncs them to disk.

    Args:
        folder: of the checkpoint; its temporary folder is there.
        rank: of the process.
        bands: where rows are among the pages.
        chunks: numbers and bytes of pages.

    Returns:
        What the manifest says of it: its bands and files.
    """
    temporary = temporary_folder(folder)
    with (
        _SyncedFile(temporary / part_file(ROWS, rank)) as rows_file,
        _SyncedFile(temporary / part_file(PAGES, rank)) as pages_file,
    ):
        for pages, rows in chunks:
            rows_file.write(rows.data)
            pages_file.write(pages.data)
    files = {
        part_file(ROWS, rank): rows_file.summary(),
        part_file(PAGES, rank): pages_file.summary(),
    }
    return {"bands": [asdict(band) for band in bands], "files": files}


def complete_checkpoint(
    folder: Path, *, parts: list[Part], state: dict[str, Any], content: dict[str, Any]
) -> None:
    """Writes what is left of a checkpoint, syncs it to disk and gives the folder its name.

    Args:
        folder: of the checkpoint; its temporary folder is there and may hold ``best.pt``.
        parts: what ``write_part`` returned, by rank.
        state: for state.pt.
        content: for manifest.json, with ``step`` and ``base``.
    """
    temporary = temporary_folder(folder)
    files: dict[str, tuple[int, int | None]] = {}
    for part in parts:
        files |= part["files"]
    with _SyncedFile(temporary / STATE) as file:
        file.write(_saved(state))
    files[STATE] = file.summary()
    if (temporary / BEST).exists():  # synced when it was written
        files[BEST] = ((temporary / BEST).stat().st_size, None)
    manifest = {
        "version": VERSION,
        **content,
        "parts": [part["bands"] for part in parts],
        "files": files,
    }
    with _SyncedFile(temporary / MANIFEST) as file:
        file.write(memoryview(json.dumps(manifest).encode()))
    _sync(temporary)
    if folder.exists():  # of a run that was taken up again before this step
        remove_checkpoint(folder)
    temporary.rename(folder)
    _sync(folder.parent)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Content of manifest.json.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it is damaged or of another version.
    """
    manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
    if manifest["version"] != VERSION:
        raise ValueError(f"version {manifest['version']}, and this edorec reads {VERSION}")
    return manifest


def find_damage(folder: Path) -> str | None:
    """Why a checkpoint cannot be loaded, None if it can; reads every byte of it and of its base."""
    try:
        manifest = read_manifest(folder)
        for name, (size, checksum) in manifest["files"].items():
            found = (folder / name).stat().st_size
            if found != size:
                return f"{name} has {found:,} bytes instead of {size:,}"
            if checksum is not None and _checksum(folder / name) != checksum:
                return f"{name} has another checksum than it was written with"
        base = manifest["base"]
        damage = base and find_damage(folder.with_name(base))
    except OSError as error:
        return f"{Path(error.filename or '').name} cannot be read ({error.strerror})"
    except (ValueError, KeyError) as error:
        return f"{MANIFEST} is damaged ({error})"
    return f"{base}, which it needs, is damaged: {damage}" if damage else None


def steps_of(parent: Path) -> list[int]:
    """Steps of the checkpoints under a folder, in order; none is opened."""
    names = (path.name for path in parent.iterdir()) if parent.is_dir() else ()
    return sorted(int(match[1]) for name in names if (match := NAME.fullmatch(name)))


def newest_checkpoint(parent: Path, say: Say) -> Saved | None:
    """The newest complete checkpoint, None if there is none; says which ones it passes over."""
    for step in reversed(steps_of(parent)):
        folder = step_folder(parent, step)
        damage = find_damage(folder)
        if damage is None:
            return Saved(folder, read_manifest(folder))
        say(f"skipped the checkpoint {folder}: {damage}")
    return None


def put_aside(parent: Path, *, after_step: int) -> None:
    """Renames checkpoints after a step to ``.damaged``: the run will come to their steps again."""
    for step in steps_of(parent):
        if step > after_step:
            folder = step_folder(parent, step)
            aside = folder.with_name(f"{folder.name}.damaged")
            shutil.rmtree(aside, ignore_errors=True)
            folder.rename(aside)


def remove_leftovers(parent: Path) -> None:
    """Removes what a killed process left unfinished."""
    for path in parent.glob("step-*.tmp"):
        shutil.rmtree(path)


def prune(parent: Path, keep: int) -> None:
    """Removes old checkpoints.

    Kept are the newest ``keep``, those that they need, and the two newest whole ones.
    """
    steps = steps_of(parent)
    bases = {step: read_manifest(step_folder(parent, step))["base"] for step in steps}
    whole = [step for step in steps if bases[step] is None]
    kept = {*steps[-keep:], *whole[-LEAST_WHOLE:]}
    needed = {bases[step] for step in kept}
    for step in steps:
        folder = step_folder(parent, step)
        if step not in kept and folder.name not in needed:
            remove_checkpoint(folder)


def remove_checkpoint(folder: Path) -> None:
    """Removes a checkpoint, which never looks complete while that goes on."""
    doomed = folder.with_name(f"{folder.name}.old.tmp")
    shutil.rmtree(doomed, ignore_errors=True)
    folder.rename(doomed)
    shutil.rmtree(doomed)


class _SyncedFile:
    """A new file with the checksum of what is written to it; on disk when the block ends.

    A large file goes to the disk a part after the other, and each part's pages in the system's
    cache are used again by the next: to fill new ones would take several times as long.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)
        self._checksum = 0
        self._size = self._synced_size = 0

    def __enter__(self) -> "_SyncedFile":
        return self

    def write(self, data: memoryview) -> None:
        """Appends bytes."""
        data = data.cast("B")
        self._checksum = zlib.crc32(data, self._checksum)
        self._size += data.nbytes
        while data:  # without a buffer, a write may take a part
            data = data[self._file.write(data) :]
        if self._size - self._synced_size >= SYNC_BYTES:
            os.fdatasync(self._file.fileno())
            os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            self._synced_size = self._size

    def summary(self) -> tuple[int, int]:
        """Bytes and CRC-32."""
        return self._size, self._checksum

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._file:
            if kind is None:
                os.fsync(self._file.fileno())


def _saved(state: dict[str, Any]) -> memoryview:
    stream = io.BytesIO()
    torch.save(state, stream)
    return stream.getbuffer()


def _checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while data := file.read(CHUNK_BYTES):
            checksum = zlib.crc32(data, checksum)
    return checksum


def _sync(folder: Path) -> None:
    """Makes the names in a folder last."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
