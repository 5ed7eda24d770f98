"""A running attempt as the process engine sees it: its processes, its order, and how it ends.

Knows the messages received from the attempt's workers and those sent to them. Most attempts have
one process; a wide one has a gang: the first process reports for all, and all end together. Does
not know the study.
"""

from __future__ import annotations

import math
import signal
from typing import TYPE_CHECKING

from paceline.core.events import Cause, Ended, Suggested
from paceline.worker.protocol import BestLoss, ReportJudged

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from paceline.core.decisions import Launch
    from paceline.engines.process.providers import WorkerChannel
    from paceline.worker.protocol import AnyMessage, FunctionFailed, ParamsUsed

# How much of an attempt's output goes into the note of its failure.
_TAIL_BYTES, _TAIL_LINES = 4096, 15
# How many BestLoss messages an attempt is sent between two of its reports.
_MAX_UNREAD = 16


class WorkerProcess:
    """One process of an attempt, by its rank."""

    __slots__ = ("attempt", "channel", "rank", "returned", "worker")

    def __init__(
        self, attempt: RunningAttempt, worker: int, channel: WorkerChannel, rank: int
    ) -> None:
        self.attempt = attempt
        self.worker = worker
        self.channel = channel
        self.rank = rank
        # The training function has returned.
        self.returned = False


class RunningAttempt:
    """An attempt and the worker processes that train it."""

    def __init__(
        self, launch: Launch, workers: Iterable[tuple[int, WorkerChannel]], log: Path
    ) -> None:
        self.id = launch.attempt
        self.trial = launch.trial
        self.slots = launch.slots
        self.width = launch.width
        self.log = log
        self.epoch = launch.start
        self.goal = launch.goal
        self.save_at = launch.save_at
        self.version = 0
        # Its goal was moved back to an epoch that it has reported: it trains the next one already.
        self.has_passed_goal = False
        # The epoch of its last checkpoint; the last epoch that was saved or could not be.
        self.saved = self.settled = launch.start
        # The processes that have not exited, by rank.
        self.processes = [
            WorkerProcess(self, worker, channel, rank)
            for rank, (worker, channel) in enumerate(workers)
        ]
        self._leader = self.processes[0].channel
        self._size = len(self.processes)
        # The best loss it knows; how often it was sent one in which epoch.
        self._best = math.inf
        self._sent_in, self._sent = -1, 0
        # The time of its last message, on the study's clock.
        self.heard_at = 0.0
        # Its processes were killed: their exit statuses have no meaning any more.
        self.killed = False
        # How it ended or will end; None: it runs.
        self.cause: Cause | None = None
        self.note = ""
        # The class of the exception that ended it, and its place.
        self._error = self._place = ""
        # The last epoch whose report the policy has decided about; the epoch about which the
        # worker asked and has no answer.
        self.judged = launch.start
        self.asked: int | None = None
        # What the first process reported about a missing peer.
        self._missing = ""

    @property
    def is_single(self) -> bool:
        """Whether it has one process, and not a gang."""
        return self._size == 1

    def send(self, message: AnyMessage) -> None:
        """Send a message to the first process, which passes on what the others must know."""
        self._leader.send(message)

    def send_best(self, loss: float) -> None:
        """Send the study's best loss, if the attempt does not know it yet.

        Limited for each epoch: the worker reads nothing before its epoch is over, and a full socket
        would block the driver. A worker that knows an older best saves once more than it has to.
        """
        if loss >= self._best:
            return
        self._best = loss
        if self.epoch != self._sent_in:
            self._sent_in, self._sent = self.epoch, 0
        if self._sent < _MAX_UNREAD:
            self._sent += 1
            self._leader.send(BestLoss(loss=loss))

    def answer(self) -> None:
        """Answer the worker's question, if the policy has decided about that report."""
        if self.asked is not None and self.asked <= self.judged:
            self.send(ReportJudged(epoch=self.asked, stops=self.cause is not None))
            self.asked = None

    def describe_params(self, used: ParamsUsed, at: float) -> Suggested:
        """Return what the training function has asked for, as an event."""
        return Suggested(
            at=at, attempt=self.id, trial=self.trial, params=used.params, domains=used.domains
        )

    def know_best(self, loss: float) -> None:
        """Note a best loss that the worker knows already."""
        self._best = min(self._best, loss)

    def lose_peer(self, rank: int) -> None:
        """Record that the first process lost a peer; the peer's exit may still give the reason."""
        if self.cause is None:
            self.cause = Cause.FAILED
            self._missing = f"process {rank} of its {self._size} left before the others"

    def fail(self, failed: FunctionFailed) -> None:
        """Note an error that a process raised; the first one counts."""
        if self.cause is None or (self._missing and not self.note):
            # On a shared slot another trial may have taken the memory.
            crowded = failed.out_of_memory and self.width < 1.0
            self.cause = Cause.CROWDED if crowded else Cause.FAILED
            self.note, self._error, self._place = failed.note, failed.kind, failed.place

    def lose(self, note: str) -> bool:
        """Note that a process is gone through no fault of its own, unless the end is known.

        That peers miss the process counts less than this. Return whether this is how it ends.
        """
        news = self.cause is None or bool(self._missing and not self.note)
        if news:
            self.cause, self.note = Cause.LOST, note
        return news

    def kill(self) -> None:
        """Note that the processes that are left will be killed."""
        if self.processes and self.cause is None:
            self.cause = Cause.FAILED
            self._missing = "one of its processes left before the others"
        self.killed = True

    def remove(self, process: WorkerProcess, status: int) -> None:
        """Remove a process that exited; derive from its status how the attempt ends."""
        self.processes.remove(process)
        if self.cause not in (None, Cause.FAILED) or self.killed:
            return
        if status < 0 and (self.cause is None or -status != signal.SIGTERM):
            # A signal is the first cause; that others lost a peer is its consequence.
            self._fail_by_exit(process, status)
        elif self.cause is None and (status or not process.rank):
            self._fail_by_exit(process, status)

    def describe_end(self, at: float) -> Ended:
        """Return how the attempt ended, once all its processes have exited."""
        cause, note = self.cause, self.note
        assert cause is not None
        if cause is not Cause.FAILED:
            return Ended(at=at, attempt=self.id, cause=cause, note=note)
        note = note or self._missing or self._read_tail()
        error, place = self._error, self._place
        return Ended(at=at, attempt=self.id, cause=cause, note=note, error=error, place=place)

    def _read_tail(self) -> str:
        """Return the last lines of the attempt's output."""
        try:
            with open(self.log, "rb") as file:
                file.seek(0, 2)
                file.seek(max(0, file.tell() - _TAIL_BYTES))
                text = file.read().decode(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.rstrip().splitlines()[-_TAIL_LINES:])

    def _fail_by_exit(self, process: WorkerProcess, status: int) -> None:
        how = (
            f"exited with code {status} and without an error, as after os._exit: return from the "
            "training function, or raise an error"
        )
        if status < 0:
            hint = ", perhaps for want of memory" if status == -signal.SIGKILL else ""
            how = f"was ended by {signal.Signals(-status).name}{hint}"
        one = self._size == 1
        subject = "its process" if one else f"process {process.rank} of its {self._size}"
        tail = self._read_tail()
        self.cause = Cause.FAILED
        if status == -signal.SIGKILL and self.width < 1.0:
            # The kernel kills where memory runs out: the trial is worth a try on a whole slot.
            self.cause = Cause.CROWDED
        self.note = f"{subject} {how}; its output ends:\n{tail}" if tail else f"{subject} {how}"
