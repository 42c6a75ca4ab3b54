"""What a table takes at its highest: its rows and their state, and nothing of its size besides."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MB = 1 << 20
pytestmark = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="needs /proc to reset the peak"
)

SCRIPT = """\
import sys

import torch
from torchrec.modules.embedding_configs import PoolingType
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from edorec.embedding.collection import EdoEmbeddingBagCollection
from edorec.embedding.row_tables import EdoTableConfig
from edorec.memory_use import peak_rss_bytes, rss_bytes


def build(num_rows):
    return EdoEmbeddingBagCollection(
        [EdoTableConfig(num_embeddings=num_rows, embedding_dim=16, name="t", format="int8")]
    )


def step(tables, num_rows):
    ids = torch.randint(0, num_rows, (4096,))
    batch = KeyedJaggedTensor(["t"], ids, lengths=torch.ones(2048, dtype=torch.int32) * 2)
    tables(batch).values().square().sum().backward()


def grown(function, *arguments):
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak is what is held now
    before = rss_bytes()
    result = function(*arguments)
    return result, peak_rss_bytes() - before


num_rows = int(sys.argv[1])
step(build(100), 100)  # compiles
tables, built = grown(build, num_rows)
print(built, *[grown(step, tables, num_rows)[1] for _ in range(2)])
"""


def grown_bytes(num_rows: int) -> list[int]:
    """Growth of the peak while a table is built, in the first step, and in the second."""
    command = [sys.executable, "-c", SCRIPT, str(num_rows)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    return [int(number) for number in done.stdout.split()]


def test_a_step_has_no_gradient_of_a_tables_size() -> None:
    built, first, second = grown_bytes(2_000_000)
    table = 2_000_000 * 24
    assert 0.9 * table < built < table + 12 * MB
    assert max(first, second) < 5 * MB


@pytest.mark.slow
def test_a_large_table_takes_little_more_than_its_rows_and_state() -> None:
    built, first, second = grown_bytes(20_000_000)
    table = 20_000_000 * 24
    assert 0.95 * table < built + first + second < 1.1 * table
