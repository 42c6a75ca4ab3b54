"""Compiles the Triton kernels for GPUs that are not there; run by ``test_triton``.

Prints a line a kernel: name, compute capability, bytes of machine code.
"""

from collections.abc import Iterator
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from edorec.embedding.kernels import triton_rows, triton_staging
from edorec.embedding.optimizers import OPTIMIZERS

NUMBERS = {"rate", "decay", "moment_correction", "square_correction"}
FLOATS = {"weights", "out", "scales", "gradients", "levels"}


def compiled(kernel: Any, capability: int, **constants: Any) -> int:
    """Size of a kernel's machine code."""
    types = {}
    for name in kernel.arg_names:
        if name in constants:
            types[name] = "constexpr"
        elif name in NUMBERS:
            types[name] = "fp32"
        else:
            types[name] = "*fp32" if name in FLOATS else "*i32" if name == "wrong" else "*i64"
    source = ASTSource(kernel, signature=types, constexprs=constants)
    target = GPUTarget("cuda", capability, 32)
    return len(triton.compile(source, target=target, options=triton_rows.OPTIONS).asm["cubin"])


def cases(block: int) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Kernels with their constants."""
    for flag in (False, True):
        constants = {"HAS_WEIGHTS": flag, "BLOCK": block}
        yield triton_rows.forward_kernel, {**constants, "HAS_STAGED": flag}
        yield triton_rows.collect_kernel, constants
    for k, _ in enumerate(OPTIMIZERS):
        constants = {"KEEPS_IDLE": k % 2 == 0, "HAS_STAGED": k % 4 < 2}
        yield triton_rows.update_kernel, {"OPTIMIZER": k, "BLOCK": block, **constants}
    yield triton_rows.write_back_kernel, {"NUM_COPIES": 2, "BLOCK": triton_rows.BYTES_PER_BLOCK}
    yield triton_staging.find_kernel, {}
    yield triton_staging.stage_kernel, {"BLOCK": triton_rows.BYTES_PER_BLOCK}


def main() -> None:
    """Compiles them all."""
    for capability, block in ((80, 16), (90, 128)):
        for kernel, constants in cases(block):
            print(kernel.__name__, capability, compiled(kernel, capability, **constants))


if __name__ == "__main__":
    main()
