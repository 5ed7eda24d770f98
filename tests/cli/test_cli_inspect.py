"""Commands that read stored studies: ls, show, best, story, report, replay, export, resume."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest
from command_line import CommandLine, compare_golden, read_log, write_log, write_small_trace
from msgspec.structs import replace

from paceline.analysis.story import describe
from paceline.analysis.summary import Best, find_best
from paceline.api.simulation import Simulation
from paceline.api.stored import StudyList, StudyPage, export_trace, fold_log
from paceline.core.decisions import Go, Step
from paceline.core.errors import SpecError
from paceline.core.events import Opened, Reported
from paceline.core.values import Part
from paceline.engines.sim.traces import read_trace
from paceline.store import open_store

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def two_studies(paceline: CommandLine) -> CommandLine:
    """The command line, in a folder with a trace and two studies of it."""
    trace = write_small_trace(paceline.folder / "tiny.jsonl.gz", setup_s=1.5)
    paceline("simulate", trace, "--policy", "asha", "--slots", "2", "--name", "first")
    paceline("simulate", trace, "--policy", "fifo", "--deadline", "40", "--name", "second")
    return paceline


def simulate(**options: object) -> list[Step]:
    """Return the log of a simulation."""
    log: list[Step] = []
    simulation = msgspec.convert(options, Simulation)
    simulation.run(name="study", remember=log.extend)
    return log


# ls, show, best, story


def test_ls_lists_the_studies_oldest_first(two_studies: CommandLine) -> None:
    compare_golden("ls.txt", two_studies("ls").out)


def test_ls_as_json_is_one_object(two_studies: CommandLine) -> None:
    found = msgspec.json.decode(two_studies("ls", "--json").out, type=StudyList)
    assert [(row.name, row.status, row.end) for row in found.studies] == [
        ("first", "ended", "quiet"),
        ("second", "ended", "deadline"),
    ]


def test_ls_of_an_empty_store_says_so(paceline: CommandLine) -> None:
    open_store("x.db", create=True).close()
    ran = paceline("ls", "--store", "x.db")
    assert (ran.code, ran.out) == (0, "x.db has no studies yet.\n")


def test_show_has_the_study_and_its_trials_best_first(two_studies: CommandLine) -> None:
    compare_golden("show.txt", two_studies("show", "first", "--limit", "4").out)


def test_show_as_json_has_every_trial_unless_limited(two_studies: CommandLine) -> None:
    whole = msgspec.json.decode(two_studies("show", "first", "--json").out, type=StudyPage)
    values = [trial.best_value for trial in whole.trials]
    assert len(values) == whole.study.trials == 6
    assert values == sorted(values, key=lambda value: -(value or 0))
    few = msgspec.json.decode(
        two_studies("show", "first", "--limit", "2", "--json").out, type=StudyPage
    )
    assert few.trials == whole.trials[:2]


def test_best_has_the_config_the_epoch_and_the_checkpoint(two_studies: CommandLine) -> None:
    compare_golden("best.txt", two_studies("best", "first").out)
    found = msgspec.json.decode(two_studies("best", "first", "--json").out, type=Best)
    assert found.value == pytest.approx(0.9 * (1 - 0.5**4))
    assert found.checkpoint is not None
    assert found.checkpoint.epoch == found.epoch == 4


def test_best_of_a_study_without_a_number_exits_with_1(paceline: CommandLine) -> None:
    write_log("x.db", "study", simulate(source="toy:epoch_s=9", trials=1, deadline_s=1.0))
    ran = paceline("best", "study", "--store", "x.db")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == "paceline: study 'study' has not reported a number yet.\n"


def test_a_story_is_of_a_study_or_of_one_trial(two_studies: CommandLine) -> None:
    compare_golden("story.txt", two_studies("story", "second").out)
    compare_golden("story_trial.txt", two_studies("story", "first", "3").out)


# report


def test_a_report_is_one_page_named_after_its_study(two_studies: CommandLine) -> None:
    ran = two_studies("report", "first")
    assert (ran.code, ran.out, ran.err) == (0, "first.html\n", "")
    page = (two_studies.folder / "first.html").read_text("utf-8")
    assert "asha maximized" in page
    assert "paceline story --store sqlite:///paceline.db first" in page
    again = f"paceline simulate {two_studies.folder / 'tiny.jsonl.gz'} --policy asha --slots 2"
    assert again in page


def test_a_report_replaces_the_file_that_is_given(two_studies: CommandLine) -> None:
    (two_studies.folder / "page.html").write_text("the one before")
    assert two_studies("report", "second", "--out", "page.html").out == "page.html\n"
    assert "fifo maximized" in (two_studies.folder / "page.html").read_text("utf-8")
    assert not (two_studies.folder / "second.html").exists()


def test_a_report_of_a_missing_study_writes_nothing(two_studies: CommandLine) -> None:
    ran = two_studies("report", "third")
    assert ran.code == 2
    assert "third" in ran.err
    assert not (two_studies.folder / "third.html").exists()


def test_a_report_that_cannot_be_written_is_a_sentence(two_studies: CommandLine) -> None:
    ran = two_studies("report", "first", "--out", "no/such/page.html")
    assert ran.code == 2
    assert ran.err == "paceline: no/such/page.html cannot be written: No such file or directory.\n"


# replay


def test_a_replay_that_agrees_counts_steps_and_decisions(two_studies: CommandLine) -> None:
    log = read_log("paceline.db", "first")
    decisions = sum(len(step.decisions) for step in log)
    ran = two_studies("replay", "first")
    assert ran.code == 0
    assert ran.out == f"identical: {decisions} decisions in {len(log)} steps\n"


def test_a_replay_that_differs_names_the_first_difference_and_exits_with_1(
    two_studies: CommandLine,
) -> None:
    log = read_log("paceline.db", "first")
    at, changed = next(
        (at, step)
        for at, step in enumerate(log)
        if any(isinstance(decision, Go) for decision in step.decisions)
    )
    decisions = tuple(
        replace(d, why="another reason") if isinstance(d, Go) else d for d in changed.decisions
    )
    log[at] = replace(changed, decisions=decisions)
    write_log("x.db", "first", log)
    ran = two_studies("replay", "first", "--store", "x.db")
    assert ran.code == 1
    assert "different at entry" in ran.out
    assert "another reason" in ran.out
    opened = log[0].event
    assert isinstance(opened, Opened)
    assert describe(changed.event, opened.spec) in ran.out


def test_a_replay_with_another_policy_differs(paceline: CommandLine) -> None:
    log = simulate(source="families:epochs=9", trials=6)
    opened = log[0].event
    assert isinstance(opened, Opened)
    spec = replace(opened.spec, policy=Part("fifo"))
    write_log("x.db", "study", [replace(log[0], event=replace(opened, spec=spec)), *log[1:]])
    assert paceline("replay", "study", "--store", "x.db").code == 1


# export


def test_an_exported_fifo_study_equals_its_trace(two_studies: CommandLine) -> None:
    two_studies("simulate", "tiny.jsonl.gz", "--policy", "fifo", "--order", "file", "--name", "all")
    ran = two_studies("export", "all", "again.jsonl.gz")
    assert (ran.code, ran.out) == (0, "again.jsonl.gz: 6 runs\n")
    before, after = read_trace("tiny.jsonl.gz"), read_trace("again.jsonl.gz")
    assert after.runs == before.runs
    assert after.header.source == "exported from study all by paceline"
    options = ("--policy", "asha", "--slots", "2", "--json")
    one = json.loads(two_studies("simulate", "tiny.jsonl.gz", *options).out)
    two = json.loads(two_studies("simulate", "again.jsonl.gz", *options).out)
    own = ("study", "source", "wall_s")
    assert {k: v for k, v in one.items() if k not in own} == {
        k: v for k, v in two.items() if k not in own
    }


@pytest.mark.traces
def test_an_exported_study_of_a_recorded_trace_has_the_same_values(
    paceline: CommandLine, traces: Path
) -> None:
    source = traces / "cifar10_cnn14.jsonl.gz"
    paceline("simulate", source, "--policy", "fifo", "--slots", "8", "--name", "all")
    assert paceline("export", "all", "again.jsonl.gz").code == 0
    before = {str(run.config): run for run in read_trace(source).runs}
    for run in read_trace("again.jsonl.gz").runs:
        original = before.pop(str(run.config))
        assert list(run.values) == list(original.values)
        assert list(run.seconds) == list(original.seconds)
        assert run.setup_s == original.setup_s
    assert before == {}


def test_a_trace_of_wide_trials_says_how_it_was_converted_and_simulates_back(
    two_studies: CommandLine,
) -> None:
    wide = ("--policy", "fifo", "--order", "file", "--slots", "8", "--span", "2")
    ran = two_studies(
        "simulate",
        "tiny.jsonl.gz",
        *wide,
        "--speedup",
        "table:1=1,2=1.5",
        "--name",
        "wide",
        "--json",
    )
    before = json.loads(ran.out)
    ran = two_studies("export", "wide", "wide.jsonl.gz")
    said = "seconds are as on one slot alone, by these speeds: 1.5 on 2 slots\n"
    assert (ran.code, ran.out) == (0, f"wide.jsonl.gz: 6 runs\n{said}")
    again = two_studies("simulate", "wide.jsonl.gz", *wide)
    assert "1.5 on 2 slots" in again.out
    after = json.loads(two_studies("simulate", "wide.jsonl.gz", *wide, "--json").out)
    assert after["makespan_s"] == pytest.approx(before["makespan_s"])
    wider = two_studies("simulate", "wide.jsonl.gz", *wide, "--span", "3")
    assert "on 3 slots (assumed)" in wider.out


def test_a_worker_that_is_killed_in_a_simulation_is_tried_again(two_studies: CommandLine) -> None:
    one = ("--policy", "fifo", "--slots", "1", "--trials", "1", "--json")
    calm = json.loads(two_studies("simulate", "tiny.jsonl.gz", *one).out)
    struck = json.loads(two_studies("simulate", "tiny.jsonl.gz", *one, "--kills", "5=0").out)
    assert struck["makespan_s"] > calm["makespan_s"]
    assert struck["trials_finished"] == 1
    assert "write time=trial" in two_studies("simulate", "tiny.jsonl.gz", "--kills", "5").err


def test_trials_without_a_report_are_left_out(two_studies: CommandLine) -> None:
    two_studies("simulate", "tiny.jsonl.gz", "--slots", "6", "--deadline", "14", "--name", "short")
    ran = two_studies("export", "short", "short.jsonl.gz")
    left = "3 of them cut short; left out: 3 without a report"
    assert ran.out == f"short.jsonl.gz: 3 runs, {left}\n"
    assert {len(run.values) for run in read_trace("short.jsonl.gz").runs} == {1}


def test_a_config_of_two_trials_is_exported_once_with_the_longer_curve(
    tmp_path: Path,
) -> None:
    log = simulate(source=str(write_small_trace(tmp_path / "tiny.jsonl.gz", runs=2)), policy="fifo")
    opened = log[0].event
    assert isinstance(opened, Opened)
    same = [
        replace(
            step,
            decisions=tuple(
                replace(d, config={"lr": 1}) if hasattr(d, "config") else d for d in step.decisions
            ),
        )
        for step in log
    ]
    last = next(
        at
        for at, step in enumerate(same)
        if isinstance(step.event, Reported) and step.event.epoch == 3
    )
    written = export_trace(same[:last], tmp_path / "one.jsonl.gz")
    assert (written.runs, written.doubled) == (1, 1)
    (run,) = read_trace(tmp_path / "one.jsonl.gz").runs
    assert len(run.values) == 2


def test_an_existing_file_is_replaced_only_with_force(two_studies: CommandLine) -> None:
    before = (two_studies.folder / "tiny.jsonl.gz").read_bytes()
    ran = two_studies("export", "first", "tiny.jsonl.gz")
    assert ran.code == 2
    assert "exists already" in ran.err
    assert (two_studies.folder / "tiny.jsonl.gz").read_bytes() == before
    assert two_studies("export", "first", "tiny.jsonl.gz", "--force").code == 0
    assert (two_studies.folder / "tiny.jsonl.gz").read_bytes() != before


def test_a_study_without_numbers_cannot_be_exported(tmp_path: Path) -> None:
    log = simulate(source="toy:epoch_s=9", trials=1, deadline_s=1.0)
    with pytest.raises(SpecError, match="has not reported a number"):
        export_trace(log, tmp_path / "none.jsonl.gz")
    assert not (tmp_path / "none.jsonl.gz").exists()


def test_a_trace_that_cannot_be_written_is_a_sentence(two_studies: CommandLine) -> None:
    ran = two_studies("export", "first", "no/such/folder.jsonl.gz")
    assert ran.code == 2
    assert (
        ran.err
        == "paceline: no/such/folder.jsonl.gz cannot be written: No such file or directory.\n"
    )


# resume


def test_a_study_cut_anywhere_resumes_to_the_same_log(two_studies: CommandLine) -> None:
    whole = read_log("paceline.db", "first")
    for cut in (1, 2, len(whole) // 2, len(whole) - 1):
        url = f"cut{cut}.db"
        write_log(url, "first", whole[:cut])
        assert two_studies("resume", "first", "--store", url).code == 0
        assert read_log(url, "first") == whole


def test_an_ended_study_is_not_resumed(two_studies: CommandLine) -> None:
    before = read_log("paceline.db", "second")
    ran = two_studies("resume", "second")
    assert ran.code == 0
    assert ran.out.startswith("study 'second' has ended: ")
    assert read_log("paceline.db", "second") == before
    quiet = two_studies("resume", "second", "--json")
    assert (quiet.code, quiet.out) == (0, "")


def test_resuming_a_study_of_unknown_origin_needs_its_file(paceline: CommandLine) -> None:
    log = simulate(source="toy:epochs=2", trials=2)
    opened = log[0].event
    assert isinstance(opened, Opened)
    write_log("x.db", "study", [replace(log[0], event=replace(opened, engine={}))])
    ran = paceline("resume", "study", "--store", "x.db")
    assert ran.code == 2
    assert "was not started by `paceline run`: give the file" in ran.err


def test_a_simulation_with_unknown_options_is_refused(paceline: CommandLine) -> None:
    log = simulate(source="toy:epochs=2", trials=2)
    opened = log[0].event
    assert isinstance(opened, Opened)
    engine = {**opened.engine, "warp": 9}
    write_log("x.db", "study", [replace(log[0], event=replace(opened, engine=engine))])
    ran = paceline("resume", "study", "--store", "x.db")
    assert ran.code == 2
    assert "warp" in ran.err


def test_find_best_agrees_with_the_state(tmp_path: Path) -> None:
    log = simulate(source=str(write_small_trace(tmp_path / "tiny.jsonl.gz")), policy="fifo")
    state = fold_log(log)
    found = find_best(state)
    assert found is not None
    assert (found.trial, found.epoch) == (state.best.id if state.best else None, state.best_epoch)
