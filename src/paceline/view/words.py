"""What is worth saying while a study goes: one sentence for each thing that matters.

Knows which entries those are; a report alone is none of them. Told live, as the steps come; the
whole tale of a log is the story's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.values import NO_LOSS
from paceline.machine.story import span, written

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from paceline.core.decisions import AnyDecision, Step
    from paceline.core.events import AnyEvent
    from paceline.machine.state import StudyState

# Where the best gets better all the time, that is said as often as this, in seconds of the study.
LEAD_EVERY_S = 5.0


class Said(NamedTuple):
    """A sentence and its time on the study's clock."""

    at: float
    text: str
    # Of interest to who looks at this moment, and not in a log.
    minor: bool = False

    def __str__(self) -> str:
        return f"{span(self.at)}: {self.text}."


class Teller:
    """Turns steps into sentences, as they come."""

    def __init__(self) -> None:
        # Whose path each attempt follows.
        self._leads: dict[int, int] = {}
        # Trials that were held back.
        self._held: set[int] = set()
        # The best loss that was told, and when.
        self._best = NO_LOSS
        self._best_at = -LEAD_EVERY_S

    def hear(self, state: StudyState, steps: Sequence[Step]) -> Iterator[Said]:
        """Yield what these steps are worth saying; the state is the one after the last of them."""
        for step in steps:
            event = step.event
            if type(event) is e.Reported:
                if event.epoch >= state.spec.epochs and event.attempt in self._leads:
                    yield Said(event.at, self._finished(self._leads[event.attempt], state))
            else:
                text = self._event(event, state)
                if text is not None:
                    yield Said(event.at, text)
            for decision in step.decisions:
                said = self._decision(decision, event.at, state)
                if said is not None:
                    yield said
        if state.best_loss < self._best and state.now - self._best_at >= LEAD_EVERY_S:
            assert state.best is not None
            self._best, self._best_at = state.best_loss, state.now
            value = f"{state.spec.metric} {state.spec.sign * state.best_loss:.6g}"
            number, epoch = state.best.id, state.best_epoch
            yield Said(state.now, f"new best: {value} at epoch {epoch} of trial {number}")

    def _event(self, event: AnyEvent, state: StudyState) -> str | None:
        match event:
            case e.Opened(spec=spec):
                goal = "lowest" if spec.mode == "min" else "highest"
                return f"study {spec.name!r}: {spec.policy} looks for the {goal} {spec.metric}"
            case e.Resumed():
                self._leads.update((n, each.trial.id) for n, each in state.attempts.items())
                return f"study {state.spec.name!r} goes on"
            case e.CapacityChanged(slots=slots):
                return f"there are {len(slots)} slots" if len(slots) != 1 else "there is 1 slot"
            case e.Commanded(command=e.StopStudy()):
                return "a command asks the study to stop"
            case e.Ended(attempt=attempt, cause=cause, note=note):
                lead = self._leads.pop(attempt, None)
                if cause is e.Cause.FAILED and lead is not None:
                    last = note.strip().splitlines()
                    return f"trial {lead} fails" + (f": {last[-1].strip()}" if last else "")
                if cause is e.Cause.FINISHED and lead is not None:
                    early = state.trials[lead].epoch < state.spec.epochs
                    return self._finished(lead, state) if early else None
        return None

    def _decision(self, decision: AnyDecision, at: float, state: StudyState) -> Said | None:
        match decision:
            case d.Launch(attempt=attempt, trial=trial) | d.Amend(attempt=attempt, trial=trial):
                self._leads[attempt] = trial
            case d.Open(trial=trial, config=config, why=why):
                return Said(at, f"trial {trial} starts with {written(config)}: {why}")
            case d.Go(trial=trial, until=until, why=why):
                minor = trial not in self._held
                self._held.discard(trial)
                return Said(at, f"trial {trial} may go on to epoch {until}: {why}", minor)
            case d.Pause(trial=trial, why=why) | d.Cut(trial=trial, why=why):
                self._held.add(trial)
                return Said(at, f"trial {trial} waits: {why}")
            case d.Stop(trial=trial, why=why):
                return Said(at, f"trial {trial} is stopped: {why}")
            case d.Fail(trial=trial, why=why):
                return Said(at, f"trial {trial} is given up: {why}")
            case d.Credit(trial=trial, epoch=epoch) if epoch >= state.spec.epochs:
                return Said(at, self._finished(trial, state))
            case d.Retire(slots=slots, why=why):
                return Said(at, f"{len(slots)} of the slots go: {why}")
            case d.Close(why=why):
                return Said(at, f"no more trials are opened: {why}")
            case d.End(why=why):
                return Said(at, f"the study ends: {why}")
        return None

    @staticmethod
    def _finished(number: int, state: StudyState) -> str:
        trial, spec = state.trials[number], state.spec
        best = ""
        if trial.best_loss < NO_LOSS:
            best = f", its best {spec.metric} is {spec.sign * trial.best_loss:.6g}"
        return f"trial {number} finishes at epoch {trial.epoch}{best}"
