"""An error of a training function, as sent to the driver: the class, the place, the traceback.

Knows which frames are the user's: not those of this package, of installed packages and of Python's
own modules. Does not know what the driver does about it.
"""

from __future__ import annotations

import inspect
import os
import sysconfig
import traceback
from bdb import BdbQuit
from typing import TYPE_CHECKING, Any

from paceline.core.errors import PacelineError
from paceline.worker.memory_usage import is_out_of_memory
from paceline.worker.protocol import FunctionFailed

if TYPE_CHECKING:
    from collections.abc import Callable

# How many lines of a traceback go into the note of a failure; the log of the attempt has all.
_TAIL_LINES = 20
# What to do about errors that do not say it themselves.
_HINTS: dict[type[BaseException], str] = {
    SystemExit: "the training function called sys.exit(), which ends a program: return from the "
    "function instead, or raise pl.TrialPruned to stop the trial",
    BdbQuit: "the training function opened a debugger, and its process has no terminal: give "
    "slots='inline' to debug it",
}
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_ERRORS = f"{PacelineError.__module__}."
# Frames between the worker's main function and the user's, or below a call of the trial.
_OURS = tuple(os.path.join(_PACKAGE, name) + os.sep for name in ("worker", "integrations"))
_INSTALLED = tuple(
    {sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


def describe_error(error: BaseException, train: Callable[..., Any]) -> FunctionFailed:
    """Return the message about an error that a training function raised."""
    trace = traceback.TracebackException.from_exception(error)
    place = _find_place(trace.stack) or _find_definition(train)
    _leave_user_frames(trace)
    # Our errors are public under their names alone.
    lines = "".join(trace.format()).replace(_ERRORS, "").rstrip().splitlines()
    if type(error) in _HINTS:
        lines[-1] = f"{type(error).__name__}: {_HINTS[type(error)]}"
    return FunctionFailed(
        note="\n".join(lines[-_TAIL_LINES:]),
        out_of_memory=is_out_of_memory(error),
        kind=type(error).__name__,
        place=place,
    )


def _find_place(stack: traceback.StackSummary) -> str:
    """Return file and line of the user's last frame; empty if there is not one."""
    frames = [frame for frame in stack if not _is_ours(frame)]
    own = [frame for frame in frames if not _is_installed(frame)]
    if not frames:
        return ""
    frame = (own or frames)[-1]
    return f"{_shorten(frame.filename)}:{frame.lineno}"


def _find_definition(train: Callable[..., Any]) -> str:
    """Return the file and line at which a function is defined; empty if it has no Python code."""
    called = inspect.unwrap(getattr(train, "func", train))
    method = vars(type(called)).get("__call__")
    code = getattr(called, "__code__", None) or getattr(method, "__code__", None)
    return "" if code is None else f"{_shorten(code.co_filename)}:{code.co_firstlineno}"


def _leave_user_frames(trace: traceback.TracebackException) -> None:
    """Remove this package's frames, and all frames of libraries but the last."""
    frames = [frame for frame in trace.stack if not _is_ours(frame)]
    trace.stack[:] = [frame for frame in frames if frame is frames[-1] or not _is_installed(frame)]
    for other in (trace.__cause__, trace.__context__):
        if other is not None:
            _leave_user_frames(other)


def _is_ours(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith(_OURS)


def _is_installed(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith((*_INSTALLED, "<frozen"))


def _shorten(filename: str) -> str:
    """Return a path relative to the working directory; outside of it, the file's name."""
    if not os.path.isabs(filename):
        return filename
    relative = os.path.relpath(filename)
    return os.path.basename(filename) if relative.startswith(os.pardir) else relative
