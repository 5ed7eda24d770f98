"""A trace of any study simulates back to what happened, and to what one slot each would have taken.

Studies with widths, packing, sharing, costs and failures are simulated, exported, and simulated
again. The seconds of every exported epoch are compared with those of the trace they came from.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from paceline.api.simulation import SimResult, Simulation
from paceline.api.stored import ExportResult, export_trace
from paceline.core.events import Opened
from paceline.engines.sim.traces import Trace, read_trace
from paceline.plan.settings import config_key
from paceline.testing.simulations import make_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.decisions import Step

# What exporting and simulating again may change.
NEAR = 0.05
# What a simulation finds in the trace by itself.
MEASURED = ("speedup", "interference", "setup_s", "save_s", "restore_s")
WIDTHS = ("allocator", "span", "pack")


def run(trace: Trace, **options: Any) -> tuple[SimResult, list[Step]]:  # noqa: ANN401
    log: list[Step] = []
    simulation = Simulation(source="table", order="file", **options)
    return simulation.run(trace=trace, remember=log.extend), log


def export(log: Sequence[Step]) -> tuple[ExportResult, Trace]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "own.jsonl.gz"
        return export_trace(log, path), read_trace(path)


def without(options: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in names}


def as_trained(log: Sequence[Step]) -> list[Step]:
    """Return a log that does not say how it was simulated: the speeds must be measured."""
    opened = log[0].event
    assert isinstance(opened, Opened)
    return [replace(log[0], event=replace(opened, engine={})), *log[1:]]


@st.composite
def elastic_studies(draw: st.DrawFn) -> tuple[Trace, dict[str, Any]]:
    """Draw a table of runs, and the options of a study with widths, packing and the rest."""
    epochs = draw(st.integers(12, 20))
    share = draw(st.booleans())
    configs: list[dict[str, Any]] = []
    seconds = []
    lengths = st.sampled_from([0.5, 1.0, 1.7, 4.0])
    for number in range(draw(st.integers(2, 7))):
        late = number if share else 0
        config = {"lr": {"piecewise": [[0, 0.5], [8, 0.1 + late]]}} if share else {"run": number}
        configs.append(config)
        seconds.append(1.0 if share else draw(lengths))
    curve = [1.0 / (epoch + 1) for epoch in range(epochs)]
    trace = make_table([curve] * len(configs), configs=configs, seconds=seconds, epochs=epochs)
    two = draw(st.floats(1.2, 2.0))
    speedup = f"table:1=1,2={two:.2f},4={two * draw(st.floats(1.1, 2.0)):.2f},8={two * 2.5:.2f}"
    span, pack = draw(st.sampled_from([(2, 1), (4, 1), (8, 1), (1, 2), (1, 4), (4, 2), (8, 4)]))
    options = {
        "policy": draw(st.sampled_from(["fifo", "asha:drain=true"])),
        "allocator": draw(st.sampled_from(["fluid", "fluid", "fluid_static"])),
        "slots": draw(st.integers(2, 8)),
        "span": span,
        "pack": pack,
        "share": share,
        "speedup": speedup,
        "interference": round(draw(st.floats(0.0, 0.8)), 2),
        "setup_s": draw(st.sampled_from([0.0, 0.3])),
        "save_s": draw(st.sampled_from([0.0, 0.2])),
        "restore_s": draw(st.sampled_from([0.0, 0.1])),
        "mean_life_s": draw(st.sampled_from([None, None, 30.0])),
        "retries": 100,
    }
    return trace, options


def find_errors(source: Trace, exported: Trace) -> list[float]:
    """Return by how much the seconds of each exported epoch differ from those of its source."""
    truth = {config_key(each.config): each for each in source.runs}
    return [
        abs(took / expected - 1.0)
        for each in exported.runs
        for took, expected in zip(each.seconds, truth[config_key(each.config)].seconds, strict=True)
    ]


@settings(max_examples=25)
@given(elastic_studies())
def test_a_simulated_study_is_exported_as_it_would_be_on_one_slot(
    study: tuple[Trace, dict[str, Any]],
) -> None:
    source, options = study
    first, log = run(source, **options)
    written, exported = export(log)
    assert written.cut == written.silent == 0
    assert exported.header.normalised == bool(exported.header.speeds)
    assert max(find_errors(source, exported)) < 1e-6
    again, _ = run(exported, **without(options, *MEASURED))
    assert again.makespan_s == pytest.approx(first.makespan_s, rel=NEAR)
    # A cost that the study did not meet is in no trace: it is given to both.
    plain = without(options, "speedup", "interference", "mean_life_s", *WIDTHS)
    narrow, truth = run(exported, **plain)[0], run(source, **plain)[0]
    assert narrow.makespan_s == pytest.approx(truth.makespan_s, rel=NEAR)


@settings(max_examples=25)
@given(elastic_studies())
def test_without_knowing_the_speeds_a_study_measures_them(
    study: tuple[Trace, dict[str, Any]],
) -> None:
    source, options = study
    # An epoch beside one that failed half-way is measured less exactly, and under asha a small
    # difference may change which report is first.
    options |= {"mean_life_s": None, "policy": "fifo"}
    first, log = run(source, **options)
    written, exported = export(as_trained(log))
    assume(all(each.epochs for each in written.speeds))  # else some are assumed
    assert max(find_errors(source, exported)) < NEAR
    again, _ = run(exported, **without(options, *MEASURED))
    # Small differences add up if they change which trial is widened.
    assert again.makespan_s == pytest.approx(first.makespan_s, rel=3 * NEAR)


def test_three_trials_on_eight_slots_simulate_back(tmp_path: Path) -> None:
    # The study whose trace took 38 s at width 1, where each trial alone takes up to 152 s.
    path = tmp_path / "own.jsonl.gz"
    log: list[Step] = []
    wide = Simulation(
        source="families", policy="fifo", slots=8, span=8, allocator="fluid", trials=3
    )
    first = wide.run(remember=log.extend)
    export_trace(log, path)
    own = Simulation(source=str(path), policy="fifo", slots=8, order="file")
    again = replace(own, span=8, allocator="fluid").run()
    truth = replace(wide, span=1, allocator="fixed").run()
    assert truth.makespan_s == pytest.approx(152.1, abs=0.1)
    assert own.run().makespan_s == pytest.approx(truth.makespan_s)
    assert again.makespan_s == pytest.approx(first.makespan_s)


def test_a_width_that_no_trial_compares_with_one_slot_is_assumed_and_said_to_be() -> None:
    # Every epoch is trained on two slots: nothing shows how long one slot would take.
    source = make_table([[1.0] * 8] * 2)
    options: dict[str, Any] = {"policy": "fifo", "slots": 4, "span": 2, "allocator": "fixed"}
    first, log = run(source, speedup="table:1=1,2=1.3", **options)
    written, exported = export(as_trained(log))
    (assumed,) = written.speeds
    assert (assumed.width, assumed.epochs) == (2.0, 0)
    assert assumed.speed == pytest.approx(1.89, abs=0.01)
    again, _ = run(exported, **options)
    assert again.makespan_s == pytest.approx(first.makespan_s)
    assert again.speeds == [assumed]


def test_a_wider_simulation_than_the_study_assumes_the_rest() -> None:
    source = make_table([[1.0] * 9] * 3)
    _, log = run(source, policy="fifo", slots=4, span=2, allocator="fluid", speedup="linear")
    _, exported = export(log)
    result, _ = run(exported, policy="fifo", slots=4, span=4, pack=2, allocator="fluid")
    measured = {each.width: each.epochs > 0 for each in result.speeds}
    assert measured == {0.5: False, 2.0: True, 3.0: False, 4.0: False}


def test_given_speeds_are_used_instead_of_the_traces() -> None:
    source = make_table([[1.0] * 8])
    options: dict[str, Any] = {"policy": "fifo", "slots": 4, "span": 4}
    _, log = run(source, **options)
    _, exported = export(log)
    assert run(exported, **options)[0].makespan_s == pytest.approx(2.0)
    assert run(exported, speedup="table:1=1,4=2", **options)[0].makespan_s == pytest.approx(4.0)


def test_epochs_trained_twice_count_as_they_were_trained_first() -> None:
    # Killed after 3.5 s on two slots, without a checkpoint, and trained again from the start.
    source = make_table([[1.0] * 8], seconds=2.0)
    options: dict[str, Any] = {"policy": "fifo", "slots": 2, "span": 2, "kills": ((3.5, 0),)}
    first, log = run(source, save_every_s=100.0, **options)
    assert first.makespan_s == pytest.approx(3.5 + 8.0)
    for each in (log, as_trained(log)):
        _, exported = export(each)
        assert len({round(took, 9) for took in exported.runs[0].seconds}) == 1
    _, exported = export(log)
    assert list(exported.runs[0].seconds) == pytest.approx([2.0] * 8)
    again, _ = run(exported, save_every_s=100.0, **options)
    assert again.makespan_s == pytest.approx(first.makespan_s)


def test_a_trace_of_one_slot_each_is_not_normalised() -> None:
    _, log = run(make_table([[1.0] * 4] * 2, seconds=0.7), policy="fifo", slots=2)
    written, exported = export(log)
    assert (written.speeds, exported.header.normalised) == ([], False)
    assert list(exported.runs[0].seconds) == [0.7] * 4


def test_a_trial_that_never_started_from_scratch_has_the_mean_set_up() -> None:
    configs = [{"lr": {"piecewise": [[0, 0.5], [4, late]]}} for late in (0.1, 0.2)]
    source = make_table([[1.0] * 8] * 2, configs=configs)
    first, log = run(source, policy="fifo", slots=2, share=True, setup_s=2.0)
    _, exported = export(log)
    assert [each.setup_s for each in exported.runs] == [2.0, 2.0]
    again, _ = run(exported, policy="fifo", slots=2, share=True)
    assert again.makespan_s == pytest.approx(first.makespan_s)


def test_the_time_of_forecasts_is_measured_and_charged_again() -> None:
    source = make_table([[1.0 / (epoch + 1 + run) for epoch in range(12)] for run in range(4)])
    options: dict[str, Any] = {"policy": "pop", "curves": "last", "slots": 2, "complete": True}
    first, log = run(source, forecast_s=0.75, draw=0, **options)
    _, exported = export(log)
    assert first.reports > 0
    assert exported.header.forecast_s == pytest.approx(0.75)
