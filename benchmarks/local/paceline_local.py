"""The common workload with Paceline's local engine."""

from __future__ import annotations

import signal
import time
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import paceline as pl
from benchmarks.local.workload import (
    METRIC,
    SLOTS,
    MemoryGrowth,
    TaskSpec,
    TrialEventLog,
    check_deadline,
    compute_loss,
    measure_handovers,
    seconds_since_start,
    serve,
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


class RoundRobin:
    """Pauses every trial at each report; resumes the trial that was paused first."""

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


def startup(task: TaskSpec) -> dict[str, Any]:
    """Run one trial; return the time until the driver had its report."""
    seen: list[float] = []

    def watch(state: StudyState, _: Sequence[Step]) -> None:
        if state.reports and not seen:
            seen.append(time.monotonic())

    make_study(task).run(watch)
    return {"seconds": seen[0] - task.started}


def reports(task: TaskSpec) -> dict[str, Any]:
    """Run a few trials with many reports."""
    make_study(task).run()
    took = seconds_since_start(task.folder, time.monotonic())
    return {"per_s": task.trials * task.epochs / took}


def trials(task: TaskSpec) -> dict[str, Any]:
    """Run many trials with one report each."""
    memory = MemoryGrowth(task.trials)
    ended = 0

    def watch(_: StudyState, steps: Sequence[Step]) -> None:
        nonlocal ended
        ended += sum(type(step.event) is Ended for step in steps)
        memory.update(ended)

    make_study(task).run(watch)
    took = seconds_since_start(task.folder, time.monotonic())
    return {"per_s": task.trials / took, "bytes_per_trial": memory.bytes_per_trial()}


def pauses(task: TaskSpec) -> dict[str, Any]:
    """Let trials take turns on one slot."""
    result = make_study(task, policy="benchmarks.local.paceline_local:RoundRobin", slots=1).run()
    saves = [step.event.seconds for step in result.log if isinstance(step.event, Saved)]
    events = TrialEventLog(task.folder).read()
    # The time from report to release includes saving, which the user does with the peers.
    return {"handovers_s": measure_handovers(events, task.epochs), "saves_s": saves}


def deadline(task: TaskSpec) -> dict[str, Any]:
    """Run slow trials against a deadline."""
    began = time.monotonic()
    result = make_study(task, deadline=task.deadline_s).run()
    ended = time.monotonic()
    best = result.best_or_none
    kept = None if best is None or best.checkpoint is None else best.checkpoint.load()["state"]
    return check_deadline(task, (began, ended), kept)


def make_study(task: TaskSpec, **changes: Any) -> pl.Study:  # noqa: ANN401
    """Return a study of the common workload."""
    options: dict[str, Any] = {
        "space": {"x": pl.uniform(1.0, 2.0)},
        "metric": METRIC,
        "mode": "min",
        "epochs": task.epochs,
        "trials": task.trials,
        "policy": "fifo",
        "generator": "random",
        "slots": SLOTS,
        "name": task.task,
        "store": f"sqlite:///{task.folder}/study.db",
    }
    return pl.Study(_train(task), **{**options, **changes})


def _train(task: TaskSpec) -> Callable[[pl.Trial], None]:
    events = TrialEventLog(task.folder)

    def train(trial: pl.Trial) -> None:
        if task.stubborn:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        begun = False
        # Trials without an epoch time keep no state: the peers save nothing there either.
        state = trial.keep(state={}) if task.epoch_s else {}
        for epoch in trial.epochs():
            if not begun:
                events.log_start(trial.id, epoch)
                begun = True
            if task.epoch_s:
                time.sleep(task.epoch_s)
            loss = compute_loss(trial["x"], epoch + 1)
            if task.epoch_s:
                state.update(epoch=epoch + 1, loss=loss)
                events.log_report(trial.id, epoch + 1, loss)
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
