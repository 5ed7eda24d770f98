"""The live view in a notebook: one output that is replaced while the study runs.

The only module that imports IPython. Decides how often to draw; `html_tables` decides what.
"""

from __future__ import annotations

import sys
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

from paceline.live.html_tables import render_notice, render_result, render_running

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.core.decisions import Step
    from paceline.live.ending import Ending
    from paceline.machine.state import StudyState

# At most two drawings a second, and fewer if drawing is slow: at most 1/SHARE of the time.
EVERY_S = 0.5
SHARE = 50.0


def is_in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    # A program that has not imported IPython does not run in it.
    module = sys.modules.get("IPython")
    shell = None if module is None else module.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


class NotebookView:
    """Shows a study in the output of a cell, and its summary at the end."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = clock()
        # The reading of `clock` at study time 0.
        self._start = 0.0
        self._handle: Any = None

    def __call__(self, state: StudyState, steps: Sequence[Step]) -> None:
        now = self._clock()
        if steps:
            self._start = now - state.now
        if (now < self._next and state.end is None) or not state.number:
            return
        self._draw(render_running(state, now - self._start))
        self._next = now + max(EVERY_S, SHARE * (self._clock() - now))

    def note(self, text: str, seconds: float) -> None:
        """Show what the start of a study waits for."""
        if self._handle is None and seconds < EVERY_S:
            return  # most studies start at once
        self._draw(render_notice(text, seconds))

    def finish(self, ending: Ending) -> None:
        """Replace the view by the summary of the study."""
        self._draw(render_result(ending.heading, {**ending.rows, **ending.next_rows}, ending.study))
        # The summary of the next study, if several ran as one, goes below it.
        self._handle = None

    def _draw(self, text: str) -> None:
        if self._handle is None:
            self._handle = display_html(text)
        else:
            update_html(self._handle, text)


def display_html(text: str) -> Any:  # noqa: ANN401 - IPython has no types
    """Show HTML as an output of the cell; return its handle."""
    display: Any = import_module("IPython.display")
    return display.display(display.HTML(text), display_id=True)


def update_html(handle: Any, text: str) -> None:  # noqa: ANN401
    """Replace an output of the cell."""
    display: Any = import_module("IPython.display")
    handle.update(display.HTML(text))
