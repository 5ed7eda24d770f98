"""The common workload with Optuna and SQLite, in its own environment.

Trials are threads of the driver (`n_jobs`). It has no checkpoints and cannot pause a trial.
"""

# mypy: disable-error-code="import-not-found, import-untyped, misc, no-any-return"

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

import optuna

from benchmarks.local.workload import (
    SLOTS,
    MemoryGrowth,
    TaskSpec,
    TrialEventLog,
    compute_loss,
    seconds_since_start,
    serve,
)


def startup(task: TaskSpec) -> dict[str, Any]:
    """Run one trial; return the time until its report was stored."""
    seen = []

    def objective(trial: Any) -> float:  # noqa: ANN401
        loss = compute_loss(trial.suggest_float("x", 1.0, 2.0), 1)
        trial.report(loss, 1)
        seen.append(time.monotonic())
        return loss

    _study(task).optimize(objective, n_trials=1)
    return {"seconds": seen[0] - task.started}


def reports(task: TaskSpec) -> dict[str, Any]:
    """Run a few trials with many reports."""
    _run(task)
    took = seconds_since_start(task.folder, time.monotonic())
    return {"per_s": task.trials * task.epochs / took}


def trials(task: TaskSpec) -> dict[str, Any]:
    """Run many trials with one report each."""
    memory = MemoryGrowth(task.trials)
    done = 0

    def finished(*_: object) -> None:
        nonlocal done
        done += 1
        memory.update(done)

    _run(task, callbacks=[finished])
    took = seconds_since_start(task.folder, time.monotonic())
    return {"per_s": task.trials / took, "bytes_per_trial": memory.bytes_per_trial()}


def deadline(task: TaskSpec) -> dict[str, Any]:
    """Run slow trials against a timeout."""
    began = time.monotonic()
    _run(task, timeout=task.deadline_s)
    return {"seconds": time.monotonic() - began, "checkpoint": None}


def _run(task: TaskSpec, **more: Any) -> None:  # noqa: ANN401
    events = TrialEventLog(task.folder)

    def objective(trial: Any) -> float:  # noqa: ANN401
        x = trial.suggest_float("x", 1.0, 2.0)
        events.log_start(trial.number, 0)
        for epoch in range(task.epochs):
            if task.epoch_s:
                time.sleep(task.epoch_s)
            loss = compute_loss(x, epoch + 1)
            trial.report(loss, epoch + 1)
        return loss

    _study(task).optimize(objective, n_trials=task.trials, n_jobs=SLOTS, **more)


def _study(task: TaskSpec) -> Any:  # noqa: ANN401
    return optuna.create_study(
        storage=f"sqlite:///{task.folder}/study.db",
        sampler=optuna.samplers.RandomSampler(seed=0),
        pruner=optuna.pruners.NopPruner(),
    )


TASKS = {"startup": startup, "reports": reports, "trials": trials, "deadline": deadline}

if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    serve(TASKS, {name: version(name) for name in ("optuna", "sqlalchemy")})
