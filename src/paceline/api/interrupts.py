"""Signals that ask a driver to go: the first is obeyed in order, the second at once.

Knows Ctrl-C and SIGTERM, and leaves alone whoever handles these already. Does not know what there
is to put in order.
"""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from types import FrameType

# What Python does by itself; where somebody has chosen otherwise, that stays.
_DEFAULTS: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}


class Interrupts:
    """Listens for signals inside a `with` block, in the main thread."""

    def __init__(self) -> None:
        # The signal that asked; None: nobody has.
        self.asked: signal.Signals | None = None
        self._mine: list[signal.Signals] = []

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number, default in _DEFAULTS.items():
                if signal.getsignal(number) is default:
                    signal.signal(number, self._heard)
                    self._mine.append(number)
        return self

    def __exit__(self, *_: object) -> None:
        while self._mine:
            number = self._mine.pop()
            signal.signal(number, _DEFAULTS[number])

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if self.asked is not None:
            raise KeyboardInterrupt("interrupted twice: everything ends at once")
        self.asked = signal.Signals(number)
