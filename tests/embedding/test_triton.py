"""The Triton kernel: under Triton's interpreter as the reference, and compiled for GPUs.

Without a GPU the kernels run on CPU tensors; compiling needs none either.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from edorec.embedding.collection import EdoEmbeddingBagCollection, EdoEmbeddingCollection
from edorec.embedding.shards import Shard
from tests.embedding.batches import jagged, table
from tests.embedding.test_kernels import (
    COVERING,
    Shape,
    assert_rows_alike,
    check_like_the_reference,
    name_of,
)

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


@pytest.mark.parametrize("storage", COVERING, ids=name_of)
@given(shape=small_shapes, weight_decay=st.sampled_from([0.0, 0.5]))
@settings(max_examples=3, deadline=None)
def test_triton_does_as_the_reference(
    shape: Shape, weight_decay: float, storage: dict[str, Any]
) -> None:
    check_like_the_reference("triton", shape, weight_decay=weight_decay, **storage)


def test_unpooled_lists_keep_a_row_for_each_value() -> None:
    batch = jagged({"f": [[3, 1], [], [1]], "g": [[0], [2, 2], []]})
    rows = []
    for kernel in ("triton", "reference"):
        collection = EdoEmbeddingCollection(
            [table("t", 4, 5, ["f", "g"], format="int8")],
            init_std=0.3,
            learning_rate=0.5,
            kernel=kernel,
        )
        result = collection(batch)
        sum((1 + result[name].values()).square().sum() for name in ("f", "g")).backward()
        rows.append(collection.tables.weight("t"))
    assert_rows_alike(*rows, "int8")


@pytest.mark.parametrize("row", [-1, 4])
def test_a_value_that_is_no_row_is_named(row: int) -> None:
    collection = EdoEmbeddingBagCollection([table("t", 4, 5, ["f"])], kernel="triton")
    with pytest.raises(IndexError, match=f"feature f: {row} is not a row of table t, which has 4"):
        collection(jagged({"f": [[0], [row]]}))


def test_kernels_compile_for_gpus_that_are_not_there(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.embedding.compile_triton"],
        env={**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    compiled = {tuple(line.split()[:2]) for line in done.stdout.splitlines()}
    kernels = ("forward", "collect", "update", "write_back", "find", "stage")
    assert compiled == {
        (f"{name}_kernel", capability) for name in kernels for capability in ("80", "90")
    }


@pytest.mark.gpu
@pytest.mark.parametrize("row_format", ["fp32", "fp16", "int8", "int4", "int2", "ternary:0.2"])
def test_triton_on_a_gpu_does_as_the_reference(row_format: str) -> None:
    tables = [
        EdoEmbeddingBagCollection(
            [table("t", 50, 16, ["f"], format=row_format)],
            init_std=0.3,
            learning_rate=0.05,
            initial_accumulator=1e-3,
            device=torch.device("cuda"),
            kernel=kernel,
        )
        for kernel in ("triton", "reference")
    ]
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 50, (400,), generator=generator)
    batch = KeyedJaggedTensor(["f"], ids, lengths=torch.full((200,), 2)).to("cuda")
    gradient = torch.randn(200, 16, generator=generator).cuda()
    ours, theirs = (collection(batch).values() for collection in tables)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    for result in (ours, theirs):
        result.backward(gradient)
    rows = [collection.tables.weight("t") for collection in tables]
    assert_rows_alike(*rows, row_format)


@pytest.mark.parametrize("buckets", [(3,), (0, 1, 63), tuple(range(1, 64, 2))])
def test_shards_draw_the_random_numbers_of_their_rows(buckets: tuple[int, ...]) -> None:
    bags = {"items": [[0, 2], [3]], "whole": [[1], [70]]}
    rows = []
    for kernel in ("triton", "reference"):
        part = table("items", 192, 8, shard=Shard(buckets), format="int8", number=3)
        whole = table("whole", 71, 8, format="int8")
        collection = EdoEmbeddingBagCollection(
            [part, whole], init_std=0.3, learning_rate=0.5, kernel=kernel
        )
        if len(buckets) == 1:  # it holds three rows
            bags["items"] = [[0, 2], [1]]
        collection(jagged(bags)).values().square().sum().backward()
        rows.append([collection.tables.weight(name) for name in ("items", "whole")])
    for ours, theirs in zip(*rows, strict=True):
        assert torch.equal(ours, theirs)
