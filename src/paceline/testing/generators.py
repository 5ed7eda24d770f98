"""The contracts of generators, as tests to inherit.

Knows the port and the domains of a space. Subclass the kit that fits, set `make`, and run pytest:
`BaseGeneratorContract` for any generator, `GeneratorContract` for a pure one, whose config depends
only on its number, `SpaceGeneratorContract` for one that fills a space, `SeededGeneratorContract`
for one that draws at random, `SamplerContract` for one that learns from results.
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
from paceline.plan.settings import canonicalize
from paceline.testing.random_parts import RandomPolicy
from paceline.testing.simulations import (
    AddingWorkload,
    SimulatedStudy,
    find_replay_difference,
    make_parts,
    make_spec,
    make_table,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from paceline.core.ports import Generator
    from paceline.core.views import StudyView

# The number of configs checked: more than a Sobol block, fewer than a large grid.
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


class BaseGeneratorContract:
    """The clauses that the machine relies on."""

    make: Callable[..., Generator]
    # Trials of the kit's studies: more than a sampler's startup trials.
    trials = 24

    def generator(self) -> Generator:
        """Return the generator under test."""
        return self.make()

    def test_every_config_can_be_written_to_a_log(self) -> None:
        for config in _list_configs(self.generator()):
            settled = canonicalize(config)
            assert settled, "a config is empty: a trial needs at least one value"
            assert canonicalize(settled) == settled

    def test_a_generator_that_ended_stays_ended(self) -> None:
        generator = self.generator()
        study = _open_study(generator)
        count = len(list(_list_configs(generator, study)))
        if count < MANY:
            later = [generator.propose(number, study) for number in range(count, count + 20)]
            assert later == [None] * 20, f"it ended after {count} configs, and then gave more"

    def test_failed_trials_do_not_stall_the_study(self) -> None:
        study = self.study(self.generator()).run()
        assert study.state.end is not None, "the study stalls"
        assert study.state.end.cause is EndCause.QUIET, study.state.end.why
        assert study.state.trials, "no trial was opened"
        for trial in study.state.trials:
            assert trial.status in (Status.FAILED, Status.FINISHED), f"{trial.id} is left over"

    def test_a_study_with_it_replays(self) -> None:
        steps = self.study(self.generator()).run().steps
        difference = find_replay_difference(steps, self.study(self.generator()).parts)
        assert not difference, difference

    def study(self, generator: Generator) -> SimulatedStudy:
        """Return a study in which about half of the attempts fail, without retries."""
        trace = make_table([[0.0]], epochs=4)
        spec = make_spec(trace, retries=0, budget=Budget(trials=self.trials))
        cluster = Cluster(slots=3, proposal_s=0.3, faults=Faults(mean_life_s=6.0))
        return SimulatedStudy(
            spec, make_parts(trace, generator=generator), AddingWorkload(), cluster
        )


class GeneratorContract(BaseGeneratorContract):
    """The contract of every pure Generator. Subclass it, set `make`, run pytest."""

    def test_the_same_number_gives_the_same_config(self) -> None:
        generator = self.generator()
        study = _open_study(generator)
        first = list(_list_configs(generator, study))
        for number in reversed(range(len(first))):
            again = generator.propose(number, study)
            assert again == first[number], f"config {number} differs when it is requested again"

    def test_a_fresh_generator_proposes_the_same_in_any_order(self) -> None:
        first = list(_list_configs(self.generator()))
        other = self.generator()
        study = _open_study(other)
        for number in sorted(range(len(first)), key=lambda n: (n % 3, -n)):
            assert other.propose(number, study) == first[number], f"config {number} differs"

    def test_results_of_trials_do_not_change_its_configs(self) -> None:
        trials = self.study(self.generator()).run().state.trials
        assert any(trial.status is Status.FAILED for trial in trials)
        expected = _list_configs(self.generator(), _open_study(self.generator()))
        for trial, config in zip(trials, expected, strict=False):
            assert trial.config == canonicalize(config), (
                f"trial {trial.id} has not config {trial.id}"
            )


class BaseSpaceGeneratorContract(BaseGeneratorContract):
    """The clauses for any Generator that fills a space; `make` takes the space."""

    def generator(self) -> Generator:
        return self.make(EVERY_KIND)

    def test_it_stays_inside_every_kind_of_domain(self) -> None:
        for config in _list_configs(self.make(EVERY_KIND)):
            _assert_inside(EVERY_KIND, config)

    def test_domains_inside_schedules_and_lists_are_filled(self) -> None:
        for config in _list_configs(self.make(NESTED)):
            _assert_inside(NESTED, config)
            canonicalize(config)

    def test_domains_inside_options_are_filled_when_the_option_is_chosen(self) -> None:
        configs = list(_list_configs(self.make(CONDITIONAL)))
        read = [Space(CONDITIONAL).read(config) for config in configs]
        assert {values["optimizer"] for values in read} == {0, 1, 2}, "an option never occurs"
        warm = [each["warm"] for config in configs if "warm" in (each := config["optimizer"])]
        assert any(value is None for value in warm), "an option's option never occurs"
        assert any(value is not None for value in warm), "an option's option never occurs"

    def test_it_works_without_a_free_dimension(self) -> None:
        fixed: Config = {"lr": 0.1, "net": {"widths": [1, 2]}}
        configs = list(_list_configs(self.make(fixed)))
        assert configs, "a space without free dimensions has one config"
        assert all(config == fixed for config in configs)

    def test_it_works_with_one_free_dimension(self) -> None:
        for name, domain in EVERY_KIND.items():
            space = {name: domain}
            configs = list(_list_configs(self.make(space)))
            assert configs, f"{space} has no configs"
            for config in configs:
                _assert_inside(space, config)

    def test_dimensions_vary_independently(self) -> None:
        space = {"a": choice([0, 1, 2]), "b": choice([0, 1, 2])}
        pairs = {(config["a"], config["b"]) for config in _list_configs(self.make(space))}
        assert len(pairs) == 9, f"only {len(pairs)} of the nine pairs of two choices occur"


class SpaceGeneratorContract(BaseSpaceGeneratorContract, GeneratorContract):
    """The contract of every pure Generator that fills a space; `make` takes the space."""


class BaseSeededGeneratorContract(BaseSpaceGeneratorContract):
    """The clauses for any Generator that draws from a space at random."""

    def test_different_seeds_give_different_configs(self) -> None:
        drawn = []
        for seed in range(3):
            generator = self.make(EVERY_KIND)
            drawn.append(list(_list_configs(generator, _open_study(generator, seed))))
        assert drawn[0] != drawn[1] != drawn[2] != drawn[0], "the study's seed changes nothing"

    def test_a_seed_gives_many_different_configs(self) -> None:
        drawn = [repr(config) for config in _list_configs(self.make({"x": uniform(0.0, 1.0)}))]
        assert len(set(drawn)) == MANY, f"{MANY - len(set(drawn))} of {MANY} configs are repeated"


class SeededGeneratorContract(BaseSeededGeneratorContract, SpaceGeneratorContract):
    """The contract of every pure Generator that draws at random."""


class SamplerContract(BaseSeededGeneratorContract):
    """The contract of every Generator that learns from the log and is not pure.

    A proposal is a function of the log up to its request, the study's seed and its number.
    """

    def test_the_same_log_gives_the_same_proposals(self) -> None:
        one, two = self.run_learning_study(), self.run_learning_study()
        assert one.steps == two.steps, "two equal studies get different proposals"

    def test_a_resumed_study_gets_the_same_proposals(self) -> None:
        whole = self.run_learning_study().steps
        for share in (0.2, 0.55, 0.9):
            log = whole[: int(share * len(whole))]
            again = self.make_learning_study().resume(log).steps
            assert again == whole, (
                f"resumed after {len(log)} of {len(whole)} steps, it makes other proposals"
            )

    def test_events_after_the_request_do_not_change_the_proposal(self) -> None:
        whole = self.run_learning_study().steps
        answers = [at for at, step in enumerate(whole) if isinstance(step.event, Proposed)]
        for at in answers[3 :: len(answers) // 3]:
            event = whole[at].event
            assert isinstance(event, Proposed)
            late = self.make_learning_study()
            for step in whole[:at]:
                late.machine.fold(step)
            config = late.parts.generator.propose(event.number, late.state)
            assert config == event.config, f"computed late, proposal {event.number} differs"

    def run_learning_study(self) -> SimulatedStudy:
        """Return the finished study."""
        return self.make_learning_study().run()

    def make_learning_study(self) -> SimulatedStudy:
        """Return a study of trials that fail, pause and stop, with slow proposals."""
        trace = make_table([[0.0]], epochs=9)
        spec = make_spec(trace, retries=0, seed=4, budget=Budget(trials=self.trials))
        cluster = Cluster(slots=3, proposal_s=1.3, faults=Faults(mean_life_s=20.0))
        parts = make_parts(trace, RandomPolicy(seed=1), generator=self.generator())
        return SimulatedStudy(spec, parts, AddingWorkload(), cluster)


def _open_study(generator: Generator, seed: int = 0) -> StudyView:
    """Return a study that has just been opened with this generator."""
    trace = make_table([[0.0]])
    machine = Machine(make_parts(trace, generator=generator))
    machine.handle(Opened(at=0.0, spec=make_spec(trace, seed=seed)))
    return machine.state


def _list_configs(generator: Generator, study: StudyView | None = None) -> Iterator[Config]:
    """Yield the first configs, at most a hundred."""
    view = _open_study(generator) if study is None else study
    proposed = (generator.propose(number, view) for number in range(MANY))
    return takewhile(lambda config: config is not None, proposed)  # type: ignore[arg-type]


def _assert_inside(space: Config, config: Config) -> None:
    """Fail unless the config is the space with each domain replaced by one of its values."""
    dimensions = Space(space).dimensions
    values = [_get_at(config, dimension.path) for dimension in dimensions]
    assert Space(space).config(values) == config, f"{config} does not have the shape of {space}"
    for dimension, value in zip(dimensions, values, strict=True):
        assert _is_in_domain(dimension, value), (
            f"{dimension.name}={value!r} is outside of {dimension}"
        )


def _get_at(config: Config, path: tuple[str | int, ...]) -> Value:
    place: Value = config
    for step in path:
        place = place[step]
    return place


def _is_in_domain(dimension: Dimension, value: Value) -> bool:
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
