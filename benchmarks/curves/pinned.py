"""The published samplers' answers: computed once on many cores, kept in a file, read ever after.

Knows how a question becomes accuracies in [0, 1] and how answers become losses again. The file is
pinned: a change of ours cannot weaken what we compare with.
"""

from __future__ import annotations

import json
import math
import zlib
from typing import TYPE_CHECKING, Any

from benchmarks.curves import far
from benchmarks.curves.score import BLUR
from benchmarks.page import RESULTS
from paceline.core.values import NO_LOSS, Forecast

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from benchmarks.curves.recorded import Question

PATH = RESULTS / "curves-published.json"
NAMES = ("published-700", "published-2500", "naslib4")


def ask(question: Question, chain: str) -> dict[str, Any]:
    """Return the question as the published samplers understand it."""
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
        # Not clipped: where the truth lies outside, it lies outside.
        "truth": (zero - question.final) / span,
        "width": BLUR * question.scale.unit / span,
    }


def losses(quantiles: Sequence[float], question: Question) -> tuple[float, ...]:
    """Return quantiles of an accuracy as quantiles of the loss."""
    zero, one = question.scale.zero, question.scale.one
    return tuple(zero - value * (zero - one) for value in reversed(quantiles))


def write(lines: Iterable[dict[str, Any]], known: dict[str, Any]) -> None:
    """Keep the answers that came back from wherever they were computed."""
    answers: dict[str, dict[str, Any]] = {}
    for line in lines:
        answers.setdefault(line.pop("key"), {})[line.pop("chain")] = line
    rows = ",\n".join(
        f"{json.dumps(key)}: {json.dumps(answers[key], separators=(',', ':'))}"
        for key in sorted(answers)
    )
    head = json.dumps(known)[:-1]
    PATH.write_text(f'{head}, "answers": {{\n{rows}\n}}}}\n', encoding="utf-8")


class Pinned:
    """One published sampler, by its stored answers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._chain = name.partition("-")[0]
        self._answers = json.loads(PATH.read_text(encoding="utf-8"))["answers"]

    def _found(self, question: Question) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self._answers.get(question.key, {}).get(self._chain)
        return found

    def knows(self, question: Question) -> bool:
        """Say whether the question was asked before the file was closed."""
        return self._found(question) is not None

    def forecast(self, question: Question) -> Forecast | None:
        """Return the stored answer; None where no family could be fitted."""
        found = (self._found(question) or {}).get(self.name)
        if found is None:
            return None
        return Forecast((question.epochs,), (losses(found["quantiles"], question),))

    def log_density(self, question: Question) -> float | None:
        """Return the log density of its own mixture of normals at the truth, per unit of loss."""
        found = (self._found(question) or {}).get(self.name)
        if found is None:
            return None
        span = question.scale.zero - question.scale.one
        return float(found["log_density"]) - math.log(span)

    def seconds(self, question: Question) -> float:
        """Return what the chain took on one core, or its share of the steps."""
        longest = max(far.CHAINS[self._chain][1].values())
        share = far.CHAINS[self._chain][1][self.name] / longest
        return share * float((self._found(question) or {"seconds": 0.0})["seconds"])
