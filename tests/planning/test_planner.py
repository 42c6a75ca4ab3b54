"""Plans of configurations: as predicted, kept when given, refused when too small."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from edorec.config import RunConfig, load_config
from edorec.data.prepare import Prepared, prepare
from edorec.errors import ConfigError
from edorec.planning import placing
from edorec.planning.placing import move_tables
from edorec.planning.plan import Plan, apply_plan
from edorec.planning.planner import make_plan, measure
from edorec.recommender import build_recommender
from edorec.train import run
from tests.toy import toy_config, write_config, write_toy

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy(tmp_path_factory.mktemp("log"), train=2000, valid=300, test=300)


def prepared_of(config: RunConfig) -> Prepared:
    return prepare(
        data=config.data,
        features=config.features,
        vocabularies=config.vocabularies,
        tasks=config.tasks,
    )


def measured_bytes(config: RunConfig, plan: Plan, prepared: Prepared) -> int:
    recommender = build_recommender(apply_plan(config, plan), prepared.vocabularies, device=CPU)
    return sum(sum(sizes) for sizes in recommender.tables.table_bytes().values())


@pytest.mark.parametrize("optimizer", ["rowwise_adagrad", "adam", "sgd"])
@pytest.mark.parametrize("budget", [1.0, 0.6, 0.3, 0.15, 0.06, "3KB"])
def test_a_run_takes_the_bytes_of_its_plan(log: Path, budget: float | str, optimizer: str) -> None:
    config = toy_config(log, memory={"budget": budget}, embedding={"optimizer": optimizer})
    prepared = prepared_of(config)
    plan = make_plan(config, prepared)
    assert plan.total_bytes == measured_bytes(config, plan, prepared)
    if budget != 1.0:
        assert plan.budget_bytes is not None
        assert plan.total_bytes <= plan.budget_bytes
        assert all(table.why for table in plan.tables)


@pytest.mark.parametrize("budget", [None, 1.0, 0.4, 0.1])
def test_rows_of_tasks_are_planned_too(log: Path, budget: float | None) -> None:
    config = toy_config(
        log,
        memory={"budget": budget, "tables": {"item@click": {"format": "fp16"}}},
        vocabularies={
            "user": {"task_specific": {"buy": {"rows": 50, "dim": 3}}},
            "item": {"task_specific": {"click": {"rows": 10, "dim": 2}}},
        },
    )
    prepared = prepared_of(config)
    plan = make_plan(config, prepared)
    tables = {table.name: table for table in plan.tables}
    assert set(tables) == {"item", "user", "viewed", "item@click", "user@buy"}
    assert tables["item@click"].format == "fp16"
    assert tables["user@buy"].num_ids == 50
    assert plan.total_bytes == measured_bytes(config, plan, prepared)
    applied = apply_plan(config, plan)
    assert apply_plan(applied, make_plan(applied, prepared)) == applied
    if budget not in (None, 1.0):
        assert plan.total_bytes <= (plan.budget_bytes or 0)


def test_without_a_budget_the_plan_is_the_configuration(log: Path) -> None:
    config = toy_config(
        log,
        memory={"format": "int8", "tables": {"item": {"format": "fp16"}}},
        vocabularies={"user": {"min_count": 3, "buckets": 4}},
    )
    prepared = prepared_of(config)
    plan = make_plan(config, prepared)
    assert apply_plan(config, plan) == config
    assert plan.total_bytes == measured_bytes(config, plan, prepared)
    assert {t.name: t.format for t in plan.tables} == {
        "item": "fp16",
        "user": "int8",
        "viewed": "int8",
    }


def test_a_plan_is_given_to_the_next(log: Path) -> None:
    config = toy_config(log, memory={"budget": 0.2})
    prepared = prepared_of(config)
    plan = make_plan(config, prepared)
    applied = apply_plan(config, plan)
    again = make_plan(applied, prepared)
    assert again.total_bytes == plan.total_bytes
    assert apply_plan(applied, again) == applied
    assert measure(applied, prepared) == {}
    assert {table.pinned for table in again.tables} == {("min_count", "buckets", "bands")}


def test_what_is_given_stays(log: Path) -> None:
    config = toy_config(
        log,
        memory={"budget": 0.3, "tables": {"user": {"format": "fp32"}}},
        vocabularies={"item": {"min_count": 4, "buckets": 3}, "viewed": {"max_rows": 20}},
    )
    prepared = prepared_of(config)
    plan = make_plan(config, prepared)
    tables = {table.name: table for table in plan.tables}
    assert tables["user"].format == "fp32"
    assert (tables["item"].min_count, tables["item"].buckets) == (4, 3)
    assert tables["viewed"].rows <= 20 + tables["viewed"].buckets
    assert tables["user"].pinned == ("bands",)
    assert tables["item"].pinned == ("min_count", "buckets")
    assert plan.total_bytes == measured_bytes(config, plan, prepared) <= (plan.budget_bytes or 0)


def test_the_smallest_size_is_named_and_possible(log: Path) -> None:
    settings: dict[str, Any] = {"memory": {"tables": {"user": {"format": "int8"}}}}
    config = toy_config(log, **settings, vocabularies={"user": {"min_count": 2}})
    prepared = prepared_of(config)

    def with_budget(budget: str) -> RunConfig:
        memory = config.memory.model_copy(update={"budget": budget})
        return config.model_copy(update={"memory": memory})

    with pytest.raises(ConfigError) as caught:
        make_plan(with_budget("100B"), prepared)
    (sentence,) = caught.value.problems
    assert sentence.startswith("memory.budget: 100B is too small: the smallest plan takes ")
    assert sentence.endswith("what is given stays as it is: user (min_count, bands)")
    smallest = int(sentence.split("(")[1].split(" bytes")[0].replace(",", ""))
    assert make_plan(with_budget(f"{smallest}B"), prepared).total_bytes == smallest
    with pytest.raises(ConfigError, match="is too small"):
        make_plan(with_budget(f"{smallest - 1}B"), prepared)


def test_a_budget_that_was_not_planned_builds_nothing(log: Path) -> None:
    config = toy_config(log, memory={"budget": 0.5})
    with pytest.raises(ValueError, match=r"memory\.budget is not planned"):
        build_recommender(config, prepared_of(config).vocabularies, device=CPU)


def test_a_budget_of_one_trains_fp32_and_changes_nothing(log: Path, tmp_path: Path) -> None:
    plain = run(toy_config(log), run_dir=tmp_path / "plain", verbosity=-1)
    whole = run(toy_config(log, memory={"budget": 1.0}), run_dir=tmp_path / "one", verbosity=-1)
    assert whole["tasks"] == plain["tasks"]
    assert whole["memory"]["total_bytes"] == plain["memory"]["total_bytes"]
    assert {table["format"] for table in whole["memory"]["tables"]} == {"fp32"}


def test_a_run_reports_its_plan_and_is_evaluated_from_its_folder(log: Path, tmp_path: Path) -> None:
    config = toy_config(log, memory={"budget": 0.25})
    report = run(config, run_dir=tmp_path / "run", verbosity=-1)
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    memory = report["memory"]
    assert plan["total_bytes"] == memory["total_bytes"] <= 0.25 * memory["baseline_bytes"]
    assert plan["baseline_bytes"] == memory["baseline_bytes"]
    written = load_config(str(tmp_path / "run" / "config.yaml"), []).config
    assert written.memory.budget == 0.25
    assert set(written.memory.tables) == {"user", "item", "viewed"}
    from edorec.evaluate import evaluate

    again = evaluate(tmp_path / "run", files=None, split="test", verbosity=-1)
    assert again["tasks"]["click"]["auc"] == report["tasks"]["click"]["auc"]


def plan_command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edorec.cli", "plan", "--config", "my.yaml", *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )


def test_the_command_shows_reasons_and_writes_the_plan(log: Path, tmp_path: Path) -> None:
    config = toy_config(log, memory={"format": "int8"}).model_copy(update={"name": "my"})
    write_config(tmp_path / "my.yaml", config)
    done = plan_command(tmp_path, "--budget", "0.2")
    assert done.returncode == 0, done.stderr
    for word in ("item", "user", "viewed", "int8", "buckets", "kept", "of the look-ups"):
        assert word in done.stdout
    content = json.loads((tmp_path / "runs" / "my-plan.json").read_text())
    assert content["total_bytes"] <= content["budget_bytes"]
    assert f"budget {content['budget_bytes'] / 1000:.1f} KB" in done.stdout


def test_the_command_refuses_what_cannot_be(log: Path, tmp_path: Path) -> None:
    write_config(tmp_path / "my.yaml", toy_config(log, memory={"format": "int8"}))
    done = plan_command(tmp_path, "memory.budget=0.5")
    assert done.returncode == 2
    assert "memory.format: memory.budget decides it; leave it out" in done.stderr
    done = plan_command(tmp_path, "--budget", "1.5")
    assert done.returncode == 2
    assert "wanted a share of FP32's bytes, above 0 and at most 1" in done.stderr
    done = plan_command(tmp_path, "--budget", "9B")
    assert done.returncode == 2
    assert "9B is too small: the smallest plan takes" in done.stderr


def placements_of(plan: Plan) -> dict[str, str | None]:
    return {table.name: table.placement for table in plan.tables}


def test_tables_that_do_not_fit_into_memory_go_to_disk(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = toy_config(log, memory={"budget": 0.4}, data={"cache": str(tmp_path / "cache")})
    prepared = prepared_of(config)
    fits = make_plan(config, prepared)
    assert set(placements_of(fits).values()) == {None}
    sizes = {table.name: table.total_bytes for table in fits.tables}
    lookups = {t.name: int(prepared.vocabularies[t.vocabulary].counts.sum()) for t in fits.tables}
    coldest = min(sizes, key=lambda name: lookups[name] / sizes[name])
    # Room for all but a byte of the tables: the one with the fewest look-ups a byte goes.
    monkeypatch.setattr(placing, "free_memory_bytes", lambda: int(fits.total_bytes / 0.8) - 1)
    plan = make_plan(config, prepared)
    assert placements_of(plan) == {name: "disk" if name == coldest else None for name in sizes}
    (why,) = (table.why for table in plan.tables if table.placement)
    assert "disk, because tables of" in why
    assert make_plan(config, prepared, num_processes=2).tables == fits.tables

    monkeypatch.setattr(placing, "free_memory_bytes", lambda: 0)
    assert set(placements_of(make_plan(config, prepared)).values()) == {"disk"}
    report = run(config, run_dir=tmp_path / "run", verbosity=-1)
    assert report["memory"]["paging"]["read_bytes"] >= 0
    assert {table["placement"] for table in report["memory"]["tables"]} == {"disk"}
    saved = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert {table["placement"] for table in saved["tables"]} == {"disk"}
    # A run of the plan that was saved needs no planner, and what is given stays.
    monkeypatch.undo()
    again = load_config(tmp_path / "run" / "config.yaml", []).config
    assert {own.placement for own in again.memory.tables.values()} == {"disk"}
    given = toy_config(log, memory={"budget": 0.4, "placement": "ram"})
    monkeypatch.setattr(placing, "free_memory_bytes", lambda: 0)
    assert set(placements_of(make_plan(given, prepared)).values()) == {None}


def test_a_limit_of_the_monitor_counts_for_placement(log: Path) -> None:
    config = toy_config(log, memory={"budget": 0.4, "monitor": {"limit": "1MB"}})
    plan = make_plan(config, prepared_of(config))
    assert set(placements_of(plan).values()) == {"disk"}


def test_cuda_keeps_as_many_rows_as_find_room(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = toy_config(log, memory={"budget": 0.4})
    sizes, lookups = {"a": 700, "b": 200, "c": 100}, {"a": 7, "b": 10, "c": 100}
    monkeypatch.setattr(placing, "_free_bytes", lambda *_: 750)
    move = partial(move_tables, sizes=sizes, lookups=lookups, num_processes=1)
    moved = move(config.memory, config.embedding, device=torch.device("cuda"))
    assert moved is not None
    assert (moved.placement, moved.tables) == ("uvm", {"a"})
    assert moved.load_factor == pytest.approx((0.8 * 750 - 300) / 700, abs=0.01)
    assert moved.load_factor * 700 + 300 <= 0.8 * 750
    # Half of every table that goes is on the device, so two must go.
    half = toy_config(log, memory={"budget": 0.4, "uvm": {"load_factor": 0.5}})
    moved = move(half.memory, half.embedding, device=torch.device("cuda"))
    assert moved is not None
    assert (moved.tables, moved.load_factor) == ({"a", "b"}, None)


def test_a_run_goes_on_where_other_memory_is_free(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"memory": {"budget": 0.4}, "data": {"cache": str(tmp_path / "cache")}}
    short = toy_config(log, **settings, train={"epochs": 1}, checkpoint={"every_steps": 2})
    longer = toy_config(log, **settings, train={"epochs": 2}, checkpoint={"every_steps": 2})
    with monkeypatch.context() as patch:
        patch.setattr(placing, "free_memory_bytes", lambda: 0)
        run(short, run_dir=tmp_path / "run", verbosity=-1)
    report = run(longer, run_dir=tmp_path / "run", verbosity=-1, resume=True)
    assert report["resumed_from_step"]
    assert {table["placement"] for table in report["memory"]["tables"]} == {"ram"}
