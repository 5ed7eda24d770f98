"""The driver that crash tests kill: a real study in a store, and places where a process is killed.

`main` drives the study to its end, unless the driver or another process is killed on the way. After
each round of its loop, it prints the number of the newest entry and the process that reported. Its
settings come from the environment, so that its fork server and workers have them too.
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
from paceline.core.ports import Pick, see_nothing
from paceline.curves.last_value import Last
from paceline.generators.random import Random
from paceline.plan.settings import setting_at
from paceline.store.sql import SqlStore
from paceline.worker.protocol import Channel, EpochReport

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.core.decisions import Step
    from paceline.core.forecast_quantiles import Forecast
    from paceline.core.ports import History, Verdict
    from paceline.core.values import Config
    from paceline.core.views import StudyView, TrialView
    from paceline.machine.state import StudyState

NAME, EPOCHS, SEED = "crashing", 9, 7
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
# Kinds of studies, each with enough trials to survive ten kills.
STUDIES: dict[str, dict[str, Any]] = {
    "fifo": {"space": SPACE, "generator": "random", "policy": "fifo", "trials": 20},
    "asha": {"space": SPACE, "generator": "random", "policy": "asha:drain=true", "trials": 60},
    "shared": {"space": SCHEDULES, "generator": "grid", "policy": "fifo", "trials": 18},
    "asked": {
        "space": SPACE,
        "generator": "killable_driver:AskedGenerator",
        "policy": "killable_driver:ForecastPolicy",
        "curves": "killable_driver:KillingCurveModel",
        "trials": 14,
    },
}


def train(trial: Any) -> None:  # noqa: ANN401
    """Walk at random: each epoch depends on all before it and on the random generator's state."""
    WORKERS.get(os.environ["CRASH_AT"], lambda: None)()
    walked = trial.keep(walked=[0.0])
    for _ in trial.epochs():
        time.sleep(0.003)
        walked[0] += trial["lr"] * (random.random() - 0.4)
        if os.environ["CRASH_AT"] == "idle" and is_first_time():
            while _state(_driver()) != "S":
                time.sleep(0.001)
            kill_victim()
        trial.report(loss=1.0 - walked[0], pid=os.getpid())


def curve(config: Config, epochs: int) -> list[float]:
    """Return the losses that an uninterrupted training reports."""
    rng = random.Random(SEED)
    walked, losses = 0.0, []
    for epoch in range(epochs):
        walked += setting_at(config, epoch)["lr"] * (rng.random() - 0.4)
        losses.append(1.0 - walked)
    return losses


class ForecastPolicy:
    """Train two epochs after each forecast, and wait for it."""

    see = staticmethod(see_nothing)

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        if trial.epoch < trial.goal:
            return ()
        further = trial.epoch + 2
        if trial.forecast is not None and trial.forecast.epochs == (further,):
            return (d.Go(trial=trial.id, until=further, why="the forecast has arrived"),)
        ask = d.AskForecast(
            trial=trial.id,
            epoch=trial.epoch,
            horizons=(further,),
            why="the policy needs a forecast",
        )
        return (ask,)

    def next(self, study: StudyView) -> Pick | None:
        for trial in study.ready:
            return Pick(trial, 0, "it has waited longest")
        return Pick(None, 2, "a slot is free") if study.new else None

    def admit(self, study: StudyView) -> int | None:
        return None


class KillingCurveModel(Last):
    """A curve model that may kill the driver during its first forecast."""

    def forecast(self, histories: Sequence[History]) -> Sequence[Forecast | None]:
        if os.environ.get("CRASH_AT") == "forecast" and is_first_time():
            kill_victim()
        return super().forecast(histories)


class AskedGenerator(Random):
    """A generator that is not pure, and may kill the driver during its first proposal."""

    pure = False

    def propose(self, number: int, study: StudyView) -> Config | None:
        if os.environ.get("CRASH_AT") == "proposal" and is_first_time():
            kill_victim()
        return super().propose(number, study)


# Killing


def is_first_time() -> bool:
    """Return whether no process of this study was here before."""
    try:
        os.close(os.open(os.environ["CRASH_MARK"], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def kill_victim() -> None:
    """Kill the driver, the fork server, this process, or all of them."""
    victim = os.environ["CRASH_VICTIM"]
    # The driver first: a worker ends immediately when its fork server ends.
    if victim in ("driver", "all"):
        os.kill(_driver(), signal.SIGKILL)
    if victim in ("forkserver", "all"):
        os.kill(os.getppid(), signal.SIGKILL)
    if victim in ("worker", "all"):
        os.kill(os.getpid(), signal.SIGKILL)


def _driver() -> int:
    return int(os.environ["CRASH_DRIVER"])


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def _kill_at_append(before: bool) -> None:
    append, left = SqlStore.append, iter(range(int(os.environ["CRASH_AFTER"])))

    def patched(store: SqlStore, study: str, steps: Sequence[Step]) -> None:
        last = next(left, None) is None and is_first_time()
        if last and before:
            kill_victim()
        append(store, study, steps)
        if last:
            kill_victim()

    SqlStore.append = patched  # type: ignore[method-assign, assignment]


def _kill_at_rename(before: bool) -> None:
    replace, left = os.replace, iter(range(int(os.environ["CRASH_AFTER"])))

    def patched(source: str, target: str) -> None:
        last = next(left, None) is None and is_first_time()
        if last and before:
            kill_victim()
        replace(source, target)
        if last:
            kill_victim()

    os.replace = patched  # type: ignore[assignment]


def _kill_in_report() -> None:
    send, left = Channel.send, iter(range(int(os.environ["CRASH_AFTER"])))

    def patched(channel: Channel, message: Any) -> None:  # noqa: ANN401
        if isinstance(message, EpochReport) and next(left, None) is None and is_first_time():
            end, channel._end = channel._end, _Half(channel._end)  # type: ignore[assignment]
            send(channel, message)
            channel._end = end
            kill_victim()
            while True:  # until the kill arrives, send nothing more
                signal.pause()
        send(channel, message)

    Channel.send = patched  # type: ignore[method-assign, assignment]


class _Half:
    """A socket that sends the first half of its data."""

    def __init__(self, end: Any) -> None:  # noqa: ANN401
        self._end = end

    def sendall(self, data: bytes) -> None:
        self._end.sendall(data[: len(data) // 2])


# The places of kills, by name: the patch of the driver, or of each worker.
DRIVERS: dict[str, Callable[[], None]] = {
    "before append": lambda: _kill_at_append(True),
    "after append": lambda: _kill_at_append(False),
}
WORKERS: dict[str, Callable[[], None]] = {
    "before rename": lambda: _kill_at_rename(True),
    "after rename": lambda: _kill_at_rename(False),
    "in report": _kill_in_report,
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
