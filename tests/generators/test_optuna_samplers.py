"""Samplers of Optuna: what they learn from, who asks them, and what becomes of their mistakes."""

from __future__ import annotations

import math
import threading
from statistics import median
from typing import TYPE_CHECKING, Any

import optuna
import pytest
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import TrialState

import paceline as pl
from paceline.api.registry import brains_of, build
from paceline.core.decisions import AskProposal
from paceline.core.events import Opened, Proposed, Reported
from paceline.core.ports import Outcome
from paceline.core.values import Budget, Part, Status
from paceline.engines.sim.cluster import Cluster
from paceline.generators.optuna.observations import Evidence
from paceline.generators.optuna.sampler import Optuna
from paceline.generators.random import Random
from paceline.machine.replay import replay
from paceline.testing.generators import CONDITIONAL, EVERY_KIND, SamplerContract
from paceline.testing.simulations import Rehearsal, brains_for, spec_for, table

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
    """A loss that is lowest in one place, and the same in every epoch."""

    metric = "loss"

    def begin(self, config: Config) -> object:
        return 0

    def setup_s(self, state: object) -> float | None:
        return None

    def advance(self, state: object, setting: Config) -> Outcome:
        numbers = [value for value in setting.values() if isinstance(value, float)]
        return Outcome({"loss": sum((x - 0.3) ** 2 for x in numbers)}, 1.0, state)


def tuned(generator: Generator, *, trials: int = 12, slots: int = 2, seed: int = 0) -> Rehearsal:
    """Return a simulated study of the bowl, not run yet."""
    trace = table([[0.0]], epochs=2)
    spec = spec_for(trace, seed=seed, budget=Budget(trials=trials))
    cluster = Cluster(slots=slots, proposal_s=0.5)
    return Rehearsal(spec, brains_for(trace, generator=generator), Bowl(), cluster)


def made(name: str, space: Config = SQUARE, **params: Any) -> Any:  # noqa: ANN401
    return build("generator", Part(name, {"space": space, **params}))


def configs_of(generator: Generator, count: int) -> list[Config | None]:
    study = tuned(generator)
    study.machine.handle(Opened(at=0.0, spec=study.spec))
    return [generator.propose(number, study.state) for number in range(count)]


class Own(BaseSampler):
    """A sampler of somebody's own: draws independently, and does something before each draw."""

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


class TestOwnSampler(SamplerContract):
    make = staticmethod(lambda space: made("optuna", space, sampler="test_optuna_samplers:Own"))


class Watches(Own):
    """Writes down which trials it was shown."""

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


# What it learns from


def story(evidence: Evidence, *trials: tuple[list[float], Status | None]) -> list[float | None]:
    """Tell of trials with these losses, which ended so, or wait, and return their values."""
    for number, (losses, how) in enumerate(trials):
        evidence.proposed()
        evidence.asked(number)
        evidence.answered(number)
        evidence.opened(number)
        for loss in losses:
            evidence.reported(number, loss, working=False)
        if how is not None:
            evidence.ended(number, how)
    return evidence.values()


def test_trials_are_compared_at_the_last_epoch_that_enough_have_reached() -> None:
    values = story(
        Evidence(least=2), ([5.0, 4.0, 1.0], None), ([6.0, 3.0], None), ([2.0, 7.0], None)
    )
    assert values == [4.0, 3.0, 2.0]


def test_who_waits_or_was_stopped_early_comes_after_those_who_got_further() -> None:
    values = story(
        Evidence(least=2),
        ([5.0, 4.0], None),
        ([6.0, 3.0], None),
        ([0.1], None),
        ([9.0], Status.STOPPED),
    )
    assert values == [4.0, 3.0, 5.0, 6.0]


def test_who_failed_comes_last_and_who_never_reported_says_nothing() -> None:
    values = story(
        Evidence(least=2),
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


def test_who_finished_early_counts_at_every_later_epoch() -> None:
    values = story(
        Evidence(least=2), ([3.0], Status.FINISHED), ([9.0, 8.0, 7.0], None), ([9.0], None)
    )
    assert values == [3.0, 7.0, 11.0]


def test_who_is_still_training_is_not_known_yet() -> None:
    evidence = Evidence(least=1)
    assert story(evidence, ([3.0], None), ([3.0, 2.0], None)) == [3.0, 2.0]
    evidence.moved(0, working=True)
    assert evidence.values() == [None, 2.0]


# Who asks them


@pytest.mark.parametrize("name", ["tpe", "cmaes"])
def test_a_sampler_that_learns_beats_lots_by_far(name: str) -> None:
    space = {f"x{number}": pl.uniform(-1.0, 2.0) for number in range(3)}

    def best(generator: Callable[[], Generator]) -> float:
        return median(
            tuned(generator(), trials=60, seed=seed).run().state.best_loss for seed in range(5)
        )

    assert best(lambda: made(name, space)) < best(lambda: Random(space=space)) / 3


def test_a_sampler_is_shown_what_still_runs() -> None:
    sampler = Watches()
    study = tuned(Optuna(space=LINE, sampler=sampler, given=True), slots=3).run()
    asked = [sum(isinstance(each, AskProposal) for each in s.decisions) for s in study.steps]
    assert max(asked) == 3
    first, second, third, *_ = sampler.shown
    assert (len(first), len(second), len(third)) == (0, 1, 2)
    assert [each.state for each in third] == [TrialState.RUNNING] * 2
    running = [trial.config["x"] for trial in study.state.trials[:2]]
    assert [each.params["x"] for each in third] == pytest.approx(running)


def test_tpe_minds_what_still_runs() -> None:
    whole = tuned(made("tpe"), trials=40).run().steps
    ask = AskProposal(number=20, why="a free slot wants a new trial")
    log = whole[: 1 + next(at for at, step in enumerate(whole) if ask in step.decisions)]

    def beside(running: Config) -> Config | None:
        """Return the 21st proposal, where the 20th was this one and is still running."""
        study = tuned(made("tpe"), trials=40)
        for step in log:
            study.machine.fold(step)
        study.machine.handle(Proposed(at=study.state.now, number=20, config=running))
        return study.brains.generator.propose(21, study.state)

    far = {"x": 0.9, "y": 0.9}
    alone = beside(far)
    assert alone is not None
    assert beside(far) == alone
    assert beside(alone) != alone, "what runs already is proposed again"


def test_a_sampler_hears_of_each_trial_that_ended_once() -> None:
    sampler = Watches()
    tuned(Optuna(space=LINE, sampler=sampler, given=True)).run()
    assert sampler.ended == sorted(set(sampler.ended))
    assert len(sampler.ended) >= 8
    last = [each for each in sampler.shown[-1] if each.state is TrialState.COMPLETE]
    losses = [(each.params["x"] - 0.3) ** 2 for each in last]
    assert [each.value for each in last] == pytest.approx(losses)


def test_a_sampler_that_draws_otherwise_on_resume_learns_from_what_was_trained() -> None:
    whole = tuned(Optuna(space=LINE, sampler=Watches(seed=1), given=True)).run()
    cut = whole.steps[: len(whole.steps) // 2]
    answers = [step.event for step in cut if isinstance(step.event, Proposed)]
    sampler = Watches(seed=2)
    tuned(Optuna(space=LINE, sampler=sampler, given=True)).resume(cut)
    shown = [each.params["x"] for each in sampler.shown[-1][: len(answers)]]
    assert shown == [answer.config["x"] for answer in answers if answer.config is not None]


def test_a_sampler_that_has_no_more_ends_the_study() -> None:
    space = {"a": pl.choice([1, 2]), "b": pl.choice(["x", "y", "z"])}
    study = tuned(made("optuna", space, sampler="BruteForceSampler"), trials=50).run()
    assert study.state.end is not None
    assert "nothing is left to run" in study.state.end.why
    tried = {(trial.config["a"], trial.config["b"]) for trial in study.state.trials}
    assert len(tried) == 6
    assert len(study.state.trials) < 12


# What comes first


@pytest.mark.parametrize("name", ["tpe", "gp", "cmaes", "qmc", "random", "sobol", "grid"])
def test_what_is_given_first_comes_first(name: str) -> None:
    first = [{"x": 0.25, "y": 0.75}, {"x": 1.0, "y": 0.0}]
    found = configs_of(made(name, SQUARE, first=first), 4)
    assert found[:2] == first
    assert found[2] not in first


@pytest.mark.parametrize("name", ["tpe", "random", "sobol"])
def test_what_the_first_leave_out_is_drawn(name: str) -> None:
    first = [{"decay": 0.5, "optimizer": {"kind": "sgd", "lr": 0.01}}, {"optimizer": "none"}]
    one, two = configs_of(made(name, CONDITIONAL, first=first), 2)
    assert one is not None
    assert two is not None
    assert one["decay"] == 0.5
    assert one["optimizer"]["lr"] == 0.01
    assert 0.0 <= one["optimizer"]["momentum"] <= 1.0
    assert two["optimizer"] == "none"
    assert 0.0 <= two["decay"] <= 1.0


@pytest.mark.parametrize("name", ["tpe", "random", "sobol", "grid"])
def test_a_first_config_outside_of_the_space_is_refused(name: str) -> None:
    with pytest.raises(pl.SpecError, match=r"first\[1\]: x=7 is outside of uniform"):
        made(name, LINE, first=[{"x": 0.5}, {"x": 7}])


def test_a_grid_needs_its_first_configs_whole() -> None:
    with pytest.raises(pl.SpecError, match=r"first\[0\]"):
        made("grid", SQUARE, first=[{"x": 0.5}])


def test_a_first_config_may_hold_any_kind_of_value() -> None:
    whole = configs_of(Random(space=EVERY_KIND), 1)[0]
    assert configs_of(made("tpe", EVERY_KIND, first=[whole]), 1) == [whole]


# How they are named


@pytest.mark.parametrize(
    ("params", "complaint"),
    [
        ({"sampler": "tep"}, "unknown sampler 'tep': did you mean 'tpe'"),
        ({"sampler": "no.such:Sampler"}, "cannot be imported"),
        ({"sampler": "optuna.samplers:Nobody"}, "has no 'Nobody'"),
        ({"sampler": "test_optuna_samplers:Bowl"}, "is none: give a subclass"),
        ({"sampler": 7}, "sampler=7 is none"),
        ({"options": {"multivarate": True}}, "did you mean 'multivariate'"),
        ({"options": {"seed": 1}}, "its seed is the study's"),
        ({"options": {"group": True, "multivariate": False}}, "cannot be made"),
        ({"startup": 0}, "startup=0 cannot be meant"),
        ({"sampler": "qmc", "startup": 3}, "has no startup"),
        ({"sampler": RandomSampler(), "given": True, "startup": 3}, "has its options"),
    ],
)
def test_a_sampler_that_cannot_be_meant_is_refused(params: dict[str, Any], complaint: str) -> None:
    with pytest.raises(pl.SpecError, match=complaint):
        made("optuna", SQUARE, **params)


def test_a_sampler_whose_package_is_missing_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.generators.optuna.sampler.find_spec", lambda name: None)
    with pytest.raises(pl.SpecError, match="needs the package 'cmaes', which is not installed"):
        made("cmaes")


def test_making_one_says_nothing_and_leaves_optuna_as_loud_as_it_was(
    capfd: pytest.CaptureFixture[str],
) -> None:
    before = optuna.logging.get_verbosity()
    tuned(made("tpe", startup=2, options={"group": True, "multivariate": True})).run()
    assert optuna.logging.get_verbosity() == before
    assert capfd.readouterr() == ("", "")


# On this machine


def trains(trial: Any) -> None:  # noqa: ANN401
    for _ in trial.epochs():
        trial.report(loss=(trial["x"] - 0.3) ** 2)


def options(**changes: Any) -> Any:  # noqa: ANN401
    told: dict[str, Any] = {
        "space": LINE,
        "metric": "loss",
        "mode": "min",
        "epochs": 3,
        "policy": "fifo",
        "trials": 6,
        "slots": 2,
    }
    return {**told, **changes}


def test_a_study_that_names_no_generator_is_sampled_by_tpe() -> None:
    study = pl.Study(trains, **options(first=[{"x": 0.31}]))
    assert study.spec.generator == Part("tpe", {"space": LINE, "first": [{"x": 0.31}]})
    result = study.run()
    assert len(result.trials) == 6
    assert result.trials[0].config == {"x": 0.31}


class Slow(Own):
    """Thinks about its second proposal until it is told to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()
        self.in_time = False

    def before(self, study: Study, number: int) -> None:
        if number == 1:
            self.in_time = self.go_on.wait(60)


def test_a_slow_sampler_holds_up_no_report() -> None:
    sampler = Slow()
    reports: list[int] = []

    def watch(state: StudyState, steps: Sequence[Step]) -> None:
        reports.extend(step.event.epoch for step in steps if isinstance(step.event, Reported))
        if reports[:3] == [1, 2, 3]:
            sampler.go_on.set()

    result = pl.Study(trains, **options(generator=sampler)).run(watch)
    assert sampler.in_time
    assert len(result.trials) == 6


class Gone(Exception):
    """What ends a driver in a test."""


def test_a_question_that_its_driver_left_open_is_asked_again(tmp_path: Path) -> None:
    told = options(name="s", store=str(tmp_path / "runs.db"))
    sampler = Slow()

    def watch(state: StudyState, steps: Sequence[Step]) -> None:
        if state.trials and state.trials[0].epoch == 3:
            raise Gone

    with pytest.raises(Gone):
        pl.Study(trains, **told, generator=sampler).run(watch)
    sampler.go_on.set()
    again = Slow()
    again.go_on.set()
    result = pl.tune(trains, **told, generator=again)
    assert len(result.trials) == 6
    assert [len(trial.values) for trial in result.trials] == [3] * 6


class Fails(Own):
    """Fails at one of its proposals."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def before(self, study: Study, number: int) -> None:
        if number == self.at:
            raise ZeroDivisionError("no such luck")


def test_a_sampler_that_fails_ends_the_study_with_what_was_trained() -> None:
    result = pl.tune(trains, **options(generator=Fails(at=3)))
    assert [len(trial.values) for trial in result.trials] == [3] * 3
    assert result.best is not None
    assert result.why == (
        "no more trials after 3: the generator failed: ZeroDivisionError: no such luck"
    )


def test_a_sampler_that_fails_at_once_is_an_error_of_one_sentence() -> None:
    with pytest.raises(pl.StudyFailed, match="the generator failed: ZeroDivisionError: no such"):
        pl.tune(trains, **options(generator=Fails(at=0)))


def test_a_sampler_may_be_an_object_and_the_log_says_so() -> None:
    result = pl.tune(trains, **options(generator=TPESampler(seed=3, n_startup_trials=2)))
    opened = result.log[0].event
    assert isinstance(opened, Opened)
    assert opened.spec.generator.name == "optuna"
    sampler = opened.spec.generator.params["sampler"]
    assert sampler.partition(":")[2] == "TPESampler"
    assert opened.spec.generator.params["given"] is True
    brains = brains_of(opened.spec)
    assert replay(result.log, brains) is None
    with pytest.raises(pl.SpecError, match=r"was an object of .*TPESampler, which no log"):
        brains.generator.propose(6, None)  # type: ignore[arg-type]


def test_an_object_that_is_no_sampler_is_refused() -> None:
    with pytest.raises(pl.SpecError, match="give a name, a Part, or a sampler of Optuna's"):
        pl.Study(trains, **options(generator=7))
