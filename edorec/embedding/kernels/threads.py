"""Runs a compiled kernel on torch's own threads.

numba's parallel loops would bring a second OpenMP library with threads of its own. Those of torch
spin for a while after each operation, so two pools take turns on the same cores: a look-up of
1 ms took 5 ms between two matrix products. So kernels are C functions that take work units from a
counter until none is
left, and torch's OpenMP library calls them on every thread of its team.
"""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numba import types
from numba.extending import intrinsic

from edorec.embedding.kernels.primitives import POINTER

# A kernel: takes its packed arguments.
SIGNATURE = types.void(POINTER(types.int64))


def pack(*arguments: np.ndarray | int) -> np.ndarray:
    """Arguments of a kernel, int64: a zeroed counter, then addresses of arrays, and numbers.

    The caller keeps the arrays alive; kernels see them without gaps.
    """
    addresses = [a if isinstance(a, int) else a.ctypes.data for a in arguments]
    return np.array([0, *addresses], np.int64)


def run_on_threads(kernel: Any, packed: np.ndarray) -> None:
    """Calls a compiled kernel on as many threads as torch uses, until its units are done."""
    _parallel()(kernel.address, packed.ctypes.data, torch.get_num_threads(), 0)


@cache
def _parallel() -> Any:
    """``GOMP_parallel(function, data, num_threads, flags)`` of the library that torch has loaded.

    Raises:
        OSError: if torch was not built with OpenMP.
    """
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    try:
        parallel = library.GOMP_parallel
    except AttributeError as error:
        raise OSError("this build of torch has no OpenMP, which edorec's kernels need") from error
    parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    parallel.restype = None
    return parallel


def _next_unit(_context: Any, _counter: Any) -> Any:
    """Takes the next number of a counter that all threads share."""

    def codegen(_target: Any, builder: Any, _signature: Any, args: Any) -> Any:
        one = args[0].type.pointee(1)
        return builder.atomic_rmw("add", args[0], one, "monotonic")

    return types.int64(POINTER(types.int64)), codegen


next_unit: Any = intrinsic(_next_unit)
