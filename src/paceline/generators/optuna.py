"""Samplers of Optuna: TPE, Gaussian processes, CMA-ES, quasi-random points, or one of your own.

Knows how a study's log becomes questions to a sampler. Never looks at the live study: what it needs
is handed over as plain values, in the log's order, so that a sampler may think beside the loop.

A proposal depends on the log up to the question for it, the study's seed and its number, and on
nothing else: not on how long a sampler thought, nor on what came in meanwhile. So a study that was
cut and is resumed gets the same proposals as one that was not.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from optuna.samplers import BaseSampler
from optuna.trial import FixedTrial

from paceline.core.decisions import AskProposal, Cut, Entry, Go, Open
from paceline.core.errors import SpecError
from paceline.core.events import Proposed, Recalled
from paceline.core.space import Space
from paceline.core.values import loss_of
from paceline.generators.evidence import Evidence
from paceline.generators.first import First
from paceline.generators.retold import Retold
from paceline.generators.samplers import Source, param, suggested

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

    from paceline.core.values import Config, Value
    from paceline.core.views import StudyView

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
