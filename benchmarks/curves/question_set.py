"""The questions for comparing curve models: recorded runs, cut, with their final values.

Knows the families of traces, the two that are held out of every design choice, how runs are drawn
and cut, and the range and unit of a trace's losses. One seed fixes everything.
"""

from __future__ import annotations

import math
import os
from functools import cache
from pathlib import Path
from statistics import median, stdev
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.page import ROOT
from paceline.core.rng import shuffle_range, stream
from paceline.core.values import NO_LOSS, to_loss
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
# Not used in the design of any model.
HELD_OUT = ("deepobs", "nasbench_nlp")
CUTS = (0.1, 0.25, 0.5, 0.75)
RUNS = 30
# Other runs that a model may see.
OTHERS = 16
# The incumbent is the best of this many other runs: a new run beats it in one case of four.
RIVALS = 3
SEED = 1108


class Scale(NamedTuple):
    """Range and unit of the losses of one trace."""

    # The range: [0, 1] for a metric to maximise that is at most 1. Other losses end at 0, or as far
    # below the best as the best is below the start, and count as diverged as far above the start.
    low: float
    high: float
    # The standard deviation of the final losses.
    unit: float
    # The losses that the published model's accuracies 0 and 1 stand for.
    zero: float
    one: float

    def clip(self, loss: float) -> float:
        """Return the loss, clipped to that of a diverged run."""
        return min(max(loss, self.low), self.high)


class Question(NamedTuple):
    """One cut run: the seen values, the epoch asked about, and the true value."""

    family: str
    trace: str
    run: int
    cut: float
    losses: tuple[float, ...]
    epochs: int
    scale: Scale
    final: float
    incumbent: float
    # Other runs of the trace, each cut at a random length.
    others: tuple[tuple[float, ...], ...]

    @property
    def key(self) -> str:
        """The key of the question in stored results."""
        return f"{self.trace}/{self.run}/{len(self.losses)}"


def load_questions(families: Sequence[str] = FAMILIES, runs: int = RUNS) -> list[Question]:
    """Return the questions of some families, ordered so that every prefix is balanced."""
    lanes = [list(_draw_family(name, runs)) for name in families]
    found = []
    for turn in range(max(map(len, lanes))):
        for lane in lanes:
            found += lane[turn] if turn < len(lane) else []
    return found


def _draw_family(family: str, runs: int) -> Iterator[list[Question]]:
    """Yield the questions run by run, alternating between files."""
    paths = sorted(TRACES.glob(f"{family}*.jsonl.gz"))
    drawn = 0
    orders = [shuffle_range(len(_load_trace(path).runs), stream(SEED, path.name)) for path in paths]
    for turn in range(max(map(len, orders))):
        for path, order in zip(paths, orders, strict=True):
            if turn < len(order) and drawn < runs:
                asked = list(_cut_run(family, path, order[turn]))
                drawn += bool(asked)
                yield asked


def _cut_run(family: str, path: Path, at: int) -> Iterator[Question]:
    trace = _load_trace(path)
    losses = _run_losses(trace, at)
    scale = _load_scale(path)
    known = 0
    for cut in CUTS:
        seen = max(1, min(len(losses) - 1, math.floor(len(losses) * cut + 0.5)))
        # A short run has few cuts; a run that is NaN at the cut is known to have failed.
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
            final=scale.clip(losses[-1]),
            incumbent=_draw_incumbent(path, at),
            others=_draw_others(path, at),
        )


@cache
def _load_trace(path: Path) -> Trace:
    return read_trace(path)


def _run_losses(trace: Trace, at: int) -> tuple[float, ...]:
    sign = 1.0 if trace.header.mode == "min" else -1.0
    return tuple(to_loss(value, sign) for value in trace.runs[at].values)


@cache
def _load_scale(path: Path) -> Scale:
    trace = _load_trace(path)
    curves = [_run_losses(trace, at) for at in range(len(trace.runs))]
    numbers = [loss for curve in curves for loss in curve if loss < NO_LOSS]
    best = min(numbers)
    start = median(curve[0] for curve in curves if curve[0] < NO_LOSS)
    if trace.header.mode == "max" and best >= -1:
        low, high, zero, one = -1.0, 0.0, 0.0, -1.0
    else:
        high, low = start + (start - best), best - (start - best)
        low = 0.0 if best >= 0 else low
        # The median first value becomes 0.1 and the best value 0.9: a curve of accuracies.
        zero, one = start + (start - best) / 8, best - (start - best) / 8
    finals = [min(max(curve[-1], low), high) for curve in curves]
    return Scale(low, high, stdev(finals), zero, one)


@cache
def _draw_others(path: Path, at: int) -> tuple[tuple[float, ...], ...]:
    trace = _load_trace(path)
    rng = stream(SEED, path.name, "others", at)
    order = [other for other in shuffle_range(len(trace.runs), rng) if other != at][:OTHERS]
    curves = [_run_losses(trace, other) for other in order]
    return tuple(curve[: 1 + int(rng.random() * len(curve))] for curve in curves)


def _draw_incumbent(path: Path, at: int) -> float:
    trace = _load_trace(path)
    order = shuffle_range(len(trace.runs), stream(SEED, path.name, "rivals", at))
    rivals = [other for other in order if other != at][:RIVALS]
    return min(_load_scale(path).clip(_run_losses(trace, other)[-1]) for other in rivals)
