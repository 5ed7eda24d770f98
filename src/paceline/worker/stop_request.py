"""How a training function is ended from outside: an exception, and the request behind it.

Knows signals and whether the function is interrupted at once or asked first. Does not know why.
"""

from __future__ import annotations


class Unwind(BaseException):
    """Ends the training function: `finally` blocks run. Not to be caught."""


class StopRequest:
    """Whether a signal has asked the process to end.

    The code that the signal interrupts may swallow the exception (compiled modules do so while they
    are imported), so the request is kept and raised again at every report.
    """

    def __init__(self) -> None:
        self._requested = False
        # The function will ask whether to end before it trains on: it is not interrupted.
        self.is_deferred = False

    @property
    def is_requested(self) -> bool:
        """Whether the process has to end."""
        return self._requested

    def request(self) -> None:
        """Let the function end at its next report."""
        self._requested = True

    def handle_signal(self, *_: object) -> None:
        """Unwind, wherever the process is."""
        self._requested = True
        if not self.is_deferred:
            raise Unwind

    def check(self) -> None:
        """Unwind if the process has to end."""
        if self._requested:
            raise Unwind
