"""The Triton kernel: under Triton's interpreter as the reference, and compiled for GPUs.

Without a GPU the kernels run on CPU tensors; compiling needs none either.
"""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.embedding.test_kernels import COVERING, Shape, check_like_the_reference

if find_spec("triton") is None:
    pytest.skip("Triton is not installed: pip install triton", allow_module_level=True)

small_shapes = st.builds(
    Shape,
    rows=st.tuples(*[st.sampled_from([1, 2, 9])] * 3),
    dims=st.tuples(*[st.sampled_from([1, 2, 3, 8, 16, 33, 128])] * 3),
    batch_size=st.sampled_from([0, 1, 3]),
    longest=st.integers(0, 3),
    weighted=st.booleans(),
    seed=st.integers(0, 2**32),
)


@pytest.mark.parametrize(
    ("row_format", "optimizer", "state", "qat"), COVERING, ids=lambda value: str(value)
)
@given(shape=small_shapes, weight_decay=st.sampled_from([0.0, 0.5]))
@settings(max_examples=2, deadline=None)
def test_triton_does_as_the_reference(
    shape: Shape,
    weight_decay: float,
    row_format: str,
    optimizer: str,
    state: str,
    qat: str | None,
) -> None:
    check_like_the_reference(
        "triton",
        shape,
        row_format=row_format,
        optimizer=optimizer,
        state=state,
        qat=qat,
        weight_decay=weight_decay,
    )
