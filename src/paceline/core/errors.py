"""The errors that Paceline raises, by cause.

    PacelineError
    ├── SpecError         the user's mistake: an invalid study, option or argument
    ├── TraceError        a trace file that cannot be read, with its line and field
    ├── StoreError        a store that cannot be opened, found, locked or understood
    │   ├── StudyNotFound     no study of that name in this store
    │   └── StudyRunning      a running driver holds the study
    ├── LogError          a log that does not decode, or with a gap between its entries
    ├── ModelError        missing or damaged weights of a curve model
    ├── CheckpointError   an object that cannot be saved, or a checkpoint that cannot be read
    ├── TrialError        a training function that misuses its trial
    ├── StudyFailed       all trials of a study failed before their first report
    └── BrokenInvariant   a bug in Paceline: the state contradicts itself

A trial that fails is not in this tree: it is an event, never an exception. Neither is a driver that
is asked to exit: Ctrl-C raises KeyboardInterrupt, SIGTERM raises StudyTerminated.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class PacelineError(Exception):
    """Base class of all errors that Paceline raises. The text is one sentence for the user."""


class PacelineWarning(UserWarning):
    """Something a user should know that does not stop a study. The text is one sentence."""


class SpecError(PacelineError, ValueError):
    """A study, option or argument is invalid: nothing was started or written.

    Also a ValueError, so that an invalid stored value fails to decode.
    """


class TraceError(PacelineError):
    """A trace cannot be read; the message names file, line and field."""


class StoreError(PacelineError):
    """A store cannot be opened, locked or understood."""


class StudyNotFound(StoreError):
    """The store holds no study of that name."""


class StudyRunning(StoreError):
    """A running driver holds the study; `holder` names it, such as `process 4711`."""

    def __init__(self, message: str, holder: str) -> None:
        super().__init__(message)
        self.holder = holder


class LogError(PacelineError):
    """A log does not decode, or has a gap between its entries."""


class ModelError(PacelineError):
    """A curve model cannot be loaded; the study goes on without forecasts."""


class CheckpointError(PacelineError):
    """An object given to `keep` cannot be saved, or a checkpoint cannot be read."""


class TrialError(PacelineError):
    """A training function misuses its trial; raised inside the function."""


class StudyFailed(PacelineError):
    """All first trials failed before a report, or no config could be proposed."""


class StudyTerminated(SystemExit):
    """The driver ended the study after SIGTERM; the process exits with 143."""

    def __init__(self, message: str) -> None:
        super().__init__(143)
        self.message = message

    def __str__(self) -> str:
        return self.message


class BrokenInvariant(PacelineError):
    """The state contradicts itself: a bug in Paceline. The message has the history."""


def make_unknown_error(kind: str, found: str, known: Iterable[str]) -> SpecError:
    """Return the error for an unknown name, with the nearest known one."""
    names = sorted(known)
    near = get_close_matches(found, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    listed = ", ".join(names) if names else "there are none"
    return SpecError(f"unknown {kind} {found!r}: {hint}(known: {listed})")


def make_missing_extra_error(package: str, extra: str) -> SpecError:
    """Return the error for an optional package that is not installed."""
    return SpecError(f"{package} is not installed: pip install 'paceline[{extra}]'.")
