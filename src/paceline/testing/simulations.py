"""Small studies to test parts in: tables written by hand, and training that is arithmetic.

Knows how to put a table, brains and virtual slots together and run them through the real machine,
loop and simulator. Knows no part: what is tested with it is given by whoever tests.
"""

from __future__ import annotations

import math
from array import array
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from paceline.allocation.fixed import Fixed
from paceline.core.decisions import Launch
from paceline.core.events import ChangeSlots, Command, Ended, Opened, Reported, Submitted
from paceline.core.ports import Crash, Outcome
from paceline.core.rng import stream
from paceline.core.values import Config, Mode, Part, StudySpec
from paceline.curves.last_value import Last
from paceline.engines.advisor import advice_by
from paceline.engines.loop import run
from paceline.engines.sim.cluster import Cluster, Faults
from paceline.engines.sim.engine import SimEngine
from paceline.engines.sim.traces import Header, Run, Trace
from paceline.generators.queued import Queued
from paceline.machine.invariants import complaints
from paceline.machine.machine import Brains, Machine
from paceline.machine.replay import replay
from paceline.machine.requirements import Asked
from paceline.plan.settings import canonical, key
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

T = TypeVar("T")

# A study of a kit ends within a few thousand steps; one that does not will never end.
MOST_STEPS = 20_000


def table(
    curves: Sequence[Sequence[float]],
    *,
    seconds: float | Sequence[float] = 1.0,
    configs: Sequence[Config] | None = None,
    epochs: int | None = None,
    mode: Mode = "min",
) -> Trace:
    """Return a trace with these values, one run a curve."""
    longest = epochs or max(map(len, curves))
    header = Header(paceline_trace=1, name="table", metric="loss", mode=mode, max_epochs=longest)
    paces = [seconds] * len(curves) if isinstance(seconds, float | int) else seconds
    runs = [
        Run(
            number,
            canonical(configs[number] if configs else {"run": number}),
            array("d", curve),
            array("d", [paces[number]] * len(curve)),
        )
        for number, curve in enumerate(curves)
    ]
    return Trace(header, runs)


def falling(count: int, epochs: int) -> list[list[float]]:
    """Return losses that fall at different speeds to different ends, and cross on the way.

    Those that come first are neither better nor worse: with some other seeds they are, by chance.
    """
    curves = []
    for number in range(count):
        rng = stream(5, "falling", number)
        end, height, speed = rng.random(), 1.0 + rng.random(), 0.3 + 2.0 * rng.random()
        curves.append(
            [end + height / (1.0 + speed * k) + 0.02 * rng.random() for k in range(1, epochs + 1)]
        )
    return curves


def spec_for(trace: Trace, **changes: Any) -> StudySpec:  # noqa: ANN401
    """Return the spec of a study on a trace."""
    header = trace.header
    told: dict[str, Any] = {
        "name": "played",
        "metric": header.metric,
        "mode": header.mode,
        "epochs": header.max_epochs,
        "policy": Part("given"),
        "generator": Part("queued"),
    }
    return StudySpec(**{**told, **changes})


def brains_for(
    trace: Trace,
    policy: Policy | None = None,
    allocator: Allocator | None = None,
    generator: Generator | None = None,
    needs: Needs | None = None,
) -> Brains:
    """Return brains for a study on a trace: the plainest, where none is given."""
    queue = Queued(configs=[run.config for run in trace.runs])
    asked = None if needs is None else Asked(needs)
    return Brains(policy or Fifo(), generator or queue, allocator or Fixed(), needs=asked)


class Scene(Struct, frozen=True):
    """What happens around a study while it runs."""

    # Completes "where …".
    name: str
    cluster: Cluster
    # What its spec says besides; with `fit`, whoever makes the brains says what trials need.
    spec: dict[str, Any] = {}
    # After so many steps somebody sends this command.
    commands: dict[int, Command] = {}


CALM = Scene("all is calm", Cluster(slots=3))
SCENES = (
    CALM,
    Scene(
        "everything takes its time",
        Cluster(slots=2, setup_s=0.3, save_s=0.2, restore_s=0.1, forecast_s=0.7, save_every_s=2.0),
    ),
    Scene(
        "attempts fail",
        Cluster(slots=3, save_every_s=2.0, faults=Faults(mean_life_s=6.0, seed=1)),
        {"retries": 1},
    ),
    Scene("slots vanish", Cluster(slots=3, capacity=((2.5, 1), (5.0, 0), (9.0, 4)))),
    Scene(
        "a command gives slots and takes them",
        Cluster(slots=2, save_s=0.1),
        commands={20: ChangeSlots(2), 40: ChangeSlots(-3)},
    ),
)


class Rehearsal:
    """A study that is simulated from its first fact to its last, with its log."""

    def __init__(
        self,
        spec: StudySpec,
        brains: Brains,
        workload: Workload,
        cluster: Cluster,
        commands: Mapping[int, Command] | None = None,
        curves: CurveModel | None = None,
    ) -> None:
        self.spec = spec
        self.brains = brains
        self.machine = Machine(brains)
        self.state = self.machine.state
        models = [curves or Last() for _ in brains.each]
        advice = advice_by(models, brains.generators, self.state)
        self.engine = SimEngine(workload, cluster, advice)
        self.steps: list[Step] = []
        # After so many steps somebody sends this command.
        self._commands = sorted((commands or {}).items())

    def run(self, through: Callable[[Engine], Engine] | None = None) -> Rehearsal:
        """Simulate to the end; facts and orders may be led through another engine."""
        self._take(Opened(at=0.0, spec=self.spec))
        return self.go_on(through)

    def train(self, *groups: Sequence[tuple[Config, int]]) -> Rehearsal:
        """Be an outside tuner: have groups of configs trained, each to its epoch, one by one."""
        self._take(Opened(at=0.0, spec=self.spec))
        for event in self.engine.wait() or ():
            self._take(event)
        for group in groups:
            for more, (config, until) in zip(reversed(range(len(group))), group, strict=True):
                now = self.engine.now
                self._take(Submitted(at=now, config=canonical(config), until=until, more=more))
            run(self.machine, self.engine, self._remember, until=self._trained)
        return self

    def _trained(self) -> bool:
        return not any(trial.alive and trial.epoch < trial.goal for trial in self.state.trials)

    def _take(self, event: AnyEvent) -> None:
        step = self.machine.handle(event)
        self.steps.append(step)
        self.engine.apply(step)

    def resume(self, log: Sequence[Step]) -> Rehearsal:
        """Live through a log again and go on to the end."""
        self.engine.expect(log)
        for step in log:
            self.machine.fold(step)
            self.engine.replay(step)
        self.steps = list(log)
        return self.go_on()

    def go_on(self, through: Callable[[Engine], Engine] | None = None) -> Rehearsal:
        """Simulate from here to the end."""
        engine = self.engine if through is None else through(self.engine)
        run(self.machine, engine, self._remember, self._inbox)
        return self

    def _remember(self, steps: Sequence[Step]) -> None:
        self.steps.extend(steps)
        if len(self.steps) > MOST_STEPS:
            recent = [entry for step in self.steps[-5:] for entry in step.entries]
            raise AssertionError(f"no end after {MOST_STEPS} steps: it goes on with {recent}")

    def _inbox(self, after: int) -> list[tuple[int, Command]]:
        sent = enumerate(self._commands, 1)
        return [
            (number, command)
            for number, (steps, command) in sent
            if number > after and len(self.steps) >= steps
        ]

    @property
    def entries(self) -> list[Entry]:
        """The whole log."""
        return [entry for step in self.steps for entry in step.entries]

    @property
    def decisions(self) -> list[AnyDecision]:
        """Everything that was decided, in order."""
        return [decision for step in self.steps for decision in step.decisions]

    @property
    def launches(self) -> list[Launch]:
        """Every Launch, in order."""
        return self.of(Launch)

    def of(self, kind: type[T]) -> list[T]:
        """Return the log's entries of one kind."""
        return [entry for entry in self.entries if isinstance(entry, kind)]

    @property
    def epochs(self) -> list[int]:
        """How far each trial came."""
        return [trial.epoch for trial in self.state.trials]


def rehearsal(trace: Trace, brains: Brains, scene: Scene = CALM) -> Rehearsal:
    """Return a study of a table's runs, with what happens around it."""
    spec = spec_for(trace, **scene.spec)
    return Rehearsal(spec, brains, Rows(trace), scene.cluster, scene.commands)


def broken_invariants(steps: Sequence[Step], brains: Brains) -> list[str]:
    """Take a log step by step and return what is wrong with any state on the way."""
    machine = Machine(brains)
    found = []
    for step in steps:
        machine.fold(step)
        found += [f"after entry {step.number}: {text}" for text in complaints(machine.state)]
    return found


def unlike_replay(steps: Sequence[Step], brains: Brains) -> str:
    """Decide a log's facts again and say where the decisions differ; nothing where they do not."""
    difference = replay(steps, brains)
    return "" if difference is None else f"the log replays otherwise: {difference}"


class Doubling:
    """An engine that tells every report twice, and all of them again when the attempt is gone."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._told: dict[int, list[Reported]] = {}

    @property
    def now(self) -> float:
        return self._engine.now

    def wait(self, patience: float | None = None) -> Sequence[AnyEvent] | None:
        events: list[AnyEvent] = []
        told = self._engine.wait(patience)
        if told is None:
            return None
        for event in told:
            events.append(event)
            if isinstance(event, Reported):
                events.append(event)
                self._told.setdefault(event.attempt, []).append(event)
            elif isinstance(event, Ended):
                late = self._told.pop(event.attempt, ())
                events += (replace(report, at=event.at) for report in late)
        return events

    def apply(self, step: Step) -> None:
        self._engine.apply(step)

    def replay(self, step: Step) -> None:
        self._engine.replay(step)

    def close(self) -> None:
        self._engine.close()


class Rows:
    """A table as a workload that answers any config: `run` says which of its runs is trained.

    Unlike a recorded trace it lets a trial change from run to run, as forked ones do, and takes a
    number between two runs for the nearer one.
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


class Trained(NamedTuple):
    """How many epochs are done, and the sum of what they added."""

    epochs: int
    total: float


class Adding:
    """Training that adds the setting `step` each epoch, so that its value tells its whole past.

    A config may also say after which epoch the training function returns (`length`), and in which
    it fails (`fails_in`). Any other config trains too: its steps are drawn by lot.
    """

    metric = "loss"

    def __init__(self, epoch_s: float = 1.0) -> None:
        self._epoch_s = epoch_s

    def begin(self, config: Config) -> object:
        return Trained(0, 0.0)

    def setup_s(self, state: object) -> float | None:
        return None

    def advance(self, state: object, setting: Config) -> Outcome | Crash:
        assert isinstance(state, Trained)
        epoch = state.epochs + 1
        if epoch == setting.get("fails_in"):
            return Crash(self._epoch_s / 2, f"told to fail in epoch {epoch}")
        step = setting.get("step")
        if step is None:
            step = -stream(0, "adding", key(setting).decode(), epoch).random()
        total = round(state.total + step, 9)
        done = Trained(epoch, total)
        return Outcome({self.metric: total}, self._epoch_s, done, epoch == setting.get("length"))
