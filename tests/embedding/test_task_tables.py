"""Tables of single tasks: who looks up what, whose gradient reaches them, and that there is one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edorec.checkpoint import load_model, save_model
from edorec.config import RunConfig
from edorec.data.batch import Batch
from edorec.data.schema import SparseFeature, VocabularyConfig
from edorec.data.vocabulary import Vocabulary
from edorec.embedding.admission import RowMap
from edorec.embedding.collection import EdoEmbeddingBagCollection
from edorec.embedding.task_tables import add_task_lookups, task_lookups, task_tables
from edorec.evaluate import evaluate
from edorec.recommender import Recommender, build_recommender
from edorec.step import TrainingStep
from edorec.train import run
from tests.embedding.batches import all_bytes, by_hand, jagged
from tests.toy import toy_config, write_toy

CPU = torch.device("cpu")
COUNTS = np.array([90, 50, 30, 9, 9, 5, 2, 1, 1], np.int64)
# Nine rows of their own and two buckets behind them.
BAGS = {
    "item": [[0], [3], [10], [2]],
    "viewed": [[1, 4, 9], [], [8, 0], [3, 3]],
    "user": [[5], [6], [0], [1]],
}


def config_of(*, head: str = "shared_bottom", **sections: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            "data": {"train": "unused.parquet"},
            "features": {"sparse": {"item": {}, "viewed": {"vocabulary": "item"}, "user": {}}},
            "tasks": {name: {"label": name} for name in ("click", "like", "buy")},
            "vocabularies": {
                "item": {
                    "buckets": 2,
                    "task_specific": {
                        "buy": {"rows": 3, "dim": 2},
                        "click": {"rows": 100, "dim": 5},
                    },
                },
                "user": {"buckets": 2, "task_specific": {"buy": {"rows": 1, "dim": 3}}},
            },
            "embedding": {"dim": 4, "init_std": 0.5, "learning_rate": 0.1},
            "model": {
                "backbone": {"name": "deepfm", "hidden": [8]},
                "head": {"name": head, "tower_hidden": [6]},
            },
            **sections,
        }
    )


def build(config: RunConfig) -> Recommender:
    vocabularies = {name: Vocabulary(name, Path("unused"), COUNTS) for name in ("item", "user")}
    return build_recommender(config, vocabularies, device=CPU)


def batch_of(labels_BT: torch.Tensor) -> Batch:
    return Batch(
        sparse=jagged({name: BAGS[name] for name in ("item", "viewed", "user")}),
        dense_BN=torch.empty(4, 0),
        labels_BT=labels_BT,
        weights_B=None,
        groups_B=None,
        end=4,
    )


def collection(recommender: Recommender) -> EdoEmbeddingBagCollection:
    assert isinstance(recommender.tables, EdoEmbeddingBagCollection)
    return recommender.tables


def test_each_task_has_the_vectors_of_its_own_tables_behind_the_shared_ones() -> None:
    recommender = build(config_of())
    assert list(recommender.lookups) == [
        *("item", "viewed", "user"),
        *("item@click", "viewed@click"),
        *("item@buy", "viewed@buy", "user@buy"),
    ]
    embedded = recommender.embed(batch_of(torch.zeros(4, 3)))
    # All ids without a row of the task's own share the one behind the others.
    last = {"item@click": 9, "item@buy": 3, "user@buy": 1}
    for name, values in zip(recommender.lookups, embedded, strict=True):
        feature, at, task = name.partition("@")
        vocabulary = "user" if feature == "user" else "item"
        bags = BAGS[feature]
        if at:
            bags = [[min(row, last[f"{vocabulary}@{task}"]) for row in bag] for bag in bags]
        weight = collection(recommender).tables.weight(vocabulary + at + task)
        torch.testing.assert_close(values, by_hand(weight, bags, mean=True))


def test_rows_formats_and_initial_rows_follow_the_rules_of_all_tables() -> None:
    bands = [{"min_count": 30, "format": "fp32"}, {"format": "int8", "state": "log8"}]
    tables = collection(build(config_of(memory={"bands": bands}))).tables
    shapes = {
        name: {key: tuple(rows.shape) for key, rows in state.items()}
        for name, state in tables.state().items()
    }
    assert shapes["item@click"] == {
        "band0_fp32_fp32": (3, 5 * 4 + 4),
        "band1_int8_log8": (6, 5 + 4 + 1),
        "band2_int8_log8": (1, 5 + 4 + 1),
    }
    # The ids that share the last row are 27 look-ups together.
    assert shapes["item@buy"] == {"band0_fp32_fp32": (3, 12), "band1_int8_log8": (1, 2 + 4 + 1)}
    assert not tables.weight("item@click")[-1].any()
    assert tables.weight("item@click")[:-1].any(1).all()


@pytest.mark.parametrize("head", ["shared_bottom", "mmoe"])
@pytest.mark.parametrize("row_format", ["fp32", "int8"])
def test_the_gradient_of_a_task_reaches_its_own_and_the_shared_tables_alone(
    head: str, row_format: str
) -> None:
    config = config_of(head=head, memory={"format": row_format})
    tasks = list(config.tasks)
    for task in tasks:
        recommender = build(config)
        step = TrainingStep(recommender, config, total_steps=9)
        labels_BT = torch.full((4, 3), torch.nan)
        labels_BT[:, tasks.index(task)] = torch.tensor([0.0, 1.0, 1.0, 0.0])
        before = all_bytes(collection(recommender))
        for _ in range(3):
            step(batch_of(labels_BT))
        after = all_bytes(collection(recommender))
        changed = {name.split(".")[0] for name in before if not before[name].equal(after[name])}
        own = {"click": {"item@click"}, "like": set(), "buy": {"item@buy", "user@buy"}}
        assert changed == {"item", "user"} | own[task]


def test_shared_and_task_tables_are_one_copy_through_training_saving_and_loading(
    tmp_path: Path,
) -> None:
    config = config_of(memory={"format": "int8"})
    recommender, other = build(config), build(config)
    places = {
        name: [rows.data_ptr() for rows in bands.values()]
        for name, bands in recommender.tables.tables_state().items()
    }
    assert sorted(places) == ["item", "item@buy", "item@click", "user", "user@buy"]
    step = TrainingStep(recommender, config, total_steps=9)
    for _ in range(5):
        step(batch_of(torch.tensor([[0.0, 1, 0], [1, 0, 0], [1, 1, 1], [0, 0, 1]])))
    path = tmp_path / "model.pt"
    save_model(path, model=recommender.model, tables=recommender.tables, step=5)
    total = sum(sum(sizes) for sizes in recommender.tables.table_bytes().values())
    saved = torch.load(path, weights_only=True)["tables"]
    assert sum(rows.nbytes for bands in saved.values() for rows in bands.values()) == total
    live = {name: list(bands.values()) for name, bands in other.tables.tables_state().items()}
    load_model(path, model=other.model, tables=other.tables)
    for name, bands in recommender.tables.tables_state().items():
        assert [rows.data_ptr() for rows in bands.values()] == places[name]
        for rows, loaded, again in zip(
            bands.values(), live[name], other.tables.tables_state()[name].values(), strict=True
        ):
            assert again.data_ptr() == loaded.data_ptr()
            assert torch.equal(rows, loaded)
    batch = batch_of(torch.zeros(4, 3))
    # Both features of the entity read the very rows that a write through the one table changes.
    item = recommender.tables.tables_state()["item@buy"]["band0_int8_fp32"]
    item.copy_(item.flip(0))
    item_only, viewed_only = (
        collection(recommender)
        .tables.weight("item@buy")[[min(row, 3) for row in BAGS[name][3]]]
        .mean(0)
        for name in ("item", "viewed")
    )
    embedded = dict(zip(recommender.lookups, recommender.embed(batch), strict=True))
    torch.testing.assert_close(embedded["item@buy"][3], item_only)
    torch.testing.assert_close(embedded["viewed@buy"][3], viewed_only)


@given(
    own=st.integers(0, 6),
    wanted=st.integers(1, 9),
    bags=st.lists(st.lists(st.integers(0, 8), max_size=4), min_size=1, max_size=5),
)
@settings(max_examples=50, deadline=None)
def test_added_look_ups_are_rows_of_the_tasks_table_for_every_batch(
    own: int, wanted: int, bags: list[list[int]]
) -> None:
    features = {"a": SparseFeature(vocabulary="v"), "b": SparseFeature(vocabulary="v")}
    shared = RowMap(own, 3, rare_from=own, oov_rate=0.0)
    vocabulary = VocabularyConfig.model_validate({"task_specific": {"t": {"rows": wanted}}})
    tables = task_tables(features, settings={"v": vocabulary}, row_maps={"v": shared}, tasks=["t"])
    rows = [[min(row, shared.num_rows - 1) for row in bag] for bag in bags]
    sparse = add_task_lookups(jagged({"b": rows, "a": rows[::-1]}), tables)
    assert sparse.keys() == ["b", "a", *task_lookups(features, tables)]
    assert add_task_lookups(sparse, tables) is sparse
    limit = min(own, wanted)
    for name, expected in (("a@t", rows[::-1]), ("b@t", rows)):
        found = [bag.tolist() for bag in sparse[name].to_dense()]
        assert found == [[min(row, limit) for row in bag] for bag in expected]
    assert tables[0].row_map.num_rows == limit + 1


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy(tmp_path_factory.mktemp("log"))


def test_a_run_reports_the_bytes_and_evaluates_as_it_reported(log: Path, tmp_path: Path) -> None:
    config = toy_config(
        log,
        vocabularies={
            "item": {"task_specific": {"buy": {"rows": 20, "dim": 2}}},
            "user": {"task_specific": {"buy": {"rows": 10_000, "dim": 3}}},
        },
        model={"head": {"name": "mmoe"}},
    )
    report = run(config, run_dir=tmp_path / "run", verbosity=-1)
    tables = {table["name"]: table for table in report["memory"]["tables"]}
    item, user = tables["item@buy"], tables["user@buy"]
    assert (item["rows"], item["weights_bytes"], item["optimizer_bytes"]) == (21, 21 * 8, 21 * 4)
    assert item["num_ids"] == 20
    assert user["rows"] == tables["user"]["num_ids"] + 1
    again = evaluate(tmp_path / "run", files=None, split="test", verbosity=-1)
    for task in ("click", "buy"):
        assert again["tasks"][task]["logloss"] == report["tasks"][task]["logloss"]
