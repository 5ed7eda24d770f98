"""The scheduler: fills free slots with the trials that the policy picks, and moves running ones.

Asks the policy for a pick, the generator for a config and the allocator for a width, in this order,
then launches. Ends a study in which nothing is left to run.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from paceline.core import decisions as d
from paceline.core.errors import SpecError
from paceline.core.text import format_count
from paceline.machine.assignment import plan_stage
from paceline.machine.checkpoint_gc import may_get_trials
from paceline.machine.requirements import explain_unmet_needs, find_least_width
from paceline.plan.settings import canonicalize

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from paceline.core.ports import Demand, Generator, Pick
    from paceline.core.values import Config, SlotId, TrialId
    from paceline.machine.decider import Decider, Parts
    from paceline.machine.groups import GroupState
    from paceline.machine.state import StudyState
    from paceline.machine.trial_state import AttemptState, TrialState


# A wider attempt must get this much further in the remaining time.
MARGIN = 1.1
# An attempt keeps its width for at least this many times the cost of a move.
REST = 10.0


def remaining_s(attempt: AttemptState, state: StudyState) -> float:
    """Return the seconds to the attempt's goal at its width, or to the deadline if sooner."""
    times, trial = state.epoch_times, attempt.trial
    goal = (attempt.goal - attempt.epoch) * times.epoch_s(trial.id) / times.speed(attempt.width)
    return goal if state.deadline_s is None else min(goal, state.deadline_s - state.now)


def may_move(attempt: AttemptState, state: StudyState) -> bool:
    """Say whether the attempt has had its width long enough to move again."""
    if attempt.is_halting or attempt.must_yield or attempt.epoch == attempt.start:
        return False
    return state.now - attempt.launched_at >= REST * state.epoch_times.move_s


def explain_widening(attempt: AttemptState, width: float, state: StudyState) -> str | None:
    """Return why widening pays; None if it does not."""
    times = state.epoch_times
    left, move = remaining_s(attempt, state), times.move_s
    now, then = times.speed(attempt.width), times.speed(width)
    if then * (left - move) <= MARGIN * now * left:
        return None
    return (
        f"width {width:g} instead of {attempt.width:g} is {then / now:.3g} times as fast, for the "
        f"{left:.4g} s it has left; a move costs {move:.3g} s"
    )


def explain_narrowing(
    attempt: AttemptState, width: float, state: StudyState, beneficiary: str
) -> str | None:
    """Return why narrowing pays; None if the attempt is almost done."""
    left, move = remaining_s(attempt, state), state.epoch_times.move_s
    if left <= move:
        return None
    return (
        f"width {width:g} instead of {attempt.width:g} makes room for {beneficiary}; it has "
        f"{left:.4g} s left, and a move costs {move:.3g} s"
    )


def count_spare_slots(state: StudyState) -> int:
    """Return the number of idle slots that no moving trial is about to take."""
    taken = 0
    for number, width in state.moving.items():
        attempt = state.trials[number].attempt
        taken += int(width) if attempt is None else count_extra_slots(attempt, width, state)
    return len(state.slots.idle) - taken


def count_extra_slots(attempt: AttemptState, width: float, state: StudyState) -> int:
    """Return the number of idle slots that a move to this width takes; negative: it frees some."""
    if width < 1.0:
        return -int(attempt.width)  # its share fits on any slot that is free
    if attempt.width >= 1.0:
        return int(width) - int(attempt.width)
    (slot,) = attempt.slots
    alone = state.slots.held[slot] <= attempt.width + 1e-9
    return int(width) - alone


# A generator that proposes only known configs costs nothing and would never end.
_MOST_IDLE_OPENS = 1000
_MOVED = "it goes on at another width"
_NEEDED = "its next epochs need another width"


class Scheduler:
    """Fills free slots after every event."""

    def __init__(self, decider: Decider, parts: Parts) -> None:
        self._decider = decider
        self._state = decider.state
        self._parts = parts.each
        self._allocator = parts.allocator

    def fill(self) -> None:
        """Start the trials that the policy picks; give slots that remain to running trials.

        A free slot goes first to a trial that gave one up to move; then to the policy's pick, a
        paused trial or a new one, at the width that the allocator gives; then, if the allocator
        says so and the move pays, to a wider attempt. Without room for a pick, wide attempts may
        have to become narrower.
        """
        state = self._state
        slots = state.slots
        launched, held, pick = False, False, None
        if state.moving:
            launched = self._launch_moved()
            # No other trial starts meanwhile: the moved one might wait for its slots for ever.
            held = any(number in state.ready for number in state.moving)
        while not (held or state.end) and (slots.idle or slots.partial or state.elastic):
            group, pick = self._ask_policies()
            room = slots.idle or slots.partial
            if pick is None or not room or not self._start(group, pick):
                break
            launched = True
        # The slot that an awaited proposal is for is not left over.
        if state.elastic and not (launched or state.end or state.pending.awaited):
            self._resize(coming=pick is not None and pick.trial is None)
        if slots.nodes and slots.idle and not state.end:
            self._give_back()

    def _launch_moved(self) -> bool:
        """Launch the trials that have saved to change their width."""
        state = self._state
        launched = False
        for number in [number for number in state.moving if number in state.ready]:
            why = _MOVED if state.moving[number] else _NEEDED
            launched = self._launch(state.trials[number], why) or launched
        return launched

    def _ask_policies(self) -> tuple[GroupState, Pick | None]:
        """Ask for a pick: of several studies, the first in turn that wants a slot."""
        state = self._state
        if state.together is None:
            return state, self._pick(state)
        room = state.free
        for group in state.together.order_by_use(state.now):
            pick = self._pick(group)
            state.new = group.new
            if pick is not None:
                return group, pick
            if room > 0 and group.is_quiet:
                self._decider.end_group(group, *self._explain_quiet(group))
            # A slot for which a proposal is awaited is not free for the next study.
            awaited = state.pending.count_awaited(group.index)
            room -= awaited
            if awaited and room <= 0:
                break
        return state, None

    def _pick(self, group: GroupState) -> Pick | None:
        policy, generator = self._parts[group.index]
        most = policy.admit(group)
        wanted = not group.closed and (most is None or group.live < most)
        if wanted:
            self._close_if_spent(group)
        group.new = wanted and not group.closed and self._has_config(group, generator)
        return policy.next(group)

    def _close_if_spent(self, group: GroupState) -> None:
        limit = group.spec.budget.trials
        if limit is not None and len(group.trials) >= limit:
            why = f"all {limit} trials of the budget are open"
        elif group.idle_opens >= _MOST_IDLE_OPENS + len(group.reused.trials):
            rest = ", or need more slots than there are" if group.spec.fit else ""
            why = f"the last {group.idle_opens} configs were all known already{rest}"
        else:
            return
        self._decider.decide(d.Close(group=group.index, why=why))

    def _has_config(self, group: GroupState, generator: Generator) -> bool:
        """Say whether a config is at hand; ask for one if that takes time."""
        index, pending = group.index, self._state.pending
        if generator.pure or pending.next_offer(index) is not None:
            return True
        # One request for each slot that could use the answer; of several studies each has one on
        # its way at a time, so that none takes all slots.
        most = group.free if group is self._state else min(group.free, 1.0)
        while pending.count_awaited(index) < most:
            asked, why = pending.count_proposals(index), "a free slot wants a new trial"
            self._decider.decide(d.AskProposal(number=asked, group=index, why=why))
        return False

    def _start(self, group: GroupState, pick: Pick) -> bool:
        """Carry a pick out. False: nothing more fits now."""
        state, decider = self._state, self._decider
        until, epochs = pick.until, state.spec.epochs
        if until > epochs:
            until = epochs
        if pick.trial is None:
            config = self._take_config(group)
            if config is None:
                return True  # closed now: ask the policy again
            if until < 1:
                raise SpecError(
                    f"policy {group.spec.policy} gave a new trial the goal {until}: "
                    "must be at least 1."
                )
            trial = decider.open_trial(config, until, pick.why, group.index, label=pick.label)
        else:
            trial = state.trials[pick.trial]
            if trial.alive and until > max(trial.goal, trial.epoch):
                go = d.Go(trial=trial.id, until=until, label=pick.label, why=pick.why)
                decider.decide(go)
            elif trial.id not in state.ready:
                return False  # a policy that picks such a trial would never stop
        if trial.leaf.losses or trial.leaf.parent is not None:
            decider.credit(trial)
        if state.end is not None or trial.id not in state.ready:
            return True
        return self._launch(trial, pick.why)

    def _take_config(self, group: GroupState) -> Config | None:
        config = self._state.pending.next_offer(group.index)  # removed by the Open that follows
        if config is None:
            config = self._parts[group.index][1].propose(group.taken, group)
        if config is None:
            why = "the generator has no more configs"
            self._decider.decide(d.Close(group=group.index, why=why))
            return None
        return canonicalize(config)

    def _launch(self, trial: TrialState, why: str) -> bool:
        state = self._state
        least = find_least_width(trial, state.least_width)
        if least > state.slots.capacity:
            return self._give_up(trial)
        wanted = state.moving.get(trial.id)
        if not wanted:
            widths = self._allocator.place(_Demands(state, trial, coming=state.new), state)
            wanted = widths.get(trial.id, 1.0)
        width = _round_width(least if least > wanted else wanted, state)
        if width > 1.0:
            width = float(max(min(int(width), len(state.slots.idle)), int(least), 1))
        stage = plan_stage(trial)
        near = ""
        if state.slots.nodes and stage.source is not None:
            near = state.checkpoints.nodes.get(stage.source, "")
        slots = state.slots.find(width, near)
        if slots is None:
            return False
        order = stage.order
        self._decider.decide(
            d.Launch(
                attempt=state.launches,
                trial=order.trial.id,
                start=stage.start,
                source=stage.source,
                goal=order.goal,
                save_at=order.save_at,
                slots=slots,
                width=width,
                why=why,
            )
        )
        return True

    def _give_up(self, trial: TrialState) -> bool:
        """Fail a trial whose slots have gone, unless something that runs may still free some."""
        why = explain_unmet_needs(trial, self._state.capacity)
        if self._state.attempts or why is None:
            return False
        self._decider.decide(d.Fail(trial=trial.id, why=why))
        return True

    def _resize(self, *, coming: bool) -> None:
        """Move running attempts to the widths that the allocator gives, if that pays."""
        state = self._state
        if not (state.attempts and state.capacity):
            return
        demands = _Demands(state, None, coming=coming)
        moves = _list_moves(self._allocator.place(demands, state), state)
        spare = count_spare_slots(state)
        short = coming or bool(state.ready)
        for attempt, width in moves:
            if width > attempt.width:
                why = explain_widening(attempt, width, state)
                more = count_extra_slots(attempt, width, state)
                if why is not None and more <= spare and not short:
                    spare -= more
                    self._decider.decide(d.Resize(attempt=attempt.id, width=width, why=why))
                short = short or (why is not None and more > spare)
        if short:
            reason = "that waits" if coming or state.ready else "that is better served"
            for attempt, width in moves:
                if width < attempt.width:
                    why = explain_narrowing(attempt, width, state, f"a trial {reason}")
                    if why is not None:
                        self._decider.decide(d.Resize(attempt=attempt.id, width=width, why=why))

    def _give_back(self) -> None:
        """Retire slots that no trial can use any more: a cluster may use them, or free the node."""
        state = self._state
        spare = state.capacity - state.live * state.spec.span
        if not state.live or spare <= 0 or may_get_trials(state):
            return
        idle, nodes = state.slots.idle, state.slots.nodes
        # Whole nodes first.
        busy = Counter(nodes.get(slot, "") for slot in state.slots.held)
        going = sorted(idle, key=lambda slot: (busy[nodes.get(slot, "")], slot))[:spare]
        if going:
            why = f"no more trials come, and the {state.live} that are left cannot use them"
            self._decider.decide(d.Retire(slots=tuple(sorted(going)), why=why))

    def watch(self) -> None:
        """Ask to be woken when the budget will be spent; end the study if nothing is left."""
        state = self._state
        limit = state.spec.budget.slot_seconds
        pending = state.pending
        if limit is not None and state.slot_time.held > 0.0:
            at = state.now + (limit - state.slot_seconds) / state.slot_time.held
            if not any(sooner <= at for sooner, _ in pending.wakes):
                why = f"{limit:g} slot-seconds will be used up then"
                self._decider.decide(d.WakeAt(at=at, why=why))
        if not (state.attempts or state.ready or pending.forecasts or pending.awaited):
            wakes = pending.wakes - {(state.deadline_s, None)}
            if state.capacity > 0 and not wakes and not state.spec.standing:
                self._decider.end_group(state, *self._explain_quiet(state))

    def _explain_quiet(self, group: GroupState) -> tuple[d.EndCause, str]:
        """Return the cause and the reason that end a study in which nothing is left to run."""
        trouble, opened = self._state.pending.trouble.get(group.index), len(group.trials)
        name = group.spec.policy.name
        if not trouble and not group.live:
            trials = format_count(opened, "trial was", "trials were")
            return d.EndCause.QUIET, f"nothing is left to run: {trials} opened"
        if not trouble:
            left = f"of {opened} trials {group.live} stay paused"
            return d.EndCause.QUIET, f"nothing is left that policy {name} would train: {left}"
        # With reports there is a result; without any, the study has failed.
        cause = d.EndCause.QUIET if group.reports else d.EndCause.FAILED
        return cause, f"no more trials after {opened}: {trouble}"


def _list_moves(
    widths: Mapping[TrialId, float], state: StudyState
) -> list[tuple[AttemptState, float]]:
    """Return the attempts that may move now, with the width that the allocator gives."""
    moves = []
    for number, wanted in widths.items():
        if number >= len(state.trials):
            name = state.spec.allocator
            raise SpecError(
                f"allocator {name} gave a width to trial {number}, which does not exist."
            )
        trial = state.trials[number]
        attempt = trial.attempt
        if attempt is not None and attempt.trial is trial and may_move(attempt, state):
            width = _round_width(max(wanted, find_least_width(trial, state.least_width)), state)
            if width != attempt.width:
                moves.append((attempt, width))
    return moves


class _Demands:
    """Demands of the asking, the running and the ready trials, computed when they are read."""

    __slots__ = ("_state", "_trial", "coming")

    def __init__(self, state: StudyState, trial: TrialState | None, *, coming: bool) -> None:
        self._state = state
        self._trial = trial
        self.coming = coming

    @property
    def asking(self) -> Demand | None:
        return None if self._trial is None else _Demand(self._trial, 0.0, self._state)

    def running(self) -> Iterator[Demand]:
        for attempt in self._state.attempts.values():
            if not attempt.is_halting:
                width = self._state.moving.get(attempt.trial.id) or attempt.width
                yield _Demand(attempt.trial, width, self._state)

    def ready(self) -> Iterator[Demand]:
        for number in self._state.ready:
            trial = self._state.trials[number]
            if trial is not self._trial:
                yield _Demand(trial, 0.0, self._state)

    def speed(self, width: float) -> float:
        return self._state.epoch_times.speed(width)

    def measured(self, width: float) -> bool:
        return width == 1.0 or width in self._state.epoch_times.list_measured()


class _Demand:
    """The demand of a trial that holds this width."""

    __slots__ = ("_state", "_trial", "width")

    def __init__(self, trial: TrialState, width: float, state: StudyState) -> None:
        self._trial = trial
        self._state = state
        self.width = width

    @property
    def trial(self) -> TrialId:
        return self._trial.id

    @property
    def work(self) -> float:
        epochs = self._trial.goal - self._trial.epoch
        return max(epochs, 0) * self._state.epoch_times.epoch_s(self._trial.id)

    @property
    def least(self) -> float:
        return find_least_width(self._trial, self._state.least_width)


def _round_width(width: float, state: StudyState) -> float:
    """Return a valid width: a whole number up to the capacity, or one over a whole number."""
    if not (width > 0.0 and math.isfinite(width)):
        raise SpecError(
            f"allocator {state.spec.allocator} gave width {width}: must be positive and finite."
        )
    if width == 1.0:
        return 1.0  # by far the most common
    if width > 1.0:
        return float(min(int(width), max(1, state.capacity)))
    return 1.0 / round(1.0 / width)


def choose_slots_to_retire(state: StudyState, count: int) -> tuple[SlotId, ...]:
    """Return the slots to retire: idle ones, then those of the newest attempts; one stays."""
    count = min(count, state.capacity - 1)
    newest = [slot for number in sorted(state.attempts) for slot in state.attempts[number].slots]
    order = dict.fromkeys([*reversed(state.slots.idle), *reversed(newest)])
    usable = state.slots.present - state.slots.retiring
    return tuple(sorted([slot for slot in order if slot in usable][: max(count, 0)]))
