"""A study watched from elsewhere: its log, followed as it grows.

Knows how often to look, and when there is nothing more to come. Whoever watches holds nothing and
is in nobody's way; who draws what is seen is known elsewhere.
"""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING

from paceline.machine.state import StudyState

if TYPE_CHECKING:
    from paceline.api.driving import Watch
    from paceline.core.ports import Store

# How often to look for steps, and how long none may come before asking whether the driver lives.
LOOK_S = 0.25
QUIET_S = 5.0
# Steps that are shown at a time.
SOME = 1_000


def follow(store: Store, study: str, watch: Watch) -> StudyState:
    """Show a study from its first step on, until it has ended or nobody drives it; return it."""
    state = StudyState()
    last, ask_at = -1, time.monotonic()
    while state.end is None:
        steps = list(islice(store.read(study, last), SOME))
        for step in steps:
            last = step.number
            for entry in step.entries:
                state.apply(entry)
        # Also without steps: time passes.
        watch(state, steps)
        now = time.monotonic()
        if len(steps) == SOME:
            continue
        if steps:
            ask_at = max(ask_at, now + QUIET_S)
        elif now >= ask_at:
            if store.holder(study) is None:
                break
            ask_at = now + QUIET_S
        time.sleep(LOOK_S)
    return state
