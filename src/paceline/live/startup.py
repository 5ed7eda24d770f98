"""Words while a study starts: what is waited for, and for how long.

Knows the clock and a view. Does not know what is started.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Seconds between two words.
EVERY_S = 0.5


@runtime_checkable
class ShowsStart(Protocol):
    """A view that can show what the start of a study waits for."""

    def note(self, text: str, seconds: float) -> None: ...


@contextmanager
def show_wait(view: object, text: str) -> Iterator[Callable[[str], None]]:
    """Show what is waited for until the end of the block; yield a function that changes the words.

    Shows nothing if the view cannot show it.
    """
    if not isinstance(view, ShowsStart):
        yield lambda text: None
        return
    wait = _Wait(view, text)
    thread = threading.Thread(target=wait.tell, name="paceline-start", daemon=True)
    thread.start()
    try:
        yield wait.change
    finally:
        wait.ended.set()
        thread.join()


class _Wait:
    """One wait: its words, and since when."""

    def __init__(self, view: ShowsStart, text: str) -> None:
        self.ended = threading.Event()
        self._view = view
        self._text = text
        self._began = time.monotonic()

    def change(self, text: str) -> None:
        """Show other words from now on; the time goes on if they are the same."""
        if text != self._text:
            self._text, self._began = text, time.monotonic()

    def tell(self) -> None:
        """Tell the view, at once and then again, until the wait has ended."""
        while True:
            self._view.note(self._text, time.monotonic() - self._began)
            if self.ended.wait(EVERY_S):
                return
