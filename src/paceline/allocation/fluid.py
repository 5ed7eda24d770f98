"""Fluid: widths in proportion to remaining work, by water-filling.

Rule: w = min(max(floor(h / sum h · n), 1/c), d) over all running and ready trials, with h the
remaining work, n slots, at most c trials a slot and d slots a trial; left-over slots go to the
trials that would end last. Trials that are expected to start count as if they were like the others;
if these are without end, every trial gets the smallest width, a slot or a share of one.
`FluidStatic` decides once, at a trial's start; `Fluid` decides again at every change, and resizes
running trials only if a trial is ready, slots are left over, or the last trial would end a tenth
sooner; `Confidence` weighs a trial's work with its chance to win.

Yu et al., "Fluid: Resource-Aware Hyperparameter Tuning Engine", MLSys 2021. Different from the
paper: slots are shared only if that trains more in total, by the prior, and for `Fluid` as soon as
possible by what is measured; if sharing trains less, trials leave shared slots.
"""

from __future__ import annotations

import math
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from paceline.core.base_part import BasePart
from paceline.core.errors import SpecError
from paceline.core.forecast_quantiles import split_promising
from paceline.core.ports import Demand, Demands, see_nothing
from paceline.core.values import NO_LOSS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from paceline.core.values import SlotId, TrialId
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
    works: Sequence[float],
    supply: SlotSupply,
    needs: Sequence[float] = (),
    beyond: float = 0.0,
) -> list[float]:
    """Return a width for each work, in order, at least its need; 0 means no slot for now.

    `beyond` is the work of trials that are not in the list; it may be infinite.

    >>> supply = SlotSupply(slots=5, least=0.5, span=4, speed=lambda width: width)
    >>> share_slots([30, 1, 1, 8], supply)
    [3.0, 0.5, 0.5, 1.0]
    """
    total = math.fsum(works) + beyond
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
    if supply.least < 1.0 and len(works) > supply.slots:
        return widths  # the trials with shares spread over the slots that are left
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
        ready = _list_ready(demands, study, len(running) + 1)
        supply = self._get_supply(demands, study)
        least = max(supply.least, asking.least)
        width = self._share_slots([asking, *running, *ready], demands, study, supply)[0] or least
        # Better a share now than a slot later: on a shared slot it trains, too.
        if width >= 1.0 and demands.idle == 0:
            return least
        # Trials that start after it find room: running ones do not shrink for them at once.
        others = _count_slots(min(len(ready) + demands.expected, study.capacity) * supply.least)
        return max(min(width, 1.0), min(width, float(demands.idle - others)), least)

    def _get_supply(self, demands: Demands, study: StudyView) -> SlotSupply:
        """Return the slots to share; a slot is split only if that trains more in total."""
        share, slots = 1.0 / study.spec.pack, study.capacity
        if demands.speed(share) < _PACKING_GAIN * share:
            share = 1.0
        return SlotSupply(slots, share, min(study.spec.span, slots), demands.speed)

    def _share_slots(
        self, known: list[Demand], demands: Demands, study: StudyView, supply: SlotSupply
    ) -> list[float]:
        """Return a width for each known trial, beside those that are expected to start.

        An expected trial is assumed to be like the known ones.
        """
        works, needs = self._list_works(known, study), [demand.least for demand in known]
        mean = math.fsum(works) / len(works)
        seats = max(0, study.capacity * study.spec.pack - len(known))
        more = int(min(demands.expected, seats))
        beyond = mean * (demands.expected - more) if mean else 0.0
        widths = share_slots([*works, *[mean] * more], supply, [*needs, *[0.0] * more], beyond)
        return widths[: len(known)]

    def _list_works(self, demands: list[Demand], study: StudyView) -> list[float]:
        return [demand.work for demand in demands]


class Fluid(FluidStatic):
    """Widths by remaining work, decided again at every change."""

    # Until it is known what sharing a slot costs, a trial has its slot alone for an epoch.
    measures_sharing = True

    def place(self, demands: Demands, study: StudyView) -> Mapping[TrialId, float]:
        if demands.asking is not None:
            return super().place(demands, study)
        running = list(demands.running())
        ready = _list_ready(demands, study, len(running))
        if not running:
            return {}  # the trials that hold slots are about to release them
        supply = self._get_supply(demands, study)
        if supply.least == 1.0 and any(demand.width < 1.0 for demand in running):
            return _list_leaving(running)
        held = [demand.width for demand in running]
        if supply.count_used(held) > supply.slots:
            return {}  # slots were lost: running trials reach their goals
        widths = self._share_slots([*running, *ready], demands, study, supply)[: len(running)]
        works = self._list_works(running, study)
        alone = not ready and not demands.expected
        kept = deal_leftover(works, held, supply) if alone else held
        sooner = _SOONER * compute_last_end(works, widths, supply)
        # No running trial loses its slot to another.
        if not all(widths) or (alone and compute_last_end(works, kept, supply) <= sooner):
            widths = kept
        return {demand.trial: width for demand, width in zip(running, widths, strict=True)}


class Confidence(Fluid):
    """Fluid, with each trial's work weighed by its chance to reach the target or be the best.

    With chances of 1 it is Fluid. While trials keep coming, those that are promising by POP's
    threshold p* share the slots they deserve, S·p*, also if these are more than one each. With
    `width=k` every trial gets k slots, the number that POP dedicates to each promising trial.
    """

    # Promising trials are widened before a new trial gets a free slot.
    widens_first = True

    def __init__(self, *, least: float = 0.05, width: int | None = None) -> None:
        if not 0 < least <= 1:
            raise SpecError(f"least={least:g} is invalid: must be above 0 and at most 1.")
        if width is not None and width < 1:
            raise SpecError(f"width={width} is invalid: must be at least 1 slot.")
        # The smallest weight: only a policy stops trials.
        self._least = least
        self._width = width

    def _get_supply(self, demands: Demands, study: StudyView) -> SlotSupply:
        if self._width is None:
            return super()._get_supply(demands, study)
        width = min(self._width, study.spec.span, study.capacity)
        return SlotSupply(study.capacity, float(width), width, demands.speed)

    def place(self, demands: Demands, study: StudyView) -> Mapping[TrialId, float]:
        widths = super().place(demands, study)
        if demands.asking is not None or self._width is not None or not demands.expected:
            return widths
        return {**widths, **self._widen_promising(demands, study)}

    def _widen_promising(self, demands: Demands, study: StudyView) -> Mapping[TrialId, float]:
        """Return the widths of promising trials that deserve more than a slot each."""
        known = [
            (demand, chance)
            for demand in demands.running()
            if (chance := self._find_chance(demand, study)) is not None
        ]
        threshold, _ = split_promising(
            sorted((chance for _, chance in known), reverse=True), study.capacity, 1
        )
        promising = [demand for demand, chance in known if chance >= threshold]
        deserved = int(study.capacity * threshold)
        if not promising or deserved <= len(promising):
            return {}
        supply = SlotSupply(deserved, 1.0, min(study.spec.span, deserved), demands.speed)
        needs = [demand.least for demand in promising]
        widths = share_slots(self._list_works(promising, study), supply, needs)
        return {each.trial: width for each, width in zip(promising, widths, strict=True) if width}

    def _list_works(self, demands: list[Demand], study: StudyView) -> list[float]:
        chances = [self._find_chance(demand, study) for demand in demands]
        return [
            demand.work * (1.0 if chance is None else max(self._least, chance))
            for demand, chance in zip(demands, chances, strict=True)
        ]

    def _find_chance(self, demand: Demand, study: StudyView) -> float | None:
        """Return a trial's chance; None: it is not known, or forecasts are not to be trusted."""
        target, forecast = study.spec.budget.target, study.trials[demand.trial].forecast
        goal = study.best_loss if target is None else study.spec.sign * target.value
        if forecast is None or goal == NO_LOSS or study.calibration.distrust:
            return None
        return study.calibration.chance(forecast, forecast.epochs[-1], goal)


def _list_leaving(running: list[Demand]) -> dict[TrialId, float]:
    """Return a slot for each trial that should leave a shared one: all but the longest there."""
    leaving = {}
    by_slot: dict[SlotId, Demand] = {}
    for demand in sorted(running, key=lambda demand: (-demand.work, demand.trial)):
        if demand.width < 1.0 and by_slot.setdefault(demand.slots[0], demand) is not demand:
            leaving[demand.trial] = 1.0
    return leaving


def _list_ready(demands: Demands, study: StudyView, running: int) -> list[Demand]:
    """Return the ready trials that could run beside the running ones."""
    return list(islice(demands.ready(), max(0, study.capacity * study.spec.pack - running)))
