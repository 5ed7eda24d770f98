"""One worker's life: it waits for an attempt, becomes it, and ends with it.

Knows the order of things in a fresh process: hear what to be, set up output, threads and seeds,
call the training function, say how it ended. A process lives one attempt: nothing of it can leak
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
from paceline.worker.memory_usage import ran_out
from paceline.worker.protocol import Begin, Channel, Done, Failed, Spoilt
from paceline.worker.ray_compat import running
from paceline.worker.trial import Notice, Trial, Unwind

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.worker.gang import Ties

    Train = Callable[[Any], Any]

# How much of a traceback goes with the failure; the whole of it is in the attempt's log.
_TAIL_LINES = 12


def ray_spelled(train: Train) -> bool:
    """Say whether a function takes Ray's `config`; refuse one that takes anything but one argument.

    A function whose argument is called `config` (or `cfg`, `params`) is given the dict, any other
    the trial.
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
            f"(`def {name}(trial)`), or the config in Ray's spelling (`def {name}(config)`)."
        )
    return needed[0].name in ("config", "cfg", "params")


def live(channel: Channel, train: Train, ties: Ties) -> int:
    """Be one attempt; return the process's exit code."""
    begin = channel.receive(wait=True)
    if not isinstance(begin, Begin):
        return 0  # the driver needs nobody any more
    notice = Notice()
    try:
        _settle_in(begin, notice)
        trial = Trial(begin, channel, ties, notice)
    except CheckpointError as error:
        channel.send(Spoilt(note=str(error)))
        return 0
    except Unwind:
        return 0  # nobody needs it any more, and it has not begun
    try:
        _train(train, trial)
    except Unwind:
        return 0
    except BaseException as error:
        traceback.print_exc()
        channel.send(Failed(note=_tail(error), starved=ran_out(error)))
        return 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    if trial.silent:
        channel.send(Failed(note="the training function returned without one report"))
        return 1
    trial.finish()
    channel.send(Done())
    return 0


def _train(train: Train, trial: Trial) -> None:
    if ray_spelled(train):
        with running(trial):
            train(dict(trial.config))
    else:
        train(trial)


def _settle_in(begin: Begin, notice: Notice) -> None:
    log = os.open(begin.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.environ.update(begin.environ)
    torch = sys.modules.get("torch")
    if torch is not None:
        # Threads were decided when torch was loaded, before anybody knew this attempt's share.
        torch.set_num_threads(begin.threads)
    # A soft end: the function unwinds, wherever it is.
    signal.signal(signal.SIGTERM, notice.give)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    seed_everything(begin.seed)


def _tail(error: BaseException) -> str:
    """Return the end of a traceback, from where the user's own code begins."""
    told = traceback.TracebackException.from_exception(error)
    ours = os.path.dirname(__file__)
    while told.stack and told.stack[0].filename.startswith(ours):
        del told.stack[0]
    lines = "".join(told.format()).rstrip().splitlines()
    return "\n".join(lines[-_TAIL_LINES:])
