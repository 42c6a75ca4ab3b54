"""Folders and files that are written: complete, or as they were before."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edorec.errors import InputError


@contextmanager
def output_folder(folder: Path, files: tuple[str, ...]) -> Iterator[Path]:
    """``FOLDER.new``, which takes the place of ``folder`` if all goes well and is removed if not.

    Args:
        folder: may hold ``files`` of an earlier run; they are replaced.
        files: names of what will be written.

    Raises:
        InputError: if ``folder`` holds anything else.
    """
    folder = folder.resolve()
    if folder.exists() and not all(path.name in files for path in folder.iterdir()):
        raise InputError(f"{folder} holds more than {', '.join(files)}; give another --out")
    temporary = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(temporary, ignore_errors=True)  # of a killed run
    try:
        temporary.mkdir(parents=True)
        yield temporary
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Keeps other processes that ask for the same out of a folder inside the block.

    Raises:
        InputError: if one is at work in it.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(f"another process is at work in {folder}") from error
        yield
    finally:
        os.close(handle)


@contextmanager
def work_folder(folder: Path, *, holds: str, what: str) -> Iterator[None]:
    """Makes the folder of long work and keeps other processes out of it inside the block.

    Args:
        folder: new, empty or with earlier work of the same kind.
        holds: a file that earlier work has.
        what: the work, for messages.

    Raises:
        InputError: if ``folder`` holds something else, or another process works there.
    """
    if folder.exists() and any(folder.iterdir()) and not (folder / holds).exists():
        raise InputError(
            f"the run folder {folder} is not empty and holds no {what} ({holds}); "
            "give another --run-dir"
        )
    folder.mkdir(parents=True, exist_ok=True)
    with locked_folder(folder):
        yield


def write_file(path: Path, text: str) -> None:
    """Writes ``text`` to a temporary name and renames it to ``path``."""
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
