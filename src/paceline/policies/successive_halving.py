"""Successive halving and Hyperband: brackets halved when all of their trials reached a rung.

Rule: a bracket starts `size` trials; when all live ones have reached a rung, the best 1/eta train
on to the next and the others stop. `sha` fills brackets of one shape. `hyperband` cycles through
s = s_max … 0 with ceil((s_max + 1) · eta^s / (s + 1)) trials, first rung epochs / eta^s.

Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization",
AISTATS 2016; Li et al., "Hyperband", JMLR 2018. Different from the papers: (1) a free slot that the
bracket cannot use starts the next bracket; (2) a trial that is promoted at once trains on without a
pause; (3) the last bracket is halved with the trials it has; (4) a trial whose loss is not a number
is never promoted.
"""

from __future__ import annotations

from itertools import cycle, repeat
from typing import TYPE_CHECKING

from paceline.core.base_part import BasePart
from paceline.core.decisions import Go, Open, Pause, Stop
from paceline.core.errors import SpecError
from paceline.core.events import Extended, Opened
from paceline.core.ports import Pick
from paceline.core.values import NO_LOSS
from paceline.policies.rungs import choose_first_rung, count_halvings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from paceline.core.decisions import Entry
    from paceline.core.ports import Verdict
    from paceline.core.values import StudySpec, TrialId
    from paceline.core.views import StudyView, TrialView


def compute_bracket_rungs(first: float, eta: int, epochs: int) -> list[int]:
    """Return the whole epochs nearest to first, first·eta, … up to the last epoch."""
    levels = []
    level = first
    while round(level) < epochs:
        levels.append(max(1, round(level)))
        level *= eta
    return [*dict.fromkeys(levels), epochs]


class Bracket:
    """Trials that are halved together."""

    def __init__(self, size: int, levels: Sequence[int], eta: int) -> None:
        self.size = size
        self._levels = levels
        self._eta = eta
        self._at = 0
        self.taken = 0
        # Whether no more trials will join.
        self.full = False
        self._running: set[TrialId] = set()
        self._scores: list[tuple[float, int, TrialId]] = []
        # Promoted trials that have not started yet, and eliminated trials, with reasons.
        self.promoted: dict[TrialId, str] = {}
        self.eliminated: dict[TrialId, str] = {}

    @property
    def level(self) -> int:
        """The epoch of the current rung."""
        return self._levels[self._at]

    def add_trial(self, trial: TrialId) -> None:
        """Add a new trial."""
        self.taken += 1
        self.full = self.full or self.taken == self.size
        self._running.add(trial)

    def record(self, trial: TrialId, loss: float) -> None:
        """Record the loss of a trial at the current rung."""
        self._running.discard(trial)
        self._scores.append((loss, len(self._scores), trial))
        self.halve()

    def remove(self, trial: TrialId) -> None:
        """Remove a trial that has ended."""
        self._running.discard(trial)
        self.promoted.pop(trial, None)
        self.eliminated.pop(trial, None)
        self._scores = [score for score in self._scores if score[2] != trial]
        self.halve()

    def start_promoted(self, trial: TrialId) -> None:
        """Note that a promoted trial trains on."""
        self.promoted.pop(trial, None)

    def halve(self) -> None:
        """Promote the best 1/eta and eliminate the others, once all have reached the rung."""
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
        self.eliminated.update((trial, why) for _, _, trial in best if trial not in self.promoted)
        self._scores = []
        self._running = set(winners)
        self._at += 1


class BracketPolicy(BasePart):
    """Fills one bracket after the other; subclasses choose sizes and rungs."""

    def __init__(self, *, eta: int = 3) -> None:
        if eta < 2:
            raise SpecError(
                f"eta={eta} is invalid: must be at least 2, since the best 1/eta train on."
            )
        self._eta = eta
        self._shapes: Iterator[tuple[int, list[int]]] = iter(())
        self._filling: Bracket | None = None
        self._brackets: dict[TrialId, Bracket] = {}
        # Brackets with trials to promote or to stop.
        self._due: dict[int, Bracket] = {}
        # Whether the trials were opened by other rungs than those of the study as it is now.
        self._is_foreign = False

    def iterate_shapes(self, spec: StudySpec) -> Iterator[tuple[int, list[int]]]:
        """Yield sizes and rungs of brackets, without end."""
        raise NotImplementedError

    def see(self, entry: Entry, study: StudyView) -> None:
        if isinstance(entry, Opened):
            self._shapes = self.iterate_shapes(entry.spec)
            self._open_bracket()
            now = entry.spec
            self._is_foreign = any(
                (spec.epochs, spec.policy) != (now.epochs, now.policy) for spec in entry.earlier
            )
        elif isinstance(entry, Extended):
            self._extend(study)
        elif isinstance(entry, Open):
            assert self._filling is not None
            self._filling.add_trial(entry.trial)
            self._brackets[entry.trial] = self._filling
            if self._filling.full:
                self._open_bracket()
        elif isinstance(entry, Go):
            self._brackets[entry.trial].start_promoted(entry.trial)
            self._update_due(self._brackets[entry.trial])
        for trial in study.delivered:
            bracket = self._brackets[trial.id]
            if trial.epoch == bracket.level:
                bracket.record(trial.id, trial.loss)
                self._update_due(bracket)
        for trial in study.departed:
            bracket = self._brackets.pop(trial.id)
            bracket.remove(trial.id)
            self._update_due(bracket)
        if study.closed and self._filling is not None and not self._filling.full:
            # The last bracket is halved with the trials it has.
            self._filling.full = True
            self._filling.halve()
            self._update_due(self._filling)

    def _extend(self, study: StudyView) -> None:
        """Begin a new bracket; put trials that fit into no bracket by now into one of their own."""
        assert self._filling is not None
        if self._is_foreign:
            live = [trial for trial in study.trials if trial.alive]
            furthest = max((trial.goal for trial in live), default=0)
            _, levels = next(self._shapes)
            above = [level for level in levels if level > furthest] or [study.spec.epochs]
            gathered = Bracket(len(live), above, self._eta)
            for trial in live:
                gathered.add_trial(trial.id)
            self._brackets = {trial.id: gathered for trial in live}
            self._due = {}
        if self._is_foreign or self._filling.full:
            self._open_bracket()

    def _open_bracket(self) -> None:
        size, levels = next(self._shapes)
        self._filling = Bracket(size, levels, self._eta)

    def _update_due(self, bracket: Bracket) -> None:
        if bracket.promoted or bracket.eliminated:
            self._due[id(bracket)] = bracket
        else:
            self._due.pop(id(bracket), None)

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        verdicts: list[Verdict] = [
            Stop(trial=lost, why=why)
            for bracket in self._due.values()
            for lost, why in bracket.eliminated.items()
        ]
        bracket = self._brackets.get(trial.id)
        if bracket is None or trial.epoch < trial.goal or trial.id in bracket.eliminated:
            return verdicts
        why = bracket.promoted.get(trial.id)
        if why is not None:
            # It trains on in its own process, without a pause.
            return [*verdicts, Go(trial=trial.id, until=bracket.level, why=why)]
        waits = f"others of its bracket are still on their way to epoch {trial.epoch}"
        return [*verdicts, Pause(trial=trial.id, why=waits)]

    def readmit(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        bracket = self._brackets[trial.id]
        if not self._is_foreign or trial.goal >= bracket.level:
            return ()
        why = f"the study was extended: it is compared at epoch {bracket.level} next"
        return (Go(trial=trial.id, until=bracket.level, why=why),)

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

    def count_waiting(self, study: StudyView, new: float) -> float:
        """Return how many more trials would start if slots were free, `new` of them new."""
        return new + sum(len(bracket.promoted) for bracket in self._due.values())

    def admit(self, study: StudyView) -> int | None:
        return None


class Sha(BracketPolicy):
    """Successive halving: brackets of one shape."""

    def __init__(self, *, eta: int = 3, first: int | None = None, size: int | None = None) -> None:
        super().__init__(eta=eta)
        # None: one percent of the epochs, at least one; and the size that leaves one trial.
        self._first = first
        self._size = size

    def iterate_shapes(self, spec: StudySpec) -> Iterator[tuple[int, list[int]]]:
        times = count_halvings(choose_first_rung(self._first, spec.epochs), self._eta, spec.epochs)
        levels = compute_bracket_rungs(spec.epochs / self._eta**times, self._eta, spec.epochs)
        return repeat((self._size or self._eta**times, levels))


class Hyperband(BracketPolicy):
    """Hyperband: brackets of all shapes in turn."""

    def __init__(self, *, eta: int = 3, first: int | None = None) -> None:
        super().__init__(eta=eta)
        # None: one percent of the epochs, at least one.
        self._first = first

    def iterate_shapes(self, spec: StudySpec) -> Iterator[tuple[int, list[int]]]:
        eta, epochs = self._eta, spec.epochs
        most = count_halvings(choose_first_rung(self._first, epochs), eta, epochs)
        return cycle(
            [
                (
                    -(-(most + 1) * eta**s // (s + 1)),
                    compute_bracket_rungs(epochs / eta**s, eta, epochs),
                )
                for s in range(most, -1, -1)
            ]
        )
