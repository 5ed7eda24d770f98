"""The heart: an event goes in, decisions come out, each with its why.

Knows the order of things when something happens: fold the event, ask the policy about whoever has
news, bring the attempts' orders in line, fill the free slots, end the study when it is over.
Knows no algorithm: policy, generator and allocator are met through their ports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.decisions import Step
from paceline.core.ports import Allocator, Fork, Generator, Policy, sees_nothing
from paceline.core.values import Status
from paceline.machine.assignment import order_for
from paceline.machine.checkpoint_gc import beyond_budget, superfluous
from paceline.machine.groups import Audience
from paceline.machine.requirements import Asked, Told, beyond
from paceline.machine.scheduler import Filler, dispensable
from paceline.machine.state import StudyState
from paceline.machine.termination import end, number_of, reached, spent
from paceline.plan.settings import canonical, spliced
from paceline.plan.tree import known_on

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.core.decisions import AnyDecision, Entry
    from paceline.core.ports import Verdict
    from paceline.core.values import Config, TrialId
    from paceline.machine.groups import Group
    from paceline.machine.trial_state import Trial


# So many trials that fail, and none that has ever reported, are not the trials' fault.
_HOPELESS = 3


class Brains(Struct, frozen=True):
    """Who thinks for a study."""

    policy: Policy
    generator: Generator
    allocator: Allocator
    # Where several studies are driven as one: who thinks for those after the first.
    others: tuple[tuple[Policy, Generator], ...] = ()
    # Who says what the stages of a config need; None: nobody does.
    needs: Asked | Told | None = None

    @property
    def each(self) -> tuple[tuple[Policy, Generator], ...]:
        """Who thinks for each group; for a study that stands alone, for it."""
        return ((self.policy, self.generator), *self.others)

    @property
    def generators(self) -> list[Generator]:
        """Each group's generator."""
        return [generator for _, generator in self.each]


class Machine:
    """A study's state and the brains that think about it."""

    def __init__(self, brains: Brains) -> None:
        self.state = StudyState()
        self._policies = [policy for policy, _ in brains.each]
        sees: list[Callable[[Entry, StudyState], None]]
        sees = [brains.policy.see, brains.generator.see, brains.allocator.see]
        if brains.others:
            sees = [Audience(brains.each).see, brains.allocator.see]
        self._sees = tuple(see for see in sees if see is not sees_nothing)
        self._filler = Filler(brains)
        self._needs = brains.needs
        self._out: list[AnyDecision] = []
        # Whether time or slot time is limited, so that every event must be checked against it.
        self._limited = False

    @property
    def over(self) -> bool:
        """Whether the study has ended."""
        return self.state.end is not None

    def handle(self, event: e.AnyEvent) -> Step:
        """Take one fact and return it with every decision it causes, already folded in."""
        state = self.state
        number = state.number
        self._out = []
        self.take(event)
        if state.end is None and not (self._limited and self._spent()):
            react = _REACT.get(type(event))
            if react is not None:
                react(self, event)
            if state.end is None and not (type(event) is e.Submitted and event.more):
                self._settle()
        return Step(number, event, tuple(self._out))

    def fold(self, step: Step) -> None:
        """Take a step as it was decided, without deciding anything."""
        for entry in step.entries:
            self.take(entry)
        self.state.rides.touched.clear()
        self.state.files.suspects.clear()

    def take(self, entry: Entry) -> None:
        """Fold one entry into the state and show it to the brains."""
        state = self.state
        state.apply(entry)
        if type(entry) is e.Opened:
            budget = entry.spec.budget
            self._limited = budget.deadline_s is not None or budget.slot_seconds is not None
        for see in self._sees:
            see(entry, state)

    def decide(self, decision: AnyDecision) -> None:
        """Write a decision down and take it."""
        self._out.append(decision)
        self.take(decision)

    def open(
        self,
        config: Config,
        until: int,
        why: str,
        group: int = 0,
        fork: tuple[TrialId, int] | None = None,
    ) -> Trial:
        """Begin a trial; one that needs more than there is ends at once, and says so."""
        state = self.state
        number = len(state.trials)
        source, branch = fork or (None, None)
        self.decide(
            d.Open(
                trial=number,
                config=config,
                until=until,
                source=source,
                branch=branch,
                group=group,
                needs=() if self._needs is None else self._needs.along(config, state.spec),
                why=why,
            )
        )
        trial = state.trials[number]
        trouble = beyond(trial, state.capacity)
        if trouble is not None:
            self.decide(d.Fail(trial=number, why=trouble))
            self._mind_failures(f": {trouble}")
        return trial

    def end(self, decision: d.End) -> None:
        """End the study, and first give up what was kept for those who would have gone on."""
        self.state.files.suspect_all()
        self._collect(over=True)
        self.decide(decision)

    def credit(self, trial: Trial) -> None:
        """Give the trial what is already known of its path, judging it after each epoch."""
        while trial.alive and trial.epoch < trial.goal and self.state.end is None:
            if known_on(trial.leaf) <= trial.epoch:
                return
            self.decide(
                d.Credit(
                    trial=trial.id,
                    epoch=trial.epoch + 1,
                    why=f"epoch {trial.epoch + 1} under these settings is already trained",
                )
            )
            self._news(trial)

    def _settle(self) -> None:
        """Bring orders in line and fill what is free, where something can have changed."""
        state = self.state
        if state.rides.touched:
            self._amend()
        if state.slots.idle or state.slots.partial or state.elastic:
            self._filler.fill(self)
            if state.rides.touched:
                self._amend()
        if state.files.suspects:
            self._collect()
        if state.end is None and (self._limited or not state.attempts):
            self._filler.watch(self)

    # What each kind of event asks for

    def _begun(self, event: e.Opened | e.Resumed) -> None:
        deadline = self.state.deadline_s
        if deadline is not None:
            self.decide(d.WakeAt(at=deadline, why="the deadline ends the study"))

    def _reported(self, event: e.Reported) -> None:
        for trial in self.state.delivered:
            self._news(trial)
        attempt = self.state.attempts.get(event.attempt)
        astray = attempt is not None and attempt.strayed(event.epoch, event.version)
        if attempt is not None and astray and not attempt.halting:
            why = f"it was past epoch {attempt.epoch} when it was told to turn there"
            self.decide(d.Halt(attempt=attempt.id, why=why))

    def _attempt_ended(self, event: e.Ended) -> None:
        trial = self.state.subject
        retries = self.state.spec.retries
        if trial is None or not trial.alive or trial.failures <= retries:
            return
        # The note is the user's own error; its last line says what it was.
        note = f": {event.note.splitlines()[-1]}" if event.note else ""
        why = f"failure {trial.failures}, and only {retries} may be retried{note}"
        self.decide(d.Fail(trial=trial.id, why=why))
        self._mind_failures(note)

    def _mind_failures(self, note: str) -> None:
        """End a study in which trials have failed and none has ever reported."""
        if self.state.epochs_trained:
            return
        failed = sum(each.ended is Status.FAILED for each in self.state.trials)
        if failed >= _HOPELESS:
            why = f"the first {failed} trials failed before their first report{note}"
            end(self, self.state, d.EndCause.FAILED, why)

    def _subject(self, event: e.Forecasted | e.Woke) -> None:
        trial = self.state.subject
        if trial is not None and trial.alive:
            self._judge(trial, self._view(trial))

    def _commanded(self, event: e.Commanded) -> None:
        match event.command:
            case e.StopStudy():
                end(self, self.state, d.EndCause.COMMAND, "a command asked for it")
            case e.ChangeSlots(by=by) if by > 0:
                self.decide(d.Provide(slots=by, why=f"a command gives {by} more"))
            case e.ChangeSlots(by=by):
                going = dispensable(self.state, -by)
                if going:
                    self.decide(d.Retire(slots=going, why=f"a command takes {len(going)} away"))

    def _submitted(self, event: e.Submitted) -> None:
        until = min(max(event.until, 1), self.state.spec.epochs)
        self.credit(self.open(canonical(event.config), until, "an outside tuner asks for it"))

    def _adopted(self, event: e.Adopted) -> None:
        for trial in self.state.trials:
            self.credit(trial)

    # What the policy says

    def _news(self, trial: Trial) -> None:
        """React to one more epoch seen: the target, then the policy."""
        view = self._view(trial)
        if view.end is not None:
            return
        why = None if view.spec.budget.target is None else reached(trial, view)
        if why is None:
            self._judge(trial, view)
        else:
            end(self, view, d.EndCause.TARGET, why)

    def _view(self, trial: Trial) -> StudyState | Group:
        """Return the study that the trial belongs to: its group, where there are several."""
        groups = self.state.groups
        return self.state if groups is None else groups[trial.group]

    def _judge(self, trial: Trial, view: StudyState | Group) -> None:
        for verdict in self._policies[trial.group].judge(trial, view):
            self._carry_out(verdict, view)
            if view.end is not None:
                return

    def _carry_out(self, verdict: Verdict, view: StudyState | Group) -> None:
        """Turn a verdict into a decision; one that changes nothing is none."""
        state = self.state
        if isinstance(verdict, d.End):
            end(self, view, d.EndCause.POLICY, verdict.why)
        elif isinstance(verdict, d.Close):
            if not view.closed:
                self.decide(d.Close(group=number_of(view), why=verdict.why))
        elif verdict.trial is None or state.trials[verdict.trial].alive:
            if isinstance(verdict, Fork):
                self._fork(verdict)
            elif isinstance(verdict, d.Go):
                self._go(verdict)
            elif isinstance(verdict, d.AskForecast):
                # Once an epoch: a model that has no answer would be asked for ever.
                if verdict.epoch > state.trials[verdict.trial].asked:
                    self.decide(verdict)
            elif isinstance(verdict, d.Cut):
                if state.trials[verdict.trial].goal > state.trials[verdict.trial].epoch:
                    self.decide(verdict)
            else:
                self.decide(verdict)

    def _go(self, verdict: d.Go) -> None:
        until = min(verdict.until, self.state.spec.epochs)
        trial = self.state.trials[verdict.trial]
        if until > max(trial.goal, trial.epoch):
            self.decide(verdict if until == verdict.until else replace(verdict, until=until))
            self.credit(trial)

    def _fork(self, verdict: Fork) -> None:
        state = self.state
        source = state.trials[verdict.source]
        self.decide(d.Stop(trial=verdict.trial, why=verdict.why))
        child = self.open(
            spliced(source.config, verdict.epoch, verdict.changes, state.spec.epochs),
            min(verdict.until, state.spec.epochs),
            verdict.why,
            source.group,
            (source.id, verdict.epoch),
        )
        self.credit(child)

    # Orders, and the end

    def _amend(self) -> None:
        """Bring the orders of attempts whose members or goals changed in line."""
        touched = self.state.rides.touched
        while touched:
            attempt = touched.pop(next(iter(touched)))
            if attempt.id not in self.state.attempts or attempt.halting:
                continue
            if not attempt.members and attempt.epoch >= attempt.goal:
                continue  # it has done its work and is about to end
            if not attempt.members and not attempt.trial.alive:
                self.decide(d.Halt(attempt=attempt.id, why="nobody needs it any more"))
                continue
            order = order_for(attempt, self.state.rides.paths)
            if order != (attempt.trial, attempt.goal, attempt.save_at):
                self.decide(
                    d.Amend(
                        attempt=attempt.id,
                        version=attempt.version + 1,
                        trial=order.trial.id,
                        goal=order.goal,
                        save_at=order.save_at,
                        why=_reason(attempt.goal, order.goal),
                    )
                )

    def _collect(self, *, over: bool = False) -> None:
        """Give up checkpoints that nobody needs, and those that do not fit."""
        limit = self.state.spec.saves.bytes
        for find, why in (
            (superfluous, "nobody needs them any more"),
            (beyond_budget, f"all may take {limit} bytes, and these cost least to train again"),
        ):
            names = find(self.state, over=over)
            if names:
                self.decide(d.Drop(checkpoints=tuple(sorted(names)), why=why))

    def _spent(self) -> bool:
        """End the study if its time or its slot time is used up."""
        found = spent(self.state)
        if found is not None:
            end(self, self.state, *found)
        return found is not None


def _reason(before: int, after: int) -> str:
    if after > before:
        return f"its goal moved on from epoch {before} to {after}"
    if after < before:
        return f"its goal moved back from epoch {before} to {after}"
    return "somebody needs another checkpoint or path"


_REACT: dict[type, Callable[[Machine, Any], None]] = {
    e.Opened: Machine._begun,
    e.Resumed: Machine._begun,
    e.Reported: Machine._reported,
    e.Ended: Machine._attempt_ended,
    e.Forecasted: Machine._subject,
    e.Woke: Machine._subject,
    e.Commanded: Machine._commanded,
    e.Submitted: Machine._submitted,
    e.Adopted: Machine._adopted,
}
