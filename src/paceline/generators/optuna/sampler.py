"""Samplers of Optuna: TPE, Gaussian processes, CMA-ES, quasi-random points, or one of your own.

Knows how a study's log becomes questions to a sampler. Never looks at the live study: what it needs
is handed over as plain values, in the log's order, so that a sampler may think beside the loop.

A proposal depends on the log up to the question for it, the study's seed and its number, and on
nothing else: not on how long a sampler thought, nor on what came in meanwhile. So a study that was
cut and is resumed gets the same proposals as one that was not.
"""

from __future__ import annotations

import inspect
import warnings
from collections import deque
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import optuna
from optuna.samplers import BaseSampler, GPSampler, QMCSampler, RandomSampler, TPESampler
from optuna.trial import FixedTrial

from paceline.core.decisions import AskProposal, Cut, Entry, Go, Open
from paceline.core.errors import SpecError, unknown
from paceline.core.events import Proposed, Recalled
from paceline.core.rng import stream
from paceline.core.space import CHOICES, Dimension, Space, multiples
from paceline.core.values import loss_of
from paceline.generators.initial import First
from paceline.generators.optuna.observations import Evidence
from paceline.generators.optuna.study_mirror import Retold

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import BaseTrial

    from paceline.core.rng import Stream
    from paceline.core.values import Config, Value
    from paceline.core.views import StudyView


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


# Trials are compared at an epoch that so many have reached, or one more than there are dimensions.
LEAST = 10


class Sampled:
    """Proposes what a sampler says that has learned from everything reported so far.

    `first` are configs to be tried before any other; what one of them leaves out is sampled.
    `startup` is how many trials must have something to tell before the sampler models them, and
    `options` are other arguments of the sampler.
    """

    pure = False
    sampler: str | BaseSampler

    def __init__(
        self,
        *,
        space: dict[str, Any],
        first: list[dict[str, Any]] | None = None,
        startup: int | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        self._space = Space(space)
        self._dimensions = {each.name: each for each in self._space.dimensions}
        self._first = [self._params(values) for values in First(self._space, first).values]
        self._source = Source(self.sampler, startup, options or {})
        self._evidence = Evidence(least=max(LEAST, len(self._dimensions) + 1))
        self._study = Retold()
        # What has happened since the last question, from the loop's thread to the sampler's: whom
        # to tell, and what.
        self._news: deque[tuple[Any, ...]] = deque()
        # Answers that the log has and that were not worked out here.
        self._answers: dict[int, Config] = {}
        self._configs: list[Config] = []
        self._seed = 0

    def see(self, entry: Entry, study: StudyView) -> None:
        """Hand over what the entry tells. The loop's thread: it only puts it into a queue."""
        if study.closed:
            return  # nobody will ask again
        tell, evidence = self._news.append, self._evidence
        for trial in study.delivered:
            tell((evidence.reported, trial.id, trial.loss, trial.epoch < trial.goal))
        for trial in study.departed:
            tell((evidence.ended, trial.id, trial.status))
        match entry:
            case AskProposal(number=number):
                tell((self._asked, number))
            case Proposed(number=number, config=dict() as config):
                self._answers[number] = config
                tell((self._answered, number))
            case Recalled(config=config, values=values, finished=finished):
                losses = [loss_of(value, study.spec.sign) for value in values]
                tell((self._recalled, config, losses, finished))
            case Open(trial=opened, source=None):
                tell((evidence.opened, opened))
            case Go(trial=moved):
                tell((evidence.moved, moved, True))
            case Cut(trial=moved):
                tell((evidence.moved, moved, False))

    def propose(self, number: int, study: StudyView) -> Config | None:
        """Return the config of this number, as of the question for it. The sampler's thread."""
        self._seed = study.spec.seed
        news, configs = self._news, self._configs
        while number >= len(configs) and not self._study.over:
            what, *about = news.popleft() if news else (self._ask, len(configs))
            what(*about)
        return configs[number] if number < len(configs) else None

    def _recalled(self, config: Config, losses: list[float], finished: bool) -> None:
        if not self._configs:  # later its number would be a proposal's
            self._study.add(*self._described(config))
            self._evidence.recalled(losses, finished)

    def _asked(self, number: int) -> None:
        self._evidence.asked(number)
        if number == len(self._configs):
            self._ask(number)

    def _answered(self, number: int) -> None:
        self._answers.pop(number, None)
        self._evidence.answered(number)

    def _ask(self, number: int) -> None:
        answer, evidence = self._answers.get(number), self._evidence
        if answer is not None and self._source.forgetful:
            self._study.add(*self._described(answer))
            config = answer
        else:
            try:
                config = self._drawn(number)
            except BaseException:
                self._study.stop()  # what it knows now is half of something
                raise
            if self._study.over:
                return
            if answer is not None and answer != config:
                # It draws otherwise than it did. What was trained is what it shall learn from.
                self._study.correct(number + evidence.before, *self._described(answer))
                config = answer
        self._configs.append(config)
        evidence.proposed()

    def _drawn(self, number: int) -> Config:
        evidence, study = self._evidence, self._study
        sampler = self._source.sampler(self._seed, number)
        study.retell(sampler, evidence.values(), evidence.gone())
        if study.over:
            return {}
        trial = study.begin(self._first[number] if number < len(self._first) else {})
        return self._space.fill(lambda dimension: suggested(trial, dimension))

    def _params(self, values: dict[str, Value]) -> dict[str, Value]:
        return {name: param(self._dimensions[name], value) for name, value in values.items()}

    def _described(self, config: Config) -> tuple[dict[str, Value], dict[str, BaseDistribution]]:
        """Return a config as Optuna would have it: parameters, and what they were drawn from."""
        trial = FixedTrial(self._params(self._space.read(config)))
        self._space.fill(lambda dimension: suggested(trial, dimension))
        return trial.params, trial.distributions


class Tpe(Sampled):
    """Tree-structured Parzen estimator: densities of the good and of the others."""

    sampler = "tpe"


class Gp(Sampled):
    """Gaussian process: a smooth model of the loss. For few, costly trials."""

    sampler = "gp"


class Cmaes(Sampled):
    """Covariance matrix adaptation: a cloud that moves. For numbers; choices are drawn by lot."""

    sampler = "cmaes"


class Qmc(Sampled):
    """Quasi-random points of a scrambled sequence. Learns nothing."""

    sampler = "qmc"


class Optuna(Sampled):
    """Any sampler: the name of one of Optuna's, or `package.module:Class`.

    `given` says that it was an object, which no log can hold: then its class's name stands for it,
    and whoever goes on with the study gives the object again.
    """

    def __init__(
        self,
        *,
        space: dict[str, Any],
        sampler: Any = "tpe",  # noqa: ANN401 - a name, or a sampler itself
        given: bool = False,
        first: list[dict[str, Any]] | None = None,
        startup: int | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        if not isinstance(sampler, str | BaseSampler):
            raise SpecError(f"sampler={sampler!r} is none: give a name, or a sampler of Optuna's.")
        self._missing = given and isinstance(sampler, str)
        # One whose object is missing can be looked at and replayed, but not asked.
        self.sampler = "RandomSampler" if self._missing else sampler
        self._name = sampler
        super().__init__(space=space, first=first, startup=startup, options=options)

    def propose(self, number: int, study: StudyView) -> Config | None:
        if self._missing:
            raise SpecError(
                f"this study's sampler was an object of {self._name}, which no log can hold: go on "
                "with the call that began it, generator=… and all."
            )
        return super().propose(number, study)
