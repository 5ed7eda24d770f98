"""What can go wrong, and whose fault it was.

    PacelineError
    ├── SpecError         the user's mistake: a study, option or argument that cannot be meant
    ├── TraceError        a trace file that cannot be read, with its line and field
    ├── StoreError        a store that cannot be opened, found, locked or understood
    │   ├── StudyNotFound     no study of that name in this store
    │   └── StudyRunning      a living driver holds the study
    ├── LogError          a log that does not decode, or whose entries do not follow each other
    ├── ModelError        weights of a curve model that are missing or damaged
    ├── CheckpointError   something that cannot be kept, or a checkpoint that cannot be read
    ├── TrialError        a training function that breaks the contract of the trial handle
    ├── StudyFailed       a study whose trials all failed before they reported anything
    └── BrokenInvariant   our bug: the state contradicts itself

A trial that fails is not in this tree: it is an event, never an exception. Neither is a driver that
was asked to go: Ctrl-C gives a plain KeyboardInterrupt, SIGTERM a StudyTerminated.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class PacelineError(Exception):
    """Everything Paceline raises on purpose. Its text is one sentence for the user."""


class PacelineWarning(UserWarning):
    """Something a user will want to know, and nothing that stops a study. One sentence too."""


class SpecError(PacelineError, ValueError):
    """The user asked for something that cannot be meant: nothing has been started or written.

    A ValueError too, so that a stored value which breaks the same rule fails to decode.
    """


class TraceError(PacelineError):
    """A trace cannot be read; the message names file, line and field."""


class StoreError(PacelineError):
    """A store cannot be opened, locked or understood."""


class StudyNotFound(StoreError):
    """The store holds no study of that name."""


class StudyRunning(StoreError):
    """A living driver holds the study; `holder` says who, such as `process 4711`."""

    def __init__(self, message: str, holder: str) -> None:
        super().__init__(message)
        self.holder = holder


class LogError(PacelineError):
    """A log does not decode, or its entries do not follow from each other."""


class ModelError(PacelineError):
    """A curve model's weights, or what runs them, cannot be used; the study goes on without it."""


class CheckpointError(PacelineError):
    """Something given to `keep` cannot be written, or a checkpoint cannot be read."""


class TrialError(PacelineError):
    """A training function uses its trial in a way that cannot work; raised inside the function."""


class StudyFailed(PacelineError):
    """The first trials all failed before any report, or none could be had: see the message."""


class StudyTerminated(SystemExit):
    """The system asked the driver to go (SIGTERM), and it has: the process exits with 143."""

    def __init__(self, message: str) -> None:
        super().__init__(143)
        self.message = message

    def __str__(self) -> str:
        return self.message


class BrokenInvariant(PacelineError):
    """The state contradicts itself: a bug in Paceline, told with its story."""


def unknown(kind: str, found: str, known: Iterable[str]) -> SpecError:
    """Return the error for a name nobody knows, with the nearest known one."""
    names = sorted(known)
    near = get_close_matches(found, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    listed = ", ".join(names) if names else "there are none"
    return SpecError(f"unknown {kind} {found!r}: {hint}(known: {listed})")
