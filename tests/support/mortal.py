"""The driver that crash tests kill: a real study in a store, and places where a process dies.

Run as a program it drives the study to its end, unless it or a worker is killed on the way. It says
the number of the newest entry, and the process that reported, after each round of its loop. What it
is to be comes by the environment, so that its nursery and workers know it too.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import paceline as pl
from paceline.core import decisions as d
from paceline.core.events import Reported
from paceline.core.ports import Pick, sees_nothing
from paceline.curves.last_value import Last
from paceline.generators.random import Random
from paceline.plan.settings import setting_at
from paceline.store.sql import SqlStore
from paceline.worker.protocol import Channel, Report

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.core.decisions import Step
    from paceline.core.ports import History, Verdict
    from paceline.core.values import Config, Forecast
    from paceline.core.views import StudyView, TrialView
    from paceline.machine.state import StudyState

NAME, EPOCHS, SEED = "mortal", 9, 7
SPACE = {"lr": pl.uniform(0.1, 1.0)}
SCHEDULES = {
    "lr": pl.choice(
        [
            pl.piecewise([(0, first), (2, second), (5, third)])
            for first in (1.0, 0.7)
            for second in (0.5, 0.4, 0.3)
            for third in (0.2, 0.1, 0.05)
        ]
    )
}
# Kinds of studies, each with the trials that it takes to outlive ten deaths.
STUDIES: dict[str, dict[str, Any]] = {
    "fifo": {"space": SPACE, "generator": "random", "policy": "fifo", "trials": 20},
    "asha": {"space": SPACE, "generator": "random", "policy": "asha", "trials": 60},
    "shared": {"space": SCHEDULES, "generator": "grid", "policy": "fifo", "trials": 18},
    "asked": {
        "space": SPACE,
        "generator": "mortal:Slow",
        "policy": "mortal:Curious",
        "curves": "mortal:Seer",
        "trials": 14,
    },
}


def train(trial: Any) -> None:  # noqa: ANN401
    """Walk at random: every epoch depends on all before it, and on the generator's state."""
    WORKERS.get(os.environ["CRASH_AT"], lambda: None)()
    walked = trial.keep(walked=[0.0])
    for _ in trial.epochs():
        time.sleep(0.003)
        walked[0] += trial["lr"] * (random.random() - 0.4)
        if os.environ["CRASH_AT"] == "idle" and once():
            while _state(_driver()) != "S":
                time.sleep(0.001)
            die()
        trial.report(loss=1.0 - walked[0], pid=os.getpid())


def curve(config: Config, epochs: int) -> list[float]:
    """Return what an uninterrupted training reports."""
    rng = random.Random(SEED)
    walked, losses = 0.0, []
    for epoch in range(epochs):
        walked += setting_at(config, epoch)["lr"] * (rng.random() - 0.4)
        losses.append(1.0 - walked)
    return losses


class Curious:
    """Goes on by two epochs after each forecast, and waits for it."""

    see = staticmethod(sees_nothing)

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        if trial.epoch < trial.goal:
            return ()
        further = trial.epoch + 2
        if trial.forecast is not None and trial.forecast.epochs == (further,):
            return (d.Go(trial=trial.id, until=further, why="the forecast is there"),)
        ask = d.AskForecast(trial=trial.id, epoch=trial.epoch, horizons=(further,), why="curiosity")
        return (ask,)

    def next(self, study: StudyView) -> Pick | None:
        for trial in study.ready:
            return Pick(trial, 0, "it has waited longest")
        return Pick(None, 2, "a slot is free") if study.new else None

    def admit(self, study: StudyView) -> int | None:
        return None


class Seer(Last):
    """A curve model, in the middle of whose first answer the driver may die."""

    def forecast(self, histories: Sequence[History]) -> Sequence[Forecast | None]:
        if os.environ.get("CRASH_AT") == "forecast" and once():
            die()
        return super().forecast(histories)


class Slow(Random):
    """A generator that has to be asked, in the middle of whose first answer the driver may die."""

    pure = False

    def propose(self, number: int, study: StudyView) -> Config | None:
        if os.environ.get("CRASH_AT") == "proposal" and once():
            die()
        return super().propose(number, study)


# Dying


def once() -> bool:
    """Say whether this is the first time that anybody of this study comes here."""
    try:
        os.close(os.open(os.environ["CRASH_MARK"], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def die() -> None:
    """Kill whoever is to die: the driver, the nursery, this very process, or all of them."""
    victim = os.environ["CRASH_VICTIM"]
    # The driver first: a worker does not outlive its nursery by a line.
    if victim in ("driver", "all"):
        os.kill(_driver(), signal.SIGKILL)
    if victim in ("nursery", "all"):
        os.kill(os.getppid(), signal.SIGKILL)
    if victim in ("worker", "all"):
        os.kill(os.getpid(), signal.SIGKILL)


def _driver() -> int:
    return int(os.environ["CRASH_DRIVER"])


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def _at_append(before: bool) -> None:
    append, left = SqlStore.append, iter(range(int(os.environ["CRASH_AFTER"])))

    def mortal(store: SqlStore, study: str, steps: Sequence[Step]) -> None:
        last = next(left, None) is None and once()
        if last and before:
            die()
        append(store, study, steps)
        if last:
            die()

    SqlStore.append = mortal  # type: ignore[method-assign, assignment]


def _at_rename(before: bool) -> None:
    replace, left = os.replace, iter(range(int(os.environ["CRASH_AFTER"])))

    def mortal(source: str, target: str) -> None:
        last = next(left, None) is None and once()
        if last and before:
            die()
        replace(source, target)
        if last:
            die()

    os.replace = mortal  # type: ignore[assignment]


def _in_report() -> None:
    send, left = Channel.send, iter(range(int(os.environ["CRASH_AFTER"])))

    def mortal(channel: Channel, message: Any) -> None:  # noqa: ANN401
        if isinstance(message, Report) and next(left, None) is None and once():
            end, channel._end = channel._end, _Half(channel._end)  # type: ignore[assignment]
            send(channel, message)
            channel._end = end
            die()
            while True:  # whoever is killed a moment later says nothing more
                signal.pause()
        send(channel, message)

    Channel.send = mortal  # type: ignore[method-assign, assignment]


class _Half:
    """A socket that sends half of what it is given."""

    def __init__(self, end: Any) -> None:  # noqa: ANN401
        self._end = end

    def sendall(self, data: bytes) -> None:
        self._end.sendall(data[: len(data) // 2])


# Where a process dies, by name: what is done to the driver, and to each worker, to have it so.
DRIVERS: dict[str, Callable[[], None]] = {
    "before append": lambda: _at_append(True),
    "after append": lambda: _at_append(False),
}
WORKERS: dict[str, Callable[[], None]] = {
    "before rename": lambda: _at_rename(True),
    "after rename": lambda: _at_rename(False),
    "in report": _in_report,
}


def main() -> None:
    """Drive the study."""
    os.environ["CRASH_DRIVER"] = str(os.getpid())
    DRIVERS.get(os.environ["CRASH_AT"], lambda: None)()

    def watch(state: StudyState, steps: Sequence[Step]) -> None:
        pids = [s.event.metrics["pid"] for s in steps if isinstance(s.event, Reported)]
        if not steps:
            return
        sys.stdout.write(f"{steps[-1].after} {int(pids[-1] or 0) if pids else 0}\n")
        sys.stdout.flush()

    options: Any = STUDIES[os.environ["CRASH_STUDY"]]
    options["trials"] = int(os.environ["CRASH_TRIALS"])
    study = pl.Study(
        train,
        metric="loss",
        mode="min",
        epochs=EPOCHS,
        name=NAME,
        store=os.environ["CRASH_STORE"],
        slots="cpu:2",
        seed=SEED,
        retries=1000,
        **options,
    )
    study.run(watch)
