"""A few lines at the bottom of a terminal that change in place.

Knows how to write over them without a flicker, and how to let what others print pass above. Does
not know what the lines say.
"""

from __future__ import annotations

import io
import shutil
import sys
import threading
from contextlib import ExitStack, redirect_stderr, redirect_stdout, suppress
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.text import Text

from paceline.live.render import Size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TextIO

# The control sequences that every terminal understands.
_CLEAR_LINE, _CLEAR_BELOW = "\x1b[K", "\x1b[J"


class Screen:
    """Draws lines over those it drew before. Inside it, prints go above them."""

    def __init__(self, stream: TextIO, size: Callable[[], Size] | None = None) -> None:
        self._stream = stream
        self._size = size or _terminal_size
        self._console = Console(file=stream, markup=False, emoji=False, highlight=False)
        self._drawn: list[str] = []
        # How long each drawn line looks.
        self._lengths: list[int] = []
        self._lock = threading.Lock()
        self._redirected = ExitStack()

    def __enter__(self) -> Self:
        above = _Above(self)
        # What goes to a file still does.
        if sys.stdout.isatty() or sys.stdout is self._stream:
            self._redirected.enter_context(redirect_stdout(above))
        if sys.stderr.isatty():
            self._redirected.enter_context(redirect_stderr(above))
        return self

    def __exit__(self, *_: object) -> None:
        self._redirected.close()
        with suppress(OSError):  # the terminal may be gone
            self._write(self._back() + _CLEAR_BELOW)
        self._drawn = []

    @property
    def size(self) -> Size:
        """What a picture has room for: the last column and the last row stay empty."""
        columns, rows = self._size()
        return Size(max(columns - 1, 1), max(rows - 1, 1))

    def fileno(self) -> int:
        """Return the terminal's descriptor."""
        return self._stream.fileno()

    def draw(self, lines: Sequence[Text]) -> None:
        """Write these lines over the last ones, in one piece and without clearing them first."""
        with self._lock:
            drawn = self._rendered(lines)
            body = "".join(f"{line}{_CLEAR_LINE}\n" for line in drawn)
            self._write(self._back() + body + _CLEAR_BELOW)
            self._drawn = drawn
            self._lengths = [line.cell_len for line in lines]

    def _rendered(self, lines: Sequence[Text]) -> list[str]:
        # All at once: the console's own work for each print costs more than the text.
        with self._console.capture() as captured:
            self._console.print(Text("\n").join(lines), soft_wrap=True)
        return captured.get().split("\n")[:-1]

    def above(self, text: str) -> None:
        """Print whole lines above the drawn ones."""
        with self._lock:
            again = "".join(f"{line}\n" for line in self._drawn)
            self._write(self._back() + _CLEAR_BELOW + text + again)

    def _back(self) -> str:
        """Return what moves the cursor to the first drawn line."""
        if not self._drawn:
            return ""
        columns, rows = self._size()
        # A terminal that has become narrower has folded what was drawn.
        up = sum(max(1, -(-length // max(columns, 1))) for length in self._lengths)
        return f"\r\x1b[{min(up, rows)}A"

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class _Above(io.TextIOBase):
    """Takes what is printed while a screen is drawn."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._begun = ""

    def write(self, text: str) -> int:
        whole, newline, self._begun = (self._begun + text).rpartition("\n")
        if newline:
            self._screen.above(whole + newline)
        return len(text)

    def fileno(self) -> int:
        return self._screen.fileno()

    def isatty(self) -> bool:
        return True

    def writable(self) -> bool:
        return True


def _terminal_size() -> Size:
    return Size(*shutil.get_terminal_size())
