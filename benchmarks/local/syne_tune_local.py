"""The common workload with Syne Tune's local backend, in its own environment.

A trial is a process, `syne_tune_trial.py`; the driver polls its output for reports. The user
chooses the interval: here it is short.
"""

# mypy: disable-error-code="import-not-found, import-untyped, misc, no-any-return"

from __future__ import annotations

import logging
import os
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from syne_tune import StoppingCriterion, Tuner
from syne_tune.backend import LocalBackend
from syne_tune.config_space import uniform
from syne_tune.optimizer.baselines import RandomSearch
from syne_tune.optimizer.scheduler import SchedulerDecision, TrialScheduler, TrialSuggestion
from syne_tune.results_callback import StoreResultsCallback
from syne_tune.tuner_callback import TunerCallback

from benchmarks.local.workload import (
    METRIC,
    SLOTS,
    ResultCounter,
    TaskSpec,
    TrialEventLog,
    check_deadline,
    load,
    make_tasks,
    measure_handovers,
    serve,
)

# Polling interval; the default is 5 s.
LOOK_S = 0.02


class CountingCallback(ResultCounter, TunerCallback):
    """Counts results and finished trials."""


class RoundRobin(TrialScheduler):
    """Pauses every trial at each report; resumes the trial that was paused first."""

    def __init__(self, space: dict[str, Any], trials: int, epochs: int) -> None:
        super().__init__(random_seed=0)
        self._space, self._left, self._epochs = space, trials, epochs
        self._waiting: list[int] = []

    def suggest(self) -> Any:  # noqa: ANN401
        if self._left:
            self._left -= 1
            config = {
                name: domain.sample() if hasattr(domain, "sample") else domain
                for name, domain in self._space.items()
            }
            return TrialSuggestion.start_suggestion(config)
        if self._waiting:
            return TrialSuggestion.resume_suggestion(self._waiting.pop(0))
        return None

    def on_trial_result(self, trial: Any, result: dict[str, Any]) -> str:  # noqa: ANN401
        if result["epoch"] >= self._epochs:
            return SchedulerDecision.CONTINUE
        self._waiting.append(trial.trial_id)
        return SchedulerDecision.PAUSE

    def metric_names(self) -> list[str]:
        return [METRIC]

    def metric_mode(self) -> str:
        return "min"


def pauses(task: TaskSpec) -> dict[str, Any]:
    """Let trials take turns on one slot."""
    _run(task, slots=1, scheduler=RoundRobin(_space(task), task.trials, task.epochs))
    return {"handovers_s": measure_handovers(TrialEventLog(task.folder).read(), task.epochs)}


def deadline(task: TaskSpec) -> dict[str, Any]:
    """Run slow trials against a wall-clock limit."""
    began = time.monotonic()
    count, tuner = _run(task)
    ended = time.monotonic()
    kept = None
    if count.first is not None:  # without a result it has no best config, and asking for it fails
        number, _ = tuner.best_config()
        kept = load(tuner.trial_backend.checkpoint_trial_path(number))
    return check_deadline(task, (began, ended), kept)


def _space(task: TaskSpec) -> dict[str, Any]:
    return {
        "x": uniform(1.0, 2.0),
        "epochs": task.epochs,
        "epoch_s": task.epoch_s,
        "folder": task.folder,
        "stubborn": int(task.stubborn),
    }


def _run(task: TaskSpec, slots: int = SLOTS, scheduler: Any = None) -> tuple[CountingCallback, Any]:  # noqa: ANN401
    # It creates a folder named after the study in here.
    os.environ["SYNETUNE_FOLDER"] = task.folder
    random = RandomSearch(_space(task), metrics=[METRIC], do_minimize=True, random_seed=0)
    count = CountingCallback(task.trials)
    tuner = Tuner(
        # Otherwise it looks for GPUs, through a file in the current folder.
        trial_backend=LocalBackend(
            str(Path(__file__).with_name("syne_tune_trial.py")), rotate_gpus=False
        ),
        scheduler=scheduler or random,
        stop_criterion=StoppingCriterion(
            max_wallclock_time=task.deadline_s or None, max_num_trials_finished=task.trials
        ),
        n_workers=slots,
        sleep_time=LOOK_S,
        callbacks=[count, StoreResultsCallback()],
    )
    tuner.run()
    return count, tuner


TASKS = {**make_tasks(_run), "pauses": pauses, "deadline": deadline}

if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    serve(TASKS, {name: version(name) for name in ("syne-tune", "pandas")})
