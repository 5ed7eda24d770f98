"""Studies that are extended by the same call with other options, through the public API."""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from waiting import wait_for

import paceline as pl
from paceline.api.stored import open_existing, read_log, replay_log
from paceline.core.events import Cause, Ended, Extended, Reported
from paceline.core.events import Resumed as ResumedEvent

if TYPE_CHECKING:
    from pathlib import Path

SPACE = {"lr": pl.uniform(0.1, 1.0)}


def train(trial: Any) -> None:  # noqa: ANN401
    """Count epochs, so that a value shows whether a trial began anew."""
    done = trial.keep(done=[0])
    for _ in trial.epochs():
        done[0] += 1
        trial.report(loss=trial["lr"] / done[0], done=done[0])


def tune(folder: Path, **changes: Any) -> pl.Result:  # noqa: ANN401
    options: dict[str, Any] = {
        "space": SPACE,
        "metric": "loss",
        "mode": "min",
        "epochs": 2,
        "trials": 2,
        "policy": "fifo",
        "generator": "random",
        "slots": 1,
        "name": "it",
        "store": str(folder / "runs.db"),
        "progress": False,
    }
    return pl.tune(train, **(options | changes))


def count_reports(result: pl.Result) -> int:
    return sum(isinstance(step.event, Reported) for step in result.log)


def test_a_study_is_extended_by_trials_and_then_by_epochs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tune(tmp_path)
    with caplog.at_level(logging.INFO, "paceline.study"):
        more = tune(tmp_path, trials=3)
    assert [len(trial.values) for trial in more.trials] == [2, 2, 2]
    assert "study 'it' is extended to 3 trials" in caplog.text
    longer = tune(tmp_path, trials=3, epochs=4)
    # No epoch was trained twice: each trial went on from its checkpoint.
    assert [trial.metrics["done"] for trial in longer.trials] == [[1, 2, 3, 4]] * 3
    assert count_reports(longer) == 12
    assert [trial.status for trial in longer.trials] == ["finished"] * 3
    story = longer.story()
    assert "study 'it' is extended to 3 trials." in story
    assert "study 'it' is extended to 4 epochs." in story
    assert longer.best.checkpoint is not None
    assert longer.best.checkpoint.load() == {"done": [4]}
    with open_existing(str(tmp_path / "runs.db")) as store:
        assert replay_log(read_log(store, "it")).difference is None
    again = pl.load("it", tmp_path / "runs.db")
    assert [trial.values for trial in again.trials] == [trial.values for trial in longer.trials]


def test_an_extended_study_that_loses_its_driver_is_resumed_as_extended(tmp_path: Path) -> None:
    tune(tmp_path)

    class Gone(Exception):
        """Ends the driver in the middle of the study."""

    def leave(state: Any, steps: Any) -> None:  # noqa: ANN401
        if state.epochs_trained >= 5:  # several reports may come at once
            raise Gone

    options: Any = {"trials": 3, "epochs": 4, "policy": "fifo", "generator": "random", "slots": 1}
    study = pl.Study(
        train, space=SPACE, metric="loss", mode="min", name="it", **options,
        store=str(tmp_path / "runs.db"),
    )  # fmt: skip
    with pytest.raises(Gone):
        study.run(leave)
    result = tune(tmp_path, trials=3, epochs=4)
    assert [len(trial.values) for trial in result.trials] == [4, 4, 4]
    kinds = [type(step.event) for step in result.log]
    assert kinds.count(Extended) == 1
    assert kinds.count(ResumedEvent) == 1
    lost = [step.event for step in result.log if isinstance(step.event, Ended)]
    assert sum(event.cause is Cause.LOST for event in lost) == 1
    with open_existing(str(tmp_path / "runs.db")) as store:
        assert replay_log(read_log(store, "it")).difference is None


def test_a_target_and_a_deadline_are_extended(tmp_path: Path) -> None:
    reached = tune(tmp_path, target=0.9)
    assert reached.end == "target"
    trained = count_reports(reached)
    harder = tune(tmp_path, target=0.0001, deadline="1h")
    assert harder.end == "quiet"
    assert count_reports(harder) == 4 > trained
    assert "is extended to a deadline of 1h00m and the target 0.0001" in harder.story()
    # A deadline before the time that the study has used ends it at once.
    assert tune(tmp_path, deadline=0.001).end == "deadline"


def test_a_deadline_that_is_the_same_time_of_day_is_no_extension(tmp_path: Path) -> None:
    soon = datetime.now(UTC) + timedelta(hours=1)
    tune(tmp_path, deadline=soon)
    with pytest.warns(pl.PacelineWarning, match="nothing was trained now"):
        tune(tmp_path, deadline=soon)
    later = tune(tmp_path, deadline=soon + timedelta(hours=1), trials=3)
    assert len(later.trials) == 3
    assert "is extended to 3 trials and a deadline of" in later.story()


def test_another_policy_goes_on_with_the_trials(tmp_path: Path) -> None:
    halved = tune(tmp_path, policy="sha:size=2", epochs=4)
    assert sorted(len(trial.values) for trial in halved.trials) != [4, 4]
    whole = tune(tmp_path, policy="fifo", epochs=4, trials=3)
    stopped = sum(trial.status == "stopped" for trial in halved.trials)
    assert sum(len(trial.values) == 4 for trial in whole.trials) == 3 - stopped


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"space": {"lr": pl.uniform(0.1, 2.0)}}, ("another space (lr)", "give another name")),
        (
            {"space": {**SPACE, "width": pl.choice([1, 2])}},
            ("another space (width)", "takes over what this study has trained"),
        ),
        ({"generator": "sobol"}, ("another generator (random)",)),
        ({"metric": "done"}, ("another metric",)),
        ({"mode": "max"}, ("another mode",)),
        ({"seed": 3}, ("another seed",)),
        ({"seed": 3, "metric": "done"}, ("another metric and seed",)),
        ({"share": False, "plan": None}, ("another share",)),
        ({"epochs": 1}, ("trains 2 epochs, and epochs=1 is less", "give epochs=2 or more")),
        ({"trials": 1}, ("has opened 2 trials, and trials=1 is less", "give trials=2 or more")),
    ],
)
def test_what_cannot_change_is_named_with_the_way_out(
    tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any], parts: tuple[str, ...]
) -> None:
    folder = tmp_path_factory.getbasetemp() / "what-cannot-change"
    if not folder.exists():
        folder.mkdir()
        tune(folder)
    with pytest.raises(pl.SpecError) as caught:
        tune(folder, **changes)
    for part in ("study 'it'", *parts):
        assert part in str(caught.value)


def test_a_study_that_runs_elsewhere_is_extended_by_its_driver(tmp_path: Path) -> None:
    go = tmp_path / "go"

    def wait(trial: Any) -> None:  # noqa: ANN401
        import time

        for _ in trial.epochs():
            while not go.exists():
                time.sleep(0.01)
            trial.report(loss=trial["lr"])

    options: dict[str, Any] = {
        "space": SPACE,
        "metric": "loss",
        "mode": "min",
        "policy": "fifo",
        "slots": 1,
        "generator": "random",
        "name": "it",
        "store": str(tmp_path / "runs.db"),
        "progress": False,
        "plan": "it",
    }
    results: list[pl.Result] = []

    def run_first() -> None:
        results.append(pl.tune(wait, **options, trials=1, epochs=1))

    def run_second() -> None:
        results.append(pl.tune(wait, **options, trials=2, epochs=2))

    drivers = [threading.Thread(target=run) for run in (run_first, run_second)]
    store = tmp_path / "runs.db"
    try:
        drivers[0].start()
        wait_for(lambda: has_trial(store))
        assert pl.studies(store)[0].status == "running"
        with pytest.raises(pl.StoreError, match="is being written by"):
            pl.tune(wait, **options, trials=1, epochs=1)  # asks for nothing new
        drivers[1].start()
        wait_for(lambda: "is extended to 2 trials and 2 epochs" in pl.load("it", store).story())
    finally:
        go.touch()
    for driver in drivers:
        driver.join()
    for result in results:
        assert [len(trial.values) for trial in result.trials] == [2, 2]
        assert result.end == "quiet"
    with open_existing(str(store)) as stored:
        assert replay_log(read_log(stored, "it")).difference is None


def has_trial(store: Path) -> bool:
    try:
        return any(study.trials for study in pl.studies(store))
    except pl.StoreError:
        return False  # it is being made


def test_a_new_name_takes_over_what_is_known_and_says_how_much(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tune(tmp_path)
    with caplog.at_level(logging.INFO, "paceline.study"):
        other = tune(tmp_path, name="other", trials=3)
    assert "took over 2 configs, 4 epochs of study 'it'" in caplog.text
    assert count_reports(other) == 2
