"""Fluid: widths in proportion to remaining work, as trials come and go.

Rule: w = min(max(floor(h / sum h * n), 1/c), d) over all who run or wait (`water`). While new
trials are coming everybody gets the least width, a slot or a share of one. `FluidStatic` decides
once, at a trial's start; `Fluid` decides again whenever something changes, and moves those who run
only where somebody waits, slots are left over, or the end comes a tenth sooner; `Confidence` weighs
a trial's work with its chance to win. Fluid: Yu et al., MLSys 2021.

Where there are more trials than slots, sharing one must train more in all. Until that is measured
one slot is shared as a trial of it, by trials that had one alone before; then all, or none.
"""

from __future__ import annotations

import math
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from paceline.core.errors import SpecError
from paceline.core.ports import Demand, Demands, sees_nothing
from paceline.core.values import NO_LOSS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from paceline.core.values import TrialId
    from paceline.core.views import StudyView


# A step that makes a trial less than this much faster is not worth a slot.
_FASTER = 1.02


# Shares are sums of 1/c: what is less than this is nothing.
_DUST = 1e-9


class Vessel(NamedTuple):
    """What there is to fill: slots, and how far one may be split or joined."""

    slots: int
    # The least width there is, 1/c where c may share a slot, and the greatest.
    least: float
    span: int
    speed: Callable[[float], float]

    def used(self, widths: Sequence[float]) -> int:
        """Return the slots that these widths take: shares are put together."""
        whole = sum(int(width) for width in widths if width >= 1.0)
        return whole + _slots(sum(width for width in widths if width < 1.0))


def fill(works: Sequence[float], vessel: Vessel, needs: Sequence[float] = ()) -> list[float]:
    """Return a width for each work, in order, no less than its need; 0 has to wait.

    >>> fill([30, 1, 1, 8], Vessel(slots=5, least=0.5, span=4, speed=lambda width: width))
    [3.0, 0.5, 0.5, 1.0]
    """
    total = math.fsum(works)
    widths = [0.0] * len(works)
    leasts = [max(vessel.least, need) for need in needs or widths]
    whole, shares = 0, 0.0
    for at in sorted(range(len(works)), key=lambda at: (-works[at], at)):
        fair = math.floor(works[at] / total * vessel.slots + 1e-9) if total > 0 else 0
        width = max(min(float(fair), float(vessel.span)), leasts[at])
        more = (whole + int(width), shares) if width >= 1.0 else (whole, shares + width)
        if more[0] + _slots(more[1]) > vessel.slots:
            continue  # a shorter one may still find a share of a slot
        whole, shares = more
        widths[at] = width
    filled = deal(works, widths, vessel)
    whole_each = [max(1.0, least) for least in leasts]
    if vessel.used(whole_each) > vessel.slots:
        return filled
    # The rule rounds down: where everybody can have a slot, dealing from there may end sooner.
    slot_each = deal(works, whole_each, vessel)
    return min(filled, slot_each, key=lambda widths: (0.0 in widths, last(works, widths, vessel)))


def deal(works: Sequence[float], widths: Sequence[float], vessel: Vessel) -> list[float]:
    """Return the widths with what is left over given to those who would be last, step by step."""
    dealt = list(widths)
    whole = sum(int(width) for width in dealt if width >= 1.0)
    shares = sum(width for width in dealt if width < 1.0)
    queue = [
        (-works[at] / vessel.speed(width), at)
        for at, width in enumerate(dealt)
        if 0.0 < width < vessel.span
    ]
    heapify(queue)
    while queue:
        _, at = heappop(queue)
        width = dealt[at]
        wider = 1.0 if width < 1.0 else width + 1.0
        more = (whole + 1, shares - (width if width < 1.0 else 0.0))
        if more[0] + _slots(more[1]) > vessel.slots:
            continue  # one who shares a slot may fit where one who spans several does not
        if vessel.speed(wider) < _FASTER * vessel.speed(width):
            continue
        whole, shares = more
        dealt[at] = wider
        if wider < vessel.span:
            heappush(queue, (-works[at] / vessel.speed(wider), at))
    return dealt


def _slots(shares: float) -> int:
    """Return the slots that shares of this sum take."""
    return math.ceil(shares - _DUST)


def last(works: Sequence[float], widths: Sequence[float], vessel: Vessel) -> float:
    """Return when the last of those who have a width would come to its goal."""
    return max(
        (
            work / vessel.speed(width)
            for work, width in zip(works, widths, strict=True)
            if width > 0.0
        ),
        default=0.0,
    )


# Those who run are moved against each other only if the last would end so much sooner.
_SOONER = 1.1
# Packing that gains less than this in all is not worth its risk.
_PACKING_GAIN = 1.1


class FluidStatic:
    """Widths by remaining work, decided once for each start."""

    see = staticmethod(sees_nothing)

    def place(self, demands: Demands, study: StudyView) -> Mapping[TrialId, float]:
        asking = demands.asking
        return {} if asking is None else {asking.trial: self._start(asking, demands, study)}

    def _start(self, asking: Demand, demands: Demands, study: StudyView) -> float:
        running = list(demands.running())
        everybody = [asking, *running, *_first(demands, study, len(running) + 1)]
        crowded = demands.coming or len(everybody) > study.capacity
        vessel = self._vessel(demands, study, crowded=crowded)
        if demands.coming:
            return max(vessel.least, asking.least)
        widths = fill(self._works(everybody, study), vessel, _needs(everybody))
        return widths[0] or max(vessel.least, asking.least)

    def _vessel(self, demands: Demands, study: StudyView, *, crowded: bool) -> Vessel:
        """Return the slots there are; a crowd shares them only where that trains more in all."""
        share, slots = 1.0 / study.spec.pack, study.capacity
        gains = demands.measured(share) and demands.speed(share) > _PACKING_GAIN * share
        if crowded and not gains:
            share = 1.0
        return Vessel(slots, share, min(study.spec.span, slots), demands.speed)

    def _works(self, demands: list[Demand], study: StudyView) -> list[float]:
        return [demand.work for demand in demands]


class Fluid(FluidStatic):
    """Widths by remaining work, decided again whenever something changes."""

    def place(self, demands: Demands, study: StudyView) -> Mapping[TrialId, float]:
        if demands.asking is not None:
            return super().place(demands, study)
        running = list(demands.running())
        waiting = _first(demands, study, len(running))
        works, needs = self._works([*running, *waiting], study), _needs([*running, *waiting])
        if not works:
            return {}  # those who hold slots are about to leave them
        if demands.coming:
            works.append(sum(works) / len(works))  # the next one should be like the others
            needs.append(0.0)
        crowded = len(works) > study.capacity
        vessel = self._vessel(demands, study, crowded=crowded)
        held = [demand.width for demand in running]
        if vessel.used(held) > vessel.slots:
            return {}  # slots went away, or are shared no more: who runs comes to its goal
        if crowded and not demands.measured(1.0 / study.spec.pack):
            return _experiment(running, study.spec.pack)
        widths = fill(works, vessel, needs)[: len(running)]
        alone = len(works) == len(running)
        kept = deal(works, held, vessel) if alone else held
        sooner = _SOONER * last(works[: len(running)], widths, vessel)
        # Nobody who runs is sent away for another's sake.
        if not all(widths) or (alone and last(works, kept, vessel) <= sooner):
            widths = kept
        return {demand.trial: width for demand, width in zip(running, widths, strict=True)}


class Confidence(Fluid):
    """Fluid, with each trial's work weighed by its chance to reach the target or be the best.

    With chances of 1 it is Fluid. With a `width` of k everybody has k slots: those that POP
    dedicates to each promising trial.
    """

    def __init__(self, *, least: float = 0.05, width: int | None = None) -> None:
        if not 0 < least <= 1:
            raise SpecError(f"least={least:g} cannot be meant: give a chance above 0 and up to 1.")
        if width is not None and width < 1:
            raise SpecError(f"width={width} cannot be meant: give the slots of a trial, 1 or more.")
        # Nobody is written off here: that is for the policy.
        self._least = least
        self._width = width

    def _vessel(self, demands: Demands, study: StudyView, *, crowded: bool) -> Vessel:
        if self._width is None:
            return super()._vessel(demands, study, crowded=crowded)
        width = min(self._width, study.spec.span, study.capacity)
        return Vessel(study.capacity, float(width), width, demands.speed)

    def _works(self, demands: list[Demand], study: StudyView) -> list[float]:
        if study.foresight.distrust:
            return super()._works(demands, study)
        target = study.spec.budget.target
        goal = study.best_loss if target is None else study.spec.sign * target.value
        return [demand.work * self._chance(demand, goal, study) for demand in demands]

    def _chance(self, demand: Demand, goal: float, study: StudyView) -> float:
        forecast = study.trials[demand.trial].forecast
        if forecast is None or goal == NO_LOSS:
            return 1.0
        return max(self._least, study.foresight.chance(forecast, forecast.epochs[-1], goal))


def _experiment(running: list[Demand], pack: int) -> dict[TrialId, float]:
    """Return who shares the one slot on which sharing is measured: those with least to lose."""
    small = [demand for demand in running if demand.least <= 1.0 / pack]
    shortest = sorted(small, key=lambda demand: (demand.work, demand.trial))[:pack]
    return {demand.trial: 1.0 / pack for demand in shortest}


def _needs(demands: list[Demand]) -> list[float]:
    return [demand.least for demand in demands]


def _first(demands: Demands, study: StudyView, running: int) -> list[Demand]:
    """Return those who wait, as many as could be served beside those who run."""
    return list(islice(demands.waiting(), max(0, study.capacity * study.spec.pack - running)))
