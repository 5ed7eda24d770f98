"""Syne Tune's local backend at the common work, in its own environment.

A trial is a process of its own, `syne_tune_trial.py`, and its reports are lines of its output that
the driver looks for again and again. How often is the user's choice: here often.
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
    serve,
)

# Between two looks for results; its default is 5 s.
LOOK_S = 0.02


class Counted(Count, TunerCallback):
    """Counts what it is told."""


class Turns(TrialScheduler):
    """Pauses every trial at each report, and resumes the one that has waited longest."""

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


def pauses(order: Order) -> dict[str, Any]:
    """Let trials take turns on a single slot."""
    _run(order, slots=1, scheduler=Turns(_space(order), order.trials, order.epochs))
    return {"handovers_s": handovers(Marks(order.folder).read(), order.epochs)}


def deadline(order: Order) -> dict[str, Any]:
    """Run slow trials against a wall-clock limit."""
    began = time.monotonic()
    count, tuner = _run(order)
    ended = time.monotonic()
    kept = None
    if count.first is not None:  # else it has no best config, and fails when asked
        number, _ = tuner.best_config()
        kept = load(tuner.trial_backend.checkpoint_trial_path(number))
    return kept_to(order, (began, ended), kept)


def _space(order: Order) -> dict[str, Any]:
    return {
        "x": uniform(1.0, 2.0),
        "epochs": order.epochs,
        "epoch_s": order.epoch_s,
        "folder": order.folder,
        "stubborn": int(order.stubborn),
    }


def _run(order: Order, slots: int = SLOTS, scheduler: Any = None) -> tuple[Counted, Any]:  # noqa: ANN401
    # It makes itself a folder of each study's name in here.
    os.environ["SYNETUNE_FOLDER"] = order.folder
    random = RandomSearch(_space(order), metrics=[METRIC], do_minimize=True, random_seed=0)
    count = Counted(order.trials)
    tuner = Tuner(
        # It looks for GPUs otherwise, by way of a file where it stands.
        trial_backend=LocalBackend(
            str(Path(__file__).with_name("syne_tune_trial.py")), rotate_gpus=False
        ),
        scheduler=scheduler or random,
        stop_criterion=StoppingCriterion(
            max_wallclock_time=order.deadline_s or None, max_num_trials_finished=order.trials
        ),
        n_workers=slots,
        sleep_time=LOOK_S,
        callbacks=[count, StoreResultsCallback()],
    )
    tuner.run()
    return count, tuner


TASKS = {**counted(_run), "pauses": pauses, "deadline": deadline}

if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    serve(TASKS, {name: version(name) for name in ("syne-tune", "pandas")})
