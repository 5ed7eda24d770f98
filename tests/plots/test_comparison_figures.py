"""The figures of a comparison, and the courses they are drawn from."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
import pytest
from cli_kit import Here, tiny

from paceline.analysis.profiles import Course, Follower
from paceline.api.comparison import CompareResult, Comparison, compare, race
from paceline.api.simulation import Simulation
from paceline.plots import comparison_figures
from paceline.plots.series import levels

if TYPE_CHECKING:
    from pathlib import Path

    from paceline.analysis.profiles import Raced
    from paceline.api.simulation import SimResult


def followed(simulation: Simulation) -> tuple[SimResult, Course]:
    follower = Follower()
    result = simulation.run(remember=follower.take)
    return result, follower.course()


def raced(target: float | None, *policies: str, seeds: int = 4) -> list[Raced]:
    base = Simulation(source="", trials=20, epochs=20)
    comparison = Comparison(
        sources=("families",), policies=policies, curves=("oracle",), seeds=seeds, target=target
    )
    return race(msgspec.structs.replace(comparison, base=base), jobs=1)[1]


@pytest.mark.parametrize("policy", ["fifo", "asha", "hypersched", "pop", "early_term"])
def test_the_slots_that_classes_held_add_up_to_the_slot_time(policy: str) -> None:
    simulation = Simulation(source="families", policy=policy, curves="oracle", trials=30, epochs=20)
    result, course = followed(simulation)
    held = levels(list(course.held.values()), course.until).areas()
    assert sum(held) == pytest.approx(result.slot_seconds)


def test_the_lead_only_rises_and_ends_at_the_best() -> None:
    result, course = followed(Simulation(source="families", policy="asha", trials=30, epochs=20))
    values = [value for _, value in course.leads]
    assert values == sorted(values)
    assert course.value_at(course.until) == values[-1] == result.best_value
    first = course.leads[0][0]
    assert course.value_at(first / 2) is None
    assert course.value_at(first) == values[0]


def test_training_times_are_those_of_the_trials(tmp_path: Path) -> None:
    trace = tiny(tmp_path / "t.jsonl.gz")
    result, course = followed(Simulation(source=str(trace), policy="fifo"))
    assert len(course.trained) == result.trials_started
    assert sum(course.trained) == pytest.approx(result.slot_seconds)


def test_pop_has_two_classes_and_others_none() -> None:
    simulation = Simulation(
        source="families", policy="pop", curves="oracle", target=0.9, trials=60, epochs=40
    )
    assert set(followed(simulation)[1].held) == {"promising", "opportunistic"}
    plain = msgspec.structs.replace(simulation, policy="asha")
    assert set(followed(plain)[1].held) == {"running"}


def test_who_is_followed_finds_the_same(tmp_path: Path) -> None:
    trace = tiny(tmp_path / "t.jsonl.gz")
    comparison = Comparison(sources=(str(trace),), policies=("fifo", "asha"), slots=(1, 2), seeds=3)
    table, lines = race(comparison, jobs=2)
    assert table.rows == compare(comparison, jobs=1).rows
    assert [len(line.courses) for line in lines] == [3, 3, 3, 3]


def test_every_figure_names_every_policy() -> None:
    lines = raced(0.8, "fifo", "asha", "pop")
    for name, draw in comparison_figures.FIGURES.items():
        named = {str(trace.name).split(":")[0].split(" ")[0] for trace in draw(lines).data}
        assert {"fifo", "asha", "pop"} <= named, name


def test_who_never_reached_the_target_is_counted() -> None:
    lines = raced(0.99, "fifo", seeds=2)
    assert comparison_figures.time_to_target(lines).data[0].name == "fifo (2 never)"


def test_the_band_lies_around_the_median() -> None:
    band, middle = comparison_figures.best_by_time(raced(None, "fifo")).data
    half = len(band.x) // 2
    bounds = dict(
        zip(band.x[:half], zip(band.y[:half], band.y[half:][::-1], strict=True), strict=True)
    )
    inside = [
        (bounds[at], value) for at, value in zip(middle.x, middle.y, strict=True) if at in bounds
    ]
    assert inside
    assert all(worst <= value <= best for (best, worst), value in inside)


def test_without_a_target_the_figure_says_so() -> None:
    figure = comparison_figures.time_to_target(raced(None, "fifo", seeds=1))
    assert figure.layout.annotations[0].text == "These runs had no target."


def test_where_no_epoch_ended_the_figures_say_so() -> None:
    base = Simulation(source="", deadline_s=1.0, trials=2)
    comparison = Comparison(sources=("toy:epoch_s=9",), policies=("fifo",), seeds=2, base=base)
    lines = race(comparison, jobs=1)[1]
    figure = comparison_figures.trial_durations(lines)
    assert figure.layout.annotations[0].text == "No trial finished an epoch."
    assert comparison_figures.best_by_time(lines).data[1].x == ()


def test_the_page_needs_no_network_and_is_the_same_again(paceline: Here) -> None:
    trace = tiny(paceline.folder / "t.jsonl.gz")
    command = ("compare", trace, "--policies", "fifo,asha", "--slots", "1,2", "--seeds", "2")
    found = paceline(*command, "--plot", "one.html")
    assert found.out.endswith("one.html\n")
    page = (paceline.folder / "one.html").read_text(encoding="utf-8")
    assert not re.findall(r"<script[^>]+src=", page)
    assert page.count("<h1>") == 2
    assert page.count('class="plotly-graph-div"') == 8
    assert paceline(*command, "--plot", "two.html").code == 0
    assert (paceline.folder / "two.html").read_text(encoding="utf-8") == page


def test_json_is_all_that_is_printed_beside_a_plot(paceline: Here) -> None:
    trace = tiny(paceline.folder / "t.jsonl.gz")
    command = ("compare", trace, "--policies", "fifo", "--seeds", "1", "--json")
    found = paceline(*command, "--plot", "one.html")
    assert msgspec.json.decode(found.out, type=CompareResult).runs == 1
    assert (paceline.folder / "one.html").exists()


def test_a_page_that_cannot_be_written_is_said_in_a_sentence(paceline: Here) -> None:
    trace = tiny(paceline.folder / "t.jsonl.gz")
    command = ("compare", trace, "--policies", "fifo", "--seeds", "1", "--plot")
    for path in ("no/such/folder.html", "x" * 300 + ".html"):
        found = paceline(*command, path)
        assert found.code == 2
        assert "cannot be written" in found.err
        assert "Traceback" not in found.err
