"""Ray Tune at the common work, in its own environment, with or without `reuse_actors`.

Results are kept as it keeps them by default, less what is only for reading along: of its three
loggers the JSON one alone, nothing printed, no dashboard.
"""

# mypy: disable-error-code="import-not-found, import-untyped, misc, no-untyped-call"

from __future__ import annotations

import os
import tempfile
import time
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from benchmarks.local.work import (
    METRIC,
    SLOTS,
    Count,
    Marks,
    Order,
    counted,
    handovers,
    kept_to,
    load,
    loss_of,
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


class Counted(Count, tune.Callback):
    """Counts what it is told."""


class Turns(FIFOScheduler):
    """Pauses every trial at each report, and resumes the one that has waited longest."""

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
        # It may be asked several times before a choice becomes true.
        self._waiting = [
            name for name in self._waiting if trials[name].status in ("PAUSED", "RUNNING")
        ]
        paused = [name for name in self._waiting if trials[name].status == "PAUSED"]
        return trials[paused[0]] if paused else None


def pauses(order: Order) -> dict[str, Any]:
    """Let trials take turns on a single slot, which is all cores that Ray knows of."""
    run(order, cores=SLOTS, scheduler=Turns(order.epochs))
    return {"handovers_s": handovers(Marks(order.folder).read(), order.epochs)}


def deadline(order: Order) -> dict[str, Any]:
    """Run slow trials against a time budget."""
    began = time.monotonic()
    _, results = run(order, time_budget_s=order.deadline_s)
    ended = time.monotonic()
    try:
        checkpoint = results.get_best_result(METRIC, "min").checkpoint
    except RuntimeError:  # no trial has a result
        checkpoint = None
    kept = None if checkpoint is None else load(checkpoint.path)
    return kept_to(order, (began, ended), kept)


def run(order: Order, cores: int = 1, **more: Any) -> tuple[Counted, Any]:  # noqa: ANN401
    """Run the trials of an order, on the cluster that is there or on a new one."""
    if not ray.is_initialized():
        ray.init(num_cpus=SLOTS, include_dashboard=False, log_to_driver=False)
    count = Counted(order.trials)
    tuner = tune.Tuner(
        tune.with_resources(_train(order), {"cpu": cores}),
        param_space={"x": tune.uniform(1.0, 2.0)},
        tune_config=tune.TuneConfig(
            metric=METRIC, mode="min", num_samples=order.trials, reuse_actors=order.reuse, **more
        ),
        run_config=tune.RunConfig(
            name=order.task,
            storage_path=order.folder,
            verbose=0,
            callbacks=[count, JsonLoggerCallback()],
        ),
    )
    return count, tuner.fit()


def _train(order: Order) -> Callable[[dict[str, Any]], None]:
    def train(config: dict[str, Any]) -> None:
        marks = Marks(order.folder)
        start, checkpoint = 0, tune.get_checkpoint()
        if checkpoint is not None:
            with checkpoint.as_directory() as folder:
                start = (load(folder) or {})["epoch"]
        name = tune.get_context().get_trial_id()
        marks.begun(name, start)
        for epoch in range(start + 1, order.epochs + 1):
            loss = loss_of(config["x"], epoch)
            if not order.epoch_s:
                tune.report({METRIC: loss, "epoch": epoch})
                continue
            time.sleep(order.epoch_s)
            with tempfile.TemporaryDirectory() as folder:
                save(folder, epoch, loss)
                marks.reported(name, epoch, loss)
                tune.report(
                    {METRIC: loss, "epoch": epoch},
                    checkpoint=tune.Checkpoint.from_directory(folder),
                )

    return train


TASKS = {**counted(run), "pauses": pauses, "deadline": deadline}

if __name__ == "__main__":
    serve(TASKS, {name: version(name) for name in ("ray", "pyarrow")})
