"""What is measured: the tuners, their tasks, and how much of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

REPEATS = 3

OURS, RAY, REUSE = "Paceline", "Ray Tune", "Ray Tune, reuse_actors"
OPTUNA, SYNE_TUNE = "Optuna, SQLite", "Syne Tune, local"
EVERYONE = (OURS, RAY, REUSE, OPTUNA, SYNE_TUNE)


@dataclass(frozen=True)
class Tuner:
    """Where a tuner's tasks are, whose Python runs them, and whether one process does all.

    Ray takes seconds to start and to end, so that all its tasks of a repeat run in one session.
    """

    module: str
    environment: str | None = None
    session: bool = False


TUNERS = {
    OURS: Tuner("ours"),
    RAY: Tuner("ray_tune", "ray", session=True),
    OPTUNA: Tuner("optuna_sqlite", "optuna"),
    SYNE_TUNE: Tuner("syne_tune_local", "syne-tune"),
}


@dataclass(frozen=True)
class Case:
    """A task for one tuner, as its row is called, and how much of it."""

    # What is measured: rows of one figure stand together, ours first.
    figure: str
    who: str
    task: str
    # The fields of `Order`.
    work: dict[str, Any]
    repeats: int = REPEATS

    @property
    def tuner(self) -> str:
        return RAY if self.who == REUSE else self.who


@dataclass
class Row:
    """The figures of one tuner at one task: an entry per repeat."""

    case: Case
    found: list[dict[str, Any]] = field(default_factory=list)

    def numbers(self, name: str) -> list[float]:
        """Return one figure of all repeats, where it was found."""
        return [each[name] for each in self.found if each.get(name) is not None]


def cases(*, quick: bool = False) -> list[Case]:
    """Return everything that is measured. Work differs where a peer would take minutes."""
    slow = {"epochs": 3, "epoch_s": 8.0, "deadline_s": 10.0, "trials": 8}
    if quick:
        slow |= {"epoch_s": 1.0, "deadline_s": 2.0}
    turns = {"trials": 2, "epoch_s": 0.1}
    repeats = 1 if quick else REPEATS

    def case(figure: str, who: str, task: str, **work: Any) -> Case:  # noqa: ANN401
        work |= {"reuse": True} if who == REUSE else {}
        return Case(figure, who, task, work, repeats)

    few = {"trials": 2, "epochs": 3} if quick else {"trials": 4, "epochs": 250}
    found = [case("startup", who, "startup") for who in TUNERS]
    found += [case("reports", who, "reports", **few) for who in EVERYONE]
    if not quick:
        found.append(case("reports", OURS, "reports", trials=4, epochs=5_000))
    many = {OURS: 1_000, RAY: 10, REUSE: 250, OPTUNA: 100, SYNE_TUNE: 15}
    for who, trials in many.items():
        found.append(case("trials", who, "trials", trials=5 if quick else trials))
    for who, epochs in {OURS: 11, RAY: 3, REUSE: 11, SYNE_TUNE: 6}.items():
        epochs = 3 if quick else epochs
        found.append(case("pauses", who, "pauses", **turns, epochs=epochs))
    found += [case("deadline", who, "deadline", **slow) for who in TUNERS]
    found += [case("stubborn", who, "deadline", **slow, stubborn=True) for who in (OURS, SYNE_TUNE)]
    # The peers' are long and hardly scatter.
    return [
        Case(each.figure, each.who, each.task, each.work, 1)
        if each.task == "deadline" and each.who != OURS
        else each
        for each in found
    ]
