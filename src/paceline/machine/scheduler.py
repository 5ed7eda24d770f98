"""Who gets the free slots: ask the policy, the generator and the allocator, then launch.

Knows the order of the questions, and when there is nothing left to ask: then the study is over.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Protocol

from paceline.core import decisions as d
from paceline.core.errors import SpecError
from paceline.machine.assignment import stage_for
from paceline.machine.checkpoint_gc import may_come
from paceline.machine.requirements import beyond, least_of
from paceline.machine.termination import Ender, end, number_of, why_quiet
from paceline.plan.settings import canonical

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from paceline.core.ports import Allocator, Demand, Generator, Pick, Policy
    from paceline.core.values import AttemptId, Config, SlotId, TrialId
    from paceline.machine.groups import Group
    from paceline.machine.state import StudyState
    from paceline.machine.trial_state import Attempt, Trial


# A wider trial must get this much further in the time that is left.
MARGIN = 1.1
# A trial stays at a width for so many times what a move costs.
REST = 10.0


def left_s(attempt: Attempt, state: StudyState) -> float:
    """Return how long the attempt would go on at its width: to its goal, or to the deadline."""
    paces, trial = state.paces, attempt.trial
    goal = (attempt.goal - attempt.epoch) * paces.epoch_s(trial.id) / paces.speed(attempt.width)
    return goal if state.deadline_s is None else min(goal, state.deadline_s - state.now)


def rested(attempt: Attempt, state: StudyState) -> bool:
    """Say whether the attempt has been at its width long enough to move again."""
    if attempt.halting or attempt.yielding or attempt.epoch == attempt.start:
        return False
    return state.now - attempt.launched_at >= REST * state.paces.move_s


def why_wider(attempt: Attempt, width: float, state: StudyState) -> str | None:
    """Return why widening pays; None where it does not."""
    paces = state.paces
    left, move = left_s(attempt, state), paces.move_s
    now, then = paces.speed(attempt.width), paces.speed(width)
    if then * (left - move) <= MARGIN * now * left:
        return None
    return (
        f"width {width:g} instead of {attempt.width:g} is {then / now:.3g} times as fast, for the "
        f"{left:.4g} s it has left; a move costs {move:.3g} s"
    )


def why_narrower(attempt: Attempt, width: float, state: StudyState, whom: str) -> str | None:
    """Return why narrowing pays; None where the attempt is almost done."""
    left, move = left_s(attempt, state), state.paces.move_s
    if left <= move:
        return None
    return (
        f"width {width:g} instead of {attempt.width:g} makes room for {whom}; it has {left:.4g} s "
        f"left, and a move costs {move:.3g} s"
    )


def slots_to_spare(state: StudyState) -> int:
    """Return the idle slots that no trial on the move is about to take."""
    taken = 0
    for number, width in state.moving.items():
        attempt = state.trials[number].attempt
        taken += int(width) if attempt is None else slots_more(attempt, width, state)
    return len(state.slots.idle) - taken


def slots_more(attempt: Attempt, width: float, state: StudyState) -> int:
    """Return the idle slots that moving to this width takes; below 0 where it frees some."""
    if width < 1.0:
        return -int(attempt.width)  # it finds its share of the first slot that is free
    if attempt.width >= 1.0:
        return int(width) - int(attempt.width)
    (slot,) = attempt.slots
    alone = state.slots.held[slot] <= attempt.width + 1e-9
    return int(width) - alone


# A generator that proposes only what is already known costs nothing and would never end.
_MOST_IDLE_OPENS = 1000
_MOVED = "it goes on at another width"
_NEEDED = "its next epochs need another width"


class Decider(Ender, Protocol):
    """What the filler needs of the machine."""

    def open(self, config: Config, until: int, why: str, group: int = 0) -> Trial: ...
    def credit(self, trial: Trial) -> None: ...


class Thinkers(Protocol):
    """What the filler needs of the brains."""

    @property
    def each(self) -> Sequence[tuple[Policy, Generator]]: ...
    @property
    def allocator(self) -> Allocator: ...


class Filler:
    """Fills free slots after every event. Keeps no machine: a cycle would keep studies alive."""

    def __init__(self, brains: Thinkers) -> None:
        self._brains = brains.each
        self._allocator = brains.allocator

    def fill(self, machine: Decider) -> None:
        """Start whoever the policy picks; what nobody asks for goes to those who run.

        This is the one rule for a free slot: first whoever gave one up to move; then whom the
        policy picks, a waiting trial or a new one, at the width the allocator gives; then, if the
        allocator says so and the move pays, a wider one. If there is no room for a pick, those who
        are wide may have to make some.
        """
        state = machine.state
        slots = state.slots
        launched, pick = self._move(machine), None
        # Were others to start, one that needs more room to go on than there is might wait for ever.
        held = any(number in state.ready for number in state.moving)
        while not (held or state.end) and (slots.idle or slots.partial or state.elastic):
            view, pick = self._turn(machine)
            room = slots.idle or slots.partial
            if pick is None or not room or not self._start(machine, view, pick):
                break
            launched = True
        # While a proposal is on its way the slot it is for is not left over.
        if state.elastic and not (launched or state.end or state.questions.awaited):
            self._spread(machine, coming=pick is not None and pick.trial is None)
        if slots.nodes and slots.idle and not state.end:
            _give_back(machine)

    def _move(self, machine: Decider) -> bool:
        """Let those go on who have saved to change their width."""
        state = machine.state
        moved = False
        for number in [number for number in state.moving if number in state.ready]:
            why = _MOVED if state.moving[number] else _NEEDED
            moved = self._launch(machine, state.trials[number], why) or moved
        return moved

    def _turn(self, machine: Decider) -> tuple[StudyState | Group, Pick | None]:
        """Ask for a pick: of several studies, the one whose turn it is and who wants a slot."""
        state = machine.state
        if state.groups is None:
            return state, self._pick(machine, state)
        room = state.free
        for group in state.groups.turns(state.now):
            pick = self._pick(machine, group)
            state.new = group.new
            if pick is not None:
                return group, pick
            if room > 0 and group.quiet:
                end(machine, group, *why_quiet(group, state))
            # A slot that a proposal is on its way for is not the next one's.
            awaited = state.questions.awaits(group.number)
            room -= awaited
            if awaited and room <= 0:
                break
        return state, None

    def _pick(self, machine: Decider, view: StudyState | Group) -> Pick | None:
        policy, generator = self._brains[number_of(view)]
        most = policy.admit(view)
        wanted = not view.closed and (most is None or view.live < most)
        if wanted:
            self._mind_budget(machine, view)
        view.new = wanted and not view.closed and self._obtainable(machine, view, generator)
        return policy.next(view)

    def _mind_budget(self, machine: Decider, view: StudyState | Group) -> None:
        limit = view.spec.budget.trials
        if limit is not None and len(view.trials) >= limit:
            why = f"all {limit} trials of the budget are open"
        elif view.idle_opens >= _MOST_IDLE_OPENS + len(view.adopted.trials):
            rest = ", or need more slots than there are" if view.spec.fit else ""
            why = f"the last {view.idle_opens} configs were all known already{rest}"
        else:
            return
        machine.decide(d.Close(group=number_of(view), why=why))

    def _obtainable(self, machine: Decider, view: StudyState | Group, generator: Generator) -> bool:
        """Say whether a config can be had now; ask for one where that takes time."""
        number, questions = number_of(view), machine.state.questions
        if generator.pure or questions.offer(number) is not None:
            return True
        # One question for each slot that could use the answer, and no more; of several studies
        # each has one on its way at a time, so that none takes all slots.
        most = view.free if view is machine.state else min(view.free, 1.0)
        while questions.awaits(number) < most:
            asked, why = questions.proposals(number), "a free slot wants a new trial"
            machine.decide(d.AskProposal(number=asked, group=number, why=why))
        return False

    def _start(self, machine: Decider, view: StudyState | Group, pick: Pick) -> bool:
        """Carry a pick out. False: nothing more fits now."""
        state = machine.state
        if pick.trial is None:
            config = self._config(machine, view)
            if config is None:
                return True  # closed now: ask the policy again
            until = min(pick.until, state.spec.epochs)
            if until < 1:
                name = view.spec.policy
                raise SpecError(f"policy {name} gave a new trial the goal {until}: give 1 or more.")
            number = machine.open(config, until, pick.why, number_of(view)).id
        else:
            number = pick.trial
            trial = state.trials[number]
            until = min(pick.until, state.spec.epochs)
            if trial.alive and until > max(trial.goal, trial.epoch):
                machine.decide(d.Go(trial=number, until=until, why=pick.why))
            elif number not in state.ready:
                return False  # a policy that picks whom nothing can be done for would never stop
        trial = state.trials[number]
        if trial.leaf.losses or trial.leaf.parent is not None:
            machine.credit(trial)
        if state.end is not None or number not in state.ready:
            return True
        return self._launch(machine, trial, pick.why)

    def _config(self, machine: Decider, view: StudyState | Group) -> Config | None:
        number = number_of(view)
        config = machine.state.questions.offer(number)  # taken by the Open that follows
        if config is None:
            config = self._brains[number][1].propose(view.taken, view)
        if config is None:
            machine.decide(d.Close(group=number, why="the generator has no more configs"))
            return None
        return canonical(config)

    def _launch(self, machine: Decider, trial: Trial, why: str) -> bool:
        state = machine.state
        least = least_of(trial, state.least)
        if least > state.capacity:
            return self._give_up(machine, trial)
        wanted = state.moving.get(trial.id)
        if not wanted:
            widths = self._allocator.place(_Demands(state, trial, coming=state.new), state)
            wanted = widths.get(trial.id, 1.0)
        width = _clipped(max(wanted, least), state)
        if width > 1.0:
            width = float(max(min(int(width), len(state.slots.idle)), int(least), 1))
        slots = state.slots.find(width, _home(trial, state))
        if slots is None:
            return False
        machine.decide(_launch_of(trial, state.launches, slots, width, why))
        return True

    def _give_up(self, machine: Decider, trial: Trial) -> bool:
        """Let it wait for slots that went away; where nothing else runs, wait no longer."""
        why = beyond(trial, machine.state.capacity)
        if machine.state.attempts or why is None:
            return False
        machine.decide(d.Fail(trial=trial.id, why=why))
        return True

    def _spread(self, machine: Decider, *, coming: bool) -> None:
        """Move those who run to the widths they should have, where that pays."""
        state = machine.state
        if not (state.attempts and state.capacity):
            return
        demands = _Demands(state, None, coming=coming)
        moves = _moves(self._allocator.place(demands, state), state)
        spare = slots_to_spare(state)
        short = coming or bool(state.ready)
        for attempt, width in moves:
            if width > attempt.width:
                why = why_wider(attempt, width, state)
                more = slots_more(attempt, width, state)
                if why is not None and more <= spare and not short:
                    spare -= more
                    machine.decide(d.Resize(attempt=attempt.id, width=width, why=why))
                short = short or (why is not None and more > spare)
        if short:
            whom = "one that waits" if coming or state.ready else "one that is better served"
            for attempt, width in moves:
                if width < attempt.width:
                    why = why_narrower(attempt, width, state, whom)
                    if why is not None:
                        machine.decide(d.Resize(attempt=attempt.id, width=width, why=why))

    def watch(self, machine: Decider) -> None:
        """Ask to be woken when the budget will be spent; end the study if nothing is left."""
        state = machine.state
        limit = state.spec.budget.slot_seconds
        questions = state.questions
        if limit is not None and state.meter.held > 0.0:
            at = state.now + (limit - state.slot_seconds) / state.meter.held
            if not any(sooner <= at for sooner, _ in questions.wakes):
                why = f"{limit:g} slot-seconds will be used up then"
                machine.decide(d.WakeAt(at=at, why=why))
        if not (state.attempts or state.ready or questions.forecasts or questions.awaited):
            waiting = questions.wakes - {(state.deadline_s, None)}
            if state.capacity > 0 and not waiting and not state.spec.standing:
                end(machine, state, *why_quiet(state, state))


def _home(trial: Trial, state: StudyState) -> str:
    """Return the node that saved what a trial starts from; empty: no slot is nearer to it."""
    if not state.slots.nodes:
        return ""
    source = stage_for(trial).source
    return "" if source is None else state.files.homes.get(source, "")


def _launch_of(
    trial: Trial, attempt: AttemptId, slots: tuple[SlotId, ...], width: float, why: str
) -> d.Launch:
    start, source, (lead, goal, save_at) = stage_for(trial)
    return d.Launch(
        attempt=attempt,
        trial=lead.id,
        start=start,
        source=source,
        goal=goal,
        save_at=save_at,
        slots=slots,
        width=width,
        why=why,
    )


def _moves(widths: Mapping[TrialId, float], state: StudyState) -> list[tuple[Attempt, float]]:
    """Return whom the allocator wants to have another width, and may have it now."""
    moves = []
    for number, wanted in widths.items():
        if number >= len(state.trials):
            name = state.spec.allocator
            raise SpecError(f"allocator {name} gave a width to trial {number}: there is none.")
        trial = state.trials[number]
        attempt = trial.attempt
        if attempt is not None and attempt.trial is trial and rested(attempt, state):
            width = _clipped(max(wanted, least_of(trial, state.least)), state)
            if width != attempt.width:
                moves.append((attempt, width))
    return moves


class _Demands:
    """Who asks, who runs and who waits, worked out only if somebody looks."""

    __slots__ = ("_state", "_trial", "coming")

    def __init__(self, state: StudyState, trial: Trial | None, *, coming: bool) -> None:
        self._state = state
        self._trial = trial
        self.coming = coming

    @property
    def asking(self) -> Demand | None:
        return None if self._trial is None else _Demand(self._trial, 0.0, self._state)

    def running(self) -> Iterator[Demand]:
        for attempt in self._state.attempts.values():
            if not attempt.halting:
                width = self._state.moving.get(attempt.trial.id) or attempt.width
                yield _Demand(attempt.trial, width, self._state)

    def waiting(self) -> Iterator[Demand]:
        for number in self._state.ready:
            trial = self._state.trials[number]
            if trial is not self._trial:
                yield _Demand(trial, 0.0, self._state)

    def speed(self, width: float) -> float:
        return self._state.paces.speed(width)

    def measured(self, width: float) -> bool:
        return width == 1.0 or width in self._state.paces.measured()


class _Demand:
    """A trial and the width it holds."""

    __slots__ = ("_state", "_trial", "width")

    def __init__(self, trial: Trial, width: float, state: StudyState) -> None:
        self._trial = trial
        self._state = state
        self.width = width

    @property
    def trial(self) -> TrialId:
        return self._trial.id

    @property
    def work(self) -> float:
        epochs = self._trial.goal - self._trial.epoch
        return max(epochs, 0) * self._state.paces.epoch_s(self._trial.id)

    @property
    def least(self) -> float:
        return least_of(self._trial, self._state.least)


def _clipped(width: float, state: StudyState) -> float:
    """Return a width that slots can have: whole ones up to all there are, or one over a whole."""
    if not (width > 0.0 and math.isfinite(width)):
        raise SpecError(
            f"allocator {state.spec.allocator} gave width {width}: give a positive, finite one."
        )
    if width >= 1.0:
        return float(min(int(width), max(1, state.capacity)))
    return 1.0 / round(1.0 / width)


def _give_back(machine: Decider) -> None:
    """Let slots go that nobody can use any more: on a cluster others may, or their nodes go."""
    state = machine.state
    spare = state.capacity - state.live * state.spec.span
    if not state.live or spare <= 0 or may_come(state):
        return
    idle, nodes = state.slots.idle, state.slots.nodes
    # Whole nodes first.
    busy = Counter(nodes.get(slot, "") for slot in state.slots.held)
    going = sorted(idle, key=lambda slot: (busy[nodes.get(slot, "")], slot))[:spare]
    if going:
        why = f"no more trials come, and the {state.live} that are left cannot use them"
        machine.decide(d.Retire(slots=tuple(sorted(going)), why=why))


def dispensable(state: StudyState, count: int) -> tuple[SlotId, ...]:
    """Return the slots to give up: idle ones, then those of the youngest attempts; one stays."""
    count = min(count, state.capacity - 1)
    young = [slot for number in sorted(state.attempts) for slot in state.attempts[number].slots]
    order = dict.fromkeys([*reversed(state.slots.idle), *reversed(young)])
    usable = state.slots.present - state.slots.retiring
    return tuple(sorted([slot for slot in order if slot in usable][: max(count, 0)]))
