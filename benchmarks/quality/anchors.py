"""Published rules against a second implementation of them: median times to target, row by row.

Knows the anchors (`anchors.json`: figures of a reference implementation that shares no code with
this one) and which of our policies each stands for. Orders are shuffled differently there, so that
a ratio carries the chance of two samples of orders; the bootstrap says how much that is.
"""

from __future__ import annotations

import json
import math
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from benchmarks.page import markdown
from benchmarks.quality.runs import Past, fifo_makespan, median, pasts, sign_of, source_of
from paceline.api.simulation import Simulation

if TYPE_CHECKING:
    from collections.abc import Sequence

ORDERS = 100
# A ratio further from 1 than this is outside.
NEAR = 0.15
# How often orders are drawn again, and the chance that chance alone explains what is called noise.
_DRAWS, _CHANCE = 2000, 0.05

POLICIES = {
    "fifo": "fifo",
    "median": "median",
    "bandit": "bandit",
    "asha_stop": "asha_stop:eta=4",
    "asha_stop3": "asha_stop:eta=3",
    "asha3": "asha:eta=3,drain=false",
    "asha4": "asha:eta=4,drain=false",
    "asha3_drain": "asha:eta=3,drain=true",
    "asha4_drain": "asha:eta=4,drain=true",
    "sha": "sha:eta=3",
    "hyperband": "hyperband:eta=3",
    "hypersched1": "hypersched:eta=4,drain=false",
}


class Anchor(NamedTuple):
    """A trace, a target and a number of slots, with what the reference found there."""

    trace: str
    target: float
    slots: int
    makespan_s: float
    fastest_s: float
    median_s: dict[str, float]
    never: dict[str, int]


def anchors() -> list[Anchor]:
    """Return all rows of the reference."""
    body = json.loads(Path(__file__).with_name("anchors.json").read_text(encoding="utf-8"))
    return [Anchor(**row) for row in body["rows"]]


class Found(NamedTuple):
    """One policy at one anchor, beside the reference."""

    anchor: Anchor
    policy: str
    limit_s: float
    times: list[float]

    @property
    def never(self) -> int:
        """Orders in which the target was never reached."""
        return sum(time >= self.limit_s for time in self.times)

    @property
    def median_s(self) -> float:
        """The median time to target."""
        return median(self.times)

    @property
    def ratio(self) -> float:
        """Ours through theirs."""
        return self.median_s / self.anchor.median_s[self.policy]

    @property
    def inside(self) -> bool:
        """Whether ours is within 15 % of theirs."""
        return abs(self.ratio - 1.0) <= NEAR

    def noise(self) -> tuple[float, float]:
        """Return between which ratios two samples of orders under one rule lie, 19 times of 20.

        Both samples are drawn from our orders: the reference's are not known.
        """
        rng = np.random.default_rng(0)
        times = np.array(self.times)
        drawn = rng.choice(times, (2, _DRAWS, len(times)))
        ours, theirs = np.median(drawn, axis=2)
        low, high = np.quantile(ours / theirs, (_CHANCE / 2, 1 - _CHANCE / 2))
        return float(low), float(high)

    @property
    def verdict(self) -> str:
        """Say whether it is inside, and if not, whether chance explains it."""
        if self.inside:
            return "inside"
        low, high = self.noise()
        return "chance" if low <= self.ratio <= high else "outside"


def run(orders: int = ORDERS) -> list[Found]:
    """Return every policy at every anchor."""
    rows = anchors()
    limits = {(row.trace, row.slots): 0.0 for row in rows}
    limits = {(trace, slots): fifo_makespan(trace, slots) for trace, slots in limits}
    asked = list(product(rows, POLICIES))
    runs = [
        Simulation(
            source=source_of(row.trace),
            policy=POLICIES[policy],
            slots=row.slots,
            target=row.target,
            deadline_s=limits[row.trace, row.slots],
            seed=seed,
        )
        for row, policy in asked
        for seed in range(orders)
    ]
    done = pasts(runs, "anchors")
    return [
        _found(row, policy, limits[row.trace, row.slots], done[at * orders : (at + 1) * orders])
        for at, (row, policy) in enumerate(asked)
    ]


def _found(anchor: Anchor, policy: str, limit: float, done: Sequence[Past]) -> Found:
    sign = sign_of(anchor.trace)
    return Found(anchor, policy, limit, [p.time_to(anchor.target, sign, limit) for p in done])
