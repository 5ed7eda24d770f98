"""`paceline forecast`: one curve, its forecast, and the chance to reach the target."""

from __future__ import annotations

import json
import re
from array import array
from typing import TYPE_CHECKING

import pytest
from command_line import CommandLine, compare_golden, write_small_trace

from paceline.analysis.forecast_fan import Fan, FanRow
from paceline.api.curve_forecast import forecast_curve, read_trace_curve
from paceline.engines.sim.traces import VERSION, TraceHeader, TraceRun, write_trace
from paceline.plots.fan_figure import draw_fan

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def paceline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    """The command line, in a folder with a trace and an unfinished study of it."""
    here = CommandLine(tmp_path, capsys, monkeypatch)
    trace = write_small_trace(here.folder / "tiny.jsonl.gz", epochs=9)
    short = ("--deadline", "150", "--slots", "1")
    here("simulate", trace, "--policy", "fifo", *short, "--name", "one")
    return here


def test_a_forecast_is_printed_as_text(paceline: CommandLine) -> None:
    found = paceline("forecast", "tiny.jsonl.gz", "0", "--at", "5", "--curves", "last")
    compare_golden("forecast.txt", found.out)


def test_the_json_has_the_documented_keys(paceline: CommandLine) -> None:
    found = paceline("forecast", "tiny.jsonl.gz", "0", "--at", "5", "--curves", "last", "--json")
    fan = json.loads(found.out)
    assert set(fan) == set(Fan.__struct_fields__)
    assert set(fan["rows"][0]) == set(FanRow.__struct_fields__)
    assert fan["epoch"] == 5
    for row in fan["rows"]:
        bounds = [row[name] for name in ("low_95", "low_80", "median", "high_80", "high_95")]
        assert bounds == sorted(bounds)


def test_a_deadline_limits_the_epochs_that_count(paceline: CommandLine) -> None:
    forecasts = [
        json.loads(
            paceline(
                *("forecast", "tiny.jsonl.gz", "0", "--at", "5", "--curves", "last", "--json"),
                *("--target", "0.15", *more),
            ).out
        )
        for more in ((), ("--deadline", "5s"), ("--deadline", "1000h"))
    ]
    whole, none, all_ = forecasts
    assert none["by_epoch"] == 5
    assert none["chance"] == 0.0
    assert none["expected_s"] is None
    assert all_["chance"] == whole["chance"] > 0.0
    assert whole["expected_s"] > 0.0


def test_a_forecast_stays_inside_the_range_of_the_metric(paceline: CommandLine) -> None:
    command = ("forecast", "tiny.jsonl.gz", "0", "--at", "5", "--json")
    free, bound = (
        json.loads(paceline(*command, *more).out)["rows"][-1]["high_95"]
        for more in ((), ("--range", "0,0.15"))
    )
    assert bound <= 0.15 < free


def test_an_accuracy_is_never_forecast_above_one(paceline: CommandLine) -> None:
    values = [0.5, 0.9, 0.6, 0.95, 0.7, 0.98]
    for metric in ("val_accuracy", "reward"):
        header = TraceHeader(
            paceline_trace=VERSION, name="near", metric=metric, mode="max", max_epochs=20
        )
        run = TraceRun(0, {"lr": 0.1}, array("d", values), array("d", [1.0] * 6), cut=True)
        write_trace(paceline.folder / f"{metric}.jsonl.gz", header, [run])
    command = ("forecast", "val_accuracy.jsonl.gz", "0", "--curves", "last")
    fan = json.loads(paceline(*command, "--json").out)
    assert fan["epoch"] == 6, "a run that was cut short is known up to its end"
    assert fan["range"] == [0.0, 1.0]
    assert max(row["high_95"] for row in fan["rows"]) <= 1.0
    assert "assumed: val_accuracy is from 0 to 1" in paceline(*command).out
    given = json.loads(paceline(*command, "--range", "0,5", "--json").out)
    assert not given["is_range_assumed"]
    assert max(row["high_95"] for row in given["rows"]) > 1.0
    other = json.loads(paceline("forecast", "reward.jsonl.gz", "0", "--json").out)
    assert other["range"] is None


def test_the_legend_covers_no_part_of_the_figure(paceline: CommandLine) -> None:
    known = read_trace_curve(str(paceline.folder / "tiny.jsonl.gz"), 0, 4)
    legend = draw_fan(forecast_curve(known, "last")).layout.legend
    assert (legend.orientation, legend.y, legend.yanchor) == ("h", 1.0, "bottom")


def test_a_trial_of_a_study_is_forecast_from_its_last_epoch(paceline: CommandLine) -> None:
    trials = json.loads(paceline("show", "one", "--json").out)["trials"]
    unfinished = next(trial for trial in trials if 0 < trial["epoch"] < 9)
    number = str(unfinished["trial"])
    fan = json.loads(paceline("forecast", "one", number, "--curves", "last", "--json").out)
    assert fan["epoch"] == unfinished["epoch"]
    assert fan["deadline_s"] == 0.0


def test_the_figure_works_offline_and_shows_the_later_values(paceline: CommandLine) -> None:
    found = paceline("forecast", "tiny.jsonl.gz", "0", "--curves", "last", "--plot", "fan.html")
    assert found.out.endswith("fan.html\n")
    page = (paceline.folder / "fan.html").read_text(encoding="utf-8")
    assert "height:96vh" in page, "the figure fills the window"
    assert not re.findall(r"<script[^>]+src=", page)
    known = read_trace_curve(str(paceline.folder / "tiny.jsonl.gz"), 0, 4)
    figure = draw_fan(forecast_curve(known, "last", target=0.15), known.later)
    names = [trace.name for trace in figure.data]
    assert names == ["95 % interval", "80 % interval", "median", "known", "later values"]
    assert len(figure.layout.shapes) == 1


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("tiny.jsonl.gz", "99"), "has no run 99: its runs are 0 to"),
        (("tiny.jsonl.gz", "0", "--at", "99"), "--at 99 is invalid: must be from 1 to"),
        (("tiny.jsonl.gz", "0", "--curves", "none"), "'none'"),
        (("nothing", "0"), "nothing"),
        (("one", "99"), "has no trial 99"),
        (("one", "0"), "is at its last epoch"),
        (("tiny.jsonl.gz", "0", "--plot", "no/such/folder.html"), "cannot be written"),
    ],
)
def test_wrong_usage_prints_one_sentence(
    paceline: CommandLine, words: tuple[str, ...], complaint: str
) -> None:
    found = paceline("forecast", *words)
    assert found.code == 2
    assert complaint in found.err
    assert "Traceback" not in found.err
