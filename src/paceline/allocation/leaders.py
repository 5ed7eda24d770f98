"""Leaders: a slot each, and what is left over to the best: HyperSched's three ways.

Rule: everybody has one slot, or what it needs; the L left over are dealt to trials in order of
their last loss, up to `span` each. `Uniform` deals them one at a time from the best, round by
round; `Top` gives the best all it can hold; `Softmax` shares by exp(-loss), in units of the losses'
spread, and rounds down. HyperSched: Liaw et al., SoCC 2019. There the softmax is of the metric as
it is, which says nothing for a metric that runs from 0 to 1 and everything for one in the hundreds;
hence the unit.
"""

from __future__ import annotations

import math
from itertools import islice
from typing import TYPE_CHECKING

from paceline.core.ports import Demands, sees_nothing
from paceline.core.values import NO_LOSS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paceline.core.values import TrialId
    from paceline.core.views import StudyView


class Uniform:
    """What is left over is dealt one by one, from the best on, round by round."""

    see = staticmethod(sees_nothing)

    def place(self, demands: Demands, study: StudyView) -> Mapping[TrialId, float]:
        asking = demands.asking
        if asking is not None and demands.coming:
            return {asking.trial: max(1.0, asking.least)}
        running = list(demands.running())
        asked = running if asking is None else [asking]
        if not asked:
            return {}  # those who hold slots are about to leave them
        waiting = islice(demands.waiting(), study.capacity)
        least = {each.trial: max(1.0, each.least) for each in (*running, *waiting, *asked)}
        ranked = sorted(least, key=lambda trial: (study.trials[trial].loss, trial))
        left = max(0, study.capacity - int(sum(least.values())) - demands.coming)
        span = float(min(study.spec.span, study.capacity))
        extra = self._share(left, [study.trials[trial].loss for trial in ranked], int(span) - 1)
        more = dict(zip(ranked, extra, strict=True))
        # One that needs more than a slot has had that much of its share.
        return {
            each.trial: max(least[each.trial], min(least[each.trial] + more[each.trial], span))
            for each in asked
        }

    def _share(self, left: int, losses: list[float], cap: int) -> list[int]:
        """Return what each gets beside its one slot, best first."""
        rounds, rest = divmod(left, len(losses))
        if rounds >= cap:
            return [cap] * len(losses)
        return [rounds + (at < rest) for at in range(len(losses))]


class Top(Uniform):
    """What is left over goes to the best; what it cannot hold, to the next."""

    def _share(self, left: int, losses: list[float], cap: int) -> list[int]:
        return [max(0, min(cap, left - at * cap)) for at in range(len(losses))]


class Softmax(Uniform):
    """What is left over is shared by how good they are; what rounding leaves, from the best on."""

    def _share(self, left: int, losses: list[float], cap: int) -> list[int]:
        known = [loss for loss in losses if loss != NO_LOSS]
        mean = math.fsum(known) / len(known) if known else 0.0
        spread = math.sqrt(sum((loss - mean) ** 2 for loss in known) / len(known)) if known else 0.0
        unit = spread or 1.0
        best = min(known, default=0.0)
        weights = [0.0 if loss == NO_LOSS else math.exp((best - loss) / unit) for loss in losses]
        total = math.fsum(weights) or 1.0
        shares = [min(cap, math.floor(left * weight / total)) for weight in weights]
        for at in range(len(shares)):
            shares[at] += min(cap - shares[at], left - sum(shares))
        return shares
