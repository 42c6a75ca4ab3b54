"""A search for learning rates, initial accumulator, weight decay and epochs.

Every trial is a training of its own, judged by ``train.early_stopping``'s task and metric on the
validation split at its best epoch. The test split is taken out of the configuration before
anything is opened, so no trial can see it. Optuna's TPE sampler proposes the values.

Epochs cost no trials as long as ``train.decay`` is none: what the first epochs do then does not
depend on how many follow, so each trial trains the largest number, is evaluated after every epoch,
and its best one becomes its ``train.epochs``; training that many gives the very same figure. With a
decay, which stretches over the whole run, the sampler proposes the number of epochs.

The study is in ``study.db`` of the run folder. A trial's random numbers follow from ``train.seed``
and from how many trials ended before it, so a search that was killed and taken up again tries the
same values as one that was not; the trial that the kill cut off is trained anew.
"""

import gc
import json
import shutil
import time
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import numpy as np
import optuna
from optuna.trial import TrialState
from rich.console import Console
from sqlalchemy.exc import DatabaseError

from edorec.config import RunConfig, dump_config
from edorec.data.prepare import Prepared
from edorec.errors import InputError, NotFiniteError
from edorec.optimization import EarlyStopping
from edorec.output_folder import work_folder, write_file
from edorec.planning.plan import apply_plan
from edorec.planning.planner import make_plan
from edorec.search_space import EPOCHS, WEIGHT_DECAY, Range, value_of, with_values, without_test
from edorec.selection import SCALARS
from edorec.summaries import print_search
from edorec.train import fit, prepare_splits, set_up
from edorec.warm_start import new_recommender

STUDY = "study.db"
HAS_DECAY = f"{WEIGHT_DECAY} > 0"
ENDED = (TrialState.COMPLETE, TrialState.PRUNED)  # pruned: diverged, which the sampler learns from

Outcome = dict[str, Any]
Direction = Literal["maximize", "minimize"]


def tune(
    config: RunConfig,
    space: Mapping[str, Range],
    *,
    num_trials: int,
    run_dir: Path | None,
    verbosity: int,
) -> dict[str, Any]:
    """Searches ``space``, or goes on with the search in ``run_dir``; writes best.yaml, tune.json.

    Args:
        config: the whole run, with a validation split.
        space: from :func:`edorec.search_space.search_space`.
        num_trials: trials in all, those of an earlier call included.
        run_dir: folder to write, new, empty or that of a search; default
            ``runs/<name>-tune-<time>``.
        verbosity: -1 quiet, 0 normal, 1 verbose.

    Returns:
        The content of tune.json.

    Raises:
        ConfigError: if the configuration cannot run here.
        InputError: if data are bad, ``run_dir`` holds something else or a search with other
            settings, the metric is undefined, or every trial diverges.
    """
    if run_dir is None:
        run_dir = Path("runs") / f"{config.name or 'run'}-tune-{datetime.now():%Y%m%d-%H%M%S}"
    with work_folder(run_dir, holds=STUDY, what="search"):
        search = _Search(config, space, run_dir=run_dir, verbosity=verbosity)
        search.run(num_trials)
        result = search.write()
    if result["best"] is None:
        raise InputError(
            f"all {len(result['trials'])} trials diverged (the last: "
            f"{result['trials'][-1]['error']}); search lower learning rates with --range"
        )
    print_search(result, Console(quiet=verbosity < 0))
    return result


class _Search:
    """A study in its folder."""

    def __init__(
        self, config: RunConfig, space: Mapping[str, Range], *, run_dir: Path, verbosity: int
    ) -> None:
        self._config = config
        self._space = space
        self._run_dir = run_dir
        self._verbosity = verbosity
        self._console = Console(stderr=True, quiet=verbosity < 0)
        self._device, _ = set_up(config)
        self._has_free_epochs = EPOCHS in space and config.train.decay == "none"
        # What a trial trains: without the test split, with one evaluation an epoch.
        self._searched = with_values(without_test(config), {"train.evaluate_every_steps": None})
        stopping = config.train.early_stopping
        self._task, self._metric = stopping.task or next(iter(config.tasks)), stopping.metric
        self._is_higher_better = EarlyStopping.HIGHER_IS_BETTER[self._metric]
        self._direction: Direction = "maximize" if self._is_higher_better else "minimize"
        self._study = _open_study(run_dir / STUDY, self._direction)
        settings = _flat(self._searched.model_dump(mode="json"))
        del settings["train.num_threads"]
        ranges = {f"--range {key}": str(span) for key, span in space.items()}
        self._agree("settings", settings | ranges)

    def run(self, num_trials: int) -> None:
        """Trains until ``num_trials`` trials have ended."""
        done = len(self._outcomes())
        if done:
            self._say(f"{self._run_dir} holds {done} trials")
        if done >= num_trials:
            return
        self._say(f"if interrupted, the same command with --run-dir {self._run_dir} goes on")
        prepared = prepare_splits(self._searched, console=self._console, verbosity=self._verbosity)
        self._agree("data", {"the content of the data files": prepared.key})
        self._searched = apply_plan(self._searched, make_plan(self._searched, prepared))
        while len(self._outcomes()) < num_trials:
            self._run_trial(prepared, num_trials)
            gc.collect()  # its tables are gone before the next trial's are made
            self.write()
            self._say(self._progress(num_trials))

    def write(self) -> dict[str, Any]:
        """Writes tune.json and, once there is a best trial, best.yaml; returns tune.json."""
        trials, best = self._outcomes(), self._best()
        result = {
            "run": str(self._run_dir),
            "task": self._task,
            "metric": self._metric,
            "direction": self._direction,
            "ranges": {key: [span.low, span.high] for key, span in self._space.items()},
            "best": best and best["trial"],
            "trials": trials,
        }
        if best:
            config = with_values(self._config, best["values"])
            head = (
                f"# Trial {best['trial']}, the best of {len(trials)} of the search in "
                f"{self._run_dir} ({STUDY}):\n"
                f"# validation {self._metric} of {self._task} {best['value']:.6g}, epoch "
                f"{best['best_epoch']}. The search has not read the test split.\n"
            )
            write_file(self._run_dir / "best.yaml", head + dump_config(config))
        text = json.dumps(result, indent=2, allow_nan=False)
        write_file(self._run_dir / "tune.json", text + "\n")
        return result

    def _run_trial(self, prepared: Prepared, num_trials: int) -> None:
        index, best = len(self._outcomes()), self._best()
        seed = np.random.SeedSequence([self._config.train.seed, index]).generate_state(1)
        self._study.sampler = optuna.samplers.TPESampler(seed=int(seed[0]))
        if index == 0 and not self._study.get_trials(states=(TrialState.WAITING,)):
            self._study.enqueue_trial(self._first_values())
        trial = self._study.ask()
        values = self._suggest(trial)
        label = f"trial {index + 1} of {num_trials}"
        if best:
            label += f", best {self._metric} {best['value']:.4f}"
        started = time.perf_counter()
        try:
            outcome: Outcome = self._train(values, prepared, index=index, label=label)
        except NotFiniteError as error:
            outcome = {"state": "diverged", "value": None, "error": str(error)}
        outcome["seconds"] = time.perf_counter() - started
        trial.set_user_attr("outcome", {"trial": index + 1, "values": values} | outcome)
        if outcome["value"] is None:
            self._study.tell(trial, state=TrialState.PRUNED)
        else:
            self._study.tell(trial, outcome["value"])

    def _train(
        self, values: dict[str, float], prepared: Prepared, *, index: int, label: str
    ) -> Outcome:
        """What comes out of training with ``values``, in which the best epoch is then noted."""
        folder = self._run_dir / "trials" / f"{index + 1:03}"
        shutil.rmtree(folder, ignore_errors=True)  # of an attempt that was cut off
        folder.mkdir(parents=True)
        config = with_values(self._searched, values)
        recommender, _ = new_recommender(config, prepared, device=self._device)
        state, _ = fit(
            recommender,
            prepared,
            config,
            run_dir=folder,
            console=self._console,
            verbosity=self._verbosity,
            trial=label,
        )
        selection = state.selection
        if selection.best is None or selection.best_epoch is None:
            raise InputError(
                f"{self._metric} of task {self._task} is undefined on the validation split "
                "(docs/metrics.md says when); set train.early_stopping.task or metric"
            )
        if self._has_free_epochs:
            values[EPOCHS] = max(int(self._space[EPOCHS].low), selection.best_epoch)
        validation = {
            task: {name: metrics[name] for name in SCALARS}
            for task, metrics in selection.validation.items()
        }
        return {
            "state": "complete",
            "value": selection.best,
            "best_epoch": selection.best_epoch,
            "validation": validation,
        }

    def _suggest(self, trial: optuna.Trial) -> dict[str, float]:
        """The values to train with, of four digits."""
        values: dict[str, float] = {}
        for key, span in self._space.items():
            if key == EPOCHS:
                low, high = int(span.low), int(span.high)
                values[key] = high if self._has_free_epochs else trial.suggest_int(key, low, high)
            elif key == WEIGHT_DECAY and not trial.suggest_categorical(HAS_DECAY, [False, True]):
                values[key] = 0.0
            else:
                value = trial.suggest_float(key, span.low, span.high, log=True)
                values[key] = float(f"{value:.4g}")
        return values

    def _first_values(self) -> dict[str, float | bool]:
        """What the configuration says, moved into the ranges."""
        own = {key: span.clip(value_of(self._config, key)) for key, span in self._space.items()}
        if WEIGHT_DECAY in own:
            return own | {HAS_DECAY: self._config.embedding.weight_decay > 0}
        return own

    def _outcomes(self) -> list[Outcome]:
        """What came out of the trials that ended, in their order."""
        return [t.user_attrs["outcome"] for t in self._study.get_trials(states=ENDED)]

    def _best(self) -> Outcome | None:
        """The first trial with the best value."""
        known = [outcome for outcome in self._outcomes() if outcome["value"] is not None]
        sign = -1 if self._is_higher_better else 1
        return min(known, key=lambda outcome: sign * outcome["value"], default=None)

    def _progress(self, num_trials: int) -> str:
        """One line about the trial that ended last."""
        trials, best = self._outcomes(), self._best()
        last = trials[-1]
        text = f"trial {last['trial']} of {num_trials}: "
        if last["value"] is None:
            text += "diverged"
        else:
            text += f"{self._metric} {last['value']:.4f} at epoch {last['best_epoch']}"
        if best:
            text += f", best so far {best['value']:.4f} (trial {best['trial']})"
        mean = sum(trial["seconds"] for trial in trials) / len(trials)
        left = timedelta(seconds=round(mean * (num_trials - len(trials))))
        return f"{text}, about {left} left" if left else text

    def _agree(self, name: str, wanted: dict[str, Any]) -> None:
        """Notes in a new study what all its trials share; refuses to go on with another."""
        before = self._study.user_attrs.get(name, wanted)
        keys = [key for key in before | wanted if before.get(key) != wanted.get(key)]
        if keys:
            changes = (f"{key} was {before.get(key)}, is {wanted.get(key)}" for key in keys)
            raise InputError(
                f"{self._run_dir} holds a search with other settings ({'; '.join(changes)}); "
                "give another --run-dir"
            )
        self._study.set_user_attr(name, wanted)

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)


def _open_study(path: Path, direction: Direction) -> optuna.Study:
    """The study of a file, made if there is none; a trial that was cut off counts as failed."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study(
            storage=f"sqlite:///{path}",
            study_name="tune",
            direction=direction,
            load_if_exists=True,
        )
    except DatabaseError as error:
        raise InputError(f"{path} is not a sound study: {error.orig}") from error
    for trial in study.get_trials(states=(TrialState.RUNNING,)):
        study.tell(trial.number, state=TrialState.FAIL)
    return study


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Leaves of nested mappings by dotted key."""
    if not isinstance(value, dict) or not value:
        return {prefix: value}
    return {
        key: leaf
        for name, inner in value.items()
        for key, leaf in _flat(inner, f"{prefix}.{name}" if prefix else name).items()
    }
