"""Stories: the entries that touched one trial, or the whole study, as sentences.

Knows how each entry reads to somebody who trains models. Decides nothing and folds the log with a
state of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.errors import SpecError
from paceline.core.values import NO_LOSS, Config, Status
from paceline.machine.state import StudyState
from paceline.plan.schedules import RAMP, RULE, arguments, is_rule

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from paceline.core.decisions import Entry, Step
    from paceline.core.values import StudySpec, TrialId
    from paceline.machine.groups import Group
    from paceline.machine.trial_state import Trial


def study_story(steps: Iterable[Step]) -> Iterator[str]:
    """Tell what mattered to the study as a whole."""
    state = StudyState()
    leader = None
    # How many configs were taken over from each study, and are not told yet.
    taken: dict[str, int] = {}
    recalled: set[str] = set()
    for step in steps:
        for entry in step.entries:
            if isinstance(entry, e.Adopted):
                taken[entry.study] = taken.get(entry.study, 0) + 1
            elif taken:
                yield f"{span(state.now)}: {taken_over(taken)}."
                taken = {}
            state.apply(entry)
            text = _study_sentence(entry, state)
            if isinstance(entry, e.Recalled) and entry.study not in recalled:
                recalled.add(entry.study)
                text = f"the generator learns from study {entry.study!r}"
            if text is None and state.best is not leader:
                text = f"the lead goes to {_leader(state)}"
            leader = state.best
            if text is not None:
                yield f"{span(state.now)}: {text}."
    if state.number and state.end is None:
        yield f"{span(state.now)}: the log ends here and the study does not."


def trial_story(steps: Iterable[Step], number: TrialId) -> Iterator[str]:
    """Tell one trial's life. Reports that follow each other are told together."""
    state = StudyState()
    teller = _Teller(number)
    for step in steps:
        for entry in step.entries:
            state.apply(entry)
            yield from teller.hear(entry, state)
    if number >= len(state.trials):
        raise SpecError(f"there is no trial {number}: this study opened {len(state.trials)}.")
    yield from teller.close(state)


class _Teller:
    """Turns entries about one trial into sentences; keeps reports back to tell them together."""

    def __init__(self, number: TrialId) -> None:
        self._number = number
        # Epochs that are seen and not told yet, by whom they were trained, and until when.
        self._untold: list[int] = []
        self._by: str = ""
        self._until = 0.0

    def hear(self, entry: Entry, state: StudyState) -> Iterator[str]:
        trial = state.trials[self._number] if self._number < len(state.trials) else None
        if trial is None:
            return
        if trial in state.delivered:
            by = self._trainer(entry, trial)
            if by != self._by:
                yield from self._tell(trial, state.spec)
            self._by, self._until = by, state.now
            self._untold.append(trial.epoch)
            return
        text = _trial_sentence(entry, trial, state)
        if text is not None:
            yield from self._tell(trial, state.spec)
            yield f"{span(state.now)}: {text}."

    def close(self, state: StudyState) -> Iterator[str]:
        trial = state.trials[self._number]
        yield from self._tell(trial, state.spec)
        place = f"{_STANDS[trial.status]} at epoch {trial.epoch}"
        best = "" if trial.best_loss == NO_LOSS else _best(trial, state.spec)
        yield f"In the end it {place}{best}."

    def _trainer(self, entry: Entry, trial: Trial) -> str:
        if isinstance(entry, d.Credit):
            return "already trained under the same settings, at no cost"
        if isinstance(entry, e.Reported) and trial.attempt is not None:
            lead = trial.attempt.trial
            if lead is not trial:
                return f"trained together with trial {lead.id}"
        return ""

    def _tell(self, trial: Trial, spec: StudySpec) -> Iterator[str]:
        if not self._untold:
            return
        first, last = self._untold[0], self._untold[-1]
        losses = trial.losses[first - 1 : last]
        begin, end = _value(losses[0], spec), _value(losses[-1], spec)
        by = f", {self._by}" if self._by else ""
        if first == last:
            yield f"{span(self._until)}: epoch {first} gives {end}{by}."
        else:
            taken = sum(trial.seconds[first - 1 : last]) / len(losses)
            yield (
                f"{span(self._until)}: epochs {first} to {last} take it from {begin} to {end}, "
                f"{span(taken)} each{by}."
            )
        self._untold = []


def _study_sentence(entry: Entry, state: StudyState) -> str | None:
    match entry:
        case e.Opened(spec=spec):
            goal = "lowest" if spec.mode == "min" else "highest"
            return f"study {spec.name!r} opens: {spec.policy} looks for the {goal} {spec.metric}"
        case e.CapacityChanged(slots=slots):
            return f"there are {len(slots)} slots"
        case e.Resumed():
            return "a driver takes the study up again"
        case e.Commanded(command=e.StopStudy()):
            return "a command asks it to stop"
        case e.Commanded(command=e.ChangeSlots(by=by)):
            return f"a command changes the slots by {by:+d}"
        case e.Submitted(until=until):
            return f"an outside tuner asks for a trial up to epoch {until}"
        case d.Close(group=group, why=why):
            whose = f" of {state.spec.groups[group].name!r}" if state.groups else ""
            return f"no more trials{whose} are opened: {why}"
        case d.Leave(group=group, why=why):
            return _leaves((state.groups or ())[group], why)
        case d.Fail(trial=trial, why=why):
            return f"trial {trial} is given up: {why}"
        case d.End(why=why):
            opened, trained = len(state.trials), state.epochs_trained
            best = "nobody has a number" if state.best is None else f"the best is {_leader(state)}"
            return f"the study ends after {opened} trials and {trained} epochs, {best}: {why}"
    return None


def _leaves(group: Group, why: str) -> str:
    best = "nobody has a number" if group.best is None else f"its best is {_leader(group)}"
    return f"study {group.spec.name!r} ends after {len(group.trials)} trials, {best}: {why}"


def _leader(state: StudyState | Group) -> str:
    assert state.best is not None
    value = _value(state.best_loss, state.spec)
    return f"trial {state.best.id} with {value} at epoch {state.best_epoch}"


def _trial_sentence(entry: Entry, trial: Trial, state: StudyState) -> str | None:
    if isinstance(entry, d.End):
        return f"the study ends: {entry.why}" if trial.alive else None
    if getattr(entry, "trial", None) == trial.id:
        return _about_trial(entry, state)
    attempt = state.attempts.get(getattr(entry, "attempt", -1))
    if attempt is not None and trial is attempt.trial:
        return _about_attempt(entry)
    if isinstance(entry, e.Ended) and state.subject is trial:
        return _ended(entry)
    return None


def _about_trial(entry: Entry, state: StudyState) -> str | None:
    match entry:
        case d.Open(config=config, until=until, source=source, branch=branch, why=why):
            origin = "" if source is None else f", forked from trial {source} at epoch {branch},"
            whose = f" for {state.spec.groups[entry.group].name!r}" if state.groups else ""
            return f"opened{whose}{origin} with {written(config)}, up to epoch {until}: {why}"
        case d.Go(until=until, why=why):
            return f"may go on to epoch {until}: {why}"
        case d.Pause(why=why):
            return f"waits: {why}"
        case d.Cut(why=why):
            return f"is cut short: {why}"
        case d.Stop(why=why):
            return f"is stopped: {why}"
        case d.Fail(why=why):
            return f"is given up: {why}"
        case d.Launch(attempt=attempt, start=start, slots=slots):
            place = f"slot {slots[0]}" if len(slots) == 1 else f"slots {', '.join(map(str, slots))}"
            origin = f"from the checkpoint of epoch {start}" if start else "from nothing"
            return f"attempt {attempt} starts {origin} on {place}"
        case d.AskForecast(epoch=epoch):
            return f"a forecast is asked for at epoch {epoch}"
        case e.Forecasted(forecast=None, note=note):
            return f"the forecast has no answer: {note}"
        case e.Forecasted(forecast=forecast) if forecast is not None:
            last = forecast.epochs[-1]
            middle = _value(forecast.median(last), state.spec)
            return f"the forecast for epoch {last} is {middle}"
    return None


def _about_attempt(entry: Entry) -> str | None:
    match entry:
        case d.Resize(width=width, why=why):
            return f"moves to width {width:g} at the next epoch's end: {why}"
        case d.Halt(attempt=attempt, why=why):
            return f"attempt {attempt} is ended at once: {why}"
        case e.Missed(epoch=epoch, note=note):
            return f"epoch {epoch} is not saved: {note or 'the order came too late'}"
    return None


def _ended(event: e.Ended) -> str | None:
    note = f": {event.note}" if event.note else ""
    match event.cause:
        case e.Cause.FAILED:
            return f"attempt {event.attempt} fails{note}"
        case e.Cause.LOST:
            return f"attempt {event.attempt} is lost{note}"
        case e.Cause.CROWDED:
            return f"attempt {event.attempt} finds no memory on a slot it shares{note}"
        case e.Cause.FINISHED:
            return f"attempt {event.attempt} ends: there are no further epochs"
    return None


_STANDS = {
    Status.READY: "is ready to go on",
    Status.RUNNING: "is running",
    Status.WAITING: "is waiting",
    Status.FINISHED: "has finished",
    Status.STOPPED: "stays stopped",
    Status.FAILED: "has failed",
}


def _best(trial: Trial, spec: StudySpec) -> str:
    return f", and its best was {_value(trial.best_loss, spec)} at epoch {trial.best_epoch}"


def _value(loss: float, spec: StudySpec) -> str:
    return f"{spec.metric} {'not a number' if loss == NO_LOSS else f'{spec.sign * loss:.5g}'}"


def taken_over(studies: Mapping[str, int]) -> str:
    """Say how many configs were taken over from each study.

    >>> taken_over({"a": 24, "b": 1})
    "what is known of 24 configs of study 'a' and 1 config of study 'b' is taken over"
    """
    told = " and ".join(
        f"{count} {'config' if count == 1 else 'configs'} of study {name!r}"
        for name, count in studies.items()
    )
    return f"what is known of {told} is taken over"


def written(config: Config) -> str:
    """Return a config as a person would write it."""
    return ", ".join(f"{name}={_brief(value)}" for name, value in config.items()) or "no settings"


def _brief(value: object) -> str:
    if isinstance(value, dict) and isinstance(value.get("piecewise"), list):
        return " then ".join(
            f"{_brief(late)} from epoch {start}" if start else _brief(late)
            for start, late in value["piecewise"]
        )
    if isinstance(value, dict) and is_rule(value):
        return f"{value[RULE]}({written(arguments(value))})"
    if isinstance(value, dict) and RAMP in value:
        return " to ".join(map(_brief, value[RAMP]))
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}={_brief(each)}' for name, each in value.items())}}}"
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def span(seconds: float) -> str:
    """Return a duration as a person would say it.

    >>> span(0.25), span(75.0), span(3723.4)
    ('0.25s', '1m15s', '1h02m')
    """
    if seconds < 60:
        return f"{seconds:.3g}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m"


def size(count: float) -> str:
    """Return bytes as a person would say them.

    >>> size(0), size(999), size(1_234_567), size(5e12)
    ('0 B', '999 B', '1.23 MB', '5 TB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000.0
    return f"{count:.3g} TB"
