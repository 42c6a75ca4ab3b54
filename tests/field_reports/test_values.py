"""Dense values and labels that would spoil a run (B25, B27)."""

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from edorec.data.prepare import check_schema
from edorec.errors import ConfigError
from tests.data.logs import batches, configs, encoded, prepare_log, write

NASTY = [-3.0, -1.0, 0.0, math.nan, math.inf, None, 1e30, 2.0, -math.inf, 5.0]


@pytest.mark.parametrize("transform", ["none", "log1p"])
def test_b25_bad_dense_values_are_filled_and_counted(tmp_path: Path, transform: str) -> None:
    write(tmp_path / "train.parquet", {"x": pa.array(NASTY, pa.float64()), "id": list(range(10))})
    prepared = prepare_log(tmp_path, sparse={"id": None}, dense={"x": {"transform": transform}})
    assert prepared.counts["bad_dense"]["train"]["x"] == 4
    values = np.array(encoded(prepared, "x"))
    assert np.isfinite(values).all()
    assert (values[[3, 4, 5, 8]] == 0).all()
    good = np.array([-3.0, -1.0, 0.0, 1e30, 2.0, 5.0])
    if transform == "log1p":
        good = np.copysign(np.log1p(np.abs(good)), good)
    expected = (good - good.mean()) / good.std()
    np.testing.assert_allclose(values[[0, 1, 2, 6, 7, 9]], expected, rtol=1e-6)


def test_b25_values_near_the_largest_float(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", {"x": [1e308, -1e308, 0.0, 1e308]})
    prepared = prepare_log(tmp_path, dense={"x": None})
    values = encoded(prepared, "x")
    assert np.isfinite(values).all()
    assert values[1] < values[2] < values[0]


def test_b25_far_values_are_clipped_and_counted(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", {"x": [0.0, 1.0] * 10})
    write(tmp_path / "test.parquet", {"x": [1000.0, -1000.0, 0.0, None]})
    prepared = prepare_log(tmp_path, dense={"x": None}, test="test.parquet")
    assert encoded(prepared, "x", "test") == [10.0, -10.0, -1.0, 0.0]
    assert prepared.counts["clipped_dense"]["test"]["x"] == 2


@pytest.mark.parametrize("value", [0.1, 1e30, None])
def test_b25_constant_or_empty_columns_are_zero(tmp_path: Path, value: float | None) -> None:
    write(tmp_path / "train.parquet", {"x": pa.array([value] * 7, pa.float64())})
    [batch] = batches(prepare_log(tmp_path, dense={"x": None}))
    assert batch.dense_BN.tolist() == [[0.0]] * 7


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            {"sparse": {"y": None}},
            "features.sparse.y: column y is the label of task click and cannot be a feature too",
        ),
        (
            {"sparse": {"other": {"column": "y"}}},
            "features.sparse.other: column y is the label of task click and cannot be a feature "
            "too",
        ),
        (
            {"dense": {"w": None}, "weight": "w"},
            "features.dense.w: column w is the weight of rows and cannot be a feature too",
        ),
        (
            {"sparse": {"id": None}, "group": "y"},
            "data.group: column y is the label of task click and cannot be the group too",
        ),
        (
            {"sparse": {"id": None}, "weight": "y"},
            "data.weight: column y is already used by tasks.click.label",
        ),
    ],
)
def test_b27_label_or_weight_as_feature(
    tmp_path: Path, options: dict[str, object], problem: str
) -> None:
    write(tmp_path / "train.parquet", {"id": [1, 2], "w": [1.0, 2.0]})
    with pytest.raises(ConfigError) as error:
        check_schema(**configs(tmp_path, **options))
    assert error.value.problems == [problem]


def test_b27_group_may_be_a_feature(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", {"user": [1, 2]})
    assert prepare_log(tmp_path, sparse={"user": None}, group="user").splits["train"].rows == 2


def test_b27_feature_that_tells_the_label_is_warned_of(tmp_path: Path) -> None:
    labels = [i * 7 % 20 % 3 == 0 for i in range(20)]
    write(
        tmp_path / "train.parquet",
        {
            "y": labels,
            "label_copy": ["yes" if label else "no" for label in labels],
            "score": [10.0 * label + i / 20 for i, label in enumerate(labels)],
            "id": list(range(20)),
            "noise": [float(i % 4) for i in range(20)],
            "gappy": [float(label) if i != 0 else None for i, label in enumerate(labels)],
        },
    )
    prepared = prepare_log(
        tmp_path,
        sparse={"label_copy": None, "id": None},
        dense={"score": None, "noise": None, "gappy": None},
    )
    assert prepared.counts["warnings"] == [
        f"feature {name} (column {name}) alone predicts task click with AUC 1.0 on the training "
        "rows; is it a copy of the label y?"
        for name in ("score", "label_copy")
    ]
