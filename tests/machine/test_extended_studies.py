"""Extended studies: more trials, epochs or time, under every policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from paceline.api.registry import build_part
from paceline.core import events as e
from paceline.core.codec import decode_step, encode_step
from paceline.core.extension import apply_newest_spec, list_extensions, resolve_log
from paceline.core.values import Budget, Part, StudySpec, Target
from paceline.curves.last_value import Last
from paceline.engines.advisor import StudyAdvisor
from paceline.engines.loop import run, step
from paceline.engines.sim.cluster import Cluster
from paceline.engines.sim.engine import SimEngine
from paceline.generators.random import Random
from paceline.machine.decider import Parts
from paceline.machine.invariants import find_violations
from paceline.machine.machine import Machine
from paceline.machine.replay import replay_extended
from paceline.testing.simulations import MAX_STEPS, AddingWorkload
from paceline.testing.snapshots import dump_state

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.decisions import Step
    from paceline.core.events import AnyEvent

SPACE = {"step": {"uniform": [-1.0, 0.0]}}
POLICIES = (
    *(
        "asha",
        "asha:drain=true",
        "asha_stop",
        "bandit",
        "barrier:every=2",
        "barrier:every=2+bandit",
    ),
    *("early_term", "fifo", "hyperband", "hypersched", "kill_below:value=5", "median", "pasha"),
    *("pbt:population=3,interval=2", "plateau", "pop", "sha"),
)


def make_spec(policy: str = "fifo", **changes: Any) -> StudySpec:  # noqa: ANN401
    name, _, rest = policy.partition(":")
    params = dict(pair.split("=") for pair in filter(None, rest.partition("+")[0].split(",")))
    part = Part(policy) if "+" in policy else Part(name, {k: _read(v) for k, v in params.items()})
    fields: dict[str, Any] = {
        "name": "extended",
        "metric": "loss",
        "mode": "min",
        "epochs": 4,
        "policy": part,
        "generator": Part("random", {"space": SPACE}),
        "share": True,
        "budget": Budget(trials=5),
    }
    return StudySpec(**{**fields, **changes})


def _read(text: str) -> bool | int:
    return text == "true" if text in ("true", "false") else int(text)


def make_parts(spec: StudySpec) -> Parts:
    return Parts(
        build_part("policy", spec.policy),
        Random(space=SPACE),
        build_part("allocator", Part("fixed")),
    )


class LastingStudy:
    """A simulated study that a new driver extends after each run; its checkpoints stay."""

    def __init__(self, spec: StudySpec) -> None:
        self.log: list[Step] = []
        self.saved: dict[tuple[int, int], object] = {}
        self.now = 0.0
        self._run(spec, [e.Opened(at=0.0, spec=spec, logic=e.LOGIC)])

    def extend(self, spec: StudySpec) -> None:
        """Go on with another spec, as a new driver does."""
        extended = e.Extended(at=self.now, spec=spec, to="more", logic=e.LOGIC)
        lost = [
            e.Ended(at=self.now, attempt=number, cause=e.Cause.LOST)
            for number in self.state.attempts
        ]
        self._run(spec, [extended, *lost], [*list_extensions(self.log), extended])

    def _run(
        self, spec: StudySpec, events: Sequence[AnyEvent], extensions: Sequence[e.Extended] = ()
    ) -> None:
        parts = make_parts(spec)
        self.machine = Machine(parts)
        self.state = self.machine.state
        for each in self.log:
            self.machine.fold(apply_newest_spec(each, extensions))
        advisor = StudyAdvisor([Last()], parts.generators, self.state)
        engine = SimEngine(AddingWorkload(), Cluster(slots=2), advisor)
        engine.now, engine._checkpoints = self.now, self.saved
        engine._applied = self.state.number - 1
        step(self.machine, engine, self._remember, events)
        run(self.machine, engine, self._remember)
        self.now = engine.now

    def _remember(self, steps: Sequence[Step]) -> None:
        for each in steps:
            self.log.append(decode_step(encode_step(each)))
            assert find_violations(self.state) == []
        assert len(self.log) < MAX_STEPS

    def check(self) -> None:
        """The log folds to the live state, keeps the invariants and replays identically."""
        machine = Machine(make_parts(self.state.spec))
        for each in resolve_log(self.log):
            machine.fold(each)
            assert find_violations(machine.state) == [], each
        assert dump_state(machine.state) == dump_state(self.state)
        assert replay_extended(self.log, make_parts) is None
        assert replay_extended(resolve_log(self.log), make_parts) is None


@pytest.mark.parametrize("policy", POLICIES)
def test_more_trials_go_on_where_the_study_ended(policy: str) -> None:
    study = LastingStudy(make_spec(policy))
    assert study.state.end is not None
    before = len(study.state.trials)
    study.extend(make_spec(policy, budget=Budget(trials=9)))
    assert study.state.end is not None
    if not policy.startswith("pbt"):  # its population is a number of its own
        assert len(study.state.trials) == 9 > before
    study.check()


@pytest.mark.parametrize("policy", POLICIES)
def test_more_epochs_continue_the_trials_that_were_finished(policy: str) -> None:
    study = LastingStudy(make_spec(policy))
    reached = [trial.id for trial in study.state.trials if trial.epoch == 4]
    study.extend(make_spec(policy, epochs=10))
    assert study.state.end is not None
    assert reached
    assert any(study.state.trials[number].epoch > 4 for number in reached)
    assert max(trial.epoch for trial in study.state.trials) == 10
    study.check()


@pytest.mark.parametrize("policy", POLICIES)
def test_a_study_is_extended_again_and_again(policy: str) -> None:
    study = LastingStudy(make_spec(policy, budget=Budget(trials=5, deadline_s=3.5)))
    assert study.state.end is not None
    study.extend(make_spec(policy, epochs=6, budget=Budget(trials=5, deadline_s=9.5)))
    study.extend(make_spec(policy, epochs=6, budget=Budget(trials=8, deadline_s=20.5)))
    study.extend(make_spec(policy, epochs=9, budget=Budget(trials=8)))
    assert study.state.end is not None
    assert study.state.end.cause == "quiet"
    study.check()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("first", ["fifo", "asha", "hyperband"])
def test_another_policy_takes_the_trials_over(first: str, policy: str) -> None:
    study = LastingStudy(make_spec(first, budget=Budget(trials=5, deadline_s=5.5)))
    study.extend(make_spec(policy, budget=Budget(trials=8)))
    assert study.state.end is not None
    assert study.state.end.cause == "quiet"
    study.check()


def test_an_epoch_is_not_trained_twice() -> None:
    study = LastingStudy(make_spec("fifo", budget=Budget(trials=3)))
    study.extend(make_spec("fifo", epochs=9, budget=Budget(trials=3)))
    assert [trial.epoch for trial in study.state.trials] == [9, 9, 9]
    assert study.state.epochs_trained == 27


def test_a_function_that_returned_early_stays_finished() -> None:
    study = LastingStudy(
        make_spec(generator=Part("random", {"space": SPACE}), budget=Budget(trials=1))
    )
    trial = study.state.trials[0]
    assert trial.epoch == 4
    # The same log, with a training function that returned after its second epoch.
    kept = [
        each
        for each in study.log
        if not (isinstance(each.event, e.Reported) and each.event.epoch > 2)
    ]
    events = [
        replace(each.event, cause=e.Cause.FINISHED)
        if isinstance(each.event, e.Ended)
        else each.event
        for each in kept
    ]
    machine = Machine(make_parts(study.state.spec))
    early = [machine.handle(event) for event in events]
    spec = make_spec(epochs=9, budget=Budget(trials=1))
    extended = e.Extended(at=study.now, spec=spec, to="9 epochs")
    machine = Machine(make_parts(spec))
    for each in early:
        machine.fold(apply_newest_spec(each, [extended]))
    machine.handle(extended)
    assert machine.state.trials[0].status == "finished"
    assert machine.state.trials[0].epoch == 2


def test_a_trial_whose_report_came_after_the_deadline_is_trained_in_an_extended_study() -> None:
    spec = make_spec(epochs=1, budget=Budget(trials=1, deadline_s=5.0))
    machine = Machine(make_parts(spec))
    metrics: dict[str, float | None] = {"loss": 0.5}
    log = [
        machine.handle(event)
        for event in (
            e.Opened(at=0.0, spec=spec, logic=e.LOGIC),
            e.CapacityChanged(at=0.0, slots=(0,)),
            e.Woke(at=5.0),
            e.Reported(at=5.0, attempt=0, epoch=1, metrics=metrics, seconds=1.0, last=True),
            e.Ended(at=5.0, attempt=0, cause=e.Cause.FINISHED),
        )
    ]
    spec = make_spec(epochs=1, budget=Budget(trials=1, deadline_s=9.0))
    extended = e.Extended(at=5.0, spec=spec, to="9 s")
    machine = Machine(make_parts(spec))
    for each in log:
        machine.fold(apply_newest_spec(each, [extended]))
    machine.handle(extended)
    machine.handle(e.CapacityChanged(at=5.0, slots=(0,)))
    assert machine.state.trials[0].status == "running"
    machine.handle(e.Reported(at=6.0, attempt=1, epoch=1, metrics=metrics, seconds=1.0, last=True))
    assert machine.state.trials[0].status == "finished"
    assert machine.state.best_loss == 0.5


def test_a_study_that_reached_its_target_goes_on_to_a_harder_one() -> None:
    study = LastingStudy(make_spec(budget=Budget(trials=5, target=Target(-0.5))))
    assert study.state.end is not None
    assert study.state.end.cause == "target"
    study.extend(make_spec(budget=Budget(trials=5, target=Target(-99.0))))
    assert study.state.end is not None
    assert study.state.end.cause == "quiet"
    study.extend(make_spec(budget=Budget(trials=5, target=Target(-0.4))))
    assert study.state.end is not None
    assert study.state.end.cause == "target"
    assert "the target is -0.4" in study.state.end.why
    study.check()
