"""Watchers of a running study: a live view on a terminal, lines of text elsewhere.

Decides how often to draw; `render` decides what. Imports rich only when it draws, and costs next to
nothing between two drawings, however many reports arrive.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Self

from paceline.analysis.story import LiveStory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TextIO

    from rich.console import Console

    from paceline.analysis.story import Sentence
    from paceline.core.decisions import Step
    from paceline.machine.state import StudyState

    Watch = Callable[[StudyState, Sequence[Step]], None]

# At most four drawings a second, and fewer if drawing is slow: at most 1/SHARE of the time.
EVERY_S = 0.25
SHARE = 100.0
# Sentences kept for the view.
KEPT = 20


@contextmanager
def show_progress(stream: TextIO) -> Iterator[Watch]:
    """Yield a watcher that shows a study on a stream: live on a terminal, else line by line."""
    console = _open_console(stream)
    if console is None:
        yield _ignore_lost_stream(LineWriter(stream))
        return
    with LiveView(console) as view:
        yield _ignore_lost_stream(view)


def _open_console(stream: TextIO) -> Console | None:
    """Return a console on a terminal that can move its cursor; None for any other stream."""
    if not stream.isatty():
        return None
    # Imported here: rich takes longer to import than a study takes to start.
    from rich.console import Console

    console = Console(file=stream, markup=False, emoji=False, highlight=False)
    return None if console.is_dumb_terminal else console


def _ignore_lost_stream(watch: Watch) -> Watch:
    """Return a watcher that stops writing when its stream is gone; the study continues."""
    is_lost = False

    def write(state: StudyState, steps: Sequence[Step]) -> None:
        nonlocal is_lost
        if not is_lost:
            try:
                watch(state, steps)
            except OSError:
                is_lost = True

    return write


class LineWriter:
    """Writes one line for each sentence of the running study, and no line for a report."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._story = LiveStory()

    def __call__(self, state: StudyState, steps: Sequence[Step]) -> None:
        lines = [f"{each}\n" for each in self._story.take(state, steps) if not each.is_minor]
        if lines:
            self._stream.write("".join(lines))
            self._stream.flush()


class LiveView:
    """Draws the study at the bottom of a terminal; what the program prints appears above it."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        from rich.live import Live

        self._console = console
        self._live = Live(
            console=console,
            auto_refresh=False,
            transient=True,
            vertical_overflow="crop",
            # A stream that goes to a file keeps going there.
            redirect_stdout=sys.stdout.isatty() or sys.stdout is console.file,
            redirect_stderr=sys.stderr.isatty(),
        )
        self._clock = clock
        self._story = LiveStory()
        self._sentences: deque[Sentence] = deque(maxlen=KEPT)
        self._next = clock()
        # The reading of `clock` at study time 0.
        self._start = 0.0

    def __enter__(self) -> Self:
        with suppress(OSError):  # the terminal may be gone
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._live.stop()

    def __call__(self, state: StudyState, steps: Sequence[Step]) -> None:
        self._sentences.extend(self._story.take(state, steps))
        now = self._clock()
        if steps:
            self._start = now - state.now
        if now < self._next and state.end is None:
            return
        from paceline.live.render import Size, render_study

        # The last column stays empty, and a row is left for the cursor.
        width, height = self._console.size
        size = Size(max(width - 1, 1), max(height - 1, 1))
        view = render_study(state, self._sentences, now - self._start, size)
        self._live.update(view, refresh=True)
        self._next = now + max(EVERY_S, SHARE * (self._clock() - now))
