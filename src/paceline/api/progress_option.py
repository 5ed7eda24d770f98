"""Progress for users of the API: where a study is shown, and its summary at the end.

Knows the option `progress`. Does not know how a view draws.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, TypeAlias

from paceline.engines.process.local.devices import INLINE

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager

    from paceline.api.results import Result
    from paceline.live.lines import LineWriter
    from paceline.live.watcher import ProgressView, Watch

    Shown: TypeAlias = Watch | ProgressView | None


class Progress:
    """The option `progress` of one study: None and True show it, False does not."""

    def __init__(self, progress: bool | None, slots: object = None) -> None:
        self._is_shown = progress is not False
        # A debugger needs the terminal for itself.
        self._needs_lines = slots == INLINE
        # Kept, so that a study that is run in several pieces does not repeat its lines.
        self._lines: LineWriter | None = None

    def open(
        self, watch: Watch | None = None
    ) -> AbstractContextManager[Watch | ProgressView | None]:
        """Return the watcher that was given, else a view for this place if it is to be shown."""
        if watch is not None or not self._is_shown:
            return nullcontext(watch)
        # Imported here: a study that is not shown needs none of it.
        from paceline.live.lines import LineWriter
        from paceline.live.watcher import show_progress_here

        if self._lines is None:
            self._lines = LineWriter(sys.stderr)
        return show_progress_here(self._lines, needs_lines=self._needs_lines)


def show_summaries(view: Shown, results: Iterable[Result], *, is_old: bool = False) -> None:
    """Show the summary of each result, if the view can; `is_old`: all had ended before."""
    finish = getattr(view, "finish", None)
    if finish is not None:
        for result in results:
            finish(result.make_ending(is_old=is_old))
