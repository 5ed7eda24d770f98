"""A study that ran can be simulated from its own trace: with its curves, its times, its costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import paceline as pl
from paceline.api.stored import export_trace
from paceline.testing.simulations import make_falling_curves, make_table

if TYPE_CHECKING:
    from pathlib import Path


# All trials train to their last epoch, so that no curve is cut short.
DRAINING = "asha:drain=true"


def again(folder: Path, log: Any, save_s: float = 0.0) -> tuple[pl.Trace, pl.SimResult]:  # noqa: ANN401
    """Return a study's own trace, and what comes of simulating it."""
    path = folder / "own.jsonl.gz"
    export_trace(log, path, force=True)
    simulation = pl.Simulation(
        source=str(path), policy=DRAINING, slots=2, order="file", save_s=save_s
    )
    return pl.read_trace(path), simulation.run()


def simulated() -> tuple[pl.SimResult, list[Any]]:
    log: list[Any] = []
    first = pl.Simulation(
        source="table",
        policy=DRAINING,
        slots=2,
        order="file",
        setup_s=2.5,
        save_s=0.5,
        restore_s=1.25,
    )
    return first.run(trace=make_table(make_falling_curves(9, 9)), remember=log.extend), log


def test_what_starting_saving_and_loading_cost_is_measured_and_charged_again(
    tmp_path: Path,
) -> None:
    first, log = simulated()
    trace, second = again(tmp_path, log)
    assert (trace.header.save_s, trace.header.restore_s) == (0.5, 1.25)
    assert {run.setup_s for run in trace.runs} == {2.5}
    assert second.makespan_s == pytest.approx(first.makespan_s)


def test_a_cost_that_is_given_is_charged_instead_of_the_traces(tmp_path: Path) -> None:
    first, log = simulated()
    _, dear = again(tmp_path, log, save_s=50.0)
    assert dear.makespan_s > first.makespan_s + 50.0


def test_an_invalid_cost_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(
        '{"paceline_trace": 1, "name": "n", "metric": "loss", "mode": "min", "max_epochs": 1, '
        '"save_s": -1.0}\n{"id": 0, "config": {}, "values": [1.0], "seconds": 1.0}\n'
    )
    with pytest.raises(pl.TraceError, match=r"bad.jsonl:1: field save_s: -1.0 is not a duration"):
        pl.read_trace(path)


def descends(trial: Any) -> None:  # noqa: ANN401
    weights = trial.keep(weights=bytearray(1000))
    for epoch in trial.epochs():
        weights[epoch] = 1  # what was a bytearray is one again
        trial.report(loss=trial["floor"] + 1.0 / (epoch + 1))


def test_a_study_of_real_processes_is_simulated_from_its_own_trace(tmp_path: Path) -> None:
    result = pl.tune(
        descends,
        space={"floor": pl.uniform(0.0, 1.0)},
        metric="loss",
        mode="min",
        epochs=9,
        policy=DRAINING,
        generator="random",
        trials=9,
        slots="cpu:2",
    )
    assert [trial.failures for trial in result.trials] == [0] * 9
    trace, second = again(tmp_path, result.log)
    assert [list(run.values) for run in trace.runs] == [trial.values for trial in result.trials]
    assert [list(run.seconds) for run in trace.runs] == [trial.seconds for trial in result.trials]
    assert trace.header.save_s is not None
    # On a busy machine a save may take what was left of a start.
    assert any(run.setup_s for run in trace.runs)
    assert (second.trials_started, second.trials_finished) == (9, 9)
    assert second.reports == 81
