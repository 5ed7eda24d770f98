"""The options of a study: their types, their defaults, and the spec they resolve to.

Knows how durations, deadlines, needs, parts and targets are written. Starts nothing.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypedDict, cast

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import force_setattr

from paceline.api.cautions import refuse_endless_barrier
from paceline.api.defaults import DEFAULT_GENERATOR, choose_generator, choose_policy
from paceline.api.define_by_run import check_generator
from paceline.api.option_checks import check_options, suggest_option
from paceline.api.plan_key import compute_plan_key, parse_plan_key
from paceline.api.registry import Kind, describe_part
from paceline.api.width_checks import check_pool_width, check_widths
from paceline.core.base_part import BasePart
from paceline.core.errors import SpecError, make_unknown_error
from paceline.core.values import (
    DEFAULT_METRIC,
    OPEN_ENDED,
    Budget,
    Config,
    Mode,
    Part,
    PlanKey,
    Saves,
    StudySpec,
    Target,
)
from paceline.engines.process.local.devices import INLINE
from paceline.worker.function import FunctionKind, classify, name_function

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import optuna
    from optuna.samplers import BaseSampler

    from paceline.core.ports import Allocator, CurveModel, Generator, Needs, Policy
    from paceline.engines.process.ray.config import Ray

    PolicyOption = str | Part | Policy
    GeneratorOption = str | Part | Generator
    AllocatorOption = str | Part | Allocator
    CurvesOption = str | Part | CurveModel
else:
    # The types in a log: objects become parts before they are written.
    PolicyOption = GeneratorOption = AllocatorOption = CurvesOption = str | Part

# The limit on local copies of checkpoints that are kept elsewhere.
CACHE_BYTES = 10 * 10**9

_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)"
_DURATION = re.compile(
    "".join(rf"(?:{_NUMBER}\s*{unit}\s*)?" for unit in "dhms"), re.IGNORECASE | re.ASCII
)
_UNITS = (86400.0, 3600.0, 60.0, 1.0)


def parse_duration(duration: float | str | timedelta) -> float:
    """Return a duration in seconds.

    >>> parse_duration("1h30m"), parse_duration("0.5d"), parse_duration("90"), parse_duration(90)
    (5400.0, 43200.0, 90.0, 90.0)
    """
    if isinstance(duration, timedelta):
        seconds = duration.total_seconds()
    elif isinstance(duration, str):
        seconds = _read_seconds(duration.strip())
    else:
        seconds = float(duration)
    if isinstance(duration, bool) or not (seconds >= 0 and math.isfinite(seconds)):
        raise SpecError(
            f"{duration!r} is not a duration: write seconds (90, 90s), or days, hours, minutes and "
            "seconds in this order (2d, 1h30m, 10m). It must be 0 or more."
        )
    return seconds


def _read_seconds(text: str) -> float:
    """Return the seconds; NaN if the text is not a duration."""
    found = _DURATION.fullmatch(text)
    if found is not None and any(found.groups()):
        pairs = zip(found.groups(), _UNITS, strict=True)
        return math.fsum(float(number) * unit for number, unit in pairs if number)
    try:
        return float(text)
    except ValueError:
        return math.nan


def seconds_until(deadline: float | str | timedelta | datetime | None) -> float | None:
    """Return the seconds from now to a deadline; a datetime without a time zone is local time."""
    if deadline is None:
        return None
    if not isinstance(deadline, datetime):
        seconds = parse_duration(deadline)
        if seconds <= 0:
            raise SpecError(
                f"deadline={deadline!r} is invalid: must be more than 0 seconds. Leave it out for "
                "no limit."
            )
        return seconds
    left = (deadline.astimezone(UTC) - datetime.now(UTC)).total_seconds()
    if left <= 0:
        raise SpecError(f"the deadline {deadline.isoformat()} has passed: give a later one.")
    return left


class NeedsTable(Struct, frozen=True):
    """The slots a trial needs, by the value of one hyperparameter; one slot below the first row."""

    name: str
    # (lowest value, slots), rising.
    rows: tuple[tuple[float, float], ...]

    def __call__(self, setting: Config) -> float:
        if self.name not in setting:
            raise make_unknown_error("hyperparameter", self.name, setting)
        value = setting[self.name]
        if type(value) not in (int, float):
            raise SpecError(
                f"{self.name}={value!r} is not a number: needs can only depend on a number."
            )
        at = bisect_right(self.rows, value, key=lambda row: row[0])
        return self.rows[at - 1][1] if at else 1.0


def parse_needs(given: Needs | str) -> Needs:
    """Return the function itself, the one named `module:function`, or a table.

    A table is written `batch:257=2,513=4`.

    >>> parse_needs("batch:257=2,513=4")({"batch": 300})
    2.0
    """
    if callable(given):
        return given
    if names_function(given):
        return _import_needs(given)
    name, _, rest = str(given).partition(":")
    try:
        pairs = [pair.split("=") for pair in rest.split(",")]
        rows = sorted((float(value), float(slots)) for value, slots in pairs)
    except ValueError:
        rows = []
    if not (name.strip() and rows):
        raise SpecError(
            f"needs={given!r} is invalid: give a function of the setting, its name as "
            "module:function, or the slots from certain values of a hyperparameter on, such as "
            "batch:257=2,513=4."
        )
    return NeedsTable(name.strip(), tuple(rows))


def names_function(needs: object) -> bool:
    """Say whether needs are given as the name of a function: `module:function`."""
    return isinstance(needs, str) and re.fullmatch(r"[\w.]+:[^\W\d]\w*", needs) is not None


def _import_needs(name: str) -> Needs:
    module, _, attribute = name.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except ImportError as error:
        raise SpecError(f"needs={name!r} cannot be imported: {error}.") from None
    except AttributeError:
        raise SpecError(
            f"needs={name!r} cannot be imported: {module} has no {attribute!r}."
        ) from None
    if not callable(found):
        raise SpecError(f"needs={name!r} is a {type(found).__name__}: give a function.")
    return cast("Needs", found)


class Options(TypedDict, total=False):
    """The keyword arguments of `tune` and `Study`; `StudyOptions` says what each one means."""

    space: Config
    metric: str
    mode: Mode
    epochs: int
    range: tuple[float, float]
    policy: PolicyOption
    generator: GeneratorOption | BaseSampler
    allocator: AllocatorOption
    curves: CurvesOption
    deadline: float | str | timedelta | datetime
    target: float
    over: int
    slot_hours: float
    trials: int
    slots: int | str | Ray
    span: int
    pack: int
    needs: Needs | str
    mps: bool
    seed: int
    name: str
    store: str
    first: Sequence[Config]
    warm_start: str | optuna.Study
    share: bool
    plan: str | None
    retries: int
    hang: float | str | timedelta
    keep_best: int
    checkpoint_bytes: int
    files: str | Path
    checkpoints: str | Path
    cache_bytes: int
    progress: bool


_PART_FIELDS: dict[str, Kind] = {
    "policy": "policy",
    "generator": "generator",
    "allocator": "allocator",
    "curves": "curve model",
}


class SearchOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of one search, trained or simulated. A part is a name, a Part or an object."""

    # Decides which trials go on. None: chosen for a study by its function and epochs; `asha`
    # for a simulation.
    policy: PolicyOption | None = None
    # Proposes configs. None: `tpe` for a study, `grid` if its space has grids, `random` for a
    # synthetic workload.
    generator: GeneratorOption | None = None
    # Forecasts learning curves for the policy.
    curves: CurvesOption = "pfn"
    # End when the mean of a trial's last `over` reports reaches this value.
    target: float | None = None
    over: int = 1
    # The most trials to open; None: no limit.
    trials: int | None = None

    def __post_init__(self) -> None:
        for name, kind in _PART_FIELDS.items():
            given = getattr(self, name, None)
            if isinstance(given, BasePart):
                force_setattr(self, name, describe_part(kind, given))


class CommonOptions(SearchOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options that a trained study and a simulation have in common."""

    # Divides the slots among trials.
    allocator: AllocatorOption = "fixed"
    # The last epoch of a trial. None: 1, for a function that returns a score or reports once.
    epochs: int | None = None
    # The lowest and the highest value the metric can have: forecasts stay inside.
    range: tuple[float, float] | None = None
    seed: int = 0
    # The most trials on one slot, and the most slots for one trial.
    pack: int = 1
    span: int = 1
    # The slots that an epoch needs under a setting; a fraction is a share of one slot.
    needs: Any = None
    # The failures that a trial survives. Lost attempts do not count.
    retries: int = 3


class StudyOptions(CommonOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every option of a study that trains, with its default."""

    # The search space; domains may be nested. None: the function asks for its hyperparameters by
    # `trial.suggest_float(…)`, or an outside tuner gives the configs to `Study.group`.
    space: Config | None = None
    # The metric to optimise, and in which direction. None: the number that the function returns or
    # reports, and lower is better.
    metric: str | None = None
    mode: Mode | None = None
    # A duration of active time, or a datetime.
    deadline: Any = None
    slot_hours: float | None = None
    # The number of GPUs, or of cores on a machine without GPUs; "cpu:4", "gpu:2". Or a cluster:
    # "ray", `pl.Ray(…)`. Or "inline": one trial at a time, in this process, for debuggers.
    slots: Any = None
    # Run trials that share a GPU at the same time, by NVIDIA's MPS, where it is installed.
    mps: bool = True
    # The study's name and store: with them it survives its driver.
    name: str | None = None
    store: str | None = None
    # Configs to try first.
    first: list[Config] | None = None
    # Another study of the store, or an Optuna study: the generator learns from its results before
    # the first proposal.
    warm_start: Any = None
    # Train what trials have in common once. None: yes, unless the function takes Ray's config.
    share: bool | None = None
    # The name of the training, as "name" or "name@version": studies of one store with the same plan
    # share it. Unset: the function and a digest of its code. None: share with no other study.
    plan: str | UnsetType | None = UNSET
    # A trial that reports nothing for this long has hung.
    hang: Any = None
    # Keep the last checkpoint of this many finished trials, the best ones; None: of all.
    keep_best: int | None = None
    # The limit on all checkpoints together, and the study's folder.
    checkpoint_bytes: int | None = None
    files: Any = None
    # Where checkpoints are kept, if not in that folder: a shared folder, or s3://bucket/prefix; and
    # the limit on their copies in the study's folder.
    checkpoints: Any = None
    cache_bytes: int = CACHE_BYTES
    # Show the live view. None: yes if standard output is a terminal.
    progress: bool | None = None


def resolve_options(given: Options, *, standing: bool = False) -> StudyOptions:
    """Return all options of a study: those given, and the defaults of the others.

    A standing study waits for configs of an outside tuner. Another one without a space has a
    function that asks for its hyperparameters: how many epochs it trains, it alone knows.
    """
    for name in given:
        if name not in StudyOptions.__struct_fields__:
            known = StudyOptions.__struct_fields__
            raise make_unknown_error("option", name, known, suggest_option(name))
    fields = check_options(given)
    if given.get("epochs") is None:
        fields["epochs"] = 1
        if given.get("space") is None and not standing:
            fields["epochs"] = OPEN_ENDED
    if given.get("metric") is None:
        # A single number counts, and lower is better: what a loss is, and what other tuners assume.
        fields["metric"] = DEFAULT_METRIC
        fields["mode"] = given.get("mode") or "min"
    elif given.get("mode") is None:
        raise SpecError(
            "mode is missing: give mode='max' if higher is better, mode='min' if lower is."
        )
    if given.get("slots") == INLINE:
        _check_inline(given)
        # An error in this process is there to be looked at.
        fields.setdefault("retries", 0)
    return StudyOptions(**fields)


def _check_inline(given: Options) -> None:
    """Raise SpecError for options that cannot act where trials run in the driver's process."""
    refused = [name for name in ("span", "pack") if given.get(name, 1) != 1]
    refused += [name for name in ("hang", "mps") if name in given]
    if refused:
        raise SpecError(
            f"{refused[0]}={given.get(refused[0])!r} cannot act with slots='inline', which runs "
            f"one trial at a time in this process: leave {refused[0]} out, or give a number of "
            "slots."
        )


def resolve_spec(
    train: Callable[..., Any], options: StudyOptions, *, standing: bool = False
) -> StudySpec:
    """Return the spec of a study with these options."""
    assert options.metric is not None
    assert options.mode is not None
    assert options.epochs is not None
    target = options.target
    kind = classify(train, options.space)
    # Other functions are given all hyperparameters at their start, so these cannot change later.
    share = kind is FunctionKind.TRIAL if options.share is None else options.share
    define_by_run = options.space is None and not standing
    generator = _describe_generator(options, standing=standing)
    if define_by_run:
        check_generator(generator)
        share = False
    spec = StudySpec(
        name=options.name or _default_name(train),
        metric=options.metric,
        mode=options.mode,
        epochs=options.epochs,
        range=_convert_range(options.range),
        policy=_describe_policy(train, options, standing=standing),
        generator=generator,
        allocator=describe_part("allocator", options.allocator),
        curves=describe_part("curve model", options.curves),
        budget=Budget(
            deadline_s=seconds_until(options.deadline),
            target=None if target is None else Target(float(target), options.over),
            slot_seconds=None if options.slot_hours is None else options.slot_hours * 3600.0,
            trials=options.trials,
        ),
        saves=Saves(collect=True, bytes=options.checkpoint_bytes, best=options.keep_best),
        seed=options.seed,
        share=share,
        plan=_resolve_plan(train, options.plan, share=share),
        retries=options.retries,
        standing=standing,
        define_by_run=define_by_run,
        span=options.span,
        pack=options.pack,
        fit=options.needs is not None,
    )
    check_widths(spec.allocator, spec.span, spec.pack)
    check_pool_width(spec.policy, spec.span)
    if spec.curves.name == "oracle":
        raise SpecError(
            "the curve model 'oracle' looks up the future: it works in `paceline simulate` only."
        )
    refuse_endless_barrier(spec)
    return spec


def _describe_policy(train: Callable[..., Any], options: StudyOptions, *, standing: bool) -> Part:
    if options.policy is not None:
        return describe_part("policy", options.policy)
    return choose_policy(train, options.epochs, standing=standing).part


def generator_to_build(spec: StudySpec, options: StudyOptions) -> Part:
    """Return the spec's generator, with the Optuna sampler itself if the user gave an object.

    The spec, and so the log, holds the name of the sampler's class instead.
    """
    given: Any = options.generator
    if given is None or isinstance(given, str | Part) or spec.standing:
        return spec.generator
    return Part(spec.generator.name, {**spec.generator.params, "sampler": given})


def _describe_generator(options: StudyOptions, *, standing: bool) -> Part:
    if standing:
        return Part("queued", {"configs": []})  # an outside tuner gives the configs
    given: Any = options.generator
    if given is None:
        given = DEFAULT_GENERATOR if options.space is None else choose_generator(options.space).part
    known = isinstance(given, str | Part)
    part = describe_part("generator", given) if known else _describe_sampler(given)
    if part.name == "queued":
        return _describe_queue(part, options)
    params = {"space": options.space, **part.params}
    if options.first is not None:
        params.setdefault("first", [dict(config) for config in options.first])
    return Part(part.name, params)


def _describe_queue(part: Part, options: StudyOptions) -> Part:
    """Return the generator of a list of configs, each of which must be in the space."""
    configs = [*(options.first or ()), *part.params.get("configs", ())]
    if not configs:
        raise SpecError(
            "generator 'queued' has no configs: give pl.Part('queued', {'configs': [{'lr': 0.1}]})."
        )
    for at, config in enumerate(configs):
        given, known = set(config), set(options.space or config)
        if given != known:
            wrong = ", ".join(sorted(given ^ known))
            raise SpecError(
                f"configs[{at}] and the space differ in {wrong}: give each hyperparameter of the "
                "space a value."
            )
    return Part("queued", {"configs": [dict(config) for config in configs]})


def _describe_sampler(given: object) -> Part:
    from optuna.samplers import BaseSampler  # imported already, if this is one of its objects

    if not isinstance(given, BaseSampler):
        return describe_part("generator", given)
    made = type(given)
    sampler = f"{made.__module__}:{made.__qualname__}"
    return Part("optuna", {"sampler": sampler, "given": True})


def _resolve_plan(
    train: Callable[..., Any], plan: str | UnsetType | None, *, share: bool
) -> PlanKey | None:
    """Return the key of the training that other studies share; None: they share nothing."""
    if isinstance(plan, str):
        if not share:
            raise SpecError(
                f"plan={plan!r} needs share=True: this study shares nothing. Leave the plan out, "
                "or give share=True."
            )
        return parse_plan_key(plan)
    return compute_plan_key(train) if share and plan is UNSET else None


def _convert_range(given: object) -> tuple[float, float] | None:
    try:
        return msgspec.convert(given, tuple[float, float] | None)
    except msgspec.ValidationError:
        raise SpecError(
            f"range={given!r} is invalid: give the lowest and the highest value, such as (0, 1)."
        ) from None


def _default_name(train: Callable[..., Any]) -> str:
    name = name_function(train).strip("<>")
    return f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
