"""A bar on standard error for whatever takes longer than a second, where somebody looks.

Knows when to appear and how far a study is. Writes nothing where standard error is no terminal,
and nothing at all for what is quick.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType

    from rich.console import Console
    from rich.progress import Progress, TaskID

    from paceline.machine.state import StudyState

T = TypeVar("T")

# What is over sooner is not worth a flicker.
PATIENCE_S = 1.0
# As often as an eye can follow; a simulation makes ten thousand steps in this time.
EVERY_S = 0.1


class Bar:
    """Shows how far something is, from one second after it began until it ends."""

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
        # Whether anybody would see it.
        self.wanted = sys.stderr.isatty() if console is None else console.is_terminal
        self._next = clock() + PATIENCE_S
        self._shown: tuple[Progress, TaskID] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._shown is not None:
            self._shown[0].stop()
            self._shown = None

    def show(self, share: float | None, note: str) -> None:
        """Say how far it is, from 0 to 1; None is not known. Said too often, it is not heard."""
        if self._due():
            self._draw(share, note)

    def _draw(self, share: float | None, note: str) -> None:
        progress, task = self._shown or self._appear()
        if share is None:
            progress.update(task, total=None, note=note)
        else:
            progress.update(task, total=1.0, completed=share, note=note)

    def watch(self) -> Callable[[StudyState], None] | None:
        """Return what a simulation may call after each step; None where nobody would see it."""
        if not self.wanted:
            return None

        def watch(state: StudyState) -> None:
            # Asked before anything is counted: it is called for every step.
            if self._due():
                note = f"{len(state.trials)} trials, {state.reports} reports"
                self._draw(share_done(state), note)

        return watch

    def counted(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items, and say how many there were so far."""
        if not self.wanted:
            yield from items
            return
        for number, item in enumerate(items, 1):
            yield item
            self.show(None, f"{number} steps")

    def _due(self) -> bool:
        if not self.wanted:
            return False
        now = self._clock()
        if now < self._next:
            return False
        self._next = now + EVERY_S
        return True

    def _appear(self) -> tuple[Progress, TaskID]:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=self._console or Console(stderr=True),
            transient=True,
        )
        self._shown = progress, progress.add_task(self._label, total=1.0, note="")
        progress.start()
        return self._shown


def share_done(state: StudyState) -> float:
    """Return how far a study is: as far as the limit that is nearest to ending it."""
    spec = state.spec
    shares = [0.0]
    if spec.budget.deadline_s is not None:
        shares.append(state.now / spec.budget.deadline_s)
    if spec.budget.slot_seconds is not None:
        shares.append(state.slot_seconds / spec.budget.slot_seconds)
    trials = spec.budget.trials or len(spec.generator.params.get("configs", ()))
    if trials:
        ended = len(state.trials) - state.live
        shares.append(ended / trials)
        shares.append(state.epochs_trained / (trials * spec.epochs))
    return min(max(shares), 1.0)
