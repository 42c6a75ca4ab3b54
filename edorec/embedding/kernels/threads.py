"""Runs a compiled kernel on as many threads as torch uses.

Kernels release the interpreter lock and take (thread, number of threads), so plain Python threads
serve: no second OpenMP pool that spins beside torch's, and nothing that does not survive a fork
before the first use.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import torch


@lru_cache(maxsize=1)
def _pool(num_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(num_threads, thread_name_prefix="edorec-kernel")


def run_on_threads(kernel: Any, *args: Any) -> None:
    """Calls ``kernel(thread, num_threads, *args)`` for every thread, the first one here."""
    num_threads = torch.get_num_threads()
    if num_threads == 1:
        kernel(0, 1, *args)
        return
    pool = _pool(num_threads - 1)
    others = [
        pool.submit(kernel, thread, num_threads, *args) for thread in range(1, num_threads)
    ]
    kernel(0, num_threads, *args)
    for other in others:
        other.result()
