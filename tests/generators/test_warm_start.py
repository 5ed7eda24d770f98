"""A study whose generator begins with what another study found."""

from __future__ import annotations

import shutil
from statistics import fmean
from typing import TYPE_CHECKING, Any

import pytest
from cli_kit import log_of

import paceline as pl
from paceline.analysis.live_lines import Teller
from paceline.analysis.story import study_story
from paceline.api.stored import replayed
from paceline.core.events import Recalled
from paceline.generators.optuna.observations import Evidence

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from paceline.core.decisions import Step
    from paceline.machine.state import StudyState

GOOD = 7.0


def near(trial: Any) -> None:  # noqa: ANN401
    """Be the better the nearer x is to what is good."""
    for _ in trial.epochs():
        trial.report(loss=(trial["x"] - GOOD) ** 2)


def elsewhere(trial: Any) -> None:  # noqa: ANN401
    """Do the same in other words: a study of its own plan."""
    for epoch in trial.epochs():
        trial.report(loss=(GOOD - trial["x"]) ** 2 + 0 * epoch)


def options(folder: Path, name: str, **changes: Any) -> Any:  # noqa: ANN401
    told: dict[str, Any] = {
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
    return {**told, **changes}


def distance(result: pl.Result) -> float:
    return fmean(abs(trial.config["x"] - GOOD) for trial in result.trials)


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """A folder with a store in which one study has looked everywhere."""
    pl.tune(elsewhere, **options(tmp_path, "before", generator="random", trials=40, slots=2))
    return tmp_path


def test_a_generator_that_was_told_begins_where_it_was_good(before: Path) -> None:
    cold = pl.tune(near, **options(before, "cold"))
    warm = pl.tune(near, **options(before, "warm", warm_start="before"))
    assert distance(warm) < distance(cold) / 2
    assert warm.summary().epochs_trained == 12, "what another plan trained was credited"
    facts = [step.event for step in warm.log if isinstance(step.event, Recalled)]
    assert len(facts) == 40
    assert all(fact.finished and len(fact.values) == 2 for fact in facts)
    assert replayed(log_of(str(before / "studies.db"), "warm")).difference is None


def test_a_study_that_was_cut_goes_on_with_the_same_proposals(before: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    shutil.copy(before / "studies.db", tmp_path / "other" / "studies.db")
    whole = pl.tune(near, **options(before, "warm", warm_start="before"))

    def die(state: StudyState, steps: Sequence[Step]) -> None:
        if len(state.trials) == 3:
            raise RuntimeError("the driver dies")

    told = options(tmp_path / "other", "warm", warm_start="before")
    with pytest.raises(RuntimeError, match="dies"):
        pl.Study(near, **told).run(die)
    again = pl.tune(near, **told)
    assert [trial.config for trial in again.trials] == [trial.config for trial in whole.trials]


def test_it_is_told_once(before: Path) -> None:
    teller = Teller()
    said: list[str] = []

    def watch(state: StudyState, steps: Sequence[Step]) -> None:
        said.extend(each.text for each in teller.hear(state, steps))

    result = pl.Study(near, **options(before, "warm", warm_start="before")).run(watch)
    sentence = "the generator learns from study 'before'"
    assert said.count(sentence) == 1
    assert list(study_story(result.log)).count(f"0s: {sentence}.") == 1


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"warm_start": "before1"}, "unknown study to start from 'before1': did you mean 'before'"),
        ({"warm_start": "warm"}, "unknown study to start from 'warm'"),
        ({"generator": "random"}, "generator random learns from nothing"),
        ({"space": {"y": pl.uniform(0.0, 1.0)}}, "none of its 40 trials reported 'loss' under"),
        ({"metric": "accuracy"}, "none of its 40 trials reported 'accuracy'"),
    ],
)
def test_what_cannot_be_learned_from_is_refused(
    before: Path, changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(pl.SpecError, match=complaint):
        pl.tune(near, **options(before, "warm", **{"warm_start": "before", **changes}))


def test_a_warm_start_needs_a_store(tmp_path: Path) -> None:
    told = options(tmp_path, "s", warm_start="before")
    del told["store"]
    with pytest.raises(pl.SpecError, match="without a store"):
        pl.Study(near, **told)


def test_whoever_stopped_early_elsewhere_comes_after_those_who_trained_on() -> None:
    evidence = Evidence(least=2)
    evidence.recalled([5.0, 4.0, 1.0], finished=True)
    evidence.recalled([5.0, 3.0, 2.0], finished=True)
    evidence.recalled([0.5], finished=False)
    first, second, third = evidence.values()
    assert (first, second) == (1.0, 2.0)
    assert third is not None
    assert third > 2.0
