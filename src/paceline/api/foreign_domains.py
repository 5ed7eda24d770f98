"""Domains of other libraries as ours: scipy's distributions, Optuna's, and those of Ray Tune.

Knows them by their class names and attributes, and imports none of these libraries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.core import space as domains
from paceline.core.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.core.values import Value

# The most values of a step that is written as a choice.
_MOST_OPTIONS = 1000


def convert_foreign(value: Any, name: str) -> Value | None:  # noqa: ANN401
    """Return a domain of another library as ours; None if the value is not one.

    Raises SpecError for a domain of a known library without a counterpart.
    """
    convert = _LIBRARIES.get(type(value).__module__.partition(".")[0])
    return None if convert is None else convert(value, name)


def _convert_optuna(value: Any, name: str) -> Value | None:  # noqa: ANN401
    kind = type(value).__name__
    if not kind.endswith("Distribution"):
        return None
    if kind == "CategoricalDistribution":
        return domains.choice(list(value.choices))
    log, step = getattr(value, "log", "Log" in kind), getattr(value, "step", getattr(value, "q", 0))
    if kind.startswith("Int"):
        if step in (None, 0, 1):
            make = domains.lograndint if log else domains.randint
            return make(value.low, value.high + 1)
    elif not step:
        make_float = domains.loguniform if log else domains.uniform
        return make_float(value.low, value.high)
    return _convert_steps(value.low, value.high, step, name)


def _convert_steps(low: float, high: float, step: float, name: str) -> Value:
    """Return the numbers low, low + step, … up to high."""
    if abs(low / step - round(low / step)) < 1e-9:
        return domains.quniform(low, high, step)
    count = int((high - low) / step + 1e-9) + 1
    if count > _MOST_OPTIONS:
        raise SpecError(
            f"{name} has {count} steps that do not start at a multiple of {step!r}: write "
            "pl.quniform(low, high, step) with such a start."
        )
    return domains.choice([round(low + at * step, 12) for at in range(count)])


def _convert_scipy(value: Any, name: str) -> Value | None:  # noqa: ANN401
    dist = getattr(value, "dist", None)
    if dist is None or not type(value).__name__.endswith("_frozen"):
        return None
    kind = dist.name
    args, more = list(value.args), dict(value.kwds)
    shapes = [each.strip() for each in (dist.shapes or "").split(",") if each.strip()]
    given = {**dict(zip([*shapes, "loc", "scale"], args, strict=False)), **more}
    loc, scale = float(given.get("loc", 0)), float(given.get("scale", 1))
    if kind == "uniform":
        return domains.uniform(loc, loc + scale)
    if kind in ("loguniform", "reciprocal") and loc == 0:
        return domains.loguniform(float(given["a"]) * scale, float(given["b"]) * scale)
    if kind == "randint" and loc == int(loc):
        return domains.randint(int(given["low"] + loc), int(given["high"] + loc))
    raise SpecError(
        f"{name} is scipy's {kind}, which has no counterpart here: use pl.uniform, pl.loguniform, "
        "pl.quniform, pl.randint, pl.lograndint or pl.choice."
    )


def _convert_ray(value: Any, name: str) -> Value | None:  # noqa: ANN401
    kinds = {kind.__name__ for kind in type(value).__mro__}
    if "Domain" not in kinds:
        return None
    if "Function" in kinds:
        raise SpecError(
            f"{name} is Ray Tune's sample_from, which has no counterpart here: compute the value "
            "in the training function."
        )
    if "Categorical" in kinds:
        return domains.choice(list(value.categories))
    sampler, step = value.get_sampler(), None
    if type(sampler).__name__ == "Quantized":
        sampler, step = sampler.get_sampler(), sampler.q
    samplers = {kind.__name__ for kind in type(sampler).__mro__}
    log = "LogUniform" in samplers
    kind = next((each for each in ("Float", "Integer") if each in kinds), "")
    convert = _RAY.get((kind, log, step is not None)) if log or "Uniform" in samplers else None
    if convert is None:
        found = f"{type(sampler).__name__.strip('_').lower()} {type(value).__name__.lower()}"
        raise SpecError(
            f"{name} is a {'quantised ' * (step is not None)}{found}, which has no counterpart "
            "here: use uniform, loguniform, quniform, randint, lograndint, qrandint, choice or "
            "grid_search."
        )
    return convert(value.lower, value.upper, step)


def _list_multiples(low: int, high: int, step: int) -> Value:
    """Return the multiples of a step; with a step, Tune includes the upper end."""
    first = -(-low // step) * step
    return domains.choice(list(range(first, high + 1, step)))


# By (type of value, logarithmic, in steps).
_RAY: dict[tuple[str, bool, bool], Callable[[Any, Any, Any], Value]] = {
    ("Float", False, False): lambda low, high, _: domains.uniform(low, high),
    ("Float", False, True): domains.quniform,
    ("Float", True, False): lambda low, high, _: domains.loguniform(low, high),
    ("Integer", False, False): lambda low, high, _: domains.randint(low, high),
    ("Integer", False, True): _list_multiples,
    ("Integer", True, False): lambda low, high, _: domains.lograndint(low, high),
}

_LIBRARIES: dict[str, Callable[[Any, str], Value | None]] = {
    "optuna": _convert_optuna,
    "scipy": _convert_scipy,
    "ray": _convert_ray,
}
