"""Watchers of a running study: a live view on a terminal or in a notebook, else lines of text.

Decides where a study is shown and how often the live view is drawn; `render`, `html_tables` and
`lines` decide what. Imports rich only when it draws, and costs next to nothing between two
drawings, however many reports arrive.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol, Self

from paceline.analysis.story import LiveStory
from paceline.live.lines import LineWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TextIO

    from rich.console import Console

    from paceline.analysis.story import Sentence
    from paceline.core.decisions import Step
    from paceline.live.ending import Ending
    from paceline.machine.state import StudyState

    Watch = Callable[[StudyState, Sequence[Step]], None]

# At most four drawings a second, and fewer if drawing is slow: at most 1/SHARE of the time.
EVERY_S = 0.25
SHARE = 100.0
# Sentences kept for the view.
KEPT = 20


class ProgressView(Protocol):
    """A watcher that also shows the start of a study and its end."""

    def __call__(self, state: StudyState, steps: Sequence[Step]) -> None: ...

    def note(self, text: str, seconds: float) -> None:
        """Show what the start of the study waits for."""

    def finish(self, ending: Ending) -> None:
        """Show the summary of the study."""


@contextmanager
def show_progress(stream: TextIO) -> Iterator[ProgressView]:
    """Yield a watcher that shows a study on a stream: live on a terminal, else line by line."""
    console = _open_console(stream)
    if console is None:
        yield SafeView(LineWriter(stream))
        return
    with LiveView(console) as view:
        yield SafeView(view)


@contextmanager
def show_progress_here(
    lines: LineWriter | None = None, *, needs_lines: bool = False
) -> Iterator[ProgressView]:
    """Yield a watcher for this place: a notebook, a terminal, or lines on standard error.

    `lines` goes on with the lines of an earlier watcher; `needs_lines` leaves terminals alone.
    """
    from paceline.live.notebook import NotebookView, is_in_notebook

    if is_in_notebook():
        yield SafeView(NotebookView())
    elif not needs_lines and _open_console(sys.stdout) is not None:
        with show_progress(sys.stdout) as view:
            yield view
    else:
        # Standard output may hold what the program computes; it is not mixed with lines.
        yield SafeView(lines or LineWriter(sys.stderr))


def _open_console(stream: TextIO) -> Console | None:
    """Return a console on a terminal that can move its cursor; None for any other stream."""
    if stream is None or not stream.isatty():
        return None
    # Imported here: rich takes longer to import than a study takes to start.
    from paceline.live.console import PlainConsole

    console = PlainConsole(stream)
    return None if console.is_dumb_terminal else console


class SafeView:
    """A view that writes no more once its stream is gone; the study continues."""

    def __init__(self, view: ProgressView) -> None:
        self._view: ProgressView | None = view

    def __call__(self, state: StudyState, steps: Sequence[Step]) -> None:
        if self._view is not None:
            with self._guard():
                self._view(state, steps)

    def note(self, text: str, seconds: float) -> None:
        """Show what the start of the study waits for."""
        if self._view is not None:
            with self._guard():
                self._view.note(text, seconds)

    def finish(self, ending: Ending) -> None:
        """Show the summary of the study."""
        if self._view is not None:
            with self._guard():
                self._view.finish(ending)

    @contextmanager
    def _guard(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            self._view = None


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
        if (now < self._next and state.end is None) or not state.number:
            return
        from paceline.live.render import Size, render_study

        # The last column stays empty, and a row is left for the cursor.
        width, height = self._console.size
        size = Size(max(width - 1, 1), max(height - 1, 1))
        view = render_study(state, self._sentences, now - self._start, size)
        self._live.update(view, refresh=True)
        self._next = now + max(EVERY_S, SHARE * (self._clock() - now))

    def note(self, text: str, seconds: float) -> None:
        """Show what the start of the study waits for."""
        from paceline.live.render import render_notice

        width = max(self._console.size.width - 1, 1)
        self._live.update(render_notice(text, seconds, width), refresh=True)

    def finish(self, ending: Ending) -> None:
        """Replace the view by the summary of the study."""
        from paceline.live.render import render_ending

        self._live.stop()
        self._console.print(render_ending(ending))
