"""Checkpoints that lie on a disk: what they take, and which of them nobody needs any more.

Knows names (attempt, epoch), sizes, and the trials they belong to. Where checkpoints are not
collected it knows nothing and costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from paceline.core.values import NO_LOSS, Status
from paceline.plan.tree import known_on, node_of, saved_on

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from paceline.core.values import AttemptId
    from paceline.machine.records import Trial
    from paceline.machine.state import StudyState

Name: TypeAlias = "tuple[AttemptId, int]"


class File(NamedTuple):
    """A checkpoint: its size, its digest, and the trial whose path it lies on."""

    bytes: int
    digest: str
    trial: Trial


class Files:
    """All checkpoints there are."""

    def __init__(self) -> None:
        self.files: dict[Name, File] = {}
        self.bytes = 0
        # Trials some of whose checkpoints may have become superfluous.
        self.suspects: dict[int, Trial] = {}
        self._of: dict[int, list[Name]] = {}

    def add(self, name: Name, file: File) -> None:
        """A checkpoint was saved."""
        self.drop(name)
        self.files[name] = file
        self.bytes += file.bytes
        self._of.setdefault(file.trial.id, []).append(name)
        self.suspects[file.trial.id] = file.trial

    def drop(self, name: Name) -> None:
        """A checkpoint is gone."""
        file = self.files.pop(name, None)
        if file is not None:
            self.bytes -= file.bytes
            self._of[file.trial.id].remove(name)
            node = node_of(file.trial.leaf, max(name[1], 1))
            if node.saves is not None and node.saves.get(name[1]) == name[0]:
                del node.saves[name[1]]

    def of(self, trial: Trial) -> list[Name]:
        """Return the checkpoints that were saved on a trial's behalf."""
        return self._of.get(trial.id, [])


def superfluous(state: StudyState) -> list[Name]:
    """Return the checkpoints of suspected trials that nobody needs, and forget the suspicion."""
    files = state.files
    suspects = list(files.suspects.values())
    files.suspects.clear()
    names = [name for trial in suspects for name in files.of(trial)]
    if not names:
        return []
    # Where prefixes are shared, anybody may need anybody's.
    witnesses = state.trials if state.spec.share else suspects
    needed = set(_needed(state, witnesses))
    return [name for name in names if name not in needed]


def beyond_budget(state: StudyState) -> list[Name]:
    """Return what to give up so that the rest fits: finished trials first, the worst first."""
    limit = state.spec.saves.bytes
    files = state.files
    if limit is None or files.bytes <= limit:
        return []
    best = _best_name(state)
    order = sorted(
        (trial.ended is None, -trial.best_loss, trial.id, name)
        for name, (_, _, trial) in files.files.items()
        if name != best and trial.status is not Status.RUNNING
    )
    given: list[Name] = []
    left = files.bytes
    for *_, name in order:
        if left <= limit:
            break
        left -= files.files[name].bytes
        given.append(name)
    return given


def _needed(state: StudyState, trials: Iterable[Trial]) -> Iterator[Name]:
    best = _best_name(state)
    if best is not None:
        yield best
    for trial in trials:
        # A finished trial's last checkpoint is its result; a stopped one's is nothing.
        if trial.alive or trial.ended is Status.FINISHED:
            saved = saved_on(trial.leaf, known_on(trial.leaf))
            if saved is not None:
                yield saved[1], saved[0]


def _best_name(state: StudyState) -> Name | None:
    if state.best is None or state.best_loss == NO_LOSS:
        return None
    attempt = (node_of(state.best.leaf, state.best_epoch).saves or {}).get(state.best_epoch)
    return None if attempt is None else (attempt, state.best_epoch)
