"""Where compiled kernels are kept from one process to the next.

numba keeps them beside the code, or in the user's cache folder if the code cannot be written to. A
read-only installation without a home needs a folder of its own.
"""

import importlib
import os
from pathlib import Path

from edorec.errors import InputError

VARIABLE = "NUMBA_CACHE_DIR"
_KERNEL_MODULES = ("edorec.embedding.kernels.cpu", "edorec.serving.index")


def use_kernel_cache(folder: Path | None) -> None:
    """Keeps kernels in ``folder``, if given; before numba is imported.

    Raises:
        InputError: if it cannot be made or written to.
    """
    if folder is None:
        return
    probe = folder / f".{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(
            f"compiled kernels cannot be kept in {folder} ({error.strerror}); "
            f"name another folder with --kernel-cache or {VARIABLE}"
        ) from error
    os.environ[VARIABLE] = str(folder.resolve())


def load_kernels() -> None:
    """Imports the kernels, so that there being no place for them has a clear message.

    Raises:
        InputError: if neither the installation nor the user's cache folder can be written to.
    """
    try:
        for module in _KERNEL_MODULES:
            importlib.import_module(module)
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
        raise InputError(
            "compiled kernels can be kept neither beside the code nor in the user's cache folder; "
            f"name a folder that can be written to with --kernel-cache or {VARIABLE}"
        ) from error
