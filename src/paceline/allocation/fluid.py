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

from itertools import islice
from typing import TYPE_CHECKING

from paceline.allocation.water import Vessel, deal, fill, last
from paceline.core.errors import SpecError
from paceline.core.ports import Demand, Demands, sees_nothing
from paceline.core.values import NO_LOSS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paceline.core.values import TrialId
    from paceline.core.views import StudyView

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
