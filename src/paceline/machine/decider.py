"""Decisions: how a verdict becomes one, and what each takes with it.

Knows the parts of a study. Folds every entry into the state and shows it to the parts, asks a
policy about a trial with news, and ends studies. Does not know events or free slots: the machine
and the scheduler do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.ports import (
    Allocator,
    Fork,
    Generator,
    Policy,
    see_nothing,
    train_to_the_end,
)
from paceline.machine.checkpoint_gc import find_over_budget, find_superfluous
from paceline.machine.failed_trials import describe_commonest, explain_failed_study, list_failed
from paceline.machine.requirements import NeedsFunction, RecordedNeeds, explain_unmet_needs
from paceline.machine.state import StudyState
from paceline.plan.settings import splice
from paceline.plan.tree import last_known_epoch

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.core.decisions import AnyDecision, EndCause, Entry
    from paceline.core.ports import Verdict
    from paceline.core.values import Config, TrialId
    from paceline.core.views import StudyView
    from paceline.machine.groups import GroupState
    from paceline.machine.trial_state import TrialState


# After this many failed trials without a single report the study ends: the trials are not at fault.
_FAILED_TRIALS = 3
# Ends after which a study without a result has failed; a command ends it in any case.
_MAY_HAVE_FAILED = frozenset(d.EndCause) - {d.EndCause.COMMAND, d.EndCause.FAILED}


class Parts(Struct, frozen=True):
    """The policy, generator and allocator of a study."""

    policy: Policy
    generator: Generator
    allocator: Allocator
    # The policies and generators of the studies after the first, if several are run as one.
    others: tuple[tuple[Policy, Generator], ...] = ()
    # The widths that the stages of a config need; None: not declared.
    needs: NeedsFunction | RecordedNeeds | None = None

    @property
    def each(self) -> tuple[tuple[Policy, Generator], ...]:
        """The policy and the generator of each group."""
        return ((self.policy, self.generator), *self.others)

    @property
    def generators(self) -> list[Generator]:
        """The generator of each group."""
        return [generator for _, generator in self.each]


class Origin(NamedTuple):
    """Where the config of a new trial comes from: another trial, or a proposal."""

    source: TrialId | None = None
    branch: int | None = None
    # The number of the proposal; None: the next one.
    number: int | None = None


_NEXT = Origin()


class Decider:
    """The state of a study and its parts. Every decision passes through here."""

    def __init__(self, parts: Parts) -> None:
        self.state = StudyState()
        # The decisions of the step that is being decided.
        self.decisions: list[AnyDecision] = []
        self._policies = [policy for policy, _ in parts.each]
        self._needs = parts.needs
        # For each group the `see` methods of its parts, without those that do nothing.
        self._sees = [_list_sees(*pair) for pair in parts.each]
        self._allocator_sees = _list_sees(parts.allocator)
        self._all_see = (*self._sees[0], *self._allocator_sees)

    def take(self, entry: Entry) -> None:
        """Fold one entry into the state and show it to the parts."""
        state = self.state
        state.apply(entry)
        if state.together is None:
            for see in self._all_see:
                see(entry, state)
            return
        for group in state.together.find_concerned(entry, state.subject):
            shown = _show_to_group(entry, group) if isinstance(entry, e.Opened) else entry
            for see in self._sees[group.index]:
                see(shown, group)
        for see in self._allocator_sees:
            see(entry, state)

    def decide(self, decision: AnyDecision) -> None:
        """Write a decision down and take it."""
        self.decisions.append(decision)
        self.take(decision)

    def open_trial(
        self,
        config: Config,
        until: int,
        why: str,
        group: int = 0,
        origin: Origin = _NEXT,
        label: str = "",
    ) -> TrialState:
        """Open a trial; fail it at once if it needs more slots than the study has."""
        state = self.state
        number = len(state.trials)
        self.decide(
            d.Open(
                trial=number,
                config=config,
                until=until,
                source=origin.source,
                branch=origin.branch,
                group=group,
                needs=() if self._needs is None else self._needs.list_widths(config, state.spec),
                label=label,
                number=origin.number,
                why=why,
            )
        )
        trial = state.trials[number]
        reason = explain_unmet_needs(trial, state.capacity) if trial.needs else None
        if reason is not None:
            self.fail_trial(trial, reason)
        return trial

    def fail_trial(self, trial: TrialState, why: str) -> None:
        """Give a trial up; end the study if its first trials failed and none ever reported."""
        self.decide(d.Fail(trial=trial.id, why=why))
        if self.state.epochs_trained:
            return
        failed = list_failed(self.state)
        if len(failed) >= _FAILED_TRIALS:
            why = f"the first {len(failed)} trials failed before their first report"
            self.end_group(self.state, d.EndCause.FAILED, why + describe_commonest(failed))

    def credit(self, trial: TrialState) -> None:
        """Give the trial the epochs already known on its path, judging it after each."""
        while trial.alive and trial.epoch < trial.goal and self.state.end is None:
            if last_known_epoch(trial.leaf) <= trial.epoch:
                return
            self.decide(
                d.Credit(
                    trial=trial.id,
                    epoch=trial.epoch + 1,
                    why=f"epoch {trial.epoch + 1} under these settings is already trained",
                )
            )
            self.review(trial)

    # Verdicts of policies

    def review(self, trial: TrialState) -> None:
        """React to one more epoch that a trial has seen: check the target, then ask the policy."""
        state = self.state
        group = state if state.together is None else state.find_group(trial)
        if group.end is not None:
            return
        if group.spec.budget.target is not None:
            why = _explain_target(trial, group)
            if why is not None:
                self.end_group(group, d.EndCause.TARGET, why)
                return
        self.judge(trial, group)

    def judge(self, trial: TrialState, group: GroupState) -> None:
        """Ask the group's policy about a trial and carry its verdicts out."""
        for verdict in self._policies[trial.group].judge(trial, group):
            self._carry_out(verdict, group)
            if group.end is not None:
                return

    def readmit(self, trial: TrialState) -> None:
        """Ask the policy how a trial goes on after the study was extended."""
        group = self.state.find_group(trial)
        if trial.alive and group.end is None:
            policy = self._policies[trial.group]
            # A policy without the method is one of another package.
            ask = getattr(policy, "readmit", train_to_the_end)
            for verdict in ask(trial, group):
                self._carry_out(verdict, group)

    def end_if_reached(self, group: GroupState) -> None:
        """End a study whose target its reports have reached already."""
        if group.end is None and group.spec.budget.target is not None:
            reached = (_explain_reached(trial, group) for trial in group.trials)
            why = next((why for why in reached if why is not None), None)
            if why is not None:
                self.end_group(group, d.EndCause.TARGET, why)

    def _carry_out(self, verdict: Verdict, group: GroupState) -> None:
        """Turn a verdict into a decision, unless it changes nothing."""
        state = self.state
        # The most frequent ones first, and by type: `isinstance` of a Struct is slow.
        if type(verdict) is d.Pause:
            if state.trials[verdict.trial].alive:
                self.decide(verdict)
        elif type(verdict) is d.Go:
            if state.trials[verdict.trial].alive:
                self._go(verdict)
        elif isinstance(verdict, d.End):
            self.end_group(group, d.EndCause.POLICY, verdict.why)
        elif isinstance(verdict, d.Close):
            if not group.closed:
                self.decide(d.Close(group=group.index, why=verdict.why))
        elif verdict.trial is None or state.trials[verdict.trial].alive:
            if isinstance(verdict, Fork):
                self._fork(verdict)
            elif isinstance(verdict, d.AskForecast):
                # Once an epoch: a model without an answer would be asked again and again.
                if verdict.epoch > state.trials[verdict.trial].forecast_epoch:
                    self.decide(verdict)
            elif isinstance(verdict, d.Cut):
                if state.trials[verdict.trial].goal > state.trials[verdict.trial].epoch:
                    self.decide(verdict)
            else:
                self.decide(verdict)

    def _go(self, verdict: d.Go) -> None:
        until = min(verdict.until, self.state.spec.epochs)
        trial = self.state.trials[verdict.trial]
        if until > trial.goal and until > trial.epoch:
            self.decide(verdict if until == verdict.until else replace(verdict, until=until))
            self.credit(trial)

    def _fork(self, verdict: Fork) -> None:
        state = self.state
        source = state.trials[verdict.source]
        self.decide(d.Stop(trial=verdict.trial, why=verdict.why))
        child = self.open_trial(
            splice(source.config, verdict.epoch, verdict.changes, state.spec.epochs),
            min(verdict.until, state.spec.epochs),
            verdict.why,
            source.group,
            Origin(source.id, verdict.epoch),
        )
        self.credit(child)

    # Checkpoints, and the end

    def drop_checkpoints(self, *, over: bool = False) -> None:
        """Drop the checkpoints that no trial needs, then those beyond the budget of bytes."""
        limit = self.state.spec.saves.bytes
        for find, why in (
            (find_superfluous, "no trial needs them any more"),
            (find_over_budget, f"all may take {limit} bytes, and these cost least to train again"),
        ):
            names = find(self.state, over=over)
            if names:
                self.decide(d.Drop(checkpoints=tuple(sorted(names)), why=why))

    def end_group(self, group: GroupState, cause: EndCause, why: str) -> None:
        """End a study; of several run as one, that study alone, and all with the last."""
        state = self.state
        if cause in _MAY_HAVE_FAILED:
            failure = explain_failed_study(group)
            if failure is not None:
                why = failure if cause is d.EndCause.QUIET else f"{why}, and {failure}"
                cause = d.EndCause.FAILED
        if group is state:
            self._end(d.End(cause=cause, why=why))
            return
        self.decide(d.Leave(group=group.index, cause=cause, why=why))
        ends = [each.end for each in state.groups]
        if None not in ends:
            # The cause that ended all of them; if they differ, nothing is left to run.
            causes = {each.cause for each in ends if each is not None}
            last = causes.pop() if len(causes) == 1 else d.EndCause.QUIET
            self._end(d.End(cause=last, why=f"all {len(ends)} studies have ended"))
            return
        for trial in group.trials:
            if trial.alive:
                why = f"its study {group.spec.name!r} has ended: {cause.value}"
                self.decide(d.Stop(trial=trial.id, why=why))

    def _end(self, decision: d.End) -> None:
        """End everything; first drop the checkpoints that trials would have continued from."""
        self.state.checkpoints.recheck_all()
        self.drop_checkpoints(over=True)
        self.decide(decision)


def _list_sees(
    *parts: Policy | Generator | Allocator,
) -> tuple[Callable[[Entry, StudyView], None], ...]:
    return tuple(part.see for part in parts if part.see is not see_nothing)


def _show_to_group(opened: e.Opened, group: GroupState) -> e.Opened:
    """Return the first event as a group sees it: with its own specs."""
    earlier = tuple(spec.studies[group.index] for spec in opened.earlier)
    return replace(opened, spec=group.spec, earlier=earlier)


def _explain_reached(trial: TrialState, group: GroupState) -> str | None:
    """Return how a trial has ever reached the study's target; None if it has not."""
    spec, target, losses = group.spec, group.spec.budget.target, trial.losses
    assert target is not None
    for epoch in range(target.over, len(losses) + 1):
        loss = sum(losses[epoch - target.over : epoch]) / target.over
        if loss <= spec.sign * target.value:
            value = f"{spec.metric} {spec.sign * loss:.6g}"
            return (
                f"trial {trial.id} reached {value} at epoch {epoch}: the target is "
                f"{target.value:.6g}"
            )
    return None


def _explain_target(trial: TrialState, group: GroupState) -> str | None:
    """Return how the trial's last reports reach the study's target; None if they do not."""
    spec = group.spec
    target = spec.budget.target
    if target is None or trial.epoch < target.over:
        return None
    recent = (trial.loss,) if target.over == 1 else trial.losses[-target.over :]
    loss = sum(recent) / target.over
    if loss > spec.sign * target.value:
        return None
    mean = f", mean of the last {target.over} reports," if target.over > 1 else ""
    # A target that the very first report meets is probably a mistake.
    doubt = "; even the first report is past it: check its sign, and mode" * (
        group.reports == target.over
    )
    return (
        f"trial {trial.id} reached {spec.metric} {spec.sign * loss:.6g}{mean} at epoch "
        f"{trial.epoch}: the target is {target.value:.6g}{doubt}"
    )
