"""Leaders: a slot for each trial, and left-over slots for the best: HyperSched's three rules.

Rule: every trial has one slot, or what it needs, also those that wait or are still to come;
left-over slots go to trials in order of their last loss, up to `span` each. `Uniform` gives them
out one at a time from the best, round by round; `Top` gives the best trial all it can hold, then
the next; `Softmax` shares them by exp(-loss) and rounds down.

Liaw et al., "HyperSched", SoCC 2019. Different from it: losses in the softmax are divided by their
spread, because with raw losses the result depends on the unit of the metric.
"""

from __future__ import annotations

import math
from itertools import islice
from typing import TYPE_CHECKING

from paceline.core.base_part import BasePart
from paceline.core.ports import Demands, see_nothing
from paceline.core.values import NO_LOSS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paceline.core.values import TrialId
    from paceline.core.views import StudyView


class Uniform(BasePart):
    """Gives left-over slots out one by one, from the best on, round by round."""

    see = staticmethod(see_nothing)

    def place(self, demands: Demands, study: StudyView) -> Mapping[TrialId, float]:
        asking = demands.asking
        running = list(demands.running())
        asked = running if asking is None else [asking]
        if not asked:
            return {}  # the trials that hold slots are about to release them
        ready = islice(demands.ready(), study.capacity)
        least = {each.trial: max(1.0, each.least) for each in (*running, *ready, *asked)}
        ranked = sorted(least, key=lambda trial: (study.trials[trial].loss, trial))
        # Paused trials that the policy would continue need slots, too, and new ones.
        waiting = int(min(demands.expected, study.capacity))
        left = max(0, study.capacity - int(sum(least.values())) - waiting)
        span = float(min(study.spec.span, study.capacity))
        extra = self._share(left, [study.trials[trial].loss for trial in ranked], int(span) - 1)
        more = dict(zip(ranked, extra, strict=True))
        # A trial that needs several slots has them counted towards its span.
        return {
            each.trial: max(least[each.trial], min(least[each.trial] + more[each.trial], span))
            for each in asked
        }

    def _share(self, left: int, losses: list[float], cap: int) -> list[int]:
        """Return each trial's additional slots, best trial first."""
        rounds, rest = divmod(left, len(losses))
        if rounds >= cap:
            return [cap] * len(losses)
        return [rounds + (at < rest) for at in range(len(losses))]


class Top(Uniform):
    """Gives all left-over slots to the best trial; what it cannot hold, to the next."""

    def _share(self, left: int, losses: list[float], cap: int) -> list[int]:
        return [max(0, min(cap, left - at * cap)) for at in range(len(losses))]


class Softmax(Uniform):
    """Shares left-over slots by a softmax of losses; the rest of rounding goes to the best."""

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
