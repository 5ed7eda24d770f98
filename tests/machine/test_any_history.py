"""The core under any history: late, doubled, unknown and impossible facts, in any order."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.codec import decode_step, encode_step
from paceline.core.forecast_quantiles import LEVELS, Forecast
from paceline.core.values import Budget, Part, Saves, StudySpec, Target
from paceline.generators.queued import Queued
from paceline.machine.decider import Parts
from paceline.machine.invariants import find_violations
from paceline.machine.machine import Machine
from paceline.machine.replay import replay
from paceline.machine.requirements import NeedsFunction
from paceline.policies.asha import Asha
from paceline.policies.fifo import Fifo
from paceline.testing.random_parts import DeferredGenerator, RandomAllocator, RandomPolicy
from paceline.testing.snapshots import dump_state

if TYPE_CHECKING:
    from paceline.core.decisions import Step
    from paceline.core.ports import Policy

CONFIGS: list[dict[str, Any]] = [
    {"lr": {"piecewise": [[0, a], [2, b], [4, c]]}}
    for a in (0.1, 0.2)
    for b in (0.1, 0.3)
    for c in (0.1, 0.4)
]
NEEDS = {0.1: 0.5, 0.3: 2, 0.4: 3}
SAVES = (
    Saves(),
    Saves(collect=True),
    Saves(collect=True, best=1),
    Saves(collect=True, bytes=4),
    Saves(collect=True, bytes=1, best=2),
)
POLICIES = ("fifo", "asha", "probe", "forking probe")

numbers = st.one_of(st.floats(-2, 2), st.sampled_from([math.nan, math.inf, -math.inf]))


def make_parts(policy: str, seed: int, asked: bool, fit: bool) -> Parts:
    """Return fresh parts; the same arguments give the same decisions."""
    judge: Policy
    if policy == "fifo":
        judge = Fifo()
    elif policy == "asha":
        judge = Asha(eta=2, first=1)
    else:
        changes = [{"lr": 0.7}, {"lr": 0.9}] if policy.startswith("forking") else None
        judge = RandomPolicy(seed=seed, forks=changes)
    generator = DeferredGenerator(configs=CONFIGS) if asked else Queued(configs=CONFIGS)
    needs = NeedsFunction(lambda setting: NEEDS.get(setting["lr"], 1)) if fit else None
    return Parts(judge, generator, RandomAllocator(seed=seed), needs=needs)


class AnyHistory(RuleBasedStateMachine):
    """Throws facts at a machine, most of them true, many of them not."""

    @initialize(
        policy=st.sampled_from(POLICIES),
        seed=st.integers(0, 20),
        share=st.booleans(),
        deadline=st.sampled_from([None, None, 5.0]),
        goal=st.sampled_from([None, None, -1.9]),
        retries=st.integers(0, 2),
        asked=st.booleans(),
        fit=st.booleans(),
        saves=st.sampled_from(SAVES),
    )
    def open(
        self,
        policy: str,
        seed: int,
        share: bool,
        deadline: float | None,
        goal: float | None,
        retries: int,
        asked: bool,
        fit: bool,
        saves: Saves,
    ) -> None:
        self.chosen = policy, seed, asked, fit
        self.machine = Machine(make_parts(*self.chosen))
        self.steps: list[Step] = []
        self.at = 0.0
        spec = StudySpec(
            name="any",
            metric="loss",
            mode="min",
            epochs=6,
            policy=Part(policy),
            generator=Part("asked"),
            budget=Budget(deadline, None if goal is None else Target(goal)),
            share=share,
            retries=retries,
            saves=saves,
            pack=2,
            span=2,
            fit=fit,
        )
        self.say(e.Opened(at=0.0, spec=spec))
        self.say(e.CapacityChanged(at=0.0, slots=(0, 1, 2)))

    def say(self, event: e.AnyEvent) -> None:
        step = self.machine.handle(event)
        self.steps.append(step)
        state = self.machine.state
        gone = {
            name for drop in step.decisions if isinstance(drop, d.Drop) for name in drop.checkpoints
        }
        starts = {
            (decision.source, decision.start)
            for decision in step.decisions
            if isinstance(decision, d.Launch)
        }
        assert not gone & starts, "an attempt starts from what is given up at the same moment"
        held = sum(file.bytes for file in state.checkpoints.records.values())
        assert held == state.checkpoints.bytes

    def attempt(self, draw: float) -> int:
        """Return an attempt that mostly lives, and sometimes never did."""
        state = self.machine.state
        live = list(state.attempts) or [0]
        if draw > 0.9:
            return state.launches + 3
        return live[int(draw * len(live))]

    @rule(seconds=st.sampled_from([0.0, 0.1, 1.0, -0.5]))
    def time_passes(self, seconds: float) -> None:
        # Also backwards: clocks do that, and the study's must not.
        self.at += seconds

    @rule(slots=st.sets(st.integers(0, 4)), certain=st.integers(0, 3))
    def slots_come_and_go(self, slots: set[int], certain: int) -> None:
        if certain == 0:
            self.say(e.CapacityChanged(at=self.at, slots=tuple(sorted(slots))))

    @rule(draw=st.floats(0, 0.999), values=st.lists(numbers, min_size=1, max_size=4))
    def an_attempt_reports(self, draw: float, values: list[float]) -> None:
        for value in values:
            self.at += 0.1
            self.report(self.attempt(draw * 0.9), value, 0)

    @rule(draw=st.floats(0, 0.999), value=numbers, skew=st.sampled_from([-1, 1, 5]))
    def an_impossible_report_arrives(self, draw: float, value: float, skew: int) -> None:
        self.report(self.attempt(draw), value, skew)

    def report(self, number: int, value: float, skew: int) -> None:
        live = self.machine.state.attempts.get(number)
        epoch = (live.epoch if live is not None else 0) + 1 + skew
        extra: dict[str, float | None] = {"other": value} if number % 3 == 1 else {}
        self.say(
            e.Reported(
                at=self.at,
                attempt=number,
                epoch=epoch,
                metrics={"loss": value, **extra},
                seconds=1.0,
            )
        )

    @rule()
    def the_last_report_comes_again(self) -> None:
        told = [step.event for step in self.steps if isinstance(step.event, e.Reported)]
        if told:
            self.say(told[-1])

    @rule(
        draw=st.floats(0, 0.999),
        back=st.integers(0, 2),
        missed=st.booleans(),
        size=st.integers(0, 3),
    )
    def an_attempt_saves_or_misses(self, draw: float, back: int, missed: bool, size: int) -> None:
        number = self.attempt(draw)
        live = self.machine.state.attempts.get(number)
        epoch = max(0, (live.epoch if live is not None else 1) - back)
        if missed:
            self.say(e.Missed(at=self.at, attempt=number, epoch=epoch))
        else:
            self.say(e.Saved(at=self.at, attempt=number, epoch=epoch, bytes=size))

    @rule(draw=st.floats(0, 0.999), cause=st.sampled_from(list(e.Cause)))
    def an_attempt_ends(self, draw: float, cause: e.Cause) -> None:
        self.say(e.Ended(at=self.at, attempt=self.attempt(draw), cause=cause, note="as drawn"))

    @rule(asked=st.booleans(), some=st.booleans())
    def a_forecast_arrives(self, asked: bool, some: bool) -> None:
        asks = list(self.machine.state.pending.forecasts)
        trial, epoch = asks[0] if asked and asks else (7, 3)
        forecast = Forecast((6,), (tuple(range(len(LEVELS))),)) if some else None
        self.say(e.Forecasted(at=self.at, trial=trial, epoch=epoch, forecast=forecast))

    @rule(which=st.lists(st.integers(0, len(CONFIGS)), min_size=1, max_size=4))
    def proposals_arrive(self, which: list[int]) -> None:
        for index in which:
            awaited = sorted(self.machine.state.pending.awaited)
            config = CONFIGS[index] if index < len(CONFIGS) else None
            _, number = awaited[0] if awaited else (0, 99)
            self.say(e.Proposed(at=self.at, number=number, config=config))

    @rule(asked=st.booleans())
    def somebody_wakes(self, asked: bool) -> None:
        wakes = sorted(self.machine.state.pending.wakes, key=str)
        at, trial = wakes[0] if asked and wakes else (self.at, 5)
        self.say(e.Woke(at=at, trial=trial))

    @rule(by=st.sampled_from([-9, -1, 1, 2]), number=st.integers(0, 5))
    def a_command_changes_the_slots(self, by: int, number: int) -> None:
        self.say(e.Commanded(at=self.at, number=number, command=e.ChangeSlots(by)))

    @rule(
        which=st.integers(0, len(CONFIGS) - 1),
        values=st.lists(numbers, max_size=7),
        after=st.sampled_from([0, 0, 2]),
        saved=st.lists(st.integers(0, 8), max_size=3, unique=True),
        attempt=st.sampled_from([None, -1, 0]),
    )
    def something_is_adopted(
        self,
        which: int,
        values: list[float],
        after: int,
        saved: list[int],
        attempt: int | None,
    ) -> None:
        # Most are named as they should be; some by a name that is taken, or that an attempt has.
        number = -1 - len(self.machine.state.reused.trials) if attempt is None else attempt
        self.say(
            e.Adopted(
                at=self.at,
                study="another",
                config=CONFIGS[which],
                metrics=tuple({"loss": value} for value in values),
                seconds=(1.0,) * len(values),
                after=after,
                saves=tuple(e.AdoptedSave(epoch, 10, "d") for epoch in saved),
                attempt=number,
            )
        )

    @rule(which=st.integers(0, len(CONFIGS) - 1), values=st.lists(st.floats(-2, 2), max_size=7))
    def something_is_recalled(self, which: int, values: list[float]) -> None:
        config = CONFIGS[which]
        self.say(e.Recalled(at=self.at, study="another", config=config, values=tuple(values)))

    @rule(draw=st.floats(0, 0.999))
    def a_checkpoint_turns_out_to_be_spoiled(self, draw: float) -> None:
        self.say(e.Spoiled(at=self.at, attempt=self.attempt(draw)))

    @rule()
    def a_driver_resumes(self) -> None:
        self.say(e.Resumed(at=self.at))

    @rule(certain=st.integers(0, 9))
    def a_command_stops_the_study(self, certain: int) -> None:
        if certain == 0:
            self.say(e.Commanded(at=self.at, number=6, command=e.StopStudy()))

    @invariant()
    def everything_holds(self) -> None:
        if hasattr(self, "machine"):
            found = find_violations(self.machine.state)
            assert not found, found

    def teardown(self) -> None:
        if not hasattr(self, "machine"):
            return
        again = Machine(make_parts(*self.chosen))
        written = [decode_step(encode_step(step)) for step in self.steps]
        for step in written:
            again.fold(step)
        assert dump_state(again.state) == dump_state(self.machine.state)
        assert replay(written, make_parts(*self.chosen)) is None


TestAnyHistory = AnyHistory.TestCase
