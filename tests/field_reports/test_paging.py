"""Paged and cached tables lose no row (B45)."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from edorec.checkpoint import load_model, save_model
from edorec.embedding.build import EmbeddingTables
from edorec.embedding.collection import EdoEmbeddingBagCollection
from edorec.embedding.fused import FusedEmbeddingBagCollection
from edorec.embedding.paging import DiskSettings
from edorec.embedding.row_tables import EdoTableConfig

ROWS, DIM, BATCH = 10_000, 8, 200
SETTINGS: dict[str, Any] = {
    "optimizer": "rowwise_adagrad",
    "learning_rate": 0.1,
    "initial_accumulator": 1e-5,
    "init_std": 0.3,
    "seed": 1,
}


def on_disk(share: float | None, *, mixed: bool, folder: Path, row_format: str) -> EmbeddingTables:
    """Tables a and b on disk, at most a share of their bytes in memory; None: all in memory."""
    configs = [
        EdoTableConfig(
            name=name,
            num_embeddings=ROWS,
            embedding_dim=DIM,
            format=row_format,
            on_disk=share is not None and not (mixed and name == "b"),
        )
        for name in ("a", "b")
    ]
    limit = None if share is None else int(share * 2 * ROWS * (4 * DIM + 4))
    disk = DiskSettings(folder, page_rows=64, resident_bytes=limit, keep_cached=False)
    return EdoEmbeddingBagCollection(configs, disk=disk, **SETTINGS)


def cached(share: float | None, *, mixed: bool, algorithm: str) -> EmbeddingTables:
    """Tables a and b in unified memory with a cache of a share; None: all on the device."""
    return FusedEmbeddingBagCollection(
        [
            EmbeddingBagConfig(
                name=name,
                num_embeddings=ROWS,
                embedding_dim=DIM,
                feature_names=[name],
                data_type=DataType.FP32,
            )
            for name in ("a", "b")
        ],
        pooling={},
        num_zero_rows={},
        device=torch.device("cuda"),
        uvm=() if share is None else ("a",) if mixed else ("a", "b"),
        load_factor=share or 1.0,
        algorithm=algorithm,
        **SETTINGS,
    )


def batch(step: int, device: str) -> KeyedJaggedTensor:
    """Rows over the whole table, so all sets of a cache, and some of them again and again."""
    generator = torch.Generator().manual_seed(step)
    rows = torch.randint(0, ROWS, (2, BATCH), generator=generator)
    rows[:, : BATCH // 4] %= 50
    lengths = torch.ones(2 * BATCH, dtype=torch.int32)
    return KeyedJaggedTensor(["a", "b"], rows.reshape(-1), lengths=lengths).to(torch.device(device))


def step(tables: EmbeddingTables, number: int, device: str) -> float:
    loss = (tables(batch(number, device)).values() - 1).square().mean()
    loss.backward()
    return loss.item()


@torch.no_grad()
def evaluate(tables: EmbeddingTables, device: str) -> torch.Tensor:
    return tables(batch(999, device)).values().cpu()


def check(
    whole: EmbeddingTables,
    paged: EmbeddingTables,
    fresh: EmbeddingTables,
    *,
    path: Path,
    device: str,
    tolerance: float,
) -> None:
    """Trains both; every 5 steps the paged tables are saved, and loaded elsewhere."""
    model = torch.nn.Linear(1, 1)
    for number in range(20):
        wanted, got = step(whole, number, device), step(paged, number, device)
        assert got == pytest.approx(wanted, abs=tolerance, rel=0)
        if number % 5 != 4:
            continue
        before = evaluate(paged, device)
        save_model(path, model=model, tables=paged, step=number)
        load_model(path, model=model, tables=fresh)
        assert torch.equal(evaluate(fresh, device), before)
        assert torch.equal(evaluate(paged, device), before)
        for name, tensors in whole.tables_state().items():
            for key, rows in fresh.tables_state()[name].items():
                assert torch.equal(rows, paged.tables_state()[name][key])
                if tolerance == 0:
                    assert torch.equal(rows, tensors[key])


@pytest.mark.parametrize("share", [0.01, 0.2, 1.0])
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("row_format", ["fp32", "int8"])
def test_b45_tables_on_disk(share: float, mixed: bool, row_format: str, tmp_path: Path) -> None:
    whole, paged, fresh = (
        on_disk(part, mixed=mixed, folder=tmp_path, row_format=row_format)
        for part in (None, share, share)
    )
    check(whole, paged, fresh, path=tmp_path / "best.pt", device="cpu", tolerance=0)


@pytest.mark.gpu
@pytest.mark.parametrize("share", [0.01, 0.2, 1.0])
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("algorithm", ["lru", "lfu"])
def test_b45_cached_tables(share: float, mixed: bool, algorithm: str, tmp_path: Path) -> None:
    whole, paged, fresh = (
        cached(part, mixed=mixed, algorithm=algorithm) for part in (None, share, share)
    )
    check(whole, paged, fresh, path=tmp_path / "best.pt", device="cuda", tolerance=1e-5)
    figures = paged.paging()
    assert figures is not None
    assert figures["effective_load_factor"] >= share
    assert figures["cache_bytes"] > 0
