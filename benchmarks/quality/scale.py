"""Normalised regret of a value, and the fastest single run of a trace.

Regret = (best possible - found) / (best possible - median final): 0 is the best value in the whole
trace, 1 the final value of a median run. A study without a report counts with the median first
value.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

from benchmarks.quality.runs import load_trace, loss_sign, median


class Scale(NamedTuple):
    """Reference values of a trace, as losses: lower is better."""

    sign: float
    best: float
    final: float
    first: float

    def regret(self, value: float | None) -> float:
        """Return the normalised regret of a value."""
        loss = self.first if value is None else self.sign * value
        return (loss - self.best) / (self.final - self.best)


@cache
def load_scale(trace: str) -> Scale:
    """Return the scale of a recorded trace."""
    sign = loss_sign(trace)
    curves = [
        [sign * value for value in run.values if not math.isnan(value)]
        for run in load_trace(trace).runs
    ]
    curves = [curve for curve in curves if curve]
    return Scale(
        sign,
        best=min(map(min, curves)),
        final=median([curve[-1] for curve in curves]),
        first=median([curve[0] for curve in curves]),
    )


@cache
def fastest_run_time(trace: str, target: float) -> float:
    """Return the time of the fastest single run to the target, on one slot."""
    sign = loss_sign(trace)
    times = []
    for run in load_trace(trace).runs:
        spent = run.setup_s or 0.0
        for value, seconds in zip(run.values, run.seconds, strict=True):
            spent += seconds
            if sign * value <= sign * target:
                times.append(spent)
                break
    return min(times)
