"""What is worth saying while a study goes: one sentence for each thing that matters.

Knows which entries those are; a report alone is none of them. Told live, as the steps come; the
whole tale of a log is the story's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.analysis.story import span, taken_over, written
from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.values import NO_LOSS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.core.decisions import Step
    from paceline.machine.state import StudyState

# Where the best gets better all the time, that is said as often as this, in seconds of the study.
LEAD_EVERY_S = 5.0


class Said(NamedTuple):
    """A sentence and its time on the study's clock, put together when it is read: most are not."""

    at: float
    form: str
    about: tuple[Any, ...] = ()
    # Of interest to who looks at this moment, and not in a log.
    minor: bool = False

    @property
    def text(self) -> str:
        """The sentence, on one line, without its time and its full stop."""
        about = (written(each) if isinstance(each, dict) else each for each in self.about)
        return " ".join(self.form.format(*about).split())

    def __str__(self) -> str:
        return f"{span(self.at)}: {self.text}."


class Teller:
    """Turns steps into sentences, as they come."""

    def __init__(self) -> None:
        # Whose path each attempt follows.
        self._leads: dict[int, int] = {}
        # Trials that were held back.
        self._held: set[int] = set()
        # How many configs were heard to be taken over.
        self._taken = 0
        # Studies that the generator learns from.
        self._recalled: set[str] = set()
        # The best loss that was told, and when.
        self._best = NO_LOSS
        self._best_at = -LEAD_EVERY_S

    def hear(self, state: StudyState, steps: Sequence[Step]) -> list[Said]:
        """Return what these steps are worth saying; the state is the one after the last of them."""
        told: list[Said] = []
        for step in steps:
            # By type: most entries are worth nothing, and there may be thousands a second.
            for entry in step.entries if step.decisions else (step.event,):
                tell = _TELL.get(type(entry))
                if tell is not None:
                    said = tell(self, entry, step.event.at, state)
                    if said is not None:
                        told.append(said)
        if state.best_loss < self._best and state.now - self._best_at >= LEAD_EVERY_S:
            assert state.best is not None
            self._best, self._best_at = state.best_loss, state.now
            value = f"{state.spec.metric} {state.spec.sign * state.best_loss:.6g}"
            about = (value, state.best_epoch, state.best.id)
            told.append(Said(state.now, "new best: {} at epoch {} of trial {}", about))
        return told

    # Events

    def _reported(self, event: e.Reported, at: float, state: StudyState) -> Said | None:
        if event.epoch >= state.spec.epochs and event.attempt in self._leads:
            return _finished(at, self._leads[event.attempt], state)
        return None

    def _opened(self, event: e.Opened, at: float, state: StudyState) -> Said | None:
        spec = event.spec
        goal = "lowest" if spec.mode == "min" else "highest"
        about = (spec.name, spec.policy, goal, spec.metric)
        return Said(at, "study {!r}: {} looks for the {} {}", about)

    def _resumed(self, event: e.Resumed, at: float, state: StudyState) -> Said | None:
        self._leads.update((number, each.trial.id) for number, each in state.attempts.items())
        return Said(at, "study {!r} goes on", (state.spec.name,))

    def _capacity(self, event: e.CapacityChanged, at: float, state: StudyState) -> Said | None:
        count = len(event.slots)
        return Said(at, "there is 1 slot" if count == 1 else "there are {} slots", (count,))

    def _adopted(self, event: e.Adopted, at: float, state: StudyState) -> Said | None:
        self._taken += 1
        if self._taken < len(state.adopted.trials):
            return None  # more follow at once: they are told together
        return Said(at, "{}", (taken_over(state.adopted.studies),))

    def _recall(self, event: e.Recalled, at: float, state: StudyState) -> Said | None:
        if event.study in self._recalled:
            return None
        self._recalled.add(event.study)
        return Said(at, "the generator learns from study {!r}", (event.study,))

    def _commanded(self, event: e.Commanded, at: float, state: StudyState) -> Said | None:
        if isinstance(event.command, e.StopStudy):
            return Said(at, "a command asks the study to stop")
        return None

    def _ended(self, event: e.Ended, at: float, state: StudyState) -> Said | None:
        lead = self._leads.pop(event.attempt, None)
        if lead is None:
            return None
        if event.cause is e.Cause.FAILED:
            lines = event.note.strip().splitlines()
            return Said(
                at, "trial {} fails: {}" if lines else "trial {} fails", (lead, *lines[-1:])
            )
        if event.cause is e.Cause.CROWDED:
            return Said(at, "trial {} finds no memory on a shared slot and gets its own", (lead,))
        if event.cause is e.Cause.FINISHED and state.trials[lead].epoch < state.spec.epochs:
            return _finished(at, lead, state)
        return None

    # Decisions

    def _launch(self, order: d.Launch | d.Amend, at: float, state: StudyState) -> Said | None:
        self._leads[order.attempt] = order.trial
        return None

    def _open(self, order: d.Open, at: float, state: StudyState) -> Said | None:
        return Said(at, "trial {} starts with {}: {}", (order.trial, order.config, order.why))

    def _go(self, order: d.Go, at: float, state: StudyState) -> Said | None:
        minor = order.trial not in self._held
        self._held.discard(order.trial)
        about = (order.trial, order.until, order.why)
        return Said(at, "trial {} may go on to epoch {}: {}", about, minor)

    def _hold(self, order: d.Pause | d.Cut, at: float, state: StudyState) -> Said | None:
        self._held.add(order.trial)
        return Said(at, "trial {} waits: {}", (order.trial, order.why))

    def _stop(self, order: d.Stop, at: float, state: StudyState) -> Said | None:
        return Said(at, "trial {} is stopped: {}", (order.trial, order.why))

    def _fail(self, order: d.Fail, at: float, state: StudyState) -> Said | None:
        return Said(at, "trial {} is given up: {}", (order.trial, order.why))

    def _credit(self, order: d.Credit, at: float, state: StudyState) -> Said | None:
        if order.epoch >= state.spec.epochs:
            return _finished(at, order.trial, state)
        return None

    def _retire(self, order: d.Retire, at: float, state: StudyState) -> Said | None:
        return Said(at, "{} of the slots go: {}", (len(order.slots), order.why))

    def _close(self, order: d.Close, at: float, state: StudyState) -> Said | None:
        return Said(at, "no more trials are opened: {}", (order.why,))

    def _leave(self, order: d.Leave, at: float, state: StudyState) -> Said | None:
        name = state.spec.groups[order.group].name
        return Said(at, "study {!r} ends: {}", (name, order.why))

    def _end(self, order: d.End, at: float, state: StudyState) -> Said | None:
        return Said(at, "the study ends: {}", (order.why,))


def _finished(at: float, number: int, state: StudyState) -> Said:
    trial, spec = state.trials[number], state.spec
    if trial.best_loss == NO_LOSS:
        return Said(at, "trial {} finishes at epoch {}", (number, trial.epoch))
    best = f"{spec.metric} is {spec.sign * trial.best_loss:.6g}"
    return Said(at, "trial {} finishes at epoch {}, its best {}", (number, trial.epoch, best))


_TELL: dict[type, Callable[[Teller, Any, float, StudyState], Said | None]] = {
    e.Reported: Teller._reported,
    e.Opened: Teller._opened,
    e.Resumed: Teller._resumed,
    e.CapacityChanged: Teller._capacity,
    e.Commanded: Teller._commanded,
    e.Adopted: Teller._adopted,
    e.Recalled: Teller._recall,
    e.Ended: Teller._ended,
    d.Launch: Teller._launch,
    d.Amend: Teller._launch,
    d.Open: Teller._open,
    d.Go: Teller._go,
    d.Pause: Teller._hold,
    d.Cut: Teller._hold,
    d.Stop: Teller._stop,
    d.Fail: Teller._fail,
    d.Credit: Teller._credit,
    d.Retire: Teller._retire,
    d.Close: Teller._close,
    d.Leave: Teller._leave,
    d.End: Teller._end,
}
