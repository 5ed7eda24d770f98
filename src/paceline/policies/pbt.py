"""Population based training: the worst members are replaced by changed copies of the best.

Rule: a population trains in intervals. When a member reaches the end of an interval, it is compared
with the others, together with all members whose last score is at that epoch. A member among the
worst `quantile` of the population is stopped. A copy of one of the best `quantile`, drawn at
random, replaces it: it continues from the end of that member's last interval with explored values.
Each value is drawn anew with probability `resample`, otherwise multiplied by 0.8 or 1.2, or moved
to a neighbouring option.

Jaderberg et al., "Population Based Training of Neural Networks", 2017, with the rules of Ray Tune.
Different from them: (1) a copy is a branch of the plan and starts from its source's checkpoint; (2)
it has its source's score, and is copied itself only after an interval of its own; (3) members are
compared at the same epoch, by their last score if they have not reached it, and members that
arrived early are compared again when others arrive; (4) with fewer slots than members, the member
furthest behind trains next; (5) two copies of one member at one epoch always differ, since they
would be one trial otherwise: the second draws again.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from paceline.core.base_part import BasePart
from paceline.core.decisions import Go, Open, Pause
from paceline.core.errors import SpecError, make_unknown_error
from paceline.core.events import Opened
from paceline.core.ports import Fork, Pick
from paceline.core.rng import stream
from paceline.core.space import CHOICES, Space, find_multiples
from paceline.core.text import format_metric
from paceline.core.values import Status
from paceline.policies.quantiles import check_positive, choose_boundary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.decisions import Entry
    from paceline.core.ports import Verdict
    from paceline.core.rng import Stream
    from paceline.core.space import Dimension
    from paceline.core.values import Config, StudySpec, TrialId, Value
    from paceline.core.views import StudyView, TrialView


# Kinds of dimensions that are explored by default.
_CONTINUOUS = frozenset({"uniform", "loguniform", "quniform"})
_SCHEDULES = frozenset({"piecewise", "each_epoch"})


class Explorer:
    """The dimensions of a study's space that are explored, by name."""

    def __init__(self, spec: StudySpec, named: Sequence[str]) -> None:
        template = spec.generator.params.get("space")
        if template is None:
            raise SpecError(
                f"policy 'pbt' explores a space, and generator {spec.generator.name!r} has none: "
                "use a generator with a space instead of a list of configs or a trace."
            )
        space = Space(template)
        fixed = _find_unexplorable(space, template)
        free = [each for each in space.dimensions if each.name not in fixed]
        for name in named:
            if name in fixed:
                raise SpecError(f"policy 'pbt' cannot explore {name!r}: {fixed[name]}.")
            if name not in (each.name for each in free):
                raise make_unknown_error("dimension to explore", name, [each.name for each in free])
        self._explored = [
            each for each in free if (each.name in named if named else each.kind in _CONTINUOUS)
        ]
        if not self._explored:
            others = ", ".join(each.name for each in free) or "this space has no others"
            raise SpecError(
                "policy 'pbt' has nothing to explore: by default it changes continuous numbers "
                f"without a schedule. Name other dimensions with explore=…: {others}."
            )

    def get_values(self, config: Config) -> Config:
        """Return the last values of the top-level entries that hold explored dimensions."""
        tops = {str(dimension.path[0]) for dimension in self._explored}
        return {top: get_last_piece(config[top]) for top in sorted(tops)}

    def perturb(self, values: Config, resample: float, rng: Stream) -> Config:
        """Return changed values: each drawn anew with this probability, otherwise perturbed."""
        changed = dict(values)
        for dimension in self._explored:
            top, *inner = dimension.path
            old: Value = changed[str(top)]
            for step in inner:
                old = old[step]
            # Always two draws a dimension, so that no dimension's draws depend on another's.
            whether, which = rng.random(), rng.random()
            new = dimension.at(which) if whether < resample else _perturb(dimension, old, which)
            if isinstance(new, float):
                new = float(
                    f"{new:.12g}"
                )  # as the plan rounds it, so that equal values compare equal
            changed[str(top)] = _replace_at(changed[str(top)], inner, new)
        return changed


def get_last_piece(value: Value) -> Value:
    """Return a value at the last epoch: a schedule's last piece, or the value itself."""
    if isinstance(value, dict) and "piecewise" in value:
        return value["piecewise"][-1][1]
    return value


def _perturb(dimension: Dimension, old: Value, draw: float) -> Value:
    """Return 0.8 or 1.2 times a number, within its domain; for a choice, a neighbouring option."""
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
        least, most = find_multiples(*dimension.arguments)
        return q * min(max(_round_away(old / q, new / q), least), most)
    if dimension.kind in ("randint", "lograndint"):
        return min(max(_round_away(old, new), low), high - 1)
    return min(max(new, low), high)


def _round_away(old: float, new: float) -> int:
    """Round to a whole number that differs from the old one, however small the step is."""
    moved = round(new)
    if moved == round(old) and new != old:
        return math.floor(new) if new < old else math.ceil(new)
    return moved


def _replace_at(value: Value, path: Sequence[str | int], new: Value) -> Value:
    """Return a copy of a value with `new` at a path inside it."""
    if not path:
        return new
    step, *rest = path
    copy: Value = dict(value) if isinstance(value, dict) else list(value)
    copy[step] = _replace_at(value[step], rest, new)
    return copy


def _find_unexplorable(space: Space, template: Config) -> dict[str, str]:
    """Return the dimensions that cannot be explored, with reasons."""
    branching = {each.under[0] for each in space.dimensions if each.under is not None}
    reasons: dict[str, str] = {}
    for dimension in space.dimensions:
        top = dimension.path[0]
        if _has_schedule(template[str(top)]):
            reasons[dimension.name] = (
                f"{top} has a schedule of its own; give a number, and PBT finds a schedule for it"
            )
        elif dimension.under is not None:
            reasons[dimension.name] = f"it belongs to an option of {dimension.under[0]}"
        elif dimension.name in branching:
            reasons[dimension.name] = "its options have dimensions of their own"
    return reasons


def _has_schedule(value: Value) -> bool:
    if isinstance(value, dict):
        return not _SCHEDULES.isdisjoint(value) or any(map(_has_schedule, value.values()))
    return isinstance(value, list | tuple) and any(map(_has_schedule, value))


# Tries to find a copy that differs from all others: by the rule, and then by drawing all anew.
_TRIES = 4


class _Score(NamedTuple):
    """A loss at the end of an interval; before its first interval, a copy has its source's."""

    loss: float
    epoch: int
    own: bool


class Pbt(BasePart):
    """Replaces the worst members of a population by changed copies of the best."""

    def __init__(
        self,
        *,
        population: int = 8,
        interval: int | None = None,
        quantile: float = 0.25,
        resample: float = 0.25,
        explore: str | list[str] = "",
    ) -> None:
        check_positive("pbt: population", population)
        check_positive("pbt: interval", interval)
        if not 0 < quantile <= 0.5:
            raise SpecError(
                f"pbt: quantile={quantile:g} is invalid: must be above 0 and at most 0.5."
            )
        if not 0 <= resample <= 1:
            raise SpecError(f"pbt: resample={resample:g} is invalid: must be from 0 to 1.")
        self._given = interval
        self._interval = 1
        self._quantile = quantile
        self._resample = resample
        # Names of dimensions, as a list or as one string with spaces.
        self._named = explore.split() if isinstance(explore, str) else explore
        self._explorer: Explorer | None = None
        # The number of members that have not finished yet.
        self._remaining = population
        # The live members' scores; None before the end of the first interval.
        self._scores: dict[TrialId, _Score | None] = {}
        # The values of the copies made of a member at an epoch.
        self._copies: dict[tuple[TrialId, int], list[Config]] = {}

    def see(self, entry: Entry, study: StudyView) -> None:
        for trial in study.delivered:
            if trial.id in self._scores and trial.epoch == trial.goal:
                self._scores[trial.id] = _Score(trial.loss, trial.epoch, True)
        for trial in study.departed:
            self._scores.pop(trial.id, None)
            self._remaining -= trial.status is Status.FINISHED
        if isinstance(entry, Open):
            self._scores[entry.trial] = None
            if entry.source is not None and entry.branch is not None and self._explorer is not None:
                place = entry.source, entry.branch
                loss = study.trials[entry.source].losses[entry.branch - 1]
                self._scores[entry.trial] = _Score(loss, entry.branch, False)
                self._copies.setdefault(place, []).append(self._explorer.get_values(entry.config))
        elif isinstance(entry, Opened):
            self._set_up(entry.spec)

    def _set_up(self, spec: StudySpec) -> None:
        if not spec.share:
            raise SpecError(
                "policy 'pbt' continues trials from each other's checkpoints, which needs "
                "share=True (--share in the simulator)."
            )
        self._interval = choose_boundary(self._given, spec.epochs)
        self._explorer = Explorer(spec, self._named)

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        if not trial.alive or trial.epoch < trial.goal:
            return ()
        forks = self._list_forks(trial.epoch, study)
        if any(fork.trial == trial.id for fork in forks):
            return forks
        return [*forks, self._decide_next(trial, study)]

    def _decide_next(self, trial: TrialView, study: StudyView) -> Verdict:
        behind = self._find_furthest_behind(study, trial.epoch)
        if behind is not None or (study.live < self._remaining and not study.closed):
            other = "a new trial" if behind is None else f"trial {behind.id}"
            why = f"{other} is behind it, with fewer than {trial.epoch} epochs"
            return Pause(trial=trial.id, why=why)
        until = self._next_goal(trial.epoch, study)
        why = f"it is not among the worst at epoch {trial.epoch}"
        return Go(trial=trial.id, until=until, save=True, why=why)

    def readmit(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        return ()  # `next` continues every member, the one furthest behind first

    def next(self, study: StudyView) -> Pick | None:
        if study.new:
            return Pick(None, self._next_goal(0, study), "the population is not complete")
        trial = self._find_furthest_behind(study, study.spec.epochs)
        if trial is None:
            return None
        return Pick(
            trial.id, self._next_goal(trial.epoch, study), "no other paused trial is further behind"
        )

    def count_waiting(self, study: StudyView, new: float) -> float:
        """Return how many more trials would start if slots were free, `new` of them new."""
        members = (study.trials[number] for number in self._scores)
        return new + sum(
            each.epoch < study.spec.epochs and each.status is Status.PAUSED for each in members
        )

    def admit(self, study: StudyView) -> int | None:
        return self._remaining

    def _next_goal(self, epoch: int, study: StudyView) -> int:
        return min(epoch + self._interval, study.spec.epochs)

    def _find_furthest_behind(self, study: StudyView, epoch: int) -> TrialView | None:
        """Return the member without a slot that is furthest behind, if it is behind this epoch."""
        members = (study.trials[number] for number in self._scores)
        behind = [
            each for each in members if each.epoch < epoch and each.status is not Status.RUNNING
        ]
        return min(behind, key=lambda each: (each.epoch, each.id), default=None)

    def _list_forks(self, epoch: int, study: StudyView) -> list[Fork]:
        """Return the forks that replace the worst members whose last score is at this epoch."""
        ranked = sorted(
            (score.loss if score.epoch <= epoch else study.trials[number].losses[epoch - 1], number)
            for number, score in self._scores.items()
            if score is not None
        )
        living = len(self._scores)
        count = min(math.ceil(living * self._quantile), living // 2)
        best = [number for _, number in ranked if self._has_own_score(number)][:count]
        losses = [loss for loss, _ in ranked]
        forks: list[Fork] = []
        for loss, number in ranked:
            here = self._has_own_score(number) and self._get_score_epoch(number) == epoch
            # A member without a score does not count as better.
            if here and best and count and bisect_left(losses, loss) >= living - count:
                forks.append(self._make_fork(study.trials[number], best, study, forks))
        return forks

    def _has_own_score(self, number: TrialId) -> bool:
        score = self._scores[number]
        return score is not None and score.own

    def _get_score_epoch(self, number: TrialId) -> int:
        score = self._scores[number]
        return 0 if score is None else score.epoch

    def _make_fork(
        self, trial: TrialView, best: Sequence[TrialId], study: StudyView, made: Sequence[Fork]
    ) -> Fork:
        """Return the fork that replaces a member by a copy of one of the best."""
        spec, epoch = study.spec, self._get_score_epoch(trial.id)
        rng = stream(spec.seed, "pbt", trial.id, epoch)
        source = study.trials[best[int(rng.random() * len(best))]]
        branch = self._get_score_epoch(source.id)
        own = format_metric(trial.losses[epoch - 1], spec)
        why = (
            f"trial {trial.id} with {spec.metric} {own} at epoch {epoch} is "
            f"among the worst of {len(self._scores)}, and trial {source.id} with "
            f"{format_metric(source.losses[min(epoch, branch) - 1], spec)} among the best"
        )
        alike = [fork.changes for fork in made if (fork.source, fork.epoch) == (source.id, branch)]
        return Fork(
            trial=trial.id,
            source=source.id,
            epoch=branch,
            changes=self._draw_changes(source, branch, alike, rng),
            until=self._next_goal(branch, study),
            why=why,
        )

    def _draw_changes(
        self, source: TrialView, epoch: int, alike: Sequence[Config], rng: Stream
    ) -> Config:
        """Return values for a copy of a member that differ from those of its other copies."""
        assert self._explorer is not None
        values = self._explorer.get_values(source.config)
        taken = [values, *self._copies.get((source.id, epoch), ()), *alike]
        changes = values
        for turn in range(2 * _TRIES):
            changes = self._explorer.perturb(values, self._resample if turn < _TRIES else 1.0, rng)
            if changes not in taken:
                break
        return changes
