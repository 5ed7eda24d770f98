"""Score forecasts of recorded runs, by the same rules for every model.

Losses are clipped to the trace's range and divided by its unit, so only differences between models
are meaningful. Every forecast is blurred by a hundredth of the unit, about the noise of an
evaluation, so no point mass scores infinitely well. A model without an answer is scored as `last`.
"""

from __future__ import annotations

import math
from statistics import mean
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.curves.scoring import auc, clip, crps, log_score
from paceline.core.forecast_quantiles import blur, compute_chance, compute_density, is_covered
from paceline.core.ports import History, Other
from paceline.curves.last_value import Last

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from benchmarks.curves.question_set import Question
    from paceline.core.forecast_quantiles import Forecast

# The blur, as a share of the trace's unit.
BLUR = 0.01


class Score(NamedTuple):
    """One model on one question."""

    family: str
    cut: float
    log: float
    # From the model's own density, if it has one besides its quantiles.
    log_own: float | None
    crps: float
    in80: bool
    in95: bool
    chance: float
    beats: bool
    answered: bool
    seconds: float


class Summary(NamedTuple):
    """One model on many questions."""

    questions: int
    log: float
    crps: float
    in80: float
    in95: float
    auc: float | None
    answered: float
    ms: float


def make_history(question: Question) -> History:
    """Return the input of a curve model."""
    others = [Other(losses, {}) for losses in question.others]
    return History(question.losses, (question.epochs,), question.epochs, {}, others=others)


def score(
    question: Question, forecast: Forecast | None, seconds: float, own: float | None = None
) -> Score:
    """Score one answer; `own` is the model's own log density at the final loss."""
    scale = question.scale
    given = forecast or Last().forecast([make_history(question)])[0]
    if given is None:
        raise ValueError(f"{question.key}: the baseline `last` has no answer")
    row = blur(clip(given.quantiles[-1], scale.low, scale.high), BLUR * scale.unit)
    found = log_score(compute_density(row, question.final), scale.low, scale.high)
    if own is not None:
        own = log_score(math.exp(own), scale.low, scale.high) + math.log(scale.unit)
    return Score(
        family=question.family,
        cut=question.cut,
        log=found + math.log(scale.unit),
        log_own=own,
        crps=crps(row, question.final) / scale.unit,
        in80=is_covered(row, question.final, 0.8),
        in95=is_covered(row, question.final, 0.95),
        chance=compute_chance(row, question.incumbent),
        beats=question.final < question.incumbent,
        answered=forecast is not None,
        seconds=seconds,
    )


def summarize(scores: Iterable[Score]) -> Summary:
    """Return the means of some scores; of two log scores, the better one."""
    kept = list(scores)
    logs = mean(one.log for one in kept)
    if any(one.log_own is not None for one in kept):
        logs = max(logs, mean(one.log if one.log_own is None else one.log_own for one in kept))
    return Summary(
        questions=len(kept),
        log=logs,
        crps=mean(one.crps for one in kept),
        in80=mean(one.in80 for one in kept),
        in95=mean(one.in95 for one in kept),
        auc=auc([one.chance for one in kept], [one.beats for one in kept]),
        answered=mean(one.answered for one in kept),
        ms=1000 * mean(one.seconds for one in kept),
    )


def average_families(parts: Sequence[Summary]) -> Summary:
    """Return the mean over families, equally weighted."""
    known = [part.auc for part in parts if part.auc is not None]
    return Summary(
        questions=sum(part.questions for part in parts),
        log=mean(part.log for part in parts),
        crps=mean(part.crps for part in parts),
        in80=mean(part.in80 for part in parts),
        in95=mean(part.in95 for part in parts),
        auc=mean(known) if known else None,
        answered=mean(part.answered for part in parts),
        ms=mean(part.ms for part in parts),
    )
