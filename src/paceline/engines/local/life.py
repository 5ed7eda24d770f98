"""One attempt as the local engine sees it: a worker, its order, and how it will have ended.

Knows what was heard from a worker and what was said to it. Does not know slots or the study.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from paceline.core.events import Cause
from paceline.worker.channel import Best

if TYPE_CHECKING:
    from pathlib import Path

    from paceline.core.decisions import Launch
    from paceline.worker.channel import Channel

# How much of an attempt's output goes with its failure.
_TAIL_BYTES, _TAIL_LINES = 4096, 15
# How often it is told the study's best between two of its reports.
_UNHEARD = 16


class Life:
    """A worker that has become an attempt."""

    def __init__(self, launch: Launch, worker: int, channel: Channel, log: Path) -> None:
        self.id = launch.attempt
        self.trial = launch.trial
        self.slots = launch.slots
        self.worker = worker
        self.channel = channel
        self.log = log
        self.epoch = launch.start
        self.goal = launch.goal
        self.version = 0
        # The epoch in which it was last told the study's best, and how often.
        self._told_in, self._told = -1, 0
        # When it was last heard from, on the study's clock.
        self.heard_at = 0.0
        # How it has ended or will have ended, as far as is known; None: it lives.
        self.cause: Cause | None = None
        self.note = ""

    def tell_best(self, loss: float) -> None:
        """Tell it what is to be beaten; not without end, where it does not report meanwhile.

        It would not read it before its epoch is over, and a socket that is full holds up the
        driver. Who knows less saves once more than it has to.
        """
        if self.epoch != self._told_in:
            self._told_in, self._told = self.epoch, 0
        if self._told < _UNHEARD:
            self._told += 1
            self.channel.send(Best(loss=loss))

    def ended(self, status: int) -> tuple[Cause, str]:
        """Return how it ended, now that its process is gone with this status."""
        if self.cause is not None:
            note = self.note if self.cause is not Cause.FAILED else self.note or self.tail()
            return self.cause, note
        if status < 0:
            name = signal.Signals(-status).name
            hint = ", perhaps for want of memory" if -status == signal.SIGKILL else ""
            said = f"its process was ended by {name}{hint}"
        else:
            said = f"its process exited with code {status}"
        tail = self.tail()
        return Cause.FAILED, f"{said}; its output ends:\n{tail}" if tail else said

    def tail(self) -> str:
        """Return the end of what it has printed."""
        try:
            with open(self.log, "rb") as file:
                file.seek(0, 2)
                file.seek(max(0, file.tell() - _TAIL_BYTES))
                text = file.read().decode(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.rstrip().splitlines()[-_TAIL_LINES:])
