"""The options of a study, checked by type and range at the call, one sentence for each mistake.

Knows what each option takes, and how other tuners call it. What an option means, `options` knows.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from msgspec import Struct, UnsetType

from paceline.api.plan_key import PLAN_RULE
from paceline.api.registry import OTHER_PART_NAMES
from paceline.api.spaces import convert_space, show_value
from paceline.core.base_part import BasePart
from paceline.core.errors import SpecError
from paceline.core.values import Part

if TYPE_CHECKING:
    from collections.abc import Callable

    Check = Callable[[str, Any], Any]

# Options of other tuners, and what to give instead.
_OTHER_NAMES = {
    **dict.fromkeys(("n_trials", "num_samples", "max_trials", "n_iter", "max_evals"), "trials=…"),
    **dict.fromkeys(("timeout", "time_budget_s", "max_time", "time_limit"), "deadline=…"),
    **dict.fromkeys(("direction", "directions"), "mode='min' or mode='max'"),
    **dict.fromkeys(("maximize", "minimize"), "mode='max' or mode='min'"),
    **dict.fromkeys(("n_jobs", "max_concurrent_trials", "max_concurrent", "workers"), "slots=…"),
    **dict.fromkeys(("gpus", "num_gpus", "cpus", "num_cpus", "n_workers"), "slots=…"),
    **dict.fromkeys(("param_space", "search_space", "params", "config", "configs"), "space={…}"),
    **dict.fromkeys(("sampler", "search_alg", "searcher", "algo", "algorithm"), "generator=…"),
    **dict.fromkeys(("pruner", "scheduler"), "policy=…"),
    **dict.fromkeys(("study_name", "experiment_name"), "name=…"),
    **dict.fromkeys(("storage", "db", "database"), "store=…"),
    **dict.fromkeys(("storage_path", "local_dir", "output_dir"), "files=…"),
    **dict.fromkeys(("max_epochs", "num_epochs", "n_epochs", "max_t", "epoch"), "epochs=…"),
    **dict.fromkeys(("resources", "resources_per_trial"), "needs=… or span=…"),
    **dict.fromkeys(("random_state", "random_seed"), "seed=…"),
    **dict.fromkeys(("verbose", "show_progress_bar", "progress_bar"), "progress=…"),
    **dict.fromkeys(("max_failures", "max_retries"), "retries=…"),
    **dict.fromkeys(("initial_points", "points_to_evaluate", "enqueue"), "first=[…]"),
    **dict.fromkeys(("load_if_exists", "resume"), "name=… and store=…, the same as before,"),
    **dict.fromkeys(("stop", "stopper"), "target=…, deadline=… or trials=…"),
    **dict.fromkeys(("objective", "func", "fn", "train"), "the function as the first argument"),
}

_MODES = {"maximize": "max", "maximise": "max", "minimize": "min", "minimise": "min"}


def suggest_option(name: str) -> str:
    """Return what to give instead of another tuner's option; empty if it is not known."""
    return _OTHER_NAMES.get(name, "")


def check_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with their values in the types they have in a log. Raises SpecError.

    An option that is None counts as left out, but for `plan`, where None has a meaning.
    """
    return {
        name: _CHECKS[name](name, value) if name in _CHECKS else value
        for name, value in given.items()
        if value is not None or name == "plan"
    }


def refuse(name: str, value: object, rule: str) -> SpecError:
    """Return the error for an option with this value."""
    return SpecError(f"{name}={show_value(value)} is invalid: {rule}.")


class _Whole(Struct, frozen=True):
    """Takes whole numbers."""

    least: int | None = 1
    extra: str = ""

    def __call__(self, name: str, value: Any) -> int:  # noqa: ANN401
        try:
            # Takes numpy's whole numbers, and no fraction.
            number = None if isinstance(value, bool) else operator.index(value)
        except TypeError:
            number = None
        if number is None or (self.least is not None and number < self.least):
            limit = "" if self.least is None else f", at least {self.least}"
            raise refuse(name, value, f"must be a whole number{limit}{self.extra}")
        return number


class _Number(Struct, frozen=True):
    """Takes finite numbers."""

    is_positive: bool = False

    def __call__(self, name: str, value: Any) -> float:  # noqa: ANN401
        rule = "must be a positive number" if self.is_positive else "must be a finite number"
        try:
            number = math.nan if isinstance(value, bool | str | bytes) else float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number) or (self.is_positive and number <= 0):
            raise refuse(name, value, rule)
        return number


class _Text(Struct, frozen=True):
    """Takes text that can be printed."""

    rule: str

    def __call__(self, name: str, value: Any) -> str:  # noqa: ANN401
        if not isinstance(value, str):
            raise refuse(name, value, self.rule)
        if not value.strip():
            raise refuse(name, value, self.rule)
        if not value.isprintable():
            raise refuse(name, value, "must not contain line breaks or control characters")
        return value


class _OneOf(Struct, frozen=True):
    """Takes objects of these types, and refuses others with a rule."""

    types: tuple[type, ...]
    rule: str

    def __call__(self, name: str, value: Any) -> Any:  # noqa: ANN401
        if not isinstance(value, self.types) or (
            isinstance(value, bool) and bool not in self.types
        ):
            raise refuse(name, value, self.rule)
        return value


def _check_mode(name: str, value: Any) -> str:  # noqa: ANN401
    if value in ("min", "max"):
        return str(value)
    meant = _MODES.get(value.lower()) if isinstance(value, str) else None
    hint = f": write mode={meant!r}" if meant else ""
    raise refuse(name, value, f"must be 'min' or 'max'{hint}")


def _check_space(name: str, value: Any) -> Any:  # noqa: ANN401
    return convert_space(value)


def _check_range(name: str, value: Any) -> tuple[float, float]:  # noqa: ANN401
    rule = "give the lowest and the highest value, such as (0, 1)"
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence):
        raise refuse(name, value, rule)
    numbers = [each for each in value if type(each) is not bool and isinstance(each, int | float)]
    if len(value) != 2 or len(numbers) != 2 or not all(map(math.isfinite, numbers)):
        raise refuse(name, value, rule)
    low, high = numbers
    if low >= high:
        raise refuse(name, value, "must be two rising numbers, such as (0, 1)")
    return float(low), float(high)


def _check_path(name: str, value: Any) -> str:  # noqa: ANN401
    if not isinstance(value, str | PathLike):
        example = "'runs.db'" if name == "store" else "'runs'"
        raise refuse(name, value, f"must be a path or a URL, such as {example}")
    path = fspath(value)
    if not isinstance(path, str) or not path.strip():
        raise refuse(name, value, "must not be empty")
    return path


def _check_first(name: str, value: Any) -> list[dict[str, Any]]:  # noqa: ANN401
    rule = "give a list of configs, such as [{'lr': 0.1}]"
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence):
        raise refuse(name, value, rule)
    for each in value:
        if not isinstance(each, Mapping):
            raise refuse(name, each, f"must be a config; {rule}")
    return [dict(each) for each in value]


def _check_needs(name: str, value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, str) or callable(value):
        return value
    raise refuse(
        name,
        value,
        "give a function of the setting, or the slots from certain values of a hyperparameter on, "
        "such as 'batch:257=2,513=4'",
    )


def _check_slots(name: str, value: Any) -> Any:  # noqa: ANN401
    from paceline.engines.process.ray.config import Ray

    if isinstance(value, str | Ray):
        return value
    if not isinstance(value, bool) and hasattr(value, "__index__"):
        if operator.index(value) < 1:
            raise refuse(name, value, "must be at least 1")
        return operator.index(value)
    raise refuse(name, value, "give a number, 'cpu:4', 'gpu:2', 'inline', 'ray' or pl.Ray(…)")


def _check_plan(name: str, value: Any) -> Any:  # noqa: ANN401
    # What a name may be, the plan itself checks.
    if value is None or isinstance(value, str | UnsetType):
        return value
    raise refuse(name, value, PLAN_RULE)


def _check_warm_start(name: str, value: Any) -> Any:  # noqa: ANN401
    # An Optuna study is taken as it is.
    if isinstance(value, str) or hasattr(value, "get_trials"):
        return value
    raise refuse(name, value, "give the name of another study of the store")


# Parts of other libraries, by class name, and what to write here.
_OTHER_PARTS = {
    "MedianPruner": "policy='median'",
    "PercentilePruner": "policy='median'",
    "SuccessiveHalvingPruner": "policy='asha_stop'",
    "HyperbandPruner": "policy='hyperband'",
    "NopPruner": "policy='fifo'",
    "PatientPruner": "policy='plateau'",
    "ThresholdPruner": "policy='kill_below'",
    "ASHAScheduler": "policy='asha'",
    "AsyncHyperBandScheduler": "policy='asha'",
    "HyperBandScheduler": "policy='hyperband'",
    "HyperBandForBOHB": "policy='hyperband' with generator='tpe'",
    "MedianStoppingRule": "policy='median'",
    "PopulationBasedTraining": "policy='pbt'",
    "PB2": "policy='pbt'",
    "FIFOScheduler": "policy='fifo'",
    "OptunaSearch": "generator='tpe'",
    "HyperOptSearch": "generator='tpe'",
    "TuneBOHB": "policy='hyperband' with generator='tpe'",
    "BayesOptSearch": "generator='gp'",
    "AxSearch": "generator='gp'",
    "BasicVariantGenerator": "generator='random' or generator='grid'",
}


def _check_part(name: str, value: Any) -> Any:  # noqa: ANN401
    """Let names, parts and objects of parts pass; say what to give instead of others."""
    kind = type(value).__name__
    if isinstance(value, str):
        meant = OTHER_PART_NAMES.get(value.strip().lower())
        if meant is not None:
            raise refuse(name, value, f"write {meant}")
        if not value.strip():
            raise refuse(name, value, "must not be empty")
        return value
    if isinstance(value, Part | BasePart):
        return value
    if isinstance(value, type):
        made = value.__name__
        raise SpecError(f"{name}={made} is a class: pass an object, {made}(…).")
    if kind in _OTHER_PARTS:
        raise SpecError(
            f"{name}={kind}(…) is of another library: write {_OTHER_PARTS[kind]} instead."
        )
    # Optuna's samplers are generators.
    if name == "generator" and any(base.__name__ == "BaseSampler" for base in type(value).__mro__):
        return value
    sampler = ", an Optuna sampler" if name == "generator" else ""
    raise refuse(
        name,
        value,
        f"must be a name, a pl.Part{sampler} or an object of a class that derives from "
        "pl.parts.BasePart",
    )


_DURATION = "give seconds (90), or a text such as '90s', '10m', '1h30m' or '2d'"
_BOOL = _OneOf((bool,), "must be True or False")
_CHECKS: dict[str, Check] = {
    "space": _check_space,
    "metric": _Text("must be the name of one metric, such as 'accuracy'"),
    "mode": _check_mode,
    "epochs": _Whole(),
    "range": _check_range,
    "policy": _check_part,
    "generator": _check_part,
    "allocator": _check_part,
    "curves": _check_part,
    "deadline": _OneOf((int, float, str, timedelta, datetime), f"{_DURATION}, or a datetime"),
    "hang": _OneOf((int, float, str, timedelta), _DURATION),
    "target": _Number(),
    "over": _Whole(),
    "slot_hours": _Number(is_positive=True),
    "trials": _Whole(1, ". Leave it out for no limit"),
    "slots": _check_slots,
    "span": _Whole(),
    "pack": _Whole(),
    "needs": _check_needs,
    "mps": _BOOL,
    "seed": _Whole(None),
    "name": _Text("must be text, such as 'mnist'"),
    "store": _check_path,
    "files": _check_path,
    "checkpoints": _check_path,
    "first": _check_first,
    "warm_start": _check_warm_start,
    "share": _BOOL,
    "plan": _check_plan,
    "retries": _Whole(0),
    "keep_best": _Whole(0, ". Leave it out for the default"),
    "checkpoint_bytes": _Whole(1, ". Leave it out for the default"),
    "cache_bytes": _Whole(0, ". Leave it out for the default"),
    "progress": _BOOL,
}
