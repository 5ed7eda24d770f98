"""Which checkpoints are needed and by whom, and which to give up where they take too much.

Reads the study; drops nothing itself.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from paceline.core.values import NO_LOSS, Status
from paceline.plan.tree import known_on, node_of, saved_on, way

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from paceline.machine.checkpoints import Name
    from paceline.machine.state import StudyState
    from paceline.machine.trial_state import Trial


class Need(StrEnum):
    """What a checkpoint is kept for; the first two are never given up."""

    BEST = "the study's best"
    START = "an attempt is about to start from it"
    GO_ON = "a trial goes on from it"
    RESULT = "a trial's result"
    BRANCH = "trials may come that branch there"
    REPEAT = "trials may come that repeat what was taken over"


# What somebody stands on at this moment.
_PINNED = (Need.BEST, Need.START)


def needs(
    state: StudyState, trials: Iterable[Trial], *, over: bool
) -> Iterator[tuple[Name, Need, Trial]]:
    """Yield what these trials need, and the study as a whole; `over`: nobody goes on any more."""
    for name, best in _bests(state):
        yield name, Need.BEST, best
    if not over:
        for attempt in state.attempts.values():
            if attempt.source is not None and attempt.epoch == attempt.start:
                yield (attempt.source, attempt.start), Need.START, attempt.trial
    results = _results(state, over=over)
    for trial in trials:
        goes_on = trial.alive and not over
        if goes_on or results is None or trial.id in results:
            saved = saved_on(trial.leaf, known_on(trial.leaf))
            if saved is not None and (goes_on or _is_result(trial, over=over)):
                # Whoever has saved to move would save, move and train the same again, for ever.
                goes = Need.START if trial.id in state.moving else Need.GO_ON
                yield (saved[1], saved[0]), goes if goes_on else Need.RESULT, trial
        marked = saved_on(trial.leaf, trial.mark) if goes_on and trial.mark else None
        if marked is not None:
            yield (marked[1], marked[0]), Need.BRANCH, trial


def superfluous(state: StudyState, *, over: bool = False) -> list[Name]:
    """Return the checkpoints of suspected trials that nobody needs, and forget the suspicion."""
    files = state.files
    if state.spec.saves.best is not None:
        files.suspect_all()  # who finishes better takes another's place among the best
    suspects = list(files.suspects.values())
    files.suspects.clear()
    names = [name for trial in suspects for name in files.of(trial) if name[0] >= 0]
    # Whoever repeats what was adopted may come as long as anybody may. Then it is like any other;
    # but those who need it are not those whose it is.
    repeatable = not over and may_come(state)
    names += (name for name in files.files if name[0] < 0 and not repeatable)
    if not names:
        return []
    # Where prefixes are shared, anybody may need anybody's.
    witnesses = state.trials if state.spec.share else suspects
    needed = {name for name, _, _ in needs(state, witnesses, over=over)}
    more = not over and may_begin_alike(state)
    return [
        name
        for name in names
        if name not in needed and not (more and branches_at(files.files[name].trial, name[1]))
    ]


def beyond_budget(state: StudyState, *, over: bool = False) -> list[Name]:
    """Return what to give up so that the rest fits: what costs the study least for its bytes.

    That is the slot time of training it again from the checkpoint before it. Nobody trains a
    finished trial's result again: these cost nothing, the worst first, but for as many of the best
    as the study is told to keep.
    """
    limit = state.spec.saves.bytes
    files = state.files
    if limit is None or files.bytes <= limit:
        return []
    found = list(needs(state, state.trials, over=over))
    pinned = {name for name, need, _ in found if need in _PINNED}
    asked = {name for name, need, _ in found if need is Need.RESULT}
    ahead = {node for trial in state.trials if trial.alive for node in way(trial.leaf)}
    more = not over and may_begin_alike(state)
    wanted: set[Name] = set()
    for name, file in files.files.items():
        node = node_of(file.trial.leaf, max(name[1], 1))
        kept = state.spec.saves.best is not None and name in asked
        again = node in ahead or (more and branches_at(file.trial, name[1]))
        again = again or (name[0] < 0 and may_come(state))
        if kept or (again and not over):
            wanted.add(name)
    left = files.bytes
    given: dict[Name, None] = {}

    def price(name: Name) -> tuple[float, float, Name]:
        file = files.files[name]
        if name not in wanted:
            return 0.0, -file.trial.best_loss, name
        return slot_seconds(state, name, given) / max(file.bytes, 1), 0.0, name

    rest = files.files.keys() - pinned
    while left > limit and rest:
        cheapest = min(rest, key=price)
        rest.remove(cheapest)
        given[cheapest] = None
        left -= files.files[cheapest].bytes
    return list(given)


def slot_seconds(state: StudyState, name: Name, without: Collection[Name] = ()) -> float:
    """Return what it takes to train a checkpoint again from the one before it, as was measured."""
    _, _, trial, width = state.files.files[name]
    epoch = name[1]
    before = 0
    for node in way(trial.leaf):
        saves = (node.saves or {}).items()
        earlier = [at for at, by in saves if at < epoch and (by, at) not in without]
        if earlier:
            before = max(earlier)
            break
    seconds = 0.0
    for node in way(trial.leaf):
        first, last = max(before, node.start), min(epoch, node.known)
        seconds += sum(node.seconds[first - node.start : max(first, last) - node.start])
    return seconds * width


def may_begin_alike(state: StudyState) -> bool:
    """Say whether trials may still come that begin like one there is."""
    # Where no two have begun alike, as with rates drawn from a range, none will.
    paths = len(state.trials) + len(state.adopted.trials)
    alike = len(state.tree.roots) < max(2, paths)
    return state.spec.share and may_come(state) and alike


def may_come(state: StudyState) -> bool:
    """Say whether there may be more trials."""
    # An outside tuner's configs come without the generator.
    return state.spec.standing or not state.closed


def branches_at(trial: Trial, epoch: int) -> bool:
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


def _results(state: StudyState, *, over: bool) -> set[int] | None:
    """Return whose last checkpoints are kept as results; None: everybody's who has one."""
    most = state.spec.saves.best
    if most is None:
        return None
    done = [trial for trial in state.trials if _is_result(trial, over=over)]
    done.sort(key=lambda trial: (trial.best_loss, trial.id))
    return {trial.id for trial in done[:most]}


def _is_result(trial: Trial, *, over: bool) -> bool:
    """Say whether a trial's last checkpoint is a result: a stopped one's is nothing."""
    # Whom the study's end found alive has come as far as it ever will.
    return trial.ended is Status.FINISHED or (over and trial.alive)


def _bests(state: StudyState) -> Iterator[tuple[Name, Trial]]:
    """Yield the checkpoint of the best; of several studies driven as one, of each one's."""
    for view in state.groups or (state,):
        if view.best is not None and view.best_loss < NO_LOSS:
            epoch = view.best_epoch
            attempt = (node_of(view.best.leaf, epoch).saves or {}).get(epoch)
            if attempt is not None:
                yield (attempt, epoch), view.best
