import os

import pytest

from edorec.cpus import num_cpus


def test_the_affinity_counts_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3, 5}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert num_cpus() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    assert num_cpus() == 8
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert num_cpus() == 1
