"""The loop: the order of a step, and the log line of each decision."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from small_studies import SmallStudy, make_table

from paceline.analysis.story import explain
from paceline.core import events as e
from paceline.engines.loop import step
from paceline.policies.asha import Asha

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from paceline.core.decisions import Step
    from paceline.core.views import EngineView


def test_steps_are_remembered_before_they_are_applied() -> None:
    study = SmallStudy(make_table([[0.5, 0.4]]))
    order: list[str] = []

    class Recording:
        def apply(self, step: Step, study: EngineView) -> None:
            order.append(f"apply {step.number}")

    def remember(steps: Sequence[Step]) -> None:
        order.extend(f"remember {each.number}" for each in steps)

    events: list[e.AnyEvent] = [
        e.Opened(at=0.0, spec=study.spec),
        e.CapacityChanged(at=0.0, slots=(0,)),
    ]
    first, second = step(study.machine, Recording(), remember, events)
    assert (first.number, second.number) == (0, 1)
    assert order == ["remember 0", "remember 1", "apply 0", "apply 1"]
    assert step(study.machine, Recording(), remember, []) == []
    assert len(order) == 4


def test_every_decision_is_logged_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    table = make_table([[0.5, 0.4], [0.6, 0.3]])
    with caplog.at_level(logging.DEBUG, logger="paceline"):
        played = SmallStudy(table).run()
    decisions = [decision for step in played.steps for decision in step.decisions]
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == len(decisions)
    for line, decision in zip(lines, decisions, strict=True):
        assert line == explain(decision, played.spec)
        assert line.endswith(f": {decision.why}")
    assert {record.name for record in caplog.records} == {"paceline.decisions"}


def test_requests_and_details_are_logged_for_debugging_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = make_table([[0.5 - 0.01 * run] * 9 for run in range(6)])
    with caplog.at_level(logging.DEBUG, logger="paceline"):
        SmallStudy(table, Asha()).run()
    lines = {"DEBUG": "", "INFO": ""}
    for record in caplog.records:
        lines[record.levelname] += f"{record.getMessage()}\n"
    assert " trains trial " in lines["DEBUG"]
    assert " trains trial " not in lines["INFO"]
    for words in (" is opened with ", " is paused: ", " may continue to ", "the study ends: "):
        assert words in lines["INFO"]
        assert words not in lines["DEBUG"]


def test_nothing_is_logged_without_configuration(caplog: pytest.LogCaptureFixture) -> None:
    SmallStudy(make_table([[0.5, 0.4]])).run()
    assert caplog.records == []
