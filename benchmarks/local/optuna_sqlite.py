"""Optuna with SQLite at the common work, in its own environment.

Trials are threads of the driver (`n_jobs`). It has no checkpoints and cannot pause a trial.
"""

# mypy: disable-error-code="import-not-found, import-untyped, misc, no-any-return"

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

import optuna

from benchmarks.local.work import SLOTS, Marks, Memory, Order, loss_of, serve, since_begun


def startup(order: Order) -> dict[str, Any]:
    """Run one trial; return when its report was stored."""
    seen = []

    def objective(trial: Any) -> float:  # noqa: ANN401
        loss = loss_of(trial.suggest_float("x", 1.0, 2.0), 1)
        trial.report(loss, 1)
        seen.append(time.monotonic())
        return loss

    _study(order).optimize(objective, n_trials=1)
    return {"seconds": seen[0] - order.started}


def reports(order: Order) -> dict[str, Any]:
    """Let a few trials report over and over."""
    _run(order)
    took = since_begun(order.folder, time.monotonic())
    return {"per_s": order.trials * order.epochs / took}


def trials(order: Order) -> dict[str, Any]:
    """Let many trials report once."""
    memory = Memory(order.trials)
    done = 0

    def finished(*_: object) -> None:
        nonlocal done
        done += 1
        memory.finished(done)

    _run(order, callbacks=[finished])
    took = since_begun(order.folder, time.monotonic())
    return {"per_s": order.trials / took, "bytes_per_trial": memory.per_trial()}


def deadline(order: Order) -> dict[str, Any]:
    """Run slow trials against a timeout."""
    began = time.monotonic()
    _run(order, timeout=order.deadline_s)
    return {"seconds": time.monotonic() - began, "checkpoint": None}


def _run(order: Order, **more: Any) -> None:  # noqa: ANN401
    marks = Marks(order.folder)

    def objective(trial: Any) -> float:  # noqa: ANN401
        x = trial.suggest_float("x", 1.0, 2.0)
        marks.begun(trial.number, 0)
        for epoch in range(order.epochs):
            if order.epoch_s:
                time.sleep(order.epoch_s)
            loss = loss_of(x, epoch + 1)
            trial.report(loss, epoch + 1)
        return loss

    _study(order).optimize(objective, n_trials=order.trials, n_jobs=SLOTS, **more)


def _study(order: Order) -> Any:  # noqa: ANN401
    return optuna.create_study(
        storage=f"sqlite:///{order.folder}/study.db",
        sampler=optuna.samplers.RandomSampler(seed=0),
        pruner=optuna.pruners.NopPruner(),
    )


TASKS = {"startup": startup, "reports": reports, "trials": trials, "deadline": deadline}

if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    serve(TASKS, {name: version(name) for name in ("optuna", "sqlalchemy")})
