"""Stored answers of the published samplers: computed once on many cores, then read from a file.

Converts a question to accuracies in [0, 1] and answers back to losses. The file is fixed, so our
changes cannot weaken the baseline.
"""

from __future__ import annotations

import json
import math
import zlib
from typing import TYPE_CHECKING, Any

from benchmarks.curves import run_published
from benchmarks.curves.score import BLUR
from benchmarks.page import RESULTS
from paceline.core.forecast_quantiles import Forecast
from paceline.core.values import NO_LOSS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from benchmarks.curves.question_set import Question

PATH = RESULTS / "curves-published.json"
NAMES = ("published-700", "published-2500", "naslib4")


def to_published_question(question: Question, chain: str) -> dict[str, Any]:
    """Return the question in the form that the published samplers expect."""
    zero, one = question.scale.zero, question.scale.one
    span = zero - one

    def accuracy(loss: float) -> float:
        return 0.0 if loss == NO_LOSS else round(min(max((zero - loss) / span, 0.0), 1.0), 8)

    return {
        "key": question.key,
        "chain": chain,
        "y": [accuracy(loss) for loss in question.losses],
        "limit": question.epochs,
        "seed": zlib.crc32(question.key.encode()),
        # Not clipped: a truth outside the range stays outside.
        "truth": (zero - question.final) / span,
        "width": BLUR * question.scale.unit / span,
    }


def to_losses(quantiles: Sequence[float], question: Question) -> tuple[float, ...]:
    """Convert quantiles of an accuracy to quantiles of the loss."""
    zero, one = question.scale.zero, question.scale.one
    return tuple(zero - value * (zero - one) for value in reversed(quantiles))


def write_answers(lines: Iterable[dict[str, Any]], known: dict[str, Any]) -> None:
    """Write the computed answers to the file."""
    answers: dict[str, dict[str, Any]] = {}
    for line in lines:
        answers.setdefault(line.pop("key"), {})[line.pop("chain")] = line
    rows = ",\n".join(
        f"{json.dumps(key)}: {json.dumps(answers[key], separators=(',', ':'))}"
        for key in sorted(answers)
    )
    head = json.dumps(known)[:-1]
    PATH.write_text(f'{head}, "answers": {{\n{rows}\n}}}}\n', encoding="utf-8")


class PublishedSampler:
    """One published sampler, answering from the file."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._chain = name.partition("-")[0]
        self._answers = json.loads(PATH.read_text(encoding="utf-8"))["answers"]

    def _find_answer(self, question: Question) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self._answers.get(question.key, {}).get(self._chain)
        return found

    def has_answer(self, question: Question) -> bool:
        """Whether the file has an answer to this question."""
        return self._find_answer(question) is not None

    def forecast(self, question: Question) -> Forecast | None:
        """Return the stored answer; None if no family could be fitted."""
        found = (self._find_answer(question) or {}).get(self.name)
        if found is None:
            return None
        return Forecast((question.epochs,), (to_losses(found["quantiles"], question),))

    def log_density(self, question: Question) -> float | None:
        """Return the log density of the sampler's mixture at the truth, per unit of loss."""
        found = (self._find_answer(question) or {}).get(self.name)
        if found is None:
            return None
        span = question.scale.zero - question.scale.one
        return float(found["log_density"]) - math.log(span)

    def seconds(self, question: Question) -> float:
        """Return the time of the chain on one core, scaled to this sampler's share of the steps."""
        longest = max(run_published.CHAINS[self._chain][1].values())
        share = run_published.CHAINS[self._chain][1][self.name] / longest
        return share * float((self._find_answer(question) or {"seconds": 0.0})["seconds"])
