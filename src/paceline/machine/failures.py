"""Failures of attempts: the error, its place, and whether a retry could help.

Knows what an ended attempt says about an error. Decides nothing: the machine gives trials up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from paceline.core.values import AttemptId, TrialId

if TYPE_CHECKING:
    from paceline.core import events as e

# Errors that the text of a program causes: the same line raises them again in the next attempt.
# BdbQuit is that of breakpoint() in a process without a terminal.
# Others, such as ValueError, RuntimeError and OSError, may come from data, devices or networks.
DETERMINISTIC = frozenset(
    {
        *("AttributeError", "BdbQuit", "ImportError", "IndentationError", "IndexError"),
        *("KeyError", "ModuleNotFoundError", "NameError", "NotImplementedError", "RecursionError"),
        *("SyntaxError", "SystemExit", "TabError", "TypeError", "UnboundLocalError"),
        *("ZeroDivisionError", "CheckpointError", "SpecError", "TrialError"),
    }
)

_OUTPUT = "; its output ends:"


class Failure(Struct, frozen=True):
    """Why a trial failed last."""

    trial: TrialId
    # None: no attempt was made, since the trial cannot run on these slots.
    attempt: AttemptId | None
    # The exception's class and file:line; empty if the process exited without an exception.
    error: str
    place: str
    # The end of the traceback, or how the process exited.
    note: str

    @property
    def headline(self) -> str:
        """The error and its place on one line: `KeyError: 'lr' (train.py:12)`."""
        where = f" ({shorten_place(self.place)})" if self.place else ""
        return f"{self.message.rstrip('.')}{where}"

    @property
    def message(self) -> str:
        """The error on one line, without its place."""
        lines = [line.strip() for line in self.note.splitlines() if line.strip()]
        if not lines:
            return self.error or "it failed without a word"
        if self.error:
            for line in reversed(lines):
                # A traceback ends with `Error: text` or `package.Error: text`; the text may have
                # further lines.
                if line.partition(":")[0].rpartition(".")[2] == self.error:
                    return line
            return f"{self.error}: {lines[-1]}"
        return lines[0].removesuffix(_OUTPUT) if _OUTPUT in lines[0] else lines[-1]

    @property
    def kind(self) -> tuple[str, str]:
        """What two failures with the same cause have in common."""
        return (self.error, self.place) if self.error else ("", self.message)


def make_failure(trial: TrialId, event: e.Ended) -> Failure:
    """Return the failure that an ended attempt reports."""
    return Failure(trial, event.attempt, event.error, event.place, event.note)


def shorten_place(place: str) -> str:
    """Return file:line without the folders.

    >>> shorten_place("/home/me/train.py:12")
    'train.py:12'
    """
    return place.replace("\\", "/").rpartition("/")[2]
