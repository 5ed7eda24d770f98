"""Chronicles, figures and the report: what they count, what they leave out, what they survive."""

from __future__ import annotations

import doctest
import json
import math
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from build import Played, table
from hypothesis import given
from hypothesis import strategies as st
from test_laws import busy, made, studies

from paceline.analysis.story import trial_story
from paceline.analysis.timeline import KEPT, Chronicle, Lead, TrialPast, chronicle_of
from paceline.api.simulation import Simulation
from paceline.cli.flags import FLAGS, simulation_with
from paceline.cli.report import simulate_command
from paceline.cli.simulate import simulate
from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.decisions import Step
from paceline.core.errors import LogError, SpecError
from paceline.core.values import Budget, Part, Status, StudySpec, Target
from paceline.engines.sim.cluster import Faults
from paceline.plots import config_figures, curve_figures, series, slot_figures
from paceline.plots.dimensions import dimensions
from paceline.plots.figures import FIGURES
from paceline.plots.report import trial_table as trials_table
from paceline.plots.report.html import ordered
from paceline.plots.report.page import report_html, write_report
from paceline.plots.style import SHADES, window

if TYPE_CHECKING:
    from random import Random

NAN = math.nan
WHY = "the test wants it"
HOSTILE = "</script><img src=x onerror=hacked=1><b>%{x}</b>&\u2028$'\"`"


def log_of(*parts: tuple[e.AnyEvent, list[d.AnyDecision]]) -> list[Step]:
    """Return facts and what they caused as a log."""
    steps: list[Step] = []
    for event, decisions in parts:
        number = steps[-1].after if steps else 0
        steps.append(Step(number, event, tuple(decisions)))
    return steps


def spec(**changes: Any) -> StudySpec:  # noqa: ANN401
    told = {"name": "hand", "metric": "loss", "mode": "min", "epochs": 3}
    parts = {"policy": Part("fifo"), "generator": Part("random")}
    return StudySpec(**{**told, **parts, **changes})


def launch(attempt: int, trial: int, slots: tuple[int, ...], width: float = 1.0) -> d.Launch:
    return d.Launch(
        attempt=attempt,
        trial=trial,
        start=0,
        source=None,
        goal=3,
        save_at=(),
        slots=slots,
        width=width,
        why=WHY,
    )


def reported(at: float, attempt: int, epoch: int, value: float | None) -> e.Reported:
    return e.Reported(at=at, attempt=attempt, epoch=epoch, metrics={"loss": value}, seconds=1.5)


def opens(*trials: int) -> list[d.AnyDecision]:
    return [d.Open(trial=each, config={"lr": 0.1 * each}, until=3, why=WHY) for each in trials]


def by_hand() -> list[Step]:
    """Return a study of two trials: one has 1.5 slots for 6 s, one fails after 4 s on a half."""
    failed = e.Ended(at=4.0, attempt=1, cause=e.Cause.FAILED, note="out of memory")
    halves = [launch(0, 0, (0, 1), 1.5), launch(1, 1, (2,), 0.5)]
    return log_of(
        (e.Opened(at=0.0, spec=spec(retries=0)), []),
        (e.CapacityChanged(at=0.0, slots=(0, 1, 2)), [*opens(0, 1), *halves]),
        (reported(2.0, 0, 1, 0.5), []),
        (reported(3.0, 1, 1, None), []),
        (failed, [d.Fail(trial=1, why=WHY)]),
        (e.CapacityChanged(at=5.0, slots=(0, 1)), []),
        (reported(5.5, 0, 2, 0.7), []),
        (reported(6.0, 0, 3, 0.25), []),
        (e.Ended(at=6.0, attempt=0, cause=e.Cause.GOAL), [d.End(cause=d.EndCause.QUIET, why=WHY)]),
    )


def past_of(**changes: Any) -> Chronicle:  # noqa: ANN401
    """Return the past of a study that has only been opened, with what a test puts into it."""
    empty = chronicle_of(log_of((e.Opened(at=0.0, spec=spec()), [])))
    fields = {name: getattr(empty, name) for name in empty.__struct_fields__}
    return Chronicle(**{**fields, **changes})


def trial_past(number: int, values: list[float], **changes: Any) -> TrialPast:  # noqa: ANN401
    numbers = [value for value in values if not math.isnan(value)]
    told: dict[str, Any] = {
        "config": {"lr": number},
        "status": Status.STOPPED,
        "opened_at": 0.0,
        "best": min(numbers, default=None),
        "best_epoch": values.index(min(numbers)) + 1 if numbers else 0,
        "seconds": float(len(values)),
    }
    return TrialPast(trial=number, values=values, times=range(len(values)), **{**told, **changes})


def words_of(figure: Any) -> str:  # noqa: ANN401
    """Return everything a figure says in its title and notes."""
    title = figure.layout.title
    notes = [note.text for note in figure.layout.annotations]
    return " ".join([title.text or "", title.subtitle.text or "", *notes])


# The chronicle


def test_a_chronicle_tells_what_happened_when() -> None:
    past = chronicle_of(by_hand())
    good, bad = past.trials
    assert (good.status, good.opened_at, good.ended_at) == (Status.FINISHED, 0.0, 6.0)
    assert (list(good.times), list(good.values)) == ([2.0, 5.5, 6.0], [0.5, 0.7, 0.25])
    assert (good.best, good.best_epoch, good.seconds, good.attempts) == (0.25, 3, 4.5, 1)
    assert (bad.status, bad.ended_at, bad.failures, bad.best) == (Status.FAILED, 4.0, 1, None)
    assert list(map(math.isnan, bad.values)) == [True]
    assert past.leads == (Lead(2.0, 0.5, 0, 1), Lead(6.0, 0.25, 0, 3))
    assert past.capacity == ((0.0, 3), (5.0, 2))
    ended = [(each.ended_at, each.cause, each.note, each.epoch) for each in past.attempts]
    assert ended == [(6.0, e.Cause.GOAL, "", 3), (4.0, e.Cause.FAILED, "out of memory", 1)]
    assert [type(each.decision).__name__ for each in past.decided][-2:] == ["Fail", "End"]
    assert past.decided[-1].number == by_hand()[-1].number + 1


def test_busy_slots_and_capacity_are_what_attempts_held_and_what_there_was() -> None:
    past = chronicle_of(by_hand())
    busy_levels, there = slot_figures.busy_slots(past), slot_figures.capacity_steps(past)
    keys = [shade.key for shade in SHADES]
    rows = dict(zip(keys, busy_levels.rows, strict=True))
    assert busy_levels.times == [0.0, 4.0, 6.0]
    assert (rows["failed"], rows["best"]) == ([0.5, 0.0], [1.5, 1.5])
    assert sum(busy_levels.areas()) == 11.0 == past.study.slot_seconds
    assert (there.times, there.rows) == ([0.0, 5.0, 6.0], [[3.0, 2.0]])
    assert there.areas() == [17.0] == [past.capacity_seconds]


def test_a_study_that_still_runs_is_told_up_to_now() -> None:
    past = chronicle_of(by_hand()[:4])
    assert (past.now, past.study.end) == (3.0, None)
    assert [each.ended_at for each in past.attempts] == [None, None]
    assert [trial.status for trial in past.trials] == [Status.RUNNING, Status.RUNNING]
    assert sum(slot_figures.busy_slots(past).areas()) == 6.0


def test_a_log_that_is_empty_has_no_past() -> None:
    with pytest.raises(LogError, match="empty"):
        chronicle_of([])


def test_of_all_decisions_the_last_are_kept() -> None:
    past = chronicle_of(Played(table([[1.0]] * KEPT), epochs=1).run().steps)
    assert len(past.decided) == KEPT
    assert isinstance(past.decided[-1].decision, d.End)


@given(studies(), st.randoms(use_true_random=False))
def test_any_study_cut_anywhere_adds_up(study: dict[str, Any], rng: Random) -> None:
    played = made(study).run()
    cut = rng.randint(1, len(played.steps))
    past = chronicle_of(played.steps[:cut])
    busy_levels = slot_figures.busy_slots(past)
    assert sum(busy_levels.areas()) == pytest.approx(past.study.slot_seconds, abs=1e-6)
    assert sum(slot_figures.capacity_steps(past).areas()) == pytest.approx(past.capacity_seconds)
    for most in (1, 3):
        means = series.averaged(busy_levels, most)
        assert means.areas() == pytest.approx(busy_levels.areas(), abs=1e-6)
    losses = [past.spec.sign * lead.value for lead in past.leads]
    assert losses == sorted(set(losses), reverse=True)
    assert [lead.value for lead in past.leads[-1:]] == ([past.best.value] if past.best else [])
    for trial in past.trials:
        assert len(trial.times) == trial.epochs
        assert list(trial.times) == sorted(trial.times)
        assert (trial.ended_at is None) == (trial.status in ("ready", "running", "waiting"))


@given(studies())
def test_every_story_is_told_in_the_same_pass(study: dict[str, Any]) -> None:
    steps = made(study).run().steps
    for trial in chronicle_of(steps).trials:
        assert list(trial.story) == list(trial_story(steps, trial.trial))


def test_a_busy_study_is_told_whole() -> None:
    # Chance makes these studies: look at those in which prefixes are shared and trials are wide.
    seen = 0
    for seed in range(8):
        steps = busy(seed).run().steps
        past = chronicle_of(steps)
        shared = any(len(attempt.trials) > 1 for attempt in past.attempts)
        wide = any(attempt.width > 1.0 for attempt in past.attempts)
        if shared and wide:
            seen += 1
            for trial in past.trials:
                assert list(trial.story) == list(trial_story(steps, trial.trial))
            for draw in FIGURES.values():
                json.loads(draw(past).to_json())
    assert seen >= 2


# Arithmetic of lines


def test_levels_begin_at_nothing_and_end_with_the_study() -> None:
    line = series.levels([[(1.0, 2.0), (3.0, -2.0)], [(2.0, 1.0)]], 4.0)
    assert line.times == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert line.rows == [[0.0, 2.0, 2.0, 0.0], [0.0, 0.0, 1.0, 1.0]]
    assert line.areas() == [4.0, 2.0]
    assert series.levels([[]], 0.0) == series.Levels([0.0], [[]])


def test_shares_of_a_slot_leave_no_dust() -> None:
    thirds = [(float(at), 1 / 3) for at in range(3)] + [(3.0, -1 / 3)] * 3
    assert series.levels([thirds], 5.0).rows[0][-1] == 0.0


def test_means_say_over_how_long_they_are() -> None:
    line = series.levels([[(float(at), (-1.0) ** at) for at in range(10)]], 10.0)
    means = series.averaged(line, 5)
    assert (means.times, means.bin_s) == ([0.0, 2.0, 4.0, 6.0, 8.0, 10.0], 2.0)
    assert means.rows == [[0.5] * 5]
    assert series.averaged(line, 10) is line


def test_a_long_curve_keeps_its_ends_its_extremes_and_its_gaps() -> None:
    values = [math.sin(at / 40) for at in range(1000)]
    values[333], values[500], values[700] = 9.0, -9.0, NAN
    kept = series.thinned(values, 100)
    assert len(kept) <= 150
    assert {0, 333, 500, 700, 999} <= set(kept)
    assert series.thinned(values[:50], 100) == list(range(50))
    assert series.thinned([NAN] * 50, 10)[::50] == [0]


def test_spans_that_overlap_lie_in_different_lanes() -> None:
    assert series.lanes([(0, 2), (1, 3), (2, 4), (2.5, 5), (3, 6)]) == [0, 1, 0, 2, 1]


def test_an_even_sample_has_its_size() -> None:
    assert series.spread(range(10), 3) == [0, 3, 6]
    assert series.spread([1, 2], 3) == [1, 2]


# What is chosen, and what is said about the rest


def test_of_too_many_curves_the_best_the_longest_and_some_others_are_drawn() -> None:
    crowd = [trial_past(each, [float(each), float(each)]) for each in range(1000)]
    crowd[900] = trial_past(900, [900.0] * 50)
    chosen = [trial.trial for trial in curve_figures.telling(crowd, 1.0, 200)]
    assert len(chosen) == 200
    assert set(range(100)) <= set(chosen)
    assert 900 in chosen
    assert len([each for each in chosen if each > 300]) > 20
    figure = curve_figures.learning_curves(past_of(trials=tuple(crowd)))
    assert "200 of 1,000 trials" in words_of(figure)
    drawn = {each for trace in figure.data for each in trace.customdata if each is not None}
    assert drawn == set(chosen)


def test_a_few_terrible_values_do_not_hide_the_good_ones() -> None:
    good = [0.1 + at / 1000 for at in range(100)]
    view = window([*good, 1e30, 1e9], 1.0, "loss")
    assert view.beyond == 2
    assert view.axis["range"][0] < 0.1
    assert 0.19 < view.axis["range"][1] < 0.3
    turned = window([-value for value in [*good, 1e30]], -1.0, "score")
    assert turned.axis["range"][1] > -0.1
    assert turned.beyond == 1
    assert window(good, 1.0, "loss").beyond == 0


def test_losses_over_orders_of_magnitude_are_on_a_logarithmic_axis() -> None:
    view = window([10.0 ** (-at / 10) for at in range(50)], 1.0, "loss")
    assert view.axis["type"] == "log"
    assert "type" not in window([-5.0, 1e-3, 1e3], 1.0, "loss").axis


def test_a_slot_with_many_short_attempts_does_not_look_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slot_figures, "MOST_BARS", 3)
    steps: list[Step] = []
    Simulation(source="toy:epochs=4", trials=20, slots=1).run(remember=steps.extend)
    figure = slot_figures.attempts_gantt(past := chronicle_of(steps))
    assert f"the longest 3 of {len(past.attempts)} attempts" in words_of(figure)
    assert figure.data[0].name == "many short ones"
    length = sum(each for trace in figure.data for each in trace.x)
    unit = 60.0 if "minutes" in figure.layout.xaxis.title.text else 1.0
    assert length * unit == pytest.approx(past.study.slot_seconds, rel=1e-3)


def test_trials_that_share_a_slot_lie_side_by_side() -> None:
    steps: list[Step] = []
    Simulation(source="toy:epochs=4", trials=4, slots=1, pack=2).run(remember=steps.extend)
    figure = slot_figures.attempts_gantt(chronicle_of(steps))
    assert {each for trace in figure.data for each in trace.y} == {-0.25, 0.25}
    assert {each for trace in figure.data for each in trace.width} == {0.41}


def test_many_steps_become_means_and_the_figure_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_figures, "MOST_STEPS", 4)
    steps: list[Step] = []
    Simulation(source="toy:epochs=4", trials=20, slots=3).run(remember=steps.extend)
    assert "means over" in words_of(slot_figures.slots_over_time(chronicle_of(steps)))


def test_target_and_deadline_are_lines_inside_the_figure() -> None:
    budget = Budget(deadline_s=180.0, target=Target(0.01))
    past = past_of(
        spec=spec(budget=budget), now=60.0, leads=(Lead(1.0, 0.5, 0, 1), Lead(30.0, 0.2, 1, 1))
    )
    figure = curve_figures.best_over_time(past)
    assert "target 0.01" in words_of(figure)
    assert "deadline 3m00s" in words_of(figure)
    low, high = figure.layout.yaxis.range
    assert low < 0.01 < 0.5 < high
    assert figure.layout.xaxis.range[1] > 180.0


def test_a_deadline_that_is_far_away_leaves_the_room_to_the_values() -> None:
    budget = Budget(deadline_s=7200.0)
    leads = (Lead(1.0, 0.5, 0, 1), Lead(30.0, 0.2, 1, 1))
    figure = curve_figures.best_over_time(past_of(spec=spec(budget=budget), now=60.0, leads=leads))
    assert "the deadline is at 2h00m" in words_of(figure)
    assert figure.layout.xaxis.range[1] < 61.0


def test_the_start_of_the_best_value_may_lie_beyond_the_edge() -> None:
    leads = tuple(Lead(at, value, 0, 1) for at, value in [(1.0, 99.0), (50.0, 0.3), (80.0, 0.2)])
    figure = curve_figures.best_over_time(past_of(now=1000.0, leads=leads))
    assert "beyond the edge" in words_of(figure)
    assert figure.layout.yaxis.range[1] < 1.0


# Dimensions


def test_numbers_over_orders_of_magnitude_get_a_logarithmic_axis() -> None:
    found = dimensions([{"lr": 1e-4 * 10.0**at} for at in (0, 2, 2.1, 4)], 12)[0]
    assert found.places == pytest.approx([0.0, 0.5, 0.525, 1.0])
    assert [tick for _, tick in found.ticks] == ["0.0001", "0.001", "0.01", "0.1", "1"]


def test_so_few_values_that_their_words_do_not_touch_are_the_ticks() -> None:
    (width,) = dimensions([{"width": width} for width in (32, 64, 128, 64)], 12)
    assert [tick for _, tick in width.ticks] == ["32", "64", "128"]
    (rate,) = dimensions([{"lr": rate} for rate in (3e-4, 3e-2, 0.3)], 12)
    assert [tick for _, tick in rate.ticks] == ["0.0003", "0.03", "0.3"]


def test_the_last_bin_of_epochs_ends_with_the_furthest_trial() -> None:
    past = past_of(trials=tuple(trial_past(at, [1.0] * 60) for at in range(3)))
    figure = config_figures.epochs_per_trial(past)
    assert figure.layout.xaxis.range[1] == figure.data[0].xbins.end == 60.5
    assert figure.layout.xaxis.range[0] <= -0.5


def test_zero_stands_below_all_others_on_a_logarithmic_axis() -> None:
    found = dimensions([{"wd": 0}, {"wd": 1e-5}, {"wd": 1e-1}], 12)[0]
    assert found.places[0] == 0.0
    assert found.places[1] == pytest.approx(0.12)
    assert found.ticks[0] == (0.0, "0")


def test_categories_missing_values_and_schedules_have_their_place() -> None:
    rate = {"piecewise": [[0, 0.1], [30, 0.01]]}
    told: list[dict[str, Any]] = [
        {"optimiser": "sgd", "lr": rate, "net": {"width": 64}},
        {"optimiser": "adam", "lr": 0.3, "net": {"width": 32}, "flag": True},
    ]
    found = {each.name: each for each in dimensions(told, 12)}
    assert set(found) == {"optimiser", "lr", "net.width", "flag"}
    assert found["optimiser"].ticks == [(0.0, "adam"), (1.0, "sgd")]
    assert found["lr"].scheduled
    assert found["lr"].words == ["0.1", "0.3"]
    assert found["flag"].words == ["none", "True"]
    assert all(tick.isdigit() for _, tick in found["net.width"].ticks)


def test_a_missing_number_has_no_place() -> None:
    found = dimensions([{"depth": 3}, {"depth": 5}, {"lr": 1}], 12)
    assert {each.name: each.places for each in found}["depth"] == [0.0, 1.0, None]


def test_the_dimensions_that_vary_most_are_kept_in_their_order() -> None:
    told = [
        {"seldom": int(at == 0), "a": at, "same": 1, "name": f"run {at}", "b": -at}
        for at in range(40)
    ]
    assert [each.name for each in dimensions(told, 2)] == ["a", "b"]
    assert [each.name for each in dimensions(told, 12)] == ["seldom", "a", "b"]


@given(st.lists(st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False))))
def test_any_numbers_lie_from_zero_to_one(values: list[float | None]) -> None:
    for found in dimensions([{"x": value} for value in values], 12):
        for place in found.places:
            assert place is None or -1e-9 <= place <= 1 + 1e-9
        for place, _ in found.ticks:
            assert -1e-9 <= place <= 1 + 1e-9


# Studies of which there is little to see


def degenerate() -> dict[str, list[Step]]:
    """Return logs with next to nothing in them."""
    begun: tuple[e.AnyEvent, list[d.AnyDecision]] = (e.Opened(at=0.0, spec=spec()), [])
    slots = e.CapacityChanged(at=0.0, slots=(0,))
    running: list[d.AnyDecision] = [*opens(0), launch(0, 0, (0,))]
    huge = table([[1e300, -1e300], [1e-300, 5.0]], epochs=2)
    frail = {"faults": Faults(mean_life_s=0.5, seed=1)}
    return {
        "only opened": log_of(begun),
        "no trials": log_of(begun, (slots, []), (e.Woke(at=9.0), [])),
        "launched and silent": log_of(begun, (slots, running)),
        "one report": log_of(begun, (slots, running), (reported(2.0, 0, 1, 0.5), [])),
        "one report at once": log_of(begun, (slots, running), (reported(0.0, 0, 1, 0.5), [])),
        "no number": Played(table([[NAN] * 3] * 4), epochs=3).run().steps,
        "all the same": Played(table([[0.5] * 3] * 4), epochs=3).run().steps,
        "no settings": Played(table([[0.5], [0.4]], configs=[{}, {}]), epochs=1).run().steps,
        "huge numbers": Played(huge, epochs=2).run().steps,
        "all failed": Played(table([[1.0] * 5] * 3), cluster=frail, retries=0).run().steps,
    }


@pytest.mark.parametrize("name", degenerate())
def test_every_figure_of_a_poor_study_shows_something_or_says_why_not(name: str) -> None:
    past = chronicle_of(degenerate()[name])
    for draw in FIGURES.values():
        figure = draw(past)
        json.loads(figure.to_json())
        assert figure.data or words_of(figure).endswith(".")
        assert figure.layout.title.text
    assert "</html>" in report_html(degenerate()[name])


def test_a_study_without_a_number_says_so() -> None:
    logs = degenerate()
    said = {
        name: words_of(curve_figures.learning_curves(chronicle_of(logs[name]))) for name in logs
    }
    assert "No trial has been opened yet." in said["only opened"]
    assert "No trial has reported yet." in said["launched and silent"]
    assert "loss was NaN or infinite in every epoch" in said["no number"]
    drawn = {
        name: words_of(config_figures.parallel_configs(chronicle_of(logs[name]))) for name in logs
    }
    assert "nothing to compare yet" in drawn["one report"]
    assert "differ only in names" in drawn["no settings"]


def test_of_too_many_configs_an_even_sample_of_the_ranking_is_drawn() -> None:
    crowd = tuple(trial_past(each, [float(each)]) for each in range(1000))
    figure = config_figures.parallel_configs(past_of(trials=crowd))
    assert f"{config_figures.MOST_LINES} of 1,000 trials, evenly by rank" in words_of(figure)
    tenth = next(trace for trace in figure.data if trace.name == "the best tenth")
    drawn = {each[0] for each in tenth.customdata if each is not None}
    assert min(drawn) == 0
    assert 90 < max(drawn) <= 100


@given(studies(), st.randoms(use_true_random=False))
def test_no_figure_of_any_study_fails(study: dict[str, Any], rng: Random) -> None:
    steps = made(study).run().steps
    past = chronicle_of(steps[: rng.randint(1, len(steps))])
    for draw in FIGURES.values():
        json.loads(draw(past).to_json(), parse_constant=pytest.fail)


def test_a_curve_of_one_report_is_a_point() -> None:
    past = chronicle_of(degenerate()["all the same"])
    lone = past_of(trials=(trial_past(0, [0.5]), *past.trials), best=past.best)
    assert "markers" in {trace.mode for trace in curve_figures.learning_curves(lone).data}


# The report


class Reader(HTMLParser):
    """Reads a page as a browser would and keeps its elements and their text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self.elements[-1][0] if self.elements else "", []).append(data)


def hostile() -> list[Step]:
    """Return a study in which everything a user can write is an attack."""
    bad = spec(name=HOSTILE, metric=HOSTILE, policy=Part(HOSTILE, {HOSTILE: HOSTILE}))
    configs = [{HOSTILE: HOSTILE, "lr": 0.1 * at, "kind": f"{at}{HOSTILE}"} for at in range(3)]
    opened = [d.Open(trial=at, config=configs[at], until=3, why=HOSTILE) for at in range(3)]
    launched = [launch(at, at, (at,)) for at in range(3)]
    reports: list[tuple[e.AnyEvent, list[d.AnyDecision]]] = [
        (
            e.Reported(at=1.0 + at, attempt=at, epoch=1, metrics={HOSTILE: 0.5 - at}, seconds=1.0),
            [],
        )
        for at in range(3)
    ]
    failed = e.Ended(at=5.0, attempt=1, cause=e.Cause.FAILED, note=HOSTILE)
    return log_of(
        (e.Opened(at=0.0, spec=bad, engine={"source": HOSTILE}), []),
        (e.CapacityChanged(at=0.0, slots=(0, 1, 2)), [*opened, *launched]),
        *reports,
        (failed, [d.Fail(trial=1, why=HOSTILE)]),
        (e.Woke(at=9.0), [d.End(cause=d.EndCause.POLICY, why=HOSTILE)]),
    )


def test_what_users_write_stays_text() -> None:
    page = report_html(hostile(), store=HOSTILE)
    reader = Reader(page)
    tags = [tag for tag, _ in reader.elements]
    assert tags.count("script") == 3
    assert "img" not in tags
    assert not [name for _, found in reader.elements for name in found if name.startswith("on")]
    assert HOSTILE[:40] in "".join(reader.texts["h1"])
    assert page.count("</script>") == 3


def test_what_users_write_is_no_markup_and_no_template_of_a_figure() -> None:
    past = chronicle_of(hostile())
    for name, draw in FIGURES.items():
        text = draw(past).to_json()
        assert "<img" not in text, name
        assert "\\u003cimg" not in text, name
        assert not re.search(r"<b>%\{x\}", text), name


def test_a_page_runs_only_the_scripts_it_came_with() -> None:
    page = report_html(by_hand())
    policy = next(
        found["content"] or ""
        for tag, found in Reader(page).elements
        if tag == "meta" and found.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert policy.count("sha256-") == 2
    assert "unsafe-inline" not in policy.split("style-src")[0]
    assert "form-action 'none'" in policy


def test_the_same_log_gives_the_same_bytes(tmp_path: Path) -> None:
    steps = busy(2).run().steps
    first = write_report(steps, tmp_path / "one.html").read_bytes()
    assert write_report(iter(steps), str(tmp_path / "two.html")).read_bytes() == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.html", "two.html"]


def test_a_report_says_what_one_wants_to_know_first() -> None:
    text = report_html(by_hand(), store="hand.db")
    for words in (
        "fifo looked for the lowest loss in 3 epochs a trial.",
        "It ended after 6s: the test wants it.",
        "<b>0.25</b>",
        "trial 0, epoch 3, after 6s",
        "1 finished, 1 failed",
        "none was saved at that epoch",
        "give trial 1 up",
        "paceline replay --store hand.db hand",
        "no limit",
    ):
        assert words in text, words
    assert "paceline resume" not in text


def test_a_report_of_a_study_that_runs_says_how_to_go_on() -> None:
    kept, again = "sqlite:///my studies.db", "paceline simulate toy"
    text = report_html(by_hand()[:4], store=kept, again=again)
    assert "It has not ended: its log goes up to 3s." in text
    assert "paceline resume --store &#x27;sqlite:///my studies.db&#x27; hand" in text


def test_a_report_of_a_study_that_is_kept_nowhere_suggests_nothing() -> None:
    assert "paceline story" not in report_html(by_hand())


def test_a_report_tells_nobody_the_password_of_a_store() -> None:
    text = report_html(by_hand(), store="postgresql://ann:s3cr/t@host/db")
    assert "postgresql://ann@host/db" in report_html(by_hand(), store="postgresql://ann:x@host/db")
    assert "s3cr" not in text


def test_a_checkpoint_is_named() -> None:
    steps = by_hand()
    save = Step(0, e.Saved(at=6.0, attempt=0, epoch=3))
    parts = [(step.event, list(step.decisions)) for step in [*steps[:-1], save, steps[-1]]]
    assert "checkpoint: attempt 0, epoch 3" in report_html(log_of(*parts))


def test_a_report_of_two_hundred_trials_of_a_hundred_epochs_is_six_megabytes_at_most() -> None:
    steps: list[Step] = []
    Simulation(source="families", trials=200, slots=8, policy="fifo").run(remember=steps.extend)
    assert len(report_html(steps).encode()) <= 6_000_000


def test_a_table_of_too_many_trials_keeps_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials_table, "MOST_ROWS", 3)
    monkeypatch.setattr(trials_table, "MOST_STORIES", 2)
    steps = Played(table([[float(at)] for at in range(9)]), epochs=1).run().steps
    made_table = trials_table.table_of(chronicle_of(steps), "paceline story played")
    assert [row.trial for row in made_table.rows] == [0, 1, 2]
    assert list(made_table.stories) == ["0", "1"]
    assert made_table.untold == "Told by: paceline story played TRIAL"
    assert "The best 3 of 9." in report_html(steps)


def test_a_cell_sorts_by_its_value_and_shows_it_whole() -> None:
    rates: list[dict[str, Any]] = [
        {"lr": {"piecewise": [[0, 0.1], [2, 0.01]]}},
        {"lr": 0.5},
        {"lr": "auto", "x": 1},
    ]
    steps = Played(table([[1.0], [2.0], [NAN]], configs=rates), epochs=1).run().steps
    made_table = trials_table.table_of(chronicle_of(steps), None)
    columns = [column.name for column in made_table.columns]
    cells = [row.cells[columns.index("lr")] for row in made_table.rows]
    assert cells == [(0.1, "0.1 then 0.01 from epoch 2"), (0.5, "0.5"), ("auto", "auto")]
    assert [row.cells[3] for row in made_table.rows] == [1.0, 2.0, None]
    assert made_table.rows[0].cells[columns.index("x")] is None or "x" not in columns


def test_a_report_that_cannot_be_written_says_where(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"nowhere.*cannot be written"):
        write_report(by_hand(), tmp_path / "nowhere" / "report.html")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"policy": "asha:eta=4", "slots": 7, "share": True, "seed": 3},
        {"deadline_s": 90.5, "slot_seconds": 5400.0, "target": 0.4, "mean_life_s": 33.0},
        {"capacity": ((2.5, 1), (60.0, 4)), "save_s": 0.25, "order": "file", "epochs": 3},
        {"range": (-0.5, 1.0), "generator": "sobol"},
    ],
)
def test_the_command_that_is_suggested_simulates_the_same_again(options: dict[str, Any]) -> None:
    simulation = Simulation(source="toy:epochs=4", trials=5, **options)
    steps: list[Step] = []
    simulation.run(remember=steps.extend)
    command = simulate_command(steps)
    assert command is not None
    words = shlex.split(command)
    assert words[:2] == ["paceline", "simulate"]
    given_options = simulate.make_context(
        "simulate", words[2:], help_option_names=["-h", "--help"]
    ).params
    fields = {flag.field: given_options[flag.field] for flag in FLAGS}
    assert simulation_with(fields, given_options["source"]) == simulation


def test_a_study_that_was_not_simulated_suggests_no_simulation() -> None:
    assert simulate_command(by_hand()) is None
    odd = log_of((e.Opened(at=0.0, spec=spec(), engine={"source": "toy", "later": 1}), []))
    assert simulate_command(odd) is None


@pytest.mark.parametrize(
    ("decision", "words"),
    [
        (d.Open(trial=1, config={}, until=3, why=WHY), "open trial 1, up to epoch 3"),
        (d.Go(trial=1, until=9, why=WHY), "let trial 1 go on to epoch 9"),
        (d.Pause(trial=1, why=WHY), "let trial 1 wait"),
        (d.Cut(trial=1, why=WHY), "cut trial 1 short"),
        (d.Stop(trial=1, why=WHY), "stop trial 1"),
        (d.Halt(attempt=4, why=WHY), "end attempt 4 at once"),
        (d.Resize(attempt=4, width=0.5, why=WHY), "move attempt 4 to width 0.5"),
        (d.Provide(slots=2, why=WHY), "ask for 2 more slots"),
        (d.Retire(slots=(1, 2), why=WHY), "give slots 1, 2 up"),
        (d.Close(why=WHY), "open no further trials"),
        (d.Drop(checkpoints=(), why=WHY), "drop"),
    ],
)
def test_a_decision_reads_as_an_order(decision: d.AnyDecision, words: str) -> None:
    assert ordered(decision) == words


# The house


def test_plotly_is_imported_only_where_something_is_drawn() -> None:
    code = (
        "import sys, paceline, paceline.cli.main;"
        "paceline.Simulation(source='toy:epochs=3', trials=2).run();"
        "print([m for m in ('plotly', 'paceline.plots') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_figure_is_explained() -> None:
    text = (Path(__file__).parents[2] / "docs" / "report.md").read_text(encoding="utf-8")
    for name in FIGURES:
        assert f"| `{name}` |" in text


@pytest.mark.parametrize("name", ["dimensions", "style"])
def test_examples_in_docstrings_are_true(name: str) -> None:
    result = doctest.testmod(import_module(f"paceline.plots.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
