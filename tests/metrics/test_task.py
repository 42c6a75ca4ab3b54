"""Metrics against scikit-learn, by definition, and at the edges."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import log_loss, roc_auc_score

from edorec.errors import InputError
from edorec.metrics import TaskMetrics

Labels = list[int] | list[float]


def metrics(
    logits: list[float], labels: Labels, *, batch: int | None = None, **settings_: Any
) -> dict[str, Any]:
    """Metrics of rows given ``batch`` at a time; lists in ``settings_`` are columns."""
    columns = {k: torch.tensor(v) for k, v in settings_.items() if isinstance(v, list)}
    rest = {k: v for k, v in settings_.items() if k not in columns}
    task = TaskMetrics("click", **rest)
    scores, targets = torch.tensor(logits), torch.tensor(labels, dtype=torch.float32)
    step = batch or max(1, len(logits))
    for start in range(0, len(logits), step):
        part = slice(start, start + step)
        task.update(
            scores[part], targets[part], **{name: values[part] for name, values in columns.items()}
        )
    return task.compute()


def random_rows(num_rows: int, *, seed: int, ties: bool) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = (rng.random(num_rows) < 0.3).astype(np.int64)
    logits = rng.normal(0, 2, num_rows) + labels
    return (np.round(logits, 1 if ties else 6).astype(np.float32), labels)


@pytest.mark.parametrize("ties", [False, True])
def test_equals_scikit_learn(ties: bool) -> None:
    logits, labels = random_rows(5000, seed=1, ties=ties)
    result = metrics(logits.tolist(), labels.tolist())
    probabilities = 1 / (1 + np.exp(-logits.astype(np.float64)))
    rate = labels.mean()
    entropy = -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate))
    assert result["auc"] == pytest.approx(roc_auc_score(labels, logits), abs=1e-12)
    assert result["logloss"] == pytest.approx(log_loss(labels, probabilities), abs=1e-9)
    assert result["ne"] == pytest.approx(log_loss(labels, probabilities) / entropy, abs=1e-9)
    assert result["calibration"] == pytest.approx(probabilities.sum() / labels.sum(), abs=1e-9)
    assert (result["rows"], result["positives"]) == (5000, labels.sum())


def test_sample_weights_equal_scikit_learns() -> None:
    logits, labels = random_rows(3000, seed=2, ties=True)
    weights = np.random.default_rng(3).random(3000).astype(np.float32)
    result = metrics(logits.tolist(), labels.tolist(), weights_B=weights.tolist())
    probabilities = 1 / (1 + np.exp(-logits.astype(np.float64)))
    auc = roc_auc_score(labels, logits, sample_weight=weights)
    loss = log_loss(labels, probabilities, sample_weight=weights)
    assert result["auc"] == pytest.approx(auc, abs=1e-9)
    assert result["logloss"] == pytest.approx(loss, abs=1e-9)


SCORED = st.lists(st.tuples(st.integers(-4, 4), st.integers(0, 1)), min_size=2, max_size=60).filter(
    lambda rows: 0 < sum(label for _, label in rows) < len(rows)
)


@settings(max_examples=60, deadline=None)
@given(rows=SCORED, batch=st.integers(1, 70), seed=st.integers(0, 9))
def test_no_figure_depends_on_order_or_batch_size(
    rows: list[tuple[int, int]], batch: int, seed: int
) -> None:
    order = np.random.default_rng(seed).permutation(len(rows))
    logits, labels = [r[0] / 2 for r in rows], [r[1] for r in rows]
    one = metrics(logits, labels, groups_B=[i % 3 for i in range(len(rows))])
    two = metrics(
        [logits[i] for i in order],
        [labels[i] for i in order],
        batch=batch,
        groups_B=[int(i) % 3 for i in order],
    )
    assert one == two
    assert one["auc"] == pytest.approx(roc_auc_score(labels, logits), abs=1e-12)


@settings(max_examples=30, deadline=None)
@given(rows=SCORED)
def test_gauc_is_the_mean_of_scikit_learns_auc_by_group(rows: list[tuple[int, int]]) -> None:
    logits, labels = np.array([r[0] for r in rows]), np.array([r[1] for r in rows])
    groups = np.arange(len(rows)) % 4
    aucs, sizes = [], []
    for group in range(4):
        chosen = groups == group
        if len(set(labels[chosen])) == 2:
            aucs.append(roc_auc_score(labels[chosen], logits[chosen]))
            sizes.append(chosen.sum())
    result = metrics([float(x) for x in logits], labels.tolist(), groups_B=groups.tolist())
    if not aucs:
        assert result["gauc"] is None
        assert result["gauc_unweighted"] is None
        return
    assert result["gauc"] == pytest.approx(np.average(aucs, weights=sizes), abs=1e-12)
    assert result["gauc_unweighted"] == pytest.approx(np.mean(aucs), abs=1e-12)
    assert result["gauc_rows"] == sum(sizes)


@pytest.mark.parametrize("weighted", [False, True])
def test_rows_spilled_to_disk_give_the_same(tmp_path: Path, weighted: bool) -> None:
    logits, labels = random_rows(4000, seed=4, ties=True)
    rng = np.random.default_rng(5)
    columns: dict[str, Any] = {
        "groups_B": rng.integers(0, 50, 4000).tolist(),
        "deciles_BK": rng.integers(0, 11, (4000, 2)).astype(np.uint8).tolist(),
        "unseen_B": (rng.random(4000) < 0.1).tolist(),
        "frequency_features": ("user", "item"),
    }
    if weighted:
        columns["weights_B"] = rng.random(4000).tolist()
    inside = metrics(logits.tolist(), labels.tolist(), batch=512, **columns)
    outside = metrics(
        logits.tolist(),
        labels.tolist(),
        batch=512,
        memory_rows=700,
        spill_folder=tmp_path / "spill",
        **columns,
    )
    assert list((tmp_path / "spill").iterdir()) == []
    for name in ("auc", "gauc", "gauc_unweighted", "logloss", "ne", "calibration"):
        assert outside[name] == pytest.approx(inside[name], abs=1e-12), name
    assert outside["rows"] == inside["rows"]
    for spilled, kept in zip(outside["by_frequency"], inside["by_frequency"], strict=True):
        assert spilled == pytest.approx(kept)


def test_rows_take_five_bytes_in_memory() -> None:
    task = TaskMetrics("click")
    task.update(torch.zeros(1000), torch.zeros(1000))
    held = sum(a.nbytes for chunk in task._rows._chunks for a in chunk.values())
    assert held == 5 * 1000


@pytest.mark.parametrize(("label", "logloss"), [(0, math.log(2)), (1, math.log(2))])
def test_b29_one_class_leaves_auc_and_ne_undefined(label: int, logloss: float) -> None:
    with pytest.warns(
        UserWarning, match=r"AUC of task click is undefined: \d positives and \d neg"
    ):
        result = metrics([0.0] * 8, [label] * 8)
    assert result["auc"] is None
    assert result["ne"] is None
    assert result["logloss"] == pytest.approx(logloss)
    assert result["positives"] == 8 * label


def test_b30_a_score_means_the_same_in_every_batch() -> None:
    for batch in (1, 3):
        assert metrics([-1.0, 0.0, 1.0], [1, 0, 1], batch=batch)["auc"] == 0.5
    assert metrics([40.0, 41.0, 42.0, 43.0], [0, 1, 1, 1])["auc"] == 1.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_b30_b33_scores_of_any_float_type(dtype: torch.dtype) -> None:
    task = TaskMetrics("click")
    task.update(torch.tensor([60.0, -60.0, 0.5], dtype=dtype), torch.tensor([0.0, 1.0, 1.0]))
    result = task.compute()
    assert result["logloss"] == pytest.approx((60 + 60 + math.log1p(math.exp(-0.5))) / 3)
    assert result["auc"] == 0.0


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]])
def test_b32_tied_pairs_count_one_half_in_any_order(order: list[int]) -> None:
    logits, labels = [0.9, 0.5, 0.5, 0.1], [1, 1, 0, 0]
    result = metrics([logits[i] for i in order], [labels[i] for i in order], groups_B=[7, 7, 7, 7])
    assert result["auc"] == 0.875
    assert result["gauc"] == 0.875
    constant = metrics([0.3] * 4, [labels[i] for i in order], groups_B=[7, 7, 7, 7])
    assert constant["auc"] == 0.5
    assert constant["gauc"] == 0.5


def test_b33_logloss_is_finite_for_every_finite_logit() -> None:
    result = metrics([1e30, -1e30, 0.0], [0, 1, 1])
    assert math.isfinite(result["logloss"])
    assert math.isfinite(result["ne"])


def test_scores_that_are_not_finite_are_refused() -> None:
    with pytest.raises(InputError, match="task click: 2 scores are NaN or infinite"):
        metrics([0.0, math.nan, math.inf], [0, 1, 1])


def test_null_labels_are_left_out() -> None:
    result = metrics([0.0, 9.0, 1.0], [0.0, math.nan, 1.0], groups_B=[1, 1, 1])
    assert (result["rows"], result["positives"], result["auc"]) == (2, 1, 1.0)


def test_no_rows_give_undefined_metrics() -> None:
    with pytest.warns(UserWarning, match="0 positives and 0 negatives"):
        result = TaskMetrics("click").compute()
    assert result["rows"] == 0
    assert [result[n] for n in ("auc", "logloss", "ne", "calibration")] == [None] * 4


def test_sampled_negatives_are_corrected() -> None:
    rng = np.random.default_rng(6)
    true_logits = rng.normal(-2, 1, 200_000)
    labels = (rng.random(200_000) < 1 / (1 + np.exp(-true_logits))).astype(int)
    kept = (labels == 1) | (rng.random(200_000) < 0.1)
    sampled_logits = true_logits[kept] - math.log(0.1)  # what a model fits on the sampled rows
    whole = metrics(true_logits.tolist(), labels.tolist())
    sampled = metrics(sampled_logits.tolist(), labels[kept].tolist(), sampling_rate=0.1)
    assert sampled["auc"] == pytest.approx(whole["auc"], abs=0.005)
    assert sampled["logloss"] == pytest.approx(whole["logloss"], rel=0.02)
    assert sampled["calibration"] == pytest.approx(1.0, abs=0.02)


def test_deciles_and_unseen_ids_are_reported_apart() -> None:
    result = metrics(
        [0.0, 1.0, 2.0, 3.0],
        [0, 1, 1, 0],
        frequency_features=("item",),
        deciles_BK=[[0], [0], [10], [10]],
        unseen_B=[False, False, True, True],
    )
    first, unseen = result["by_frequency"]
    assert (first["feature"], first["decile"], first["auc"]) == ("item", 0, 1.0)
    assert (unseen["decile"], unseen["auc"]) == (10, 0.0)
    assert (result["unseen_ids"]["rows"], result["unseen_ids"]["auc"]) == (2, 0.0)


def test_the_calibration_curve_covers_every_row_once() -> None:
    logits, labels = random_rows(1000, seed=8, ties=False)
    curve = metrics(logits.tolist(), labels.tolist())["calibration_curve"]
    assert sum(point["rows"] for point in curve) == 1000
    predicted = [point["predicted"] for point in curve]
    assert predicted == sorted(predicted)
    assert {point["rows"] for point in curve} == {50}
