"""Traces of studies that cut trials short: refused, or completed by forecasts."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

import paceline as pl
from paceline.api.comparison import Comparison, compare
from paceline.api.completion import complete_trace, count_cut_runs
from paceline.api.curve_forecast import forecast_curve, read_trace_curve
from paceline.api.simulation import Simulation
from paceline.api.stored import export_trace
from paceline.engines.sim.traces import write_trace
from paceline.testing.simulations import make_falling_curves, make_table

if TYPE_CHECKING:
    from pathlib import Path

EPOCHS = 9


def descends(trial: Any) -> None:  # noqa: ANN401
    trial.keep(state=[0])
    for epoch in trial.epochs():
        trial.report(loss=trial["floor"] + 1.0 / (epoch + 1))


@pytest.fixture(scope="module")
def trace_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trace of a real study that paused most of its trials."""
    result = pl.tune(
        descends,
        space={"floor": pl.uniform(0.0, 1.0)},
        metric="loss",
        mode="min",
        range=(0.0, 3.0),
        epochs=EPOCHS,
        policy="asha",
        generator="random",
        trials=9,
        slots="cpu:2",
        progress=False,
    )
    path = tmp_path_factory.mktemp("traces") / "own.jsonl.gz"
    written = export_trace(result.log, path)
    assert written.cut == 9 - sum(trial.status == "finished" for trial in result.trials)
    return path


def test_an_exported_trace_says_which_runs_were_cut_short(trace_file: Path) -> None:
    trace = pl.read_trace(trace_file)
    cut = [run.cut for run in trace.runs]
    assert cut == [len(run.values) < EPOCHS for run in trace.runs]
    assert trace.header.cut == sum(cut) > 0
    assert trace.header.range == (0.0, 3.0)


def test_a_trace_that_does_not_say_so_is_complete() -> None:
    table = make_table([[3.0, 2.0], [3.0]])
    assert count_cut_runs(table) == 0
    assert Simulation(source="table", policy="fifo").run(trace=table).trials_finished == 2


def test_a_trace_that_was_cut_is_refused(trace_file: Path) -> None:
    with pytest.raises(pl.SpecError, match=r"cut \d of its 9 runs short.*give --complete"):
        Simulation(source=str(trace_file), policy="fifo").run()
    with pytest.raises(pl.SpecError, match="complete=True"):
        compare(Comparison(sources=(str(trace_file),), policies=("fifo",)), jobs=1)


def test_epochs_that_all_runs_have_need_no_completion(trace_file: Path) -> None:
    result = Simulation(source=str(trace_file), policy="fifo", epochs=1).run()
    assert (result.trials_finished, result.epochs_trained) == (9, 9)
    assert result.completion is None


def test_a_completed_trace_trains_all_epochs_and_says_how_uncertain_it_is(
    trace_file: Path,
) -> None:
    result = Simulation(source=str(trace_file), policy="fifo", complete=True).run()
    assert (result.trials_finished, result.epochs_trained) == (9, 9 * EPOCHS)
    found = result.completion
    assert found is not None
    assert (found.runs, found.draws, found.curves) == (9, 10, "pfn")
    assert found.best_range is not None
    low, high = found.best_range
    assert result.best_value is not None
    assert low <= result.best_value <= high
    assert found.epochs_range == (9 * EPOCHS, 9 * EPOCHS)


def test_a_draw_is_the_same_each_time_and_differs_from_another(trace_file: Path) -> None:
    trace = pl.read_trace(trace_file)
    first, again, other = (complete_trace(trace, draw) for draw in (0, 0, 1))
    assert [run.values for run in first.runs] == [run.values for run in again.runs]
    assert [run.values for run in first.runs] != [run.values for run in other.runs]
    for run, known in zip(first.runs, trace.runs, strict=True):
        assert run.values[: len(known.values)] == known.values
        assert (len(run.values), run.cut) == (EPOCHS, False)
        assert all(0.0 <= value <= 3.0 for value in run.values)
        mean = sum(known.seconds) / len(known.seconds)
        assert list(run.seconds[len(known.values) :]) == pytest.approx(
            [mean] * (EPOCHS - len(known.values))
        )


def test_a_run_without_any_number_stays_without_one() -> None:
    table = make_table([[3.0, 2.0], [2.0, 1.0]])
    nan = replace(table.runs[1], values=array("d", [float("nan")]), seconds=array("d", [1.0]))
    trace = replace(table, runs=[table.runs[0], replace(nan, cut=True)])
    (_, run) = complete_trace(trace, 0).runs
    assert [value == value for value in run.values] == [False, False]


def test_each_seed_of_a_comparison_has_its_own_draw(trace_file: Path) -> None:
    base = Simulation(source="", complete=True)
    comparison = Comparison(
        sources=(str(trace_file),), policies=("fifo", "asha"), seeds=3, base=base
    )
    found = compare(comparison, jobs=1)
    for row in found.rows:
        assert row.completed == pl.read_trace(trace_file).header.cut
        assert row.best_low is not None
        assert row.best_high is not None
        assert row.best_low <= row.best_high


def test_one_draw_can_be_logged_and_several_cannot(trace_file: Path) -> None:
    log: list[Any] = []
    several = Simulation(source=str(trace_file), policy="fifo", complete=True)
    with pytest.raises(pl.SpecError, match="give draw=0"):
        several.run(remember=log.extend)
    result = replace(several, draw=0).run(remember=log.extend)
    assert (result.completion, bool(log)) == (None, True)


def test_a_synthetic_workload_has_nothing_to_complete() -> None:
    with pytest.raises(pl.SpecError, match="complete=True is for traces"):
        Simulation(source="toy", complete=True).run()


def test_a_forecast_begins_where_a_run_was_cut_and_at_the_half_of_a_complete_one(
    tmp_path: Path,
) -> None:
    table = make_table(make_falling_curves(2, 8))
    short = replace(table.runs[1], values=table.runs[1].values[:3], seconds=array("d", [1.0] * 3))
    path = tmp_path / "cut.jsonl.gz"
    header = replace(table.header, cut=1, range=(0.0, 1.0))
    write_trace(path, header, [table.runs[0], replace(short, cut=True)])
    assert len(read_trace_curve(str(path), 0, None).values) == 4
    known = read_trace_curve(str(path), 1, None)
    assert (len(known.values), known.later) == (3, [])
    fan = forecast_curve(known, "pfn")
    assert all(0.0 <= row.low_95 <= row.high_95 <= 1.0 for row in fan.rows)
