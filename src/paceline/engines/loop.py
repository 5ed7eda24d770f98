"""The loop: what happened is handled, remembered, and only then acted on.

Knows the order of these three and nothing else. The same loop drives the simulator, the local
engine and a cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.events import Commanded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.core.decisions import Step
    from paceline.core.events import AnyEvent, Command
    from paceline.core.ports import Engine
    from paceline.machine.machine import Machine

    # Makes steps durable. Returning means that they are.
    Remember = Callable[[Sequence[Step]], None]
    # Returns the commands numbered above the one given.
    Inbox = Callable[[int], Sequence[tuple[int, Command]]]


# How often a study looks into its inbox while nothing else happens.
POLL_S = 0.2


def run(
    machine: Machine,
    engine: Engine,
    remember: Remember,
    inbox: Inbox | None = None,
    until: Callable[[], bool] | None = None,
) -> bool:
    """Drive a study to its end, or until a condition is met.

    False: it stalled, because no fact will ever come any more.
    """
    state, handle, apply = machine.state, machine.handle, engine.apply
    patience = None if inbox is None else POLL_S
    while state.end is None and not (until is not None and until()):
        events: Sequence[AnyEvent] | None = None
        if inbox is not None:
            events = _commands(inbox, state.inbox, engine.now)
        events = events or engine.wait(patience)
        if events is None:
            return False
        steps = [handle(event) for event in events]
        if steps:
            remember(steps)
        for step in steps:
            apply(step)
    return True


def _commands(inbox: Inbox, after: int, now: float) -> Sequence[AnyEvent]:
    return [Commanded(at=now, number=number, command=command) for number, command in inbox(after)]
