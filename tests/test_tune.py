"""Searches on a small log: by command, resumed, killed, refused."""

import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from edorec import cli
from edorec import tune as tune_module
from edorec.config import load_config
from edorec.errors import ConfigError, InputError, NotFiniteError
from edorec.search_space import RANGES, Range, search_space
from edorec.tune import tune
from tests.toy import toy_config, toy_rows, write_config, write_toy

ROOT = Path(__file__).parent.parent
TUNE = [sys.executable, "-m", "edorec.cli", "tune", "--config", "my.yaml", "--run-dir", "search"]
SPACE = dict(RANGES)


def start(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def content(folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((folder / "tune.json").read_text())
    return result


def without_seconds(trials: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in t.items() if key != "seconds"} for t in trials]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log whose test file is no Parquet file: opening it would end the search."""
    folder = write_toy(tmp_path_factory.mktemp("log"), train=1500, valid=300, test=300)
    (folder / "test.parquet").write_bytes(b"not to be read")
    return folder


def search(log: Path, run_dir: Path, *, trials: int, **sections: dict[str, Any]) -> dict[str, Any]:
    space = sections.pop("space", SPACE)
    config = toy_config(log, **sections)
    return tune(config, space, num_trials=trials, run_dir=run_dir, verbosity=-1)


def test_a_search_by_commands_resumed_and_its_best_trained(log: Path, tmp_path: Path) -> None:
    write_config(tmp_path / "my.yaml", toy_config(log).model_copy(update={"name": "my"}))
    first = start(*TUNE, "--trials", "3", "train.num_threads=1", cwd=tmp_path)
    assert "trial 1 of 3: auc 0." in first.stderr
    assert "best so far" in first.stderr
    assert "train the best: edorec train --config search/best.yaml" in first.stdout
    three = content(tmp_path / "search")["trials"]
    again = start(*TUNE, "--trials", "5", cwd=tmp_path)
    assert "search holds 3 trials" in again.stderr
    assert "trial 4 of 5" in again.stderr
    assert "trial 3 of" not in again.stderr
    result = content(tmp_path / "search")
    assert result["trials"][:3] == three
    assert [trial["trial"] for trial in result["trials"]] == [1, 2, 3, 4, 5]

    # The same five as in one go, and nothing left to do when all are there.
    whole = search(log, tmp_path / "whole", trials=5)
    assert without_seconds(whole["trials"]) == without_seconds(result["trials"])
    assert len(search(log, tmp_path / "whole", trials=2)["trials"]) == 5

    best = result["trials"][result["best"] - 1]
    assert best["value"] == max(trial["value"] for trial in result["trials"])
    text = (tmp_path / "search" / "best.yaml").read_text()
    assert text.startswith(f"# Trial {best['trial']}, the best of 5 of the search in search ")
    assert f"# validation auc of click {best['value']:.6g}, epoch {best['best_epoch']}." in text
    assert not list((tmp_path / "search").glob("*.tmp"))

    # Training it gives the very figure of the search, now with the test split.
    usable = tmp_path / "log"
    write_toy(usable, train=1500, valid=300, test=300)
    trained = [str(ROOT / "train.py"), "--config", "search/best.yaml", "--run-dir", "run", "-q"]
    start(sys.executable, *trained, f"data.folder={usable}", cwd=tmp_path)
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["validation"]["click"]["auc"] == best["value"]
    assert report["tasks_split"] == "test"
    assert (
        report["config"]["embedding"]["learning_rate"] == best["values"]["embedding.learning_rate"]
    )
    assert report["config"]["train"]["epochs"] == best["best_epoch"]


def test_a_killed_search_goes_on_as_if_nothing_had_happened(log: Path, tmp_path: Path) -> None:
    write_config(tmp_path / "my.yaml", toy_config(log).model_copy(update={"name": "my"}))
    folder = tmp_path / "search"
    with (tmp_path / "err.txt").open("w") as stderr:
        process = subprocess.Popen(
            [*TUNE, "--trials", "1000"], cwd=tmp_path, stdout=stderr, stderr=stderr
        )
    deadline = time.monotonic() + 120
    while not (folder / "tune.json").exists() or len(content(folder)["trials"]) < 2:
        assert process.poll() is None, (tmp_path / "err.txt").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.wait()
    done = len(content(folder)["trials"])
    config = load_config(str(tmp_path / "my.yaml"), []).config
    result = tune(config, SPACE, num_trials=done + 2, run_dir=folder, verbosity=-1)
    whole = tune(config, SPACE, num_trials=done + 2, run_dir=tmp_path / "whole", verbosity=-1)
    assert without_seconds(result["trials"]) == without_seconds(whole["trials"])


def test_a_log_without_test_split_and_a_metric_that_is_better_when_lower(tmp_path: Path) -> None:
    log = write_toy(tmp_path / "log", train=800, valid=200, test=0)
    stopping = {"task": "buy", "metric": "logloss"}
    result = search(log, tmp_path / "search", trials=3, train={"early_stopping": stopping})
    assert (result["task"], result["metric"], result["direction"]) == ("buy", "logloss", "minimize")
    values = [trial["value"] for trial in result["trials"]]
    assert result["trials"][result["best"] - 1]["value"] == min(values)
    best = load_config(str(tmp_path / "search" / "best.yaml"), []).config
    assert best.data.test is None
    trial = result["trials"][result["best"] - 1]
    assert trial["validation"]["buy"]["logloss"] == trial["value"]


def test_the_first_trial_is_the_configuration_and_others_stay_in_the_ranges(
    log: Path, tmp_path: Path
) -> None:
    embedding = {"learning_rate": 0.2, "initial_accumulator": 1e-8, "weight_decay": 0.5}
    settings = {"learning_rate": 0.002, "evaluate_every_steps": 2}
    result = search(log, tmp_path / "search", trials=8, embedding=embedding, train=settings)
    first = dict(result["trials"][0]["values"])
    first.pop("train.epochs")
    assert first == {
        "embedding.learning_rate": 0.2,
        "embedding.initial_accumulator": 1e-8,
        "embedding.weight_decay": 0.1,  # the end of its range
        "train.learning_rate": 0.002,
    }
    decays = [trial["values"]["embedding.weight_decay"] for trial in result["trials"]]
    assert 0 in decays
    for trial in result["trials"]:
        for key, value in trial["values"].items():
            assert SPACE[key].low <= value <= SPACE[key].high or (key, value) == (
                "embedding.weight_decay",
                0,
            )
        assert trial["values"]["train.epochs"] == trial["best_epoch"]
    lines = (tmp_path / "search" / "trials" / "001" / "metrics.jsonl").read_text().splitlines()
    assert [x["epoch"] for x in map(json.loads, lines) if x["split"] == "valid"] == [0, 1, 2, 3]
    assert not list((tmp_path / "search").rglob("*.pt"))
    best = load_config(str(tmp_path / "search" / "best.yaml"), []).config
    assert best.train.evaluate_every_steps == 2
    assert best.data.test == "test.parquet"


def test_with_a_decay_epochs_are_searched(log: Path, tmp_path: Path) -> None:
    space = {"train.epochs": Range(2, 3)}
    result = search(log, tmp_path / "search", trials=3, train={"decay": "linear"}, space=space)
    epochs = [trial["values"]["train.epochs"] for trial in result["trials"]]
    assert epochs[0] == 2
    assert set(epochs) <= {2, 3}
    for index, number in enumerate(epochs, start=1):
        path = tmp_path / "search" / "trials" / f"{index:03}" / "metrics.jsonl"
        valid = [line for line in path.read_text().splitlines() if '"split": "valid"' in line]
        assert len(valid) == number


def test_a_diverged_trial_does_not_end_the_search(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit = tune_module.fit
    calls = []

    def diverge_first(*args: Any, **options: Any) -> Any:
        calls.append(options["trial"])
        if len(calls) == 1:
            raise NotFiniteError("the loss is not finite at step 3")
        return fit(*args, **options)

    monkeypatch.setattr(tune_module, "fit", diverge_first)
    result = search(log, tmp_path / "search", trials=2)
    assert calls[0] == "trial 1 of 2"
    bad, good = result["trials"]
    assert (bad["state"], bad["value"]) == ("diverged", None)
    assert bad["error"] == "the loss is not finite at step 3"
    assert (good["state"], result["best"]) == ("complete", 2)


def test_if_all_trials_diverge_that_is_said(log: Path, tmp_path: Path) -> None:
    space = {"embedding.learning_rate": Range(1e30, 2e30), "train.learning_rate": Range(1e20, 2e20)}
    with pytest.raises(
        InputError,
        match=r"^all 2 trials diverged \(the last: the loss is not finite at step .*--range$",
    ):
        search(log, tmp_path / "search", trials=2, embedding={"optimizer": "sgd"}, space=space)
    assert not (tmp_path / "search" / "best.yaml").exists()


def test_another_search_in_the_same_folder_is_refused(log: Path, tmp_path: Path) -> None:
    search(log, tmp_path / "search", trials=1)
    with pytest.raises(
        InputError,
        match=r"search with other settings \(embedding\.dim was 4, is 8; "
        r"--range train\.epochs was 1\.\.4, is 1\.\.2\); give another --run-dir$",
    ):
        search(
            log,
            tmp_path / "search",
            trials=2,
            embedding={"dim": 8},
            space=SPACE | {"train.epochs": Range(1, 2)},
        )
    # The number of threads may change.
    search(log, tmp_path / "search", trials=1, train={"num_threads": 2})


def test_other_data_are_refused(tmp_path: Path) -> None:
    log = write_toy(tmp_path / "log", train=300, valid=100, test=0)
    search(log, tmp_path / "search", trials=1)
    write_toy(log, train=400, valid=100, test=0)
    with pytest.raises(InputError, match=r"other settings \(the content of the data files was "):
        search(log, tmp_path / "search", trials=2)


def test_folders_that_cannot_be_used_are_refused(log: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"mine is not empty and holds no search \(study\.db\)"):
        search(log, mine, trials=1)
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "study.db").write_text("no database " * 100)
    with pytest.raises(InputError, match=r"damaged/study\.db is not a sound study: file is not"):
        search(log, damaged, trials=1)
    used = tmp_path / "used"
    used.mkdir()
    handle = os.open(used, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with pytest.raises(InputError, match=r"^another process is at work in .*used$"):
        search(log, used, trials=1)
    os.close(handle)


def test_an_undefined_metric_ends_the_search(tmp_path: Path) -> None:
    log = write_toy(tmp_path / "log", train=300, valid=0, test=0)
    rows = toy_rows(40, seed=5)
    index = rows.column_names.index("click")
    rows = rows.set_column(index, "click", pa.array([0] * 40, pa.int8()))
    pq.write_table(rows, log / "valid.parquet")
    with pytest.raises(InputError, match=r"^auc of task click is undefined on the validation spl"):
        search(log, tmp_path / "search", trials=2)


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.chdir(tmp_path)
    write_toy(tmp_path, train=20, valid=10, test=0)
    write_config(tmp_path / "my.yaml", toy_config(tmp_path))
    return CliRunner()


def refused(runner: CliRunner, *arguments: str) -> list[str]:
    result = runner.invoke(cli.app, ["tune", "--config", "my", *arguments])
    assert result.exit_code == 2
    assert not Path("runs").exists()
    return result.stderr.splitlines()


def test_without_a_validation_split_it_says_so(runner: CliRunner) -> None:
    assert refused(runner, "data.valid=null") == [
        "my.yaml: data.valid: a search chooses by the validation split; give its files"
    ]


def test_without_optuna_it_says_what_to_install(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    (line,) = refused(runner)
    assert line.startswith("edorec tune needs the package optuna (")
    assert line.endswith(
        "): pip install 'edorec[tune]', or in a checkout pip install -r requirements/tune.txt"
    )


def test_wrong_columns_are_told_before_a_folder_is_made(runner: CliRunner) -> None:
    (line,) = refused(runner, "tasks.buy.label=bought")
    assert line.startswith("tasks.buy.label: there is no column bought in ")


def test_every_problem_of_the_ranges_is_told(runner: CliRunner) -> None:
    assert refused(
        runner,
        *("--range", "train.epoch=1..2", "--range", "train.learning_rate=0.1"),
        *("--range", "embedding.weight_decay=0..1", "--range", "train.epochs=1.5..2"),
        *("--range", "embedding.learning_rate=0.1..0.2", "embedding.learning_rate=0.1"),
        *("--range", "1..2"),
    ) == [
        "--range train.epoch=1..2: train.epoch is not searched; did you mean train.epochs?",
        "--range train.learning_rate=0.1: wanted KEY=LOW..HIGH, such as "
        "train.learning_rate=0.0003..0.005",
        "--range embedding.weight_decay=0..1: wanted numbers above 0, the lower one first, such as "
        "1e-05..0.1",
        "--range train.epochs=1.5..2: wanted whole numbers, such as 1..4",
        "--range embedding.learning_rate=0.1..0.2: embedding.learning_rate is not searched: fixed "
        "by --set embedding.learning_rate=0.1",
        "--range 1..2: 1..2 is not searched; there are embedding.learning_rate, "
        "embedding.initial_accumulator, embedding.weight_decay, train.learning_rate, train.epochs",
    ]


def test_what_is_set_is_not_searched(runner: CliRunner, tmp_path: Path) -> None:
    path = str(tmp_path / "my.yaml")
    loaded = load_config(path, ["embedding.weight_decay=0", "train={epochs: 2}"])
    space = search_space(loaded, ["embedding.learning_rate=0.1..0.2"])
    assert space == {
        "embedding.learning_rate": Range(0.1, 0.2),
        "embedding.initial_accumulator": RANGES["embedding.initial_accumulator"],
        "train.learning_rate": RANGES["train.learning_rate"],
    }
    sgd = load_config(path, ["embedding.optimizer=sgd"])
    assert set(RANGES) - set(search_space(sgd, [])) == {"embedding.initial_accumulator"}
    with pytest.raises(ConfigError, match="initial_accumulator is not searched: sgd has none"):
        search_space(sgd, ["embedding.initial_accumulator=1e-5..1e-4"])
    with pytest.raises(ConfigError, match="every key of the search is fixed by --set"):
        search_space(load_config(path, [f"{key}=1" for key in RANGES]), [])


def test_help_names_the_ranges(runner: CliRunner) -> None:
    text = " ".join(runner.invoke(cli.app, ["tune", "--help"]).stdout.split())
    for key, span in RANGES.items():
        low, _, high = text.partition(f"{key} ")[2].partition(",")[0].split()[0].partition("..")
        assert Range(float(low), float(high)) == span, key
