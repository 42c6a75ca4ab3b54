"""Compiles the Triton kernels for GPUs that are not there; run by ``test_triton``.

Prints a line a kernel: name, compute capability, bytes of machine code.
"""

from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from edorec.embedding.kernels import triton_rows
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


def main() -> None:
    """Compiles them all."""
    for capability, block in ((80, 16), (90, 128)):
        for weighted in (False, True):
            look_up = {"HAS_WEIGHTS": weighted, "BLOCK": block}
            for kernel in (triton_rows.forward_kernel, triton_rows.collect_kernel):
                print(kernel.__name__, capability, compiled(kernel, capability, **look_up))
        for k, _ in enumerate(OPTIMIZERS):
            settings = {"OPTIMIZER": k, "KEEPS_IDLE": k % 2 == 0, "BLOCK": block}
            size = compiled(triton_rows.update_kernel, capability, **settings)
            print(triton_rows.update_kernel.__name__, capability, size)


if __name__ == "__main__":
    main()
