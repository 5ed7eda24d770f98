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
from paceline.machine.decider import Origin
from paceline.machine.openings import count_new
from paceline.machine.proposals import Proposals
from paceline.machine.requirements import explain_unmet_needs, find_least_width
from paceline.machine.slot_sharing import find_held_width, find_kept_slot, find_share
from paceline.plan.settings import canonicalize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from paceline.core.ports import Demand, Generator, Pick
    from paceline.core.values import SlotId, TrialId
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
    speed = times.speed(find_held_width(attempt, state))
    goal = (attempt.goal - attempt.epoch) * times.epoch_s(trial.id) / speed
    return goal if state.deadline_s is None else min(goal, state.deadline_s - state.now)


def may_move(attempt: AttemptState, state: StudyState) -> bool:
    """Say whether the attempt has had its width long enough to move again."""
    if attempt.is_halting or attempt.must_yield or attempt.epoch == attempt.start:
        return False
    return state.now - attempt.launched_at >= REST * state.epoch_times.move_s


def explain_widening(attempt: AttemptState, width: float, state: StudyState) -> str | None:
    """Return why widening pays; None if it does not."""
    times = state.epoch_times
    left, move, held = remaining_s(attempt, state), times.move_s, find_held_width(attempt, state)
    now, then = times.speed(held), times.speed(width)
    if then * (left - move) <= MARGIN * now * left:
        return None
    return (
        f"width {width:g} instead of {held:.3g} is {then / now:.3g} times as fast, for the "
        f"{left:.4g} s it has left; a move costs {move:.3g} s"
    )


def explain_leaving(attempt: AttemptState, state: StudyState) -> str | None:
    """Return why leaving a shared slot pays even if no other is free; None if it does not."""
    held, times = find_held_width(attempt, state), state.epoch_times
    if held >= 1.0 or remaining_s(attempt, state) <= times.move_s:
        return None
    trials, total = round(1.0 / held), times.speed(held) / held
    if total * MARGIN >= 1.0:
        return None
    return (
        f"the {trials} trials on its slot train {total:.2g} times as much in total as one alone: "
        "it goes on when a slot is free"
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


def find_dedicated_width(trial: TrialState, state: StudyState) -> float:
    """Return the width that the policy dedicates to the trial, as far as there are slots; or 0."""
    return min(trial.dedicated, float(state.spec.span), float(max(1, state.capacity)))


def count_spare_slots(state: StudyState) -> int:
    """Return the number of idle slots that no moving trial is about to take."""
    taken = 0
    for number, width in state.moving.items():
        attempt = state.trials[number].attempt
        # Slots that a move will free are not idle yet: a trial must not widen into them.
        extra = int(width) if attempt is None else count_extra_slots(attempt, width, state)
        taken += max(0, extra)
    return len(state.slots.idle) + count_ending_slots(state) - taken


def count_ending_slots(state: StudyState) -> int:
    """Return the number of slots that become idle with the attempt that counts as ended."""
    ending = state.ending
    if ending is None:
        return 0
    own = min(ending.width, 1.0) + 1e-9
    return sum(state.slots.held[slot] <= own for slot in ending.slots)


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
        # Whether it chooses by what sharing a slot was measured to cost.
        self._measures: bool = getattr(parts.allocator, "measures_sharing", False)
        self._proposals = Proposals(parts.each)

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
            group, pick = self.ask_policies()
            if pick is None or not (slots.idle or self._has_room()):
                break
            moves = (state.elastic or state.moving) and self._claim(pick)
            if moves or not self._start(group, pick):
                break
            launched = True
        # The slot that an awaited proposal is for is not left over.
        if state.elastic and not (launched or state.end or state.pending.awaited):
            self._resize(pick, is_quiet=pick is None and not held)
        if slots.nodes and slots.idle and not state.end:
            self._give_back()

    def _claim(self, pick: Pick) -> bool:
        """Widen running trials before a new one starts, if the allocator puts them first.

        True: the slots that are idle are theirs.
        """
        state = self._state
        widths = _list_dedicated(state)
        if pick.trial is None and getattr(self._allocator, "widens_first", False):
            placed = self._allocator.place(self._list_demands(None, coming=True), state)
            widths = {**widths, **placed}
        spare = count_spare_slots(state)
        for attempt, wanted in _list_moves(widths, state):
            # As wide as it can be now: slots become free one by one.
            width = min(wanted, float(int(find_held_width(attempt, state)) + spare))
            if width <= max(1.0, attempt.width):
                continue
            why = explain_widening(attempt, width, state)
            if why is not None:
                spare -= count_extra_slots(attempt, width, state)
                self._decider.decide(d.Resize(attempt=attempt.id, width=width, why=why))
        return bool(state.moving) and spare <= 0

    def _launch_moved(self) -> bool:
        """Launch the trials that have saved to change their width."""
        state = self._state
        launched = False
        state.new = self.may_open()
        for number in [number for number in state.moving if number in state.ready]:
            why = _MOVED if state.moving[number] else _NEEDED
            launched = self._launch(state.trials[number], why) or launched
        return launched

    def ask_policies(self) -> tuple[GroupState, Pick | None]:
        """Ask for a pick: of several studies, the first in turn that wants a slot."""
        state = self._state
        if state.together is None:
            return state, self._pick(state)
        room = state.free + count_ending_slots(state)
        for group in state.together.order_by_use(state.now):
            pick = self._pick(group)
            state.new = group.new
            if pick is not None:
                return group, pick
            if room > 0 and state.ending is None and group.is_quiet:
                self._decider.end_group(group, *self._explain_quiet(group))
            # A slot for which a proposal is awaited is not free for the next study.
            awaited = state.pending.count_awaited(group.index)
            room -= awaited
            if awaited and room <= 0:
                break
        return state, None

    def _pick(self, group: GroupState) -> Pick | None:
        policy, generator = self._parts[group.index]
        group.new = False
        if not group.closed:
            most = policy.admit(group)
            if most is None or group.live < most:
                self._close_if_spent(group)
                group.new = not group.closed and self._has_config(group, generator)
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
            config, number = self._proposals.choose(group, state.pending)
            if config is None:
                why = "the generator has no more configs"
                decider.decide(d.Close(group=group.index, why=why))
                return True  # closed now: ask the policy again
            if until < 1:
                raise SpecError(
                    f"policy {group.spec.policy} gave a new trial the goal {until}: "
                    "must be at least 1."
                )
            why, origin = pick.why, Origin(number=number)
            if number is not None:
                why += f"; of the next configs, number {number} is the most promising"
            config = canonicalize(config)
            trial = decider.open_trial(config, until, why, group.index, origin, pick.label)
        else:
            trial = state.trials[pick.trial]
            if trial.alive and until > max(trial.goal, trial.epoch):
                label, width, why = pick.label, pick.width, pick.why
                decider.decide(d.Go(trial=trial.id, until=until, label=label, width=width, why=why))
            elif trial.id not in state.ready:
                return False  # a policy that picks such a trial would never stop
        if trial.leaf.losses or trial.leaf.parent is not None:
            decider.credit(trial)
        if state.end is not None or trial.id not in state.ready:
            return True
        return self._launch(trial, pick.why)

    def _launch(self, trial: TrialState, why: str) -> bool:
        state = self._state
        least = find_least_width(trial, state.least_width)
        if least > state.slots.capacity:
            return self._give_up(trial)
        # The slots that a moving trial is about to take are idle, and not for another trial.
        others = state.moving and trial.id not in state.moving
        idle = count_spare_slots(state) if others else len(state.slots.idle)
        width = self.choose_width(trial, least, idle)
        if width > idle and width > 1.0:
            return False
        stage = plan_stage(trial, state)
        near = ""
        if state.slots.nodes and stage.source is not None:
            near = state.checkpoints.nodes.get(stage.source, "")
        slots = state.slots.find(width, near) if width >= 1.0 else self._find_share(width, near)
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

    def choose_width(self, trial: TrialState, least: float, idle: int) -> float:
        """Return the width for a trial that needs at least this, with `idle` slots idle."""
        state = self._state
        wanted = state.moving.get(trial.id) if state.moving else None
        if not (wanted or state.elastic):
            wanted = 1.0  # the only width that the study allows
        elif not wanted:
            widths = self._allocator.place(self._list_demands(trial, coming=state.new), state)
            wanted = widths.get(trial.id, 1.0)
            if trial.dedicated:
                wanted = max(wanted, find_dedicated_width(trial, state))
        width = _round_width(least if least > wanted else wanted, state)
        return float(max(min(int(width), idle), int(least), 1)) if width > 1.0 else width

    def _find_share(self, width: float, near: str) -> tuple[SlotId, ...] | None:
        return find_share(width, near, self._state, self._expected, measure=self._measures)

    def _has_room(self) -> bool:
        """Say whether a slot is free, or a share of one that another trial may join."""
        slots = self._state.slots
        if slots.idle or not slots.partial or not self._measures:
            return bool(slots.idle or slots.partial)
        kept = find_kept_slot(self._state, self._expected)
        return any(slot != kept for slot in slots.partial)

    def _list_demands(self, trial: TrialState | None, *, coming: bool) -> _Demands:
        return _Demands(self._state, trial, coming=coming, expected=self._expected)

    def _expected(self) -> float:
        """Return how many more trials the policies would start if slots were free."""
        going = (group for group in self._state.groups if group.end is None)
        return sum(self._count_waiting(group) for group in going)

    def may_open(self) -> bool:
        """Say whether new trials would be opened if slots were free."""
        groups = (group for group in self._state.groups if group.end is None)
        return any(count_new(group, *self._parts[group.index]) >= 1 for group in groups)

    def _count_waiting(self, group: GroupState) -> float:
        policy, generator = self._parts[group.index]
        new = count_new(group, policy, generator)
        # Parts of another package may lack these methods.
        count: Callable[[GroupState, float], float] | None = getattr(policy, "count_waiting", None)
        return new if count is None else count(group, new)

    def _give_up(self, trial: TrialState) -> bool:
        """Fail a trial whose slots have gone, unless something that runs may still free some."""
        why = explain_unmet_needs(trial, self._state.capacity)
        if self._state.attempts or why is None:
            return False
        self._decider.decide(d.Fail(trial=trial.id, why=why))
        return True

    def _resize(self, pick: Pick | None, *, is_quiet: bool) -> None:
        """Move running attempts to the widths that the allocator gives, if that pays.

        `is_quiet`: the policies would start no other trial now.
        """
        state = self._state
        if not (state.attempts and state.capacity):
            return
        coming = pick is not None and pick.trial is None
        expected = (lambda: 0.0) if is_quiet else self._expected
        demands = _Demands(state, None, coming=coming, expected=expected)
        placed = self._allocator.place(demands, state)
        moves = _list_moves({**_list_dedicated(state), **placed}, state)
        spare = count_spare_slots(state)
        short = coming or bool(state.ready)
        for attempt, width in moves:
            if width > attempt.width:
                leaving = explain_leaving(attempt, state)
                if leaving is not None:
                    self._decider.decide(d.Resize(attempt=attempt.id, width=width, why=leaving))
                    continue
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


def _list_dedicated(state: StudyState) -> dict[TrialId, float]:
    """Return the widths of running trials that hold less than their policy dedicates to them."""
    trials = (attempt.trial for attempt in state.attempts.values())
    dedicated = {trial.id: find_dedicated_width(trial, state) for trial in trials}
    return {
        number: width
        for number, width in dedicated.items()
        if width > 1.0 and (attempt := state.trials[number].attempt) and attempt.width < width
    }


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
            least = find_least_width(trial, state.least_width)
            least = max(least, find_dedicated_width(trial, state))
            width = _round_width(max(wanted, least), state)
            # A trial that may share its slot is as wide as those beside it leave room for.
            if width not in (attempt.width, find_held_width(attempt, state)) and (
                max(width, attempt.width) >= 1.0
            ):
                moves.append((attempt, width))
    return moves


class _Demands:
    """Demands of the asking, the running and the ready trials, computed when they are read."""

    __slots__ = ("_expected", "_state", "_trial", "coming")

    def __init__(
        self,
        state: StudyState,
        trial: TrialState | None,
        *,
        coming: bool,
        expected: Callable[[], float],
    ) -> None:
        self._state = state
        self._trial = trial
        self._expected = expected
        self.coming = coming

    @property
    def asking(self) -> Demand | None:
        return None if self._trial is None else _Demand(self._trial, 0.0, (), self._state)

    @property
    def expected(self) -> float:
        return self._expected()

    @property
    def idle(self) -> int:
        return max(0, count_spare_slots(self._state))

    def running(self) -> Iterator[Demand]:
        for attempt in self._state.attempts.values():
            if not (attempt.is_halting or attempt is self._state.ending):
                width = self._state.moving.get(attempt.trial.id)
                width = width or find_held_width(attempt, self._state)
                yield _Demand(attempt.trial, width, attempt.slots, self._state)

    def ready(self) -> Iterator[Demand]:
        for number in self._state.ready:
            trial = self._state.trials[number]
            if trial is not self._trial:
                yield _Demand(trial, 0.0, (), self._state)

    def speed(self, width: float) -> float:
        return self._state.epoch_times.speed(width)

    def measured(self, width: float) -> bool:
        return width == 1.0 or width in self._state.epoch_times.list_measured()


class _Demand:
    """The demand of a trial that holds this width of these slots."""

    __slots__ = ("_state", "_trial", "slots", "width")

    def __init__(
        self, trial: TrialState, width: float, slots: tuple[SlotId, ...], state: StudyState
    ) -> None:
        self._trial = trial
        self._state = state
        self.width = width
        self.slots = slots

    @property
    def trial(self) -> TrialId:
        return self._trial.id

    @property
    def work(self) -> float:
        epochs = self._trial.goal - self._trial.epoch
        return max(epochs, 0) * self._state.epoch_times.epoch_s(self._trial.id)

    @property
    def least(self) -> float:
        return find_least_width(self._trial, self._state.least_width, self._state.ending)


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
