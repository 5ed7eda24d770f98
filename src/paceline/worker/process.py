"""The main function of a worker process: wait for an attempt, run it, exit.

Knows the order of things in a fresh process: receive the attempt, set up output, threads and seeds,
call the training function, report how it ended. A process runs one attempt: nothing of it can leak
into the next.
"""

from __future__ import annotations

import inspect
import os
import signal
import sys
import traceback
from typing import TYPE_CHECKING, Any

from paceline.core.errors import CheckpointError, SpecError
from paceline.worker.kept import seed_everything
from paceline.worker.memory_usage import is_out_of_memory
from paceline.worker.protocol import (
    Channel,
    CheckpointUnusable,
    FunctionFailed,
    FunctionReturned,
    StartAttempt,
)
from paceline.worker.ray_compat import use_trial
from paceline.worker.trial import StopRequest, Trial, Unwind

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.worker.gang import GangLinks

    Train = Callable[[Any], Any]

# How many lines of a traceback go into the note of a failure; the log of the attempt has all.
_TAIL_LINES = 12


def takes_config(train: Train) -> bool:
    """Say whether a function takes a config as with Ray Tune; else it takes the trial.

    An argument called `config`, `cfg` or `params` means the config. Raise SpecError if the function
    does not take exactly one argument.
    """
    try:
        parameters = list(inspect.signature(train).parameters.values())
    except (TypeError, ValueError):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [each for each in parameters if each.default is each.empty and each.kind in positional]
    name = getattr(train, "__name__", "the training function")
    if len(needed) != 1:
        takes = ", ".join(each.name for each in needed) or "nothing"
        raise SpecError(
            f"{name} takes {takes}: a training function takes one argument, the trial "
            f"(`def {name}(trial)`), or the config, as with Ray Tune (`def {name}(config)`)."
        )
    return needed[0].name in ("config", "cfg", "params")


def run_attempt(channel: Channel, train: Train, gang: GangLinks) -> int:
    """Run one attempt; return the process's exit code."""
    start = channel.receive(wait=True)
    if not isinstance(start, StartAttempt):
        return 0  # the driver has no attempt for this worker
    stop = StopRequest()
    try:
        _set_up(start, stop)
        trial = Trial(start, channel, gang, stop)
    except CheckpointError as error:
        channel.send(CheckpointUnusable(note=str(error)))
        return 0
    except Unwind:
        return 0  # ended before it began
    try:
        _train(train, trial)
    except Unwind:
        return 0
    except BaseException as error:
        traceback.print_exc()
        channel.send(FunctionFailed(note=_tail(error), out_of_memory=is_out_of_memory(error)))
        return 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    if not trial.has_reports:
        channel.send(FunctionFailed(note="the training function returned without a report"))
        return 1
    trial.finish()
    channel.send(FunctionReturned())
    return 0


def _train(train: Train, trial: Trial) -> None:
    if takes_config(train):
        with use_trial(trial):
            train(dict(trial.config))
    else:
        train(trial)


def _set_up(start: StartAttempt, stop: StopRequest) -> None:
    log = os.open(start.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.environ.update(start.environ)
    torch = sys.modules.get("torch")
    if torch is not None:
        # torch chose its threads when it was loaded, before this attempt's share was known.
        torch.set_num_threads(start.threads)
    # The function unwinds, wherever it is.
    signal.signal(signal.SIGTERM, stop.handle_signal)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    seed_everything(start.seed)


def _tail(error: BaseException) -> str:
    """Return the end of a traceback, without the frames of this package at its start."""
    trace = traceback.TracebackException.from_exception(error)
    ours = os.path.dirname(__file__)
    while trace.stack and trace.stack[0].filename.startswith(ours):
        del trace.stack[0]
    lines = "".join(trace.format()).rstrip().splitlines()
    return "\n".join(lines[-_TAIL_LINES:])
