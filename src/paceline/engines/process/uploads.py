"""Checkpoints on their way to and from the storage, and the events that wait for them.

Knows the study's files and the background jobs: the checkpoints of one attempt are uploaded one
after the other, in order of their epochs. Without a storage nothing is uploaded and no event waits.
Attempts on nodes with a disk of their own upload and download there.
"""

from __future__ import annotations

import warnings
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from paceline.core import events as e
from paceline.core.errors import PacelineWarning
from paceline.core.events import Cause
from paceline.engines.process.providers import CheckpointPublished
from paceline.worker.protocol import NOT_WRITTEN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.values import AttemptId
    from paceline.core.views import EngineView
    from paceline.engines.process.attempt import RunningAttempt, WorkerProcess
    from paceline.engines.process.background import BackgroundJobs
    from paceline.engines.process.checkpoint_files import CheckpointFiles
    from paceline.engines.process.providers import CheckpointKey, NodeFiles


_SUPERSEDED = "a later one was saved before this could be uploaded"
# How many uploads run at a time.
_UPLOADERS = 4


class Downloaded(NamedTuple):
    """The result of fetching a checkpoint for an attempt."""

    attempt: AttemptId
    name: CheckpointKey
    note: str


class _Upload(NamedTuple):
    """A checkpoint to upload; `ordered`: a decision asked for exactly this one."""

    saved: e.Saved
    ordered: bool


class _Barrier:
    """Holds the events after it back until the checkpoint of this epoch is settled."""

    __slots__ = ("epoch",)

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch


class _AttemptQueue:
    """The pending uploads of one attempt, and the events that wait for them."""

    def __init__(self) -> None:
        self.held: deque[e.AnyEvent | _Barrier] = deque()
        # In order of their epochs; without the one that is being uploaded.
        self.pending: deque[_Upload] = deque()
        self.busy = False
        self.ended: e.Ended | None = None

    def barrier(self, epoch: int) -> _Barrier | None:
        barriers = (each for each in self.held if isinstance(each, _Barrier))
        return next((barrier for barrier in barriers if barrier.epoch == epoch), None)


class Uploads:
    """Uploads and downloads checkpoints; releases events once their checkpoints are published."""

    def __init__(self, files: CheckpointFiles, jobs: BackgroundJobs) -> None:
        self._files = files
        self._jobs = jobs
        # One warning is enough: the log has all of them.
        self._warned = False
        self._queues: dict[AttemptId, _AttemptQueue] = {}
        # The uploads that are under way.
        self._saved: dict[CheckpointKey, e.Saved] = {}
        # The node files of each process of an attempt, None for this machine's; the first process
        # writes the checkpoints. And all nodes that may hold copies.
        self._node_files: dict[AttemptId, Sequence[NodeFiles | None]] = {}
        self._nodes: set[NodeFiles] = set()

    def start(
        self,
        attempt: RunningAttempt,
        node_files: Sequence[NodeFiles | None],
        source: CheckpointKey | None,
    ) -> None:
        """Note where the processes of a new attempt have their files."""
        self._node_files[attempt.id] = node_files
        for process, node in zip(attempt.processes, node_files, strict=True):
            if node is not None:
                self._nodes.add(node)
                node.start_attempt(process.worker, attempt.id, source, attempt.log)

    def is_local(self, process: WorkerProcess) -> bool:
        """Say whether a process has its files on this machine."""
        return self._node_files[process.attempt.id][process.rank] is None

    def _warn(self, note: str) -> None:
        """Warn of the first checkpoint that is not saved."""
        if not self._warned:
            self._warned = True
            warnings.warn(f"{note} Training goes on without it.", PacelineWarning, stacklevel=2)

    def accept(self, event: e.Reported | e.Missed | e.Ended) -> Sequence[e.AnyEvent]:
        """Return the event, unless it has to wait for uploads before it."""
        if isinstance(event, e.Missed) and event.note.startswith(NOT_WRITTEN):
            reason = event.note.removeprefix(NOT_WRITTEN)
            self._warn(f"a checkpoint cannot be written to {self._files.checkpoints}{reason}.")
        queue = self._queues.get(event.attempt)
        if queue is None:
            return [event]
        if isinstance(event, e.Ended):
            queue.ended = event
        elif queue.held:
            queue.held.append(event)
        else:
            return [event]
        return []

    def accept_checkpoint(
        self, saved: e.Saved, report: e.Reported | None, *, ordered: bool
    ) -> Sequence[e.AnyEvent]:
        """Upload a checkpoint that a worker has written; return the events that need not wait.

        `report` waits for the upload of its checkpoint.
        """
        if self._files.storage is None:
            return [saved] if report is None else [report, saved]
        events: Sequence[e.AnyEvent] = ()
        queue = self._queues.setdefault(saved.attempt, _AttemptQueue())
        if queue.pending and not queue.pending[-1].ordered:
            old = queue.pending.pop().saved
            barrier = queue.barrier(old.epoch)
            if barrier is not None:
                # The events that waited for the earlier checkpoint are as safe with this one.
                barrier.epoch = saved.epoch
            events = self.accept(
                e.Missed(at=saved.at, attempt=old.attempt, epoch=old.epoch, note=_SUPERSEDED)
            )
        if report is not None:
            if queue.barrier(saved.epoch) is None:
                queue.held.append(_Barrier(saved.epoch))
            queue.held.append(report)
        queue.pending.append(_Upload(saved, ordered))
        if not queue.busy:
            self._upload_next(queue)
        return events

    def finish(self, published: CheckpointPublished, at: float) -> Sequence[e.AnyEvent]:
        """Take the result of an upload; return the events that waited for it, at this time."""
        name, note = published.name, published.note
        saved = self._saved.pop(name)
        if not note:
            self._files.add_cached(name)
        else:
            self._warn(note)
        queue = self._queues[saved.attempt]
        barrier = queue.barrier(saved.epoch)
        if barrier is not None:
            queue.held.remove(barrier)
        events: list[e.AnyEvent] = []
        while queue.held and not isinstance(queue.held[0], _Barrier):
            events.append(queue.held.popleft())  # type: ignore[arg-type]
        # Uploads end in order of their epochs: the report of this epoch stands before it.
        lost = e.Missed(at=at, attempt=saved.attempt, epoch=saved.epoch, note=note)
        events.append(lost if note else saved)
        queue.busy = False
        if queue.pending:
            self._upload_next(queue)
        else:
            del self._queues[saved.attempt]
            if queue.ended is not None:
                events.append(queue.ended)
        return [replace(event, at=at) for event in events]

    def fetch(self, attempt: AttemptId, name: CheckpointKey) -> None:
        """Download a checkpoint for an attempt that waits for it."""
        job = self._files.fetch_job(name)
        self._jobs.submit("downloads", lambda: Downloaded(attempt, name, job()))

    def fetched(self, downloaded: Downloaded) -> None:
        """Count a downloaded checkpoint as cached."""
        if not downloaded.note:
            self._files.add_cached(downloaded.name)

    def drop(self, name: CheckpointKey) -> None:
        """Delete a checkpoint on this machine, on all nodes, and in the storage."""
        self._files.drop(name)
        for node in self._nodes:
            node.drop(name)
        if self._files.storage is not None:
            self._jobs.submit(_uploader(name[0]), self._files.delete_job(name))

    def clear(self, ended: e.Ended, study: EngineView) -> None:
        """Delete the checkpoints of an ended attempt that the study does not know."""
        # At a regular end the study knows every checkpoint, except those superseded in an upload.
        complete = ended.cause in (Cause.GOAL, Cause.FINISHED) and self._files.storage is None
        self._files.release(ended.attempt)
        if not complete:
            self._files.clear(ended.attempt, lambda name: study.checkpoint_digest(name) is not None)
        for node in set(self._node_files.pop(ended.attempt, ())):
            if node is not None:
                node.clear(ended.attempt)

    def _upload_next(self, queue: _AttemptQueue) -> None:
        queue.busy = True
        saved = queue.pending.popleft().saved
        name = (saved.attempt, saved.epoch)
        self._saved[name] = saved
        node, *_ = self._node_files.get(saved.attempt, (None,))
        if node is not None:
            node.publish(name)
            return
        job = self._files.publish_job(name)
        self._jobs.submit(_uploader(saved.attempt), lambda: CheckpointPublished(name, job()))


def _uploader(attempt: AttemptId) -> str:
    """Return the kind of job that uploads an attempt's checkpoints and deletes them."""
    return f"uploads-{attempt % _UPLOADERS}"
