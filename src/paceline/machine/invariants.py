"""Invariants: what must be true of every state, whatever has happened.

Each check has a name and returns complaints. The test suite runs all of them after every test
that used a machine; `verify` turns a complaint into BrokenInvariant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.errors import BrokenInvariant
from paceline.core.values import NO_LOSS, Status
from paceline.plan.tree import find_node, last_known_epoch, last_shared_epoch, path_to_root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from paceline.machine.state import StudyState

_DUST = 1e-6


def no_slot_is_overcommitted(state: StudyState) -> Iterator[str]:
    """The widths held on a slot are those of its attempts, and add up to at most 1."""
    held: dict[int, float] = {}
    for attempt in state.attempts.values():
        for slot in attempt.slots:
            held[slot] = held.get(slot, 0.0) + min(attempt.width, 1.0)
    for slot in held.keys() | state.slots.held.keys():
        booked, real = state.slots.held.get(slot, 0.0), held.get(slot, 0.0)
        if abs(booked - real) > _DUST:
            yield f"slot {slot} is booked {booked:g} and held {real:g}"
        if real > 1.0 + _DUST:
            yield f"slot {slot} is held {real:g} times"


def idle_slots_are_usable_and_not_held(state: StudyState) -> Iterator[str]:
    """Idle: present, not retiring, unheld. Partial: present, not retiring, held in part."""
    slots = state.slots
    usable = slots.present - slots.retiring
    if slots.idle != sorted(usable - slots.held.keys()):
        yield f"idle slots are {slots.idle}, usable {sorted(usable)}, held {slots.held}"
    partial = sorted(s for s in usable if 0.0 < slots.held.get(s, 0.0) < 1.0 - _DUST)
    if slots.partial != partial:
        yield f"partly held slots are {slots.partial} and should be {partial}"


def no_stage_is_narrower_than_it_needs(state: StudyState) -> Iterator[str]:
    """An attempt has the width that its stage needs, and goes no further than the stage."""
    for attempt in state.attempts.values():
        needs = [need for need in attempt.trial.needs if need[0] > attempt.stage_start][:1]
        for until, least in needs:
            if attempt.width < least - _DUST:
                yield f"attempt {attempt.id} is {attempt.width:g} wide and needs {least:g}"
            if attempt.goal > until:
                yield f"attempt {attempt.id} goes to {attempt.goal}, its stage to {until}"


def every_live_trial_with_a_goal_is_ready_or_has_an_attempt(state: StudyState) -> Iterator[str]:
    """A trial that may train is ready or has an attempt; no other trial is."""
    for trial in state.trials:
        known = last_known_epoch(trial.leaf)
        wants = trial.alive and trial.goal > known
        ready = trial.id in state.assignment.ready
        if ready and not (trial.alive and trial.goal > trial.epoch):
            yield f"trial {trial.id} is ready at epoch {trial.epoch} of goal {trial.goal}"
        if wants and not ready and trial.attempt is None:
            yield f"trial {trial.id} wants epoch {known + 1} but is neither ready nor assigned"
        if ready and trial.attempt is not None:
            yield f"trial {trial.id} is ready and carried by attempt {trial.attempt.id}"
        if trial.attempt is not None and not trial.alive:
            yield f"trial {trial.id} is {trial.status} and carried by attempt {trial.attempt.id}"


def attempts_and_members_refer_to_each_other(state: StudyState) -> Iterator[str]:
    """The attempt of a trial lists it as a member, and each member refers to the attempt."""
    for trial in state.trials:
        attempt = trial.attempt
        if attempt is not None and trial not in attempt.members:
            yield f"attempt {attempt.id} does not know its trial {trial.id}"
        if attempt is not None and state.attempts.get(attempt.id) is not attempt:
            yield f"trial {trial.id} is carried by attempt {attempt.id}, which is gone"
    for attempt in state.attempts.values():
        for trial in attempt.members:
            if trial.attempt is not attempt:
                yield f"trial {trial.id} does not know its attempt {attempt.id}"
            together = last_shared_epoch(trial.leaf, attempt.trial.leaf)
            # Past a branch, a trial stays until it is known whether the branch was saved.
            if together < attempt.epoch and together not in attempt.save_at:
                yield f"attempt {attempt.id} left trial {trial.id}'s path at epoch {together}"


def attempts_train_only_requested_epochs(state: StudyState) -> Iterator[str]:
    """The goal of an attempt is that of a member, or is reached."""
    if state.end is not None:
        return  # orders do not change any more
    for attempt in state.attempts.values():
        asked = max((trial.goal for trial in attempt.members), default=0)
        if attempt.goal > max(asked, attempt.epoch) and not attempt.is_halting:
            yield f"attempt {attempt.id} is sent to epoch {attempt.goal}, {asked} is asked for"


def trials_have_seen_only_known_epochs(state: StudyState) -> Iterator[str]:
    """The epochs that a trial has seen are known, and not beyond its goal."""
    for trial in state.trials:
        if trial.epoch > last_known_epoch(trial.leaf):
            yield f"trial {trial.id} saw epoch {trial.epoch}, which is not known"
        if trial.epoch > trial.goal:
            yield f"trial {trial.id} saw epoch {trial.epoch} beyond its goal {trial.goal}"
        if trial.epoch and trial.loss != node_loss(trial.leaf, trial.epoch):
            yield f"trial {trial.id} remembers another loss than its node at epoch {trial.epoch}"


def node_loss(leaf: object, epoch: int) -> float:
    """Return the loss of this epoch on the path of a leaf."""
    node = find_node(leaf, epoch)  # type: ignore[var-annotated, arg-type]
    return node.losses[epoch - node.start - 1]


def the_best_is_the_best_seen(state: StudyState) -> Iterator[str]:
    """No trial has seen a lower loss than the study's best."""
    lowest = min((min(t.losses, default=t.best_loss) for t in state.trials), default=float("inf"))
    if lowest != state.best_loss:
        yield f"the best loss is {state.best_loss!r}, and {lowest!r} was seen"


def counters_of_trials_and_reports_are_right(state: StudyState) -> Iterator[str]:
    """The counters of live trials and of reports match the trials."""
    alive = sum(trial.alive for trial in state.trials)
    if alive != state.live:
        yield f"{state.live} trials are counted as live, {alive} are"
    seen = sum(trial.epoch for trial in state.trials)
    if seen != state.reports:
        yield f"{state.reports} reports are counted, {seen} were seen"
    finished = [t.id for t in state.trials if t.epoch == t.leaf.end and t.ended is None]
    if finished:
        yield f"trials {finished} have trained their last epoch and are not finished"


def the_tree_is_a_radix_tree(state: StudyState) -> Iterator[str]:
    """Children start where parents end, under different settings, and hold no gap."""
    for node in state.tree.nodes():
        children = (node.children or {}).items()
        for key, child in children:
            if child.start != node.end or child.parent is not node:
                yield f"a child starts at {child.start}, its parent ends at {node.end}"
            if child.stretches[0][0:2] and child.stretches[0][1] != key:
                yield f"a child is filed under another setting than its own at {child.start}"
            if child.losses and node.known < node.end:
                yield f"epoch {child.start + 1} is known and epoch {node.end} is not"
        if len(children) == 1 and node.children is not None:
            yield f"the node at {node.start} has a single child: they should be one"
        if node.stretches[-1][0] != node.end or node.known > node.end:
            yield f"the node from {node.start} to {node.end} holds something else"


def checkpoints_are_at_known_epochs(state: StudyState) -> Iterator[str]:
    """Every checkpoint is of an epoch that was reported."""
    for trial in state.trials:
        for node in path_to_root(trial.leaf):
            for epoch in node.checkpoints or ():
                if not (node.start < epoch <= node.known or epoch == 0):
                    yield f"trial {trial.id} has a checkpoint of epoch {epoch}, {node.known} known"


def nodes_list_the_trials_that_want_them(state: StudyState) -> Iterator[str]:
    """A node lists exactly the live trials that still want an epoch of it or have just passed."""
    for trial in state.trials:
        for node in path_to_root(trial.leaf):
            wants = trial.alive and node.end > trial.epoch and node.start < trial.goal
            wants = wants and trial.goal > trial.epoch
            if wants and trial not in node.wanted_by:
                yield f"trial {trial.id} wants epochs of ({node.start}, {node.end}] unnoticed"
            if not trial.alive and trial in node.wanted_by:
                yield f"trial {trial.id} is {trial.status} and still wants epochs"


def pending_requests_are_about_existing_trials(state: StudyState) -> Iterator[str]:
    """Every pending request is about a trial that exists."""
    for number, epoch in state.pending.forecasts:
        if not 0 <= number < len(state.trials) or epoch > state.trials[number].epoch:
            yield f"a forecast was asked of trial {number} at epoch {epoch}"


def groups_add_up_to_the_study(state: StudyState) -> Iterator[str]:
    """Each of several studies has its own trials; together they are all trials."""
    groups = state.together or ()
    for group in groups:
        own = [trial for trial in state.trials if trial.group == group.index]
        if [trial.id for trial in group.trials] != [trial.id for trial in own]:
            yield f"study {group.spec.name} knows other trials than its own"
        if group.live != sum(trial.alive for trial in own):
            yield f"study {group.spec.name} counts {group.live} live trials"
        if group.best_loss != min((trial.best_loss for trial in own), default=NO_LOSS):
            yield f"study {group.spec.name} has another best than its trials"
        if group.end is not None and state.end is None and group.live:
            yield f"study {group.spec.name} has ended and {group.live} of its trials live"
    used = sum(group.slot_seconds for group in groups)
    if groups and abs(used - state.slot_seconds) > _DUST * max(1.0, used):
        yield f"the studies have used {used:g} slot-seconds of {state.slot_seconds:g}"


def statuses_match_their_definitions(state: StudyState) -> Iterator[str]:
    """Each status means what its description says."""
    for trial in state.trials:
        if trial.status is Status.RUNNING and trial.attempt is None:
            yield f"trial {trial.id} runs without an attempt"
        if trial.status is Status.READY and trial.goal <= trial.epoch:
            yield f"trial {trial.id} is ready for nothing"


def no_attempt_is_cut_and_relaunched_for_nothing(state: StudyState) -> Iterator[str]:
    """An attempt that ended at our order is not launched again with nothing in between.

    At our order: it reached the goal that the policy gave it or cut, or it made room for a resize;
    not by a failure, and not because its slots went or its next stage needs another width. Again:
    the next launch is for the same trial at the same width. Nothing in between: from the order to
    the launch every event was about this attempt, no other trial saw a report, and no decision
    opened, continued, launched or ended another trial.
    """
    for trial, epoch, attempt in state.relaunches.found:
        yield (
            f"trial {trial} was cut at epoch {epoch} and launched again as attempt {attempt} with "
            "nothing in between"
        )


INVARIANTS: tuple[Callable[[StudyState], Iterator[str]], ...] = (
    no_slot_is_overcommitted,
    idle_slots_are_usable_and_not_held,
    no_stage_is_narrower_than_it_needs,
    every_live_trial_with_a_goal_is_ready_or_has_an_attempt,
    attempts_and_members_refer_to_each_other,
    attempts_train_only_requested_epochs,
    trials_have_seen_only_known_epochs,
    the_best_is_the_best_seen,
    counters_of_trials_and_reports_are_right,
    the_tree_is_a_radix_tree,
    checkpoints_are_at_known_epochs,
    nodes_list_the_trials_that_want_them,
    pending_requests_are_about_existing_trials,
    groups_add_up_to_the_study,
    statuses_match_their_definitions,
    no_attempt_is_cut_and_relaunched_for_nothing,
)


def find_violations(state: StudyState) -> list[str]:
    """Return everything that is wrong with a state, each with the name of the check."""
    return [f"{check.__name__}: {text}" for check in INVARIANTS for text in check(state)]


def verify(state: StudyState) -> None:
    """Raise BrokenInvariant if anything is wrong."""
    found = find_violations(state)
    if found:
        raise BrokenInvariant("; ".join(found))
