"""A run that is interrupted and resumed is the run that was not."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from edorec.checkpoints.folder import newest_checkpoint, steps_of
from edorec.config import RunConfig
from edorec.errors import InputError
from edorec.step import TrainingStep
from edorec.train import run
from tests.checkpoints.runs import assert_same_runs, figures
from tests.toy import toy_config, write_toy


class PowerCutError(Exception):
    """What ends a run in these tests."""


@contextmanager
def interrupted_after(step: int) -> Iterator[None]:
    """Inside the block a run fails in the step behind ``step``, as a killed process would."""
    call = TrainingStep.__call__

    def stop(self: TrainingStep, batch: Any) -> float:
        if self.num_steps == step:
            raise PowerCutError
        return call(self, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingStep, "__call__", stop)
        with suppress(PowerCutError):
            yield
            pytest.fail("the run was over before")


def settings(**sections: dict[str, Any]) -> dict[str, Any]:
    """A run of 2 epochs of 16 steps with all that has state: dropout, batch norm, a schedule."""
    wanted: dict[str, Any] = {
        "model": {"dropout": 0.2, "batch_norm": True},
        "train": {"decay": "cosine", "warmup_steps": 3, "evaluate_every_steps": 5},
        "memory": {"format": "int8"},
        "checkpoint": {"every_steps": 4, "every_minutes": None},
    }
    return {key: {**wanted.get(key, {}), **sections.get(key, {})} for key in wanted | sections}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy(tmp_path_factory.mktemp("log"))


@pytest.fixture(scope="module")
def config(log: Path) -> RunConfig:
    return toy_config(log, **settings())


@pytest.fixture(scope="module")
def whole(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run without an interruption."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(config, run_dir=folder, verbosity=-1)
    return folder


def report_of(run_dir: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((run_dir / "report.json").read_text())
    return report


def resume(config: RunConfig, run_dir: Path) -> dict[str, Any]:
    return run(config, run_dir=run_dir, verbosity=-1, resume=True)


def test_b50_two_interruptions_change_nothing(
    config: RunConfig, whole: Path, tmp_path: Path
) -> None:
    with interrupted_after(10):  # in the first epoch, two steps after a checkpoint
        run(config, run_dir=tmp_path / "run", verbosity=-1)
    assert steps_of(tmp_path / "run" / "checkpoints") == [4, 8]
    with interrupted_after(21):
        resume(config, tmp_path / "run")
    report = resume(config, tmp_path / "run")
    assert report["resumed_from_step"] == 20
    assert report_of(whole)["resumed_from_step"] is None
    assert figures(report) == figures(report_of(whole))
    assert_same_runs(tmp_path / "run", whole, config)


@pytest.mark.parametrize(
    "sections",
    [
        {"memory": {"format": "fp32"}, "embedding": {"optimizer": "adam"}},
        {"memory": {"format": "fp16"}, "embedding": {"optimizer": "adagrad"}},
        {"memory": {"format": "fp32", "qat": "int4"}, "embedding": {"optimizer": "sgd"}},
        {
            "memory": {
                "format": "fp32",
                "bands": [
                    {"min_count": 30, "format": "int8"},
                    {"min_count": 5, "format": "int4", "state": "bf16"},
                    {"min_count": 2, "format": "int2", "state": "log8"},
                    {"format": "ternary", "state": "log8"},
                ],
            }
        },
        {
            "train": {"task_weights": "uncertainty"},
            "model": {"head": {"name": "ple"}},
        },
        {"data": {"shuffle": False}, "train": {"matmul_precision": "bf16"}},
        {"data": {"shuffle_rows": 300}, "vocabularies": {"user": {"min_count": 5, "oov_rate": 1}}},
        {"vocabularies": {"item": {"task_specific": {"buy": {"rows": 20, "dim": 2}}}}},
    ],
    ids=["adam", "fp16", "qat", "bands", "learned weights", "in order", "buckets", "tasks' rows"],
)
def test_every_storage_resumes_exactly(log: Path, tmp_path: Path, sections: dict[str, Any]) -> None:
    config = toy_config(log, **settings(**sections))
    whole = run(config, run_dir=tmp_path / "whole", verbosity=-1)
    with interrupted_after(18):
        run(config, run_dir=tmp_path / "run", verbosity=-1)
    report = resume(config, tmp_path / "run")
    assert report["resumed_from_step"] == 16
    assert figures(report) == figures(whole)
    assert_same_runs(tmp_path / "run", tmp_path / "whole", config)


def test_a_run_that_extends_another_resumes_exactly(log: Path, whole: Path, tmp_path: Path) -> None:
    folder = write_toy(tmp_path / "log", train=3000, valid=200, test=0)
    start = {"data": {"extend": str(whole)}, "train": {"warm_start": str(whole)}}
    config = toy_config(folder, **settings(**start))
    run(config, run_dir=tmp_path / "whole", verbosity=-1)
    with interrupted_after(10):
        run(config, run_dir=tmp_path / "run", verbosity=-1)
    report = resume(config, tmp_path / "run")
    assert report["resumed_from_step"] == 8
    assert report["warm_start"] == report_of(tmp_path / "whole")["warm_start"]
    assert figures(report) == figures(report_of(tmp_path / "whole"))
    assert_same_runs(tmp_path / "run", tmp_path / "whole", config)


def test_an_increment_resumes_exactly(tmp_path: Path) -> None:
    small = write_toy(tmp_path / "log", train=120, valid=50, test=50)
    config = toy_config(
        small,
        **settings(
            embedding={"dim": 500},  # two rows a page, so that a step changes few of them
            train={"batch_size": 2, "evaluate_every_steps": 50},
            checkpoint={"every_steps": 1, "every_minutes": None},
        ),
    )
    whole = run(config, run_dir=tmp_path / "whole", verbosity=-1)
    with interrupted_after(5):
        run(config, run_dir=tmp_path / "run", verbosity=-1)
    newest = newest_checkpoint(tmp_path / "run" / "checkpoints", print)
    assert newest is not None
    assert newest.step == 5
    assert newest.manifest["base"] is not None
    assert figures(resume(config, tmp_path / "run")) == figures(whole)
    assert_same_runs(tmp_path / "run", tmp_path / "whole", config)


def test_10_and_10_steps_are_20_by_more_epochs(log: Path, tmp_path: Path) -> None:
    train = {"decay": "none", "batch_size": 400, "evaluate_every_steps": None}
    one = toy_config(log, **settings(train=train | {"epochs": 1}))
    two = toy_config(log, **settings(train=train | {"epochs": 2}))
    run(one, run_dir=tmp_path / "run", verbosity=-1)
    report = resume(two, tmp_path / "run")
    assert report["resumed_from_step"] == 10
    assert report["speed"]["train_steps"] == 20
    assert figures(report) == figures(run(two, run_dir=tmp_path / "whole", verbosity=-1))
    assert_same_runs(tmp_path / "run", tmp_path / "whole", two)


def test_more_epochs_under_a_decay_would_change_the_steps_done(
    config: RunConfig, log: Path, whole: Path, tmp_path: Path
) -> None:
    shutil.copytree(whole, tmp_path / "run")
    longer = toy_config(log, **settings(train={"epochs": 3, **settings()["train"]}))
    with pytest.raises(InputError, match=r"train\.epochs is 2 there and 3 here"):
        resume(longer, tmp_path / "run")


def test_a_finished_run_is_reported_again(config: RunConfig, whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "run")
    before = report_of(whole)
    again = resume(config, tmp_path / "run")
    assert again["resumed_from_step"] == 32
    assert figures(again) == figures(before)
    assert again["speed"]["train_seconds"] == pytest.approx(before["speed"]["train_seconds"], rel=1)


def test_early_stopping_goes_on_counting(log: Path, tmp_path: Path) -> None:
    stopping = {"metric": "logloss", "patience": 2}
    sections = settings(
        embedding={"learning_rate": 0.5},
        train={"epochs": 6, "early_stopping": stopping, "evaluate_every_steps": None},
    )
    config = toy_config(log, **sections)
    whole = run(config, run_dir=tmp_path / "whole", verbosity=-1)
    (event,) = [event for event in whole["events"] if event["kind"] == "early_stop"]
    with interrupted_after(event["step"] - 1):
        run(config, run_dir=tmp_path / "run", verbosity=-1)
    report = resume(config, tmp_path / "run")
    assert figures(report) == figures(whole)
    assert figures(resume(config, tmp_path / "run")) == figures(whole)  # and stays stopped
    assert_same_runs(tmp_path / "run", tmp_path / "whole", config)


def test_without_a_checkpoint_it_starts_from_the_beginning(
    config: RunConfig, whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with interrupted_after(3):
        run(config, run_dir=tmp_path / "run", verbosity=-1)
    report = run(config, run_dir=tmp_path / "run", verbosity=0, resume=True)
    assert (
        "holds no complete checkpoint: training starts from the beginning" in capfd.readouterr().err
    )
    assert report["resumed_from_step"] is None
    assert figures(report) == figures(report_of(whole))
    assert_same_runs(tmp_path / "run", whole, config)


def test_the_newest_run_of_the_name_is_the_default(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = toy_config(log, **settings()).model_copy(update={"name": "shop"})
    with pytest.raises(InputError, match="there is no run runs/shop-<time> to resume"):
        run(config, run_dir=None, verbosity=-1, resume=True)
    with interrupted_after(6):
        run(config, run_dir=Path("runs/shop-20260102-030405"), verbosity=-1)
    with interrupted_after(10):
        run(config, run_dir=Path("runs/shop-20260203-030405"), verbosity=-1)
    run(config, run_dir=Path("runs/shop-other"), verbosity=-1)
    report = run(config, run_dir=None, verbosity=-1, resume=True)
    assert report["run"] == "runs/shop-20260203-030405"
    assert report["resumed_from_step"] == 8


def test_a_folder_of_something_else_is_refused(config: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"holds no run to resume \(config\.yaml is missing\)"):
        resume(config, tmp_path)


def test_no_checkpoints_when_both_intervals_are_null(log: Path, tmp_path: Path) -> None:
    config = toy_config(log, checkpoint={"every_minutes": None})
    run(config, run_dir=tmp_path / "run", verbosity=-1)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["best.pt"]


def test_b49_b48_differences_are_refused_before_loading_naming_both_sides(
    log: Path, whole: Path, tmp_path: Path
) -> None:
    shutil.copytree(whole, tmp_path / "run")
    features = {"sparse": {"user": {}, "viewed": {"pooling": "mean"}}, "dense": {"price": {}}}
    other = toy_config(
        log,
        **settings(
            features=features,
            embedding={"dim": 8},
            memory={"format": "int4"},
            vocabularies={"user": {"min_count": 3}},
            train=settings()["train"] | {"seed": 1},
        ),
    )
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(InputError) as error:
        resume(other, tmp_path / "run")
    text = str(error.value)
    for sentence in (
        "features.sparse.item is there, and absent here",
        "embedding.dim is 4 there and 8 here",
        "memory.format is int8 there and int4 here",
        "vocabularies.user is here, and absent there",
        "train.seed is 0 there and 1 here",
        "vocabulary item is there, and absent here",
        "table item.band0 is 101 rows there, and absent here",
        "table user.band0 is",
        "dense weight ",
        "another --run-dir",
    ):
        assert sentence in text, text
    assert before == {
        path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()
    }


def test_other_data_under_the_same_names_are_refused(tmp_path: Path) -> None:
    log = write_toy(tmp_path / "log", train=600, valid=100, test=100)
    config = toy_config(log, **settings())
    run(config, run_dir=tmp_path / "run", verbosity=-1)
    shutil.copytree(log, tmp_path / "moved")
    moved = toy_config(tmp_path / "moved", **settings())
    assert resume(moved, tmp_path / "run")["resumed_from_step"] == 6  # only the place is another
    write_toy(log, train=700, valid=100, test=100)
    with pytest.raises(InputError, match=r"split train\.rows is 600 there and 700 here"):
        resume(config, tmp_path / "run")


def test_two_processes_cannot_work_in_one_folder(config: RunConfig, tmp_path: Path) -> None:
    from edorec.output_folder import locked_folder

    (tmp_path / "run").mkdir()
    with locked_folder(tmp_path / "run"), pytest.raises(InputError, match="another process"):
        resume(config, tmp_path / "run")


def test_the_dropout_of_another_process_does_not_matter(
    config: RunConfig, whole: Path, tmp_path: Path
) -> None:
    with interrupted_after(13):
        run(config, run_dir=tmp_path / "run", verbosity=-1)
    torch.manual_seed(99)
    resume(config, tmp_path / "run")
    assert_same_runs(tmp_path / "run", whole, config)
