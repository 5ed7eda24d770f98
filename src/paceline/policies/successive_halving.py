"""Synchronous halving: brackets whose rungs are judged when all of their trials are there.

Knows the arithmetic of one bracket, and how a policy fills bracket after bracket. What sizes and
rungs the brackets have is the policy's to say.
"""

from __future__ import annotations

from itertools import cycle, repeat
from typing import TYPE_CHECKING

from paceline.core.decisions import Go, Open, Pause, Stop
from paceline.core.errors import SpecError
from paceline.core.events import Opened
from paceline.core.ports import Pick
from paceline.core.values import NO_LOSS
from paceline.policies.rungs import first_rung, halvings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from paceline.core.decisions import Entry
    from paceline.core.ports import Verdict
    from paceline.core.values import StudySpec, TrialId
    from paceline.core.views import StudyView, TrialView


def rungs_of(first: float, eta: int, epochs: int) -> list[int]:
    """Return the whole epochs nearest to first, first·eta, … up to the last epoch."""
    levels = []
    level = first
    while round(level) < epochs:
        levels.append(max(1, round(level)))
        level *= eta
    return [*dict.fromkeys(levels), epochs]


class Bracket:
    """Trials that start together and are halved together."""

    def __init__(self, size: int, levels: Sequence[int], eta: int) -> None:
        self.size = size
        self._levels = levels
        self._eta = eta
        self._at = 0
        self.taken = 0
        # Whether no more trials come than were taken.
        self.full = False
        self._running: set[TrialId] = set()
        self._scores: list[tuple[float, int, TrialId]] = []
        # Trials that may go on to the present level, and why; trials that may not.
        self.promoted: dict[TrialId, str] = {}
        self.lost: dict[TrialId, str] = {}

    @property
    def level(self) -> int:
        """The epoch that the present rung is at."""
        return self._levels[self._at]

    def take(self, trial: TrialId) -> None:
        """A trial starts."""
        self.taken += 1
        self.full = self.full or self.taken == self.size
        self._running.add(trial)

    def arrive(self, trial: TrialId, loss: float) -> None:
        """A trial has come to the present rung."""
        self._running.discard(trial)
        self._scores.append((loss, len(self._scores), trial))
        self.halve()

    def leave(self, trial: TrialId) -> None:
        """A trial has ended."""
        self._running.discard(trial)
        self.promoted.pop(trial, None)
        self.lost.pop(trial, None)
        self._scores = [score for score in self._scores if score[2] != trial]
        self.halve()

    def go_on(self, trial: TrialId) -> None:
        """A promoted trial is on its way."""
        self.promoted.pop(trial, None)

    def halve(self) -> None:
        """Promote the best 1/eta and drop the others, once all are there."""
        if self._running or not self.full or not self._scores:
            return
        level, count = self.level, len(self._scores)
        if self._at + 1 == len(self._levels):
            return
        best = sorted(self._scores)
        quota = max(1, count // self._eta)
        winners = [trial for loss, _, trial in best[:quota] if loss < NO_LOSS]
        why = f"it is among the best {quota} of all {count} at epoch {level}"
        self.promoted.update(dict.fromkeys(winners, why))
        why = f"it is not among the best {quota} of all {count} at epoch {level}"
        self.lost.update((trial, why) for _, _, trial in best if trial not in self.promoted)
        self._scores = []
        self._running = set(winners)
        self._at += 1


class Brackets:
    """Fills one bracket after the other. A slot that nobody uses opens the next."""

    def __init__(self, *, eta: int = 3) -> None:
        if eta < 2:
            raise SpecError(f"eta={eta} cannot be meant: the best 1/eta go on, so give 2 or more.")
        self._eta = eta
        self._shapes: Iterator[tuple[int, list[int]]] = iter(())
        self._filling: Bracket | None = None
        self._brackets: dict[TrialId, Bracket] = {}
        # Brackets with somebody to promote or to drop.
        self._due: dict[int, Bracket] = {}

    def shapes(self, spec: StudySpec) -> Iterator[tuple[int, list[int]]]:
        """Yield sizes and rungs of brackets, for ever."""
        raise NotImplementedError

    def see(self, entry: Entry, study: StudyView) -> None:
        if isinstance(entry, Opened):
            self._shapes = self.shapes(entry.spec)
            self._open()
        elif isinstance(entry, Open):
            assert self._filling is not None
            self._filling.take(entry.trial)
            self._brackets[entry.trial] = self._filling
            if self._filling.full:
                self._open()
        elif isinstance(entry, Go):
            self._brackets[entry.trial].go_on(entry.trial)
            self._note(self._brackets[entry.trial])
        for trial in study.delivered:
            bracket = self._brackets[trial.id]
            if trial.epoch == bracket.level:
                bracket.arrive(trial.id, trial.loss)
                self._note(bracket)
        for trial in study.departed:
            bracket = self._brackets.pop(trial.id)
            bracket.leave(trial.id)
            self._note(bracket)
        if study.closed and self._filling is not None and not self._filling.full:
            # The last bracket is halved with what it has.
            self._filling.full = True
            self._filling.halve()
            self._note(self._filling)

    def _open(self) -> None:
        size, levels = next(self._shapes)
        self._filling = Bracket(size, levels, self._eta)

    def _note(self, bracket: Bracket) -> None:
        if bracket.promoted or bracket.lost:
            self._due[id(bracket)] = bracket
        else:
            self._due.pop(id(bracket), None)

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        verdicts: list[Verdict] = [
            Stop(trial=lost, why=why)
            for bracket in self._due.values()
            for lost, why in bracket.lost.items()
        ]
        bracket = self._brackets.get(trial.id)
        if bracket is None or trial.epoch < trial.goal or trial.id in bracket.lost:
            return verdicts
        why = bracket.promoted.get(trial.id)
        if why is not None:
            # It goes on in its own process, without the pause.
            return [*verdicts, Go(trial=trial.id, until=bracket.level, why=why)]
        waits = f"others of its bracket are still on their way to epoch {trial.epoch}"
        return [*verdicts, Pause(trial=trial.id, why=waits)]

    def next(self, study: StudyView) -> Pick | None:
        for ready in study.ready:
            return Pick(ready, 0, "it was interrupted before its rung")
        for bracket in self._due.values():
            for trial, why in bracket.promoted.items():
                return Pick(trial, bracket.level, why)
        if self._filling is None or not study.new:
            return None
        place = f"place {self._filling.taken + 1} of {self._filling.size} in its bracket is free"
        return Pick(None, self._filling.level, place)

    def admit(self, study: StudyView) -> int | None:
        return None


class Sha(Brackets):
    """Halve brackets of one shape."""

    def __init__(self, *, eta: int = 3, first: int | None = None, size: int | None = None) -> None:
        super().__init__(eta=eta)
        # None: one percent of the epochs, at least one; and as many as leave one at the end.
        self._first = first
        self._size = size

    def shapes(self, spec: StudySpec) -> Iterator[tuple[int, list[int]]]:
        times = halvings(first_rung(self._first, spec.epochs), self._eta, spec.epochs)
        levels = rungs_of(spec.epochs / self._eta**times, self._eta, spec.epochs)
        return repeat((self._size or self._eta**times, levels))


class Hyperband(Brackets):
    """Halve brackets of all shapes in turn."""

    def __init__(self, *, eta: int = 3, first: int | None = None) -> None:
        super().__init__(eta=eta)
        # None: one percent of the epochs, at least one.
        self._first = first

    def shapes(self, spec: StudySpec) -> Iterator[tuple[int, list[int]]]:
        eta, epochs = self._eta, spec.epochs
        most = halvings(first_rung(self._first, epochs), eta, epochs)
        return cycle(
            [
                (-(-(most + 1) * eta**s // (s + 1)), rungs_of(epochs / eta**s, eta, epochs))
                for s in range(most, -1, -1)
            ]
        )
