"""Who watches a study for people: the live picture on a terminal, lines elsewhere.

Knows how often to look. Costs next to nothing while it does not look, whatever is reported.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

from paceline.analysis.live_lines import Teller

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TextIO

    from paceline.analysis.live_lines import Said
    from paceline.core.decisions import Step
    from paceline.live.terminal import Screen
    from paceline.machine.state import StudyState

    Watch = Callable[[StudyState, Sequence[Step]], None]

# At most four pictures a second, and fewer where drawing one takes long: a hundredth of the time.
EVERY_S = 0.25
SHARE = 100.0
# Sentences that are kept for the picture.
KEPT = 20


@contextmanager
def progress_on(stream: TextIO) -> Iterator[Watch]:
    """Give who shows a study on this stream: live where it is a terminal, else line by line."""
    if _can_draw(stream):
        from paceline.live.terminal import Screen

        with Screen(stream) as screen:
            yield _while_it_lasts(Live(screen))
    else:
        yield _while_it_lasts(Lines(stream))


def _while_it_lasts(watch: Watch) -> Watch:
    """Return the same watcher, which falls silent where its stream is gone: the study goes on."""
    gone = False

    def shown(state: StudyState, steps: Sequence[Step]) -> None:
        nonlocal gone
        if not gone:
            try:
                watch(state, steps)
            except OSError:
                gone = True

    return shown


def _can_draw(stream: TextIO) -> bool:
    if not stream.isatty():
        return False
    # Imported here: it takes longer than a study that nobody watches needs for starting.
    from rich.console import Console

    return not Console(file=stream).is_dumb_terminal


class Lines:
    """Writes one line for each thing that matters, never one for each report."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._teller = Teller()

    def __call__(self, state: StudyState, steps: Sequence[Step]) -> None:
        told = [said for said in self._teller.hear(state, steps) if not said.minor]
        if told:
            self._stream.write("".join(f"{said}\n" for said in told))
            self._stream.flush()


class Live:
    """Draws the picture of the study."""

    def __init__(self, screen: Screen, clock: Callable[[], float] = time.monotonic) -> None:
        self._screen = screen
        self._clock = clock
        self._teller = Teller()
        self._said: deque[Said] = deque(maxlen=KEPT)
        self._next = clock()
        # What our clock showed when the study's showed 0.
        self._began = 0.0

    def __call__(self, state: StudyState, steps: Sequence[Step]) -> None:
        self._said.extend(self._teller.hear(state, steps))
        now = self._clock()
        if steps:
            self._began = now - state.now
        if now < self._next and state.end is None:
            return
        from paceline.live.render import picture

        lines = picture(state, self._said, now - self._began, self._screen.size)
        self._screen.draw(lines)
        self._next = now + max(EVERY_S, SHARE * (self._clock() - now))
