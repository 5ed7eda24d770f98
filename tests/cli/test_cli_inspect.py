"""Commands on studies that are kept: ls, show, best, story, report, replay, export, resume."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest
from cli_kit import Here, golden, log_of, put, tiny
from msgspec.structs import replace

from paceline.analysis.summary import Best, best_of
from paceline.api.simulation import Simulation
from paceline.api.stored import StudyList, StudyPage, export, folded
from paceline.core.decisions import Go, Step
from paceline.core.errors import SpecError
from paceline.core.events import Opened, Reported
from paceline.core.values import Part
from paceline.engines.sim.traces import read_trace
from paceline.store import open_store

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def kept(paceline: Here) -> Here:
    """The command line, in a folder with a trace and two studies of it."""
    trace = tiny(paceline.folder / "tiny.jsonl.gz", setup_s=1.5)
    paceline("simulate", trace, "--policy", "asha", "--slots", "2", "--name", "first")
    paceline("simulate", trace, "--policy", "fifo", "--deadline", "40", "--name", "second")
    return paceline


def simulated(**options: object) -> list[Step]:
    """Return the log of a simulation."""
    log: list[Step] = []
    simulation = msgspec.convert(options, Simulation)
    simulation.run(name="study", remember=log.extend)
    return log


# ls, show, best, story


def test_ls_lists_the_studies_oldest_first(kept: Here) -> None:
    golden("ls.txt", kept("ls").out)


def test_ls_as_json_is_one_object(kept: Here) -> None:
    found = msgspec.json.decode(kept("ls", "--json").out, type=StudyList)
    assert [(row.name, row.status, row.end) for row in found.studies] == [
        ("first", "ended", "quiet"),
        ("second", "ended", "deadline"),
    ]


def test_ls_of_an_empty_store_says_so(paceline: Here) -> None:
    open_store("x.db", create=True).close()
    ran = paceline("ls", "--store", "x.db")
    assert (ran.code, ran.out) == (0, "x.db holds no study yet.\n")


def test_show_has_the_study_and_its_trials_best_first(kept: Here) -> None:
    golden("show.txt", kept("show", "first", "--limit", "4").out)


def test_show_as_json_has_every_trial_unless_limited(kept: Here) -> None:
    whole = msgspec.json.decode(kept("show", "first", "--json").out, type=StudyPage)
    values = [trial.best_value for trial in whole.trials]
    assert len(values) == whole.study.trials == 6
    assert values == sorted(values, key=lambda value: -(value or 0))
    few = msgspec.json.decode(kept("show", "first", "--limit", "2", "--json").out, type=StudyPage)
    assert few.trials == whole.trials[:2]


def test_best_has_the_config_the_place_and_the_checkpoint(kept: Here) -> None:
    golden("best.txt", kept("best", "first").out)
    found = msgspec.json.decode(kept("best", "first", "--json").out, type=Best)
    assert found.value == pytest.approx(0.9 * (1 - 0.5**4))
    assert found.checkpoint is not None
    assert found.checkpoint.epoch == found.epoch == 4


def test_best_of_a_study_without_a_number_exits_with_1(paceline: Here) -> None:
    put("x.db", "study", simulated(source="toy:epoch_s=9", trials=1, deadline_s=1.0))
    ran = paceline("best", "study", "--store", "x.db")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == "paceline: study 'study' has not reported a number yet.\n"


def test_a_story_tells_a_study_or_one_trial(kept: Here) -> None:
    golden("story.txt", kept("story", "second").out)
    golden("story_trial.txt", kept("story", "first", "3").out)


# report


def test_a_report_is_one_page_named_after_its_study(kept: Here) -> None:
    ran = kept("report", "first")
    assert (ran.code, ran.out, ran.err) == (0, "first.html\n", "")
    page = (kept.folder / "first.html").read_text("utf-8")
    assert "asha looked for the highest" in page
    assert "paceline story --store sqlite:///paceline.db first" in page
    assert f"paceline simulate {kept.folder / 'tiny.jsonl.gz'} --slots 2" in page


def test_a_report_goes_where_it_is_told_and_replaces_the_one_before(kept: Here) -> None:
    (kept.folder / "page.html").write_text("the one before")
    assert kept("report", "second", "--out", "page.html").out == "page.html\n"
    assert "fifo looked for the highest" in (kept.folder / "page.html").read_text("utf-8")
    assert not (kept.folder / "second.html").exists()


def test_a_report_of_a_study_that_is_not_there_writes_nothing(kept: Here) -> None:
    ran = kept("report", "third")
    assert ran.code == 2
    assert "third" in ran.err
    assert not (kept.folder / "third.html").exists()


def test_a_report_that_cannot_be_written_is_a_sentence(kept: Here) -> None:
    ran = kept("report", "first", "--out", "no/such/page.html")
    assert ran.code == 2
    assert ran.err == "paceline: no/such/page.html cannot be written: No such file or directory.\n"


# replay


def test_a_replay_that_agrees_counts_what_it_compared(kept: Here) -> None:
    log = log_of("paceline.db", "first")
    decisions = sum(len(step.decisions) for step in log)
    ran = kept("replay", "first")
    assert ran.code == 0
    assert ran.out == f"identical: {decisions} decisions in {len(log)} steps\n"


def test_a_replay_that_differs_names_the_first_difference_and_exits_with_1(kept: Here) -> None:
    log = log_of("paceline.db", "first")
    at, changed = next(
        (at, step)
        for at, step in enumerate(log)
        if any(isinstance(decision, Go) for decision in step.decisions)
    )
    decisions = tuple(
        replace(d, why="somebody else wrote this") if isinstance(d, Go) else d
        for d in changed.decisions
    )
    log[at] = replace(changed, decisions=decisions)
    put("x.db", "first", log)
    ran = kept("replay", "first", "--store", "x.db")
    assert ran.code == 1
    assert "different at entry" in ran.out
    assert "somebody else wrote this" in ran.out
    assert f"{type(changed.event).__name__.lower()} attempt" in ran.out


def test_a_replay_with_another_policy_differs(paceline: Here) -> None:
    log = simulated(source="families:epochs=9", trials=6)
    opened = log[0].event
    assert isinstance(opened, Opened)
    spec = replace(opened.spec, policy=Part("fifo"))
    put("x.db", "study", [replace(log[0], event=replace(opened, spec=spec)), *log[1:]])
    assert paceline("replay", "study", "--store", "x.db").code == 1


# export


def test_an_exported_fifo_study_gives_back_the_runs_it_was_made_of(kept: Here) -> None:
    kept("simulate", "tiny.jsonl.gz", "--policy", "fifo", "--order", "file", "--name", "all")
    ran = kept("export", "all", "again.jsonl.gz")
    assert (ran.code, ran.out) == (0, "again.jsonl.gz: 6 runs\n")
    before, after = read_trace("tiny.jsonl.gz"), read_trace("again.jsonl.gz")
    assert after.runs == before.runs
    assert after.header.source == "exported from study all by paceline"
    options = ("--policy", "asha", "--slots", "2", "--json")
    one = json.loads(kept("simulate", "tiny.jsonl.gz", *options).out)
    two = json.loads(kept("simulate", "again.jsonl.gz", *options).out)
    own = ("study", "source", "wall_s")
    assert {k: v for k, v in one.items() if k not in own} == {
        k: v for k, v in two.items() if k not in own
    }


@pytest.mark.traces
def test_an_exported_study_of_a_recorded_trace_gives_back_its_values(
    paceline: Here, traces: Path
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


def test_trials_without_a_report_are_left_out(kept: Here) -> None:
    kept("simulate", "tiny.jsonl.gz", "--slots", "6", "--deadline", "14", "--name", "short")
    ran = kept("export", "short", "short.jsonl.gz")
    assert ran.out == "short.jsonl.gz: 3 runs; left out: 3 without a report\n"
    assert {len(run.values) for run in read_trace("short.jsonl.gz").runs} == {1}


def test_a_config_that_was_tried_twice_is_exported_once_with_the_longer_curve(
    tmp_path: Path,
) -> None:
    log = simulated(source=str(tiny(tmp_path / "tiny.jsonl.gz", runs=2)), policy="fifo")
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
    written = export(same[:last], tmp_path / "one.jsonl.gz")
    assert (written.runs, written.doubled) == (1, 1)
    (run,) = read_trace(tmp_path / "one.jsonl.gz").runs
    assert len(run.values) == 2


def test_an_existing_file_is_replaced_by_force_alone(kept: Here) -> None:
    before = (kept.folder / "tiny.jsonl.gz").read_bytes()
    ran = kept("export", "first", "tiny.jsonl.gz")
    assert ran.code == 2
    assert "exists already" in ran.err
    assert (kept.folder / "tiny.jsonl.gz").read_bytes() == before
    assert kept("export", "first", "tiny.jsonl.gz", "--force").code == 0
    assert (kept.folder / "tiny.jsonl.gz").read_bytes() != before


def test_a_study_without_numbers_cannot_be_exported(tmp_path: Path) -> None:
    log = simulated(source="toy:epoch_s=9", trials=1, deadline_s=1.0)
    with pytest.raises(SpecError, match="no number"):
        export(log, tmp_path / "none.jsonl.gz")
    assert not (tmp_path / "none.jsonl.gz").exists()


def test_a_trace_that_cannot_be_written_is_a_sentence(kept: Here) -> None:
    ran = kept("export", "first", "no/such/folder.jsonl.gz")
    assert ran.code == 2
    assert (
        ran.err
        == "paceline: no/such/folder.jsonl.gz cannot be written: No such file or directory.\n"
    )


# resume


def test_a_study_cut_anywhere_resumes_to_the_same_log(kept: Here) -> None:
    whole = log_of("paceline.db", "first")
    for cut in (1, 2, len(whole) // 2, len(whole) - 1):
        url = f"cut{cut}.db"
        put(url, "first", whole[:cut])
        assert kept("resume", "first", "--store", url).code == 0
        assert log_of(url, "first") == whole


def test_a_study_that_has_ended_is_left_alone(kept: Here) -> None:
    before = log_of("paceline.db", "second")
    ran = kept("resume", "second")
    assert ran.code == 0
    assert ran.out.startswith("study 'second' has ended: ")
    assert log_of("paceline.db", "second") == before
    quiet = kept("resume", "second", "--json")
    assert (quiet.code, quiet.out) == (0, "")


def test_a_study_that_was_not_simulated_asks_for_its_file(paceline: Here) -> None:
    log = simulated(source="toy:epochs=2", trials=2)
    opened = log[0].event
    assert isinstance(opened, Opened)
    put("x.db", "study", [replace(log[0], event=replace(opened, engine={}))])
    ran = paceline("resume", "study", "--store", "x.db")
    assert ran.code == 2
    assert "was not started by `paceline run`: give the file" in ran.err


def test_a_study_of_options_from_the_future_is_refused(paceline: Here) -> None:
    log = simulated(source="toy:epochs=2", trials=2)
    opened = log[0].event
    assert isinstance(opened, Opened)
    engine = {**opened.engine, "warp": 9}
    put("x.db", "study", [replace(log[0], event=replace(opened, engine=engine))])
    ran = paceline("resume", "study", "--store", "x.db")
    assert ran.code == 2
    assert "warp" in ran.err


def test_the_best_of_a_log_is_that_of_its_state(tmp_path: Path) -> None:
    log = simulated(source=str(tiny(tmp_path / "tiny.jsonl.gz")), policy="fifo")
    state = folded(log)
    found = best_of(state)
    assert found is not None
    assert (found.trial, found.epoch) == (state.best.id if state.best else None, state.best_epoch)
