"""Garbage collection of checkpoints: which are needed and why, and which to drop for space.

Reads the study; drops nothing itself.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from paceline.core.values import NO_LOSS, Status
from paceline.plan.tree import find_checkpoint, find_node, last_known_epoch, path_to_root

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from paceline.machine.checkpoints import CheckpointName
    from paceline.machine.state import StudyState
    from paceline.machine.trial_state import TrialState


class KeepReason(StrEnum):
    """Why a checkpoint is kept; the first two are never dropped for space."""

    BEST = "the study's best"
    START = "an attempt is about to start from it"
    GO_ON = "a trial goes on from it"
    RESULT = "a trial's result"
    BRANCH = "trials may come that branch there"
    REPEAT = "trials may come that repeat what was taken over"


# Never dropped for space.
_PINNED = (KeepReason.BEST, KeepReason.START)


def list_needed(
    state: StudyState, trials: Iterable[TrialState], *, over: bool
) -> Iterator[tuple[CheckpointName, KeepReason, TrialState]]:
    """Yield the checkpoints that these trials and the study need; `over`: no trial goes on."""
    for name, best in _bests(state):
        yield name, KeepReason.BEST, best
    if not over:
        for attempt in state.attempts.values():
            if attempt.source is not None and attempt.epoch == attempt.start:
                yield (attempt.source, attempt.start), KeepReason.START, attempt.trial
    results = _results(state, over=over)
    for trial in trials:
        goes_on = trial.alive and not over
        if goes_on or results is None or trial.id in results:
            saved = find_checkpoint(trial.leaf, last_known_epoch(trial.leaf))
            if saved is not None and (goes_on or _is_result(trial, over=over)):
                # A trial that saved to move would otherwise train the same epochs again for ever.
                goes = KeepReason.START if trial.id in state.moving else KeepReason.GO_ON
                yield (saved[1], saved[0]), goes if goes_on else KeepReason.RESULT, trial
        marked = (
            find_checkpoint(trial.leaf, trial.fork_epoch) if goes_on and trial.fork_epoch else None
        )
        if marked is not None:
            yield (marked[1], marked[0]), KeepReason.BRANCH, trial


def find_superfluous(state: StudyState, *, over: bool = False) -> list[CheckpointName]:
    """Return the checkpoints that are not needed, of the trials to recheck."""
    index = state.checkpoints
    if state.spec.saves.best is not None:
        index.recheck_all()  # a trial that finishes may displace one of the best
    rechecked = list(index.to_recheck.values())
    index.to_recheck.clear()
    names = [name for trial in rechecked for name in index.list_names(trial) if name[0] >= 0]
    # A trial that repeats a reused prefix may come as long as trials may come at all. The trials
    # that need a reused checkpoint are not the one it belongs to.
    repeatable = not over and may_get_trials(state)
    names += (name for name in index.records if name[0] < 0 and not repeatable)
    if not names:
        return []
    # If prefixes are shared, any trial may need the checkpoint of any other.
    witnesses = state.trials if state.spec.share else rechecked
    needed = {name for name, _, _ in list_needed(state, witnesses, over=over)}
    more = not over and may_share_prefixes(state)
    return [
        name
        for name in names
        if name not in needed
        and not (more and is_branch(state, index.records[name].trial, name[1]))
    ]


def find_over_budget(state: StudyState, *, over: bool = False) -> list[CheckpointName]:
    """Return the checkpoints to drop so that the rest fits: those that cost least per byte.

    The cost is the slot time of training again from the checkpoint before it. A finished trial is
    not trained again: its checkpoint costs nothing, the worst trial's first, except for the best
    ones that the study is told to keep.
    """
    limit = state.spec.saves.bytes
    index = state.checkpoints
    if limit is None or index.bytes <= limit:
        return []
    found = list(list_needed(state, state.trials, over=over))
    pinned = {name for name, need, _ in found if need in _PINNED}
    asked = {name for name, need, _ in found if need is KeepReason.RESULT}
    ahead = {node for trial in state.trials if trial.alive for node in path_to_root(trial.leaf)}
    more = not over and may_share_prefixes(state)
    wanted: set[CheckpointName] = set()
    for name, record in index.records.items():
        node = find_node(record.trial.leaf, max(name[1], 1))
        kept = state.spec.saves.best is not None and name in asked
        again = node in ahead or (more and is_branch(state, record.trial, name[1]))
        again = again or (name[0] < 0 and may_get_trials(state))
        if kept or (again and not over):
            wanted.add(name)
    left = index.bytes
    given: dict[CheckpointName, None] = {}

    def price(name: CheckpointName) -> tuple[float, float, CheckpointName]:
        record = index.records[name]
        if name not in wanted:
            return 0.0, -record.trial.best_loss, name
        return price_in_slot_seconds(state, name, given) / max(record.bytes, 1), 0.0, name

    rest = index.records.keys() - pinned
    while left > limit and rest:
        cheapest = min(rest, key=price)
        rest.remove(cheapest)
        given[cheapest] = None
        left -= index.records[cheapest].bytes
    return list(given)


def price_in_slot_seconds(
    state: StudyState, name: CheckpointName, without: Collection[CheckpointName] = ()
) -> float:
    """Return the measured slot time to train a checkpoint again from the one before it."""
    record, epoch = state.checkpoints.records[name], name[1]
    trial, width = record.trial, record.width
    before = 0
    for node in path_to_root(trial.leaf):
        saves = (node.checkpoints or {}).items()
        earlier = [at for at, by in saves if at < epoch and (by, at) not in without]
        if earlier:
            before = max(earlier)
            break
    seconds = 0.0
    for node in path_to_root(trial.leaf):
        first, last = max(before, node.start), min(epoch, node.known)
        seconds += sum(node.seconds[first - node.start : max(first, last) - node.start])
    return seconds * width


def may_share_prefixes(state: StudyState) -> bool:
    """Say whether trials may still come that share a prefix with an existing one."""
    return state.spec.share and may_get_trials(state)


def may_get_trials(state: StudyState) -> bool:
    """Say whether more trials may come."""
    # An outside tuner submits configs without the generator.
    return state.spec.standing or not state.closed


def is_branch(state: StudyState, trial: TrialState, epoch: int) -> bool:
    """Say whether trials branch after this epoch of a trial's path, or are likely to."""
    if not 0 < epoch < trial.spec.epochs:
        return False
    closed = not may_get_trials(state)
    return state.assignment.branch_saves.is_likely(trial, epoch, closed=closed)


def _results(state: StudyState, *, over: bool) -> set[int] | None:
    """Return the trials whose last checkpoints are kept as results; None: all."""
    most = state.spec.saves.best
    if most is None:
        return None
    done = [trial for trial in state.trials if _is_result(trial, over=over)]
    done.sort(key=lambda trial: (trial.best_loss, trial.id))
    return {trial.id for trial in done[:most]}


def _is_result(trial: TrialState, *, over: bool) -> bool:
    """Say whether a trial's last checkpoint is a result: that of a stopped trial is not."""
    # A trial that is alive when the study ends will not go on.
    return trial.ended is Status.FINISHED or (over and trial.alive)


def _bests(state: StudyState) -> Iterator[tuple[CheckpointName, TrialState]]:
    """Yield the checkpoint of the best trial of each study."""
    for group in state.groups:
        if group.best is not None and group.best_loss < NO_LOSS:
            epoch = group.best_epoch
            attempt = (find_node(group.best.leaf, epoch).checkpoints or {}).get(epoch)
            if attempt is not None:
                yield (attempt, epoch), group.best
