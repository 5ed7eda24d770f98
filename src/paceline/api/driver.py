"""The driver: one study, its store, its machine and its engine, from opening to closing.

Knows how to begin a study and how to take one up again, and that what it started ends with it.
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

from paceline.api.locations import Places
from paceline.api.options import deadline_s, generator_of, needs_of
from paceline.api.prior_studies import kin_of, recalled, taken_over, warn_of_change
from paceline.api.registry import brains_of, build
from paceline.api.results import Result
from paceline.core.decisions import EndCause
from paceline.core.errors import (
    CheckpointError,
    PacelineWarning,
    SpecError,
    StudyFailed,
    StudyTerminated,
)
from paceline.core.events import FORMAT, Opened, Resumed, Submitted
from paceline.engines.advisor import advice_by
from paceline.engines.loop import run
from paceline.engines.process.checkpoint_files import Shelf
from paceline.engines.process.engine import LocalEngine
from paceline.engines.process.local.devices import find_devices
from paceline.engines.process.local.mps import Mps
from paceline.engines.process.local.worker_pool import Nest
from paceline.engines.process.ray.config import Ray, ray_of
from paceline.engines.process.supervisor import Patience
from paceline.machine.machine import Machine
from paceline.machine.requirements import Asked
from paceline.plan.settings import canonical
from paceline.store import MemoryStore, open_store, shown
from paceline.store.storage import try_out

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import FrameType

    from paceline.api.options import Options
    from paceline.core.decisions import Step
    from paceline.core.events import Adopted, AnyEvent, Command, Recalled
    from paceline.core.ports import CurveModel, Generator, Store
    from paceline.core.values import Config, Part, StudySpec, Value
    from paceline.engines.process.local.devices import Devices
    from paceline.machine.state import StudyState

    Watch = Callable[[StudyState, Sequence[Step]], None]


# What Python does by itself; where somebody has chosen otherwise, that stays.
_DEFAULTS: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}


class Interrupts:
    """Listens for signals inside a `with` block, in the main thread."""

    def __init__(self) -> None:
        # The signal that asked; None: nobody has.
        self.asked: signal.Signals | None = None
        self._mine: list[signal.Signals] = []

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number, default in _DEFAULTS.items():
                if signal.getsignal(number) is default:
                    signal.signal(number, self._heard)
                    self._mine.append(number)
        return self

    def __exit__(self, *_: object) -> None:
        while self._mine:
            number = self._mine.pop()
            signal.signal(number, _DEFAULTS[number])

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if self.asked is not None:
            raise KeyboardInterrupt("interrupted twice: everything ends at once")
        self.asked = signal.Signals(number)


# How long workers may take to unwind where somebody interrupts: who waits can interrupt again.
_GRACE_S = 5.0
# How long a study that is over may take to tidy up where its checkpoints are kept.
_TIDY_S = 5.0


class Driver:
    """Runs one study. A context: what it starts ends with it.

    `told` goes into the log beside the spec, for whoever takes the study up again. `generators` are
    those of several studies driven as one, each with what a log cannot hold of it.
    """

    def __init__(
        self,
        train: Callable[[Any], Any],
        spec: StudySpec,
        options: Options,
        told: dict[str, Value] | None = None,
        generators: Sequence[Part] = (),
    ) -> None:
        # The study's clock runs from here, so that a deadline counts starting too.
        self._called = time.monotonic()
        self._train = train
        self._options = options
        self._told = dict(told or {})
        self._interrupts = Interrupts()
        url = options.get("store")
        self._store: Store = MemoryStore() if url is None else open_store(url, create=True)
        self._engine: LocalEngine | None = None
        self._mps: Mps | None = None
        try:
            self._store.claim(spec.name)
            self._log = self._logged(spec)
            self.spec = spec if not self._log else _spec_of(self._log)
            self._places = Places(self.spec.name, options, _first(self._log))
            storage = self._places.storage
            self._shelf = Shelf(self._places.files, storage, self._places.cache_bytes)
            needs = Asked(needs_of(options["needs"])) if "needs" in options else None
            parts = generators or [generator_of(self.spec, options)]
            brains = brains_of(self.spec, parts, needs)
            self.machine = Machine(brains)
            if self._log and self._ended():
                self._shelf.sweep(self.machine.state.files.files)
                return
            if storage is not None:
                try_out(storage)
            self._engine = self._made(brains.generators)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End everything that was started; the log stays."""
        if self._engine is not None:
            self._engine.close()
        if self._mps is not None:
            self._mps.close()
        self._store.close()

    @property
    def result(self) -> Result:
        """What was found so far."""
        log = list(self._store.read(self.spec.name))
        return Result(self.machine.state, log, self._shelf, self._options.get("store"))

    @property
    def results(self) -> list[Result]:
        """What each of several studies driven as one has found so far."""
        log, url = list(self._store.read(self.spec.name)), self._options.get("store")
        state = self.machine.state
        return [Result(state, log, self._shelf, url, group) for group in state.groups or ()]

    def begin(self, watch: Watch | None = None) -> None:
        """Open the study, or take it up again where its log ends."""
        assert self._engine is not None
        events: list[AnyEvent]
        if self._log:
            for step in self._log:
                self._engine.replay(step)
            events = [Resumed(at=self._engine.now, deadline_s=self._wall_deadline())]
            self._shelf.sweep(self.machine.state.files.files)
            self._shelf.sweep_storage(self.machine.state.files.files)
        else:
            events = [self._opened(), *self._adopted(), *self._recalled()]
        steps = [self.machine.handle(event) for event in events]
        self._store.append(self.spec.name, steps)
        for step in steps:
            self._engine.apply(step)
        if watch is not None:
            watch(self.machine.state, steps)

    def _opened(self) -> Opened:
        deadline = self._options.get("deadline")
        place = "local" if ray_of(self._options.get("slots")) is None else "ray"
        engine = {place: True, **self._places.told, **self._told}
        if isinstance(deadline, datetime):
            engine["deadline"] = deadline.isoformat()
        return Opened(at=0.0, spec=self.spec, format=FORMAT, engine=engine)

    def _adopted(self) -> list[Adopted]:
        """Return what other studies in the store know of this one's plan."""
        kin = kin_of(self._store, self._options.get("store", ""), self.spec)
        warn_of_change(kin, self.spec, self._code)
        return list(taken_over(self._store, kin, self.spec, self._shelf))

    def _recalled(self) -> list[Recalled]:
        """Return what the study found that the generator shall learn from."""
        study = self._options.get("warm_start")
        return [] if study is None else recalled(self._store, self.spec, study)

    @property
    def _code(self) -> str:
        """What a plan's version is about, in words."""
        if self._options.get("plan") is not None:
            return "the plan"
        return f"training function `{getattr(self._train, '__name__', 'train')}`"

    def drive(self, watch: Watch | None = None) -> Result:
        """Run the study to its end and return what was found."""
        if self.machine.state.end is None:
            with self._interrupts:
                self.begin(watch)
                self._run(watch)
            assert self._engine is not None
            self._engine.close()
            # What was saved after the study's last word is named nowhere.
            self._shelf.sweep(self.machine.state.files.files)
            self._tidy_storage()
        end = self.machine.state.end
        if end is None:
            raise StudyFailed(
                f"the process that makes workers is gone, and study {self.spec.name!r} with it: "
                "look into the system's log for what ended it."
            )
        if end.cause is EndCause.FAILED:
            raise StudyFailed(end.why)
        return self.result

    def submit(self, trials: Iterable[tuple[Config, int]]) -> list[int]:
        """Take these configs in, each to be trained to its epoch; return their trials' numbers.

        Those with furthest to go are opened first: what is long and begins last keeps all waiting.
        """
        assert self._engine is not None
        first = len(self.machine.state.trials)
        group = [(canonical(config), until) for config, until in trials]
        order = sorted(range(len(group)), key=lambda at: -group[at][1])
        with self._interrupts:
            for more, at in zip(reversed(range(len(group))), order, strict=True):
                config, until = group[at]
                event = Submitted(at=self._engine.now, config=config, until=until, more=more)
                step = self.machine.handle(event)
                self._store.append(self.spec.name, [step])
                self._engine.apply(step)
        numbers = dict(zip(order, range(first, first + len(group)), strict=True))
        return [numbers[at] for at in range(len(group))]

    def finish(self, numbers: Iterable[int], watch: Watch | None) -> None:
        """Train until these trials are where they should be; the others go on meanwhile."""
        trials = [self.machine.state.trials[number] for number in numbers]
        with self._interrupts:
            self._run(watch, lambda: not any(t.alive and t.epoch < t.goal for t in trials))

    def _run(self, watch: Watch | None, until: Callable[[], bool] | None = None) -> None:
        assert self._engine is not None
        state, name = self.machine.state, self.spec.name

        def remember(steps: Sequence[Step]) -> None:
            self._store.append(name, steps)
            if watch is not None:
                watch(state, steps)

        def inbox(after: int) -> Sequence[tuple[int, Command]]:
            if watch is not None:
                watch(state, ())  # time passes also where nothing happens
            return self._store.inbox(name, after)

        def enough() -> bool:
            return self._interrupts.asked is not None or (until is not None and until())

        run(self.machine, self._engine, remember, inbox, enough)
        asked = self._interrupts.asked
        if asked is not None and state.end is None:
            self._engine.close(_GRACE_S)
            self._gone(asked)

    def _gone(self, asked: signal.Signals) -> None:
        """Say that the driver was asked to go, and how the study goes on."""
        name, url = self.spec.name, self._options.get("store")
        if url is None or isinstance(self._store, MemoryStore):
            on = "it was kept in memory alone; with name=… and store=… it could go on"
        else:
            on = f"its log in {shown(url)} is safe, and the same study run again goes on from there"
        if asked is signal.SIGTERM:
            raise StudyTerminated(f"study {name!r} was terminated: {on}.")
        # No class of its own: for a subclass Python would not exit as an interrupted program does.
        raise KeyboardInterrupt(f"study {name!r} was interrupted: {on}.")

    def _logged(self, spec: StudySpec) -> list[Step]:
        if spec.name not in self._store.studies():
            return []
        log = list(self._store.read(spec.name))
        before = _spec_of(log)
        differs = [
            field.name
            for field in msgspec.structs.fields(spec)
            if getattr(spec, field.name) != getattr(before, field.name) and field.name != "plan"
        ]
        # A time of day is another duration at every start.
        if differs == ["budget"] and isinstance(self._options.get("deadline"), datetime):
            differs = []
        if differs:
            raise SpecError(
                f"study {spec.name!r} exists with another {', '.join(differs)}: go on with what it "
                "was opened with, or give another name."
            )
        if None not in (spec.plan, before.plan) and spec.plan != before.plan:
            warnings.warn(
                f"{self._code} changed since study {spec.name!r} was opened ({before.plan} then, "
                f"{spec.plan} now): its trials keep what they have and train on with the new one.",
                PacelineWarning,
                stacklevel=2,
            )
        return log

    def _ended(self) -> bool:
        for step in self._log:
            self.machine.fold(step)
        return self.machine.over

    def _made(self, generators: Sequence[Generator]) -> LocalEngine:
        slots, hang = self._options.get("slots"), self._options.get("hang")
        patience = Patience(hang_s=None if hang is None else deadline_s(hang))
        models = [build("curve model", study.curves) for study in self.spec.studies]
        cluster = ray_of(slots)
        if cluster is not None:
            return self._on_ray(cluster, models, generators, patience)
        assert not isinstance(slots, Ray)
        devices = self._shared(find_devices(slots))
        return LocalEngine(
            self.spec,
            Nest(self._train, devices.thread_limits()),
            devices,
            shelf=self._shelf,
            adviser=advice_by(models, generators, self.machine.state),
            patience=patience,
            began=self._called,
        )

    def _on_ray(
        self,
        cluster: Ray,
        models: Sequence[CurveModel],
        generators: Sequence[Generator],
        patience: Patience,
    ) -> LocalEngine:
        # Imported here: most studies stay on this machine.
        from paceline.engines.process.ray.forecasters import FarCurves
        from paceline.engines.process.ray.session import RayEngine, Tenancy

        far = [
            FarCurves(partial(build, "curve model", study.curves), model.others)
            for study, model in zip(self.spec.studies, models, strict=True)
        ]
        tenancy = Tenancy(cluster, self._train, self._shelf, mps=self._shares)
        if tenancy.mps:
            self._told["mps"] = tenancy.mps
        return RayEngine(
            self.spec,
            tenancy,
            shelf=self._shelf,
            adviser=advice_by(far, generators, self.machine.state),
            patience=patience,
            began=self._called,
        )

    @property
    def _shares(self) -> bool:
        """Whether trials that share a GPU shall run at the same time there."""
        return self.spec.pack > 1 and self._options.get("mps", True)

    def _shared(self, devices: Devices) -> Devices:
        """Let trials that share a GPU run at the same time there, where that can be had."""
        if not devices.gpus or not self._shares:
            return devices
        self._mps = Mps(devices.gpus)
        if self._mps.note:
            word = f"trials that share a GPU take turns: {self._mps.note}."
            warnings.warn(word, RuntimeWarning, stacklevel=2)
        self._told["mps"] = self._mps.note or "up"
        return replace(devices, mps=self._mps.pipe)

    def _tidy_storage(self) -> None:
        """Delete elsewhere what is named nowhere; a result does not wait for long for that."""
        named = set(self.machine.state.files.files)

        def tidy() -> None:
            with suppress(CheckpointError):  # what stays is seen by `paceline checkpoints`
                self._shelf.sweep_storage(named)

        if self._places.storage is not None:
            beside = threading.Thread(target=tidy, name="paceline-tidying", daemon=True)
            beside.start()
            beside.join(_TIDY_S)

    def _wall_deadline(self) -> float | None:
        opened = _first(self._log)
        written = None if opened is None else opened.engine.get("deadline")
        if written is None or self._engine is None:
            return None
        left = datetime.fromisoformat(written) - datetime.now().astimezone()
        return self._engine.now + max(left.total_seconds(), 0.0)


def _first(log: Sequence[Step]) -> Opened | None:
    event = log[0].event if log else None
    return event if isinstance(event, Opened) else None


def _spec_of(log: Sequence[Step]) -> StudySpec:
    event = log[0].event
    assert isinstance(event, Opened)
    return event.spec
