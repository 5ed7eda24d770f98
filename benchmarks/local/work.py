"""The work that every tuner is given, and how what it took is noted and told.

Runs in the environment of each peer and in its trials: needs nothing but Python, and nothing of
Paceline. Times are of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Task = Callable[["Order"], dict[str, Any]]

METRIC = "loss"
# How many trials train at once, unless a task says otherwise.
SLOTS = 2
CHECKPOINT = "state.json"

_BEGUN, _REPORTED = "begun", "reported"


class Order(NamedTuple):
    """One task for one tuner: a line of JSON on its standard input."""

    task: str
    # An empty folder for everything that is written.
    folder: str
    # When the process that is measured was started.
    started: float
    trials: int = 1
    epochs: int = 1
    epoch_s: float = 0.0
    deadline_s: float = 0.0
    # The trials ignore SIGTERM.
    stubborn: bool = False
    # Ray's reuse_actors.
    reuse: bool = False


class Mark(NamedTuple):
    """What a trial noted down: when it began an attempt, or was about to report."""

    kind: str
    at: float
    trial: str
    epoch: int
    loss: float


class Marks:
    """A file to which all trials of a study write what they do."""

    def __init__(self, folder: str) -> None:
        self._path = Path(folder) / "marks"

    def begun(self, trial: object, epoch: int) -> None:
        """Note that an attempt begins its first epoch, after loading what it goes on from."""
        self._note(_BEGUN, trial, epoch, 0.0)

    def reported(self, trial: object, epoch: int, loss: float) -> None:
        """Note that an epoch is over and about to be reported."""
        self._note(_REPORTED, trial, epoch, loss)

    def read(self) -> list[Mark]:
        """Return all marks in the order of time; none where no trial got so far."""
        if not self._path.exists():
            return []
        lines = map(json.loads, self._path.read_text().splitlines())
        return sorted((Mark(*line) for line in lines), key=lambda mark: mark.at)

    def _note(self, *words: object) -> None:
        kind, *rest = words
        line = json.dumps([kind, time.monotonic(), *(str(rest[0]), *rest[1:])]) + "\n"
        # One small write to the end of a file: the lines of several processes do not mix.
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(file, line.encode())
        os.close(file)


class Memory:
    """The driver's resident memory, looked at when a fifth of the trials and when all are done."""

    def __init__(self, trials: int) -> None:
        self._looks = {max(1, trials // 5), trials}
        self._seen: list[tuple[int, int]] = []

    def finished(self, trials: int) -> None:
        """Say how many trials have finished by now."""
        while self._looks and trials >= min(self._looks):
            self._looks.remove(min(self._looks))
            with open("/proc/self/statm") as file:
                pages = int(file.read().split()[1])
            self._seen.append((trials, pages * os.sysconf("SC_PAGE_SIZE")))

    def per_trial(self) -> float | None:
        """Return the bytes that each trial between the two looks has added."""
        (first, before), (last, after) = self._seen[0], self._seen[-1]
        return (after - before) / (last - first) if last > first else None


def loss_of(x: float, epoch: int) -> float:
    """Return what a trial with this config reports after so many epochs."""
    return x / epoch


def since_begun(folder: str, ended: float) -> float:
    """Return the seconds from the first line of the first training function to the end."""
    return ended - Marks(folder).read()[0].at


def handovers(marks: Sequence[Mark], epochs: int) -> list[float]:
    """Return how long a single slot was without training each time one trial took it from another.

    That is from the report of the one, which is paused, to the first epoch of the other, which
    goes on from its checkpoint. Whoever goes on without a pause leaves no mark.
    """
    found, last = [], None
    for mark in marks:
        if mark.kind == _REPORTED:
            last = mark
        elif last is not None and mark.epoch and last.epoch < epochs:
            found.append(mark.at - last.at)
    return found


def kept_to(
    order: Order, call: tuple[float, float], kept: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return when a call with a deadline came back, and whether with the best that was reported.

    `call` is when it began and ended, `kept` the state that its result leads to. What was
    reported after the deadline does not count; where nothing was before it, there is nothing to
    hold.
    """
    began, ended = call
    until = began + order.deadline_s
    losses = [
        mark.loss
        for mark in Marks(order.folder).read()
        if mark.kind == _REPORTED and mark.at < until
    ]
    held = bool(losses) and kept is not None and kept["loss"] <= min(losses)
    return {"seconds": ended - began, "reported": len(losses), "checkpoint": held}


def save(folder: str, epoch: int, loss: float) -> None:
    """Write a state into a folder: the user's own save."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    (Path(folder) / CHECKPOINT).write_text(json.dumps({"epoch": epoch, "loss": loss}))


def load(folder: str | Path) -> dict[str, Any] | None:
    """Return the state in a folder, None where there is none."""
    path = Path(folder) / CHECKPOINT
    found: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
    return found


class Count:
    """When the first result came, and how many trials are complete; both peers call it so."""

    def __init__(self, trials: int) -> None:
        super().__init__()
        self.memory = Memory(trials)
        self.first: float | None = None
        self.complete = 0

    def on_trial_result(self, *_: object, **__: object) -> None:
        self.first = self.first or time.monotonic()

    def on_trial_complete(self, *_: object, **__: object) -> None:
        self.complete += 1
        self.memory.finished(self.complete)


def counted(run: Callable[[Order], tuple[Count, Any]]) -> dict[str, Task]:
    """Return the tasks that need nothing of a tuner but to run an order and count."""

    def startup(order: Order) -> dict[str, Any]:
        """Run one trial; return when its result was here."""
        count, _ = run(order)
        assert count.first is not None
        return {"seconds": count.first - order.started}

    def reports(order: Order) -> dict[str, Any]:
        """Let a few trials report over and over."""
        run(order)
        took = since_begun(order.folder, time.monotonic())
        return {"per_s": order.trials * order.epochs / took}

    def trials(order: Order) -> dict[str, Any]:
        """Let many trials report once."""
        count, _ = run(order)
        took = since_begun(order.folder, time.monotonic())
        return {"per_s": order.trials / took, "bytes_per_trial": count.memory.per_trial()}

    return {"startup": startup, "reports": reports, "trials": trials}


def serve(tasks: Mapping[str, Task], versions: dict[str, str]) -> None:
    """Do what comes in, a line of JSON for each task, and answer each with a line of JSON."""
    answers = os.dup(1)
    os.dup2(2, 1)  # whatever else is printed is no answer
    for line in sys.stdin:
        order = Order(**json.loads(line))
        figures = tasks[order.task](order)
        os.write(answers, (json.dumps({**figures, "versions": versions}) + "\n").encode())
