"""A small log whose labels follow from its ids, and a configuration that trains on it."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from edorec.config import RunConfig, dump_config


def toy_rows(num_rows: int, *, seed: int = 0) -> pa.Table:
    """Users and items with effects of their own, a list of items, a dense column, two tasks."""
    rng = np.random.default_rng(seed)
    users = rng.zipf(1.5, num_rows) % 200
    items = rng.zipf(1.5, num_rows) % 100
    effects = np.random.default_rng(7)
    user_effect, item_effect = effects.normal(0, 1.2, 200), effects.normal(0, 1.2, 100)
    price = rng.normal(0, 1, num_rows)
    logits = user_effect[users] + item_effect[items] + 0.5 * price
    click = (rng.random(num_rows) < 1 / (1 + np.exp(-logits))).astype(np.int8)
    buy = click * (rng.random(num_rows) < 0.5)
    viewed = [list(map(int, rng.integers(0, 100, rng.integers(0, 4)))) for _ in range(num_rows)]
    return pa.table(
        {
            "user": pa.array(users, pa.int64()),
            "item": pa.array([f"i{item}" for item in items]),
            "viewed": pa.array(viewed, pa.list_(pa.int64())),
            "price": pa.array(price),
            "click": pa.array(click),
            "buy": pa.array(buy.astype(np.int8)),
        }
    )


def write_toy(folder: Path, *, train: int = 4000, valid: int = 500, test: int = 500) -> Path:
    """Writes train.parquet, valid.parquet and test.parquet into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (name, num_rows) in enumerate({"train": train, "valid": valid, "test": test}.items()):
        if num_rows:
            pq.write_table(toy_rows(num_rows, seed=seed), folder / f"{name}.parquet")
    return folder


def toy_settings(folder: Path, **sections: dict[str, Any]) -> dict[str, Any]:
    """The configuration as YAML would hold it; ``sections`` update those below key by key."""
    settings: dict[str, Any] = {
        "data": {
            "folder": str(folder),
            "cache": str(folder / "cache"),
            **{
                n: f"{n}.parquet"
                for n in ("train", "valid", "test")
                if (folder / f"{n}.parquet").exists()
            },
            "group": "user",
        },
        "features": {
            "sparse": {"user": {}, "item": {}, "viewed": {"pooling": "mean"}},
            "dense": {"price": {}},
        },
        "tasks": {"click": {"label": "click"}, "buy": {"label": "buy"}},
        "embedding": {"dim": 4, "learning_rate": 0.1, "init_std": 0.1},
        "model": {"backbone": {"name": "deepfm", "hidden": [16]}},
        "train": {"epochs": 2, "batch_size": 256, "learning_rate": 0.01, "num_threads": 1},
    }
    for name, section in sections.items():
        settings[name] = {**settings.get(name, {}), **section}
    return settings


def toy_config(folder: Path, **sections: dict[str, Any]) -> RunConfig:
    """The same as a checked configuration."""
    return RunConfig.model_validate(toy_settings(folder, **sections))


def write_config(path: Path, config: RunConfig) -> Path:
    """Writes ``config`` as YAML to ``path``."""
    path.write_text(dump_config(config))
    return path
