"""Row formats by name. A new one is a module here and a line in ``FORMATS``."""

from functools import cache

import numpy as np

from edorec.embedding.formats import fp16, fp32, int2, int4, int8, sparse28, ternary
from edorec.embedding.formats.row_format import RowFormat
from edorec.embedding.kernels.layout import FORMAT_BITS, index_of

FORMATS: dict[str, RowFormat] = {
    "fp32": fp32.FORMAT,
    "fp16": fp16.FORMAT,
    "int8": int8.FORMAT,
    "int4": int4.FORMAT,
    "int2": int2.FORMAT,
    "sparse28": sparse28.FORMAT,
    "ternary": ternary.with_step(ternary.STEP),
}
SELF_SCALED = tuple(name for name, row_format in FORMATS.items() if not row_format.step)


@cache
def format_of(name: str) -> RowFormat:
    """The format of a name: a key of ``FORMATS``, or ``ternary:STEP``.

    Raises:
        ValueError: if there is none.
    """
    kind, _, step = name.partition(":")
    if kind not in FORMATS or (step and kind in SELF_SCALED):
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {name}")
    return ternary.with_step(float(step)) if step else FORMATS[kind]


def kind_of(name: str) -> str:
    """The name without a step: ``ternary`` of ``ternary:0.2``."""
    return name.partition(":")[0]


def format_code(name: str) -> int:
    """The number of a format, with its step above, as kernels know it; see ``kernels.layout``."""
    step = int(np.float32(format_of(name).step).view(np.uint32))
    return index_of(list(FORMATS), kind_of(name)) | (step << FORMAT_BITS)
