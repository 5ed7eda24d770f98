"""Several studies on this machine, driven as one: through real processes, and after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from cli_kit import Here

import paceline as pl
from paceline.api.stored import folded, replayed
from paceline.core import decisions as d
from paceline.core import events as e
from paceline.engines.process.engine import Bests
from paceline.machine.invariants import complaints
from paceline.plan.settings import key
from paceline.store import open_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.decisions import Step

EPOCHS = 6
RATES = pl.piecewise([(0, pl.choice([0.3, 0.1])), (2, pl.choice([0.2, 0.05])), (4, 0.01)])


def fits(trial: Any) -> None:  # noqa: ANN401
    """Fit a line by noisy steps, drawn by numpy's own generator."""
    weights, _ = trial.keep(weights=np.zeros(4), steps=[])
    if os.environ.get("TOGETHER_DRIVER") and trial.config["kind"] == 1:
        die_once(trial)
    for _ in trial.epochs():
        inputs = np.random.standard_normal((8, 4))  # noqa: NPY002 - whose state is kept for it
        error = inputs @ weights - inputs.sum(axis=1)
        weights -= trial["lr"] * inputs.T @ error / 8
        trial.report(loss=float(np.square(weights - 1.0).sum()))


def die_once(trial: Any) -> None:  # noqa: ANN401
    """Kill the driver, the first time that anybody comes here after two trials have ended."""
    mark = Path(os.environ["TOGETHER_MARK"])
    if trial.id > 2 and not mark.exists():
        mark.touch()
        os.kill(int(os.environ["TOGETHER_DRIVER"]), signal.SIGKILL)


def study(**options: Any) -> pl.Study:  # noqa: ANN401
    told = {"metric": "loss", "mode": "min", "epochs": EPOCHS, "generator": "grid", "seed": 5}
    return pl.Study(fits, **{**told, "space": {"lr": RATES, "kind": pl.choice([0])}, **options})


# The first two have half of their schedules in common; the third has none with anybody.
HALF = {"lr": RATES, "kind": pl.choice([0, 1])}
OTHER = {"lr": pl.choice([0.02, 0.3]), "kind": pl.choice([2])}


def studies() -> list[pl.Study]:
    return [
        study(policy="fifo"),
        study(policy="asha", space=HALF, name="halved"),
        study(policy="fifo", space=OTHER),
    ]


def outcomes(result: pl.Result) -> dict[bytes, tuple[Any, ...]]:
    """Return what became of each config: its curve, and its last weights where it has finished."""
    told = {}
    for trial in result.trials:
        saved = trial.checkpoint if trial.status == "finished" else None
        weights = None if saved is None else saved.load()["weights"].tobytes()
        told[key(trial.config)] = (trial.values, weights)
    return told


def test_studies_driven_as_one_give_what_each_gives_alone_bit_for_bit(tmp_path: Path) -> None:
    one, half, other = pl.together(*studies(), slots=2, files=tmp_path)
    whole = [
        study(policy="fifo", share=False, slots=2).run(),
        study(policy="fifo", share=False, space=HALF, slots=2).run(),
        study(policy="fifo", share=False, space=OTHER, slots=2).run(),
    ]
    assert outcomes(one) == outcomes(whole[0])
    assert outcomes(other) == outcomes(whole[2])
    # Where a policy pauses, what was trained is the beginning of what there would have been.
    alone = outcomes(whole[1])
    assert len(half.trials) == len(alone)
    for trial in half.trials:
        curve, weights = alone[key(trial.config)]
        assert trial.values == curve[: len(trial.values)]
        if trial.status == "finished":
            assert trial.checkpoint is not None
            assert trial.checkpoint.load()["weights"].tobytes() == weights


def test_each_result_is_of_its_own_study(tmp_path: Path) -> None:
    one, half, other = pl.together(*studies(), slots=2, files=tmp_path)
    assert [result.name for result in (one, half, other)] == ["fifo-1", "halved", "fifo-3"]
    assert [len(result.trials) for result in (one, half, other)] == [4, 8, 2]
    assert {trial.id for trial in one.trials}.isdisjoint(trial.id for trial in half.trials)
    for result in (one, half, other):
        assert result.best is not None
        values = [trial.value for trial in result.trials if trial.value is not None]
        assert result.best.value == min(values)
        # The best of each is kept, also where another study has a better one.
        assert result.best.checkpoint is not None
        assert result.best.checkpoint.epoch == result.best.epoch
        assert result.end == "quiet"
        assert result.summary().trials == len(result.trials)
    # All that the first wants is wanted by the second too, and nothing by the third.
    assert one.summary().epochs_shared + half.summary().epochs_shared > 4 * EPOCHS // 2
    assert other.summary().epochs_shared == 0


def test_what_was_trained_for_all_costs_nothing_when_all_are_asked_again(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    pl.together(*studies(), slots=2, name="monday", store=store)
    again = pl.together(*studies(), slots=2, name="friday", store=store)
    assert [result.summary().epochs_trained for result in again] == [0, 0, 0]
    assert [len(result.trials) for result in again] == [4, 8, 2]


def test_what_is_to_be_beaten_is_the_best_of_one_s_own_study() -> None:
    bests = Bests(study().spec)
    for trial, group in enumerate((0, 1, 1)):
        bests.open(group)
        bests.launch(launch(trial))
    assert bests.of(0) is None
    said = [(0, 0.5), (1, 0.9), (2, 0.7), (1, 0.8), (0, 0.6), (2, None)]
    assert [bests.beaten(report(*each)) for each in said] == [True, True, True, False, False, False]
    assert [bests.of(attempt) for attempt in range(3)] == [0.5, 0.7, 0.7]
    assert bests.together(1, 2)
    assert not bests.together(0, 1)


def launch(number: int) -> d.Launch:
    return d.Launch(
        attempt=number,
        trial=number,
        start=0,
        source=None,
        goal=EPOCHS,
        save_at=(),
        slots=(number,),
        width=1.0,
        why="it is tested",
    )


def report(attempt: int, loss: float | None) -> e.Reported:
    return e.Reported(at=0.0, attempt=attempt, epoch=1, metrics={"loss": loss}, seconds=1.0)


def log_in(store: str, name: str) -> list[Step]:
    with closing(open_store(store, create=False)) as kept:
        return list(kept.read(name))


def driven(store: str, mark: Path) -> int:
    """Drive the studies in a process of its own; return how it ended."""
    program = (
        "import os, test_together as t, paceline as pl\n"
        "os.environ['TOGETHER_DRIVER'] = str(os.getpid())\n"
        f"pl.together(*t.studies(), slots='cpu:2', name='all', store={store!r})\n"
    )
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    environ = {**os.environ, "PYTHONPATH": path, "TOGETHER_MARK": str(mark)}
    return subprocess.run([sys.executable, "-c", program], env=environ, timeout=120).returncode


def repeated(log: Sequence[Step]) -> int:
    state = folded(log)
    assert complaints(state) == []
    assert state.mismatches == 0
    return state.repeats


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="nobody tells who runs")
def test_a_driver_that_is_killed_is_followed_by_one_that_goes_on_with_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    assert driven(store, tmp_path / "mark") == -signal.SIGKILL
    cut = log_in(store, "all")
    assert folded(cut).end is None
    said = Here(tmp_path, capsys, monkeypatch)("resume", "all", "--store", store)
    assert said.code == 2
    assert "pl.together again" in said.err
    assert driven(store, tmp_path / "mark") == 0
    log = log_in(store, "all")
    assert log[: len(cut)] == cut
    assert sum(isinstance(step.event, e.Resumed) for step in log) == 1
    assert replayed(log).difference is None
    # Two slots were at work: the epochs that ran are trained again, and what was not saved of them.
    assert repeated(log) <= 2 * EPOCHS
    results = pl.together(*studies(), slots="cpu:2", name="all", store=store)
    unharmed = pl.together(*studies(), slots=2)
    for result, other in zip(results, unharmed, strict=True):
        ours, theirs = outcomes(result), outcomes(other)
        assert ours.keys() == theirs.keys()
        for config, (curve, _) in ours.items():
            longest = min(len(curve), len(theirs[config][0]))
            assert curve[:longest] == theirs[config][0][:longest]
        assert len(log_in(store, "all")) == len(log)


def fits_otherwise(trial: Any) -> None:  # noqa: ANN401
    fits(trial)


@pytest.mark.parametrize(
    ("made", "options", "words"),
    [
        ([], {}, "two or more"),
        ([{}], {}, "1 is not several"),
        ([{}, {"metric": "error"}], {}, r"differ in metric \('loss' and 'error'\)"),
        ([{}, {"seed": 6, "epochs": 7}], {}, r"epochs \(6 and 7\), seed \(5 and 6\)"),
        ([{}, {"slots": 2}], {}, "study 2 was given slots, which belongs to all"),
        ([{"deadline": "1h", "name": "a"}, {}], {}, "study 1 was given deadline"),
        ([{}, {}], {"slotz": 2}, "did you mean 'slots'"),
        ([{}, {}], {"store": "sqlite:///x.db"}, "need a name"),
        ([{"name": "a"}, {"name": "a"}], {}, "names that differ"),
    ],
)
def test_studies_that_cannot_be_driven_as_one_are_refused(
    made: list[dict[str, Any]],
    options: Any,  # noqa: ANN401
    words: str,
) -> None:
    with pytest.raises(pl.SpecError, match=words):
        pl.together(*[study(**each) for each in made], **options)


def test_studies_of_different_functions_or_without_a_space_are_refused() -> None:
    told: Any = {"metric": "loss", "mode": "min", "epochs": EPOCHS, "seed": 5}
    other = pl.Study(fits_otherwise, space=OTHER, **told)
    with pytest.raises(pl.SpecError, match="their training functions"):
        pl.together(study(), other)
    with pytest.raises(pl.SpecError, match="study 2 has no space"):
        pl.together(study(), pl.Study(fits, **told))
