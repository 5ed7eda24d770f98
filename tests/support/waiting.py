"""How long tests wait for an event before they fail: one limit for all, far above any busy machine.

A test never asserts that something is quick. It waits for the event it means, and the limit is only
there so that an event that never comes fails the test with a message.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# Below pytest's `faulthandler_timeout`, so that the message comes before the stack traces.
LIMIT_S = 120.0


def wait_for(condition: Callable[[], bool], what: str = "the condition") -> None:
    """Wait until a condition holds; fail with its description after LIMIT_S."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {LIMIT_S:g} s in vain for {what}"
        time.sleep(0.01)
