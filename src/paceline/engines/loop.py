"""The loop: every event is handled, remembered, and only then acted on.

Knows the order of these three and nothing else. The same loop drives the simulator, worker
processes on one machine and a cluster. Writes one sentence for each decision to the
logger `paceline.decisions`.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Protocol

from paceline.analysis.story import explain
from paceline.core import decisions as d
from paceline.core.events import Commanded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.core.decisions import Step
    from paceline.core.events import AnyEvent, Command
    from paceline.core.ports import Engine
    from paceline.core.views import EngineView
    from paceline.machine.machine import Machine

    # Makes steps durable. Returning means that they are.
    Remember = Callable[[Sequence[Step]], None]
    # Returns the commands numbered above the one given.
    Inbox = Callable[[int], Sequence[tuple[int, Command]]]


# How often a study looks into its inbox.
POLL_S = 0.2

# Without a handler of the application nothing is written.
logging.getLogger("paceline").addHandler(logging.NullHandler())
_logger = logging.getLogger("paceline.decisions")
# Requests, and orders that follow from other decisions: logged as DEBUG, the others as INFO.
_DETAILS = (d.Amend, d.Credit, d.Drop, d.WakeAt, d.AskForecast, d.AskProposal)


class Applier(Protocol):
    """The part of an engine that carries decisions out."""

    def apply(self, step: Step, study: EngineView) -> None: ...


def step(
    machine: Machine, engine: Applier, remember: Remember, events: Sequence[AnyEvent]
) -> Sequence[Step]:
    """Handle events, remember the steps, carry them out; return them."""
    if len(events) == 1:
        steps = [machine.handle(events[0])]  # by far the most common
    else:
        steps = [machine.handle(event) for event in events]
    if steps:
        remember(steps)
    state = machine.state
    for each in steps:
        engine.apply(each, state)
        if each.decisions and _logger.isEnabledFor(logging.INFO):
            for decision in each.decisions:
                level = logging.DEBUG if isinstance(decision, _DETAILS) else logging.INFO
                if _logger.isEnabledFor(level):
                    _logger.log(level, "%s", explain(decision, state.spec))
    return steps


def run(
    machine: Machine,
    engine: Engine,
    remember: Remember,
    inbox: Inbox | None = None,
    until: Callable[[], bool] | None = None,
    *,
    poll_s: float = POLL_S,
) -> bool:
    """Drive a study to its end, or until a condition is met; read the inbox every `poll_s`.

    Return False if it stalled: the engine will never return another event.
    """
    state = machine.state
    timeout_s, look_at = None, -math.inf
    while state.end is None and not (until is not None and until()):
        events: Sequence[AnyEvent] | None = None
        if inbox is not None:
            now = engine.now
            if now >= look_at:
                look_at = now + poll_s
                events = [
                    Commanded(at=now, number=number, command=command)
                    for number, command in inbox(state.inbox)
                ]
                if state.end is not None:
                    break  # what looked into the inbox has ended the study
            timeout_s = look_at - now
        events = events or engine.wait(timeout_s)
        if events is None:
            return False
        step(machine, engine, remember, events)
    return True
