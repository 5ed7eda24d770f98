"""The driver: one study with its store and its machine, and the study while its engine runs.

Knows how to open a study and how to resume one, and that everything it starts ends with it.
"""

from __future__ import annotations

import signal
import threading
import time
import warnings
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import msgspec
from msgspec.structs import replace

from paceline.api.locations import StudyLocations
from paceline.api.options import seconds_until
from paceline.api.prior_studies import find_related, read_warm_start, reuse_prefixes, warn_of_change
from paceline.api.registry import build_part
from paceline.api.results import Result
from paceline.core.decisions import EndCause
from paceline.core.errors import (
    CheckpointError,
    PacelineWarning,
    SpecError,
    StudyFailed,
    StudyTerminated,
)
from paceline.core.events import FORMAT, LOGIC, Opened, Resumed, Submitted
from paceline.core.run_info import RunInfo
from paceline.engines.advisor import StudyAdvisor
from paceline.engines.loop import run, step
from paceline.engines.process.checkpoint_files import CheckpointFiles
from paceline.engines.process.engine import ProcessEngine
from paceline.engines.process.local.devices import find_devices
from paceline.engines.process.local.mps import Mps
from paceline.engines.process.local.worker_pool import ForkServerPool
from paceline.engines.process.ray.config import Ray, parse_ray
from paceline.engines.process.supervisor import Timeouts
from paceline.machine.machine import Machine
from paceline.plan.settings import canonicalize
from paceline.store import MemoryStore, hide_password, open_store
from paceline.store.storage import check_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import FrameType

    from paceline.api.options import StudyOptions
    from paceline.api.registry import StudyParts
    from paceline.core.decisions import Step
    from paceline.core.events import AnyEvent, Command
    from paceline.core.ports import Advisor, CurveModel, Store
    from paceline.core.values import Config, StudySpec
    from paceline.machine.state import StudyState

    Watch = Callable[[StudyState, Sequence[Step]], None]


# Python's own handlers; a handler that the program has set stays.
_DEFAULTS: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}


class Interrupts:
    """Catches SIGINT and SIGTERM inside a `with` block, in the main thread."""

    def __init__(self) -> None:
        # The signal that was caught; None: none so far.
        self.caught: signal.Signals | None = None
        self._handled: list[signal.Signals] = []

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number, default in _DEFAULTS.items():
                if signal.getsignal(number) is default:
                    signal.signal(number, self._catch)
                    self._handled.append(number)
        return self

    def __exit__(self, *_: object) -> None:
        while self._handled:
            number = self._handled.pop()
            signal.signal(number, _DEFAULTS[number])

    def _catch(self, number: int, frame: FrameType | None) -> None:
        if self.caught is not None:
            raise KeyboardInterrupt("interrupted twice: everything ends at once")
        self.caught = signal.Signals(number)


# How long workers may take to unwind after an interrupt; a second interrupt ends the wait.
_GRACE_S = 5.0
# How long the end of a study waits for the storage to be swept.
_SWEEP_S = 5.0


class Driver:
    """One study: its store, its log, its files and its machine. A context manager.

    `run` goes into the log with the spec, so that a later driver can resume the study. `known`
    are entries of the log that were read before: only later ones are read again.
    """

    def __init__(
        self,
        train: Callable[[Any], Any],
        spec: StudySpec,
        options: StudyOptions,
        parts: StudyParts,
        run: RunInfo | None = None,
        known: Sequence[Step] = (),
    ) -> None:
        # The study's clock starts here: a deadline includes the start of the engine.
        self._called = time.monotonic()
        self._train = train
        self._options = options
        self._parts = parts
        self._run_info = run or RunInfo()
        self._running: RunningStudy | None = None
        url = options.store
        self._store: Store = MemoryStore() if url is None else open_store(url, create=True)
        try:
            self._store.claim(spec.name)
            log = self._read_log(spec, known)
            self._opened = _read_opened(log)
            self.spec = spec if self._opened is None else self._opened.spec
            self._locations = StudyLocations(self.spec.name, options, self._opened)
            self._files = CheckpointFiles(
                self._locations.files, self._locations.storage, self._locations.cache_bytes
            )
            self.machine = Machine(parts.machine)
            for entry in log:
                self.machine.fold(entry)
        except BaseException:
            self._store.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End everything that was started; the log stays."""
        if self._running is not None:
            self._running.close()
        self._store.close()

    @property
    def result(self) -> Result:
        """What was found so far."""
        log = list(self._store.read(self.spec.name))
        return Result(self.machine.state, log, self._files, self._options.store)

    @property
    def results(self) -> list[Result]:
        """What each of several studies driven as one has found so far."""
        log, url = list(self._store.read(self.spec.name)), self._options.store
        state = self.machine.state
        return [Result(state, log, self._files, url, group) for group in state.groups]

    def drive(self, watch: Watch | None = None) -> Result:
        """Run the study to its end and return what was found."""
        state = self.machine.state
        if state.end is None:
            running = self.start(watch)
            running.run(watch)
            running.close()
            self._sweep_storage()
        # Checkpoints saved after the study's last entry are not in the log.
        self._files.sweep(state.checkpoints.records)
        end = state.end
        if end is None:
            raise StudyFailed(
                f"the fork server of study {self.spec.name!r} is gone: look into the system's log "
                "for what ended it."
            )
        if end.cause is EndCause.FAILED:
            raise StudyFailed(end.why)
        return self.result

    def start(self, watch: Watch | None = None) -> RunningStudy:
        """Start the engine; open the study, or resume it where its log ends."""
        if self.machine.over:
            raise SpecError(f"study {self.spec.name!r} has ended: give another name.")
        if self._locations.storage is not None:
            check_storage(self._locations.storage)
        engine, mps = self._start_engine()
        url = self._options.store
        durable = url is not None and not isinstance(self._store, MemoryStore)
        resumable_in = hide_password(url) if url is not None and durable else None
        self._running = RunningStudy(
            self.spec, self.machine, self._store, engine, mps, resumable_in
        )
        with self._running.interrupts:
            events = self._resume(engine) if self._opened is not None else self._open()
            self._running.take(events, watch)
        return self._running

    def _open(self) -> list[AnyEvent]:
        """Return the first events of a new study."""
        deadline = self._options.deadline
        run = replace(
            self._locations.describe(self._run_info),
            kind="local" if parse_ray(self._options.slots) is None else "ray",
            deadline=deadline.isoformat() if isinstance(deadline, datetime) else None,
        )
        opened = Opened(at=0.0, spec=self.spec, format=FORMAT, logic=LOGIC, engine=run.to_log())
        related = find_related(self._store, self._options.store or "", self.spec)
        warn_of_change(related, self.spec, self._code)
        reused = reuse_prefixes(self._store, related, self.spec, self._files)
        study = self._options.warm_start
        warm = () if study is None else read_warm_start(self._store, self.spec, study)
        return [opened, *reused, *warm]

    def _resume(self, engine: ProcessEngine) -> list[AnyEvent]:
        """Let the engine continue a study; return the event that says so."""
        state = self.machine.state
        engine.resume(state)
        self._files.sweep(state.checkpoints.records)
        self._files.sweep_storage(state.checkpoints.records)
        assert self._opened is not None
        written, deadline_s = self._opened.run.deadline, None
        if written is not None:
            left = datetime.fromisoformat(written) - datetime.now().astimezone()
            deadline_s = engine.now + max(left.total_seconds(), 0.0)
        return [Resumed(at=engine.now, deadline_s=deadline_s)]

    @property
    def _code(self) -> str:
        """What a plan's version is about, in words."""
        if isinstance(self._options.plan, str):
            return "the plan"
        return f"training function `{getattr(self._train, '__name__', 'train')}`"

    def _read_log(self, spec: StudySpec, known: Sequence[Step]) -> list[Step]:
        """Return the log; raise SpecError if it is of another study."""
        if spec.name not in self._store.studies():
            return []
        log = [*known, *self._store.read(spec.name, known[-1].number if known else -1)]
        opened = _read_opened(log)
        assert opened is not None
        before = opened.spec
        differs = [
            field.name
            for field in msgspec.structs.fields(spec)
            if getattr(spec, field.name) != getattr(before, field.name) and field.name != "plan"
        ]
        # A time of day is another duration at every start.
        if differs == ["budget"] and isinstance(self._options.deadline, datetime):
            differs = []
        if differs:
            raise SpecError(
                f"study {spec.name!r} exists with another {', '.join(differs)}: give the same as "
                "when it was opened, or give another name."
            )
        if None not in (spec.plan, before.plan) and spec.plan != before.plan:
            warnings.warn(
                f"{self._code} changed since study {spec.name!r} was opened ({before.plan} then, "
                f"{spec.plan} now): its trials keep what they have and train on with the new one.",
                PacelineWarning,
                stacklevel=2,
            )
        return log

    def _start_engine(self) -> tuple[ProcessEngine, Mps | None]:
        slots = self._options.slots
        timeouts = Timeouts(hang_s=seconds_until(self._options.hang))
        cluster = parse_ray(slots)
        if cluster is not None:
            return self._start_ray_engine(cluster, timeouts), None
        assert not isinstance(slots, Ray)
        devices = find_devices(slots)
        mps = Mps(devices.gpus) if devices.gpus and self._shares_gpus else None
        try:
            if mps is not None:
                if mps.note:
                    text = f"trials that share a GPU take turns: {mps.note}."
                    warnings.warn(text, PacelineWarning, stacklevel=2)
                self._run_info = replace(self._run_info, mps=mps.note or "up")
                devices = replace(devices, mps=mps.pipe)
            engine = ProcessEngine(
                self.spec,
                ForkServerPool(self._train, devices.thread_limits()),
                devices,
                files=self._files,
                advisor=self._make_advisor(self._parts.curve_models),
                timeouts=timeouts,
                began=self._called,
            )
        except BaseException:
            if mps is not None:
                mps.close()
            raise
        return engine, mps

    def _start_ray_engine(self, cluster: Ray, timeouts: Timeouts) -> ProcessEngine:
        # Imported here: most studies stay on this machine.
        from paceline.engines.process.ray.forecasters import RayCurveModel
        from paceline.engines.process.ray.session import RayEngine, RaySession

        models = [
            RayCurveModel(partial(build_part, "curve model", study.curves), model.others)
            for study, model in zip(self.spec.studies, self._parts.curve_models, strict=True)
        ]
        session = RaySession(cluster, self._train, self._files, mps=self._shares_gpus)
        if session.mps:
            self._run_info = replace(self._run_info, mps=session.mps)
        return RayEngine(
            self.spec,
            session,
            files=self._files,
            advisor=self._make_advisor(models),
            timeouts=timeouts,
            began=self._called,
        )

    def _make_advisor(self, models: Sequence[CurveModel]) -> Advisor:
        return StudyAdvisor(models, self._parts.machine.generators, self.machine.state)

    @property
    def _shares_gpus(self) -> bool:
        """Whether trials on the same GPU shall run at the same time."""
        return self.spec.pack > 1 and self._options.mps

    def _sweep_storage(self) -> None:
        """Delete checkpoints in the storage that the log does not name; do not wait for long."""
        named = set(self.machine.state.checkpoints.records)

        def sweep() -> None:
            with suppress(CheckpointError):  # `paceline checkpoints` shows those that stay
                self._files.sweep_storage(named)

        if self._locations.storage is not None:
            thread = threading.Thread(target=sweep, name="paceline-sweep", daemon=True)
            thread.start()
            thread.join(_SWEEP_S)


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
    ) -> None:
        self.interrupts = Interrupts()
        self._spec = spec
        self._machine = machine
        self._store = store
        self._engine = engine
        self._mps = mps
        # The store's URL; None: the study is in memory alone.
        self._resumable_in = resumable_in

    def close(self) -> None:
        """End the engine and everything it has started."""
        self._engine.close()
        if self._mps is not None:
            self._mps.close()

    def take(self, events: Sequence[AnyEvent], watch: Watch | None = None) -> None:
        """Handle events that do not come from the engine."""
        step(self._machine, self._engine, self._remember(watch), events)

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

    def run(self, watch: Watch | None, until: Callable[[], bool] | None = None) -> None:
        """Run to the end of the study, or until a condition is met."""
        state, name, interrupts = self._machine.state, self._spec.name, self.interrupts

        def inbox(after: int) -> Sequence[tuple[int, Command]]:
            if watch is not None:
                watch(state, ())  # the view shows the time, which passes without events
            return self._store.inbox(name, after)

        def stop() -> bool:
            return interrupts.caught is not None or (until is not None and until())

        with interrupts:
            run(self._machine, self._engine, self._remember(watch), inbox, stop)
            if interrupts.caught is not None and state.end is None:
                self._engine.close(_GRACE_S)
                self._raise_interrupt(interrupts.caught)

    def _remember(self, watch: Watch | None) -> Callable[[Sequence[Step]], None]:
        state, name = self._machine.state, self._spec.name

        def remember(steps: Sequence[Step]) -> None:
            self._store.append(name, steps)
            if watch is not None:
                watch(state, steps)

        return remember

    def _raise_interrupt(self, caught: signal.Signals) -> None:
        """Raise what ended the study, with the way to resume it."""
        name, url = self._spec.name, self._resumable_in
        hint = "it was kept in memory alone; with name=… and store=… it could be resumed"
        if url is not None:
            hint = f"its log in {url} is safe; run the same study again to resume it"
        if caught is signal.SIGTERM:
            raise StudyTerminated(f"study {name!r} was terminated: {hint}.")
        # Not a subclass: Python exits as an interrupted program does for this class alone.
        raise KeyboardInterrupt(f"study {name!r} was interrupted: {hint}.")


def _read_opened(log: Sequence[Step]) -> Opened | None:
    """Return the first event of a log; None: the log is empty."""
    event = log[0].event if log else None
    return event if isinstance(event, Opened) else None
