"""Asks one model one batch of questions, in whatever process it is called."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benchmarks.curves.baselines.powerlaw import PowerLaw
from benchmarks.curves.score import Score, history, score
from paceline.api.registry import build, parse_part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.curves.recorded import Question
    from paceline.core.ports import CurveModel


def model(name: str) -> CurveModel:
    """Return a model that is asked now, by its name."""
    found: CurveModel = (
        PowerLaw() if name == "power-law" else build("curve model", parse_part(name))
    )
    return found


def ask(given: tuple[str, Sequence[Question]]) -> list[Score]:
    """Ask one model one batch of questions."""
    name, batch = given
    asked = model(name)
    asked.forecast([history(batch[0])])  # what is loaded once is not counted
    started = time.process_time()
    answers = asked.forecast([history(question) for question in batch])
    seconds = (time.process_time() - started) / len(batch)
    return [score(q, answer, seconds) for q, answer in zip(batch, answers, strict=True)]
