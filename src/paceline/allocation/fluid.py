"""Fluid: widths in proportion to remaining work, by water-filling.

Rule: w = min(max(floor(h / sum h · n), 1/c), d) over all running and ready trials, with h the
remaining work, n slots, at most c trials a slot and d slots a trial; left-over slots go to the
trials that would end last. While new trials are coming, every trial gets the smallest width, a slot
or a share of one. `FluidStatic` decides once, at a trial's start; `Fluid` decides again at every
change, and resizes running trials only if a trial is ready, slots are left over, or the last trial
would end a tenth sooner; `Confidence` weighs a trial's work with its chance to win.

Yu et al., "Fluid: Resource-Aware Hyperparameter Tuning Engine", MLSys 2021. Different from the
paper: with more trials than slots, slots are shared only if that trains more in total. Until this
is measured, one slot is shared as an experiment, by trials that had a slot alone before; then all
slots are shared, or none.
"""

from __future__ import annotations

import math
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from paceline.core.base_part import BasePart
from paceline.core.errors import SpecError
from paceline.core.ports import Demand, Demands, see_nothing
from paceline.core.values import NO_LOSS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from paceline.core.values import TrialId
    from paceline.core.views import StudyView


# A wider step must be at least this much faster to be worth a slot.
_FASTER = 1.02


# Rounding error of sums of 1/c.
_DUST = 1e-9


class SlotSupply(NamedTuple):
    """The slots to share, and how far a slot may be split or joined."""

    slots: int
    # The smallest width, 1/c if c trials may share a slot, and the largest.
    least: float
    span: int
    speed: Callable[[float], float]

    def count_used(self, widths: Sequence[float]) -> int:
        """Return the number of slots that these widths take; shares are packed together."""
        whole = sum(int(width) for width in widths if width >= 1.0)
        return whole + _count_slots(sum(width for width in widths if width < 1.0))


def share_slots(
    works: Sequence[float], supply: SlotSupply, needs: Sequence[float] = ()
) -> list[float]:
    """Return a width for each work, in order, at least its need; 0 means no slot for now.

    >>> supply = SlotSupply(slots=5, least=0.5, span=4, speed=lambda width: width)
    >>> share_slots([30, 1, 1, 8], supply)
    [3.0, 0.5, 0.5, 1.0]
    """
    total = math.fsum(works)
    widths = [0.0] * len(works)
    leasts = [max(supply.least, need) for need in needs or widths]
    whole, shares = 0, 0.0
    for at in sorted(range(len(works)), key=lambda at: (-works[at], at)):
        fair = math.floor(works[at] / total * supply.slots + 1e-9) if total > 0 else 0
        width = max(min(float(fair), float(supply.span)), leasts[at])
        more = (whole + int(width), shares) if width >= 1.0 else (whole, shares + width)
        if more[0] + _count_slots(more[1]) > supply.slots:
            continue  # a trial with less work may still fit into a share of a slot
        whole, shares = more
        widths[at] = width
    filled = deal_leftover(works, widths, supply)
    whole_each = [max(1.0, least) for least in leasts]
    if supply.count_used(whole_each) > supply.slots:
        return filled
    # The rule rounds down: if every trial can have a slot, starting from one each may end sooner.
    slot_each = deal_leftover(works, whole_each, supply)
    return min(
        filled,
        slot_each,
        key=lambda widths: (0.0 in widths, compute_last_end(works, widths, supply)),
    )


def deal_leftover(
    works: Sequence[float], widths: Sequence[float], supply: SlotSupply
) -> list[float]:
    """Return the widths after giving left-over slots, one by one, to the trial that ends last."""
    dealt = list(widths)
    whole = sum(int(width) for width in dealt if width >= 1.0)
    shares = sum(width for width in dealt if width < 1.0)
    queue = [
        (-works[at] / supply.speed(width), at)
        for at, width in enumerate(dealt)
        if 0.0 < width < supply.span
    ]
    heapify(queue)
    while queue:
        _, at = heappop(queue)
        width = dealt[at]
        wider = 1.0 if width < 1.0 else width + 1.0
        more = (whole + 1, shares - (width if width < 1.0 else 0.0))
        if more[0] + _count_slots(more[1]) > supply.slots:
            continue  # a trial that shares a slot may fit where a wider one does not
        if supply.speed(wider) < _FASTER * supply.speed(width):
            continue
        whole, shares = more
        dealt[at] = wider
        if wider < supply.span:
            heappush(queue, (-works[at] / supply.speed(wider), at))
    return dealt


def _count_slots(shares: float) -> int:
    """Return the number of slots that shares with this sum take."""
    return math.ceil(shares - _DUST)


def compute_last_end(works: Sequence[float], widths: Sequence[float], supply: SlotSupply) -> float:
    """Return when the last trial with a width would reach its goal."""
    return max(
        (
            work / supply.speed(width)
            for work, width in zip(works, widths, strict=True)
            if width > 0.0
        ),
        default=0.0,
    )


# Running trials are resized against each other only if the last one ends this much sooner.
_SOONER = 1.1
# Sharing a slot must train this much more in total to be worth its risk.
_PACKING_GAIN = 1.1


class FluidStatic(BasePart):
    """Widths by remaining work, decided once at each start."""

    see = staticmethod(see_nothing)

    def place(self, demands: Demands, study: StudyView) -> Mapping[TrialId, float]:
        asking = demands.asking
        return (
            {}
            if asking is None
            else {asking.trial: self._choose_start_width(asking, demands, study)}
        )

    def _choose_start_width(self, asking: Demand, demands: Demands, study: StudyView) -> float:
        running = list(demands.running())
        candidates = [asking, *running, *_list_ready(demands, study, len(running) + 1)]
        crowded = demands.coming or len(candidates) > study.capacity
        supply = self._get_supply(demands, study, crowded=crowded)
        if demands.coming:
            return max(supply.least, asking.least)
        widths = share_slots(self._list_works(candidates, study), supply, _list_needs(candidates))
        return widths[0] or max(supply.least, asking.least)

    def _get_supply(self, demands: Demands, study: StudyView, *, crowded: bool) -> SlotSupply:
        """Return the slots to share; a crowd shares single slots only if that trains more."""
        share, slots = 1.0 / study.spec.pack, study.capacity
        gains = demands.measured(share) and demands.speed(share) > _PACKING_GAIN * share
        if crowded and not gains:
            share = 1.0
        return SlotSupply(slots, share, min(study.spec.span, slots), demands.speed)

    def _list_works(self, demands: list[Demand], study: StudyView) -> list[float]:
        return [demand.work for demand in demands]


class Fluid(FluidStatic):
    """Widths by remaining work, decided again at every change."""

    def place(self, demands: Demands, study: StudyView) -> Mapping[TrialId, float]:
        if demands.asking is not None:
            return super().place(demands, study)
        running = list(demands.running())
        ready = _list_ready(demands, study, len(running))
        works, needs = (
            self._list_works([*running, *ready], study),
            _list_needs([*running, *ready]),
        )
        if not works:
            return {}  # the trials that hold slots are about to release them
        if demands.coming:
            works.append(sum(works) / len(works))  # the next trial is assumed to be like the others
            needs.append(0.0)
        crowded = len(works) > study.capacity
        supply = self._get_supply(demands, study, crowded=crowded)
        held = [demand.width for demand in running]
        if supply.count_used(held) > supply.slots:
            return {}  # slots were lost or are no longer shared: running trials reach their goals
        if crowded and not demands.measured(1.0 / study.spec.pack):
            return _choose_experiment(running, study.spec.pack)
        widths = share_slots(works, supply, needs)[: len(running)]
        alone = len(works) == len(running)
        kept = deal_leftover(works, held, supply) if alone else held
        sooner = _SOONER * compute_last_end(works[: len(running)], widths, supply)
        # No running trial loses its slot to another.
        if not all(widths) or (alone and compute_last_end(works, kept, supply) <= sooner):
            widths = kept
        return {demand.trial: width for demand, width in zip(running, widths, strict=True)}


class Confidence(Fluid):
    """Fluid, with each trial's work weighed by its chance to reach the target or be the best.

    With chances of 1 it is Fluid. With `width=k` every trial gets k slots, the number that POP
    dedicates to each promising trial.
    """

    def __init__(self, *, least: float = 0.05, width: int | None = None) -> None:
        if not 0 < least <= 1:
            raise SpecError(f"least={least:g} is invalid: must be above 0 and at most 1.")
        if width is not None and width < 1:
            raise SpecError(f"width={width} is invalid: must be at least 1 slot.")
        # The smallest weight: only a policy stops trials.
        self._least = least
        self._width = width

    def _get_supply(self, demands: Demands, study: StudyView, *, crowded: bool) -> SlotSupply:
        if self._width is None:
            return super()._get_supply(demands, study, crowded=crowded)
        width = min(self._width, study.spec.span, study.capacity)
        return SlotSupply(study.capacity, float(width), width, demands.speed)

    def _list_works(self, demands: list[Demand], study: StudyView) -> list[float]:
        if study.calibration.distrust:
            return super()._list_works(demands, study)
        target = study.spec.budget.target
        goal = study.best_loss if target is None else study.spec.sign * target.value
        return [demand.work * self._get_chance(demand, goal, study) for demand in demands]

    def _get_chance(self, demand: Demand, goal: float, study: StudyView) -> float:
        forecast = study.trials[demand.trial].forecast
        if forecast is None or goal == NO_LOSS:
            return 1.0
        return max(self._least, study.calibration.chance(forecast, forecast.epochs[-1], goal))


def _choose_experiment(running: list[Demand], pack: int) -> dict[TrialId, float]:
    """Return widths for the trials that share one slot to measure sharing: the shortest ones."""
    small = [demand for demand in running if demand.least <= 1.0 / pack]
    shortest = sorted(small, key=lambda demand: (demand.work, demand.trial))[:pack]
    return {demand.trial: 1.0 / pack for demand in shortest}


def _list_needs(demands: list[Demand]) -> list[float]:
    return [demand.least for demand in demands]


def _list_ready(demands: Demands, study: StudyView, running: int) -> list[Demand]:
    """Return the ready trials that could run beside the running ones."""
    return list(islice(demands.ready(), max(0, study.capacity * study.spec.pack - running)))
