"""Simulate a study: a trace goes in, a policy schedules it on virtual slots, figures come out.

Knows how to put a spec, brains, a workload and virtual slots together, fresh or from a log. Does
not know how anything of it works.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from paceline.api.forecast_cache import Remembering
from paceline.api.options import needs_of
from paceline.api.registry import brains_of, build, joined, parse_part
from paceline.api.sources import synthetic_of, trace_named
from paceline.core.decisions import EndCause, Step
from paceline.core.errors import LogError, SpecError
from paceline.core.events import FORMAT, Opened
from paceline.core.rng import shuffled, stream
from paceline.core.speedup import parse_speedup
from paceline.core.values import Budget, Config, GroupSpec, Part, Saves, Status, StudySpec, Target
from paceline.engines.advisor import advice_by
from paceline.engines.loop import run
from paceline.engines.sim.cluster import Cluster, Faults
from paceline.engines.sim.engine import SimEngine
from paceline.engines.sim.oracle import Oracle
from paceline.engines.sim.trace_workload import Recorded
from paceline.machine.machine import Machine
from paceline.machine.requirements import Asked
from paceline.plan.cadence import SAVE_SHARE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from paceline.core.ports import CurveModel, Workload
    from paceline.engines.sim.synthetic import Synthetic
    from paceline.engines.sim.traces import Header, Trace
    from paceline.machine.state import StudyState

    Remember = Callable[[Sequence[Step]], None]


class Search(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of several searches that are simulated as one study, on one tree."""

    policy: str = "asha"
    # Where its configs come from: these; or a generator, of a synthetic workload, in this space. By
    # default all configs of the source.
    configs: list[Config] | None = None
    generator: str | None = None
    space: Config | None = None
    curves: str = "pfn"
    target: float | None = None
    over: int = 1
    trials: int | None = None
    # None: made of its policy and its place.
    name: str | None = None


def as_one(spec: StudySpec, groups: Sequence[GroupSpec]) -> StudySpec:
    """Return the spec of several studies that are driven as one."""
    if len(groups) < 2:
        raise SpecError(f"{len(groups)} is not several: give two or more, or run it by itself.")
    return replace(
        spec,
        policy=_named(group.policy for group in groups),
        generator=_named(Part(group.generator.name) for group in groups),
        curves=_named(group.curves for group in groups),
        budget=replace(spec.budget, target=None, trials=None),
        groups=tuple(groups),
    )


def default_name(policy: Part, at: int) -> str:
    """Return what a study is called that has no name: its policy, and its place from 1."""
    return f"{policy.name}-{at + 1}"


def group_of(search: Search, at: int, own: Part) -> GroupSpec:
    """Return a search as a group; `own` is the generator of all configs of the source."""
    policy = parse_part(search.policy)
    return GroupSpec(
        name=search.name or default_name(policy, at),
        policy=policy,
        generator=_search_generator(search, own),
        curves=parse_part(search.curves),
        target=None if search.target is None else Target(search.target, search.over),
        trials=search.trials,
    )


def _search_generator(search: Search, own: Part) -> Part:
    if search.configs is not None:
        return Part("queued", {"configs": search.configs})
    if search.generator is None and search.space is None:
        return own
    if "space" not in own.params:
        raise SpecError(
            "a search on a trace has no generator or space, since its configs were recorded: give "
            "configs=[…] of the trace, or leave all out."
        )
    part = parse_part(search.generator or own.name)
    return Part(part.name, {"space": search.space or own.params["space"], **part.params})


def _named(parts: Iterable[Part]) -> Part:
    """Return a part that names several to a reader; it is never built."""
    return Part(" | ".join(dict.fromkeys(map(str, parts))))


class Simulation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to simulate. Durations are seconds; None leaves a limit out."""

    # A trace file, one of the package's by name, or a synthetic workload such as `toy`.
    source: str
    policy: str = "asha"
    # Where configs of a synthetic workload come from; None: drawn by lot. A trace has its own.
    generator: str | None = None
    allocator: str = "fixed"
    curves: str = "pfn"
    slots: int = 4
    target: float | None = None
    over: int = 1
    # The least and the greatest value the metric can have, where that is known.
    range: tuple[float, float] | None = None
    deadline_s: float | None = None
    slot_seconds: float | None = None
    # The last epoch; None: the trace's.
    epochs: int | None = None
    # At most so many trials; None: all runs of the trace, and 100 of a synthetic workload.
    trials: int | None = None
    seed: int = 0
    order: Literal["shuffled", "file"] = "shuffled"
    share: bool = False
    pack: int = 1
    span: int = 1
    # Slots by a hyperparameter, such as `batch:257=2,513=4`; None: as the allocator says.
    needs: str | None = None
    speedup: str = "linear"
    interference: float = 0.0
    # Where they are not given: what the trace says, or nothing.
    setup_s: float | None = None
    save_s: float = 0.0
    restore_s: float = 0.0
    # So many slots are one node, and beginning from what another node has saved costs that.
    node_slots: int | None = None
    fetch_s: float = 0.0
    forecast_s: float = 0.0
    # Save when this long has passed since the last save. None: every sixty times what a save
    # costs, where prefixes are shared or attempts may fail; else at stage ends alone.
    save_every_s: float | None = None
    # The mean time an attempt lives before it fails.
    mean_life_s: float | None = None
    retries: int = 3
    # From these times on there are so many slots.
    capacity: tuple[tuple[float, int], ...] = ()
    # Several searches as one study, each with its own policy, configs, target and trials.
    searches: tuple[Search, ...] | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        # What no later value object checks: a trace's runs are cut to `trials` before it is made.
        if self.trials is not None and self.trials < 1:
            raise SpecError(f"trials={self.trials} leaves nothing to run: give 1 or more.")
        if self.order not in ("shuffled", "file"):
            raise SpecError(f"order={self.order!r} cannot be meant: say 'shuffled' or 'file'.")
        if self.searches and (self.target, self.trials, self.generator) != (None, None, None):
            raise SpecError(
                "each search has its own target, trials and generator: give them there."
            )
        life = self.mean_life_s
        if life is not None and not (life > 0 and math.isfinite(life)):
            raise SpecError(f"mean_life_s={life!r} is no life: give a positive number of seconds.")

    def run(
        self,
        *,
        name: str | None = None,
        remember: Remember | None = None,
        watch: Callable[[StudyState], None] | None = None,
        trace: Trace | None = None,
    ) -> SimResult:
        """Simulate to the end. `remember` takes the log, `watch` sees the state as it goes."""
        return _Simulator(self, name or _default_name(self), trace).run(remember, watch)

    def check(self, *, trace: Trace | None = None) -> None:
        """Raise what `run` would raise before it begins, and begin nothing."""
        _Simulator(self, _default_name(self), trace)

    def resume(
        self,
        steps: Iterable[Step],
        *,
        remember: Remember | None = None,
        watch: Callable[[StudyState], None] | None = None,
    ) -> SimResult:
        """Go on where a log of this simulation ends."""
        log = list(steps)
        return _Simulator(self, _spec_of(log).name, None).resume(log, remember, watch)


class SimResult(Struct, frozen=True, kw_only=True):
    """What a simulation found. Its JSON is a contract: `docs/json.md`."""

    study: str
    source: str
    policy: str
    allocator: str
    curves: str
    slots: int
    seed: int
    metric: str
    mode: str
    best_value: float | None
    best_config: Config | None
    best_trial: int | None
    best_epoch: int | None
    target: float | None
    # None: never reached, or none asked for.
    time_to_target_s: float | None
    deadline_s: float | None
    makespan_s: float
    slot_seconds: float
    busy_fraction: float
    trials_started: int
    trials_finished: int
    trials_stopped: int
    trials_failed: int
    epochs_trained: int
    reports: int
    end: str
    end_why: str
    # The only figure that differs between two runs of the same simulation.
    wall_s: float


def simulation_of(log: Sequence[Step]) -> Simulation:
    """Return the simulation that wrote this log."""
    event = log[0].event if log else None
    if not isinstance(event, Opened) or "source" not in event.engine:
        raise SpecError("this study was not simulated: it cannot be resumed by the simulator.")
    try:
        return msgspec.convert(event.engine, Simulation)
    except msgspec.ValidationError as error:
        raise LogError(
            f"this study was simulated with options this version does not know: {error}."
        ) from None


def _spec_of(log: Sequence[Step]) -> StudySpec:
    if not log or not isinstance(log[0].event, Opened):
        raise SpecError("this log is empty: there is nothing to resume.")
    return log[0].event.spec


def _default_name(options: Simulation) -> str:
    base = Path(options.source).name.removesuffix(".gz").removesuffix(".jsonl")
    policies = [search.policy for search in options.searches or ()] or joined(options.policy)
    policy = "+".join(each.partition(":")[0] for each in policies)
    return f"{base}-{policy}-s{options.slots}-{options.seed}"


class _Simulator:
    """One simulation, put together."""

    def __init__(self, options: Simulation, name: str, trace: Trace | None) -> None:
        self._options = options
        made = None if trace is not None else synthetic_of(options.source, options.seed)
        workload: Workload
        if made is not None:
            workload, generator = made, _generator(options, made)
            metric, mode, epochs = made.metric, made.mode, made.epochs
            trials = options.trials or 100
        else:
            trace = trace or trace_named(options.source)
            workload = Recorded(trace, share=options.share)
            if options.generator is not None:
                raise SpecError(
                    f"generator={options.generator!r} cannot be used with a trace, whose configs "
                    "were recorded: leave it out, or simulate a synthetic workload."
                )
            generator = Part("queued", {"configs": _configs(trace, options)})
            header = trace.header
            options = _with_costs(options, header)
            metric, mode, epochs, trials = header.metric, header.mode, header.max_epochs, None
        self.spec = StudySpec(
            name=name,
            metric=metric,
            mode=mode,
            epochs=min(epochs, options.epochs) if options.epochs is not None else epochs,
            range=options.range,
            policy=parse_part(options.policy),
            generator=generator,
            allocator=parse_part(options.allocator),
            curves=parse_part(options.curves),
            budget=_budget(options, trials),
            saves=Saves(_save_every_s(options)),
            seed=options.seed,
            share=options.share,
            retries=options.retries,
            pack=options.pack,
            span=options.span,
            fit=options.needs is not None,
        )
        if options.searches:
            groups = [group_of(each, at, generator) for at, each in enumerate(options.searches)]
            self.spec = as_one(self.spec, groups)
        needs = None if options.needs is None else Asked(needs_of(options.needs))
        brains = brains_of(self.spec, needs=needs)
        self.machine = Machine(brains)
        models = [_curves(study, workload) for study in self.spec.studies]
        advice = advice_by(models, brains.generators, self.machine.state)
        self.engine = SimEngine(workload, _cluster(options), advice)

    def run(
        self, remember: Remember | None, watch: Callable[[StudyState], None] | None
    ) -> SimResult:
        started = time.perf_counter()
        engine = msgspec.to_builtins(self._options)
        first = self.machine.handle(Opened(at=0.0, spec=self.spec, format=FORMAT, engine=engine))
        keep = _both(remember, watch, self.machine.state)
        keep([first])
        self.engine.apply(first)
        return self._finish(keep, started)

    def resume(
        self,
        log: list[Step],
        remember: Remember | None,
        watch: Callable[[StudyState], None] | None,
    ) -> SimResult:
        started = time.perf_counter()
        self.engine.expect(log)
        for step in log:
            # In step with the engine, so that whoever gives advice sees what was known then.
            self.machine.fold(step)
            self.engine.replay(step)
        return self._finish(_both(remember, watch, self.machine.state), started)

    def _finish(self, keep: Remember, started: float) -> SimResult:
        run(self.machine, self.engine, keep)
        self.engine.close()
        return _result(self._options, self.machine.state, time.perf_counter() - started)


def _curves(spec: StudySpec, workload: Workload) -> CurveModel:
    if spec.curves == Part("oracle"):
        return Oracle(workload, spec.sign)
    return Remembering(build("curve model", spec.curves), str(spec.curves))


def _both(
    remember: Remember | None, watch: Callable[[StudyState], None] | None, state: StudyState
) -> Remember:
    if watch is None:
        return remember or (lambda steps: None)

    def keep(steps: Sequence[Step]) -> None:
        if remember is not None:
            remember(steps)
        watch(state)

    return keep


def _generator(options: Simulation, made: Synthetic) -> Part:
    part = parse_part(options.generator or "random")
    return Part(part.name, {"space": made.space, **part.params})


def _configs(trace: Trace, options: Simulation) -> list[Config]:
    runs = trace.runs
    if options.order == "shuffled":
        runs = [runs[i] for i in shuffled(len(runs), stream(options.seed, "order"))]
    return [run.config for run in runs[: options.trials]]


def _budget(options: Simulation, trials: int | None) -> Budget:
    target = None if options.target is None else Target(options.target, options.over)
    return Budget(options.deadline_s, target, options.slot_seconds, trials)


def _with_costs(options: Simulation, header: Header) -> Simulation:
    """Return the options with what the trace knows of costs that they do not give."""
    return replace(
        options,
        save_s=options.save_s or header.save_s or 0.0,
        restore_s=options.restore_s or header.restore_s or 0.0,
    )


def _save_every_s(options: Simulation) -> float | None:
    if options.save_every_s is not None or not (options.share or options.mean_life_s):
        return options.save_every_s
    return SAVE_SHARE * options.save_s


def _cluster(options: Simulation) -> Cluster:
    return Cluster(
        slots=options.slots,
        setup_s=options.setup_s,
        save_s=options.save_s,
        restore_s=options.restore_s,
        node_slots=options.node_slots,
        fetch_s=options.fetch_s,
        forecast_s=options.forecast_s,
        save_every_s=_save_every_s(options),
        speed=parse_speedup(options.speedup, options.interference),
        faults=Faults(mean_life_s=options.mean_life_s, seed=options.seed),
        capacity=options.capacity,
    )


def _result(options: Simulation, state: StudyState, wall_s: float) -> SimResult:
    spec, best, end = state.spec, state.best, state.end
    ended = [trial.ended for trial in state.trials]
    reached = end is not None and end.cause is EndCause.TARGET
    there_was = state.capacity_seconds
    return SimResult(
        study=spec.name,
        source=options.source,
        policy=str(spec.policy),
        allocator=str(spec.allocator),
        curves=str(spec.curves),
        slots=options.slots,
        seed=options.seed,
        metric=spec.metric,
        mode=spec.mode,
        best_value=None if best is None else spec.sign * state.best_loss,
        best_config=None if best is None else best.config,
        best_trial=None if best is None else best.id,
        best_epoch=None if best is None else state.best_epoch,
        target=options.target,
        time_to_target_s=state.now if reached else None,
        deadline_s=options.deadline_s,
        makespan_s=state.now,
        slot_seconds=state.slot_seconds,
        busy_fraction=state.slot_seconds / there_was if there_was else 0.0,
        trials_started=len(state.trials),
        trials_finished=ended.count(Status.FINISHED),
        trials_stopped=ended.count(Status.STOPPED),
        trials_failed=ended.count(Status.FAILED),
        epochs_trained=state.epochs_trained,
        reports=state.reports,
        end=end.cause.value if end is not None else "stalled",
        end_why=end.why if end is not None else "no slot will ever come for those who wait",
        wall_s=wall_s,
    )
