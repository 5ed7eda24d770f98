"""Small simulated studies for tests: tables of losses, and training that is plain arithmetic.

Knows how to run a table and parts on virtual slots through the real machine, loop and simulator.
Does not know the parts under test: the caller passes them.
"""

from __future__ import annotations

import math
from array import array
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from paceline.allocation.fixed import Fixed
from paceline.core.decisions import Launch
from paceline.core.events import LOGIC, ChangeSlots, Command, Ended, Opened, Reported, Submitted
from paceline.core.ports import Crash, Outcome
from paceline.core.rng import stream
from paceline.core.values import Config, Mode, Part, StudySpec
from paceline.curves.last_value import Last
from paceline.engines.advisor import StudyAdvisor
from paceline.engines.loop import run, step
from paceline.engines.sim.cluster import Cluster, Faults
from paceline.engines.sim.engine import SimEngine
from paceline.engines.sim.traces import Trace, TraceHeader, TraceRun
from paceline.generators.queued import Queued
from paceline.machine.decider import Parts
from paceline.machine.invariants import find_violations
from paceline.machine.machine import Machine
from paceline.machine.replay import replay
from paceline.machine.requirements import NeedsFunction
from paceline.plan.settings import canonicalize, config_key
from paceline.policies.fifo import Fifo

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from paceline.core.decisions import AnyDecision, Entry, Step
    from paceline.core.events import AnyEvent
    from paceline.core.ports import (
        Allocator,
        CurveModel,
        Engine,
        Generator,
        Needs,
        Policy,
        Workload,
    )
    from paceline.core.views import EngineView

T = TypeVar("T")

# A study of a kit ends within a few thousand steps; a longer one will never end.
MAX_STEPS = 20_000


def make_table(
    curves: Sequence[Sequence[float]],
    *,
    seconds: float | Sequence[float] = 1.0,
    configs: Sequence[Config] | None = None,
    epochs: int | None = None,
    mode: Mode = "min",
) -> Trace:
    """Return a trace with one run for each curve."""
    longest = epochs or max(map(len, curves))
    header = TraceHeader(
        paceline_trace=1, name="table", metric="loss", mode=mode, max_epochs=longest
    )
    paces = [seconds] * len(curves) if isinstance(seconds, float | int) else seconds
    runs = [
        TraceRun(
            number,
            canonicalize(configs[number] if configs else {"run": number}),
            array("d", curve),
            array("d", [paces[number]] * len(curve)),
        )
        for number, curve in enumerate(curves)
    ]
    return Trace(header, runs)


def make_falling_curves(count: int, epochs: int) -> list[list[float]]:
    """Return losses that fall at different speeds to different ends, with crossing curves.

    With this seed, early curves are neither better nor worse than late ones.
    """
    curves = []
    for number in range(count):
        rng = stream(5, "falling", number)
        end, height, speed = rng.random(), 1.0 + rng.random(), 0.3 + 2.0 * rng.random()
        curves.append(
            [end + height / (1.0 + speed * k) + 0.02 * rng.random() for k in range(1, epochs + 1)]
        )
    return curves


def make_spec(trace: Trace, **changes: Any) -> StudySpec:  # noqa: ANN401
    """Return the spec of a study on a trace."""
    header = trace.header
    defaults: dict[str, Any] = {
        "name": "played",
        "metric": header.metric,
        "mode": header.mode,
        "epochs": header.max_epochs,
        "policy": Part("given"),
        "generator": Part("queued"),
    }
    return StudySpec(**{**defaults, **changes})


def make_parts(
    trace: Trace,
    policy: Policy | None = None,
    allocator: Allocator | None = None,
    generator: Generator | None = None,
    needs: Needs | None = None,
) -> Parts:
    """Return parts for a study on a trace; missing ones are the simplest of their kind."""
    queue = Queued(configs=[run.config for run in trace.runs])
    asked = None if needs is None else NeedsFunction(needs)
    return Parts(policy or Fifo(), generator or queue, allocator or Fixed(), needs=asked)


class Scenario(Struct, frozen=True):
    """The conditions under which a study runs: cluster, options, commands."""

    # Completes the sentence "where …".
    name: str
    cluster: Cluster
    # Other fields of its spec; with `fit`, the parts must define what trials need.
    spec: dict[str, Any] = {}
    # By number of steps, the command that is sent after them.
    commands: dict[int, Command] = {}


CALM = Scenario("all is calm", Cluster(slots=3))
SCENARIOS = (
    CALM,
    Scenario(
        "everything takes its time",
        Cluster(slots=2, setup_s=0.3, save_s=0.2, restore_s=0.1, forecast_s=0.7, save_every_s=2.0),
    ),
    Scenario(
        "attempts fail",
        Cluster(slots=3, save_every_s=2.0, faults=Faults(mean_life_s=6.0, seed=1)),
        {"retries": 1},
    ),
    Scenario("slots vanish", Cluster(slots=3, capacity=((2.5, 1), (5.0, 0), (9.0, 4)))),
    Scenario(
        "a command gives slots and takes them",
        Cluster(slots=2, save_s=0.1),
        commands={20: ChangeSlots(2), 40: ChangeSlots(-3)},
    ),
)


class SimulatedStudy:
    """A simulated study with its log."""

    def __init__(
        self,
        spec: StudySpec,
        parts: Parts,
        workload: Workload,
        cluster: Cluster,
        commands: Mapping[int, Command] | None = None,
        curves: CurveModel | None = None,
    ) -> None:
        self.spec = spec
        self.parts = parts
        self.machine = Machine(parts)
        self.state = self.machine.state
        models = [curves or Last() for _ in parts.each]
        advice = StudyAdvisor(models, parts.generators, self.state)
        self.engine = SimEngine(workload, cluster, advice)
        self.steps: list[Step] = []
        # Pairs of a number of steps and the command that is sent after them.
        self._commands = sorted((commands or {}).items())

    def run(self, through: Callable[[Engine], Engine] | None = None) -> SimulatedStudy:
        """Simulate to the end; `through` may wrap the engine."""
        self._take(Opened(at=0.0, spec=self.spec, logic=LOGIC))
        return self.continue_run(through)

    def train(self, *groups: Sequence[tuple[Config, int]]) -> SimulatedStudy:
        """Train groups of configs, each to its epoch, as an outside tuner does."""
        self._take(Opened(at=0.0, spec=self.spec, logic=LOGIC))
        for event in self.engine.wait() or ():
            self._take(event)
        for group in groups:
            for more, (config, until) in zip(reversed(range(len(group))), group, strict=True):
                now = self.engine.now
                self._take(Submitted(at=now, config=canonicalize(config), until=until, more=more))
            run(self.machine, self.engine, self._remember, until=self._trained)
        return self

    def _trained(self) -> bool:
        return not any(trial.alive and trial.epoch < trial.goal for trial in self.state.trials)

    def _take(self, event: AnyEvent) -> None:
        step(self.machine, self.engine, self._remember, [event])

    def resume(self, log: Sequence[Step]) -> SimulatedStudy:
        """Resume from a log and simulate to the end."""
        self.engine.expect(log)
        for each in log:
            self.machine.fold(each)
            self.engine.replay(each, self.state)
        self.steps = list(log)
        return self.continue_run()

    def continue_run(self, through: Callable[[Engine], Engine] | None = None) -> SimulatedStudy:
        """Simulate from here to the end."""
        engine = self.engine if through is None else through(self.engine)
        run(self.machine, engine, self._remember, self._inbox, poll_s=0.0)
        return self

    def _remember(self, steps: Sequence[Step]) -> None:
        self.steps.extend(steps)
        if len(self.steps) > MAX_STEPS:
            recent = [entry for step in self.steps[-5:] for entry in step.entries]
            raise AssertionError(f"no end after {MAX_STEPS} steps; the last entries: {recent}")

    def _inbox(self, after: int) -> list[tuple[int, Command]]:
        sent = enumerate(self._commands, 1)
        return [
            (number, command)
            for number, (steps, command) in sent
            if number > after and len(self.steps) >= steps
        ]

    @property
    def entries(self) -> list[Entry]:
        """All entries of the log, in order."""
        return [entry for step in self.steps for entry in step.entries]

    @property
    def decisions(self) -> list[AnyDecision]:
        """All decisions, in order."""
        return [decision for step in self.steps for decision in step.decisions]

    @property
    def launches(self) -> list[Launch]:
        """Every Launch, in order."""
        return self.list_entries(Launch)

    def list_entries(self, kind: type[T]) -> list[T]:
        """Return the log's entries of one kind."""
        return [entry for entry in self.entries if isinstance(entry, kind)]

    @property
    def epochs(self) -> list[int]:
        """The number of epochs of each trial."""
        return [trial.epoch for trial in self.state.trials]


def make_study(trace: Trace, parts: Parts, scenario: Scenario = CALM) -> SimulatedStudy:
    """Return a study of a table's runs in a scenario."""
    spec = make_spec(trace, **scenario.spec)
    return SimulatedStudy(spec, parts, TableWorkload(trace), scenario.cluster, scenario.commands)


def find_broken_invariants(steps: Sequence[Step], parts: Parts) -> list[str]:
    """Fold a log step by step and return the invariants that any state breaks."""
    machine = Machine(parts)
    found = []
    for each in steps:
        machine.fold(each)
        found += [f"after entry {each.number}: {text}" for text in find_violations(machine.state)]
    return found


def find_replay_difference(steps: Sequence[Step], parts: Parts) -> str:
    """Replay a log and describe the first difference; empty if there is none."""
    difference = replay(steps, parts)
    return "" if difference is None else f"the log replays differently: {difference}"


class DuplicatingEngine:
    """Wraps an engine: repeats every report at once, and again after the attempt has ended."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reports: dict[int, list[Reported]] = {}

    @property
    def now(self) -> float:
        return self._engine.now

    def wait(self, patience: float | None = None) -> Sequence[AnyEvent] | None:
        events: list[AnyEvent] = []
        received = self._engine.wait(patience)
        if received is None:
            return None
        for event in received:
            events.append(event)
            if isinstance(event, Reported):
                events.append(event)
                self._reports.setdefault(event.attempt, []).append(event)
            elif isinstance(event, Ended):
                late = self._reports.pop(event.attempt, ())
                events += (replace(report, at=event.at) for report in late)
        return events

    def apply(self, step: Step, study: EngineView) -> None:
        self._engine.apply(step, study)

    def close(self) -> None:
        self._engine.close()


class TableWorkload:
    """A table as a workload for any config: the setting `run` selects the run.

    Unlike a recorded trace it lets a trial switch between runs, as forked trials do, and rounds
    fractional numbers.
    """

    def __init__(self, trace: Trace) -> None:
        self.metric = trace.header.metric
        self._runs = trace.runs

    def begin(self, config: Config) -> object:
        return 0

    def setup_s(self, state: object) -> float | None:
        return None

    def advance(self, state: object, setting: Config) -> Outcome:
        assert isinstance(state, int)
        run = self._runs[round(setting["run"]) % len(self._runs)]
        at = min(state, len(run.values) - 1)
        value = run.values[at]
        metrics = {self.metric: None if math.isnan(value) else value}
        return Outcome(metrics, run.seconds[at], state + 1, state + 1 >= len(run.values))


class TrainingProgress(NamedTuple):
    """The number of epochs done, and the sum of their steps."""

    epochs: int
    total: float


class AddingWorkload:
    """Training that adds the setting `step` each epoch, so that its value shows its whole past.

    A config may set the epoch after which the training function returns (`length`), and the epoch
    in which it fails (`fails_in`). Without `step`, steps are drawn at random.
    """

    metric = "loss"

    def __init__(self, epoch_s: float = 1.0) -> None:
        self._epoch_s = epoch_s

    def begin(self, config: Config) -> object:
        return TrainingProgress(0, 0.0)

    def setup_s(self, state: object) -> float | None:
        return None

    def advance(self, state: object, setting: Config) -> Outcome | Crash:
        assert isinstance(state, TrainingProgress)
        epoch = state.epochs + 1
        if epoch == setting.get("fails_in"):
            return Crash(self._epoch_s / 2, f"told to fail in epoch {epoch}")
        step = setting.get("step")
        if step is None:
            step = -stream(0, "adding", config_key(setting).decode(), epoch).random()
        total = round(state.total + step, 9)
        done = TrainingProgress(epoch, total)
        return Outcome({self.metric: total}, self._epoch_s, done, epoch == setting.get("length"))
