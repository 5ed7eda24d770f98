"""A progress bar on standard error for commands that take longer than a second.

Decides when the bar appears and how far a study is; rich draws it. Writes nothing if standard error
is not a terminal.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Self, TypeVar

from paceline.analysis.study_progress import measure_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rich.console import Console
    from rich.progress import Progress

    from paceline.machine.state import StudyState

T = TypeVar("T")

# Seconds before the bar appears.
DELAY_S = 1.0
# Seconds between two updates; a simulation makes ten thousand steps in this time.
EVERY_S = 0.1


class ProgressBar:
    """A bar that appears one second after its start and disappears at its end."""

    def __init__(
        self,
        label: str,
        *,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._label = label
        self._console = console
        self._clock = clock
        self._is_on_terminal = sys.stderr.isatty() if console is None else console.is_terminal
        self._next = clock() + DELAY_S
        self._progress: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def update(self, fraction: float | None, note: str) -> None:
        """Show how far the work is, from 0 to 1, or None if unknown; most calls do nothing."""
        if self._is_due():
            self._draw(fraction, note)

    def make_watcher(self) -> Callable[[StudyState], None] | None:
        """Return what a simulation may call after each step; None if the bar is never shown."""
        if not self._is_on_terminal:
            return None

        def watch(state: StudyState) -> None:
            # Asked before anything is counted: it is called for every step.
            if self._is_due():
                note = f"{len(state.trials)} trials, {state.reports} reports"
                self._draw(measure_progress(state).share, note)

        return watch

    def track(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items, and show how many there were so far."""
        if not self._is_on_terminal:
            yield from items
            return
        for number, item in enumerate(items, 1):
            yield item
            self.update(None, f"{number} steps")

    def _is_due(self) -> bool:
        if not self._is_on_terminal:
            return False
        now = self._clock()
        if now < self._next:
            return False
        self._next = now + EVERY_S
        return True

    def _draw(self, fraction: float | None, note: str) -> None:
        if self._progress is None:
            self._progress = self._start()
        (task,) = self._progress.task_ids
        total = None if fraction is None else 1.0
        self._progress.update(task, total=total, completed=fraction or 0.0, note=note)

    def _start(self) -> Progress:
        # Imported here: rich takes longer to import than most commands take.
        from rich.progress import BarColumn, Progress, TextColumn

        from paceline.live.console import PlainConsole

        progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=self._console or PlainConsole(stderr=True),
            transient=True,
        )
        progress.add_task(self._label, total=1.0, note="")
        progress.start()
        return progress
