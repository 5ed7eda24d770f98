"""The figures of a comparison, and the run profiles they are drawn from."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
import pytest
from command_line import CommandLine, write_small_trace

from paceline.analysis.profiles import ProfileRecorder, RunProfile
from paceline.api.comparison import CompareResult, Comparison, compare, race
from paceline.api.simulation import Simulation
from paceline.plots import comparison_figures
from paceline.plots.series import sum_levels

if TYPE_CHECKING:
    from pathlib import Path

    from paceline.analysis.profiles import PolicyRuns
    from paceline.api.simulation import SimResult


def record_profile(simulation: Simulation) -> tuple[SimResult, RunProfile]:
    recorder = ProfileRecorder()
    result = simulation.run(remember=recorder.take)
    return result, recorder.profile()


def compare_policies(target: float | None, *policies: str, seeds: int = 4) -> list[PolicyRuns]:
    base = Simulation(source="", trials=20, epochs=20)
    comparison = Comparison(
        sources=("families",), policies=policies, curves=("oracle",), seeds=seeds, target=target
    )
    return race(msgspec.structs.replace(comparison, base=base), jobs=1)[1]


@pytest.mark.parametrize("policy", ["fifo", "asha", "hypersched", "pop", "early_term"])
def test_the_slots_held_add_up_to_the_slot_time(policy: str) -> None:
    simulation = Simulation(source="families", policy=policy, curves="oracle", trials=30, epochs=20)
    result, profile = record_profile(simulation)
    held = sum_levels(list(profile.held.values()), profile.until).areas()
    assert sum(held) == pytest.approx(result.slot_seconds)


def test_the_best_value_only_improves_and_ends_at_the_result() -> None:
    result, profile = record_profile(
        Simulation(source="families", policy="asha", trials=30, epochs=20)
    )
    values = [value for _, value in profile.best_changes]
    assert values == sorted(values)
    assert profile.value_at(profile.until) == values[-1] == result.best_value
    first = profile.best_changes[0][0]
    assert profile.value_at(first / 2) is None
    assert profile.value_at(first) == values[0]


def test_training_times_are_those_of_the_trials(tmp_path: Path) -> None:
    trace = write_small_trace(tmp_path / "t.jsonl.gz")
    result, profile = record_profile(Simulation(source=str(trace), policy="fifo"))
    assert len(profile.trained) == result.trials_started
    assert sum(profile.trained) == pytest.approx(result.slot_seconds)


def test_only_pop_labels_its_trials() -> None:
    simulation = Simulation(
        source="families", policy="pop", curves="oracle", target=0.9, trials=60, epochs=40
    )
    assert set(record_profile(simulation)[1].held) == {"promising", "opportunistic"}
    plain = msgspec.structs.replace(simulation, policy="asha")
    assert set(record_profile(plain)[1].held) == {"running"}


def test_recording_a_profile_does_not_change_the_result(tmp_path: Path) -> None:
    trace = write_small_trace(tmp_path / "t.jsonl.gz")
    comparison = Comparison(sources=(str(trace),), policies=("fifo", "asha"), slots=(1, 2), seeds=3)
    table, lines = race(comparison, jobs=2)
    assert table.rows == compare(comparison, jobs=1).rows
    assert [len(line.profiles) for line in lines] == [3, 3, 3, 3]


def test_every_figure_names_every_policy() -> None:
    lines = compare_policies(0.8, "fifo", "asha", "pop")
    for name, draw in comparison_figures.FIGURES.items():
        named = {str(trace.name).split(":")[0].split(" ")[0] for trace in draw(lines).data}
        assert {"fifo", "asha", "pop"} <= named, name


def test_the_figure_counts_runs_that_never_reached_the_target() -> None:
    lines = compare_policies(0.99, "fifo", seeds=2)
    assert comparison_figures.draw_time_to_target(lines).data[0].name == "fifo (2 never)"


def test_the_band_is_around_the_median() -> None:
    band, middle = comparison_figures.draw_best_by_time(compare_policies(None, "fifo")).data
    half = len(band.x) // 2
    bounds = dict(
        zip(band.x[:half], zip(band.y[:half], band.y[half:][::-1], strict=True), strict=True)
    )
    inside = [
        (bounds[at], value) for at, value in zip(middle.x, middle.y, strict=True) if at in bounds
    ]
    assert inside
    assert all(worst <= value <= best for (best, worst), value in inside)


def test_without_a_target_the_figure_has_a_sentence() -> None:
    figure = comparison_figures.draw_time_to_target(compare_policies(None, "fifo", seeds=1))
    assert figure.layout.annotations[0].text == "These runs had no target."


def test_without_an_epoch_the_figures_have_a_sentence() -> None:
    base = Simulation(source="", deadline_s=1.0, trials=2)
    comparison = Comparison(sources=("toy:epoch_s=9",), policies=("fifo",), seeds=2, base=base)
    lines = race(comparison, jobs=1)[1]
    figure = comparison_figures.draw_trial_durations(lines)
    assert figure.layout.annotations[0].text == "No trial finished an epoch."
    assert comparison_figures.draw_best_by_time(lines).data[1].x == ()


def test_the_page_needs_no_network_and_is_reproducible(paceline: CommandLine) -> None:
    trace = write_small_trace(paceline.folder / "t.jsonl.gz")
    command = ("compare", trace, "--policies", "fifo,asha", "--slots", "1,2", "--seeds", "2")
    found = paceline(*command, "--plot", "one.html")
    assert found.out.endswith("one.html\n")
    page = (paceline.folder / "one.html").read_text(encoding="utf-8")
    assert not re.findall(r"<script[^>]+src=", page)
    assert page.count("<h1>") == 2
    assert page.count('class="plotly-graph-div"') == 8
    assert paceline(*command, "--plot", "two.html").code == 0
    assert (paceline.folder / "two.html").read_text(encoding="utf-8") == page


def test_with_json_and_a_plot_only_json_is_printed(paceline: CommandLine) -> None:
    trace = write_small_trace(paceline.folder / "t.jsonl.gz")
    command = ("compare", trace, "--policies", "fifo", "--seeds", "1", "--json")
    found = paceline(*command, "--plot", "one.html")
    assert msgspec.json.decode(found.out, type=CompareResult).runs == 1
    assert (paceline.folder / "one.html").exists()


def test_a_page_that_cannot_be_written_is_an_error_of_one_line(paceline: CommandLine) -> None:
    trace = write_small_trace(paceline.folder / "t.jsonl.gz")
    command = ("compare", trace, "--policies", "fifo", "--seeds", "1", "--plot")
    for path in ("no/such/folder.html", "x" * 300 + ".html"):
        found = paceline(*command, path)
        assert found.code == 2
        assert "cannot be written" in found.err
        assert "Traceback" not in found.err
