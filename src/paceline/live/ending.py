"""The end of a study for its user: a title, its figures in words, and what to do next.

Views show it in their own way. Knows no terminal and no HTML.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from paceline.analysis.summary_text import describe_summary

if TYPE_CHECKING:
    from paceline.analysis.summary import StudySummary
    from paceline.machine.groups import GroupState


class Ending(NamedTuple):
    """What is shown at the end of a study."""

    title: str
    # Why it ended; empty if it has not.
    why: str
    rows: dict[str, str]
    # Calls and commands to continue with.
    next_steps: tuple[str, ...]
    study: GroupState

    @property
    def next_rows(self) -> dict[str, str]:
        """What to do next, as one named line."""
        return {"next": ", ".join(self.next_steps)} if self.next_steps else {}

    @property
    def heading(self) -> str:
        """The title with the reason."""
        return f"{self.title}: {self.why}" if self.why else self.title

    @property
    def lines(self) -> list[str]:
        """The summary as lines of text, without the reason: the lines before it have that."""
        rows = {**self.rows, **self.next_rows}
        width = max(map(len, rows), default=0)
        return [f"{self.title}:", *(f"  {name:<{width}}  {value}" for name, value in rows.items())]


def make_ending(
    summary: StudySummary,
    study: GroupState,
    next_steps: tuple[str, ...] = (),
    *,
    is_interrupted: bool = False,
    is_old: bool = False,
) -> Ending:
    """Return the end of a study; `is_old`: it had ended before, and nothing was trained."""
    rows = describe_summary(summary)
    title = _make_title(summary, is_interrupted, is_old)
    return Ending(title, summary.end_why or "", rows, next_steps, study)


def _make_title(summary: StudySummary, is_interrupted: bool, is_old: bool) -> str:
    name = f"study {summary.study!r}"
    if is_old:
        return f"{name} had ended before, and nothing was trained now"
    if summary.end is not None:
        return f"{name} has ended"
    return f"{name} was interrupted" if is_interrupted else f"{name} has not ended yet"
