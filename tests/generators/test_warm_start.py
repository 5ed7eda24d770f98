"""Warm start: a generator that begins with the results of another study."""

from __future__ import annotations

import shutil
from statistics import fmean
from typing import TYPE_CHECKING, Any

import pytest
from command_line import read_log

import paceline as pl
from paceline.analysis.story import LiveStory, narrate_study
from paceline.api.stored import replay_log
from paceline.core.events import Recalled
from paceline.generators.optuna.observations import Observations

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from paceline.core.decisions import Step
    from paceline.machine.state import StudyState

GOOD = 7.0


def near(trial: Any) -> None:  # noqa: ANN401
    """Report a loss that grows with the distance of x from its optimum."""
    for _ in trial.epochs():
        trial.report(loss=(trial["x"] - GOOD) ** 2)


def elsewhere(trial: Any) -> None:  # noqa: ANN401
    """Do the same as `near`, as another function with its own plan."""
    for epoch in trial.epochs():
        trial.report(loss=(GOOD - trial["x"]) ** 2 + 0 * epoch)


def options(folder: Path, name: str, **changes: Any) -> Any:  # noqa: ANN401
    arguments: dict[str, Any] = {
        "space": {"x": pl.uniform(0.0, 10.0)},
        "metric": "loss",
        "mode": "min",
        "epochs": 2,
        "policy": "fifo",
        "slots": 1,
        "trials": 6,
        "store": str(folder / "studies.db"),
        "name": name,
    }
    return {**arguments, **changes}


def distance(result: pl.Result) -> float:
    return fmean(abs(trial.config["x"] - GOOD) for trial in result.trials)


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """A folder with a store that holds one finished study of the whole space."""
    pl.tune(elsewhere, **options(tmp_path, "before", generator="random", trials=40, slots=2))
    return tmp_path


def test_a_warm_started_generator_begins_near_good_configs(before: Path) -> None:
    cold = pl.tune(near, **options(before, "cold"))
    warm = pl.tune(near, **options(before, "warm", warm_start="before"))
    assert distance(warm) < distance(cold) / 2
    assert warm.summary().epochs_trained == 12, "what another plan trained was credited"
    facts = [step.event for step in warm.log if isinstance(step.event, Recalled)]
    assert len(facts) == 40
    assert all(fact.finished and len(fact.values) == 2 for fact in facts)
    assert replay_log(read_log(str(before / "studies.db"), "warm")).difference is None


def test_a_resumed_study_gets_the_same_proposals_after_a_warm_start(
    before: Path, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    shutil.copy(before / "studies.db", tmp_path / "other" / "studies.db")
    whole = pl.tune(near, **options(before, "warm", warm_start="before"))

    def die(state: StudyState, steps: Sequence[Step]) -> None:
        if len(state.trials) == 3:
            raise RuntimeError("the driver dies")

    arguments = options(tmp_path / "other", "warm", warm_start="before")
    with pytest.raises(RuntimeError, match="dies"):
        pl.Study(near, **arguments).run(die)
    again = pl.tune(near, **arguments)
    assert [trial.config for trial in again.trials] == [trial.config for trial in whole.trials]


def test_prior_trials_are_added_once(before: Path) -> None:
    story = LiveStory()
    lines: list[str] = []

    def watch(state: StudyState, steps: Sequence[Step]) -> None:
        lines.extend(each.text for each in story.take(state, steps))

    result = pl.Study(near, **options(before, "warm", warm_start="before")).run(watch)
    sentence = "the generator learns from study 'before'"
    assert lines.count(sentence) == 1
    assert list(narrate_study(result.log)).count(f"0s: {sentence}.") == 1


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (
            {"warm_start": "before1"},
            "unknown study for warm_start: 'before1': did you mean 'before'",
        ),
        ({"warm_start": "warm"}, "unknown study for warm_start: 'warm'"),
        ({"generator": "random"}, "has no effect: this generator does not learn"),
        ({"space": {"y": pl.uniform(0.0, 1.0)}}, "none of its 40 trials reported 'loss' for"),
        ({"metric": "accuracy"}, "none of its 40 trials reported 'accuracy'"),
    ],
)
def test_an_unsuitable_prior_study_is_refused(
    before: Path, changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(pl.SpecError, match=complaint):
        pl.tune(near, **options(before, "warm", **{"warm_start": "before", **changes}))


def test_a_warm_start_needs_a_store(tmp_path: Path) -> None:
    arguments = options(tmp_path, "s", warm_start="before")
    del arguments["store"]
    with pytest.raises(pl.SpecError, match="needs a store"):
        pl.Study(near, **arguments)


def test_a_prior_trial_that_stopped_early_ranks_behind_those_that_trained_on() -> None:
    observations = Observations(min_reached=2)
    observations.add_prior([5.0, 4.0, 1.0], finished=True)
    observations.add_prior([5.0, 3.0, 2.0], finished=True)
    observations.add_prior([0.5], finished=False)
    first, second, third = observations.compute_values()
    assert (first, second) == (1.0, 2.0)
    assert third is not None
    assert third > 2.0
