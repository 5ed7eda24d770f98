"""Paceline's local engine at the common work."""

from __future__ import annotations

import signal
import time
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import paceline as pl
from benchmarks.local.work import (
    METRIC,
    SLOTS,
    Marks,
    Memory,
    Order,
    handovers,
    kept_to,
    loss_of,
    serve,
    since_begun,
)
from paceline.core.decisions import Go
from paceline.core.events import Ended, Saved
from paceline.core.ports import Pick

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.core.decisions import Entry, Step
    from paceline.core.ports import Verdict
    from paceline.core.views import StudyView, TrialView
    from paceline.machine.state import StudyState


class Turns:
    """Pauses every trial at each report, and resumes the one that has waited longest."""

    def __init__(self) -> None:
        self._waiting: dict[int, None] = {}

    def see(self, entry: Entry, study: StudyView) -> None:
        if type(entry) is Go:
            self._waiting.pop(entry.trial, None)
        for trial in study.delivered:
            self._waiting[trial.id] = None
        for trial in study.departed:
            self._waiting.pop(trial.id, None)

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        return ()

    def next(self, study: StudyView) -> Pick | None:
        if study.new:
            return Pick(None, 1, "a slot is free")
        for trial in study.ready:
            return Pick(trial, 0, "it was interrupted")
        for trial in self._waiting:
            return Pick(trial, study.trials[trial].epoch + 1, "it has waited longest")
        return None

    def admit(self, study: StudyView) -> int | None:
        return None


def startup(order: Order) -> dict[str, Any]:
    """Run one trial; return when its report was here."""
    seen: list[float] = []

    def watch(state: StudyState, _: Sequence[Step]) -> None:
        if state.reports and not seen:
            seen.append(time.monotonic())

    study(order).run(watch)
    return {"seconds": seen[0] - order.started}


def reports(order: Order) -> dict[str, Any]:
    """Let a few trials report over and over."""
    study(order).run()
    took = since_begun(order.folder, time.monotonic())
    return {"per_s": order.trials * order.epochs / took}


def trials(order: Order) -> dict[str, Any]:
    """Let many trials report once."""
    memory = Memory(order.trials)
    ended = 0

    def watch(_: StudyState, steps: Sequence[Step]) -> None:
        nonlocal ended
        ended += sum(type(step.event) is Ended for step in steps)
        memory.finished(ended)

    study(order).run(watch)
    took = since_begun(order.folder, time.monotonic())
    return {"per_s": order.trials / took, "bytes_per_trial": memory.per_trial()}


def pauses(order: Order) -> dict[str, Any]:
    """Let trials take turns on a single slot."""
    result = study(order, policy="benchmarks.local.ours:Turns", slots=1).run()
    saves = [step.event.seconds for step in result.log if isinstance(step.event, Saved)]
    marks = Marks(order.folder).read()
    # What lies between report and release includes saving, which is a user's own at the peers.
    return {"handovers_s": handovers(marks, order.epochs), "saves_s": saves}


def deadline(order: Order) -> dict[str, Any]:
    """Run slow trials against a deadline."""
    began = time.monotonic()
    result = study(order, deadline=order.deadline_s).run()
    ended = time.monotonic()
    best = result.best
    kept = None if best is None or best.checkpoint is None else best.checkpoint.load()["state"]
    return kept_to(order, (began, ended), kept)


def study(order: Order, **changes: Any) -> pl.Study:  # noqa: ANN401
    """Return a study of the common work."""
    options: dict[str, Any] = {
        "space": {"x": pl.uniform(1.0, 2.0)},
        "metric": METRIC,
        "mode": "min",
        "epochs": order.epochs,
        "trials": order.trials,
        "policy": "fifo",
        "generator": "random",
        "slots": SLOTS,
        "name": order.task,
        "store": f"sqlite:///{order.folder}/study.db",
    }
    return pl.Study(_train(order), **{**options, **changes})


def _train(order: Order) -> Callable[[pl.Trial], None]:
    marks = Marks(order.folder)

    def train(trial: pl.Trial) -> None:
        if order.stubborn:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        begun = False
        # Where nothing can be lost, nothing is kept: the peers save nothing there either.
        state = trial.keep(state={}) if order.epoch_s else {}
        for epoch in trial.epochs():
            if not begun:
                marks.begun(trial.id, epoch)
                begun = True
            if order.epoch_s:
                time.sleep(order.epoch_s)
            loss = loss_of(trial["x"], epoch + 1)
            if order.epoch_s:
                state.update(epoch=epoch + 1, loss=loss)
                marks.reported(trial.id, epoch + 1, loss)
            trial.report(loss=loss)

    return train


TASKS = {
    "startup": startup,
    "reports": reports,
    "trials": trials,
    "pauses": pauses,
    "deadline": deadline,
}

if __name__ == "__main__":
    serve(TASKS, {"paceline": version("paceline")})
