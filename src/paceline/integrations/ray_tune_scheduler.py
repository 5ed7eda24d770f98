"""A policy as a scheduler for Ray Tune: Tune runs the trials, the policy decides about each report.

`ExternalStudy` maps Tune's trials to trials of the machine, its callbacks to events, and decisions
to answers. `tune_scheduler` wraps it in Tune's scheduler class. Knows no engine and no slots: Tune
starts trials, so the number of slots is the number of trials it has run at once. Imports Ray only
when a scheduler is made.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from msgspec.structs import replace

from paceline.api.options import seconds_until
from paceline.api.registry import build_part, parse_part
from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.errors import SpecError
from paceline.core.values import Budget, Part, StudySpec, Target
from paceline.engines.advisor import StudyAdvisor
from paceline.engines.loop import step
from paceline.machine.decider import Parts
from paceline.machine.machine import Machine

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime, timedelta

    from paceline.core.ports import CurveModel
    from paceline.core.values import Config, Metrics, Mode, TrialId
    from paceline.core.views import EngineView, StudyView
    from paceline.machine.trial_state import AttemptState, TrialState


TrialAction: TypeAlias = Literal["continue", "pause", "stop"]
# Tune's names of the three actions, as attributes of its TrialScheduler.
_TUNE_ACTIONS: dict[TrialAction, str] = {"continue": "CONTINUE", "pause": "PAUSE", "stop": "STOP"}
# Tune's trial states.
_STARTABLE, _ACTIVE = ("PENDING", "PAUSED"), ("PENDING", "RUNNING")
# Policies that Tune's scheduler interface cannot express: trials that branch.
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
) -> Any:  # noqa: ANN401 - a subclass of Ray's class, which exists only where Ray is installed
    """Return a policy as a scheduler for `ray.tune.TuneConfig(scheduler=…)`.

    `epochs` is the last report of a trial, like `max_t` of Tune's own schedulers. At the target or
    the deadline all trials are stopped. A policy that pauses needs trainables with checkpoints.
    """
    part = parse_part(policy) if isinstance(policy, str) else policy
    if part.name in _INEXPRESSIBLE:
        raise SpecError(
            f"policy {part.name!r} branches trials, which Tune's schedulers cannot: choose another "
            "policy, or run the study with paceline.tune."
        )
    try:
        from ray.tune.schedulers import TrialScheduler
    except ImportError:
        raise ImportError(
            "paceline.tune_scheduler needs Ray Tune: pip install 'paceline[tune]'."
        ) from None

    class TuneScheduler(TuneCallbacks, TrialScheduler):  # type: ignore[misc]
        """Tune's scheduler class with the callbacks of a study."""

    spec = StudySpec(
        name="tune",
        metric=metric,
        mode=mode,
        epochs=epochs,
        policy=part,
        generator=Part("external"),
        curves=parse_part(curves),
        budget=Budget(
            target=None if target is None else Target(target), deadline_s=seconds_until(deadline)
        ),
        retries=0,
    )
    parts = Parts(
        policy=build_part("policy", part),
        generator=ExternalGenerator(),
        allocator=build_part("allocator", Part("fixed")),
    )
    study = ExternalStudy(
        Machine(parts), spec, build_part("curve model", spec.curves), time.monotonic
    )
    return TuneScheduler(study, metric)


class TuneCallbacks:
    """The callbacks of Tune's TrialScheduler, answered by a study."""

    def __init__(self, study: ExternalStudy, metric: str) -> None:
        super().__init__()
        self._study = study
        self._metric = metric

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:  # noqa: ANN401
        scalars = bool | int | float | str
        config = {key: value for key, value in trial.config.items() if isinstance(value, scalars)}
        self._study.add_trial(trial.trial_id, config)

    def on_trial_result(
        self,
        tune_controller: Any,  # noqa: ANN401
        trial: Any,  # noqa: ANN401
        result: dict[str, Any],
    ) -> str:
        metrics = {self._metric: result.get(self._metric)}
        epoch, seconds = result["training_iteration"], result["time_this_iter_s"]
        action = self._study.report(trial.trial_id, epoch, metrics, seconds)
        self._stop_idle_trials(tune_controller)
        return str(getattr(self, _TUNE_ACTIONS[action]))

    def on_trial_complete(
        self,
        tune_controller: Any,  # noqa: ANN401
        trial: Any,  # noqa: ANN401
        result: dict[str, Any],
    ) -> None:
        self._study.end_trial(trial.trial_id, failed=False)

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:  # noqa: ANN401
        self._study.end_trial(trial.trial_id, failed=True)

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:  # noqa: ANN401
        self._study.end_trial(trial.trial_id, failed=True)

    def choose_trial_to_run(self, tune_controller: Any) -> Any:  # noqa: ANN401
        trials = {trial.trial_id: trial for trial in tune_controller.get_trials()}
        startable = {name: each for name, each in trials.items() if each.status in _STARTABLE}
        if self._study.end_reason is None:
            chosen = self._first_wanted(startable)
            is_idle = all(trial.status not in _ACTIVE for trial in trials.values())
            if chosen is None and is_idle:
                # Tune has no new trial to start: the paused ones may be all there are.
                self._study.end_proposals()
                chosen = self._first_wanted(startable)
            self._stop_idle_trials(tune_controller)
            if chosen is not None:
                return trials[chosen]
            if not is_idle:
                return None
        for trial in startable.values():
            tune_controller.stop_trial(trial)
        return None

    def debug_string(self) -> str:
        return self._study.end_reason or "Scheduled by paceline."

    def _first_wanted(self, startable: dict[str, Any]) -> str | None:
        return next((name for name in self._study.list_wanted() if name in startable), None)

    def _stop_idle_trials(self, tune_controller: Any) -> None:  # noqa: ANN401
        stopped = set(self._study.take_stopped())
        if stopped:
            for trial in tune_controller.get_trials():
                if trial.trial_id in stopped:
                    tune_controller.stop_trial(trial)


class ExternalGenerator:
    """Placeholder generator: the other tuner supplies the configs."""

    pure = False

    def see(self, entry: d.Entry, study: StudyView) -> None:
        pass

    def propose(self, number: int, study: StudyView) -> Config | None:
        raise NotImplementedError


class ExternalStudy:
    """A study whose trials another tuner starts and runs, under that tuner's own names."""

    def __init__(
        self, machine: Machine, spec: StudySpec, curves: CurveModel, clock: Callable[[], float]
    ) -> None:
        self._machine = machine
        self._clock = clock
        self._started_at = clock()
        self._advisor = StudyAdvisor([curves], [ExternalGenerator()], machine.state)
        # The tuner's names of the machine's trials, in the order of their numbers.
        self._names: list[str] = []
        self._numbers: dict[str, TrialId] = {}
        # Trials of the tuner that the machine has not asked for yet, and requests of the machine
        # that no trial has answered yet.
        self._new_trials: deque[tuple[str, Config]] = deque()
        self._requests: deque[int] = deque()
        self._wakes: list[d.WakeAt] = []
        # Reports of trials that the machine has not opened yet.
        self._early_reports: dict[str, list[e.Reported]] = {}
        self._stopped: list[str] = []
        # Events that the machine has not handled yet.
        self._queue: deque[e.AnyEvent] = deque()
        self._handle(e.Opened(at=0.0, spec=spec), e.CapacityChanged(at=0.0, slots=()))

    @property
    def end_reason(self) -> str | None:
        """The reason why the study has ended; None while it runs."""
        end = self._machine.state.end
        return None if end is None else end.why

    def add_trial(self, name: str, config: Config) -> None:
        """Add a new trial of the tuner."""
        self._new_trials.append((name, config))
        self._handle()

    def report(self, name: str, epoch: int, metrics: Metrics, seconds: float) -> TrialAction:
        """Handle the report of an epoch; return what the tuner shall do with the trial."""
        state = self._machine.state
        report = e.Reported(
            at=self._now(), attempt=-1, epoch=epoch, metrics=metrics, seconds=seconds
        )
        if self._find_trial(name) is None:
            self._early_reports.setdefault(name, []).append(report)
        attempt = self._find_attempt(name)
        if attempt is None:
            attempt = self._add_slot(name)
        if attempt is not None:
            for each in (*self._early_reports.pop(name, ()), report):
                # An epoch that is trained again after a restart is known already.
                if each.epoch == attempt.epoch + 1:
                    self._handle(replace(each, at=self._now(), attempt=attempt.id))
        if state.end is not None:
            return "stop"
        if attempt is None:
            trial = self._find_trial(name)
            is_refused = state.closed if trial is None else not trial.alive
            return "stop" if is_refused else "pause"
        return self._choose_action(attempt)

    def end_trial(self, name: str, *, failed: bool) -> None:
        """End a trial that returned, failed or was removed by the tuner."""
        self._new_trials = deque(each for each in self._new_trials if each[0] != name)
        attempt = self._find_attempt(name)
        if attempt is not None:
            cause = e.Cause.FAILED if failed else e.Cause.FINISHED
            self._handle(e.Ended(at=self._now(), attempt=attempt.id, cause=cause))

    def list_wanted(self) -> list[str]:
        """Return the trials that were launched and have not reported since, longest wait first."""
        self._handle()
        attempts = self._machine.state.attempts.values()
        return [self._names[each.trial.id] for each in attempts if each.epoch == each.start]

    def take_stopped(self) -> list[str]:
        """Return the trials that were stopped while paused; each is returned once."""
        names, self._stopped = self._stopped, []
        return names

    def end_proposals(self) -> None:
        """Answer all open requests for a trial with none: the tuner has no new trial."""
        while self._requests and self._machine.state.end is None:
            number = self._requests.popleft()
            self._handle(e.Proposed(at=self._now(), number=number, config=None))

    def _find_trial(self, name: str) -> TrialState | None:
        """Return the machine's trial of that name, once it is opened."""
        number, trials = self._numbers.get(name), self._machine.state.trials
        return trials[number] if number is not None and number < len(trials) else None

    def _find_attempt(self, name: str) -> AttemptState | None:
        trial = self._find_trial(name)
        return None if trial is None else trial.attempt

    def _add_slot(self, name: str) -> AttemptState | None:
        """Add a slot for a running trial that was not launched here, and launch the trial on it."""
        state = self._machine.state
        self._new_trials = deque(sorted(self._new_trials, key=lambda each: each[0] != name))
        attempt = None
        while attempt is None and state.end is None:
            launched = state.launches
            if not state.slots.idle:
                slots = tuple(range(state.capacity + 1))
                self._handle(e.CapacityChanged(at=self._now(), slots=slots))
            attempt = self._find_attempt(name)
            if state.launches == launched:
                break  # the policy does not want to run it now
        return attempt

    def _choose_action(self, attempt: AttemptState) -> TrialAction:
        trial = attempt.trial
        if not trial.alive:
            self._handle(e.Ended(at=self._now(), attempt=attempt.id, cause=e.Cause.HALTED))
            return "stop"
        if attempt.epoch < attempt.goal:
            return "continue"
        at, epoch = self._now(), attempt.epoch
        self._handle(
            e.Saved(at=at, attempt=attempt.id, epoch=epoch),
            e.Ended(at=at, attempt=attempt.id, cause=e.Cause.GOAL),
        )
        return "pause"

    def _now(self) -> float:
        return self._clock() - self._started_at

    def _handle(self, *events: e.AnyEvent) -> None:
        """Pass events to the machine, then the wakes and proposals that are due."""
        self._queue.extend(events)
        state = self._machine.state
        while state.end is None:
            due = [wake for wake in self._wakes if wake.at <= self._now()]
            if self._queue:
                step(self._machine, self, lambda steps: None, [self._queue.popleft()])
            elif due:
                self._wakes.remove(due[0])
                self._queue.append(e.Woke(at=due[0].at, trial=due[0].trial))
            elif self._requests and self._new_trials:
                name, config = self._new_trials.popleft()
                self._numbers[name] = len(self._names)
                self._names.append(name)
                number = self._requests.popleft()
                self._queue.append(e.Proposed(at=self._now(), number=number, config=config))
            else:
                return

    def apply(self, step: d.Step, study: EngineView) -> None:
        """Record the decisions of a step; answer requests for a forecast at once."""
        for decision in step.decisions:
            match decision:
                case d.AskProposal(number=number):
                    self._requests.append(number)
                case d.AskForecast():
                    answer = self._advisor.answer(decision)()
                    self._queue.append(replace(answer, at=self._now()))
                case d.WakeAt():
                    self._wakes.append(decision)
                case d.Stop(trial=trial) if self._machine.state.trials[trial].attempt is None:
                    self._stopped.append(self._names[trial])
                case _:
                    pass
