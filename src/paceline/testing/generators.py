"""The contract of generators: what every Generator must keep, as tests to inherit.

Knows the port and the domains a space can have. Subclass the kit whose promises yours makes, give
`make`, and run pytest: `GeneratorLaws` for any, `GeneratorContract` for one that is a function of
its number, `SpaceGeneratorContract` for one that fills a space, `SeededGeneratorContract` for one
that draws by lot, `SamplerContract` for one that learns, and so is asked beside the loop.
"""

from __future__ import annotations

import math
from itertools import takewhile
from typing import TYPE_CHECKING

from paceline.core.decisions import EndCause
from paceline.core.events import Opened, Proposed
from paceline.core.space import (
    Dimension,
    Space,
    choice,
    grid,
    lograndint,
    loguniform,
    quniform,
    randint,
    uniform,
)
from paceline.core.values import Budget, Config, Status, Value
from paceline.engines.sim.cluster import Cluster, Faults
from paceline.machine.machine import Machine
from paceline.plan.settings import canonical
from paceline.testing.random_parts import ProbePolicy
from paceline.testing.simulations import (
    Adding,
    Rehearsal,
    brains_for,
    spec_for,
    table,
    unlike_replay,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from paceline.core.ports import Generator
    from paceline.core.views import StudyView

# Configs looked at. More than a Sobol block, fewer than a large grid.
MANY = 100

# Every kind of domain, plain, inside a schedule, and inside lists and dicts.
EVERY_KIND: Config = {
    "constant": "adam",
    "uniform": uniform(-1.0, 2.0),
    "loguniform": loguniform(1e-5, 0.1),
    "quniform": quniform(0.1, 0.75, 0.05),
    "randint": randint(-2, 3),
    "lograndint": lograndint(1, 300),
    "choice": choice(["relu", None, 3, 0.5]),
    "grid": grid([16, 32]),
}
NESTED: Config = {
    "lr": {"piecewise": [[0, loguniform(1e-3, 1.0)], [30, choice([0.1, 0.01])], [60, 1e-4]]},
    "net": {"widths": [choice([32, 64]), randint(1, 9), 10], "skip": choice([True, False])},
}
# Options with domains of their own, and one of these with options again.
CONDITIONAL: Config = {
    "decay": uniform(0.0, 1.0),
    "optimizer": choice(
        [
            {"kind": "sgd", "momentum": uniform(0.0, 1.0), "lr": choice([0.1, 0.01])},
            {"kind": "adam", "warm": choice([None, {"epochs": randint(1, 9)}])},
            "none",
        ]
    ),
}


class GeneratorLaws:
    """What the machine relies on, however configs are found."""

    make: Callable[..., Generator]
    # In a study of the kit: more than a sampler draws before it learns.
    trials = 24

    def generator(self) -> Generator:
        """Return the generator that the clauses ask."""
        return self.make()

    def test_every_config_can_be_written_to_a_log(self) -> None:
        for config in _configs(self.generator()):
            settled = canonical(config)
            assert settled, "a config is empty: a trial needs at least one value"
            assert canonical(settled) == settled

    def test_who_says_no_more_says_so_for_ever(self) -> None:
        generator = self.generator()
        study = _opened(generator)
        count = len(list(_configs(generator, study)))
        if count < MANY:
            later = [generator.propose(number, study) for number in range(count, count + 20)]
            assert later == [None] * 20, f"after {count} configs there were no more, and then some"

    def test_failed_trials_do_not_hold_it_up(self) -> None:
        study = self.study(self.generator()).run()
        assert study.state.end is not None, "the study stalls"
        assert study.state.end.cause is EndCause.QUIET, study.state.end.why
        assert study.state.trials, "no trial was ever opened"
        for trial in study.state.trials:
            assert trial.status in (Status.FAILED, Status.FINISHED), f"{trial.id} is left over"

    def test_a_study_with_it_replays(self) -> None:
        steps = self.study(self.generator()).run().steps
        difference = unlike_replay(steps, self.study(self.generator()).brains)
        assert not difference, difference

    def study(self, generator: Generator) -> Rehearsal:
        """Return a study in which every other attempt or so fails, for good."""
        trace = table([[0.0]], epochs=4)
        spec = spec_for(trace, retries=0, budget=Budget(trials=self.trials))
        cluster = Cluster(slots=3, proposal_s=0.3, faults=Faults(mean_life_s=6.0))
        return Rehearsal(spec, brains_for(trace, generator=generator), Adding(), cluster)


class GeneratorContract(GeneratorLaws):
    """What every pure Generator must satisfy. Subclass it, give `make`, run pytest."""

    def test_the_same_number_is_the_same_config(self) -> None:
        generator = self.generator()
        study = _opened(generator)
        first = list(_configs(generator, study))
        for number in reversed(range(len(first))):
            again = generator.propose(number, study)
            assert again == first[number], f"config {number} is another one when asked for again"

    def test_a_fresh_one_proposes_the_same_in_any_order(self) -> None:
        first = list(_configs(self.generator()))
        other = self.generator()
        study = _opened(other)
        for number in sorted(range(len(first)), key=lambda n: (n % 3, -n)):
            assert other.propose(number, study) == first[number], f"config {number} differs"

    def test_what_becomes_of_trials_does_not_change_its_configs(self) -> None:
        trials = self.study(self.generator()).run().state.trials
        assert any(trial.status is Status.FAILED for trial in trials)
        expected = _configs(self.generator(), _opened(self.generator()))
        for trial, config in zip(trials, expected, strict=False):
            assert trial.config == canonical(config), f"trial {trial.id} is not config {trial.id}"


class SpaceGeneratorLaws(GeneratorLaws):
    """What any Generator that fills a space must satisfy: `make` takes the space."""

    def generator(self) -> Generator:
        return self.make(EVERY_KIND)

    def test_it_stays_inside_every_kind_of_domain(self) -> None:
        for config in _configs(self.make(EVERY_KIND)):
            _inside(EVERY_KIND, config)

    def test_domains_inside_schedules_and_lists_are_filled(self) -> None:
        for config in _configs(self.make(NESTED)):
            _inside(NESTED, config)
            canonical(config)

    def test_domains_inside_options_are_filled_where_those_are_chosen(self) -> None:
        configs = list(_configs(self.make(CONDITIONAL)))
        read = [Space(CONDITIONAL).read(config) for config in configs]
        assert {values["optimizer"] for values in read} == {0, 1, 2}, "an option never comes"
        warm = [each["warm"] for config in configs if "warm" in (each := config["optimizer"])]
        assert any(value is None for value in warm), "an option's option never comes"
        assert any(value is not None for value in warm), "an option's option never comes"

    def test_it_works_without_a_free_dimension(self) -> None:
        fixed: Config = {"lr": 0.1, "net": {"widths": [1, 2]}}
        configs = list(_configs(self.make(fixed)))
        assert configs, "a space without a free dimension still has its one config"
        assert all(config == fixed for config in configs)

    def test_it_works_with_one_free_dimension(self) -> None:
        for name, domain in EVERY_KIND.items():
            space = {name: domain}
            configs = list(_configs(self.make(space)))
            assert configs, f"{space} has no configs"
            for config in configs:
                _inside(space, config)

    def test_one_dimension_does_not_follow_another(self) -> None:
        space = {"a": choice([0, 1, 2]), "b": choice([0, 1, 2])}
        pairs = {(config["a"], config["b"]) for config in _configs(self.make(space))}
        assert len(pairs) == 9, f"of the nine pairs of two choices only {len(pairs)} come"


class SpaceGeneratorContract(SpaceGeneratorLaws, GeneratorContract):
    """What every pure Generator that fills a space must satisfy: `make` takes the space."""


class SeededGeneratorLaws(SpaceGeneratorLaws):
    """What any Generator that draws from a space by lot must satisfy."""

    def test_different_seeds_give_different_configs(self) -> None:
        drawn = []
        for seed in range(3):
            generator = self.make(EVERY_KIND)
            drawn.append(list(_configs(generator, _opened(generator, seed))))
        assert drawn[0] != drawn[1] != drawn[2] != drawn[0], "the study's seed changes nothing"

    def test_a_seed_gives_many_different_configs(self) -> None:
        drawn = [repr(config) for config in _configs(self.make({"x": uniform(0.0, 1.0)}))]
        assert len(set(drawn)) == MANY, f"{MANY - len(set(drawn))} of {MANY} configs come again"


class SeededGeneratorContract(SeededGeneratorLaws, SpaceGeneratorContract):
    """What every pure Generator that draws by lot must satisfy."""


class SamplerContract(SeededGeneratorLaws):
    """What every Generator that learns from the log, and is not pure, must satisfy.

    A proposal is a function of the log up to the question for it, the study's seed and its number.
    """

    def test_the_same_log_gives_the_same_proposals(self) -> None:
        one, two = self.learned(), self.learned()
        assert one.steps == two.steps, "two studies that are told the same get other proposals"

    def test_a_study_that_was_cut_gets_the_same_proposals(self) -> None:
        whole = self.learned().steps
        for share in (0.2, 0.55, 0.9):
            log = whole[: int(share * len(whole))]
            again = self.learning().resume(log).steps
            assert again == whole, (
                f"cut after {len(log)} of {len(whole)} steps it goes on otherwise"
            )

    def test_what_comes_in_while_it_thinks_changes_nothing(self) -> None:
        whole = self.learned().steps
        answers = [at for at, step in enumerate(whole) if isinstance(step.event, Proposed)]
        for at in answers[3 :: len(answers) // 3]:
            event = whole[at].event
            assert isinstance(event, Proposed)
            late = self.learning()
            for step in whole[:at]:
                late.machine.fold(step)
            config = late.brains.generator.propose(event.number, late.state)
            assert config == event.config, f"asked late, proposal {event.number} is another one"

    def learned(self) -> Rehearsal:
        """Return the study after its end."""
        return self.learning().run()

    def learning(self) -> Rehearsal:
        """Return a study of trials that fail, wait and are stopped, where thinking takes time."""
        trace = table([[0.0]], epochs=9)
        spec = spec_for(trace, retries=0, seed=4, budget=Budget(trials=self.trials))
        cluster = Cluster(slots=3, proposal_s=1.3, faults=Faults(mean_life_s=20.0))
        brains = brains_for(trace, ProbePolicy(seed=1), generator=self.generator())
        return Rehearsal(spec, brains, Adding(), cluster)


def _opened(generator: Generator, seed: int = 0) -> StudyView:
    """Return a study that has just been opened with this generator."""
    trace = table([[0.0]])
    machine = Machine(brains_for(trace, generator=generator))
    machine.handle(Opened(at=0.0, spec=spec_for(trace, seed=seed)))
    return machine.state


def _configs(generator: Generator, study: StudyView | None = None) -> Iterator[Config]:
    """Yield the first configs, up to the last or a hundred."""
    view = _opened(generator) if study is None else study
    proposed = (generator.propose(number, view) for number in range(MANY))
    return takewhile(lambda config: config is not None, proposed)  # type: ignore[arg-type]


def _inside(space: Config, config: Config) -> None:
    """Fail unless the config is the space with a value of each domain in its place."""
    dimensions = Space(space).dimensions
    values = [_at(config, dimension.path) for dimension in dimensions]
    assert Space(space).config(values) == config, f"{config} has not the shape of {space}"
    for dimension, value in zip(dimensions, values, strict=True):
        assert _belongs(dimension, value), f"{dimension.name}={value!r} is outside of {dimension}"


def _at(config: Config, path: tuple[str | int, ...]) -> Value:
    place: Value = config
    for step in path:
        place = place[step]
    return place


def _belongs(dimension: Dimension, value: Value) -> bool:
    kind, arguments = dimension.kind, dimension.arguments
    if kind in ("choice", "grid"):
        return any(type(value) is type(option) and value == option for option in arguments)
    low, high = arguments[:2]
    if kind in ("randint", "lograndint"):
        return type(value) is int and low <= value < high
    if type(value) not in (int, float):
        return False
    if kind == "quniform":
        steps = value / arguments[2]
        if not math.isclose(steps, round(steps), abs_tol=1e-9):
            return False
    slack = 1e-12 * max(abs(low), abs(high))
    return bool(low - slack <= value <= high + slack)
