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
    ├── TrialPruned       raised by a training function to end its trial early
    ├── StudyFailed       all trials of a study failed, or no config could be proposed
    ├── ClusterLost       the head of a Ray cluster does not answer any more
    ├── NoResult          the best trial of a study in which no trial has reported a number
    └── BrokenInvariant   a bug in Paceline: the state contradicts itself

A trial that fails is not in this tree: it is an event, never an exception. Neither is a driver that
is asked to exit: Ctrl-C raises KeyboardInterrupt, SIGTERM raises StudyTerminated.
"""

from __future__ import annotations

import sys
import warnings
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

_PACKAGE = f"{__name__.partition('.')[0]}."


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
    """All trials of a study failed, or no config could be proposed.

    `result` is the study's Result: its trials with their errors, and its log. None: there is none.
    """

    def __init__(self, message: str, result: Any = None) -> None:  # noqa: ANN401
        super().__init__(message)
        self.result = result


class ClusterLost(PacelineError):
    """The head of a Ray cluster does not answer any more: the study can be resumed on another.

    `found` is what was found, without the way out.
    """

    def __init__(self, found: str, way_out: str = "") -> None:
        super().__init__(f"{found}: {way_out}." if way_out else f"{found}.")
        self.found = found


class TrialPruned(PacelineError):
    """Raised by a training function to end its trial early: it is stopped, not failed."""


class NoResult(PacelineError):
    """The best trial was asked for, and no trial has reported a number."""


class StudyTerminated(SystemExit):
    """The driver ended the study after SIGTERM; the process exits with 143."""

    def __init__(self, message: str) -> None:
        super().__init__(143)
        self.message = message

    def __str__(self) -> str:
        return self.message


class BrokenInvariant(PacelineError):
    """The state contradicts itself: a bug in Paceline. The message has the history."""


def warn_user(text: str) -> None:
    """Warn at the line of the user's program that called this package."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, PacelineWarning, stacklevel=level + 1)


def make_unknown_error(kind: str, found: str, known: Iterable[str], instead: str = "") -> SpecError:
    """Return the error for an unknown name, with what to write instead or the nearest known one."""
    if instead:
        return SpecError(f"unknown {kind} {found!r}: write {instead} instead.")
    names = sorted(known)
    near = get_close_matches(found, names, n=1, cutoff=0.5)
    hint = f": did you mean {near[0]!r}?" if near else "."
    listed = f"The known ones are {', '.join(names)}." if names else "There are none."
    return SpecError(f"unknown {kind} {found!r}{hint} {listed}")


def make_missing_extra_error(package: str, extra: str) -> SpecError:
    """Return the error for an optional package that is not installed."""
    return SpecError(f"{package} is not installed: pip install 'paceline[{extra}]'.")
