"""Stories: every entry of a log as one sentence.

`describe` words each entry, once. The story of a study, the story of a trial, the lines of a
running study and the decisions in a report select among these sentences. Decides nothing, and knows
no terminal and no HTML.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from paceline.analysis.summary_text import describe_reuse, describe_status
from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.errors import SpecError
from paceline.core.text import (
    format_config,
    format_count,
    format_duration,
    format_metric,
    format_numbers,
)
from paceline.core.values import NO_LOSS, OPEN_ENDED, Status
from paceline.machine.failures import make_failure
from paceline.machine.state import StudyState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from paceline.core.decisions import Entry, Step
    from paceline.core.values import AttemptId, StudySpec, TrialId
    from paceline.machine.groups import GroupState
    from paceline.machine.trial_state import TrialState

# The least time between two sentences about a new best value, in study seconds.
BEST_EVERY_S = 5.0


def narrate_study(steps: Iterable[Step]) -> Iterator[str]:
    """Yield the sentences about a study as a whole."""
    state = StudyState()
    leader = None
    # Configs reused from each study, not yet reported.
    reused: dict[str, int] = {}
    recalled: set[str] = set()
    for step in steps:
        for entry in step.entries:
            if isinstance(entry, e.Adopted):
                reused[entry.study] = reused.get(entry.study, 0) + 1
            elif reused:
                yield _stamp(state.now, describe_reuse(reused))
                reused = {}
            state.apply(entry)
            text = None
            if isinstance(entry, d.End | d.Leave):
                text = _describe_end(entry, state)
            elif isinstance(entry, _ABOUT_STUDY):
                text = explain(entry, state.spec)
            elif isinstance(entry, e.Recalled) and entry.study not in recalled:
                recalled.add(entry.study)
                text = explain(entry, state.spec)
            elif state.best is not None and state.best is not leader:
                text = f"new best: {_describe_best(state)}"
            leader = state.best
            if text is not None:
                yield _stamp(state.now, text)
    if state.number and state.end is None:
        yield _stamp(state.now, "the log ends here; the study has not ended")


def narrate_trial(steps: Iterable[Step], trial: TrialId) -> Iterator[str]:
    """Yield the sentences about one trial; successive reports share one."""
    state = StudyState()
    story = TrialStory(trial)
    for step in steps:
        for entry in step.entries:
            state.apply(entry)
            yield from story.take(entry, state)
    if trial >= len(state.trials):
        opened = format_count(len(state.trials), "trial")
        raise SpecError(f"trial {trial} does not exist: the study has {opened}.")
    yield from story.close(state)


class TrialStory:
    """The sentences about one trial; successive reports share one sentence."""

    def __init__(self, trial: TrialId) -> None:
        self._trial = trial
        # Epochs reported and not yet in a sentence, where they were trained, and when the last was.
        self._epochs: list[int] = []
        self._origin = ""
        self._until = 0.0

    def take(self, entry: Entry, state: StudyState) -> Iterator[str]:
        """Yield what an entry, just applied to the state, adds to the story."""
        trial = state.trials[self._trial] if self._trial < len(state.trials) else None
        if trial is None:
            return
        if trial in state.delivered:
            origin = _origin(entry, trial)
            if origin != self._origin:
                yield from self._flush(trial, state.spec)
            self._origin, self._until = origin, state.now
            self._epochs.append(trial.epoch)
            return
        text = _explain_for_trial(entry, trial, state)
        if text is not None:
            yield from self._flush(trial, state.spec)
            yield _stamp(state.now, text)

    def close(self, state: StudyState) -> Iterator[str]:
        """Yield what is left at the end of the log, and where the trial stands."""
        trial, spec = state.trials[self._trial], state.spec
        yield from self._flush(trial, spec)
        best = ""
        if trial.best_loss != NO_LOSS:
            value = format_metric(trial.best_loss, spec, 6)
            best = f"; best {spec.metric} {value} at epoch {trial.best_epoch}"
        yield f"Trial {trial.id} {_describe_standing(trial, state)}{best}."

    def _flush(self, trial: TrialState, spec: StudySpec) -> Iterator[str]:
        if not self._epochs:
            return
        first, last = self._epochs[0], self._epochs[-1]
        losses = trial.losses[first - 1 : last]
        start, end = (format_metric(loss, spec, 6, "NaN") for loss in (losses[0], losses[-1]))
        text = f"trial {trial.id} reports {spec.metric} {end} at epoch {first}"
        if first != last:
            seconds = sum(trial.seconds[first - 1 : last]) / len(losses)
            text = (
                f"trial {trial.id} reports {spec.metric} {start} to {end} in epochs {first} to "
                f"{last}, {format_duration(seconds)} each"
            )
        yield _stamp(self._until, text + self._origin)
        self._epochs = []


class Sentence(NamedTuple):
    """A sentence and its time on the study's clock; worded when it is read, since few are."""

    at: float
    # An entry with what its wording needs: the spec and, for an attempt, its trial. Or text.
    what: Entry | str
    spec: StudySpec
    trial: TrialId | None = None
    # For the live view only, not for a log file: what the policy decides about single trials.
    is_minor: bool = False

    @property
    def text(self) -> str:
        """The sentence on one line, without its time and its full stop."""
        if isinstance(self.what, str):
            return self.what
        return " ".join(explain(self.what, self.spec, self.trial).split())

    def __str__(self) -> str:
        return _stamp(self.at, self.text)


class LiveStory:
    """The sentences about a study while it runs: news and failures, never every report."""

    def __init__(self) -> None:
        # The trial whose path each attempt follows.
        self._trials: dict[AttemptId, TrialId] = {}
        self._reused = 0
        # Studies that the generator learns from.
        self._recalled: set[str] = set()
        # The best loss in a sentence so far, and when that was.
        self._best = NO_LOSS
        self._best_at = -BEST_EVERY_S

    def take(self, state: StudyState, steps: Sequence[Step]) -> list[Sentence]:
        """Return the sentences of these steps; the state is the one after the last of them."""
        found: list[Sentence] = []
        for step in steps:
            for entry in step.entries if step.decisions else (step.event,):
                # By type: most entries have no sentence, and there may be thousands a second.
                if type(entry) in _LIVE:
                    sentence = self._select(entry, step.event.at, state)
                    if sentence is not None:
                        found.append(sentence)
        if state.best_loss < self._best and state.now - self._best_at >= BEST_EVERY_S:
            self._best, self._best_at = state.best_loss, state.now
            assert state.best is not None
            config = format_config(state.best.config)
            text = f"new best: {_describe_best(state)} with {config}"
            # Before the end, where both come at once.
            at = len(found) - 1 if found and isinstance(found[-1].what, d.End) else len(found)
            found.insert(at, Sentence(state.now, text, state.spec))
        return found

    def _select(self, entry: Entry, at: float, state: StudyState) -> Sentence | None:
        spec, is_minor = state.spec, isinstance(entry, _MINOR)
        match entry:
            case e.Reported(epoch=epoch, attempt=attempt):
                trial = self._trials.get(attempt) if epoch >= spec.epochs else None
                return None if trial is None else _finish(at, trial, state)
            case d.Launch() | d.Amend():
                self._trials[entry.attempt] = entry.trial
                return None
            case d.Credit(epoch=epoch, trial=credited):
                return _finish(at, credited, state) if epoch >= spec.epochs else None
            case e.Ended():
                return self._end(entry, at, state)
            case e.Resumed() | e.Extended():
                self._trials.update((number, a.trial.id) for number, a in state.attempts.items())
            case e.Adopted():
                self._reused += 1
                if self._reused < len(state.reused.trials):
                    return None  # more follow in the same batch: one sentence for all
                return Sentence(at, describe_reuse(state.reused.studies), spec)
            case e.Recalled(study=study):
                if study in self._recalled:
                    return None
                self._recalled.add(study)
        return Sentence(at, entry, spec, is_minor=is_minor)

    def _end(self, event: e.Ended, at: float, state: StudyState) -> Sentence | None:
        trial = self._trials.pop(event.attempt, None)
        if trial is None:
            return None
        if event.cause is e.Cause.FINISHED and state.trials[trial].epoch < state.spec.epochs:
            return _finish(at, trial, state)
        if event.cause not in (e.Cause.FAILED, e.Cause.CROWDED):
            return None
        note = make_failure(trial, event).headline if event.note else ""
        return Sentence(at, replace(event, note=note), state.spec, trial)


def explain(entry: Entry, spec: StudySpec, trial: TrialId | None = None) -> str:
    """Return an entry as a sentence with its reason; `trial` is the one an attempt trains."""
    reason = getattr(entry, "why", "") or getattr(entry, "note", "")
    text = describe(entry, spec, trial)
    return f"{text}: {reason}" if reason else text


def describe(entry: Entry, spec: StudySpec, trial: TrialId | None = None) -> str:
    """Return an entry as a sentence without its reason."""
    if isinstance(entry, d.Decision):
        return _describe_decision(entry, spec)
    return _describe_event(entry, spec, "" if trial is None else f" of trial {trial}")


def _describe_event(event: e.AnyEvent, spec: StudySpec, of_trial: str) -> str:
    match event:
        case e.Opened():
            goal = "minimizes" if spec.mode == "min" else "maximizes"
            chosen = f"; policy {spec.policy}: {why}" if (why := event.run.policy_why) else ""
            policy = event.earlier[0].policy if event.earlier else spec.policy
            return f"study {spec.name!r} starts: {policy} {goal} {spec.metric}{chosen}"
        case e.Resumed():
            return f"study {spec.name!r} resumes"
        case e.Extended(to=to):
            return f"study {spec.name!r} is extended to {to}"
        case e.DeadlineChanged(deadline_s=deadline, kept_s=kept):
            until = f"training ends at {deadline:.6g} s"
            return f"{until}, {kept:.3g} s before the call has to return" if kept else until
        case e.Reported(attempt=attempt, epoch=epoch, metrics=metrics):
            return f"attempt {attempt} reports epoch {epoch}: {format_config(metrics)}"
        case e.Suggested(trial=number, params=params):
            return f"trial {number} asks for {format_config(params)}"
        case e.Annotated(trial=number, attrs=attrs):
            return f"trial {number} notes {format_config(attrs)}"
        case e.Saved(attempt=attempt, epoch=epoch):
            return f"attempt {attempt} saves a checkpoint of epoch {epoch}"
        case e.Missed(attempt=attempt, epoch=epoch, note=note):
            why = "" if note else ": the order came too late"
            return f"attempt {attempt}{of_trial} saves no checkpoint of epoch {epoch}{why}"
        case e.Spoiled(attempt=attempt):
            return f"the checkpoint that attempt {attempt}{of_trial} starts from is unusable"
        case e.Ended(attempt=attempt, cause=cause):
            return f"attempt {attempt}{of_trial} {_ENDS[cause]}"
        case e.Forecasted(trial=trial, epoch=epoch, forecast=forecast):
            if forecast is None:
                return f"there is no forecast of trial {trial} at epoch {epoch}"
            last = forecast.epochs[-1]
            value = format_metric(forecast.median(last), spec, 6)
            return f"the forecast of trial {trial} for epoch {last} is {spec.metric} {value}"
        case e.Proposed(config=config):
            if config is None:
                return "the generator proposes no more configs"
            return f"the generator proposes {format_config(config)}"
        case e.CapacityChanged(slots=slots):
            return f"{format_count(len(slots), 'slot is', 'slots are')} available"
        case e.Woke():
            return "a requested wake-up arrives"
        case e.Commanded(command=e.ChangeSlots(by=by)):
            return f"a command changes the number of slots by {by:+d}"
        case e.Commanded(command=e.ExtendStudy(options=options)):
            return f"a command extends the study by {format_config(options)}"
        case e.Commanded():
            return "a command stops the study"
        case e.Submitted(until=until):
            return f"an outside tuner submits a trial{_describe_goal(until, '')}"
        case e.Adopted(study=study):
            return describe_reuse({study: 1})
        case e.Recalled(study=study):
            return f"the generator learns from study {study!r}"


_ENDS = {
    e.Cause.GOAL: "ends at its goal",
    e.Cause.FINISHED: "ends: the training function returned",
    e.Cause.PRUNED: "ends: the training function raised TrialPruned",
    e.Cause.HALTED: "ends as ordered",
    e.Cause.FAILED: "fails",
    e.Cause.LOST: "is lost",
    e.Cause.CROWDED: "runs out of memory on a shared slot",
}


def _describe_decision(decision: d.AnyDecision, spec: StudySpec) -> str:
    match decision:
        case d.Open(trial=trial, config=config, until=until, source=source, branch=branch):
            fork = "" if source is None else f", forked from trial {source} at epoch {branch},"
            study = f" for {spec.groups[decision.group].name!r}" if spec.groups else ""
            settings = format_config(config)
            return f"trial {trial} is opened{study}{fork} with {settings}{_describe_goal(until)}"
        case d.Close(group=group):
            study = f" of {spec.groups[group].name!r}" if spec.groups else ""
            return f"no more trials{study} are opened"
        case d.Leave(group=group):
            return f"study {spec.groups[group].name!r} ends"
        case d.End():
            return "the study ends"
        case d.AskForecast(trial=trial, epoch=epoch):
            return f"a forecast of trial {trial} is requested at epoch {epoch}"
        case d.AskProposal():
            return "a config is requested from the generator"
        case d.WakeAt(at=at):
            return f"a wake-up is requested at {format_duration(at)}"
        case d.Provide(slots=count):
            return f"{format_count(count, 'more slot is', 'more slots are')} requested"
        case d.Retire(slots=slots):
            return f"{format_numbers('slot', slots)} {'is' if len(slots) == 1 else 'are'} released"
        case d.Drop(checkpoints=names):
            return f"{format_count(len(names), 'checkpoint is', 'checkpoints are')} deleted"
        case d.Launch() | d.Amend() | d.Halt() | d.Resize():
            return _describe_order(decision)
        case _:
            return f"trial {decision.trial} {_describe_verdict(decision)}"


def _describe_order(order: d.Launch | d.Amend | d.Halt | d.Resize) -> str:
    """Return an order to an attempt as a sentence."""
    match order:
        case d.Launch(trial=trial, start=start, slots=slots, goal=goal):
            origin = f"from the checkpoint of epoch {start}" if start else "from scratch"
            place = format_numbers("slot", slots)
            text = f"of trial {trial} starts {origin} on {place}{_describe_goal(goal)}"
        case d.Amend(trial=trial, goal=goal):
            text = f"trains trial {trial}{_describe_goal(goal, '')}"
        case d.Halt():
            text = "is halted"
        case d.Resize(width=width):
            text = f"moves to width {width:g} after its current epoch"
    return f"attempt {order.attempt} {text}"


def _describe_goal(epoch: int, comma: str = ",") -> str:
    """Return up to which epoch, as the end of a sentence; empty if only the function knows it."""
    return "" if epoch >= OPEN_ENDED else f"{comma} up to epoch {epoch}"


def _describe_verdict(
    decision: d.Go | d.Pause | d.Cut | d.Stop | d.Fail | d.Credit,
) -> str:
    """Return what a decision does to its trial, without the subject."""
    match decision:
        case d.Go(until=until):
            return "may continue" if until >= OPEN_ENDED else f"may continue to epoch {until}"
        case d.Pause():
            return "is paused"
        case d.Cut():
            return "is paused after its current epoch"
        case d.Stop():
            return "is stopped"
        case d.Fail():
            return "is given up"
        case d.Credit(epoch=epoch):
            return f"gets epoch {epoch}, which is already trained"


# What a study's story has, besides reuse, its best and its end.
_ABOUT_STUDY = (
    e.Opened,
    e.Resumed,
    e.Extended,
    e.CapacityChanged,
    e.Commanded,
    e.Submitted,
    d.Close,
    d.Fail,
)
# What the lines of a running study are made of.
_LIVE = {
    *(e.Opened, e.Resumed, e.Extended, e.Reported, e.Ended, e.CapacityChanged, e.Commanded),
    *(e.Adopted, e.Recalled),
    *(d.Open, d.Go, d.Pause, d.Cut, d.Stop, d.Fail, d.Credit, d.Close),
    *(d.Launch, d.Amend, d.Retire, d.Leave, d.End),
}

_MINOR = (d.Open, d.Go, d.Pause, d.Cut, d.Stop, d.Credit, d.Close)

_STANDS = {
    Status.READY: "is ready to continue",
    Status.RUNNING: "is running",
    Status.PAUSED: "is paused",
    Status.FINISHED: "has finished",
    Status.STOPPED: "was stopped",
    Status.FAILED: "has failed",
}


def _explain_for_trial(entry: Entry, trial: TrialState, state: StudyState) -> str | None:
    """Return an entry's sentence if it belongs into this trial's story."""
    match entry:
        case d.End():
            return explain(entry, state.spec) if trial.alive else None
        case d.Launch(trial=number) | d.AskForecast(trial=number):
            # The reason is that of the decision before it.
            return describe(entry, state.spec) if number == trial.id else None
        case d.Credit() | d.Amend() | d.WakeAt() | e.Woke():
            return None
        case d.Resize(attempt=attempt) | d.Halt(attempt=attempt) | e.Missed(attempt=attempt):
            found = state.attempts.get(attempt)
            trains = found is not None and found.trial is trial
            return explain(entry, state.spec, trial.id) if trains else None
        case e.Ended(cause=cause):
            shown = state.subject is trial and cause not in (e.Cause.GOAL, e.Cause.HALTED)
            return explain(entry, state.spec, trial.id) if shown else None
    return explain(entry, state.spec) if getattr(entry, "trial", None) == trial.id else None


def _origin(entry: Entry, trial: TrialState) -> str:
    """Return where a reported epoch was trained, unless that was for this trial."""
    if isinstance(entry, d.Credit):
        return ", already trained with the same settings, at no cost"
    if isinstance(entry, e.Reported) and trial.attempt is not None:
        lead = trial.attempt.trial
        if lead is not trial:
            return f", trained together with trial {lead.id}"
    return ""


def _describe_standing(trial: TrialState, state: StudyState) -> str:
    """Return what a trial does at the end of the log, or did at the end of its study."""
    view = state.find_group(trial)
    if view.end is not None and trial.status in (Status.RUNNING, Status.READY):
        place = f"after epoch {trial.epoch}" if trial.epoch else "before its first report"
        return f"is {describe_status(trial.status, view)}, {place}"
    place = f"at epoch {trial.epoch}" if trial.epoch else "before its first report"
    return f"{_STANDS[trial.status]} {place}"


def _describe_end(decision: d.End | d.Leave, state: StudyState) -> str:
    view: GroupState = state
    epochs = f" and {format_count(state.epochs_trained, 'epoch')}"
    if isinstance(decision, d.Leave):
        view, epochs = state.groups[decision.group], ""
    trials = format_count(len(view.trials), "trial")
    best = "without a number" if view.best is None else f"with best {_describe_best(view)}"
    text = describe(decision, state.spec)
    return f"{text} after {trials}{epochs}, {best}: {decision.why}"


def _describe_best(view: GroupState) -> str:
    assert view.best is not None
    value = format_metric(view.best_loss, view.spec, 6)
    return f"{view.spec.metric} {value} at epoch {view.best_epoch} of trial {view.best.id}"


def _finish(at: float, number: TrialId, state: StudyState) -> Sentence | None:
    trial, spec = state.trials[number], state.spec
    if trial.alive:
        return None  # its report came after the study's end
    text = f"trial {number} finishes at epoch {trial.epoch}"
    if trial.best_loss != NO_LOSS:
        text += f" with best {spec.metric} {format_metric(trial.best_loss, spec, 6)}"
    return Sentence(at, text, spec, is_minor=True)


def _stamp(at: float, text: str) -> str:
    return f"{format_duration(at)}: {text}."
