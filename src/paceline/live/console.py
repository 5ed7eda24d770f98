"""The console of rich on which studies are shown: control characters are shown, not sent.

Names, reasons and errors come from logs, which may come from elsewhere. Imports rich, which takes
longer than most commands run: import this module only when something is drawn.
"""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

from rich.console import Console
from rich.segment import Segment

from paceline.core.text import show_controls

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import ConsoleOptions, RenderableType


class PlainConsole(Console):
    """A console that reads no markup in text, and sends no control character of it."""

    def __init__(self, file: IO[str] | None = None, *, stderr: bool = False) -> None:
        super().__init__(file=file, stderr=stderr, markup=False, emoji=False, highlight=False)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the segments of something drawn; those of rich itself stay as they are."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(show_controls(segment.text), segment.style)
