"""The workload that every tuner gets, and how its figures are measured.

Runs in the environment of each peer and in its trials, so it needs only Python and nothing of
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

    Task = Callable[["TaskSpec"], dict[str, Any]]

METRIC = "loss"
# Concurrent trials, unless a task says otherwise.
SLOTS = 2
CHECKPOINT = "state.json"

_BEGUN, _REPORTED = "begun", "reported"


class TaskSpec(NamedTuple):
    """One task for one tuner: a line of JSON on its standard input."""

    task: str
    # An empty folder for all files.
    folder: str
    # Start time of the measured process.
    started: float
    trials: int = 1
    epochs: int = 1
    epoch_s: float = 0.0
    deadline_s: float = 0.0
    # The trials ignore SIGTERM.
    stubborn: bool = False
    # Ray's reuse_actors.
    reuse: bool = False


class TrialEvent(NamedTuple):
    """An event of a trial: the start of an attempt, or the moment before a report."""

    kind: str
    at: float
    trial: str
    epoch: int
    loss: float


class TrialEventLog:
    """A file to which all trials of a study append their events."""

    def __init__(self, folder: str) -> None:
        self._path = Path(folder) / "marks"

    def log_start(self, trial: object, epoch: int) -> None:
        """Log the start of an attempt's first epoch, after loading its checkpoint."""
        self._note(_BEGUN, trial, epoch, 0.0)

    def log_report(self, trial: object, epoch: int, loss: float) -> None:
        """Log the end of an epoch, before its report."""
        self._note(_REPORTED, trial, epoch, loss)

    def read(self) -> list[TrialEvent]:
        """Return all events in order of time."""
        if not self._path.exists():
            return []
        lines = map(json.loads, self._path.read_text().splitlines())
        return sorted((TrialEvent(*line) for line in lines), key=lambda mark: mark.at)

    def _note(self, *words: object) -> None:
        kind, *rest = words
        line = json.dumps([kind, time.monotonic(), *(str(rest[0]), *rest[1:])]) + "\n"
        # One small append per event, so the lines of several processes do not mix.
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(file, line.encode())
        os.close(file)


class MemoryGrowth:
    """Growth of the driver's resident memory from a fifth of the trials to the last."""

    def __init__(self, trials: int) -> None:
        self._looks = {max(1, trials // 5), trials}
        self._seen: list[tuple[int, int]] = []

    def update(self, trials: int) -> None:
        """Record the memory, given the number of finished trials."""
        while self._looks and trials >= min(self._looks):
            self._looks.remove(min(self._looks))
            with open("/proc/self/statm") as file:
                pages = int(file.read().split()[1])
            self._seen.append((trials, pages * os.sysconf("SC_PAGE_SIZE")))

    def bytes_per_trial(self) -> float | None:
        """Return the bytes added per trial between the two measurements."""
        (first, before), (last, after) = self._seen[0], self._seen[-1]
        return (after - before) / (last - first) if last > first else None


def compute_loss(x: float, epoch: int) -> float:
    """Return the loss of a trial after this many epochs."""
    return x / epoch


def seconds_since_start(folder: str, ended: float) -> float:
    """Return the seconds from the first line of the first training function to the end."""
    return ended - TrialEventLog(folder).read()[0].at


def measure_handovers(events: Sequence[TrialEvent], epochs: int) -> list[float]:
    """Return the times from one trial's report to the first epoch of the next trial on the slot.

    The first trial is paused, and the next one resumes from its checkpoint. A trial that continues
    without a pause logs no start.
    """
    found, last = [], None
    for mark in events:
        if mark.kind == _REPORTED:
            last = mark
        elif last is not None and mark.epoch and last.epoch < epochs:
            found.append(mark.at - last.at)
    return found


def check_deadline(
    task: TaskSpec, call: tuple[float, float], kept: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return how long a call with a deadline took, and whether its result holds the best state.

    `call` is its begin and end, `kept` the state of its result. Reports after the deadline do not
    count; without a report before it, there is no best state.
    """
    began, ended = call
    until = began + task.deadline_s
    losses = [
        mark.loss
        for mark in TrialEventLog(task.folder).read()
        if mark.kind == _REPORTED and mark.at < until
    ]
    held = bool(losses) and kept is not None and kept["loss"] <= min(losses)
    return {"seconds": ended - began, "reported": len(losses), "checkpoint": held}


def save(folder: str, epoch: int, loss: float) -> None:
    """Write a state into a folder: the user's own save."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    (Path(folder) / CHECKPOINT).write_text(json.dumps({"epoch": epoch, "loss": loss}))


def load(folder: str | Path) -> dict[str, Any] | None:
    """Return the state in a folder; None if there is none."""
    path = Path(folder) / CHECKPOINT
    found: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
    return found


class ResultCounter:
    """Time of the first result and number of complete trials; callback of both peers."""

    def __init__(self, trials: int) -> None:
        super().__init__()
        self.memory = MemoryGrowth(trials)
        self.first: float | None = None
        self.complete = 0

    def on_trial_result(self, *_: object, **__: object) -> None:
        self.first = self.first or time.monotonic()

    def on_trial_complete(self, *_: object, **__: object) -> None:
        self.complete += 1
        self.memory.update(self.complete)


def make_tasks(run: Callable[[TaskSpec], tuple[ResultCounter, Any]]) -> dict[str, Task]:
    """Return the tasks that a tuner can run with one function and a counter."""

    def startup(task: TaskSpec) -> dict[str, Any]:
        """Run one trial; return the time until the driver had its result."""
        count, _ = run(task)
        assert count.first is not None
        return {"seconds": count.first - task.started}

    def reports(task: TaskSpec) -> dict[str, Any]:
        """Run a few trials with many reports."""
        run(task)
        took = seconds_since_start(task.folder, time.monotonic())
        return {"per_s": task.trials * task.epochs / took}

    def trials(task: TaskSpec) -> dict[str, Any]:
        """Run many trials with one report each."""
        count, _ = run(task)
        took = seconds_since_start(task.folder, time.monotonic())
        return {"per_s": task.trials / took, "bytes_per_trial": count.memory.bytes_per_trial()}

    return {"startup": startup, "reports": reports, "trials": trials}


def serve(tasks: Mapping[str, Task], versions: dict[str, str]) -> None:
    """Run tasks from standard input, one line of JSON each; print one line of JSON per task."""
    answers = os.dup(1)
    os.dup2(2, 1)  # other output must not mix with the answers
    for line in sys.stdin:
        task = TaskSpec(**json.loads(line))
        figures = tasks[task.task](task)
        os.write(answers, (json.dumps({**figures, "versions": versions}) + "\n").encode())
