"""What a study is given, in the user's words, and the spec that comes of it.

Knows every option once, its default, and how durations, deadlines, parts and targets are written.
Starts nothing.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import msgspec
from msgspec import Struct

from paceline.api.plan_key import given_key, key_of
from paceline.api.registry import build, parse_part
from paceline.core.errors import SpecError, unknown
from paceline.core.values import Budget, Config, Part, PlanKey, Saves, StudySpec, Target
from paceline.worker.process import ray_spelled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from optuna.samplers import BaseSampler

    from paceline.core.ports import Needs
    from paceline.core.values import Config
    from paceline.engines.process.ray.config import Ray


_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)"
_WRITTEN = re.compile(
    "".join(rf"(?:{_NUMBER}\s*{unit}\s*)?" for unit in "dhms"), re.IGNORECASE | re.ASCII
)
_UNITS = (86400.0, 3600.0, 60.0, 1.0)


def seconds_of(duration: float | str | timedelta) -> float:
    """Return a duration in seconds, or say how durations are written.

    >>> seconds_of("1h30m"), seconds_of("0.5d"), seconds_of("90"), seconds_of(90)
    (5400.0, 43200.0, 90.0, 90.0)
    """
    if isinstance(duration, timedelta):
        seconds = duration.total_seconds()
    elif isinstance(duration, str):
        seconds = _read(duration.strip())
    else:
        seconds = float(duration)
    if isinstance(duration, bool) or not (seconds >= 0 and math.isfinite(seconds)):
        raise SpecError(
            f"{duration!r} is no duration: write seconds (90, 90s) or days, hours, minutes and "
            "seconds in this order (2d, 1h30m, 10m), and nothing below 0."
        )
    return seconds


def _read(text: str) -> float:
    """Return the seconds; NaN where the text is no duration."""
    found = _WRITTEN.fullmatch(text)
    if found is not None and any(found.groups()):
        pairs = zip(found.groups(), _UNITS, strict=True)
        return math.fsum(float(number) * unit for number, unit in pairs if number)
    try:
        return float(text)
    except ValueError:
        return math.nan


class ByValue(Struct, frozen=True):
    """From each of these values of one hyperparameter on, so many slots; below the first, one."""

    name: str
    # (from this value on, slots), rising.
    steps: tuple[tuple[float, float], ...]

    def __call__(self, setting: Config) -> float:
        if self.name not in setting:
            raise unknown("hyperparameter", self.name, setting)
        value = setting[self.name]
        if type(value) not in (int, float):
            raise SpecError(f"{self.name}={value!r} is not a number, by which needs could go.")
        at = bisect_right(self.steps, value, key=lambda step: step[0])
        return self.steps[at - 1][1] if at else 1.0


def needs_of(given: Needs | str) -> Needs:
    """Return the function that was given, or the one written `batch:257=2,513=4`.

    >>> needs_of("batch:257=2,513=4")({"batch": 300})
    2.0
    """
    if callable(given):
        return given
    name, _, rest = str(given).partition(":")
    try:
        pairs = [pair.split("=") for pair in rest.split(",")]
        steps = sorted((float(value), float(slots)) for value, slots in pairs)
    except ValueError:
        steps = []
    if not (name.strip() and steps):
        raise SpecError(
            f"needs={given!r} cannot be read: give a function of the setting, or slots from some "
            "values of a hyperparameter on, such as batch:257=2,513=4."
        )
    return ByValue(name.strip(), tuple(steps))


class Options(TypedDict, total=False):
    """Everything `tune` and `Study` take besides the training function."""

    # What may vary; domains may stand at any depth.
    space: Config
    # What is optimised, which way, and the last epoch of a trial.
    metric: str
    mode: Literal["min", "max"]
    epochs: int
    # The least and the greatest value the metric can have: forecasts stay inside.
    range: tuple[float, float]
    # Who decides: names, `name:key=value`, or parts.
    policy: str | Part
    # As a generator also a sampler of Optuna's, itself.
    generator: str | Part | BaseSampler
    allocator: str | Part
    curves: str | Part
    # When it ends, whichever comes first. A deadline is a duration of active time, or a datetime.
    deadline: float | str | timedelta | datetime
    target: float
    # The target as the mean of so many reports.
    over: int
    slot_hours: float
    trials: int
    # A number of GPUs, or of cores where there are none; "cpu:4", "gpu:2". Or a cluster: "ray".
    slots: int | str | Ray
    # At most so many slots for one trial, at most so many trials on one slot.
    span: int
    pack: int
    # What an epoch under a setting cannot do without: slots, or a share of one.
    needs: Needs | str
    # Let trials that share a GPU run at the same time, by NVIDIA's service. By default where it is.
    mps: bool
    seed: int
    # Where the study is kept, so that it survives its driver: a name and a store.
    name: str
    store: str
    # Configs to try first.
    first: Sequence[Config]
    # A study of the store whose results the generator learns from before its first proposal.
    warm_start: str
    # Train what trials have in common once. By default on, and off in Ray's spelling.
    share: bool
    # What is trained, as "name" or "name@version": studies of one store with the same share it.
    # By default the function and a digest of its code; None: nothing is shared with other studies.
    plan: str | None
    retries: int
    # Without a report for so long a trial is taken for hanging.
    hang: float | str | timedelta
    # Of how many finished trials, the best, the last checkpoint is kept. By default of all.
    keep_best: int
    # What all checkpoints together may take, and where they lie.
    checkpoint_bytes: int
    files: str | Path
    # Where checkpoints are kept, if not there: a shared folder, or s3://bucket/prefix. What their
    # copies among the files may take then.
    checkpoints: str | Path
    cache_bytes: int
    # Show how it goes. By default where standard output is a terminal.
    progress: bool


DEFAULT_POLICY = "asha"
DEFAULT_GENERATOR = "tpe"
DEFAULT_CURVES = "pfn"


def spec_of(train: Callable[[Any], Any], options: Options) -> StudySpec:
    """Return the spec these options mean; refuse what cannot be meant."""
    for name in options:
        if name not in Options.__annotations__:
            raise unknown("option", name, Options.__annotations__)
    for name, hint in (
        ("metric", "name what your function reports, such as metric='accuracy'"),
        ("mode", "say mode='max' where higher is better, mode='min' where lower is"),
        ("epochs", "give the last epoch of a trial"),
    ):
        if name not in options:
            raise SpecError(f"{name} is missing: {hint}.")
    target = options.get("target")
    spec = StudySpec(
        name=options.get("name") or _default_name(train),
        metric=options["metric"],
        mode=options["mode"],
        epochs=options["epochs"],
        range=_range(options.get("range")),
        policy=_part(options.get("policy", DEFAULT_POLICY if "space" in options else "fifo")),
        generator=_generator(options),
        allocator=_part(options.get("allocator", "fixed")),
        curves=_part(options.get("curves", DEFAULT_CURVES)),
        budget=Budget(
            deadline_s=deadline_s(options.get("deadline")),
            target=None if target is None else Target(float(target), options.get("over", 1)),
            slot_seconds=_hours(options.get("slot_hours")),
            trials=options.get("trials"),
        ),
        saves=_saves(options),
        seed=options.get("seed", 0),
        share=options.get("share", not ray_spelled(train)),
        plan=_plan(train, options),
        retries=options.get("retries", 3),
        standing="space" not in options,
        span=options.get("span", 1),
        pack=options.get("pack", 1),
        fit="needs" in options,
    )
    if "needs" in options:
        needs_of(options["needs"])
    if spec.curves.name == "oracle":
        raise SpecError("the oracle looks the future up: it works in `paceline simulate` alone.")
    for kind, part in (
        ("policy", spec.policy),
        ("generator", generator_of(spec, options)),
        ("allocator", spec.allocator),
        ("curve model", spec.curves),
    ):
        built = build(kind, part)  # type: ignore[arg-type]
        if kind == "generator" and "warm_start" in options:
            _check_warm_start(options, part, learns=not built.pure)
    return spec


def _check_warm_start(options: Options, generator: Part, *, learns: bool) -> None:
    told = f"warm_start={options['warm_start']!r} cannot be meant"
    if "store" not in options:
        raise SpecError(f"{told} without a store: give store=…, where that study is kept.")
    if not learns:
        raise SpecError(f"{told}: generator {generator.name} learns from nothing; give a sampler.")


def deadline_s(given: float | str | timedelta | datetime | None) -> float | None:
    """Return the seconds from now to a deadline; a datetime without a zone is local time."""
    if given is None:
        return None
    if not isinstance(given, datetime):
        return seconds_of(given)
    left = (given.astimezone(UTC) - datetime.now(UTC)).total_seconds()
    if left <= 0:
        raise SpecError(f"the deadline {given.isoformat()} is over: give one that is to come.")
    return left


def generator_of(spec: StudySpec, options: Options) -> Part:
    """Return the spec's generator; where it was given as an object, with that in it.

    The spec, and so the log, has the name of its class in that place.
    """
    given = options.get("generator", "")
    if isinstance(given, str | Part) or "space" not in options:
        return spec.generator
    return Part(spec.generator.name, {**spec.generator.params, "sampler": given})


def _generator(options: Options) -> Part:
    if "space" not in options:
        return Part("queued", {"configs": []})  # an outside tuner gives the configs
    chosen = options.get("generator", DEFAULT_GENERATOR)
    given = _part(chosen) if isinstance(chosen, str | Part) else _part_of_object(chosen)
    params = {"space": options["space"], **given.params}
    if "first" in options:
        params.setdefault("first", [dict(config) for config in options["first"]])
    return Part(given.name, params)


def _part_of_object(given: object) -> Part:
    from optuna.samplers import BaseSampler  # only for those who have imported it already

    if not isinstance(given, BaseSampler):
        raise SpecError(
            f"generator={given!r} cannot be meant: give a name, a Part, or a sampler of Optuna's."
        )
    made = type(given)
    sampler = f"{made.__module__}:{made.__qualname__}"
    return Part("optuna", {"sampler": sampler, "given": True})


def _part(given: str | Part) -> Part:
    return given if isinstance(given, Part) else parse_part(given)


def _plan(train: Callable[[Any], Any], options: Options) -> PlanKey | None:
    """Return the key under which other studies share with this one; None: none does."""
    shares = options.get("share", not ray_spelled(train))
    given = options.get("plan")
    if given is not None and not shares:
        raise SpecError(
            f"plan={given!r} cannot be meant where nothing is shared: leave it out, or say "
            "share=True."
        )
    if not shares or (given is None and "plan" in options):
        return None
    return key_of(train) if given is None else given_key(given)


def _range(given: object) -> tuple[float, float] | None:
    try:
        return msgspec.convert(given, tuple[float, float] | None)
    except msgspec.ValidationError:
        raise SpecError(
            f"range={given!r} cannot be meant: give the least and the greatest value, such as "
            "(0, 1)."
        ) from None


def _saves(options: Options) -> Saves:
    for name, least in (("keep_best", 0), ("checkpoint_bytes", 1), ("cache_bytes", 0)):
        given = options.get(name)
        if given is not None and (type(given) is not int or given < least):
            raise SpecError(
                f"{name}={given!r} cannot be meant: give a whole number, {least} or more, or leave "
                "it out for no limit."
            )
    return Saves(collect=True, bytes=options.get("checkpoint_bytes"), best=options.get("keep_best"))


def _hours(given: float | None) -> float | None:
    return None if given is None else given * 3600.0


def _default_name(train: Callable[[Any], Any]) -> str:
    name = getattr(train, "__name__", "study").strip("<>")
    return f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
