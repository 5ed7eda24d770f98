"""Generators on Optuna's samplers: observations, proposals, resume, and errors."""

from __future__ import annotations

import math
import threading
from statistics import median
from typing import TYPE_CHECKING, Any

import optuna
import pytest
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import TrialState
from waiting import LIMIT_S

import paceline as pl
from paceline.api.registry import build_part, build_parts
from paceline.core.decisions import AskProposal
from paceline.core.events import Opened, Proposed, Reported
from paceline.core.ports import Outcome
from paceline.core.values import Budget, Part, Status
from paceline.engines.sim.cluster import Cluster
from paceline.generators.optuna.observations import Observations
from paceline.generators.optuna.sampler import Optuna
from paceline.generators.random import Random
from paceline.machine.replay import replay
from paceline.testing.generators import CONDITIONAL, EVERY_KIND, SamplerContract
from paceline.testing.simulations import SimulatedStudy, make_parts, make_spec, make_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from optuna.distributions import BaseDistribution
    from optuna.study import Study
    from optuna.trial import FrozenTrial

    from paceline.core.decisions import Step
    from paceline.core.ports import Generator
    from paceline.core.values import Config
    from paceline.machine.state import StudyState

LINE: Config = {"x": pl.uniform(0.0, 1.0)}
SQUARE: Config = {"x": pl.uniform(0.0, 1.0), "y": pl.uniform(0.0, 1.0)}


class Bowl:
    """A loss with one minimum, the same in every epoch."""

    metric = "loss"

    def begin(self, config: Config) -> object:
        return 0

    def setup_s(self, state: object) -> float | None:
        return None

    def advance(self, state: object, setting: Config) -> Outcome:
        numbers = [value for value in setting.values() if isinstance(value, float)]
        return Outcome({"loss": sum((x - 0.3) ** 2 for x in numbers)}, 1.0, state)


def make_study(
    generator: Generator, *, trials: int = 12, slots: int = 2, seed: int = 0
) -> SimulatedStudy:
    """Return a simulated study of the bowl, not run yet."""
    trace = make_table([[0.0]], epochs=2)
    spec = make_spec(trace, seed=seed, budget=Budget(trials=trials))
    cluster = Cluster(slots=slots, proposal_s=0.5)
    return SimulatedStudy(spec, make_parts(trace, generator=generator), Bowl(), cluster)


def build(name: str, space: Config = SQUARE, **params: Any) -> Any:  # noqa: ANN401
    return build_part("generator", Part(name, {"space": space, **params}))


def list_configs(generator: Generator, count: int) -> list[Config | None]:
    study = make_study(generator)
    study.machine.handle(Opened(at=0.0, spec=study.spec))
    return [generator.propose(number, study.state) for number in range(count)]


class UserSampler(BaseSampler):
    """A user's sampler: draws independently, and calls `before` at each draw."""

    def __init__(self, seed: int = 0) -> None:
        self.draws = RandomSampler(seed=seed)

    def before(self, study: Study, number: int) -> None: ...

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, Any]:
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, Any]
    ) -> dict[str, Any]:
        return {}

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:  # noqa: ANN401
        self.before(study, trial.number)
        return self.draws.sample_independent(study, trial, param_name, param_distribution)


class TestUserSampler(SamplerContract):
    make = staticmethod(
        lambda space: build("optuna", space, sampler="test_optuna_samplers:UserSampler")
    )


class RecordingSampler(UserSampler):
    """Records the trials it sees."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.shown: list[list[FrozenTrial]] = []
        self.ended: list[int] = []

    def before(self, study: Study, number: int) -> None:
        self.shown.append([each for each in study.trials if each.number != number])

    def after_trial(
        self,
        study: Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        assert study.best_trial.value is not None
        self.ended.append(trial.number)


# Observations


def compute_values_of(
    observations: Observations, *trials: tuple[list[float], Status | None]
) -> list[float | None]:
    """Add trials with these losses, which ended with a status or are paused; return the values."""
    for number, (losses, how) in enumerate(trials):
        observations.add_proposal()
        observations.expect_answer(number)
        observations.accept_answer(number)
        observations.open_trial(number)
        for loss in losses:
            observations.add_report(number, loss, is_training=False)
        if how is not None:
            observations.end_trial(number, how)
    return observations.compute_values()


def test_trials_are_compared_at_the_last_epoch_that_enough_have_reached() -> None:
    values = compute_values_of(
        Observations(min_reached=2), ([5.0, 4.0, 1.0], None), ([6.0, 3.0], None), ([2.0, 7.0], None)
    )
    assert values == [4.0, 3.0, 2.0]


def test_a_paused_or_stopped_trial_ranks_behind_trials_that_got_further() -> None:
    values = compute_values_of(
        Observations(min_reached=2),
        ([5.0, 4.0], None),
        ([6.0, 3.0], None),
        ([0.1], None),
        ([9.0], Status.STOPPED),
    )
    assert values == [4.0, 3.0, 5.0, 6.0]


def test_a_failed_trial_ranks_last_and_a_trial_without_reports_has_no_value() -> None:
    values = compute_values_of(
        Observations(min_reached=2),
        ([5.0], None),
        ([4.0], None),
        ([1.0], Status.FAILED),
        ([math.inf], Status.STOPPED),
        ([], Status.STOPPED),
    )
    assert values[:2] == [5.0, 4.0]
    assert values[2:4] == [6.0, 7.0]
    assert values[4] is not None
    assert math.isnan(values[4])


def test_a_trial_that_finished_early_counts_at_every_later_epoch() -> None:
    values = compute_values_of(
        Observations(min_reached=2),
        ([3.0], Status.FINISHED),
        ([9.0, 8.0, 7.0], None),
        ([9.0], None),
    )
    assert values == [3.0, 7.0, 11.0]


def test_a_running_trial_has_no_value_yet() -> None:
    observations = Observations(min_reached=1)
    assert compute_values_of(observations, ([3.0], None), ([3.0, 2.0], None)) == [3.0, 2.0]
    observations.set_training(0, is_training=True)
    assert observations.compute_values() == [None, 2.0]


# Proposals


@pytest.mark.parametrize("name", ["tpe", "cmaes"])
def test_a_sampler_that_learns_beats_random_search_by_far(name: str) -> None:
    space = {f"x{number}": pl.uniform(-1.0, 2.0) for number in range(3)}

    def best(generator: Callable[[], Generator]) -> float:
        return median(
            make_study(generator(), trials=60, seed=seed).run().state.best_loss for seed in range(5)
        )

    assert best(lambda: build(name, space)) < best(lambda: Random(space=space)) / 3


def test_a_sampler_sees_running_trials() -> None:
    sampler = RecordingSampler()
    study = make_study(Optuna(space=LINE, sampler=sampler, given=True), slots=3).run()
    asked = [sum(isinstance(each, AskProposal) for each in s.decisions) for s in study.steps]
    assert max(asked) == 3
    first, second, third, *_ = sampler.shown
    assert (len(first), len(second), len(third)) == (0, 1, 2)
    assert [each.state for each in third] == [TrialState.RUNNING] * 2
    running = [trial.config["x"] for trial in study.state.trials[:2]]
    assert [each.params["x"] for each in third] == pytest.approx(running)


def test_tpe_avoids_running_trials() -> None:
    whole = make_study(build("tpe"), trials=40).run().steps
    ask = AskProposal(number=20, why="a free slot wants a new trial")
    log = whole[: 1 + next(at for at, step in enumerate(whole) if ask in step.decisions)]

    def beside(running: Config) -> Config | None:
        """Return the 21st proposal while this config is still running as the 20th."""
        study = make_study(build("tpe"), trials=40)
        for step in log:
            study.machine.fold(step)
        study.machine.handle(Proposed(at=study.state.now, number=20, config=running))
        return study.parts.generator.propose(21, study.state)

    far = {"x": 0.9, "y": 0.9}
    alone = beside(far)
    assert alone is not None
    assert beside(far) == alone
    assert beside(alone) != alone, "a running config is proposed again"


def test_after_trial_is_called_once_for_each_ended_trial() -> None:
    sampler = RecordingSampler()
    make_study(Optuna(space=LINE, sampler=sampler, given=True)).run()
    assert sampler.ended == sorted(set(sampler.ended))
    assert len(sampler.ended) >= 8
    last = [each for each in sampler.shown[-1] if each.state is TrialState.COMPLETE]
    losses = [(each.params["x"] - 0.3) ** 2 for each in last]
    assert [each.value for each in last] == pytest.approx(losses)


def test_a_sampler_that_draws_differently_on_resume_learns_from_the_trained_configs() -> None:
    whole = make_study(Optuna(space=LINE, sampler=RecordingSampler(seed=1), given=True)).run()
    cut = whole.steps[: len(whole.steps) // 2]
    answers = [step.event for step in cut if isinstance(step.event, Proposed)]
    sampler = RecordingSampler(seed=2)
    make_study(Optuna(space=LINE, sampler=sampler, given=True)).resume(cut)
    shown = [each.params["x"] for each in sampler.shown[-1][: len(answers)]]
    assert shown == [answer.config["x"] for answer in answers if answer.config is not None]


def test_an_exhausted_sampler_ends_the_study() -> None:
    space = {"a": pl.choice([1, 2]), "b": pl.choice(["x", "y", "z"])}
    study = make_study(build("optuna", space, sampler="BruteForceSampler"), trials=50).run()
    assert study.state.end is not None
    assert "nothing is left to run" in study.state.end.why
    tried = {(trial.config["a"], trial.config["b"]) for trial in study.state.trials}
    assert len(tried) == 6
    assert len(study.state.trials) < 12


# Initial configs


@pytest.mark.parametrize("name", ["tpe", "gp", "cmaes", "qmc", "random", "sobol", "grid"])
def test_initial_configs_come_first(name: str) -> None:
    first = [{"x": 0.25, "y": 0.75}, {"x": 1.0, "y": 0.0}]
    found = list_configs(build(name, SQUARE, first=first), 4)
    assert found[:2] == first
    assert found[2] not in first


@pytest.mark.parametrize("name", ["tpe", "random", "sobol"])
def test_dimensions_that_initial_configs_leave_out_are_drawn(name: str) -> None:
    first = [{"decay": 0.5, "optimizer": {"kind": "sgd", "lr": 0.01}}, {"optimizer": "none"}]
    one, two = list_configs(build(name, CONDITIONAL, first=first), 2)
    assert one is not None
    assert two is not None
    assert one["decay"] == 0.5
    assert one["optimizer"]["lr"] == 0.01
    assert 0.0 <= one["optimizer"]["momentum"] <= 1.0
    assert two["optimizer"] == "none"
    assert 0.0 <= two["decay"] <= 1.0


@pytest.mark.parametrize("name", ["tpe", "random", "sobol", "grid"])
def test_an_initial_config_outside_of_the_space_is_refused(name: str) -> None:
    with pytest.raises(pl.SpecError, match=r"first\[1\]: x=7 is outside of uniform"):
        build(name, LINE, first=[{"x": 0.5}, {"x": 7}])


def test_a_grid_needs_complete_initial_configs() -> None:
    with pytest.raises(pl.SpecError, match=r"first\[0\]"):
        build("grid", SQUARE, first=[{"x": 0.5}])


def test_an_initial_config_may_hold_any_kind_of_value() -> None:
    whole = list_configs(Random(space=EVERY_KIND), 1)[0]
    assert list_configs(build("tpe", EVERY_KIND, first=[whole]), 1) == [whole]


# Names and arguments


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"sampler": "tep"}, "unknown sampler 'tep': did you mean 'tpe'"),
        ({"sampler": "no.such:Sampler"}, "cannot be imported"),
        ({"sampler": "optuna.samplers:Nobody"}, "has no 'Nobody'"),
        ({"sampler": "test_optuna_samplers:Bowl"}, "is not an Optuna sampler: give a subclass"),
        ({"sampler": 7}, "sampler=7 is invalid"),
        ({"options": {"multivarate": True}}, "did you mean 'multivariate'"),
        ({"options": {"seed": 1}}, "uses the study's seed"),
        ({"options": {"group": True, "multivariate": False}}, "cannot be created"),
        ({"startup": 0}, "startup=0 is invalid"),
        ({"sampler": "qmc", "startup": 3}, "has no startup"),
        (
            {"sampler": RandomSampler(), "given": True, "startup": 3},
            "set them on the sampler object",
        ),
    ],
)
def test_an_invalid_sampler_is_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(pl.SpecError, match=message):
        build("optuna", SQUARE, **params)


def test_a_missing_package_of_a_sampler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.generators.optuna.sampler.find_spec", lambda name: None)
    with pytest.raises(pl.SpecError, match="needs the package 'cmaes', which is not installed"):
        build("cmaes")


def test_a_sampler_prints_nothing_and_keeps_optunas_verbosity(
    capfd: pytest.CaptureFixture[str],
) -> None:
    before = optuna.logging.get_verbosity()
    make_study(build("tpe", startup=2, options={"group": True, "multivariate": True})).run()
    assert optuna.logging.get_verbosity() == before
    assert capfd.readouterr() == ("", "")


# Live studies


def trains(trial: Any) -> None:  # noqa: ANN401
    for _ in trial.epochs():
        trial.report(loss=(trial["x"] - 0.3) ** 2)


def options(**changes: Any) -> Any:  # noqa: ANN401
    defaults: dict[str, Any] = {
        "space": LINE,
        "metric": "loss",
        "mode": "min",
        "epochs": 3,
        "policy": "fifo",
        "trials": 6,
        "slots": 2,
    }
    return {**defaults, **changes}


def test_the_default_generator_is_tpe() -> None:
    study = pl.Study(trains, **options(first=[{"x": 0.31}]))
    assert study.spec.generator == Part("tpe", {"space": LINE, "first": [{"x": 0.31}]})
    result = study.run()
    assert len(result.trials) == 6
    assert result.trials[0].config == {"x": 0.31}


class Slow(UserSampler):
    """Blocks in its second proposal until the event is set."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()
        self.in_time = False

    def before(self, study: Study, number: int) -> None:
        if number == 1:
            self.in_time = self.go_on.wait(LIMIT_S)


def test_a_slow_sampler_does_not_delay_reports() -> None:
    sampler = Slow()
    reports: list[int] = []

    def watch(state: StudyState, steps: Sequence[Step]) -> None:
        reports.extend(step.event.epoch for step in steps if isinstance(step.event, Reported))
        if reports[:3] == [1, 2, 3]:
            sampler.go_on.set()

    result = pl.Study(trains, **options(generator=sampler)).run(watch)
    assert sampler.in_time
    assert len(result.trials) == 6


class DriverKilled(Exception):
    """Ends a driver in a test."""


def test_an_unanswered_request_is_repeated_on_resume(tmp_path: Path) -> None:
    defaults = options(name="s", store=str(tmp_path / "runs.db"))
    sampler = Slow()

    def watch(state: StudyState, steps: Sequence[Step]) -> None:
        if state.trials and state.trials[0].epoch == 3:
            raise DriverKilled

    with pytest.raises(DriverKilled):
        pl.Study(trains, **defaults, generator=sampler).run(watch)
    sampler.go_on.set()
    again = Slow()
    again.go_on.set()
    result = pl.tune(trains, **defaults, generator=again)
    assert len(result.trials) == 6
    assert [len(trial.values) for trial in result.trials] == [3] * 6


class Fails(UserSampler):
    """Fails at one of its proposals."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def before(self, study: Study, number: int) -> None:
        if number == self.at:
            raise ZeroDivisionError("no such luck")


def test_a_sampler_that_fails_ends_the_study_and_keeps_its_results() -> None:
    result = pl.tune(trains, **options(generator=Fails(at=3)))
    assert [len(trial.values) for trial in result.trials] == [3] * 3
    assert result.best is not None
    assert result.why == (
        "no more trials after 3: the generator failed: ZeroDivisionError: no such luck"
    )


def test_a_sampler_that_fails_at_its_first_proposal_raises_one_sentence() -> None:
    with pytest.raises(pl.StudyFailed, match="the generator failed: ZeroDivisionError: no such"):
        pl.tune(trains, **options(generator=Fails(at=0)))


def test_a_sampler_may_be_an_object_and_the_log_records_it() -> None:
    result = pl.tune(trains, **options(generator=TPESampler(seed=3, n_startup_trials=2)))
    opened = result.log[0].event
    assert isinstance(opened, Opened)
    assert opened.spec.generator.name == "optuna"
    sampler = opened.spec.generator.params["sampler"]
    assert sampler.partition(":")[2] == "TPESampler"
    assert opened.spec.generator.params["given"] is True
    parts = build_parts(opened.spec)
    assert replay(result.log, parts) is None
    with pytest.raises(
        pl.SpecError, match=r"was an object of .*TPESampler, which the log cannot hold"
    ):
        parts.generator.propose(6, None)  # type: ignore[arg-type]


def test_an_object_that_is_not_a_sampler_is_refused() -> None:
    with pytest.raises(pl.SpecError, match="generator=7 is invalid: must be a name"):
        pl.Study(trains, **options(generator=7))
