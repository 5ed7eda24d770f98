"""The main function of a worker process: wait for an attempt, run it, exit.

Knows the order of things in a fresh process: receive the attempt, set up output, threads and seeds,
call the training function, report how it ended. A process runs one attempt: nothing of it can leak
into the next.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from typing import TYPE_CHECKING, Any

from paceline.core.errors import CheckpointError
from paceline.worker.function import run_function
from paceline.worker.kept import seed_everything
from paceline.worker.protocol import (
    Channel,
    CheckpointUnusable,
    FunctionPruned,
    FunctionReturned,
    StartAttempt,
)
from paceline.worker.raised_error import describe_error
from paceline.worker.ray_compat import use_trial
from paceline.worker.stop_request import StopRequest, Unwind
from paceline.worker.suggest import is_pruned
from paceline.worker.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.worker.gang import GangLinks

    Train = Callable[..., Any]


class OwnProcess:
    """The surroundings of an attempt in a process of its own: nothing has to be restored."""

    def set_up(self, start: StartAttempt, stop: StopRequest) -> None:
        """Prepare output, threads, signals and seeds."""
        _set_up(start, stop)

    def take_error(self, error: BaseException) -> None:
        """Write an error of the training function to the attempt's output."""
        traceback.print_exception(error)


def run_attempt(
    channel: Channel, train: Train, gang: GangLinks, host: OwnProcess | None = None
) -> int:
    """Run one attempt; return the process's exit code."""
    host = host or OwnProcess()
    start = channel.receive(wait=True)
    if not isinstance(start, StartAttempt):
        return 0  # the driver has no attempt for this worker
    stop = StopRequest()
    try:
        host.set_up(start, stop)
        trial = Trial(start, channel, gang, stop)
    except CheckpointError as error:
        channel.send(CheckpointUnusable(note=str(error)))
        return 0
    except Unwind:
        return 0  # ended before it began
    try:
        with use_trial(trial):
            run_function(train, trial)
    except Unwind:
        trial.send_news()
        if trial.is_over:
            channel.send(FunctionReturned())
        return 0
    except BaseException as error:
        trial.send_news()
        if is_pruned(error):
            channel.send(FunctionPruned())
            return 0
        host.take_error(error)
        channel.send(describe_error(error, train))
        return 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    trial.send_news()
    channel.send(FunctionReturned())
    return 0


def _set_up(start: StartAttempt, stop: StopRequest) -> None:
    if os.path.islink(start.log):
        os.unlink(start.log)  # left by another: its target is not this study's
    log = os.open(start.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
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
