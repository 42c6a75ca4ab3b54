"""The cache of prepared data: what its key covers; folders that appear complete or not at all."""

import hashlib
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edorec.data.prepared import FORMAT
from edorec.data.schema import DataConfig, FeaturesConfig, TaskConfig
from edorec.data.source import SourceFile, expand
from edorec.errors import InputError

NOT_ENCODED = {"pooling", "candidate"}  # what concerns the model alone


def cache_folder(data: DataConfig) -> Path:
    """The folder that ``data.cache`` names."""
    return Path(expand(data.cache, "data.cache"))


def shaping_settings(
    data: DataConfig, features: FeaturesConfig, tasks: Mapping[str, TaskConfig]
) -> dict[str, Any]:
    """The parts of the configuration that shape encoded rows."""
    return {
        "format": FORMAT,
        "features": {
            "sparse": {k: v.model_dump(exclude=NOT_ENCODED) for k, v in features.sparse.items()},
            "dense": {k: v.model_dump() for k, v in features.dense.items()},
        },
        "tasks": {name: {"label": task.label} for name, task in tasks.items()},
        "weight": data.weight,
        "group": data.group,
        "missing_columns": data.missing_columns,
    }


def cache_key(settings: Mapping[str, Any], files: Mapping[str, Sequence[SourceFile]]) -> str:
    """Key of prepared data: a hash of the settings and of every file's fingerprint."""
    prints = {split: [file.fingerprint for file in part] for split, part in files.items()}
    return hashlib.sha256(json.dumps([FORMAT, settings, prints]).encode()).hexdigest()[:24]


def remove_leftovers(cache: Path) -> None:
    """Removes the temporary folders of processes of this machine that have ended."""
    for folder in cache.glob(".new-*"):
        process, _, rest = folder.name.removeprefix(".new-").partition("-")
        machine = rest.rpartition("-")[0]
        if machine == platform.node() and process.isdecimal() and not _is_running(int(process)):
            shutil.rmtree(folder, ignore_errors=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's
    return True


@contextmanager
def new_folder(folder: Path, *, may_exist: bool = False) -> Iterator[Path]:
    """A temporary folder that becomes ``folder`` if all goes well.

    Its name, .new-PROCESS-MACHINE-RANDOM, tells ``remove_leftovers`` who writes it.

    Args:
        folder: to write.
        may_exist: another process may have written the same meanwhile, and is believed.

    Raises:
        InputError: if it cannot be written.
    """
    prefix = f".new-{os.getpid()}-{platform.node()}-"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
    except OSError as error:
        raise InputError(f"cannot write {folder}: {error}") from error
    try:
        yield temporary
        try:
            temporary.rename(folder)
        except OSError:
            if not (may_exist and folder.exists()):
                raise
    except OSError as error:
        raise InputError(f"cannot write {folder}: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
