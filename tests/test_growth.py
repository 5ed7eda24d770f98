"""What a report costs a policy does not grow with the number of trials.

Steps of the interpreter are counted, not seconds. What a single call does in C is not seen: a push
onto a heap is one step, and so would a sort be. `benchmarks/policies.py` has the seconds.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import paceline.policies
from build import Played, table
from paceline.api.parts import BUILT_IN, build, parse_part
from paceline.core.decisions import Stop
from paceline.core.values import Budget
from paceline.policies.fifo import Fifo
from paceline.testing.studies import falling

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from paceline.core.ports import Policy, Verdict
    from paceline.core.views import StudyView, TrialView

ROOM = str(Path(paceline.policies.__file__).parent)
EPOCHS, SLOTS = 9, 8
# Those that forecast weigh all who are alive against each other.
NAMES = [name for name in BUILT_IN["policy"] if name not in ("early_term", "pop")]
WITH_ARGUMENTS = {"barrier": "barrier:every=3", "kill_below": "kill_below:value=0.9,after=4"}


def steps_per_report(policy: Policy, trials: int, room: str = ROOM) -> float:
    """Return how many bytecodes of these files are executed for each report."""
    curves, budget = falling(trials, EPOCHS), Budget(deadline_s=trials * EPOCHS / SLOTS / 2)
    played = Played(table(curves), policy, slots=SLOTS, budget=budget)
    steps = 0

    def enter(frame: FrameType, event: str, argument: Any) -> Any:  # noqa: ANN401
        if not frame.f_code.co_filename.startswith(room):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return step

    def step(frame: FrameType, event: str, argument: Any) -> Any:  # noqa: ANN401
        nonlocal steps
        steps += event == "opcode"
        return step

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        played.run()
    finally:
        sys.settrace(before)
    return steps / played.state.reports


@pytest.mark.parametrize("name", [*NAMES, "asha+plateau:patience=3"])
def test_sixteen_times_the_trials_cost_a_report_hardly_more(name: str) -> None:
    part = parse_part(WITH_ARGUMENTS.get(name, name))
    few, many = (steps_per_report(build("policy", part), trials) for trials in (50, 800))
    assert many < 1.3 * few


class LooksAtAll(Fifo):
    """Stops whoever is the worst of all: what nobody should write."""

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        worst = max(other.best_loss for other in study.trials)
        return () if trial.best_loss < worst else (Stop(trial=trial.id, why="nobody is worse"),)


def test_a_policy_that_looks_at_all_trials_is_noticed() -> None:
    few, many = (steps_per_report(LooksAtAll(), trials, __file__) for trials in (50, 800))
    assert many > 4 * few
