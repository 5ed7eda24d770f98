"""Timelines, figures and the report: what they count, what they leave out, and odd studies."""

from __future__ import annotations

import json
import math
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from extreme_studies import (
    HOSTILE,
    NAN,
    degenerate_logs,
    make_hostile_log,
    make_log,
    make_spec,
    write_log_by_hand,
)
from hypothesis import given
from hypothesis import strategies as st
from random_studies import make_busy_study, make_study, random_studies
from small_studies import SmallStudy, make_table

import paceline as pl
from paceline.analysis.story import narrate_trial
from paceline.analysis.timeline import KEPT, BestChange, Timeline, TrialTimeline, build_timeline
from paceline.api.simulation import Simulation
from paceline.cli.flags import SIMULATION_FLAGS, make_simulation
from paceline.cli.main import main
from paceline.cli.report import simulate_command
from paceline.cli.simulate import simulate
from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.decisions import Step
from paceline.core.errors import LogError, SpecError
from paceline.core.values import Budget, Status, Target
from paceline.plots import config_figures, curve_figures, series, slot_figures
from paceline.plots.config_axes import find_axes
from paceline.plots.figures import FIGURES
from paceline.plots.report import trial_table as trials_table
from paceline.plots.report.page import render_report, write_report
from paceline.plots.style import SHADES, choose_window

if TYPE_CHECKING:
    from random import Random


def make_timeline(**changes: Any) -> Timeline:  # noqa: ANN401
    """Return the timeline of a study that was only opened, with these fields changed."""
    empty = build_timeline(make_log((e.Opened(at=0.0, spec=make_spec()), [])))
    fields = {name: getattr(empty, name) for name in empty.__struct_fields__}
    return Timeline(**{**fields, **changes})


def make_trial(number: int, values: list[float], **changes: Any) -> TrialTimeline:  # noqa: ANN401
    numbers = [value for value in values if not math.isnan(value)]
    fields: dict[str, Any] = {
        "config": {"lr": number},
        "status": Status.STOPPED,
        "opened_at": 0.0,
        "best": min(numbers, default=None),
        "best_epoch": values.index(min(numbers)) + 1 if numbers else 0,
        "seconds": float(len(values)),
    }
    return TrialTimeline(
        trial=number, values=values, times=range(len(values)), **{**fields, **changes}
    )


def read_texts(figure: Any) -> str:  # noqa: ANN401
    """Return the title, subtitle and annotations of a figure."""
    title = figure.layout.title
    notes = [note.text for note in figure.layout.annotations]
    return " ".join([title.text or "", title.subtitle.text or "", *notes])


# The timeline


def test_a_timeline_holds_what_happened_when() -> None:
    timeline = build_timeline(write_log_by_hand())
    good, bad = timeline.trials
    assert (good.status, good.opened_at, good.ended_at) == (Status.FINISHED, 0.0, 6.0)
    assert (list(good.times), list(good.values)) == ([2.0, 5.5, 6.0], [0.5, 0.7, 0.25])
    assert (good.best, good.best_epoch, good.seconds, good.attempts) == (0.25, 3, 4.5, 1)
    assert (bad.status, bad.ended_at, bad.failures, bad.best) == (Status.FAILED, 4.0, 1, None)
    assert list(map(math.isnan, bad.values)) == [True]
    assert timeline.best_changes == (BestChange(2.0, 0.5, 0, 1), BestChange(6.0, 0.25, 0, 3))
    assert timeline.capacity == ((0.0, 3), (5.0, 2))
    ended = [(each.ended_at, each.cause, each.note, each.epoch) for each in timeline.attempts]
    assert ended == [(6.0, e.Cause.GOAL, "", 3), (4.0, e.Cause.FAILED, "out of memory", 1)]
    assert [type(each.decision).__name__ for each in timeline.decisions][-2:] == ["Fail", "End"]
    assert timeline.decisions[-1].number == write_log_by_hand()[-1].number + 1


def test_busy_slots_and_capacity_are_those_of_the_log() -> None:
    timeline = build_timeline(write_log_by_hand())
    busy_levels, capacity = (
        slot_figures.count_busy_slots(timeline),
        slot_figures.count_slots(timeline),
    )
    keys = [shade.key for shade in SHADES]
    rows = dict(zip(keys, busy_levels.rows, strict=True))
    assert busy_levels.times == [0.0, 4.0, 6.0]
    assert (rows["failed"], rows["best"]) == ([0.5, 0.0], [1.5, 1.5])
    assert sum(busy_levels.areas()) == 11.0 == timeline.study.slot_seconds
    assert (capacity.times, capacity.rows) == ([0.0, 5.0, 6.0], [[3.0, 2.0]])
    assert capacity.areas() == [17.0] == [timeline.capacity_seconds]


def test_the_timeline_of_a_running_study_ends_now() -> None:
    timeline = build_timeline(write_log_by_hand()[:4])
    assert (timeline.now, timeline.study.end) == (3.0, None)
    assert [each.ended_at for each in timeline.attempts] == [None, None]
    assert [trial.status for trial in timeline.trials] == [Status.RUNNING, Status.RUNNING]
    assert sum(slot_figures.count_busy_slots(timeline).areas()) == 6.0


def test_an_empty_log_has_no_timeline() -> None:
    with pytest.raises(LogError, match="empty"):
        build_timeline([])


def test_a_timeline_keeps_the_last_decisions() -> None:
    timeline = build_timeline(SmallStudy(make_table([[1.0]] * KEPT), epochs=1).run().steps)
    assert len(timeline.decisions) == KEPT
    assert isinstance(timeline.decisions[-1].decision, d.End)


@given(random_studies(), st.randoms(use_true_random=False))
def test_the_timeline_of_any_study_cut_anywhere_adds_up(study: dict[str, Any], rng: Random) -> None:
    played = make_study(study).run()
    cut = rng.randint(1, len(played.steps))
    timeline = build_timeline(played.steps[:cut])
    busy_levels = slot_figures.count_busy_slots(timeline)
    assert sum(busy_levels.areas()) == pytest.approx(timeline.study.slot_seconds, abs=1e-6)
    assert sum(slot_figures.count_slots(timeline).areas()) == pytest.approx(
        timeline.capacity_seconds
    )
    for most in (1, 3):
        means = series.average_levels(busy_levels, most)
        assert means.areas() == pytest.approx(busy_levels.areas(), abs=1e-6)
    losses = [timeline.spec.sign * change.value for change in timeline.best_changes]
    assert losses == sorted(set(losses), reverse=True)
    assert [change.value for change in timeline.best_changes[-1:]] == (
        [timeline.best.value] if timeline.best else []
    )
    for trial in timeline.trials:
        assert len(trial.times) == trial.epochs
        assert list(trial.times) == sorted(trial.times)
        assert (trial.ended_at is None) == (trial.status in ("ready", "running", "paused"))


@given(random_studies())
def test_a_timeline_has_the_story_of_every_trial(study: dict[str, Any]) -> None:
    steps = make_study(study).run().steps
    for trial in build_timeline(steps).trials:
        assert list(trial.story) == list(narrate_trial(steps, trial.trial))


def test_a_timeline_of_shared_and_wide_trials_is_complete() -> None:
    # These studies are random: use those in which prefixes are shared and trials are wide.
    seen = 0
    for seed in range(8):
        steps = make_busy_study(seed).run().steps
        timeline = build_timeline(steps)
        shared = any(len(attempt.trials) > 1 for attempt in timeline.attempts)
        wide = any(attempt.width > 1.0 for attempt in timeline.attempts)
        if shared and wide:
            seen += 1
            for trial in timeline.trials:
                assert list(trial.story) == list(narrate_trial(steps, trial.trial))
            for draw in FIGURES.values():
                json.loads(draw(timeline).to_json())
    assert seen >= 2


# Arithmetic of series


def test_levels_start_at_zero_and_end_with_the_study() -> None:
    line = series.sum_levels([[(1.0, 2.0), (3.0, -2.0)], [(2.0, 1.0)]], 4.0)
    assert line.times == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert line.rows == [[0.0, 2.0, 2.0, 0.0], [0.0, 0.0, 1.0, 1.0]]
    assert line.areas() == [4.0, 2.0]
    assert series.sum_levels([[]], 0.0) == series.Levels([0.0], [[]])


def test_fractions_of_a_slot_leave_no_rounding_error() -> None:
    thirds = [(float(at), 1 / 3) for at in range(3)] + [(3.0, -1 / 3)] * 3
    assert series.sum_levels([thirds], 5.0).rows[0][-1] == 0.0


def test_means_have_the_length_of_their_bins() -> None:
    line = series.sum_levels([[(float(at), (-1.0) ** at) for at in range(10)]], 10.0)
    means = series.average_levels(line, 5)
    assert (means.times, means.bin_s) == ([0.0, 2.0, 4.0, 6.0, 8.0, 10.0], 2.0)
    assert means.rows == [[0.5] * 5]
    assert series.average_levels(line, 10) is line


def test_a_long_curve_keeps_its_ends_its_extremes_and_its_gaps() -> None:
    values = [math.sin(at / 40) for at in range(1000)]
    values[333], values[500], values[700] = 9.0, -9.0, NAN
    kept = series.thin_points(values, 100)
    assert len(kept) <= 150
    assert {0, 333, 500, 700, 999} <= set(kept)
    assert series.thin_points(values[:50], 100) == list(range(50))
    assert series.thin_points([NAN] * 50, 10)[::50] == [0]


def test_overlapping_spans_are_in_different_lanes() -> None:
    assert series.assign_lanes([(0, 2), (1, 3), (2, 4), (2.5, 5), (3, 6)]) == [0, 1, 0, 2, 1]


def test_an_even_sample_has_the_size_asked_for() -> None:
    assert series.sample_evenly(range(10), 3) == [0, 3, 6]
    assert series.sample_evenly([1, 2], 3) == [1, 2]


# What is drawn if not everything is


def test_of_many_curves_the_best_the_longest_and_a_sample_are_drawn() -> None:
    crowd = [make_trial(each, [float(each), float(each)]) for each in range(1000)]
    crowd[900] = make_trial(900, [900.0] * 50)
    chosen = [trial.trial for trial in curve_figures.pick_curves(crowd, 1.0, 200)]
    assert len(chosen) == 200
    assert set(range(100)) <= set(chosen)
    assert 900 in chosen
    assert len([each for each in chosen if each > 300]) > 20
    figure = curve_figures.draw_learning_curves(make_timeline(trials=tuple(crowd)))
    assert "200 of 1,000 trials" in read_texts(figure)
    drawn = {each for trace in figure.data for each in trace.customdata if each is not None}
    assert drawn == set(chosen)


def test_a_few_very_bad_values_do_not_hide_the_good_ones() -> None:
    good = [0.1 + at / 1000 for at in range(100)]
    view = choose_window([*good, 1e30, 1e9], 1.0, "loss")
    assert view.beyond == 2
    assert view.axis["range"][0] < 0.1
    assert 0.19 < view.axis["range"][1] < 0.3
    turned = choose_window([-value for value in [*good, 1e30]], -1.0, "score")
    assert turned.axis["range"][1] > -0.1
    assert turned.beyond == 1
    assert choose_window(good, 1.0, "loss").beyond == 0


def test_losses_over_orders_of_magnitude_are_on_a_logarithmic_axis() -> None:
    view = choose_window([10.0 ** (-at / 10) for at in range(50)], 1.0, "loss")
    assert view.axis["type"] == "log"
    assert "type" not in choose_window([-5.0, 1e-3, 1e3], 1.0, "loss").axis


def test_a_slot_with_many_short_attempts_does_not_look_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slot_figures, "MOST_BARS", 3)
    steps: list[Step] = []
    Simulation(source="toy:epochs=4", trials=20, slots=1).run(remember=steps.extend)
    figure = slot_figures.draw_attempts(timeline := build_timeline(steps))
    assert f"the longest 3 of {len(timeline.attempts)} attempts" in read_texts(figure)
    assert figure.data[0].name == "many short attempts"
    length = sum(each for trace in figure.data for each in trace.x)
    unit = 60.0 if "minutes" in figure.layout.xaxis.title.text else 1.0
    assert length * unit == pytest.approx(timeline.study.slot_seconds, rel=1e-3)


def test_attempts_that_share_a_slot_are_side_by_side() -> None:
    steps: list[Step] = []
    Simulation(source="toy:epochs=4", trials=4, slots=1, pack=2).run(remember=steps.extend)
    figure = slot_figures.draw_attempts(build_timeline(steps))
    assert {each for trace in figure.data for each in trace.y} == {-0.25, 0.25}
    assert {each for trace in figure.data for each in trace.width} == {0.41}


def test_many_steps_become_means_and_the_subtitle_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_figures, "MOST_STEPS", 4)
    steps: list[Step] = []
    Simulation(source="toy:epochs=4", trials=20, slots=3).run(remember=steps.extend)
    assert "means over" in read_texts(slot_figures.draw_slots(build_timeline(steps)))


def test_target_and_deadline_are_lines_inside_the_figure() -> None:
    budget = Budget(deadline_s=180.0, target=Target(0.01))
    timeline = make_timeline(
        spec=make_spec(budget=budget),
        now=60.0,
        best_changes=(BestChange(1.0, 0.5, 0, 1), BestChange(30.0, 0.2, 1, 1)),
    )
    figure = curve_figures.draw_best_over_time(timeline)
    assert "target 0.01" in read_texts(figure)
    assert "deadline 3m00s" in read_texts(figure)
    low, high = figure.layout.yaxis.range
    assert low < 0.01 < 0.5 < high
    assert figure.layout.xaxis.range[1] > 180.0


def test_a_distant_deadline_is_text_not_a_line() -> None:
    budget = Budget(deadline_s=7200.0)
    changes = (BestChange(1.0, 0.5, 0, 1), BestChange(30.0, 0.2, 1, 1))
    figure = curve_figures.draw_best_over_time(
        make_timeline(spec=make_spec(budget=budget), now=60.0, best_changes=changes)
    )
    assert "the deadline is at 2h00m" in read_texts(figure)
    assert figure.layout.xaxis.range[1] < 61.0


def test_the_first_best_values_may_be_outside_the_axis() -> None:
    changes = tuple(
        BestChange(at, value, 0, 1) for at, value in [(1.0, 99.0), (50.0, 0.3), (80.0, 0.2)]
    )
    figure = curve_figures.draw_best_over_time(make_timeline(now=1000.0, best_changes=changes))
    assert "beyond the edge" in read_texts(figure)
    assert figure.layout.yaxis.range[1] < 1.0


# Axes of configs


def test_numbers_over_orders_of_magnitude_get_a_logarithmic_axis() -> None:
    found = find_axes([{"lr": 1e-4 * 10.0**at} for at in (0, 2, 2.1, 4)], 12)[0]
    assert found.positions == pytest.approx([0.0, 0.5, 0.525, 1.0])
    assert [tick for _, tick in found.ticks] == ["0.0001", "0.001", "0.01", "0.1", "1"]


def test_a_few_distant_values_all_have_ticks() -> None:
    (width,) = find_axes([{"width": width} for width in (32, 64, 128, 64)], 12)
    assert [tick for _, tick in width.ticks] == ["32", "64", "128"]
    (rate,) = find_axes([{"lr": rate} for rate in (3e-4, 3e-2, 0.3)], 12)
    assert [tick for _, tick in rate.ticks] == ["0.0003", "0.03", "0.3"]


def test_the_last_bin_ends_at_the_most_epochs() -> None:
    timeline = make_timeline(trials=tuple(make_trial(at, [1.0] * 60) for at in range(3)))
    figure = config_figures.draw_epochs_per_trial(timeline)
    assert figure.layout.xaxis.range[1] == figure.data[0].xbins.end == 60.5
    assert figure.layout.xaxis.range[0] <= -0.5


def test_zero_is_below_all_other_values_on_a_logarithmic_axis() -> None:
    found = find_axes([{"wd": 0}, {"wd": 1e-5}, {"wd": 1e-1}], 12)[0]
    assert found.positions[0] == 0.0
    assert found.positions[1] == pytest.approx(0.12)
    assert found.ticks[0] == (0.0, "0")


def test_categories_missing_values_and_schedules_have_positions() -> None:
    rate = {"piecewise": [[0, 0.1], [30, 0.01]]}
    configs: list[dict[str, Any]] = [
        {"optimiser": "sgd", "lr": rate, "net": {"width": 64}},
        {"optimiser": "adam", "lr": 0.3, "net": {"width": 32}, "flag": True},
    ]
    found = {each.name: each for each in find_axes(configs, 12)}
    assert set(found) == {"optimiser", "lr", "net.width", "flag"}
    assert found["optimiser"].ticks == [(0.0, "adam"), (1.0, "sgd")]
    assert found["lr"].has_schedule
    assert found["lr"].texts == ["0.1", "0.3"]
    assert found["flag"].texts == ["none", "True"]
    assert all(tick.isdigit() for _, tick in found["net.width"].ticks)


def test_a_missing_number_has_no_position() -> None:
    found = find_axes([{"depth": 3}, {"depth": 5}, {"lr": 1}], 12)
    assert {each.name: each.positions for each in found}["depth"] == [0.0, 1.0, None]


def test_the_axes_that_vary_most_are_kept_in_their_order() -> None:
    configs = [
        {"seldom": int(at == 0), "a": at, "same": 1, "name": f"run {at}", "b": -at}
        for at in range(40)
    ]
    assert [each.name for each in find_axes(configs, 2)] == ["a", "b"]
    assert [each.name for each in find_axes(configs, 12)] == ["seldom", "a", "b"]


@given(st.lists(st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False))))
def test_positions_are_between_zero_and_one(values: list[float | None]) -> None:
    for found in find_axes([{"x": value} for value in values], 12):
        for place in found.positions:
            assert place is None or -1e-9 <= place <= 1 + 1e-9
        for place, _ in found.ticks:
            assert -1e-9 <= place <= 1 + 1e-9


# Studies with little to draw


@pytest.mark.parametrize("name", degenerate_logs())
def test_a_figure_without_data_has_a_sentence(name: str) -> None:
    timeline = build_timeline(degenerate_logs()[name])
    for draw in FIGURES.values():
        figure = draw(timeline)
        json.loads(figure.to_json())
        assert figure.data or read_texts(figure).endswith(".")
        assert figure.layout.title.text
    assert "</html>" in render_report(degenerate_logs()[name])


def test_the_sentence_explains_why_there_is_no_data() -> None:
    logs = degenerate_logs()
    said = {
        name: read_texts(curve_figures.draw_learning_curves(build_timeline(logs[name])))
        for name in logs
    }
    assert "No trial has been opened yet." in said["only opened"]
    assert "No trial has reported yet." in said["launched and silent"]
    assert "loss was NaN or infinite in every epoch" in said["no number"]
    drawn = {
        name: read_texts(config_figures.draw_configs(build_timeline(logs[name]))) for name in logs
    }
    assert "nothing to compare yet" in drawn["one report"]
    assert "differ only in names" in drawn["no settings"]


def test_of_many_configs_an_even_sample_of_the_ranking_is_drawn() -> None:
    crowd = tuple(make_trial(each, [float(each)]) for each in range(1000))
    figure = config_figures.draw_configs(make_timeline(trials=crowd))
    assert f"{config_figures.MOST_LINES} of 1,000 trials, evenly by rank" in read_texts(figure)
    tenth = next(trace for trace in figure.data if trace.name == "the best tenth")
    drawn = {each[0] for each in tenth.customdata if each is not None}
    assert min(drawn) == 0
    assert 90 < max(drawn) <= 100


@given(random_studies(), st.randoms(use_true_random=False))
def test_no_figure_of_any_study_fails(study: dict[str, Any], rng: Random) -> None:
    steps = make_study(study).run().steps
    timeline = build_timeline(steps[: rng.randint(1, len(steps))])
    for draw in FIGURES.values():
        json.loads(draw(timeline).to_json(), parse_constant=pytest.fail)


def test_a_curve_of_one_report_is_a_marker() -> None:
    timeline = build_timeline(degenerate_logs()["all the same"])
    lone = make_timeline(trials=(make_trial(0, [0.5]), *timeline.trials), best=timeline.best)
    assert "markers" in {trace.mode for trace in curve_figures.draw_learning_curves(lone).data}


# The report


class PageParser(HTMLParser):
    """Parses a page and keeps its elements and their text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self.elements[-1][0] if self.elements else "", []).append(data)


def test_text_of_users_is_never_html() -> None:
    page = render_report(make_hostile_log(), store=HOSTILE)
    parser = PageParser(page)
    tags = [tag for tag, _ in parser.elements]
    assert tags.count("script") == 3
    assert "img" not in tags
    assert not [name for _, found in parser.elements for name in found if name.startswith("on")]
    assert HOSTILE[:40] in "".join(parser.texts["h1"])
    assert page.count("</script>") == 3


def test_text_of_users_is_never_markup_in_a_figure() -> None:
    timeline = build_timeline(make_hostile_log())
    for name, draw in FIGURES.items():
        text = draw(timeline).to_json()
        assert "<img" not in text, name
        assert "\\u003cimg" not in text, name
        assert not re.search(r"<b>%\{x\}", text), name


def test_the_page_runs_only_its_own_scripts() -> None:
    page = render_report(write_log_by_hand())
    policy = next(
        found["content"] or ""
        for tag, found in PageParser(page).elements
        if tag == "meta" and found.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert policy.count("sha256-") == 2
    assert "unsafe-inline" not in policy.split("style-src")[0]
    assert "form-action 'none'" in policy


def test_the_same_log_gives_the_same_bytes(tmp_path: Path) -> None:
    steps = make_busy_study(2).run().steps
    first = write_report(steps, tmp_path / "one.html").read_bytes()
    assert write_report(iter(steps), str(tmp_path / "two.html")).read_bytes() == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.html", "two.html"]


def test_the_head_of_a_report_has_goal_end_best_and_commands() -> None:
    text = render_report(write_log_by_hand(), store="hand.db")
    for words in (
        "fifo minimized loss in 3 epochs a trial.",
        "It ended after 6s: the test wants it.",
        "<b>0.25</b>",
        "trial 0, epoch 3, after 6s",
        "1 finished, 1 failed",
        "not saved at that epoch",
        "trial 1 is given up",
        "paceline replay --store hand.db hand",
        "no limit",
    ):
        assert words in text, words
    assert "paceline resume" not in text


def test_the_report_of_a_running_study_has_the_command_to_resume() -> None:
    kept, again = "sqlite:///my studies.db", "paceline simulate toy"
    text = render_report(write_log_by_hand()[:4], store=kept, again=again)
    assert "It has not ended: its log goes up to 3s." in text
    assert "paceline resume --store &#x27;sqlite:///my studies.db&#x27; hand" in text


def test_the_report_of_a_study_without_a_store_has_no_commands() -> None:
    assert "paceline story" not in render_report(write_log_by_hand())


def test_a_report_leaves_out_the_password_of_a_store() -> None:
    text = render_report(write_log_by_hand(), store="postgresql://ann:s3cr/t@host/db")
    assert "postgresql://ann@host/db" in render_report(
        write_log_by_hand(), store="postgresql://ann:x@host/db"
    )
    assert "s3cr" not in text


def test_the_report_names_the_best_checkpoint() -> None:
    steps = write_log_by_hand()
    save = Step(0, e.Saved(at=6.0, attempt=0, epoch=3))
    parts = [(step.event, list(step.decisions)) for step in [*steps[:-1], save, steps[-1]]]
    assert "checkpoint: attempt 0, epoch 3" in render_report(make_log(*parts))


def test_no_trial_of_an_ended_study_is_running() -> None:
    budget = Budget(deadline_s=3.5)
    steps = SmallStudy(make_table([[1.0] * 9] * 3), slots=2, budget=budget).run().steps
    page = render_report(steps)
    assert "2 unfinished" in page
    assert "2 running" not in page
    timeline = build_timeline(steps)
    assert {trial.fate for trial in timeline.trials} == {"unfinished"}
    assert {trial.fate for trial in build_timeline(steps[:-1]).trials} == {"running"}


def test_the_report_has_the_path_of_the_best_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(trial: pl.Trial) -> None:
        trial.keep(state={"n": 0})
        for _ in trial.epochs():
            trial.report(trial["lr"])

    monkeypatch.chdir(tmp_path)
    result = pl.tune(
        train,
        space={"lr": pl.uniform(0.0, 1.0)},
        epochs=2,
        trials=1,
        slots="inline",
        progress=False,
        name="a",
        store="runs.db",
    )
    assert result.best.checkpoint is not None
    place = result.best.checkpoint.place
    assert f", in {place}" in result.report("mine.html").read_text(encoding="utf-8")
    assert main(["report", "a", "--store", "runs.db"]) == 0
    assert f", in {place}" in Path("a.html").read_text(encoding="utf-8")


def test_a_report_of_two_hundred_trials_of_a_hundred_epochs_is_six_megabytes_at_most() -> None:
    steps: list[Step] = []
    Simulation(source="families", trials=200, slots=8, policy="fifo").run(remember=steps.extend)
    assert len(render_report(steps).encode()) <= 6_000_000


def test_a_long_table_keeps_the_best_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials_table, "MOST_ROWS", 3)
    monkeypatch.setattr(trials_table, "MOST_STORIES", 2)
    steps = SmallStudy(make_table([[float(at)] for at in range(9)]), epochs=1).run().steps
    made_table = trials_table.make_table(build_timeline(steps), "paceline story played")
    assert [row.trial for row in made_table.rows] == [0, 1, 2]
    assert list(made_table.stories) == ["0", "1"]
    assert made_table.untold == "The story is left out here; run: paceline story played TRIAL"
    assert "The best 3 of 9." in render_report(steps)


def test_a_cell_sorts_by_its_first_value_and_shows_all() -> None:
    rates: list[dict[str, Any]] = [
        {"lr": {"piecewise": [[0, 0.1], [2, 0.01]]}},
        {"lr": 0.5},
        {"lr": "auto", "x": 1},
    ]
    steps = SmallStudy(make_table([[1.0], [2.0], [NAN]], configs=rates), epochs=1).run().steps
    made_table = trials_table.make_table(build_timeline(steps), None)
    columns = [column.name for column in made_table.columns]
    cells = [row.cells[columns.index("lr")] for row in made_table.rows]
    assert cells == [(0.1, "0.1, then 0.01 from epoch 3"), (0.5, "0.5"), ("auto", "auto")]
    assert [row.cells[3] for row in made_table.rows] == [1.0, 2.0, None]
    assert made_table.rows[0].cells[columns.index("x")] is None or "x" not in columns


def test_a_report_that_cannot_be_written_raises_an_error_with_the_path(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"nowhere.*cannot be written"):
        write_report(write_log_by_hand(), tmp_path / "nowhere" / "report.html")


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
def test_the_command_in_a_report_repeats_the_simulation(options: dict[str, Any]) -> None:
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
    fields = {flag.field: given_options[flag.field] for flag in SIMULATION_FLAGS}
    assert make_simulation(fields, given_options["source"]) == simulation


def test_a_study_that_was_not_simulated_has_no_command_to_simulate_it() -> None:
    assert simulate_command(write_log_by_hand()) is None
    odd = make_log((e.Opened(at=0.0, spec=make_spec(), engine={"source": "toy", "later": 1}), []))
    assert simulate_command(odd) is None


# Imports and docs


def test_plotly_is_imported_only_to_draw() -> None:
    code = (
        "import sys, paceline, paceline.cli.main;"
        "paceline.Simulation(source='toy:epochs=3', trials=2).run();"
        "print([m for m in ('plotly', 'paceline.plots') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_figure_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "report.md").read_text(encoding="utf-8")
    for name in FIGURES:
        assert f"| `{name}` |" in text
