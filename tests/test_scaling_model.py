"""The model of a step in several processes follows its formulas."""

import pytest

from benchmarks.scaling_model import (
    Compute,
    Network,
    fit_compute,
    imbalance,
    sent_bytes,
    step_seconds,
)


def test_bytes_follow_the_formulas() -> None:
    assert sent_bytes("table_wise", 1, 4096) == 0
    dense = 2 * (26 * 16 * 256 + 2 * 256 + 1) * 4
    vectors, ids = 26 * 16 * 4, 26 * 12
    assert sent_bytes("table_wise", 2, 4096) == 0.5 * (2048 * (ids + 2 * vectors) + dense)
    ids = 26 * (8 + 4 * 8)
    assert sent_bytes("row_wise", 8, 4096) == 7 / 8 * (512 * ids + 2 * 4096 * vectors + dense)


def test_tables_are_dealt_whole_and_rows_by_bucket() -> None:
    assert imbalance("table_wise", 2) == 1
    assert imbalance("table_wise", 8) == pytest.approx(4 / 3.25)
    assert 1 <= imbalance("row_wise", 2) < 1.12
    assert 1 <= imbalance("row_wise", 8) < 1.9


def test_a_step_is_its_parts() -> None:
    rows = [512, 1024, 4096]
    compute = fit_compute(
        rows, [1 + 3 * k for k in rows], [0.5 + 2 * k for k in rows], memory_bytes_per_second=1
    )
    assert compute.fixed_seconds == pytest.approx(1)
    assert compute.dense_seconds == pytest.approx(2)
    assert compute.lookup_seconds == pytest.approx(1)
    alone = Compute(0.001, 1e-5, 1e-6, memory_bytes_per_second=1e10)
    network = Network(bytes_per_second=1e9, latency_seconds=1e-4)
    seconds = step_seconds(
        alone, network, sharding="table_wise", world_size=2, batch=4096, contention=2
    )
    own = 0.001 + 2048 * 1.1e-5
    assert seconds == pytest.approx(
        2 * own + 6e-4 + sent_bytes("table_wise", 2, 4096) / 1e9, rel=1e-6
    )
    spread = step_seconds(alone, network, sharding="row_wise", world_size=8, batch=8 * 4096)
    partial_sums = 7 * 4096 * 26 * 16 * 4
    own = 0.001 + 4096 * (1e-5 + 1e-6 * imbalance("row_wise", 8)) + 6 * partial_sums / 1e10
    assert spread == pytest.approx(own + 6e-4 + sent_bytes("row_wise", 8, 8 * 4096) / 1e9, rel=1e-6)
