"""Simulate a study: a policy schedules a trace on virtual slots, and the result has its numbers.

Knows how to assemble a spec, parts, a workload and virtual slots, at the start or from a log. Does
not know how any of them works.
"""

from __future__ import annotations

import gc
import math
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from paceline.analysis.summary import convert_summary, summarize
from paceline.api.completion import (
    COMPLETED_BY,
    DRAWS,
    Completion,
    complete_trace,
    count_cut_runs,
    refuse_cut,
)
from paceline.api.forecast_cache import ForecastCache
from paceline.api.options import CommonOptions, SearchOptions, parse_needs
from paceline.api.registry import build_part, build_parts, describe_part, split_policies
from paceline.api.sources import find_trace, load_trace, make_synthetic
from paceline.api.width_checks import check_pool_width, check_widths
from paceline.core.errors import LogError, SpecError
from paceline.core.events import FORMAT, LOGIC, Opened
from paceline.core.rng import shuffle_range, stream
from paceline.core.run_info import RunInfo
from paceline.core.speedup import WidthSpeed, make_speedup, parse_speedup
from paceline.core.values import Budget, Config, GroupSpec, Part, Saves, StudySpec, Target
from paceline.engines import loop
from paceline.engines.advisor import StudyAdvisor
from paceline.engines.sim.cluster import Cluster, Faults
from paceline.engines.sim.engine import SimEngine
from paceline.engines.sim.oracle import Oracle
from paceline.engines.sim.trace_workload import TraceWorkload
from paceline.machine.machine import Machine
from paceline.machine.requirements import NeedsFunction
from paceline.machine.timing import estimate_speed
from paceline.plan.cadence import SAVE_SHARE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from paceline.core.decisions import Step
    from paceline.core.ports import CurveModel, Workload
    from paceline.engines.sim.synthetic import Synthetic
    from paceline.engines.sim.traces import Trace, TraceHeader
    from paceline.machine.state import StudyState

    Remember = Callable[[Sequence[Step]], None]

Number = TypeVar("Number", int, float)

# The policy of a simulation that names none.
DEFAULT_POLICY = "asha"
# Python's garbage collector runs after this many new objects while a study is simulated.
_ALLOCATIONS = 1_000_000


class Search(SearchOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of several searches that are simulated as one study, on one tree."""

    # Its configs, or the space in which a generator proposes them for a synthetic workload. By
    # default all configs of the source.
    configs: list[Config] | None = None
    space: Config | None = None
    # None: its policy and its number.
    name: str | None = None


def combine_studies(spec: StudySpec, groups: Sequence[GroupSpec]) -> StudySpec:
    """Return the spec of several studies that are run as one."""
    if len(groups) < 2:
        raise SpecError("only one study was given: give two or more, or run it by itself.")
    return replace(
        spec,
        policy=_list_names(group.policy for group in groups),
        generator=_list_names(Part(group.generator.name) for group in groups),
        curves=_list_names(group.curves for group in groups),
        budget=replace(spec.budget, target=None, trials=None),
        groups=tuple(groups),
    )


def name_search(policy: Part, at: int) -> str:
    """Return the default name of one of several studies: its policy and its number, from 1."""
    return f"{policy.name}-{at + 1}"


def make_group(search: Search, at: int, own: Part) -> GroupSpec:
    """Return a search as a group; `own` is the generator of all configs of the source."""
    policy = describe_part("policy", search.policy or DEFAULT_POLICY)
    return GroupSpec(
        name=search.name or name_search(policy, at),
        policy=policy,
        generator=_search_generator(search, own),
        curves=describe_part("curve model", search.curves),
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
            "a search on a trace takes no generator and no space, since its configs are recorded: "
            "give configs=[…] of the trace, or leave all out."
        )
    part = describe_part("generator", search.generator or own.name)
    return Part(part.name, {"space": search.space or own.params["space"], **part.params})


def _list_names(parts: Iterable[Part]) -> Part:
    """Return a part whose name lists several for a reader; it is never built."""
    return Part(" | ".join(dict.fromkeys(map(str, parts))))


class Simulation(CommonOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One simulated study. Durations are seconds; None means no limit."""

    # A trace file, the name of a bundled trace, or a synthetic workload such as `toy`.
    source: str
    slots: int = 4
    deadline_s: float | None = None
    slot_seconds: float | None = None
    # The order of a trace's runs.
    order: Literal["shuffled", "file"] = "shuffled"
    # Continue the curves of runs that were cut short by forecasts; and which of the possible
    # completions to simulate. None: ten of them, of which the result is the median.
    complete: bool = False
    draw: int | None = None
    share: bool = False
    # The speed on several slots, and the slow-down by each further trial on a slot. None: the
    # trace's own, if any; else linear and 0.
    speedup: str | None = None
    interference: float | None = None
    # Costs of a start, a save, a restore and a forecast. None, and 0 for the others: the trace's
    # own, if any.
    setup_s: float | None = None
    save_s: float = 0.0
    restore_s: float = 0.0
    # The slots of one node, and the cost of a checkpoint that is on another node.
    node_slots: int | None = None
    fetch_s: float = 0.0
    forecast_s: float = 0.0
    # Save when this much time has passed since the last save. None: sixty times the cost of a save
    # if prefixes are shared, attempts may fail or `live` holds; else only at the end of a stage.
    save_every_s: float | None = None
    # The mean time until an attempt fails.
    mean_life_s: float | None = None
    # Do as worker processes do: attempts train on while a report is judged, and save the study's
    # best. None: as the trace was recorded; else no.
    live: bool | None = None
    # (time, trial): the worker that trains this trial at that time is killed.
    kills: tuple[tuple[float, int], ...] = ()
    # (time, slots): the number of slots from that time on.
    capacity: tuple[tuple[float, int], ...] = ()
    # Several searches as one study, each with its own policy, configs, target and trials.
    searches: tuple[Search, ...] | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        super().__post_init__()
        # Checks that the spec does not make: a trace's runs are cut to `trials` before.
        if self.trials is not None and self.trials < 1:
            raise SpecError(f"trials={self.trials} is invalid: must be at least 1.")
        if self.order not in ("shuffled", "file"):
            raise SpecError(f"order={self.order!r} is invalid: must be 'shuffled' or 'file'.")
        if self.searches and (self.target, self.trials, self.generator) != (None, None, None):
            raise SpecError(
                "each search has its own target, trials and generator: give them to the searches."
            )
        if self.needs is not None and not isinstance(self.needs, str):
            raise SpecError("needs must be text in a simulation, such as batch:257=2,513=4.")
        life = self.mean_life_s
        if life is not None and not (life > 0 and math.isfinite(life)):
            raise SpecError(f"mean_life_s={life!r} is invalid: must be a positive number.")

    def run(
        self,
        *,
        name: str | None = None,
        remember: Remember | None = None,
        watch: Callable[[StudyState], None] | None = None,
        trace: Trace | None = None,
    ) -> SimResult:
        """Simulate to the end. `remember` takes the log, `watch` sees the state as it goes."""
        self._check_widths()
        if self.complete and self.draw is None:
            trace = find_trace(self.source) if trace is None else trace
            if trace is not None:
                return self._run_draws(name, remember, watch, trace)
        with _collect_garbage_rarely():
            return _Simulator(self, name or _default_name(self), trace).run(remember, watch)

    def _check_widths(self) -> None:
        # Not for a log of an earlier version, which is resumed as it was.
        check_widths(describe_part("allocator", self.allocator), self.span, self.pack)
        for each in (self, *(self.searches or ())):
            check_pool_width(describe_part("policy", each.policy or DEFAULT_POLICY), self.span)

    def _run_draws(
        self,
        name: str | None,
        remember: Remember | None,
        watch: Callable[[StudyState], None] | None,
        trace: Trace,
    ) -> SimResult:
        """Simulate several completions; return the one with the median best value."""
        if remember is not None:
            raise SpecError(
                f"complete=True simulates {DRAWS} completions, and a log is of one: give draw=0 to "
                "simulate and to log the first of them."
            )
        cut = count_cut_runs(trace, self.epochs)
        draws = range(DRAWS if cut else 1)
        results = [replace(self, draw=at).run(name=name, watch=watch, trace=trace) for at in draws]
        return _sum_up_draws(results, cut, len(trace.runs)) if cut else results[0]

    def check(self, *, trace: Trace | None = None) -> StudySpec:
        """Raise the errors that `run` would raise at its start; return its spec without running."""
        self._check_widths()
        return _Simulator(self, _default_name(self), trace).spec

    def resume(
        self,
        steps: Iterable[Step],
        *,
        remember: Remember | None = None,
        watch: Callable[[StudyState], None] | None = None,
    ) -> SimResult:
        """Resume at the end of a log of this simulation."""
        log = list(steps)
        if not log or not isinstance(log[0].event, Opened):
            raise SpecError("this log is empty: there is nothing to resume.")
        with _collect_garbage_rarely():
            return _Simulator(self, log[0].event.spec.name, None).resume(log, remember, watch)


class SimResult(Struct, frozen=True, kw_only=True):
    """The result of a simulation. Its JSON is a contract: `docs/json.md`."""

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
    # None: not reached, or no target was set.
    time_to_target_s: float | None
    deadline_s: float | None
    makespan_s: float
    slot_seconds: float
    busy_fraction: float
    trials_started: int
    trials_finished: int
    trials_stopped: int
    trials_failed: int
    trials_paused: int
    epochs_trained: int
    reports: int
    end: str
    end_why: str
    # The only number that differs between two runs of the same simulation.
    wall_s: float
    # The speeds of several slots, or of a share of one, that the trace gives; no epochs: assumed.
    speeds: list[WidthSpeed] = []
    # Several completions of a trace whose runs were cut short; None: all curves were recorded.
    completion: Completion | None = None


def read_simulation(log: Sequence[Step]) -> Simulation:
    """Return the simulation that wrote this log."""
    event = log[0].event if log else None
    if not isinstance(event, Opened) or event.run.kind != "sim":
        raise SpecError("this study was not simulated: the simulator cannot resume it.")
    try:
        return msgspec.convert(event.run.simulation, Simulation)
    except msgspec.ValidationError as error:
        raise LogError(
            f"this study was simulated with options this version does not know: {error}."
        ) from None


def _default_name(options: Simulation) -> str:
    base = Path(options.source).name.removesuffix(".gz").removesuffix(".jsonl")
    given = [search.policy for search in options.searches or ()] or [options.policy]
    written = [
        each
        for part in given
        for each in split_policies(str(describe_part("policy", part or DEFAULT_POLICY)))
    ]
    policy = "+".join(each.partition(":")[0] for each in written)
    return f"{base}-{policy}-s{options.slots}-{options.seed}"


class _Simulator:
    """One simulation with its machine and its engine."""

    def __init__(self, options: Simulation, name: str, trace: Trace | None) -> None:
        self._options = options
        self._speeds: list[WidthSpeed] = []
        synthetic = None if trace is not None else make_synthetic(options.source, options.seed)
        workload: Workload
        if synthetic is not None:
            if options.complete:
                raise SpecError(
                    f"complete=True is for traces, and {options.source} computes its curves: leave "
                    "it out."
                )
            workload, generator = synthetic, _describe_generator(options, synthetic)
            metric, mode, epochs = synthetic.metric, synthetic.mode, synthetic.epochs
            trials = options.trials or 100
        else:
            trace = _resolve_trace(trace or load_trace(options.source), options)
            workload = TraceWorkload(trace, share=options.share)
            if options.generator is not None:
                raise SpecError(
                    f"generator={options.generator!r} cannot be used with a trace, since its "
                    "configs are recorded: leave it out, or simulate a synthetic workload."
                )
            generator = Part("queued", {"configs": _list_configs(trace, options)})
            header = trace.header
            self._speeds = _list_speeds(options, header)
            options = self._options = _add_costs(options, header)
            metric, mode, epochs, trials = header.metric, header.mode, header.max_epochs, None
        self.spec = StudySpec(
            name=name,
            metric=metric,
            mode=mode,
            epochs=min(epochs, options.epochs) if options.epochs is not None else epochs,
            range=options.range,
            policy=describe_part("policy", options.policy or DEFAULT_POLICY),
            generator=generator,
            allocator=describe_part("allocator", options.allocator),
            curves=describe_part("curve model", options.curves),
            budget=_make_budget(options, trials),
            saves=Saves(_save_every_s(options)),
            seed=options.seed,
            share=options.share,
            retries=options.retries,
            pack=options.pack,
            span=options.span,
            fit=options.needs is not None,
        )
        if options.searches:
            groups = [make_group(each, at, generator) for at, each in enumerate(options.searches)]
            self.spec = combine_studies(self.spec, groups)
        needs = None if options.needs is None else NeedsFunction(parse_needs(options.needs))
        parts = build_parts(self.spec, needs=needs)
        self.machine = Machine(parts)
        models = [_build_curve_model(study, workload) for study in self.spec.studies]
        advisor = StudyAdvisor(models, parts.generators, self.machine.state)
        self.engine = SimEngine(workload, _make_cluster(options), advisor)

    def run(
        self, remember: Remember | None, watch: Callable[[StudyState], None] | None
    ) -> SimResult:
        started = time.perf_counter()
        run = RunInfo(kind="sim", simulation=msgspec.to_builtins(self._options))
        opened = Opened(at=0.0, spec=self.spec, format=FORMAT, logic=LOGIC, engine=run.to_log())
        keep = _join(remember, watch, self.machine.state)
        loop.step(self.machine, self.engine, keep, [opened])
        return self._finish(keep, started)

    def resume(
        self,
        log: list[Step],
        remember: Remember | None,
        watch: Callable[[StudyState], None] | None,
    ) -> SimResult:
        started = time.perf_counter()
        self.engine.expect(log)
        for each in log:
            # In step with the engine: the advisor sees what was known then.
            self.machine.fold(each)
            self.engine.replay(each, self.machine.state)
        return self._finish(_join(remember, watch, self.machine.state), started)

    def _finish(self, keep: Remember, started: float) -> SimResult:
        loop.run(self.machine, self.engine, keep)
        self.engine.close()
        result = _make_result(self._options, self.machine.state, time.perf_counter() - started)
        return replace(result, speeds=self._speeds)


@contextmanager
def _collect_garbage_rarely() -> Iterator[None]:
    """Raise the threshold of Python's garbage collector while a study is simulated.

    A study holds many objects and no reference cycles: they are freed when the last reference goes,
    and scanning them again and again would take a quarter of the time. Leave only when the study is
    freed, or the collector scans it once more at once.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(max(_ALLOCATIONS, thresholds[0]), *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


def _build_curve_model(spec: StudySpec, workload: Workload) -> CurveModel:
    if spec.curves == Part("oracle"):
        return Oracle(workload, spec.sign)
    return ForecastCache(build_part("curve model", spec.curves), str(spec.curves))


def _join(
    remember: Remember | None, watch: Callable[[StudyState], None] | None, state: StudyState
) -> Remember:
    if watch is None:
        return remember or (lambda steps: None)

    def keep(steps: Sequence[Step]) -> None:
        if remember is not None:
            remember(steps)
        watch(state)

    return keep


def _describe_generator(options: Simulation, synthetic: Synthetic) -> Part:
    part = describe_part("generator", options.generator or "random")
    return Part(part.name, {"space": synthetic.space, **part.params})


def _resolve_trace(trace: Trace, options: Simulation) -> Trace:
    """Return the trace with complete curves; raise SpecError if it has others."""
    if not options.complete:
        refuse_cut(trace, options.source, options.epochs)
        return trace
    return complete_trace(trace, options.draw or 0, options.epochs)


def _sum_up_draws(results: Sequence[SimResult], cut: int, runs: int) -> SimResult:
    """Return the result with the median best value, and how far the others differ from it."""
    first = results[0]
    sign = 1.0 if first.mode == "min" else -1.0

    def rank(result: SimResult) -> float:
        return math.inf if result.best_value is None else sign * result.best_value

    ranked = sorted(results, key=rank)
    best = [result.best_value for result in results if result.best_value is not None]
    reached = sum(result.time_to_target_s is not None for result in results)
    completion = Completion(
        cut=cut,
        runs=runs,
        curves=COMPLETED_BY,
        draws=len(results),
        best_range=(min(best), max(best)) if len(best) == len(results) else None,
        makespan_range=_find_range([result.makespan_s for result in results]),
        epochs_range=_find_range([result.epochs_trained for result in results]),
        reached=None if first.target is None else reached,
    )
    return replace(ranked[(len(ranked) - 1) // 2], completion=completion)


def _find_range(values: Sequence[Number]) -> tuple[Number, Number]:
    return min(values), max(values)


def _list_configs(trace: Trace, options: Simulation) -> list[Config]:
    runs = trace.runs
    if options.order == "shuffled":
        runs = [runs[i] for i in shuffle_range(len(runs), stream(options.seed, "order"))]
    return [run.config for run in runs[: options.trials]]


def _make_budget(options: Simulation, trials: int | None) -> Budget:
    target = None if options.target is None else Target(options.target, options.over)
    return Budget(options.deadline_s, target, options.slot_seconds, trials)


def _add_costs(options: Simulation, header: TraceHeader) -> Simulation:
    """Return the options with the trace's own costs where the options give none."""
    return replace(
        options,
        save_s=options.save_s or header.save_s or 0.0,
        restore_s=options.restore_s or header.restore_s or 0.0,
        forecast_s=options.forecast_s or header.forecast_s or 0.0,
        speedup=_choose_speedup(options, _list_speeds(options, header)),
        live=header.live if options.live is None else options.live,
    )


def _list_speeds(options: Simulation, header: TraceHeader) -> list[WidthSpeed]:
    """Return the trace's speeds of the widths that trials may have, where the options give none.

    What the study did not measure is assumed: by its measurements at other widths and the prior.
    """
    if not (header.speeds or header.live):
        return []
    given = None if options.speedup is None else parse_speedup(options.speedup)
    widths: list[float] = []
    if options.interference is None and not (given is not None and given.has_shares):
        widths += (1.0 / trials for trials in range(options.pack, 1, -1))
    if given is None:
        widths += range(2, options.span + 1)
    measured = {each.width: each for each in header.speeds}
    speeds = {width: each.speed for width, each in measured.items()}
    return [
        measured.get(width) or WidthSpeed(float(width), estimate_speed(width, speeds))
        for width in widths
    ]


def _choose_speedup(options: Simulation, speeds: Sequence[WidthSpeed]) -> str | None:
    """Return the speed-up of a simulation with these speeds of its trace; None: linear."""
    if not speeds:
        return options.speedup
    table = {1.0: 1.0, **{each.width: each.speed for each in speeds}}
    if options.speedup is not None:
        given = parse_speedup(options.speedup)
        table |= {float(width): given.of(width) for width in range(2, options.span + 1)}
    return str(make_speedup(table))


def _save_every_s(options: Simulation) -> float | None:
    is_needed = options.share or options.mean_life_s or options.kills or options.live
    if options.save_every_s is not None or not is_needed:
        return options.save_every_s
    return SAVE_SHARE * options.save_s


def _make_cluster(options: Simulation) -> Cluster:
    return Cluster(
        slots=options.slots,
        setup_s=options.setup_s,
        save_s=options.save_s,
        restore_s=options.restore_s,
        node_slots=options.node_slots,
        fetch_s=options.fetch_s,
        forecast_s=options.forecast_s,
        save_every_s=_save_every_s(options),
        live=bool(options.live),
        speed=parse_speedup(options.speedup, options.interference),
        faults=Faults(mean_life_s=options.mean_life_s, kills=options.kills, seed=options.seed),
        capacity=options.capacity,
    )


def _make_result(options: Simulation, state: StudyState, wall_s: float) -> SimResult:
    summary, end = summarize(state), state.end
    return convert_summary(
        summary,
        SimResult,
        source=options.source,
        slots=options.slots,
        target=options.target,
        deadline_s=options.deadline_s,
        makespan_s=summary.clock_s,
        trials_started=summary.trials,
        end=end.cause.value if end is not None else "stalled",
        end_why=end.why if end is not None else "no slot will become available for waiting trials",
        wall_s=wall_s,
    )
