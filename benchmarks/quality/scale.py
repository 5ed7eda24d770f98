"""How far from the best a value is: normalised regret, and the fastest single run.

Regret = (best possible - found) / (best possible - median final): 0 is the best value in the whole
trace, 1 what a median run ends at. A study that has no model yet is given the median first value.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

from benchmarks.quality.runs import median, sign_of, trace_of


class Scale(NamedTuple):
    """What values of a trace are measured by; all are losses, lower is better."""

    sign: float
    best: float
    final: float
    first: float

    def regret(self, value: float | None) -> float:
        """Return the normalised regret of a value."""
        loss = self.first if value is None else self.sign * value
        return (loss - self.best) / (self.final - self.best)


@cache
def scale_of(trace: str) -> Scale:
    """Return the scale of a recorded trace."""
    sign = sign_of(trace)
    curves = [
        [sign * value for value in run.values if not math.isnan(value)]
        for run in trace_of(trace).runs
    ]
    curves = [curve for curve in curves if curve]
    return Scale(
        sign,
        best=min(map(min, curves)),
        final=median([curve[-1] for curve in curves]),
        first=median([curve[0] for curve in curves]),
    )


@cache
def fastest(trace: str, target: float) -> float:
    """Return how long the fastest single run takes to the target, on one slot from the start."""
    sign = sign_of(trace)
    times = []
    for run in trace_of(trace).runs:
        spent = run.setup_s or 0.0
        for value, seconds in zip(run.values, run.seconds, strict=True):
            spent += seconds
            if sign * value <= sign * target:
                times.append(spent)
                break
    return min(times)
