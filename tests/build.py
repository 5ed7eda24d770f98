"""Small studies for tests: tables written by hand, run through the real machine and simulator."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

from paceline.allocation.fixed import Fixed
from paceline.core.decisions import Launch
from paceline.core.events import Opened
from paceline.core.values import Config, Part, StudySpec
from paceline.curves.last import Last
from paceline.engines.advice import Advice
from paceline.engines.loop import run
from paceline.engines.sim.cluster import Cluster
from paceline.engines.sim.engine import SimEngine
from paceline.engines.sim.recorded import Recorded
from paceline.engines.sim.traces import Header, Run, Trace
from paceline.generators.queued import Queued
from paceline.machine.machine import Brains, Machine
from paceline.plan.settings import canonical
from paceline.policies.fifo import Fifo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.decisions import Entry, Step
    from paceline.core.events import Command
    from paceline.core.ports import Allocator, Generator, Policy, Workload


def table(
    curves: Sequence[Sequence[float]],
    *,
    seconds: float | Sequence[float] = 1.0,
    configs: Sequence[Config] | None = None,
    epochs: int | None = None,
) -> Trace:
    """Return a trace with these losses, one run a curve."""
    longest = epochs or max(map(len, curves))
    header = Header(paceline_trace=1, name="table", metric="loss", mode="min", max_epochs=longest)
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


class Played:
    """A study that is simulated, with its log."""

    def __init__(
        self,
        trace: Trace,
        policy: Policy | None = None,
        *,
        slots: int = 1,
        cluster: dict[str, Any] | None = None,
        allocator: Allocator | None = None,
        generator: Generator | None = None,
        workload: Workload | None = None,
        commands: dict[int, Command] | None = None,
        **spec: Any,  # noqa: ANN401
    ) -> None:
        self.spec = StudySpec(
            name="played",
            metric=trace.header.metric,
            mode=trace.header.mode,
            epochs=trace.header.max_epochs,
            policy=Part("given"),
            generator=Part("queued"),
            **spec,
        )
        generator = generator or Queued(configs=[run.config for run in trace.runs])
        self.brains = Brains(policy or Fifo(), generator, allocator or Fixed())
        self.machine = Machine(self.brains)
        self.engine = SimEngine(
            workload or Recorded(trace, share=self.spec.share),
            Cluster(slots=slots, **(cluster or {})),
            Advice(Last(), generator, self.machine.state),
        )
        self.steps: list[Step] = []
        self.state = self.machine.state
        # After so many steps somebody sends this command.
        self._commands = sorted((commands or {}).items())

    def run(self) -> Played:
        """Simulate to the end."""
        first = self.machine.handle(Opened(at=0.0, spec=self.spec))
        self.steps.append(first)
        self.engine.apply(first)
        return self.go_on()

    def resume(self, log: Sequence[Step]) -> Played:
        """Live through a log again and go on to the end."""
        self.engine.expect(log)
        for step in log:
            self.machine.fold(step)
            self.engine.replay(step)
        self.steps = list(log)
        return self.go_on()

    def go_on(self) -> Played:
        """Simulate from here to the end."""
        run(self.machine, self.engine, self.steps.extend, self._inbox)
        return self

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
    def launches(self) -> list[Launch]:
        """Every Launch, in order."""
        return self.of(Launch)

    def of(self, kind: type) -> list[Any]:
        """Return the log's entries of one kind."""
        return [entry for entry in self.entries if isinstance(entry, kind)]
