"""Forecast and score one batch of questions with one model, in any process."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benchmarks.curves.baselines.powerlaw import PowerLaw
from benchmarks.curves.score import Score, make_history, score
from paceline.api.registry import build_part, parse_part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.curves.question_set import Question
    from paceline.core.ports import CurveModel


def load_model(name: str) -> CurveModel:
    """Return the model of this name."""
    found: CurveModel = (
        PowerLaw() if name == "power-law" else build_part("curve model", parse_part(name))
    )
    return found


def score_batch(given: tuple[str, Sequence[Question]]) -> list[Score]:
    """Return one model's scores on one batch of questions."""
    name, batch = given
    asked = load_model(name)
    asked.forecast([make_history(batch[0])])  # loading is not measured
    started = time.process_time()
    answers = asked.forecast([make_history(question) for question in batch])
    seconds = (time.process_time() - started) / len(batch)
    return [score(q, answer, seconds) for q, answer in zip(batch, answers, strict=True)]
