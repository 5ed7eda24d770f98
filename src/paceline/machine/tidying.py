"""Which checkpoints nobody needs any more, and which to give up where they take too much.

Reads the study; drops nothing itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.values import NO_LOSS, Status
from paceline.plan.tree import known_on, node_of, saved_on

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from paceline.machine.files import Name
    from paceline.machine.records import Trial
    from paceline.machine.state import StudyState


def superfluous(state: StudyState) -> list[Name]:
    """Return the checkpoints of suspected trials that nobody needs, and forget the suspicion."""
    files = state.files
    suspects = list(files.suspects.values())
    files.suspects.clear()
    names = [name for trial in suspects for name in files.of(trial) if name[0] >= 0]
    # Whoever repeats what was adopted may come as long as anybody may. Then it is like any other;
    # but those who need it are not those whose it is.
    names += (name for name in files.files if name[0] < 0 and state.closed)
    if not names:
        return []
    # Where prefixes are shared, anybody may need anybody's.
    witnesses = state.trials if state.spec.share else suspects
    needed = set(_needed(state, witnesses))
    more = _may_begin_alike(state)
    return [
        name
        for name in names
        if name not in needed and not (more and _branches_at(files.files[name].trial, name[1]))
    ]


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


def _may_begin_alike(state: StudyState) -> bool:
    """Say whether trials may still come that begin like one there is."""
    # Where no two have begun alike, as with rates drawn from a range, none will.
    paths = len(state.trials) + len(state.adopted.trials)
    alike = len(state.tree.roots) < max(2, paths)
    return state.spec.share and not state.closed and alike


def _branches_at(trial: Trial, epoch: int) -> bool:
    """Say whether trials part after this epoch of a trial's path, or are likely to."""
    if not 0 < epoch < trial.spec.epochs:
        return False
    node = node_of(trial.leaf, epoch)
    if node.end == epoch:
        return True
    # They part where a setting changes that has held for a while. Of values that change in every
    # epoch each would be a branch: too many to keep.
    before = node.start
    for until, _ in node.stretches:
        if until >= epoch:
            return until == epoch and until - before > 1
        before = until
    return False


def _best_name(state: StudyState) -> Name | None:
    if state.best is None or state.best_loss == NO_LOSS:
        return None
    attempt = (node_of(state.best.leaf, state.best_epoch).saves or {}).get(state.best_epoch)
    return None if attempt is None else (attempt, state.best_epoch)
