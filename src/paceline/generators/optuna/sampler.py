"""Generators on Optuna's samplers: TPE, Gaussian process, CMA-ES, quasi-random, or any sampler.

Rule: before each proposal the sampler sees every trial with its newest value (`observations`), and
then suggests the parameters. TPE: Bergstra et al., NeurIPS 2011; CMA-ES: Hansen and Ostermeier,
2001. Different from Optuna: a trial has a value from its first report on, as in BOHB (Falkner et
al., ICML 2018), and every proposal has a seed of its own.

Never reads the live study: entries are queued as plain values, in the order of the log, so that a
sampler may run in another thread. A proposal depends only on the log up to its request, the study's
seed and its number, so a resumed study gets the same proposals as an uninterrupted one.
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

from paceline.core.base_part import BasePart
from paceline.core.decisions import AskProposal, Cut, Entry, Go, Open
from paceline.core.errors import SpecError, make_unknown_error
from paceline.core.events import Proposed, Recalled, Suggested
from paceline.core.rng import stream
from paceline.core.space import CHOICES, Dimension, Space, find_multiples
from paceline.core.values import to_loss
from paceline.generators.initial import InitialConfigs
from paceline.generators.optuna.growing_space import GrowingSpace
from paceline.generators.optuna.observations import Observations
from paceline.generators.optuna.study_mirror import StudyMirror
from paceline.generators.optuna.tpe_sampler import STARTUP, TpeSampler

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import BaseTrial

    from paceline.core.domains import Domain
    from paceline.core.rng import Stream
    from paceline.core.values import Config, TrialId, Value
    from paceline.core.views import StudyView


_NAMES = {"tpe": "TPESampler", "gp": "GPSampler", "cmaes": "CmaEsSampler", "qmc": "QMCSampler"}
# Packages that a sampler imports on use and that Optuna does not install.
_NEEDS = {"GPSampler": ("torch", "scipy"), "CmaEsSampler": ("cmaes",), "QMCSampler": ("scipy",)}
# Samplers that warn about every categorical dimension of a space.
_SILENT = {"CmaEsSampler", "GPSampler", "QMCSampler"}
# Samplers that store nothing in their study: on resume, proposals are read from the log. Any other
# sampler is asked again, so that its memory is rebuilt.
_STATELESS = (TPESampler, GPSampler, RandomSampler)


class GivenSpace:
    """The space of a study as a sampler sees it."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._dimensions = {each.name: each for each in space.dimensions}

    def __len__(self) -> int:
        return len(self._dimensions)

    def read_first(self, first: list[dict[str, Any]] | None) -> list[dict[str, Value]]:
        """Return initial configs as the sampler's parameters."""
        return [self._encode_params(values) for values in InitialConfigs(self._space, first).values]

    def fill(self, trial: BaseTrial) -> Config:
        """Return the config with the values that a sampler chooses."""
        return self._space.fill(lambda dimension: suggest_value(trial, dimension))

    def describe(self, config: Config) -> tuple[dict[str, Any], dict[str, BaseDistribution]]:
        """Return a config as Optuna stores it: parameters and their distributions."""
        trial = FixedTrial(self._encode_params(self._space.read(config)))
        self.fill(trial)
        return trial.params, trial.distributions

    def _encode_params(self, values: dict[str, Value]) -> dict[str, Value]:
        return {name: encode_param(self._dimensions[name], value) for name, value in values.items()}


class SamplerFactory:
    """Makes the sampler for each proposal.

    A sampler of Optuna's own is made anew for every proposal, with a seed for that number, so that
    a proposal does not depend on when it is drawn: these samplers keep their memory in the study.
    Any other class is made once, since it may keep memory in itself. A sampler object is used as it
    is.
    """

    def __init__(
        self, sampler: str | BaseSampler, startup: int | None, options: dict[str, Any]
    ) -> None:
        self._only: BaseSampler | None = None
        self._tpe: TpeSampler | None = None
        if isinstance(sampler, BaseSampler):
            if startup is not None or options:
                raise SpecError(
                    "startup and options are for samplers given by name: set them on the sampler "
                    "object itself."
                )
            self._class, self._options = type(sampler), options
            self._only = sampler
            self._is_rebuilt = False
        else:
            self._class = _find_sampler_class(sampler)
            self._options = _check_options(sampler, self._class, startup, options)
            self._is_rebuilt = self._class.__module__.startswith("optuna.")
            try:
                self._build(0, 0)
            except (TypeError, ValueError) as error:
                raise SpecError(f"sampler {sampler!r} cannot be created: {error}") from None
            if self._class is TPESampler and self._options.keys() <= {"n_startup_trials"}:
                self._tpe = TpeSampler(self._options.get("n_startup_trials", STARTUP))
        # Whether a proposal in the log may be used without asking the sampler again.
        self.is_stateless = self._is_rebuilt and issubclass(self._class, _STATELESS)

    def make_sampler(self, seed: int, number: int) -> BaseSampler:
        """Return the sampler for one proposal of a study with this seed."""
        if self._only is not None:
            return self._only
        if self._tpe is not None:
            self._tpe.set_seed(_draw_seed(stream(seed, "optuna", number)))
            return self._tpe
        made = self._build(seed, number if self._is_rebuilt else 0)
        if not self._is_rebuilt:
            self._only = made
        return made

    def _build(self, seed: int, number: int) -> BaseSampler:
        options = dict(self._options)
        own = _draw_seed(stream(seed, "optuna", number))
        if issubclass(self._class, QMCSampler):
            # All points are of one sequence; dimensions outside of it are drawn for each.
            options.setdefault("scramble", True)
            options["independent_sampler"] = RandomSampler(seed=own)
            own = _draw_seed(stream(seed, "optuna"))
        parameters = inspect.signature(self._class).parameters
        if "seed" in parameters:
            options["seed"] = own
        if self._class.__name__ in _SILENT and "warn_independent_sampling" in parameters:
            options.setdefault("warn_independent_sampling", False)
        with warnings.catch_warnings():
            # Optuna warns of experimental arguments; the user chose them.
            warnings.simplefilter("ignore")
            return self._class(**options)


def suggest_value(trial: BaseTrial, dimension: Dimension) -> Value:
    """Let the sampler choose a value: a choice by its index, `quniform` by its multiple."""
    name, kind, arguments = dimension.name, dimension.kind, dimension.arguments
    if kind in CHOICES:
        return arguments[trial.suggest_categorical(name, list(range(len(arguments))))]
    low, high = arguments[:2]
    if kind == "quniform":
        least, most = find_multiples(*arguments)
        return arguments[2] * int(trial.suggest_int(name, least, most))
    if kind in ("randint", "lograndint"):
        return int(trial.suggest_int(name, low, high - 1, log=kind == "lograndint"))
    return float(trial.suggest_float(name, low, high, log=kind == "loguniform"))


def encode_param(dimension: Dimension, value: Value) -> Value:
    """Return the parameter for which `suggest_value` gives this value."""
    if dimension.kind == "quniform":
        return round(value / dimension.arguments[2])
    return float(value) if dimension.kind in ("uniform", "loguniform") else value


def _draw_seed(rng: Stream) -> int:
    """Return a seed in numpy's range."""
    return int(rng.random() * 2**32)


def _find_sampler_class(name: str) -> type[BaseSampler]:
    module, colon, attribute = name.partition(":")
    if not colon:
        classes = {each for each in optuna.samplers.__all__ if each.endswith("Sampler")}
        known = {*_NAMES, *classes - {"BaseSampler", "BaseGASampler"}}
        if name not in known:
            raise make_unknown_error("sampler", name, known)
        module, attribute = "optuna.samplers", _NAMES.get(name, name)
    try:
        found = getattr(import_module(module), attribute)
    except ImportError as error:
        raise SpecError(f"sampler {name!r} cannot be imported: {error}.") from None
    except AttributeError:
        raise SpecError(f"sampler {name!r}: {module!r} has no {attribute!r}.") from None
    if not (isinstance(found, type) and issubclass(found, BaseSampler)):
        raise SpecError(
            f"sampler {name!r} is not an Optuna sampler: give a subclass of BaseSampler."
        )
    for package in _NEEDS.get(found.__name__, ()):
        if find_spec(package) is None:
            raise SpecError(
                f"sampler {name!r} needs the package {package!r}, which is not installed: "
                f"pip install {package}."
            )
    return found


def _check_options(
    name: str, made: type[BaseSampler], startup: int | None, options: dict[str, Any]
) -> dict[str, Any]:
    """Return the sampler's arguments, after checking that it accepts each of them."""
    parameters = inspect.signature(made).parameters.values()
    known = [each.name for each in parameters if each.kind is not each.VAR_KEYWORD]
    if startup is not None:
        if startup < 1:
            raise SpecError(f"startup={startup} is invalid: must be at least 1.")
        if "n_startup_trials" not in known:
            raise SpecError(f"sampler {name!r} has no startup phase: leave startup out.")
        options = {**options, "n_startup_trials": startup}
    for option in options:
        if option == "seed":
            raise SpecError(f"sampler {name!r} uses the study's seed: set seed=… of the study.")
        if option not in known and len(known) == len(parameters):
            raise make_unknown_error(f"option of sampler {name!r}:", option, set(known) - {"seed"})
    return options


# Trials are compared at an epoch reached by at least this many, or by one more than the space has
# dimensions.
MIN_REACHED = 10


class SamplerGenerator(BasePart):
    """Proposes the configs of a sampler that learns from everything reported so far.

    `first` holds configs to try before any other; dimensions they leave out are sampled. `startup`
    is the number of trials with a value before the sampler builds a model, and `options` are other
    arguments of the sampler.
    """

    from_study = ("space",)
    # Without a space it learns what training functions ask for.
    define_by_run = True
    pure = False
    sampler: str | BaseSampler

    def __init__(
        self,
        *,
        space: dict[str, Any] | None = None,
        first: list[dict[str, Any]] | None = None,
        startup: int | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        # Without a space, the hyperparameters that training functions ask for.
        self._space = GrowingSpace() if space is None else GivenSpace(Space(space))
        self._first = self._read_first(first)
        self._factory = SamplerFactory(self.sampler, startup, options or {})
        self._observations = Observations(max(MIN_REACHED, len(self._space) + 1))
        self._mirror = StudyMirror()
        # Calls since the last request, from the loop's thread to the sampler's.
        self._calls: deque[tuple[Any, ...]] = deque()
        # Answers that are in the log and were not computed here.
        self._answers: dict[int, Config] = {}
        self._configs: list[Config] = []
        self._seed = 0

    def see(self, entry: Entry, study: StudyView) -> None:
        """Queue the entry for the sampler's thread; called in the loop's thread."""
        if study.closed:
            return  # no further proposal will be requested
        call, observations = self._calls.append, self._observations
        for trial in study.delivered:
            call((observations.add_report, trial.id, trial.loss, trial.epoch < trial.goal))
        for trial in study.departed:
            call((observations.end_trial, trial.id, trial.status))
        match entry:
            case AskProposal(number=number):
                call((self._handle_request, number))
            case Proposed(number=number, config=dict() as config):
                self._answers[number] = config
                call((self._handle_answer, number))
            case Suggested(trial=asking, params=params, domains=domains):
                call((self._learn, asking, params, domains))
            case Recalled(values=values):
                losses = [to_loss(value, study.spec.sign) for value in values]
                call((self._add_prior, entry, losses))
            case Open(trial=opened, source=None):
                call((observations.open_trial, opened))
            case Go(trial=moved):
                call((observations.set_training, moved, True))
            case Cut(trial=moved):
                call((observations.set_training, moved, False))

    def propose(self, number: int, study: StudyView) -> Config | None:
        """Return the config of this number, as of its request; called in the sampler's thread."""
        self._seed = study.spec.seed
        calls, configs = self._calls, self._configs
        while number >= len(configs) and not self._mirror.is_exhausted:
            function, *arguments = calls.popleft() if calls else (self._add_config, len(configs))
            function(*arguments)
        return configs[number] if number < len(configs) else None

    def _read_first(self, first: list[dict[str, Any]] | None) -> list[dict[str, Value]]:
        """Return the initial configs: as the sampler's parameters if there is a space."""
        if isinstance(self._space, GrowingSpace):
            return [dict(config) for config in first or ()]
        return self._space.read_first(first)

    def _add_prior(self, prior: Recalled, losses: list[float]) -> None:
        if self._configs:
            return  # now its number would be that of a proposal
        if not isinstance(self._space, GrowingSpace):
            described = self._space.describe(prior.config)
        elif prior.domains:
            self._grow(prior.domains)
            described = self._space.describe(prior.config, prior.domains)
        else:
            return
        self._mirror.add_running(*described)
        self._observations.add_prior(losses, prior.finished)

    def _learn(self, trial: TrialId, params: Config, domains: dict[str, Domain]) -> None:
        """Show the sampler a trial with the hyperparameters that its function has used."""
        number = self._observations.find_number(trial)
        if not isinstance(self._space, GrowingSpace):
            return
        self._grow(domains)
        if number is not None:
            self._mirror.correct(number, *self._space.describe(params, domains))

    def _grow(self, domains: dict[str, Domain]) -> None:
        assert isinstance(self._space, GrowingSpace)
        self._space.learn(domains)
        self._observations.min_reached = max(MIN_REACHED, len(self._space) + 1)

    def _handle_request(self, number: int) -> None:
        self._observations.expect_answer(number)
        if number == len(self._configs):
            self._add_config(number)

    def _handle_answer(self, number: int) -> None:
        self._answers.pop(number, None)
        self._observations.accept_answer(number)

    def _add_config(self, number: int) -> None:
        answer, observations = self._answers.get(number), self._observations
        if answer is not None and self._factory.is_stateless:
            self._mirror.add_running(*self._space.describe(answer))
            config = answer
        else:
            try:
                config = self._draw(number)
            except BaseException:
                self._mirror.stop()  # the sampler's memory may be incomplete now
                raise
            if self._mirror.is_exhausted:
                return
            if answer is not None and answer != config:
                # The sampler draws another config than before the resume; it must learn from the
                # config that was trained.
                described = self._space.describe(answer)
                self._mirror.correct(number + observations.prior_count, *described)
                config = answer
        self._configs.append(config)
        observations.add_proposal()

    def _draw(self, number: int) -> Config:
        observations, mirror = self._observations, self._mirror
        sampler = self._factory.make_sampler(self._seed, number)
        mirror.update(sampler, observations.compute_values(), observations.take_ended())
        if mirror.is_exhausted:
            return {}
        given = self._first[number] if number < len(self._first) else {}
        if isinstance(self._space, GrowingSpace):
            return {**self._space.fill(mirror.ask()), **given}
        return self._space.fill(mirror.ask_with(given))


class Tpe(SamplerGenerator):
    """Tree-structured Parzen estimator: compares the density of good trials with the others'."""

    sampler = "tpe"


class Gp(SamplerGenerator):
    """Gaussian process: a smooth model of the loss, for few, expensive trials."""

    sampler = "gp"


class Cmaes(SamplerGenerator):
    """Covariance matrix adaptation (CMA-ES), for numbers; choices are drawn at random."""

    sampler = "cmaes"


class Qmc(SamplerGenerator):
    """Quasi-random points of a scrambled Sobol sequence; does not learn."""

    sampler = "qmc"


class Optuna(SamplerGenerator):
    """Any sampler: the name of one of Optuna's, or `package.module:Class`.

    `given` means that the sampler was passed as an object. The log then holds only its class name,
    and the object must be passed again to continue the study.
    """

    def __init__(
        self,
        *,
        space: dict[str, Any] | None = None,
        sampler: Any = "tpe",  # noqa: ANN401 - a name, or a sampler itself
        given: bool = False,
        first: list[dict[str, Any]] | None = None,
        startup: int | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        if not isinstance(sampler, str | BaseSampler):
            raise SpecError(f"sampler={sampler!r} is invalid: must be a name or an Optuna sampler.")
        self._missing = given and isinstance(sampler, str)
        # Without its object a sampler can be shown and replayed, but not asked.
        self.sampler = "RandomSampler" if self._missing else sampler
        self._name = sampler
        super().__init__(space=space, first=first, startup=startup, options=options)

    def propose(self, number: int, study: StudyView) -> Config | None:
        if self._missing:
            raise SpecError(
                f"this study's sampler was an object of {self._name}, which the log cannot hold: "
                "continue it with the call that started it, with generator=…."
            )
        return super().propose(number, study)
