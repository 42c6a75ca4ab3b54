"""What ids are worth: classes of a frequency curve, and the variance between ids."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edorec.data.prepare import prepare
from edorec.planning.value import LEAST_VALUE, Classes, Worth, classes_of, measure_worth
from tests.toy import toy_config

RATE = 0.3


@given(
    counts=st.lists(st.integers(1, 5000), max_size=80),
    edges=st.lists(st.integers(0, 5000), max_size=4),
)
@settings(max_examples=200, deadline=None)
def test_classes_cut_the_frequency_curve(counts: list[int], edges: list[int]) -> None:
    curve = np.array(sorted(counts, reverse=True), np.int64)
    classes = classes_of(curve, edges)
    assert classes.num_ids.sum() == len(curve)
    assert classes.lookups.sum() == curve.sum()
    assert (classes.num_ids > 0).all()
    of_id = np.searchsorted(classes.ends, np.arange(len(curve)), side="right")
    for rank, count in enumerate(curve):
        assert count >= classes.low[of_id[rank]]
        # No id of a class lies across a given edge from another.
        for edge in edges:
            assert (count >= edge) == (classes.low[of_id[rank]] >= edge) or edge == 0


def log(folder: Path, *, spread: float, num_ids: int, per_id: int, nulls: bool = False) -> None:
    """Ids of equal counts whose rates of positives have a deviation of ``spread``."""
    rng = np.random.default_rng(0)
    ids = np.repeat(np.arange(num_ids), per_id)
    rate = np.clip(rng.normal(RATE, spread, num_ids), 0, 1)[ids]
    click = pa.array((rng.random(len(ids)) < rate).astype(np.int8))
    buy = [None] * len(ids) if nulls else click
    order = rng.permutation(len(ids))
    table = pa.table(
        {
            "user": pa.array(ids),
            "item": pa.array([f"i{i}" for i in rng.integers(0, 50, len(ids))]),
            "viewed": pa.array([[int(i), int(i)] if i % 2 else [] for i in ids]),
            "price": pa.array(np.zeros(len(ids))),
            "click": click,
            "buy": pa.array(buy, pa.int8()),
        }
    )
    folder.mkdir(exist_ok=True)
    pq.write_table(table.take(order), folder / "train.parquet")


def worth_of(folder: Path) -> tuple[dict[str, Worth], dict[str, Classes]]:
    config = toy_config(folder)
    prepared = prepare(
        data=config.data,
        features=config.features,
        vocabularies=config.vocabularies,
        tasks=config.tasks,
    )
    classes = {name: classes_of(v.counts) for name, v in prepared.vocabularies.items()}
    features = {name: [name] for name in classes}
    return measure_worth(prepared, classes, features=features, averaged=["viewed"]), classes


@pytest.mark.parametrize("nulls", [False, True])
def test_the_value_is_the_share_of_variance_between_ids(tmp_path: Path, nulls: bool) -> None:
    log(tmp_path / "log", spread=0.15, num_ids=4000, per_id=5, nulls=nulls)
    worth, _ = worth_of(tmp_path / "log")
    wanted = 0.15**2 / (RATE * (1 - RATE))
    assert worth["user"].value[-1] == pytest.approx(wanted, rel=0.15)
    # Labels do not depend on items.
    assert worth["item"].value.max() < 0.1 * wanted
    # A list of two, averaged: each row has a half of it, and half of the rows have one.
    assert worth["user"].reads.sum() == 20_000
    assert worth["viewed"].reads.sum() == pytest.approx(20_000 / 2 / 4 * 2)
    # Lists: half of the users, twice in each of their rows.
    assert worth["viewed"].value[-1] == pytest.approx(wanted, rel=0.25)


def test_ids_that_say_nothing_keep_a_little(tmp_path: Path) -> None:
    log(tmp_path / "log", spread=0.0, num_ids=4000, per_id=5)
    worth, _ = worth_of(tmp_path / "log")
    assert LEAST_VALUE <= worth["user"].value[-1] < 1.1 * LEAST_VALUE


def test_ids_seen_once_are_worth_what_those_seen_twice_are(tmp_path: Path) -> None:
    log(tmp_path / "log", spread=0.15, num_ids=4000, per_id=2)
    path = tmp_path / "log" / "train.parquet"
    table = pq.read_table(path)
    rare = table.slice(0, 500).set_column(0, "user", pa.array(np.arange(10_000, 10_500)))
    pq.write_table(pa.concat_tables([table, rare]), path)
    worth, classes = worth_of(tmp_path / "log")
    assert classes["user"].low[-2:].tolist() == [2, 1]
    assert worth["user"].value[-1] == worth["user"].value[-2]
