"""A study while its engine runs: the loop until its end, and what interrupts it.

Knows what Ctrl-C and SIGTERM do to it. Does not know how a study is opened or resumed.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from paceline.api.cautions import CheckpointCaution, RestartCaution
from paceline.api.interrupts import Interrupts
from paceline.core.errors import ClusterLost, StudyTerminated
from paceline.core.events import Submitted
from paceline.engines.loop import run, step
from paceline.plan.settings import canonicalize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from paceline.api.deadline import DeadlineKeeper
    from paceline.core.decisions import Step
    from paceline.core.events import AnyEvent, Command, DeadlineChanged
    from paceline.core.ports import Advisor, Store
    from paceline.core.values import Config, StudySpec, Value
    from paceline.engines.process.engine import ProcessEngine
    from paceline.engines.process.local.inline_pool import InlinePool
    from paceline.engines.process.local.mps import Mps
    from paceline.machine.machine import Machine
    from paceline.machine.state import StudyState

    Watch = Callable[[StudyState, Sequence[Step]], None]


# How long workers may take to unwind after an interrupt; a second interrupt ends the wait.
_GRACE_S = 5.0


class RunningStudy:
    """A study while its engine runs."""

    def __init__(
        self,
        spec: StudySpec,
        machine: Machine,
        store: Store,
        engine: ProcessEngine,
        mps: Mps | None,
        resumable_in: str | None,
        inline: InlinePool | None = None,
    ) -> None:
        self.interrupts = Interrupts()
        # Looked at with the inbox; None: the study has no driver that keeps its deadline.
        self.deadline: DeadlineKeeper | None = None
        # Whether the user has interrupted it; its engine has ended then.
        self.is_interrupted = False
        # Options that could not be taken.
        self._refused: dict[str, Value] | None = None
        self._inline = inline
        self._spec = spec
        self._restarts = RestartCaution(spec)
        self._many_checkpoints = CheckpointCaution(spec)
        self._machine = machine
        self._store = store
        self._engine = engine
        self._mps = mps
        # The store's URL; None: the study is in memory alone.
        self._resumable_in = resumable_in

    @property
    def now(self) -> float:
        """Seconds on the study's clock."""
        return self._engine.now

    def close(self) -> None:
        """End the engine and everything it has started."""
        self._engine.close()
        if self._mps is not None:
            self._mps.close()

    @property
    def wanted_options(self) -> dict[str, Value] | None:
        """The options that a command asks to extend the study by; None: there are none."""
        state = self._machine.state
        if state.end is not None or self.is_interrupted or state.wanted_options == self._refused:
            return None
        return state.wanted_options

    def refuse_options(self) -> None:
        """Go on without the options that a command asked for."""
        self._refused = self.wanted_options

    def extend(self, spec: StudySpec, machine: Machine, advisor: Advisor) -> None:
        """Go on with another spec, and with a machine that has folded the log with it."""
        self._spec, self._machine = spec, machine
        self._engine.extend(spec, advisor)

    def take(self, events: Sequence[AnyEvent], watch: Watch | None = None) -> None:
        """Handle events that do not come from the engine."""
        step(self._machine, self._engine, self._remember(watch), events)

    def begin_deadline(self, watch: Watch | None, spent_s: float = 0.0) -> None:
        """Tell the study when its training ends; call this after each of its openings."""
        if self.deadline is not None:
            self._take_deadline(self.deadline.begin(self._machine.state, self.now, spent_s), watch)

    def keep_deadline(self, watch: Watch | None) -> None:
        """Tell the study if its training ends at another time than before."""
        if self.deadline is not None and self._machine.state.end is None:
            self._take_deadline(self.deadline.look(self._machine.state, self.now), watch)

    def _take_deadline(self, changed: DeadlineChanged | None, watch: Watch | None) -> None:
        if changed is not None:
            self.take([changed], watch)

    def submit(self, trials: Iterable[tuple[Config, int]]) -> list[int]:
        """Open a trial for each config, to be trained to its epoch; return the trials' numbers.

        The longest trials are opened first: one that starts last would keep all others waiting.
        """
        first = len(self._machine.state.trials)
        group = [(canonicalize(config), until) for config, until in trials]
        order = sorted(range(len(group)), key=lambda at: -group[at][1])
        with self.interrupts:
            for more, at in zip(reversed(range(len(group))), order, strict=True):
                config, until = group[at]
                now = self._engine.now
                self.take([Submitted(at=now, config=config, until=until, more=more)])
        numbers = dict(zip(order, range(first, first + len(group)), strict=True))
        return [numbers[at] for at in range(len(group))]

    def finish(self, numbers: Iterable[int], watch: Watch | None) -> None:
        """Train until these trials have reached their goals; others train on meanwhile."""
        trials = [self._machine.state.trials[number] for number in numbers]
        self.run(watch, lambda: not any(t.alive and t.epoch < t.goal for t in trials))
        if self.is_interrupted:
            # Not a subclass: Python exits as an interrupted program does for this class alone.
            raise KeyboardInterrupt(
                f"study {self._spec.name!r} was interrupted: {self._suggest()}."
            )

    def run(self, watch: Watch | None, until: Callable[[], bool] | None = None) -> None:
        """Run to the end of the study, or until a condition is met."""
        state, name, interrupts = self._machine.state, self._spec.name, self.interrupts

        def inbox(after: int) -> Sequence[tuple[int, Command]]:
            if watch is not None:
                watch(state, ())  # the view shows the time, which passes without events
            self.keep_deadline(watch)
            return self._store.inbox(name, after)

        def stop() -> bool:
            if interrupts.caught is not None:
                return True
            # A trial in this process cannot train on while no loop runs.
            idle = self._inline is None or self._inline.is_idle
            return idle and (self.wanted_options is not None or (until is not None and until()))

        def loop() -> None:
            try:
                run(self._machine, self._engine, self._remember(watch), inbox, stop)
            except ClusterLost as lost:
                way_out = f"study {name!r} is left unfinished; {self._suggest()}"
                raise ClusterLost(lost.found, way_out) from None

        with interrupts:
            if self._inline is None:
                loop()
            else:
                interrupts.is_raising = True
                self._inline.serve(loop, interrupts.interrupt)
                interrupts.is_raising = False
            if interrupts.caught is not None and state.end is None:
                self._engine.close(_GRACE_S)
                if interrupts.caught is signal.SIGTERM:
                    name = self._spec.name
                    raise StudyTerminated(f"study {name!r} was terminated: {self._suggest()}.")
                self.is_interrupted = True

    def _remember(self, watch: Watch | None) -> Callable[[Sequence[Step]], None]:
        state, name = self._machine.state, self._spec.name

        def remember(steps: Sequence[Step]) -> None:
            self._store.append(name, steps)
            self._restarts.look(steps)
            self._many_checkpoints.look(state)
            if watch is not None:
                watch(state, steps)

        return remember

    def _suggest(self) -> str:
        """Return the way to resume the study."""
        if self._resumable_in is None:
            return "it was kept in memory alone; with name=… and store=… it could be resumed"
        return f"its log in {self._resumable_in} is safe; run the same study again to resume it"
