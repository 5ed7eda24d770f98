"""Samplers of Optuna by their names, and what they are made with.

Knows which class a name means, which arguments it takes, and how a dimension of a space is put to a
sampler. Does not know how any sampler works, nor what it learns from.
"""

from __future__ import annotations

import inspect
import warnings
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import optuna
from optuna.samplers import BaseSampler, GPSampler, QMCSampler, RandomSampler, TPESampler

from paceline.core.errors import SpecError, unknown
from paceline.core.rng import stream
from paceline.core.space import CHOICES, Dimension, multiples

if TYPE_CHECKING:
    from optuna.trial import BaseTrial

    from paceline.core.rng import Stream
    from paceline.core.values import Value

_NAMES = {"tpe": "TPESampler", "gp": "GPSampler", "cmaes": "CmaEsSampler", "qmc": "QMCSampler"}
# Packages that a sampler imports when it is used, and that Optuna does not bring.
_NEEDS = {"GPSampler": ("torch", "scipy"), "CmaEsSampler": ("cmaes",), "QMCSampler": ("scipy",)}
# What they would say for every choice in a space.
_SILENT = {"CmaEsSampler", "GPSampler", "QMCSampler"}
# Samplers that keep nothing in the study they are asked about: what the log has need not be worked
# out again. Any other is asked again on resume, so that its own memory comes back.
_FORGETFUL = (TPESampler, GPSampler, RandomSampler)


class Source:
    """Where the sampler of each proposal comes from.

    One of Optuna's own is made anew for every proposal, with a seed for that number: whoever draws
    it, and when, it draws the same. Optuna's samplers keep what they must remember in their study.
    Any other class is made once, since it may remember in itself, and so is an object used that was
    given in place of a name.
    """

    def __init__(
        self, sampler: str | BaseSampler, startup: int | None, options: dict[str, Any]
    ) -> None:
        self._only: BaseSampler | None = None
        if isinstance(sampler, BaseSampler):
            if startup is not None or options:
                raise SpecError("a sampler that is an object has its options: give no others.")
            self._class, self._options = type(sampler), options
            self._only = sampler
            self._anew = False
        else:
            self._class = _sampler_class(sampler)
            self._options = _settled(sampler, self._class, startup, options)
            self._anew = self._class.__module__.startswith("optuna.")
            try:
                self._made(0, 0)
            except (TypeError, ValueError) as error:
                raise SpecError(f"sampler {sampler!r} cannot be made: {error}") from None
        # Whether a proposal that is known may be taken as it is, without asking.
        self.forgetful = self._anew and issubclass(self._class, _FORGETFUL)

    def sampler(self, seed: int, number: int) -> BaseSampler:
        """Return the sampler for one proposal of a study with this seed."""
        if self._only is not None:
            return self._only
        made = self._made(seed, number if self._anew else 0)
        if not self._anew:
            self._only = made
        return made

    def _made(self, seed: int, number: int) -> BaseSampler:
        options = dict(self._options)
        own = _whole(stream(seed, "optuna", number))
        if issubclass(self._class, QMCSampler):
            # All points are of one sequence; what is not in it is drawn for each.
            options.setdefault("scramble", True)
            options["independent_sampler"] = RandomSampler(seed=own)
            own = _whole(stream(seed, "optuna"))
        parameters = inspect.signature(self._class).parameters
        if "seed" in parameters:
            options["seed"] = own
        if self._class.__name__ in _SILENT and "warn_independent_sampling" in parameters:
            options.setdefault("warn_independent_sampling", False)
        with warnings.catch_warnings():
            # Of arguments that may change: whoever gives them has read of it.
            warnings.simplefilter("ignore")
            return self._class(**options)


def suggested(trial: BaseTrial, dimension: Dimension) -> Value:
    """Let the sampler choose a value: a choice by the number of its option, q by its multiple."""
    name, kind, arguments = dimension.name, dimension.kind, dimension.arguments
    if kind in CHOICES:
        return arguments[trial.suggest_categorical(name, list(range(len(arguments))))]
    low, high = arguments[:2]
    if kind == "quniform":
        least, most = multiples(*arguments)
        return arguments[2] * int(trial.suggest_int(name, least, most))
    if kind in ("randint", "lograndint"):
        return int(trial.suggest_int(name, low, high - 1, log=kind == "lograndint"))
    return float(trial.suggest_float(name, low, high, log=kind == "loguniform"))


def param(dimension: Dimension, value: Value) -> Value:
    """Return what the sampler would have chosen for a dimension to have this value."""
    if dimension.kind == "quniform":
        return round(value / dimension.arguments[2])
    return float(value) if dimension.kind in ("uniform", "loguniform") else value


def _whole(rng: Stream) -> int:
    """Return a seed as numpy takes them."""
    return int(rng.random() * 2**32)


def _sampler_class(name: str) -> type[BaseSampler]:
    module, colon, attribute = name.partition(":")
    if not colon:
        classes = {each for each in optuna.samplers.__all__ if each.endswith("Sampler")}
        known = {*_NAMES, *classes - {"BaseSampler", "BaseGASampler"}}
        if name not in known:
            raise unknown("sampler", name, known)
        module, attribute = "optuna.samplers", _NAMES.get(name, name)
    try:
        found = getattr(import_module(module), attribute)
    except ImportError as error:
        raise SpecError(f"sampler {name!r} cannot be imported: {error}.") from None
    except AttributeError:
        raise SpecError(f"sampler {name!r}: {module!r} has no {attribute!r}.") from None
    if not (isinstance(found, type) and issubclass(found, BaseSampler)):
        raise SpecError(f"sampler {name!r} is none: give a subclass of optuna's BaseSampler.")
    for package in _NEEDS.get(found.__name__, ()):
        if find_spec(package) is None:
            raise SpecError(
                f"sampler {name!r} needs the package {package!r}, which is not installed: "
                f"pip install {package}."
            )
    return found


def _settled(
    name: str, made: type[BaseSampler], startup: int | None, options: dict[str, Any]
) -> dict[str, Any]:
    """Return the sampler's arguments, each of which it takes."""
    parameters = inspect.signature(made).parameters.values()
    known = [each.name for each in parameters if each.kind is not each.VAR_KEYWORD]
    if startup is not None:
        if startup < 1:
            raise SpecError(f"startup={startup} cannot be meant: give 1 or more.")
        if "n_startup_trials" not in known:
            raise SpecError(f"sampler {name!r} has no startup: leave it out.")
        options = {**options, "n_startup_trials": startup}
    for option in options:
        if option == "seed":
            raise SpecError(f"sampler {name!r}: its seed is the study's, so it takes no other.")
        if option not in known and len(known) == len(parameters):
            raise unknown(f"option of sampler {name!r}:", option, set(known) - {"seed"})
    return options
