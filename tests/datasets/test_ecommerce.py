"""The shop log: deterministic, a funnel, known best AUC, ids without a link to their frequency."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import roc_auc_score

FOLDER = Path(__file__).parents[2] / "data" / "ecommerce"
TASKS = ("click", "cart", "buy")


def make(out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, FOLDER / "prepare.py", "--preset", "small", "--out", out, *options],
        capture_output=True,
        text=True,
        check=False,
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shop") / "log"
    done = make(folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def splits(log: Path) -> dict[str, pa.Table]:
    return {name: pq.read_table(log / name) for name in ("train", "valid", "test")}


@pytest.fixture(scope="module")
def shop() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ecommerce_shop", FOLDER / "shop.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def distinct(column: pa.ChunkedArray) -> set[Any]:
    if pa.types.is_list(column.type):
        column = pc.list_flatten(column)
    return set(column.drop_null().to_pylist())


def test_same_seed_same_bytes_other_seed_other_rows(log: Path, tmp_path: Path) -> None:
    assert make(tmp_path / "again").returncode == 0
    assert make(tmp_path / "other", "--seed", "2").returncode == 0
    first, again, other = (contents(f) for f in (log, tmp_path / "again", tmp_path / "other"))
    assert first == again
    assert set(first) == set(other)
    data = [name for name in first if name.endswith(".parquet")]
    assert len(data) >= 3
    assert not any(first[name] == other[name] for name in data)


def test_second_run_finds_the_log_complete(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    make(folder, "--rows", "500")
    times = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    again = make(folder, "--rows", "500")
    assert "complete, nothing to do" in again.stdout
    assert "best reachable test AUC" in again.stdout
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == times


@pytest.mark.parametrize("damage", ["manifest", "part", "settings"])
def test_incomplete_or_other_log_is_made_again(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "log"
    make(folder, "--rows", "500")
    whole = contents(folder)
    part = folder / "test" / "part-00000.parquet"
    if damage == "part":
        part.write_bytes(part.read_bytes()[:100])
    elif damage == "manifest":
        manifest = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_text(json.dumps(manifest | {"generator": 0}))
    else:
        make(folder, "--rows", "600")
        assert pq.read_table(folder / "train").num_rows == 600
    done = make(folder, "--rows", "500")
    assert done.returncode == 0
    assert contents(folder) == whole
    assert not folder.with_name("log.partial").exists()


def test_foreign_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    done = make(tmp_path)
    assert done.returncode == 2
    assert "holds something else than a shop log" in done.stderr
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_bad_number_of_rows_is_one_sentence(tmp_path: Path) -> None:
    done = make(tmp_path / "log", "--rows", "3")
    assert done.returncode == 2
    assert done.stderr == "error: --rows must be at least 100, got 3\n"


def test_columns_and_sizes(splits: dict[str, pa.Table]) -> None:
    assert {name: table.num_rows for name, table in splits.items()} == {
        "train": 20_000,
        "valid": 2_000,
        "test": 4_000,
    }
    schema = splits["train"].schema
    assert all(table.schema == schema for table in splits.values())
    kinds = [field.type for field in schema]
    assert sum(pa.types.is_list(kind) for kind in kinds) == 2
    assert sum(pa.types.is_string(kind) for kind in kinds) >= 3
    assert sum(pa.types.is_floating(kind) for kind in kinds) == 6


def test_raw_ids_look_like_hashes(splits: dict[str, pa.Table]) -> None:
    users = np.array(sorted(distinct(splits["train"]["user_id"])))
    assert 0.45 < (users < 0).mean() < 0.55
    assert (np.abs(users.astype(np.float64)) > 2.0**53).mean() > 0.99


def test_some_values_are_null_and_some_lists_empty(splits: dict[str, pa.Table]) -> None:
    table = splits["train"]
    assert sum(column.null_count > 0 for column in table.columns) >= 6
    for name in ("viewed", "bought"):
        lengths = pc.list_value_length(table[name])
        assert lengths.null_count > 0
        assert pc.sum(pc.equal(lengths, 0)).as_py() > 0
    for task in TASKS:
        assert table[f"label_{task}"].null_count == 0


def test_rows_are_in_order_of_time_across_splits(splits: dict[str, pa.Table]) -> None:
    times = np.concatenate([table["time_ms"].to_numpy() for table in splits.values()])
    assert (np.diff(times) >= 0).all()
    assert times[0] < times[-1]


def test_labels_are_a_funnel(splits: dict[str, pa.Table]) -> None:
    click, cart, buy = (splits["train"][f"label_{task}"].to_numpy() for task in TASKS)
    for label in (click, cart, buy):
        assert set(np.unique(label)) == {0, 1}
    assert (cart <= click).all()
    assert (buy <= cart).all()
    assert 0.15 < click.mean() < 0.3
    assert 0.2 < cart.sum() / click.sum() < 0.5
    assert 0.2 < buy.sum() / cart.sum() < 0.55


def test_best_auc_is_that_of_the_probabilities(log: Path, splits: dict[str, pa.Table]) -> None:
    best = json.loads((log / "best_auc.json").read_text())
    probabilities = pq.read_table(log / "test_probabilities.parquet")
    assert list(best) == list(TASKS)
    for task in TASKS:
        label = splits["test"][f"label_{task}"].to_numpy()
        auc = roc_auc_score(label, probabilities[f"prob_{task}"].to_numpy())
        assert best[task] == pytest.approx(auc, abs=1e-12)
        assert 0.75 < best[task] < 0.95


@pytest.mark.parametrize("task", TASKS)
def test_labels_are_drawn_from_the_probabilities(
    log: Path, splits: dict[str, pa.Table], task: str
) -> None:
    label = splits["test"][f"label_{task}"].to_numpy()
    chance = pq.read_table(log / "test_probabilities.parquet")[f"prob_{task}"].to_numpy()
    for rows in np.array_split(np.argsort(chance), 10):
        deviation = np.sqrt((chance[rows] * (1 - chance[rows])).sum())
        assert abs(label[rows].sum() - chance[rows].sum()) < 4.5 * deviation


@pytest.mark.parametrize("name", ["user_id", "item_id", "query"])
def test_evaluation_holds_ids_that_training_never_saw(
    splits: dict[str, pa.Table], name: str
) -> None:
    seen = distinct(splits["train"][name])
    for split in ("valid", "test"):
        assert len(distinct(splits[split][name]) - seen) > 20


def test_items_of_the_lists_are_items_that_are_shown(splits: dict[str, pa.Table]) -> None:
    items = splits["train"]["item_id"].to_pylist()
    shown = set(items)
    viewed = pc.list_flatten(splits["train"]["viewed"]).to_pylist()
    assert np.mean([item in shown for item in viewed]) > 0.3


def test_ids_have_a_long_tail(splits: dict[str, pa.Table]) -> None:
    counts = np.sort(pc.value_counts(splits["train"]["item_id"]).field("counts").to_numpy())[::-1]
    assert (counts < 30).mean() > 0.5
    assert counts[: len(counts) // 100].sum() > 0.2 * counts.sum()


def test_effect_is_independent_of_frequency(shop: ModuleType) -> None:
    num_ids = 200_000  # numbered by popularity
    ids = np.arange(num_ids)
    for entity in ("user", "item", "query"):
        effects = shop.Shop(seed=1).effects(entity, ids, task=0)
        scale = shop.ENTITIES[entity].effects[0]
        for part in np.array_split(effects / scale, 10):
            assert abs(part.mean()) < 4.5 / np.sqrt(len(part))
            assert part.std() == pytest.approx(1, abs=0.03)


def test_effect_is_the_same_in_a_shop_of_any_size(shop: ModuleType) -> None:
    ids = np.arange(1000)
    large = shop.Shop(seed=1, scale=60.0, exponent=0.6)
    small = shop.Shop(seed=1, scale=0.02)
    assert (large.effects("item", ids, task=0) == small.effects("item", ids, task=0)).all()
    assert (large.raw_ids("item", ids) == small.raw_ids("item", ids)).all()
    other = shop.Shop(seed=2).effects("item", ids, task=0)
    assert abs(np.corrcoef(other, small.effects("item", ids, task=0))[0, 1]) < 0.15


def test_raw_ids_are_all_different(shop: ModuleType) -> None:
    raw = shop.Shop(seed=1).raw_ids("item", np.arange(300_000))
    assert len(np.unique(raw)) == 300_000
