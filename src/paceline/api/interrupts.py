"""SIGINT and SIGTERM while a study runs, and before: caught, kept, and raised where that is safe.

Knows the signals. Does not know what a study does when it is interrupted.
"""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any, Self

from paceline.core.errors import StudyTerminated

if TYPE_CHECKING:
    from types import FrameType

# Python's own handlers; a handler that the program has set stays.
_DEFAULTS: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}


class Interrupts:
    """Catches SIGINT and SIGTERM inside `with` blocks, in the main thread.

    The first one is kept in `caught`, so that it is not lost where an exception would be: in a
    destructor, or in an import that catches everything. The second one raises KeyboardInterrupt.
    Blocks of several objects can be nested: the inner one takes over what the outer one has caught.
    """

    def __init__(self, *numbers: signal.Signals, is_raising: bool = False) -> None:
        # Both signals raise, too: the start of an engine waits for processes that load code.
        self.is_starting = False
        # SIGINT raises KeyboardInterrupt, too: the thread runs the training function.
        self.is_raising = is_raising
        # The signal that was caught; None: none so far.
        self.caught: signal.Signals | None = None
        self._numbers = numbers or tuple(_DEFAULTS)
        # The handlers that were there before.
        self._before: dict[signal.Signals, Any] = {}
        self._depth = 0

    def __enter__(self) -> Self:
        self._depth += 1
        if self._depth == 1 and threading.current_thread() is threading.main_thread():
            for number in self._numbers:
                before = signal.getsignal(number)
                outer = getattr(before, "__self__", None)
                if isinstance(outer, Interrupts):
                    self.caught = self.caught or outer.caught
                elif before is not _DEFAULTS[number]:
                    continue
                self._before[number] = before
                signal.signal(number, self._catch)
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        while self._before and not self._depth:
            number, before = self._before.popitem()
            signal.signal(number, before)

    def _catch(self, number: int, frame: FrameType | None) -> None:
        if self.caught is not None:
            raise KeyboardInterrupt("interrupted twice: everything ends at once")
        self.caught = signal.Signals(number)
        if self.is_starting and number == signal.SIGTERM:
            raise StudyTerminated("the study was terminated while it started")
        if (self.is_raising or self.is_starting) and number == signal.SIGINT:
            raise KeyboardInterrupt

    def interrupt(self) -> None:
        """Act as if SIGINT had been caught."""
        self.caught = self.caught or signal.SIGINT


def hold_interrupt() -> Interrupts:
    """Return a `with` block for code before a study: a driver in it gets a SIGINT that was lost.

    Python raises KeyboardInterrupt wherever it is, and imports run code that drops exceptions.
    """
    return Interrupts(signal.SIGINT, is_raising=True)
