"""The loop: every event is handled, remembered, and only then acted on.

Knows the order of these three and nothing else. The same loop drives the simulator, worker
processes on one machine and a cluster. Writes one line for each decision to the logger
`paceline.decisions`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import asdict

from paceline.core.events import Commanded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.core.decisions import AnyDecision, Step
    from paceline.core.events import AnyEvent, Command
    from paceline.core.ports import Engine
    from paceline.core.views import EngineView
    from paceline.machine.machine import Machine

    # Makes steps durable. Returning means that they are.
    Remember = Callable[[Sequence[Step]], None]
    # Returns the commands numbered above the one given.
    Inbox = Callable[[int], Sequence[tuple[int, Command]]]


# How often a study looks into its inbox while nothing else happens.
POLL_S = 0.2

# Without a handler of the application nothing is written.
logging.getLogger("paceline").addHandler(logging.NullHandler())
_logger = logging.getLogger("paceline.decisions")


class Applier(Protocol):
    """The part of an engine that carries decisions out."""

    def apply(self, step: Step, study: EngineView) -> None: ...


def step(
    machine: Machine, engine: Applier, remember: Remember, events: Sequence[AnyEvent]
) -> Sequence[Step]:
    """Handle events, remember the steps, carry them out; return them."""
    steps = [machine.handle(event) for event in events]
    if steps:
        remember(steps)
    state = machine.state
    for each in steps:
        engine.apply(each, state)
        if each.decisions and _logger.isEnabledFor(logging.INFO):
            for decision in each.decisions:
                _logger.info("%s", _describe(decision))
    return steps


def run(
    machine: Machine,
    engine: Engine,
    remember: Remember,
    inbox: Inbox | None = None,
    until: Callable[[], bool] | None = None,
) -> bool:
    """Drive a study to its end, or until a condition is met.

    Return False if it stalled: the engine will never return another event.
    """
    state = machine.state
    timeout_s = None if inbox is None else POLL_S
    while state.end is None and not (until is not None and until()):
        events: Sequence[AnyEvent] | None = None
        if inbox is not None:
            events = [
                Commanded(at=engine.now, number=number, command=command)
                for number, command in inbox(state.inbox)
            ]
        events = events or engine.wait(timeout_s)
        if events is None:
            return False
        step(machine, engine, remember, events)
    return True


def _describe(decision: AnyDecision) -> str:
    """Return a decision in one line: its kind, its values, and why."""
    values = asdict(decision)
    why = values.pop("why")
    listed = " ".join(f"{name}={value}" for name, value in values.items())
    return f"{type(decision).__name__} {listed}: {why}"
