"""Warnings about studies that do something other than their user means."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest

import paceline as pl
from paceline.api import cautions
from paceline.api.cautions import warn_of_many_slots, warn_of_no_end
from paceline.engines.process.local.devices import LocalDevices

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SPACE = {"x": pl.uniform(0.0, 1.0)}


def forgets(trial: Any) -> None:  # noqa: ANN401
    for _ in trial.epochs():
        trial.report(loss=trial["x"])


def make_study(**options: Any) -> pl.Study:  # noqa: ANN401
    return pl.Study(forgets, metric="loss", mode="min", epochs=3, **{"space": SPACE, **options})


@pytest.fixture
def no_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_a_study_that_nothing_ends_is_warned_about() -> None:
    with pytest.warns(pl.PacelineWarning, match=r"runs until Ctrl-C: give trials=100, deadline"):
        warn_of_no_end(make_study(name="endless").spec)


@pytest.mark.usefixtures("no_warning")
@pytest.mark.parametrize(
    "options",
    [
        {"trials": 3},
        {"deadline": 60},
        {"slot_hours": 1.0},
        {"target": 0.1},
        {"space": {"x": pl.grid([1, 2])}},
        {"policy": "pbt"},
    ],
)
def test_a_study_that_something_ends_is_not(options: dict[str, Any]) -> None:
    warn_of_no_end(make_study(**options).spec)


def test_far_more_slots_than_cores_are_warned_about() -> None:
    with pytest.warns(pl.PacelineWarning, match=r"slots=1000 runs 1000 trials at once on 2 CPU"):
        warn_of_many_slots(LocalDevices(slots=1000, cores=2))


@pytest.mark.usefixtures("no_warning")
def test_slots_that_are_gpus_or_few_are_not() -> None:
    warn_of_many_slots(LocalDevices(slots=8, cores=2))
    warn_of_many_slots(LocalDevices(slots=9, cores=2, gpus=("GPU-0",) * 9))


def test_a_paused_function_that_keeps_nothing_is_warned_about_once() -> None:
    with pytest.warns(pl.PacelineWarning) as found:
        make_study(policy="asha", trials=4, slots="cpu:1", progress=False).run()
    (told,) = [str(each.message) for each in found]
    assert "keeps nothing, so a paused trial starts over" in told
    assert "use trial.keep(…), or give policy='asha_stop'" in told


@pytest.mark.usefixtures("no_warning")
def test_a_function_that_keeps_nothing_and_is_never_paused_is_not() -> None:
    result = make_study(trials=3, slots="cpu:1", progress=False).run()
    assert result.summary().policy == "asha_stop"


def keeps(trial: Any) -> None:  # noqa: ANN401
    state = trial.keep(state=[0.0])
    for _ in trial.epochs():
        state[0] += 1.0
        trial.report(loss=trial["x"] / state[0])


def make_many(folder: Path, **options: Any) -> pl.Study:  # noqa: ANN401
    given: dict[str, Any] = {"space": SPACE, "generator": "random", "policy": "fifo", "trials": 12}
    here = {"name": "many", "store": f"sqlite:///{folder / 'many.db'}", "files": folder / "files"}
    study: dict[str, Any] = {"metric": "loss", "mode": "min", "epochs": 2, "slots": "cpu:2"}
    return pl.Study(keeps, progress=False, **{**study, **given, **here, **options})


def list_checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "files").rglob("*.ckpt"))


def test_many_checkpoints_of_finished_trials_are_told_once_and_keep_best_limits_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cautions, "_MANY_CHECKPOINTS", 5)
    with pytest.warns(pl.PacelineWarning) as found:
        make_many(tmp_path).run()
    (told,) = [str(each.message) for each in found]
    assert "study 'many' keeps the last checkpoint of every finished trial" in told
    assert "give keep_best=10" in told
    # By default each result stays: an extended study would continue from it.
    assert len(list_checkpoints(tmp_path)) == 12
    # The same call with a limit deletes the others, of a study that has ended too.
    result = make_many(tmp_path, keep_best=2).run()
    kept = {t.checkpoint.path.name for t in result.trials if t.checkpoint is not None}
    assert 2 <= len(kept) <= 3
    assert list_checkpoints(tmp_path) == sorted(kept)
    best = sorted(result.trials, key=lambda trial: trial.config["x"])[:2]
    assert all(trial.checkpoint is not None for trial in best)


@pytest.mark.usefixtures("no_warning")
def test_checkpoints_that_are_limited_are_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cautions, "_MANY_CHECKPOINTS", 5)
    make_many(tmp_path, keep_best=2).run()
    assert len(list_checkpoints(tmp_path)) <= 3


def test_a_study_with_few_results_is_extended_all_the_same(tmp_path: Path) -> None:
    make_many(tmp_path, keep_best=2).run()
    result = make_many(tmp_path, keep_best=2, epochs=3).run()
    # Trials without a checkpoint are trained again from their start.
    assert [len(trial.values) for trial in result.trials] == [3] * 12
