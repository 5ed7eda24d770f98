"""The training function: its arguments, its calls, and what it returns.

Knows the three kinds of functions, which arguments each is given, and what generators and return
values mean. Does not know epochs: the trial closes them.
"""

from __future__ import annotations

import functools
import inspect
import sys
from enum import StrEnum
from types import GeneratorType
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.core.errors import SpecError, TrialError
from paceline.plan.settings import is_changing
from paceline.worker.metrics import describe_value, parse_returned

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from paceline.core.values import Config
    from paceline.worker.trial import Trial

    Train = Callable[..., Any]

# The argument of these names is given the config, as a dict.
_CONFIG_NAMES = ("config", "cfg", "params")
# The argument of this name is given the trial.
_TRIAL = "trial"
# A hyperparameter of this name seeds the trial: the function need not take it.
_SEED = "seed"

_Parameter = inspect.Parameter
_VARIADIC = (_Parameter.VAR_POSITIONAL, _Parameter.VAR_KEYWORD)


class FunctionKind(StrEnum):
    """What a training function is given."""

    # The trial: `def train(trial)`.
    TRIAL = "trial"
    # A dict of all hyperparameters: `def train(config)`.
    CONFIG = "config"
    # Hyperparameters by their names: `def train(lr, width)`. The trial may be among them.
    NAMED = "named"


class Arguments(NamedTuple):
    """The kind of a function, and the parameters it has."""

    kind: FunctionKind
    # All but `*args` and `**kwargs`.
    parameters: tuple[_Parameter, ...]
    # It has `**kwargs`: all hyperparameters are given by name.
    takes_all: bool

    @property
    def trial(self) -> _Parameter | None:
        """The parameter that is given the trial; None if there is not one."""
        if self.kind is FunctionKind.TRIAL:
            return _list_needed(self.parameters)[0]
        return next((each for each in self.parameters if each.name == _TRIAL), None)


def name_function(train: object) -> str:
    """Return the name of a function; of an object that can be called, its class's."""
    if isinstance(train, functools.partial):
        return name_function(train.func)
    name = getattr(train, "__name__", None)
    return name if isinstance(name, str) else type(train).__name__


def check_function(train: object) -> None:
    """Raise SpecError for what cannot be a training function, whatever the space."""
    if isinstance(train, type):
        raise SpecError(
            f"{train.__name__} is a class: a study trains with a function, such as "
            "`def train(trial)`. Give a method of one of its objects; a Ray Tune Trainable as "
            f"paceline.integrations.ray_tune.trainable({train.__name__})."
        )
    if not callable(train):
        raise SpecError(
            f"the training function is {train!r}, which cannot be called: give a function, such as "
            "`def train(trial)`, and everything else by name: pl.tune(train, space={…})."
        )
    called = train.func if isinstance(train, functools.partial) else train
    functions = (called, vars(type(called)).get("__call__"))
    if any(map(inspect.iscoroutinefunction, functions)) or any(
        map(inspect.isasyncgenfunction, functions)
    ):
        raise SpecError(
            f"{name_function(train)} is async: a training function runs in a process of its own, "
            "so write it as `def`, and call asyncio.run(…) inside it where it has to await."
        )


def classify(train: Train, space: Mapping[str, Any] | None = None) -> FunctionKind:
    """Return the kind of a function for a space; None: the space is not known.

    Raise SpecError if it cannot be called with the hyperparameters of this space.
    """
    check_function(train)
    found = _read_arguments(train, () if space is None else space)
    if found is None:
        return FunctionKind.TRIAL
    if space is not None and found.kind is FunctionKind.NAMED:
        _check_names(name_function(train), found, space)
        _check_schedules(name_function(train), found, space)
    return found.kind


def run_function(train: Train, trial: Trial) -> None:
    """Call a training function; report what it yields and returns, and end the trial."""
    name = name_function(train)
    returned = _call(train, trial, name)
    if inspect.iscoroutine(returned):
        returned.close()
        raise TrialError(f"{name} returned a coroutine: write it as `def` instead of `async def`.")
    if isinstance(returned, GeneratorType):
        returned = _run_generator(returned, trial)
    trial.finish(_read_returned(returned, trial, name))


def _call(train: Train, trial: Trial, name: str) -> Any:  # noqa: ANN401
    config = trial.config
    found = _read_arguments(train, config)
    if found is None:
        return train(trial)
    if found.kind is FunctionKind.CONFIG:
        return train(dict(config))
    if found.kind is FunctionKind.NAMED:
        _check_names(name, found, config)
        _check_schedules(name, found, config)
    given = {each: value for each, value in config.items() if not is_changing(value)}
    positional, named = [], {}
    for parameter in found.parameters:
        if parameter is found.trial:
            value: Any = trial
        elif parameter.name in given:
            value = given.pop(parameter.name)
        else:
            continue  # its default holds
        if parameter.kind is _Parameter.POSITIONAL_ONLY or (
            # The wrapper of a decorated function may call it by another name.
            parameter is found.trial
            and parameter is found.parameters[0]
            and parameter.kind is not _Parameter.KEYWORD_ONLY
        ):
            positional.append(value)
        else:
            named[parameter.name] = value
    return train(*positional, **named, **(given if found.takes_all else {}))


def _run_generator(generator: GeneratorType[Any, Any, Any], trial: Trial) -> Any:  # noqa: ANN401
    """Report every value that a generator yields; return what it returns."""
    try:
        value = next(generator)
        while True:
            try:
                trial.report(value)
            except BaseException as error:
                # Raised at its `yield`: its `finally` blocks run, and a traceback shows the line.
                value = generator.throw(error)
            else:
                value = next(generator)
    except StopIteration as end:
        return end.value


def _read_returned(returned: object, trial: Trial, name: str) -> dict[str, float | None] | None:
    """Return the metrics of a return value; raise TrialError if the trial has no report at all."""
    if returned is None and trial.has_reports:
        return None
    try:
        metrics = parse_returned(returned, trial.metric)
    except TrialError as error:
        if trial.has_reports:
            return None  # a summary of what was reported before
        raise TrialError(f"{name} reported nothing, and {error}") from None
    if metrics is None and not trial.has_reports:
        what = "nothing" if returned is None else describe_value(returned)
        way_out = f"call trial.report({trial.metric}=…) after each epoch"
        if "ray.tune" in sys.modules:
            way_out = f"if it reports to Ray Tune, give pl.integrations.ray_tune.trainable({name})"
        raise TrialError(
            f"{name} returned {what} and reported nothing: return a number such as the loss, or "
            f"{way_out}."
        )
    return metrics


# Reading signatures


def _read_arguments(train: Train, names: Mapping[str, Any] | tuple[()]) -> Arguments | None:
    """Return how a function is called, if these are its hyperparameters; None: nothing is known.

    Raise SpecError if it takes nothing that a study could give it.
    """
    try:
        every = list(inspect.signature(train).parameters.values())
    except (TypeError, ValueError):
        return None
    parameters = tuple(each for each in every if each.kind not in _VARIADIC)
    takes_all = any(each.kind is _Parameter.VAR_KEYWORD for each in every)
    needed = _list_needed(parameters)
    if not needed:
        kind = _classify_optional(train, every, parameters, names)
    elif len(needed) > 1 or (needed[0].name in names and needed[0].name not in _CONFIG_NAMES):
        kind = FunctionKind.NAMED
    elif needed[0].name in _CONFIG_NAMES:
        kind = FunctionKind.CONFIG
    else:
        kind = FunctionKind.TRIAL
    return Arguments(kind, parameters, takes_all)


def _classify_optional(
    train: Train,
    every: list[_Parameter],
    parameters: tuple[_Parameter, ...],
    names: Mapping[str, Any] | tuple[()],
) -> FunctionKind:
    """Return the kind of a function that can be called without arguments."""
    name = name_function(train)
    if any(each.kind is _Parameter.VAR_POSITIONAL for each in every) and not parameters:
        raise SpecError(
            f"{name} takes {', '.join(map(str, every))}, which does not say what it wants: write "
            f"its arguments out, such as `def {name}(trial)`; if it is a decorator's wrapper, "
            "add functools.wraps."
        )
    if parameters and parameters[0].name in _CONFIG_NAMES:
        return FunctionKind.CONFIG
    takes_all = any(each.kind is _Parameter.VAR_KEYWORD for each in every)
    if takes_all or any(each.name == _TRIAL or each.name in names for each in parameters):
        return FunctionKind.NAMED
    takes = ", ".join(map(str, parameters)) or "nothing"
    raise SpecError(
        f"{name} takes {takes}: a training function takes one argument, the trial "
        f"(`def {name}(trial)`), or the config (`def {name}(config)`), or hyperparameters by "
        f"their names (`def {name}({', '.join(names) or 'lr, width'})`)."
    )


def _list_needed(parameters: tuple[_Parameter, ...]) -> list[_Parameter]:
    return [each for each in parameters if each.default is each.empty]


def _check_names(name: str, found: Arguments, names: Mapping[str, Any]) -> None:
    """Raise SpecError unless a function's parameters and the hyperparameters fit together."""
    taken = {each.name for each in found.parameters}
    listed = ", ".join(names) or "nothing"
    unknown = [
        each.name
        for each in _list_needed(found.parameters)
        if each.name not in names and each.name != _TRIAL
    ]
    if unknown and not taken.intersection(names):
        takes = ", ".join(each.name for each in _list_needed(found.parameters))
        raise SpecError(
            f"{name} takes {takes}, and the space has {listed}: a training function takes one "
            f"argument, the trial (`def {name}(trial)`) or the config (`def {name}(config)`), or "
            f"hyperparameters by their names (`def {name}({listed})`)."
        )
    if unknown:
        first = unknown[0]
        raise SpecError(
            f"{name} takes {' and '.join(unknown)}, and the space has only {listed}: add "
            f"{first} to the space, or give the argument a default (`{first}=…`)."
        )
    unused = [each for each in names if each not in taken and each != _SEED]
    if unused and not found.takes_all and found.trial is None:
        first = unused[0]
        raise SpecError(
            f"the space has {' and '.join(unused)}, which {name} does not take: add the argument "
            f"{first}, take them all by **rest, or remove {first} from the space."
        )


def _check_schedules(name: str, found: Arguments, config: Config | Mapping[str, Any]) -> None:
    """Raise SpecError if a hyperparameter that is passed once changes during training."""
    taken = {each.name for each in found.parameters}
    for each, value in config.items():
        if is_changing(value) and (each in taken or (found.takes_all and found.trial is None)):
            raise SpecError(
                f"{each} changes during training, so it cannot be an argument of {name}: take the "
                f"trial (`def {name}(trial)`), and read trial[{each!r}] inside "
                "`for epoch in trial.epochs()`."
            )
