"""Population based training: the worst go on as copies of the best, with other hyperparameters.

Rule: a population trains in intervals. When a member comes to an interval's end, those who have
their last score there too are looked at with it. Whoever is worse than all but the worst `quantile`
of the living is stopped. In its place a trial opens that is one of the best `quantile`, drawn by
lot, up to that one's last interval's end, and from there on has explored values: each is drawn anew
with probability `resample`, else multiplied by 0.8 or 1.2, or moved to a neighbouring option.

Jaderberg et al., "Population Based Training of Neural Networks", 2017, with the rules of Ray Tune.
Changed against them: (1) a copy is a branch of the plan and starts from the checkpoint that its
source left there; (2) it has its source's score and is copied itself only after an interval of its
own; (3) members are compared at the same epoch, with their last score where they have not come so
far, and whoever came early again when others come; (4) with fewer slots than members, whoever is
furthest behind trains next; (5) two copies of one member at one epoch never go on alike, as they
would be one trial: the second draws again.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from paceline.core.decisions import Go, Open, Pause
from paceline.core.errors import SpecError, unknown
from paceline.core.events import Opened
from paceline.core.ports import Fork, Pick
from paceline.core.rng import stream
from paceline.core.space import CHOICES, Space, multiples
from paceline.core.text import value
from paceline.core.values import Status
from paceline.policies.quantiles import boundary_of, one_or_more

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.decisions import Entry
    from paceline.core.ports import Verdict
    from paceline.core.rng import Stream
    from paceline.core.space import Dimension
    from paceline.core.values import Config, StudySpec, TrialId, Value
    from paceline.core.views import StudyView, TrialView


# What is explored where nothing is named: numbers between any two of which there are more.
_CONTINUOUS = frozenset({"uniform", "loguniform", "quniform"})
_SCHEDULES = frozenset({"piecewise", "each_epoch"})


class Explorer:
    """The dimensions of a study's space that are explored, by name."""

    def __init__(self, spec: StudySpec, named: Sequence[str]) -> None:
        template = spec.generator.params.get("space")
        if template is None:
            raise SpecError(
                f"policy 'pbt' explores a space, and generator {spec.generator.name!r} has none: "
                "its configs are given one by one, as those of a trace are."
            )
        space = Space(template)
        fixed = _fixed(space, template)
        free = [each for each in space.dimensions if each.name not in fixed]
        for name in named:
            if name in fixed:
                raise SpecError(f"policy 'pbt' cannot explore {name!r}: {fixed[name]}.")
            if name not in (each.name for each in free):
                raise unknown("dimension to explore", name, [each.name for each in free])
        self._explored = [
            each for each in free if (each.name in named if named else each.kind in _CONTINUOUS)
        ]
        if not self._explored:
            others = ", ".join(each.name for each in free) or "this space has none to name"
            raise SpecError(
                "policy 'pbt' has nothing to explore: by default it changes the continuous numbers "
                f"that have no schedule yet. Name others with explore=…: {others}."
            )

    def values(self, config: Config) -> Config:
        """Return what a config ends with, of all that is explored or stands beside it."""
        tops = {str(dimension.path[0]) for dimension in self._explored}
        return {top: last_piece(config[top]) for top in sorted(tops)}

    def varied(self, values: Config, resample: float, rng: Stream) -> Config:
        """Return other values: each drawn anew with this probability, else varied."""
        varied = dict(values)
        for dimension in self._explored:
            top, *inner = dimension.path
            old: Value = varied[str(top)]
            for step in inner:
                old = old[step]
            # Two draws for each dimension, so that none depends on what became of another.
            whether, which = rng.random(), rng.random()
            new = dimension.at(which) if whether < resample else _varied(dimension, old, which)
            if isinstance(new, float):
                new = float(f"{new:.12g}")  # as it is executed, so that equal ones are found equal
            varied[str(top)] = _replaced(varied[str(top)], inner, new)
        return varied


def last_piece(value: Value) -> Value:
    """Return a value as it is at the end: a schedule's last piece, or the value itself."""
    if isinstance(value, dict) and "piecewise" in value:
        return value["piecewise"][-1][1]
    return value


def _varied(dimension: Dimension, old: Value, draw: float) -> Value:
    """Return 0.8 or 1.2 times a number, within its domain; of options, a neighbour."""
    up = draw >= 0.5
    if dimension.kind in CHOICES:
        options = dimension.arguments
        if old not in options:
            return dimension.at(draw)
        at = options.index(old) + (1 if up else -1)
        return options[min(max(at, 0), len(options) - 1)]
    low, high = dimension.arguments[:2]
    new = old * (1.2 if up else 0.8)
    if dimension.kind == "quniform":
        q = dimension.arguments[2]
        least, most = multiples(*dimension.arguments)
        return q * min(max(_moved(old / q, new / q), least), most)
    if dimension.kind in ("randint", "lograndint"):
        return min(max(_moved(old, new), low), high - 1)
    return min(max(new, low), high)


def _moved(old: float, new: float) -> int:
    """Return a whole number that is another one, however small the factor makes the step."""
    moved = round(new)
    if moved == round(old) and new != old:
        return math.floor(new) if new < old else math.ceil(new)
    return moved


def _replaced(value: Value, path: Sequence[str | int], new: Value) -> Value:
    """Return a copy of a value with another one at that place."""
    if not path:
        return new
    step, *rest = path
    copy: Value = dict(value) if isinstance(value, dict) else list(value)
    copy[step] = _replaced(value[step], rest, new)
    return copy


def _fixed(space: Space, template: Config) -> dict[str, str]:
    """Return the dimensions that cannot be explored, and why."""
    branching = {each.under[0] for each in space.dimensions if each.under is not None}
    reasons: dict[str, str] = {}
    for dimension in space.dimensions:
        top = dimension.path[0]
        if _scheduled(template[str(top)]):
            reasons[dimension.name] = (
                f"{top} has a schedule of its own; give it as a number, and the schedule is what "
                "is found"
            )
        elif dimension.under is not None:
            reasons[dimension.name] = f"it belongs to an option of {dimension.under[0]}"
        elif dimension.name in branching:
            reasons[dimension.name] = "its options have dimensions of their own"
    return reasons


def _scheduled(value: Value) -> bool:
    if isinstance(value, dict):
        return not _SCHEDULES.isdisjoint(value) or any(map(_scheduled, value.values()))
    return isinstance(value, list | tuple) and any(map(_scheduled, value))


# So often it looks for a copy like no other by the rule, and so often by drawing all of it anew.
_TRIES = 4


class _Score(NamedTuple):
    """A loss at an interval's end; of a copy that has not come to one, its source's."""

    loss: float
    epoch: int
    own: bool


class Pbt:
    """Exploit, explore, and train on."""

    def __init__(
        self,
        *,
        population: int = 8,
        interval: int | None = None,
        quantile: float = 0.25,
        resample: float = 0.25,
        explore: str | list[str] = "",
    ) -> None:
        one_or_more("pbt: population", population)
        one_or_more("pbt: interval", interval)
        if not 0 < quantile <= 0.5:
            raise SpecError(
                f"pbt: quantile={quantile:g} cannot be meant: give more than 0, at most 0.5."
            )
        if not 0 <= resample <= 1:
            raise SpecError(f"pbt: resample={resample:g} cannot be meant: give one from 0 to 1.")
        self._given = interval
        self._interval = 1
        self._quantile = quantile
        self._resample = resample
        # Names of dimensions, as a list or in one string with blanks between them.
        self._named = explore.split() if isinstance(explore, str) else explore
        self._explorer: Explorer | None = None
        # Members that are still to be trained to their end.
        self._places = population
        # The living members, with None where they have not come to an interval's end.
        self._scores: dict[TrialId, _Score | None] = {}
        # What the copies of a member at an epoch went on with.
        self._copies: dict[tuple[TrialId, int], list[Config]] = {}

    def see(self, entry: Entry, study: StudyView) -> None:
        for trial in study.delivered:
            if trial.id in self._scores and trial.epoch == trial.goal:
                self._scores[trial.id] = _Score(trial.loss, trial.epoch, True)
        for trial in study.departed:
            self._scores.pop(trial.id, None)
            self._places -= trial.status is Status.FINISHED
        if isinstance(entry, Open):
            self._scores[entry.trial] = None
            if entry.source is not None and entry.branch is not None and self._explorer is not None:
                place = entry.source, entry.branch
                loss = study.trials[entry.source].losses[entry.branch - 1]
                self._scores[entry.trial] = _Score(loss, entry.branch, False)
                self._copies.setdefault(place, []).append(self._explorer.values(entry.config))
        elif isinstance(entry, Opened):
            self._open(entry.spec)

    def _open(self, spec: StudySpec) -> None:
        if not spec.share:
            raise SpecError(
                "policy 'pbt' lets trials go on from each other's checkpoints, and this study "
                "shares nothing: say share=True (--share in the simulator)."
            )
        self._interval = boundary_of(self._given, spec.epochs)
        self._explorer = Explorer(spec, self._named)

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        if not trial.alive or trial.epoch < trial.goal:
            return ()
        forks = self._forks(trial.epoch, study)
        if any(fork.trial == trial.id for fork in forks):
            return forks
        return [*forks, self._goes_on(trial, study)]

    def _goes_on(self, trial: TrialView, study: StudyView) -> Verdict:
        behind = self._next_of(study, trial.epoch)
        if behind is not None or (study.live < self._places and not study.closed):
            who = "a new one" if behind is None else f"trial {behind.id}"
            why = f"{who} is behind it, with fewer than {trial.epoch} epochs"
            return Pause(trial=trial.id, why=why)
        until = self._until(trial.epoch, study)
        why = f"it is not among the worst at epoch {trial.epoch}"
        return Go(trial=trial.id, until=until, save=True, why=why)

    def next(self, study: StudyView) -> Pick | None:
        if study.new:
            return Pick(None, self._until(0, study), "the population is not complete")
        trial = self._next_of(study, study.spec.epochs)
        if trial is None:
            return None
        return Pick(trial.id, self._until(trial.epoch, study), "nobody who waits is further behind")

    def admit(self, study: StudyView) -> int | None:
        return self._places

    def _until(self, epoch: int, study: StudyView) -> int:
        return min(epoch + self._interval, study.spec.epochs)

    def _next_of(self, study: StudyView, epoch: int) -> TrialView | None:
        """Return the member without a slot that is furthest behind, if it is behind this epoch."""
        members = (study.trials[number] for number in self._scores)
        behind = [
            each for each in members if each.epoch < epoch and each.status is not Status.RUNNING
        ]
        return min(behind, key=lambda each: (each.epoch, each.id), default=None)

    def _forks(self, epoch: int, study: StudyView) -> list[Fork]:
        """Return the forks that replace the worst of those who have their last score there."""
        ranked = sorted(
            (score.loss if score.epoch <= epoch else study.trials[number].losses[epoch - 1], number)
            for number, score in self._scores.items()
            if score is not None
        )
        living = len(self._scores)
        count = min(math.ceil(living * self._quantile), living // 2)
        best = [number for _, number in ranked if self._own(number)][:count]
        losses = [loss for loss, _ in ranked]
        forks: list[Fork] = []
        for loss, number in ranked:
            here = self._own(number) and self._epoch_of(number) == epoch
            # Who has no score yet is not known to be better.
            if here and best and count and bisect_left(losses, loss) >= living - count:
                forks.append(self._fork(study.trials[number], best, study, forks))
        return forks

    def _own(self, number: TrialId) -> bool:
        score = self._scores[number]
        return score is not None and score.own

    def _epoch_of(self, number: TrialId) -> int:
        score = self._scores[number]
        return 0 if score is None else score.epoch

    def _fork(
        self, trial: TrialView, best: Sequence[TrialId], study: StudyView, made: Sequence[Fork]
    ) -> Fork:
        """Return the fork that replaces a member by one of the best, beside others so made."""
        spec, epoch = study.spec, self._epoch_of(trial.id)
        rng = stream(spec.seed, "pbt", trial.id, epoch)
        source = study.trials[best[int(rng.random() * len(best))]]
        branch = self._epoch_of(source.id)
        why = (
            f"trial {trial.id} with {spec.metric} {value(trial.losses[epoch - 1], spec)} at epoch "
            f"{epoch} is among the worst of {len(self._scores)}, and trial {source.id} with "
            f"{value(source.losses[min(epoch, branch) - 1], spec)} among the best"
        )
        alike = [fork.changes for fork in made if (fork.source, fork.epoch) == (source.id, branch)]
        return Fork(
            trial=trial.id,
            source=source.id,
            epoch=branch,
            changes=self._changes(source, branch, alike, rng),
            until=self._until(branch, study),
            why=why,
        )

    def _changes(
        self, source: TrialView, epoch: int, alike: Sequence[Config], rng: Stream
    ) -> Config:
        """Return values for a copy of a member that none of its other copies has."""
        assert self._explorer is not None
        values = self._explorer.values(source.config)
        taken = [values, *self._copies.get((source.id, epoch), ()), *alike]
        changes = values
        for turn in range(2 * _TRIES):
            changes = self._explorer.varied(values, self._resample if turn < _TRIES else 1.0, rng)
            if changes not in taken:
                break
        return changes
