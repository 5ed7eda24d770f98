"""Trials that somebody else runs: another tuner starts them, and asks us what becomes of each.

Knows which of its trials is which of ours, and turns what that tuner sees into facts and our
decisions into answers. It has no engine: who begins and when is the other's to say, so a slot is
whatever the other has shown to run at once.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from msgspec.structs import replace

from paceline.api.options import deadline_s
from paceline.api.registry import build, parse_part
from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.errors import SpecError
from paceline.core.values import Budget, Part, StudySpec, Target
from paceline.engines.advisor import Advice
from paceline.machine.machine import Brains, Machine

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime, timedelta

    from paceline.core.ports import CurveModel
    from paceline.core.values import Config, Metrics, Mode, TrialId
    from paceline.core.views import StudyView
    from paceline.machine.trial_state import Attempt, Trial


Answer: TypeAlias = Literal["go on", "pause", "stop"]


class Comers:
    """The generator of trials that come by themselves: it proposes nothing, and is answered for."""

    pure = False

    def see(self, entry: d.Entry, study: StudyView) -> None:
        pass

    def propose(self, number: int, study: StudyView) -> Config | None:
        raise NotImplementedError


class Outside:
    """A study whose trials another tuner runs."""

    def __init__(
        self, machine: Machine, spec: StudySpec, curves: CurveModel, clock: Callable[[], float]
    ) -> None:
        self._machine = machine
        self._clock = clock
        self._began = clock()
        self._advice = Advice(curves, Comers(), machine.state)
        # The other's names of our trials, in the order they were proposed and so will be opened;
        # those that come and have not been asked for.
        self._names: list[str] = []
        self._numbers: dict[str, TrialId] = {}
        self._coming: deque[tuple[str, Config]] = deque()
        # Questions for a new trial that wait for one to come.
        self._asked: deque[int] = deque()
        self._wakes: list[d.WakeAt] = []
        # What was reported before a trial was opened.
        self._unread: dict[str, list[e.Reported]] = {}
        self._dismissed: list[str] = []
        self._tell(e.Opened(at=0.0, spec=spec), e.CapacityChanged(at=0.0, slots=()))

    @property
    def why(self) -> str | None:
        """Why the study has ended; None while it goes on."""
        end = self._machine.state.end
        return None if end is None else end.why

    def come(self, name: str, config: Config) -> None:
        """The other tuner has a new trial."""
        self._coming.append((name, config))
        self._tell()

    def reported(self, name: str, epoch: int, metrics: Metrics, seconds: float) -> Answer:
        """A trial finished an epoch; say what becomes of it."""
        state = self._machine.state
        told = e.Reported(at=self._now(), attempt=-1, epoch=epoch, metrics=metrics, seconds=seconds)
        if self._trial(name) is None:
            self._unread.setdefault(name, []).append(told)
        attempt = self._running(name)
        if attempt is None:
            attempt = self._make_room(name)
        if attempt is not None:
            for each in (*self._unread.pop(name, ()), told):
                # What is trained again after a restart is known already.
                if each.epoch == attempt.epoch + 1:
                    self._tell(replace(each, at=self._now(), attempt=attempt.id))
        if state.end is not None:
            return "stop"
        if attempt is None:
            trial = self._trial(name)
            refused = state.closed if trial is None else not trial.alive
            return "stop" if refused else "pause"
        return self._answer(attempt)

    def left(self, name: str, *, failed: bool) -> None:
        """A trial has ended by itself, or somebody has taken it away."""
        self._coming = deque(each for each in self._coming if each[0] != name)
        attempt = self._running(name)
        if attempt is not None:
            cause = e.Cause.FAILED if failed else e.Cause.FINISHED
            self._tell(e.Ended(at=self._now(), attempt=attempt.id, cause=cause))

    def wanted(self) -> list[str]:
        """Return whom the study wants to run and has not heard of since, longest wanted first."""
        self._tell()
        attempts = self._machine.state.attempts.values()
        return [self._names[each.trial.id] for each in attempts if each.epoch == each.start]

    def dismissed(self) -> list[str]:
        """Return those that were stopped while they did not run, once."""
        names, self._dismissed = self._dismissed, []
        return names

    def close(self) -> None:
        """No further trial will come; what waits may be all there is."""
        while self._asked and self._machine.state.end is None:
            number = self._asked.popleft()
            self._tell(e.Proposed(at=self._now(), number=number, config=None))

    def _trial(self, name: str) -> Trial | None:
        """Return our trial of that name, once it is opened."""
        number, trials = self._numbers.get(name), self._machine.state.trials
        return trials[number] if number is not None and number < len(trials) else None

    def _running(self, name: str) -> Attempt | None:
        trial = self._trial(name)
        return None if trial is None else trial.attempt

    def _make_room(self, name: str) -> Attempt | None:
        """Count one more slot, since a trial runs that we have not started; let it be that one."""
        state = self._machine.state
        self._coming = deque(sorted(self._coming, key=lambda each: each[0] != name))
        attempt = None
        while attempt is None and state.end is None:
            launched = state.launches
            if not state.slots.idle:
                slots = tuple(range(state.capacity + 1))
                self._tell(e.CapacityChanged(at=self._now(), slots=slots))
            attempt = self._running(name)
            if state.launches == launched:
                break  # the policy has no use for it now
        return attempt

    def _answer(self, attempt: Attempt) -> Answer:
        trial = attempt.trial
        if not trial.alive:
            self._tell(e.Ended(at=self._now(), attempt=attempt.id, cause=e.Cause.HALTED))
            return "stop"
        if attempt.epoch < attempt.goal:
            return "go on"
        at, epoch = self._now(), attempt.epoch
        self._tell(
            e.Saved(at=at, attempt=attempt.id, epoch=epoch),
            e.Ended(at=at, attempt=attempt.id, cause=e.Cause.GOAL),
        )
        return "pause"

    def _now(self) -> float:
        return self._clock() - self._began

    def _tell(self, *facts: e.AnyEvent) -> None:
        """Hand facts to the machine, and after them whatever they lead to."""
        told = deque(facts)
        state = self._machine.state
        while state.end is None:
            due = [wake for wake in self._wakes if wake.at <= self._now()]
            if told:
                step = self._machine.handle(told.popleft())
                told.extend(self._heed(step))
            elif due:
                self._wakes.remove(due[0])
                told.append(e.Woke(at=due[0].at, trial=due[0].trial))
            elif self._asked and self._coming:
                name, config = self._coming.popleft()
                self._numbers[name] = len(self._names)
                self._names.append(name)
                number = self._asked.popleft()
                told.append(e.Proposed(at=self._now(), number=number, config=config))
            else:
                return

    def _heed(self, step: d.Step) -> list[e.AnyEvent]:
        """Note what was decided; return the answers that are known at once."""
        answers: list[e.AnyEvent] = []
        for decision in step.decisions:
            match decision:
                case d.AskProposal(number=number):
                    self._asked.append(number)
                case d.AskForecast():
                    answers.append(replace(self._advice.answer(decision)(), at=self._now()))
                case d.WakeAt():
                    self._wakes.append(decision)
                case d.Stop(trial=trial) if self._machine.state.trials[trial].attempt is None:
                    self._dismissed.append(self._names[trial])
                case _:
                    pass
        return answers


# They need what Tune's schedulers cannot do: several slots for a trial, and trials that branch.
_INEXPRESSIBLE = frozenset({"pbt"})


def tune_scheduler(
    policy: str | Part,
    *,
    metric: str,
    mode: Mode,
    epochs: int,
    target: float | None = None,
    deadline: float | str | timedelta | datetime | None = None,
    curves: str = "pfn",
) -> Any:  # noqa: ANN401 - Ray's class, which is there only where Ray is
    """Return a policy as a scheduler for `ray.tune.TuneConfig(scheduler=…)`.

    `epochs` is the last report of a trial, as `max_t` is for Tune's own schedulers. At the target
    or the deadline all trials are stopped. A policy that pauses needs trainables with checkpoints.
    """
    part = parse_part(policy) if isinstance(policy, str) else policy
    if part.name in _INEXPRESSIBLE:
        raise SpecError(
            f"policy {part.name} branches trials, which Tune's schedulers cannot: give another, or "
            "run the study with paceline.tune."
        )
    from paceline.integrations import ray_tune  # only where Ray is asked for

    spec = StudySpec(
        name="tune",
        metric=metric,
        mode=mode,
        epochs=epochs,
        policy=part,
        generator=Part("comers"),
        curves=parse_part(curves),
        budget=Budget(
            target=None if target is None else Target(target), deadline_s=deadline_s(deadline)
        ),
        retries=0,
    )
    brains = Brains(
        policy=build("policy", part),
        generator=Comers(),
        allocator=build("allocator", Part("fixed")),
    )
    study = Outside(Machine(brains), spec, build("curve model", spec.curves), time.monotonic)
    return ray_tune.Scheduler(study, metric)
