"""The questions that curve models are judged by: recorded runs, cut, and what came of them.

Knows the families of traces, which two are held out of every design choice, how runs are drawn and
cut, and in which range and unit the losses of a trace count. Everything is fixed by one seed.
"""

from __future__ import annotations

import math
import os
from functools import cache
from pathlib import Path
from statistics import median, stdev
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.page import ROOT
from paceline.core.rng import shuffled, stream
from paceline.core.values import NO_LOSS, loss_of
from paceline.engines.sim.traces import Trace, read_trace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

TRACES = Path(os.environ.get("PACELINE_TRACES", ROOT.parent / "shared" / "traces"))
FAMILIES = (
    "cifar10_cnn14",
    "mnist_cnn_tfhpo",
    "deepcave",
    "gluoncv",
    "algoperf_ogbg",
    "algoperf_fastmri",
    "algoperf_criteo1tb",
    "taskset",
    "deepobs",
    "nasbench_nlp",
)
# Nobody looked at these while a model was designed.
HELD_OUT = ("deepobs", "nasbench_nlp")
CUTS = (0.1, 0.25, 0.5, 0.75)
RUNS = 30
# Other runs that a model may be shown.
OTHERS = 16
# The incumbent is the best of so many other runs: a new run beats it in one case of four.
RIVALS = 3
SEED = 1108


class Scale(NamedTuple):
    """How the losses of one trace count."""

    # The range: a metric up to 1 that is to rise has [0, 1]; other losses end at 0, or as far below
    # the best as that is below the start, and diverge at as far above the start.
    low: float
    high: float
    # The standard deviation of the final losses.
    unit: float
    # Where the published model's accuracies 0 and 1 lie, as losses.
    zero: float
    one: float

    def settled(self, loss: float) -> float:
        """Return the loss, no worse than one that diverged."""
        return min(max(loss, self.low), self.high)


class Question(NamedTuple):
    """One run, cut: what was seen, what is asked, and what came."""

    family: str
    trace: str
    run: int
    cut: float
    losses: tuple[float, ...]
    epochs: int
    scale: Scale
    final: float
    incumbent: float
    # Other runs of the trace, each as far as it may have come by then: anywhere.
    others: tuple[tuple[float, ...], ...]

    @property
    def key(self) -> str:
        """Its name in stored results."""
        return f"{self.trace}/{self.run}/{len(self.losses)}"


def questions(families: Sequence[str] = FAMILIES, runs: int = RUNS) -> list[Question]:
    """Return the questions of some families, in an order in which every start of it is balanced."""
    lanes = [list(_family(name, runs)) for name in families]
    found = []
    for turn in range(max(map(len, lanes))):
        for lane in lanes:
            found += lane[turn] if turn < len(lane) else []
    return found


def _family(family: str, runs: int) -> Iterator[list[Question]]:
    """Yield the questions of one run after the other, taking files in turn."""
    paths = sorted(TRACES.glob(f"{family}*.jsonl.gz"))
    drawn = 0
    orders = [shuffled(len(_trace(path).runs), stream(SEED, path.name)) for path in paths]
    for turn in range(max(map(len, orders))):
        for path, order in zip(paths, orders, strict=True):
            if turn < len(order) and drawn < runs:
                asked = list(_cuts(family, path, order[turn]))
                drawn += bool(asked)
                yield asked


def _cuts(family: str, path: Path, at: int) -> Iterator[Question]:
    trace = _trace(path)
    losses = _losses(trace, at)
    scale = _scale(path)
    known = 0
    for cut in CUTS:
        seen = max(1, min(len(losses) - 1, math.floor(len(losses) * cut + 0.5)))
        # A short run has few cuts; a run without a number now is known to be lost.
        if seen == known or len(losses) < 2 or losses[seen - 1] == NO_LOSS:
            continue
        known = seen
        yield Question(
            family=family,
            trace=trace.header.name,
            run=trace.runs[at].id,
            cut=cut,
            losses=losses[:seen],
            epochs=len(losses),
            scale=scale,
            final=scale.settled(losses[-1]),
            incumbent=_incumbent(path, at),
            others=_others(path, at),
        )


@cache
def _trace(path: Path) -> Trace:
    return read_trace(path)


def _losses(trace: Trace, at: int) -> tuple[float, ...]:
    sign = 1.0 if trace.header.mode == "min" else -1.0
    return tuple(loss_of(value, sign) for value in trace.runs[at].values)


@cache
def _scale(path: Path) -> Scale:
    trace = _trace(path)
    curves = [_losses(trace, at) for at in range(len(trace.runs))]
    numbers = [loss for curve in curves for loss in curve if loss < NO_LOSS]
    best = min(numbers)
    start = median(curve[0] for curve in curves if curve[0] < NO_LOSS)
    if trace.header.mode == "max" and best >= -1:
        low, high, zero, one = -1.0, 0.0, 0.0, -1.0
    else:
        high, low = start + (start - best), best - (start - best)
        low = 0.0 if best >= 0 else low
        # The median first value is 0.1 and the best value there is 0.9: a curve of accuracies.
        zero, one = start + (start - best) / 8, best - (start - best) / 8
    finals = [min(max(curve[-1], low), high) for curve in curves]
    return Scale(low, high, stdev(finals), zero, one)


@cache
def _others(path: Path, at: int) -> tuple[tuple[float, ...], ...]:
    trace = _trace(path)
    rng = stream(SEED, path.name, "others", at)
    order = [other for other in shuffled(len(trace.runs), rng) if other != at][:OTHERS]
    curves = [_losses(trace, other) for other in order]
    return tuple(curve[: 1 + int(rng.random() * len(curve))] for curve in curves)


def _incumbent(path: Path, at: int) -> float:
    trace = _trace(path)
    order = shuffled(len(trace.runs), stream(SEED, path.name, "rivals", at))
    rivals = [other for other in order if other != at][:RIVALS]
    return min(_scale(path).settled(_losses(trace, other)[-1]) for other in rivals)
