"""Several studies run as one on this machine, in real processes, also after a kill."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
from command_line import CommandLine
from msgspec.structs import replace
from waiting import LIMIT_S

import paceline as pl
from paceline.api.options import StudyOptions
from paceline.api.several_studies import (
    ALONE_OPTIONS,
    EQUAL_OPTIONS,
    OWN_OPTIONS,
    TogetherOptions,
    resolve_together,
)
from paceline.api.stored import fold_log, replay_log
from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.values import GroupSpec, Part
from paceline.machine.invariants import find_violations
from paceline.machine.state import StudyState
from paceline.plan.settings import config_key
from paceline.store import open_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.decisions import Step

EPOCHS = 6
RATES = pl.piecewise([(0, pl.choice([0.3, 0.1])), (2, pl.choice([0.2, 0.05])), (4, 0.01)])


def train_linear(trial: Any) -> None:  # noqa: ANN401
    """Fit a line by noisy steps, drawn by numpy's own generator."""
    weights, _ = trial.keep(weights=np.zeros(4), steps=[])
    if os.environ.get("TOGETHER_DRIVER") and trial.config["kind"] == 1:
        kill_driver_once(trial)
    for _ in trial.epochs():
        inputs = np.random.standard_normal((8, 4))  # noqa: NPY002 - its state is in the checkpoint
        error = inputs @ weights - inputs.sum(axis=1)
        weights -= trial["lr"] * inputs.T @ error / 8
        trial.report(loss=float(np.square(weights - 1.0).sum()))


def kill_driver_once(trial: Any) -> None:  # noqa: ANN401
    """Kill the driver once, after two trials have ended."""
    mark = Path(os.environ["TOGETHER_MARK"])
    if trial.id > 2 and not mark.exists():
        mark.touch()
        os.kill(int(os.environ["TOGETHER_DRIVER"]), signal.SIGKILL)


def study(**options: Any) -> pl.Study:  # noqa: ANN401
    given = {"metric": "loss", "mode": "min", "epochs": EPOCHS, "generator": "grid", "seed": 5}
    return pl.Study(
        train_linear, **{**given, "space": {"lr": RATES, "kind": pl.choice([0])}, **options}
    )


# The first two have half of their schedules in common; the third shares nothing.
HALF = {"lr": RATES, "kind": pl.choice([0, 1])}
OTHER = {"lr": pl.choice([0.02, 0.3]), "kind": pl.choice([2])}


def studies() -> list[pl.Study]:
    return [
        study(policy="fifo"),
        study(policy="asha", space=HALF, name="halved"),
        study(policy="fifo", space=OTHER),
    ]


def list_outcomes(result: pl.Result) -> dict[bytes, tuple[Any, ...]]:
    """Return the curve of each config, and its last weights if it has finished."""
    given = {}
    for trial in result.trials:
        saved = trial.checkpoint if trial.status == "finished" else None
        weights = None if saved is None else saved.load()["weights"].tobytes()
        given[config_key(trial.config)] = (trial.values, weights)
    return given


def test_studies_run_as_one_give_the_same_results_as_alone_bit_for_bit(tmp_path: Path) -> None:
    one, half, other = pl.together(*studies(), slots=2, files=tmp_path)
    whole = [
        study(policy="fifo", share=False, slots=2).run(),
        study(policy="fifo", share=False, space=HALF, slots=2).run(),
        study(policy="fifo", share=False, space=OTHER, slots=2).run(),
    ]
    assert list_outcomes(one) == list_outcomes(whole[0])
    assert list_outcomes(other) == list_outcomes(whole[2])
    # A paused trial has the beginning of the curve that it has without a pause.
    alone = list_outcomes(whole[1])
    assert len(half.trials) == len(alone)
    for trial in half.trials:
        curve, weights = alone[config_key(trial.config)]
        assert trial.values == curve[: len(trial.values)]
        if trial.status == "finished":
            assert trial.checkpoint is not None
            assert trial.checkpoint.load()["weights"].tobytes() == weights


def test_each_result_holds_its_own_study(tmp_path: Path) -> None:
    one, half, other = pl.together(*studies(), slots=2, files=tmp_path)
    assert [result.name for result in (one, half, other)] == ["fifo-1", "halved", "fifo-3"]
    assert [len(result.trials) for result in (one, half, other)] == [4, 8, 2]
    assert {trial.id for trial in one.trials}.isdisjoint(trial.id for trial in half.trials)
    for result in (one, half, other):
        assert result.best is not None
        values = [trial.value for trial in result.trials if trial.value is not None]
        assert result.best.value == min(values)
        # The best checkpoint of each study is kept, even if another study has a better one.
        assert result.best.checkpoint is not None
        assert result.best.checkpoint.epoch == result.best.epoch
        assert result.end == "quiet"
        assert result.summary().trials == len(result.trials)
    # The second study requests all epochs of the first, the third none of them.
    assert one.summary().epochs_shared + half.summary().epochs_shared > 4 * EPOCHS // 2
    assert other.summary().epochs_shared == 0


def test_studies_that_are_run_again_train_nothing(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    pl.together(*studies(), slots=2, name="monday", store=store)
    again = pl.together(*studies(), slots=2, name="friday", store=store)
    assert [result.summary().epochs_trained for result in again] == [0, 0, 0]
    assert [len(result.trials) for result in again] == [4, 8, 2]


def test_the_best_loss_of_a_trial_is_the_best_of_its_own_study() -> None:
    state = StudyState()
    groups = (make_group("first"), make_group("second"))
    spec = replace(study().spec, groups=groups)
    state.apply(e.Opened(at=0.0, spec=spec))
    state.apply(e.CapacityChanged(at=0.0, slots=(0, 1, 2)))
    for trial, group in enumerate((0, 1, 1)):
        config = {"lr": 0.1 * trial, "kind": trial}
        state.apply(d.Open(trial=trial, config=config, until=EPOCHS, group=group, why="a test"))
        state.apply(make_launch(trial))
    best = [[state.best_loss_for(trial) for trial in range(3)]]
    for trial, loss in ((0, 0.5), (1, 0.9), (2, 0.7)):
        state.apply(make_report(trial, 1, loss))
        best.append([state.best_loss_for(trial) for trial in range(3)])
    later: list[tuple[int, float | None]] = [(1, 0.8), (0, 0.6), (2, None)]
    for trial, value in later:
        state.apply(make_report(trial, 2, value))
    best.append([state.best_loss_for(trial) for trial in range(3)])
    none = math.inf
    assert best == [
        [none, none, none],
        [0.5, none, none],
        [0.5, 0.9, 0.9],
        [0.5, 0.7, 0.7],
        [0.5, 0.7, 0.7],
    ]
    assert [state.group(trial) for trial in range(3)] == [0, 1, 1]


def make_group(name: str) -> GroupSpec:
    return GroupSpec(name=name, policy=Part("fifo"), generator=Part("grid"), curves=Part("last"))


def make_launch(number: int) -> d.Launch:
    return d.Launch(
        attempt=number,
        trial=number,
        start=0,
        source=None,
        goal=EPOCHS,
        save_at=(),
        slots=(number,),
        width=1.0,
        why="a test",
    )


def make_report(attempt: int, epoch: int, loss: float | None) -> e.Reported:
    return e.Reported(at=0.0, attempt=attempt, epoch=epoch, metrics={"loss": loss}, seconds=1.0)


def read_log(store: str, name: str) -> list[Step]:
    with closing(open_store(store, create=False)) as kept:
        return list(kept.read(name))


def run_driver(store: str, mark: Path) -> int:
    """Run the studies in another process; return its exit code."""
    program = (
        "import os, test_together as t, paceline as pl\n"
        "os.environ['TOGETHER_DRIVER'] = str(os.getpid())\n"
        f"pl.together(*t.studies(), slots='cpu:2', name='all', store={store!r})\n"
    )
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    environ = {**os.environ, "PYTHONPATH": path, "TOGETHER_MARK": str(mark)}
    return subprocess.run([sys.executable, "-c", program], env=environ, timeout=LIMIT_S).returncode


def count_repeated(log: Sequence[Step]) -> int:
    state = fold_log(log)
    assert find_violations(state) == []
    assert state.mismatches == 0
    return state.repeats


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
def test_all_studies_are_resumed_after_their_driver_is_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    assert run_driver(store, tmp_path / "mark") == -signal.SIGKILL
    cut = read_log(store, "all")
    assert fold_log(cut).end is None
    resumed = CommandLine(tmp_path, capsys, monkeypatch)("resume", "all", "--store", store)
    assert resumed.code == 2
    assert "pl.together again" in resumed.err
    assert run_driver(store, tmp_path / "mark") == 0
    log = read_log(store, "all")
    assert log[: len(cut)] == cut
    assert sum(isinstance(step.event, e.Resumed) for step in log) == 1
    assert replay_log(log).difference is None
    # Two slots were busy: their running and their unsaved epochs are trained again.
    assert count_repeated(log) <= 2 * EPOCHS
    with pytest.warns(pl.PacelineWarning, match="study 'all' ended before"):
        results = pl.together(*studies(), slots="cpu:2", name="all", store=store)
    unharmed = pl.together(*studies(), slots=2)
    for result, other in zip(results, unharmed, strict=True):
        ours, theirs = list_outcomes(result), list_outcomes(other)
        assert ours.keys() == theirs.keys()
        for config, (curve, _) in ours.items():
            longest = min(len(curve), len(theirs[config][0]))
            assert curve[:longest] == theirs[config][0][:longest]
        assert len(read_log(store, "all")) == len(log)


def train_otherwise(trial: Any) -> None:  # noqa: ANN401
    train_linear(trial)


@pytest.mark.parametrize(
    ("made", "options", "words"),
    [
        ([], {}, "two or more"),
        ([{}], {}, "only one study was given"),
        ([{}, {"metric": "error"}], {}, r"differ in metric \('loss' and 'error'\)"),
        ([{}, {"seed": 6, "epochs": 7}], {}, r"epochs \(6 and 7\), seed \(5 and 6\)"),
        ([{}, {"slots": 2}], {}, "study 2 was given slots, which is for all studies"),
        ([{"deadline": "1h", "name": "a"}, {}], {}, "study 1 was given deadline"),
        ([{}, {}], {"slotz": 2}, "did you mean 'slots'"),
        ([{}, {}], {"store": "sqlite:///x.db"}, "need a name"),
        ([{"name": "a"}, {"name": "a"}], {}, "need different names"),
    ],
)
def test_studies_that_cannot_be_run_as_one_are_refused(
    made: list[dict[str, Any]],
    options: Any,  # noqa: ANN401
    words: str,
) -> None:
    with pytest.raises(pl.SpecError, match=words):
        pl.together(*[study(**each) for each in made], **options)


def test_studies_of_different_functions_or_without_a_space_are_refused() -> None:
    given: Any = {"metric": "loss", "mode": "min", "epochs": EPOCHS, "seed": 5}
    other = pl.Study(train_otherwise, space=OTHER, **given)
    with pytest.raises(pl.SpecError, match="their training functions"):
        pl.together(study(), other)
    with pytest.raises(pl.SpecError, match="study 2 has no space"):
        pl.together(study(), pl.Study(train_linear, **given))


def measure_needs(setting: dict[str, Any]) -> int:
    return 2 if setting["lr"] == 0.01 else 1


def need_one(setting: dict[str, Any]) -> int:
    return 1


# A valid value for each option, other than its default.
VALUES: dict[str, Any] = {
    "space": OTHER,
    "metric": "error",
    "mode": "max",
    "epochs": 7,
    "range": (0.0, 9.0),
    "policy": "asha",
    "generator": "random",
    "allocator": "fluid",
    "curves": "last",
    "deadline": "1h",
    "target": 0.25,
    "over": 2,
    "slot_hours": 2.0,
    "trials": 3,
    "slots": 2,
    "span": 2,
    "pack": 2,
    "needs": measure_needs,
    "mps": False,
    "seed": 6,
    "name": "mine",
    "store": "sqlite:///mine.db",
    "first": [{"lr": pl.piecewise([(0, 0.1), (2, 0.2), (4, 0.01)]), "kind": 0}],
    "warm_start": "before",
    "share": False,
    "plan": "mine@2",
    "retries": 1,
    "hang": "1h",
    "keep_best": 2,
    "checkpoint_bytes": 10**9,
    "files": "folder",
    "checkpoints": "elsewhere",
    "cache_bytes": 10**9,
    "progress": False,
}
# Options without which one of them cannot act.
COMPANIONS: dict[str, dict[str, Any]] = {
    "allocator": {"span": 2},
    "over": {"target": 0.25},
    "store": {"name": "mine"},
}


def test_every_option_of_a_study_has_its_place_in_together() -> None:
    """A new option must be honoured or refused: add it to one of these, and to VALUES."""
    places = [OWN_OPTIONS, EQUAL_OPTIONS, TogetherOptions.__annotations__, ALONE_OPTIONS]
    placed = {name for place in places for name in place}
    assert placed == set(StudyOptions.__struct_fields__) == set(VALUES)
    # An option in two places can be given in either; any other one is in a single place.
    several = {name for name in placed if sum(name in place for place in places) > 1}
    assert several == {"name", "needs"}


@pytest.mark.parametrize("name", [*EQUAL_OPTIONS, *sorted(TogetherOptions.__annotations__)])
def test_an_option_that_differs_or_is_for_all_studies_is_refused(name: str) -> None:
    if name == "name":
        return  # each study has one
    given = {name: VALUES[name], **COMPANIONS.get(name, {})}
    with pytest.raises(pl.SpecError, match=rf"\b{name}\b"):
        resolve_together([study(), study(**given)], {})


def test_an_option_for_a_study_that_runs_alone_is_refused() -> None:
    optuna = pytest.importorskip("optuna")
    warm = study(generator="tpe", warm_start=optuna.create_study())
    with pytest.raises(pl.SpecError, match="study 2 was given warm_start"):
        resolve_together([study(), warm], {})


@pytest.mark.parametrize("name", OWN_OPTIONS)
def test_an_option_of_one_study_is_honoured_for_that_study(name: str) -> None:
    given = {name: VALUES[name], **COMPANIONS.get(name, {})}
    _, spec = resolve_together([study(policy="fifo"), study(**given)], {})
    alone, (_, group) = study(**given).spec, spec.groups
    honoured = (group.policy, group.generator, group.curves, group.target, group.trials)
    wanted = (alone.policy, alone.generator, alone.curves, alone.budget.target, alone.budget.trials)
    assert honoured == wanted
    assert group.name == ("mine" if name == "name" else group.name)
    assert spec.groups[0] != group


@pytest.mark.parametrize("name", sorted(TogetherOptions.__annotations__))
def test_an_option_of_together_is_honoured_as_for_one_study(name: str) -> None:
    given = {name: VALUES[name], **COMPANIONS.get(name, {})}
    options, spec = resolve_together([study(), study()], cast("TogetherOptions", given))
    assert getattr(options, name) == getattr(study(**given).resolved, name)
    alone = study(**given).spec
    for field in ("allocator", "budget", "saves", "span", "pack", "fit"):
        assert getattr(spec, field) == getattr(alone, field)


def test_needs_of_all_studies_or_of_together_are_honoured_and_others_refused() -> None:
    fit = {"needs": measure_needs}
    for members, options in (([fit, fit], {}), ([{}, {}], fit), ([{"needs": "lr:0.2=2"}] * 2, {})):
        _, spec = resolve_together(
            [study(**each) for each in members], cast("TogetherOptions", options)
        )
        assert spec.fit
    for members, options in (([fit, {}], {}), ([fit, {"needs": need_one}], {}), ([fit, fit], fit)):
        with pytest.raises(pl.SpecError, match="needs"):
            resolve_together([study(**each) for each in members], cast("TogetherOptions", options))


def test_stages_get_the_slots_they_need_and_checkpoints_their_folder(tmp_path: Path) -> None:
    one = study(policy="fifo", needs=measure_needs, trials=2)
    other = study(policy="fifo", needs=measure_needs, space=OTHER, generator="grid")
    results = pl.together(
        *(one, other), slots="cpu:2", files=tmp_path, checkpoints=tmp_path / "kept"
    )
    widths = {
        (decision.start, decision.width)
        for step in results[0].log
        for decision in step.decisions
        if isinstance(decision, d.Launch)
    }
    # The last two epochs of each schedule need two slots; rates that do not change need one.
    assert {width for start, width in widths if start == 4} == {2.0}
    assert {width for start, width in widths if start < 4} == {1.0}
    saved = [trial.checkpoint for result in results for trial in result.trials]
    assert all(each is not None for each in saved)
    assert list((tmp_path / "kept").rglob("*.ckpt"))
