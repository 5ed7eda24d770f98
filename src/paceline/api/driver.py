"""The driver: one study with its store and its machine, and the study while its engine runs.

Knows how to open a study and how to resume one, and that everything it starts ends with it.
"""

from __future__ import annotations

import logging
import threading
import time
import warnings
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from msgspec.structs import replace

from paceline.api.cautions import warn_of_many_slots, warn_of_no_end
from paceline.api.deadline import Caller, DeadlineKeeper
from paceline.api.defaults import explain_policy
from paceline.api.failure_messages import (
    describe_failed_study,
    warn_of_ended_study,
    warn_of_failures,
)
from paceline.api.interrupts import Interrupts
from paceline.api.locations import StudyLocations, keep_output
from paceline.api.options import generator_to_build, resolve_spec, seconds_until
from paceline.api.permissions import allow, allow_parts_of, check_parts
from paceline.api.prior_studies import (
    describe_taken_over,
    find_related,
    read_warm_start,
    reuse_prefixes,
    warn_of_change,
)
from paceline.api.registry import build_part, build_study_parts
from paceline.api.results import Result
from paceline.api.running_study import RunningStudy
from paceline.api.spec_changes import (
    check_trials,
    convert_options,
    describe_extension,
    reconcile,
)
from paceline.core.decisions import EndCause
from paceline.core.errors import (
    CheckpointError,
    PacelineWarning,
    SpecError,
    StudyFailed,
    warn_user,
)
from paceline.core.events import FORMAT, LOGIC, Extended, Opened, Resumed
from paceline.core.extension import apply_newest_spec, list_extensions, resolve_log
from paceline.core.run_info import RunInfo
from paceline.engines.advisor import StudyAdvisor
from paceline.engines.process.checkpoint_files import CheckpointFiles
from paceline.engines.process.engine import ProcessEngine
from paceline.engines.process.local.devices import INLINE, find_devices
from paceline.engines.process.local.inline_pool import InlinePool
from paceline.engines.process.local.mps import Mps
from paceline.engines.process.local.worker_pool import ForkServerPool
from paceline.engines.process.ray.config import Ray, parse_ray
from paceline.engines.process.supervisor import Timeouts
from paceline.live.startup import show_wait
from paceline.machine.machine import Machine
from paceline.store import MemoryStore, hide_password, open_store
from paceline.store.storage import check_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.api.options import StudyOptions
    from paceline.api.registry import StudyParts
    from paceline.core.decisions import Step
    from paceline.core.events import AnyEvent
    from paceline.core.ports import Advisor, CurveModel, Store
    from paceline.core.values import PlanKey, StudySpec, Value
    from paceline.engines.process.local.asking_pool import AskingPool
    from paceline.machine.groups import GroupState
    from paceline.machine.state import StudyState

    Watch = Callable[[StudyState, Sequence[Step]], None]


_logger = logging.getLogger("paceline.study")

# How to allow a part that a log names.
_GIVE_PART = "give it as in the call that started the study"
# How long the end of a study waits for the storage to be swept; and at a deadline.
_SWEEP_S, _LATE_SWEEP_S = 5.0, 0.1


class Driver:
    """One study: its store, its log, its files and its machine. A context manager.

    `run` goes into the log with the spec, so that a later driver can resume the study. `known`
    are entries of the log that were read before: only later ones are read again.
    """

    def __init__(
        self,
        train: Callable[..., Any],
        spec: StudySpec,
        options: StudyOptions,
        parts: StudyParts,
        run: RunInfo | None = None,
        known: Sequence[Step] = (),
    ) -> None:
        # The study's clock starts with the call, so that a deadline includes its start.
        self.caller = Caller.note()
        self._train = train
        self._options = options
        self._parts = parts
        self._run_info = run or RunInfo()
        self._running: RunningStudy | None = None
        # Runs the trials in this process, with slots="inline".
        self._inline: InlinePool | None = None
        # The workers, if the program trains itself; None: processes.
        self.pool: AskingPool | None = None
        self._interrupts = Interrupts()
        # Whether the user has interrupted this driver, and what it had begun is in the log.
        self._is_interrupted = False
        url = options.store
        self._store: Store = MemoryStore() if url is None else open_store(url, create=True)
        try:
            self._store.claim(spec.name)
            log = self._read_log(spec.name, known)
            self._opened = _read_opened(resolve_log(log))
            # What the study is extended to, in words; empty: it goes on as it is.
            self._extension = "" if self._opened is None else self._compare(self._opened, spec)
            self.spec = self._choose_spec(spec)
            check_parts(self.spec, allow_parts_of(spec), _GIVE_PART)
            self._locations = StudyLocations(self.spec.name, options, self._opened)
            self._files = CheckpointFiles(
                self._locations.files, self._locations.storage, self._locations.cache_bytes
            )
            if self.spec.policy != spec.policy:
                policy = build_part("policy", self.spec.policy)
                parts = parts._replace(machine=replace(parts.machine, policy=policy))
            self._parts = parts
            extended = Extended(at=0.0, spec=self.spec, to=self._extension)
            self.machine = self._fold(log, extended if self._extension else None)
            if self._extension:
                check_trials(self.spec, [len(group.trials) for group in self.machine.state.groups])
            if log:
                self._warn_of_changed_code(spec.plan)
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
    def is_over(self) -> bool:
        """Whether the study has ended and is not extended."""
        return self.machine.over and not self._extension

    @property
    def result(self) -> Result:
        """What was found so far."""
        return self._make_results([None])[0]

    @property
    def results(self) -> list[Result]:
        """What each of several studies driven as one has found so far."""
        return self._make_results(list(self.machine.state.groups))

    def _make_results(self, groups: Sequence[GroupState | None]) -> list[Result]:
        state = self.machine.state
        if state.number:
            log = resolve_log(list(self._store.read(self.spec.name)))
        else:
            log = [self.machine.handle(self._make_opened())]  # interrupted before it began
        url, is_interrupted = self._options.store, self._is_interrupted
        results = [Result(state, log, self._files, url, group) for group in groups]
        for result in results:
            result.interrupted = is_interrupted
        return results

    def drive(self, watch: Watch | None = None) -> Result:
        """Run the study to its end, or to an interrupt, and return what was found."""
        state = self.machine.state
        if not self.is_over:
            self._run(watch)
            state = self.machine.state  # another one, if the study was extended meanwhile
            if self._is_interrupted:
                return self.result
            self._sweep_storage()
        else:
            warn_of_ended_study(state)
        # Checkpoints saved after the study's last entry are not in the log.
        self._files.sweep(state.checkpoints.records)
        end = state.end
        if end is None:
            raise StudyFailed(
                f"the fork server of study {self.spec.name!r} is gone: look into the system's log "
                "for what ended it."
            )
        if end.cause is EndCause.FAILED:
            cause = None if self._inline is None else self._inline.error
            keep_output(self._locations.files)  # the message refers to it
            raise StudyFailed(describe_failed_study(state, self._files), self.result) from cause
        for group in state.groups:
            warn_of_failures(group)
        return self.result

    def _run(self, watch: Watch | None) -> None:
        """Start the engine and run the study; end both in order."""
        with self._interrupts as interrupts:
            try:
                interrupts.is_starting = True
                if interrupts.caught is not None:
                    raise KeyboardInterrupt
                running = self.start(watch)
                interrupts.is_starting = False
                running.run(watch)
                while (wanted := running.wanted_options) is not None:
                    self._extend_running(running, wanted, watch)
                    running.run(watch)
                self._is_interrupted = running.is_interrupted
            except KeyboardInterrupt:
                if not interrupts.is_starting and interrupts.caught is not None:
                    raise  # the second one, which ends everything at once
                self._is_interrupted = True
            finally:
                interrupts.is_starting = False
            if self._running is not None:
                self._running.close()

    def _extend_running(
        self, running: RunningStudy, wanted: dict[str, Value], watch: Watch | None
    ) -> None:
        """Extend the study as a command asks, while its engine runs."""
        log = list(self._store.read(self.spec.name))
        opened = _read_opened(resolve_log(log))
        assert opened is not None
        try:
            options = convert_options(self._options, wanted)
            spec = reconcile(opened, resolve_spec(self._train, options), options)
            to = describe_extension(opened.spec, spec)
            check_parts(spec, allow_parts_of(self.spec), _GIVE_PART)
            check_trials(spec, [len(group.trials) for group in self.machine.state.groups])
        except SpecError as error:
            warn_user(f"study {self.spec.name!r} is not extended: {error}")
            running.refuse_options()
            return
        self._opened, self._options, self.spec = opened, options, spec
        needs = self._parts.machine.needs
        self._parts = build_study_parts(spec, [generator_to_build(spec, options)], needs)
        # A command may repeat what holds already; the extension answers it all the same.
        self._extension = to or "what it has"
        self.machine = self._fold(log, Extended(at=0.0, spec=spec, to=self._extension))
        running.extend(spec, self.machine, self._make_advisor(self._models))
        if opened.run.file is not None:
            given = {**(opened.run.given or {}), **wanted}
            self._run_info = replace(self._run_info, file=opened.run.file, given=given)
        running.take([self._make_extended(running.now)], watch)
        running.begin_deadline(watch)

    def start(self, watch: Watch | None = None) -> RunningStudy:
        """Start the engine; open the study, or resume it where its log ends."""
        if self.is_over:
            raise SpecError(f"study {self.spec.name!r} has ended: give another name.")
        if self._locations.storage is not None:
            check_storage(self._locations.storage)
        if self.pool is None:
            warn_of_no_end(self.spec)
        keeper = self._make_deadline_keeper()
        with show_wait(watch, self._describe_start()) as say:
            engine, mps = self._start_engine(say)
        url = self._options.store
        durable = url is not None and not isinstance(self._store, MemoryStore)
        resumable_in = hide_password(url) if url is not None and durable else None
        self._running = RunningStudy(
            self.spec, self.machine, self._store, engine, mps, resumable_in, self._inline
        )
        self._running.interrupts = self._interrupts
        with self._interrupts:
            events = self._resume(engine) if self._opened is not None else self._open()
            self._running.take(events, watch)
            self._running.deadline = keeper
            # The clock of a resumed study goes on from its log; the deadline, from the call.
            spent_s = 0.0 if self._opened is None else time.monotonic() - self.caller.began
            self._running.begin_deadline(watch, spent_s)
        return self._running

    def _make_deadline_keeper(self) -> DeadlineKeeper:
        """Return what keeps the deadline; before the engine starts, which takes waiting."""
        run = self._describe_run()
        deadline = None if run.deadline is None else datetime.fromisoformat(run.deadline)
        return DeadlineKeeper(self.caller, run.kind or "local", deadline)

    def _describe_run(self) -> RunInfo:
        """Return how the study is run from now on, for the log."""
        known, run = None if self._opened is None else self._opened.run, self._run_info
        if known is not None and run.file is None:
            # As `paceline run` has started it.
            run = replace(run, file=known.file, given=known.given)
        deadline = self._options.deadline
        return replace(
            self._locations.describe(run),
            kind="local" if parse_ray(self._options.slots) is None else "ray",
            deadline=deadline.isoformat() if isinstance(deadline, datetime) else None,
            policy_why="" if self._options.policy else explain_policy(self._train, self.spec),
        )

    def _make_opened(self) -> Opened:
        engine = self._describe_run().to_log()
        return Opened(at=0.0, spec=self.spec, format=FORMAT, logic=LOGIC, engine=engine)

    def _open(self) -> list[AnyEvent]:
        """Return the first events of a new study."""
        opened = self._make_opened()
        files, base = self._options.files, self._options.checkpoints
        places = allow(None if files is None else Path(files).parent, base)
        related = find_related(self._store, self._options.store or "", self.spec, places)
        warn_of_change(related, self.spec, self._code)
        reused = list(reuse_prefixes(self._store, related, self.spec, self._files))
        for text in describe_taken_over(reused):
            _logger.info("study %r %s", self.spec.name, text)
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
        if self._extension:
            return [self._make_extended(engine.now)]
        deadline_s = _find_deadline(self._opened.run, engine.now)
        return [Resumed(at=engine.now, deadline_s=deadline_s)]

    def _make_extended(self, now: float) -> Extended:
        _logger.info("study %r is extended to %s", self.spec.name, self._extension)
        run = self._describe_run()
        return Extended(
            at=now,
            spec=self.spec,
            to=self._extension,
            logic=LOGIC,
            engine=run.to_log(),
            deadline_s=_find_deadline(run, now),
        )

    @property
    def _code(self) -> str:
        """What a plan's version is about, in words."""
        if isinstance(self._options.plan, str):
            return "the plan"
        return f"training function `{getattr(self._train, '__name__', 'train')}`"

    def _fold(self, log: Sequence[Step], extended: Extended | None) -> Machine:
        """Return a machine that has folded the log, with the spec of this extension."""
        machine = Machine(self._parts.machine)
        extensions = list_extensions(log) + ([] if extended is None else [extended])
        for entry in log:
            machine.fold(apply_newest_spec(entry, extensions))
        return machine

    def _read_log(self, study: str, known: Sequence[Step]) -> list[Step]:
        """Return the log; empty: the study has not begun."""
        if study not in self._store.studies():
            return []
        return [*known, *self._store.read(study, known[-1].number if known else -1)]

    def _compare(self, opened: Opened, spec: StudySpec) -> str:
        """Return what differs from the study in the store; raise SpecError if it must not."""
        return describe_extension(opened.spec, reconcile(opened, spec, self._options))

    def _choose_spec(self, spec: StudySpec) -> StudySpec:
        if self._opened is None:
            return spec
        return (
            reconcile(self._opened, spec, self._options) if self._extension else self._opened.spec
        )

    def _warn_of_changed_code(self, plan: PlanKey | None) -> None:
        before = self.spec.plan
        if None in (plan, before) or plan == before:
            return
        effect = "its trials keep what they have and train on with the new one"
        if self.is_over:
            effect = "what the study found was trained with the old one; give another name"
        warn_user(
            f"{self._code} changed since study {self.spec.name!r} was opened ({before} then, "
            f"{plan} now): {effect}."
        )

    def _describe_start(self) -> str:
        """Return what takes time before the first trial."""
        name = getattr(self._train, "__name__", "the training function")
        if parse_ray(self._options.slots) is not None:
            return f"connecting to Ray and loading {name} in its workers"
        return f"loading {name} in a worker"

    def _start_engine(self, say: Callable[[str], None]) -> tuple[ProcessEngine, Mps | None]:
        slots = self._options.slots
        timeouts = Timeouts(hang_s=seconds_until(self._options.hang))
        cluster = parse_ray(slots)
        if cluster is not None:
            return self._start_ray_engine(cluster, timeouts), None
        assert not isinstance(slots, Ray)
        devices = find_devices(slots)
        warn_of_many_slots(devices)
        if slots == INLINE:
            self._inline = InlinePool(self._train)
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
                self.pool
                or self._inline
                or ForkServerPool(self._train, devices.thread_limits(), say),
                devices,
                files=self._files,
                advisor=self._make_advisor(self._parts.curve_models),
                timeouts=timeouts,
                began=self.caller.began,
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
            began=self.caller.began,
        )

    def _make_advisor(self, models: Sequence[CurveModel]) -> Advisor:
        self._models = models
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
            end = self.machine.state.end
            is_late = end is not None and end.cause is EndCause.DEADLINE
            thread.join(_LATE_SWEEP_S if is_late else _SWEEP_S)


def _find_deadline(run: RunInfo, now: float) -> float | None:
    """Return the time on the study's clock of a deadline that is a time of day; None: it is not."""
    if run.deadline is None:
        return None
    left = datetime.fromisoformat(run.deadline).astimezone() - datetime.now().astimezone()
    return now + max(left.total_seconds(), 0.0)


def _read_opened(log: Sequence[Step]) -> Opened | None:
    """Return the first event of a log; None: the log is empty."""
    event = log[0].event if log else None
    return event if isinstance(event, Opened) else None
