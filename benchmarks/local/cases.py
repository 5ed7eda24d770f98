"""The measured cases: tuners, tasks, and the amount of work."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

REPEATS = 3

OURS, RAY, REUSE = "Paceline", "Ray Tune", "Ray Tune, reuse_actors"
OPTUNA, SYNE_TUNE = "Optuna, SQLite", "Syne Tune, local"
TUNER_NAMES = (OURS, RAY, REUSE, OPTUNA, SYNE_TUNE)


@dataclass(frozen=True)
class Tuner:
    """The module of a tuner's tasks, its environment, and whether one process runs them all.

    Ray takes seconds to start and to end, so all its tasks of a repeat run in one session.
    """

    module: str
    environment: str | None = None
    session: bool = False


TUNERS = {
    OURS: Tuner("paceline_local"),
    RAY: Tuner("ray_tune", "ray", session=True),
    OPTUNA: Tuner("optuna_sqlite", "optuna"),
    SYNE_TUNE: Tuner("syne_tune_local", "syne-tune"),
}


@dataclass(frozen=True)
class Case:
    """A task of one tuner, the label of its row, and the amount of work."""

    # The figure: its rows are printed together, ours first.
    figure: str
    label: str
    task: str
    # Fields of `TaskSpec`.
    work: dict[str, Any]
    repeats: int = REPEATS

    @property
    def tuner(self) -> str:
        return RAY if self.label == REUSE else self.label


@dataclass
class Row:
    """The figures of one tuner at one task: an entry per repeat."""

    case: Case
    found: list[dict[str, Any]] = field(default_factory=list)

    def numbers(self, name: str) -> list[float]:
        """Return one figure of all repeats that have it."""
        return [each[name] for each in self.found if each.get(name) is not None]


def list_cases(*, quick: bool = False) -> list[Case]:
    """Return all cases. A peer that would take minutes gets less work."""
    slow = {"epochs": 3, "epoch_s": 8.0, "deadline_s": 10.0, "trials": 8}
    if quick:
        slow |= {"epoch_s": 1.0, "deadline_s": 2.0}
    turns = {"trials": 2, "epoch_s": 0.1}
    repeats = 1 if quick else REPEATS

    def case(figure: str, label: str, task: str, **work: Any) -> Case:  # noqa: ANN401
        work |= {"reuse": True} if label == REUSE else {}
        return Case(figure, label, task, work, repeats)

    few = {"trials": 2, "epochs": 3} if quick else {"trials": 4, "epochs": 250}
    found = [case("startup", label, "startup") for label in TUNERS]
    found += [case("reports", label, "reports", **few) for label in TUNER_NAMES]
    if not quick:
        found.append(case("reports", OURS, "reports", trials=4, epochs=5_000))
    many = {OURS: 1_000, RAY: 10, REUSE: 250, OPTUNA: 100, SYNE_TUNE: 15}
    for label, trials in many.items():
        found.append(case("trials", label, "trials", trials=5 if quick else trials))
    for label, epochs in {OURS: 11, RAY: 3, REUSE: 11, SYNE_TUNE: 6}.items():
        epochs = 3 if quick else epochs
        found.append(case("pauses", label, "pauses", **turns, epochs=epochs))
    found += [case("deadline", label, "deadline", **slow) for label in TUNERS]
    found += [
        case("stubborn", label, "deadline", **slow, stubborn=True) for label in (OURS, SYNE_TUNE)
    ]
    # The peers' deadline cases are long and vary little.
    return [
        Case(each.figure, each.label, each.task, each.work, 1)
        if each.task == "deadline" and each.label != OURS
        else each
        for each in found
    ]
