"""Golden logs: whole studies, one entry a line. A change here is a change of behaviour.

`make golden` writes them anew; the difference belongs into the commit's message.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from random_studies import make_busy_study
from small_studies import POSTER, SmallStudy, make_table

from paceline.analysis.story import narrate_study, narrate_trial
from paceline.core.codec import decode_step, encode_step
from paceline.machine.replay import replay
from paceline.policies.asha import Asha

if TYPE_CHECKING:
    from collections.abc import Callable

GOLDEN = Path(__file__).parents[1] / "golden"


def poster() -> SmallStudy:
    """The poster's four schedules, shared, on two slots."""
    curves = [[1 / (epoch + 1) for epoch in range(30)]] * 4
    return SmallStudy(make_table(curves, configs=POSTER), slots=2, share=True)


def halving() -> SmallStudy:
    """Nine trials under ASHA on two slots, with failures and set-up costs."""
    curves = [[(run * 7 % 9) / 10 + 1 / (epoch + 1) for epoch in range(9)] for run in range(9)]
    return SmallStudy(make_table(curves), Asha(first=1), slots=2, cluster={"setup_s": 0.5})


STUDIES: dict[str, Callable[[], SmallStudy]] = {
    "poster": poster,
    "halving": halving,
    "busy": lambda: make_busy_study(13),
}


def compare(name: str, text: str) -> None:
    """Compare with the golden file, or write it where that was asked for."""
    path = GOLDEN / name
    if os.environ.get("PACELINE_GOLDEN") == "write":
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text, f"{name} changed: see `make golden`"


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_is_decided_as_it_always_was(name: str) -> None:
    steps = STUDIES[name]().run().steps
    compare(f"{name}.jsonl", "".join(encode_step(step).decode() + "\n" for step in steps))


@pytest.mark.parametrize("name", STUDIES)
def test_a_stored_log_replays_to_the_same_decisions(name: str) -> None:
    lines = (GOLDEN / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    assert replay([decode_step(line) for line in lines], STUDIES[name]().parts) is None


@pytest.mark.parametrize("name", STUDIES)
def test_the_story_of_a_study_is_unchanged(name: str) -> None:
    played = STUDIES[name]().run()
    lines = [*narrate_study(played.steps), ""]
    for trial in played.state.trials:
        lines += [f"Trial {trial.id}", *narrate_trial(played.steps, trial.id), ""]
    compare(f"{name}.story.txt", "\n".join(lines))
