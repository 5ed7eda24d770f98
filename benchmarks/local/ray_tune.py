"""The common workload with Ray Tune, in its own environment, with or without `reuse_actors`.

Results are stored as by default, but only by the JSON logger; nothing is printed, and there is no
dashboard.
"""

# mypy: disable-error-code="import-not-found, import-untyped, misc, no-untyped-call"

from __future__ import annotations

import os
import tempfile
import time
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from benchmarks.local.workload import (
    METRIC,
    SLOTS,
    ResultCounter,
    TaskSpec,
    TrialEventLog,
    check_deadline,
    compute_loss,
    load,
    make_tasks,
    measure_handovers,
    save,
    serve,
)

os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"

import ray
from ray import tune
from ray.tune.logger import JsonLoggerCallback
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

if TYPE_CHECKING:
    from collections.abc import Callable


class CountingCallback(ResultCounter, tune.Callback):
    """Counts results and finished trials."""


class RoundRobin(FIFOScheduler):
    """Pauses every trial at each report; resumes the trial that was paused first."""

    def __init__(self, epochs: int) -> None:
        super().__init__()
        self._epochs = epochs
        self._waiting: list[str] = []

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:  # noqa: ANN401
        if result["epoch"] >= self._epochs:
            return str(TrialScheduler.CONTINUE)
        self._waiting.append(trial.trial_id)
        return str(TrialScheduler.PAUSE)

    def choose_trial_to_run(self, tune_controller: Any) -> Any:  # noqa: ANN401
        trials = {trial.trial_id: trial for trial in tune_controller.get_trials()}
        for trial in trials.values():
            if trial.status == trial.PENDING:
                return trial
        # Tune may ask several times before it follows a choice.
        self._waiting = [
            name for name in self._waiting if trials[name].status in ("PAUSED", "RUNNING")
        ]
        paused = [name for name in self._waiting if trials[name].status == "PAUSED"]
        return trials[paused[0]] if paused else None


def pauses(task: TaskSpec) -> dict[str, Any]:
    """Let trials take turns on one slot, which holds all cores that Ray knows."""
    run(task, cores=SLOTS, scheduler=RoundRobin(task.epochs))
    return {"handovers_s": measure_handovers(TrialEventLog(task.folder).read(), task.epochs)}


def deadline(task: TaskSpec) -> dict[str, Any]:
    """Run slow trials against a time budget."""
    began = time.monotonic()
    _, results = run(task, time_budget_s=task.deadline_s)
    ended = time.monotonic()
    try:
        checkpoint = results.get_best_result(METRIC, "min").checkpoint
    except RuntimeError:  # no trial has a result
        checkpoint = None
    kept = None if checkpoint is None else load(checkpoint.path)
    return check_deadline(task, (began, ended), kept)


def run(task: TaskSpec, cores: int = 1, **more: Any) -> tuple[CountingCallback, Any]:  # noqa: ANN401
    """Run the trials of a task, on the running cluster or on a new one."""
    if not ray.is_initialized():
        ray.init(num_cpus=SLOTS, include_dashboard=False, log_to_driver=False)
    count = CountingCallback(task.trials)
    tuner = tune.Tuner(
        tune.with_resources(_train(task), {"cpu": cores}),
        param_space={"x": tune.uniform(1.0, 2.0)},
        tune_config=tune.TuneConfig(
            metric=METRIC, mode="min", num_samples=task.trials, reuse_actors=task.reuse, **more
        ),
        run_config=tune.RunConfig(
            name=task.task,
            storage_path=task.folder,
            verbose=0,
            callbacks=[count, JsonLoggerCallback()],
        ),
    )
    return count, tuner.fit()


def _train(task: TaskSpec) -> Callable[[dict[str, Any]], None]:
    def train(config: dict[str, Any]) -> None:
        events = TrialEventLog(task.folder)
        start, checkpoint = 0, tune.get_checkpoint()
        if checkpoint is not None:
            with checkpoint.as_directory() as folder:
                start = (load(folder) or {})["epoch"]
        name = tune.get_context().get_trial_id()
        events.log_start(name, start)
        for epoch in range(start + 1, task.epochs + 1):
            loss = compute_loss(config["x"], epoch)
            if not task.epoch_s:
                tune.report({METRIC: loss, "epoch": epoch})
                continue
            time.sleep(task.epoch_s)
            with tempfile.TemporaryDirectory() as folder:
                save(folder, epoch, loss)
                events.log_report(name, epoch, loss)
                tune.report(
                    {METRIC: loss, "epoch": epoch},
                    checkpoint=tune.Checkpoint.from_directory(folder),
                )

    return train


TASKS = {**make_tasks(run), "pauses": pauses, "deadline": deadline}

if __name__ == "__main__":
    serve(TASKS, {name: version(name) for name in ("ray", "pyarrow")})
