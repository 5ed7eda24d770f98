"""The options of a study: their types, their defaults, and the spec they resolve to.

Knows how durations, deadlines, needs, parts and targets are written. Starts nothing.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import force_setattr

from paceline.api.plan_key import compute_plan_key, parse_plan_key
from paceline.api.registry import Kind, describe_part
from paceline.core.base_part import BasePart
from paceline.core.errors import SpecError, make_unknown_error
from paceline.core.values import Budget, Config, Mode, Part, PlanKey, Saves, StudySpec, Target
from paceline.worker.process import takes_config

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

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

DEFAULT_GENERATOR = "tpe"
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
        return parse_duration(deadline)
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
    """Return the function itself, or the table written as `batch:257=2,513=4`.

    >>> parse_needs("batch:257=2,513=4")({"batch": 300})
    2.0
    """
    if callable(given):
        return given
    name, _, rest = str(given).partition(":")
    try:
        pairs = [pair.split("=") for pair in rest.split(",")]
        rows = sorted((float(value), float(slots)) for value, slots in pairs)
    except ValueError:
        rows = []
    if not (name.strip() and rows):
        raise SpecError(
            f"needs={given!r} is invalid: give a function of the setting, or the slots from "
            "certain "
            "values of a hyperparameter on, such as batch:257=2,513=4."
        )
    return NeedsTable(name.strip(), tuple(rows))


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
    warm_start: str
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

    # Decides which trials go on.
    policy: PolicyOption = "asha"
    # Proposes configs. None: `tpe` for a study, `random` for a synthetic workload.
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
    # The last epoch of a trial.
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

    # The search space; domains may be nested. None: an outside tuner gives the configs.
    space: Config | None = None
    # The metric to optimise, and in which direction.
    metric: str | None = None
    mode: Mode | None = None
    # A duration of active time, or a datetime.
    deadline: Any = None
    slot_hours: float | None = None
    # The number of GPUs, or of cores on a machine without GPUs; "cpu:4", "gpu:2". Or a cluster:
    # "ray", `pl.Ray(…)`.
    slots: Any = None
    # Run trials that share a GPU at the same time, by NVIDIA's MPS, where it is installed.
    mps: bool = True
    # The study's name and store: with them it survives its driver.
    name: str | None = None
    store: str | None = None
    # Configs to try first.
    first: list[Config] | None = None
    # Another study of the store: the generator learns from its results before the first proposal.
    warm_start: str | None = None
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


def resolve_options(given: Options) -> StudyOptions:
    """Return all options of a study: those given, and the defaults of the others."""
    for name in given:
        if name not in StudyOptions.__struct_fields__:
            raise make_unknown_error("option", name, StudyOptions.__struct_fields__)
    for name, hint in (
        ("metric", "give the metric that your function reports, such as metric='accuracy'"),
        ("mode", "give mode='max' if higher is better, mode='min' if lower is"),
        ("epochs", "give the last epoch of a trial"),
    ):
        if name not in given:
            raise SpecError(f"{name} is missing: {hint}.")
    fields: dict[str, Any] = dict(given)
    if "space" not in given:
        fields.setdefault("policy", "fifo")
    for name, least in (("keep_best", 0), ("checkpoint_bytes", 1), ("cache_bytes", 0)):
        value = given.get(name)
        if value is not None and (type(value) is not int or value < least):
            raise SpecError(
                f"{name}={value!r} is invalid: must be a whole number, at least {least}. Leave it "
                "out for the default."
            )
    return StudyOptions(**fields)


def resolve_spec(train: Callable[[Any], Any], options: StudyOptions) -> StudySpec:
    """Return the spec of a study with these options."""
    if options.metric is None or options.mode is None or options.epochs is None:
        raise SpecError("metric, mode and epochs are required: give all three.")
    target = options.target
    share = not takes_config(train) if options.share is None else options.share
    spec = StudySpec(
        name=options.name or _default_name(train),
        metric=options.metric,
        mode=options.mode,
        epochs=options.epochs,
        range=_convert_range(options.range),
        policy=describe_part("policy", options.policy),
        generator=_describe_generator(options),
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
        standing=options.space is None,
        span=options.span,
        pack=options.pack,
        fit=options.needs is not None,
    )
    if spec.curves.name == "oracle":
        raise SpecError(
            "the curve model 'oracle' looks up the future: it works in `paceline simulate` only."
        )
    return spec


def generator_to_build(spec: StudySpec, options: StudyOptions) -> Part:
    """Return the spec's generator, with the Optuna sampler itself if the user gave an object.

    The spec, and so the log, holds the name of the sampler's class instead.
    """
    given: Any = options.generator
    if given is None or isinstance(given, str | Part) or options.space is None:
        return spec.generator
    return Part(spec.generator.name, {**spec.generator.params, "sampler": given})


def _describe_generator(options: StudyOptions) -> Part:
    if options.space is None:
        return Part("queued", {"configs": []})  # an outside tuner gives the configs
    given: Any = DEFAULT_GENERATOR if options.generator is None else options.generator
    known = isinstance(given, str | Part)
    part = describe_part("generator", given) if known else _describe_sampler(given)
    params = {"space": options.space, **part.params}
    if options.first is not None:
        params.setdefault("first", [dict(config) for config in options.first])
    return Part(part.name, params)


def _describe_sampler(given: object) -> Part:
    from optuna.samplers import BaseSampler  # imported already, if this is one of its objects

    if not isinstance(given, BaseSampler):
        return describe_part("generator", given)
    made = type(given)
    sampler = f"{made.__module__}:{made.__qualname__}"
    return Part("optuna", {"sampler": sampler, "given": True})


def _resolve_plan(
    train: Callable[[Any], Any], plan: str | UnsetType | None, *, share: bool
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


def _default_name(train: Callable[[Any], Any]) -> str:
    name = getattr(train, "__name__", "study").strip("<>")
    return f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
