"""`paceline run` and `paceline resume` with real files, processes and signals."""

from __future__ import annotations

import json
import re
import signal
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest
from command_line import CommandResult, read_log, run_command
from running_command import STUDY, TRAIN, RunningCommand, write_study_file
from waiting import wait_for

from paceline.analysis.summary import StudySummary
from paceline.api.permissions import NOTHING, allow, check_part_options
from paceline.api.stored import fold_log, read_spec
from paceline.core.errors import SpecError
from paceline.core.events import Opened, Resumed

if TYPE_CHECKING:
    from pathlib import Path


def run(folder: Path, *arguments: str) -> CommandResult:
    """Run the folder's study file."""
    return run_command(folder, "run", "study.py", *arguments)


def test_a_study_file_runs_to_its_end_and_can_be_inspected(tmp_path: Path) -> None:
    write_study_file(tmp_path)
    ran = run(tmp_path, "--policy", "asha")
    assert (ran.code, ran.err) == (0, "")
    state = fold_log(read_log(f"sqlite:///{tmp_path}/paceline.db", "study-1"))
    lines, _, summary = ran.out.partition("╭")
    assert "4 trials of at most 9 epochs" in lines
    assert "new best: loss " in lines
    assert lines.count("\n") < state.reports  # neither a line for each report nor each decision
    assert "ended       quiet" in summary
    assert "4: 1 finished, 3 paused" in summary
    assert "study-1.html" in summary
    assert "<html" in (tmp_path / "study-1.html").read_text("utf-8")
    assert "study-1" in run_command(tmp_path, "ls").out
    assert "ended: quiet" in run_command(tmp_path, "show", "study-1").out
    assert f"{state.best_loss:.6g}" in run_command(tmp_path, "best", "study-1").out
    assert "the study ends after 4 trials" in run_command(tmp_path, "story", "study-1").out
    assert run_command(tmp_path, "replay", "study-1").out.startswith("identical")
    written = run_command(tmp_path, "export", "study-1", "mine.jsonl.gz").out
    assert "4 runs, 3 of them cut short" in written
    again = ("simulate", "mine.jsonl.gz", "--policy", "fifo", "--json")
    refused = run_command(tmp_path, *again)
    assert (refused.code, refused.out) == (2, "")
    assert "cut 3 of its 4 runs short" in refused.err
    result = json.loads(run_command(tmp_path, *again, "--complete").out)
    assert (result["trials_finished"], result["epochs_trained"]) == (4, 36)
    assert result["completion"]["cut"] == 3


def test_json_is_one_object_with_the_documented_keys(tmp_path: Path) -> None:
    write_study_file(tmp_path)
    ran = run(tmp_path, "--json", "--no-report", "--name", "it", "--policy", "asha")
    printed = msgspec.json.decode(ran.out, type=StudySummary, strict=True)
    assert list(json.loads(ran.out)) == [
        field.name for field in msgspec.structs.fields(StudySummary)
    ]
    assert (
        printed.study,
        printed.end,
        printed.trials_finished,
        printed.report,
    ) == ("it", "quiet", 1, None)
    assert printed.checkpoint is not None
    assert (tmp_path / printed.checkpoint).exists()
    assert "new best: loss" in ran.err
    quiet = run(tmp_path, "--json", "--no-report", "--quiet")
    assert quiet.err == ""
    assert json.loads(quiet.out)["study"] == "study-1"


def test_options_replace_those_of_the_file(tmp_path: Path) -> None:
    write_study_file(tmp_path)
    (tmp_path / "sizes.py").write_text("def find_width(setting):\n    return 1\n", "utf-8")
    ran = run(
        tmp_path,
        *("--policy", "asha:eta=4", "--trials", "3", "--seed", "7", "--deadline", "1h"),
        *("--target", "0.5", "--over", "2", "--slots", "cpu:1", "--slot-hours", "0.5"),
        *("--generator", "sobol", "--allocator", "fixed", "--store", "mine.db", "--name", "other"),
        *("--range", "0,2", "--report", "r.html", "--quiet", "--curves", "last", "--no-share"),
        *("--needs", "sizes:find_width", "--epochs", "4", "--retries", "1", "--keep-best", "2"),
    )
    assert ran.code == 0, ran.err
    assert (tmp_path / "r.html").exists()
    log = read_log(f"sqlite:///{tmp_path}/mine.db", "other")
    spec = read_spec(log)
    assert (str(spec.policy), spec.generator.name, spec.seed) == ("asha:eta=4", "sobol", 7)
    assert spec.range == (0.0, 2.0)
    assert (spec.curves.name, spec.share, spec.fit) == ("last", False, True)
    assert (spec.epochs, spec.retries, spec.saves.best) == (4, 1, 2)
    budget = spec.budget
    assert (budget.deadline_s, budget.trials, budget.slot_seconds) == (3600.0, 3, 1800.0)
    assert budget.target is not None
    assert (budget.target.value, budget.target.over) == (0.5, 2)
    opened = log[0].event
    assert isinstance(opened, Opened)
    # The log has no absolute path of this machine.
    assert opened.run.file == "study.py"
    assert str(tmp_path) not in msgspec.json.encode(opened).decode()
    with pytest.raises(SpecError, match=r"names the needs 'sizes:find_width', .* --allow sizes:"):
        check_part_options("other", opened.run.given or {}, NOTHING)
    check_part_options("other", opened.run.given or {}, allow("sizes:find_width"))


def test_the_main_block_does_not_run_and_the_folder_can_be_imported(
    tmp_path: Path,
) -> None:
    (tmp_path / "beside.py").write_text("START = 0.25\n")
    text = TRAIN.replace("weight=[0.0]", "weight=[beside.START]") + STUDY
    main = '\nif __name__ == "__main__":\n    raise SystemExit("not here")\n'
    write_study_file(tmp_path, text=f"import beside\n{text}{main}")
    assert run(tmp_path, "--quiet", "--no-report").code == 0


def test_names_count_up_from_the_file_s_name(tmp_path: Path) -> None:
    write_study_file(tmp_path, "resnet.py")
    for _ in range(2):
        ran = run_command(tmp_path, "run", "resnet.py", "--trials", "1", "--quiet", "--no-report")
        assert ran.code == 0
    listed = json.loads(run_command(tmp_path, "ls", "--json").out)
    assert [row["name"] for row in listed["studies"]] == ["resnet-1", "resnet-2"]


MISTAKES = {
    "a syntax error": ("def train(trial)\n    pass\n", ["study.py:1: expected ':'"]),
    "an exception": ("x = 1\ny = x / 0\n", ["study.py:2: ZeroDivisionError: division by zero"]),
    "an import of nothing": ("import nowhere_to_be_found\n", ["study.py:1: ModuleNotFoundError"]),
    "an exit": ("import sys\nsys.exit(3)\n", ["study.py:2: the file exits before"]),
    "an empty file": ("", ["study.py has no study: it is empty"]),
    "no study": (TRAIN, ["study.py has no study", "it has time, Path, pl, FOLDER, train"]),
    "a study by another name": (
        TRAIN + STUDY.replace("study =", "mine ="),
        ["study.py has no study", "its pl.Study is named mine"],
    ),
    "something else": (TRAIN + "study = train\n", ["study in study.py is a function"]),
    "an invalid option": (
        TRAIN + STUDY.replace("epochs=9", "epochs=0"),
        ["study.py:2", "epochs=0 is invalid"],
    ),
    "a study without a space": (
        TRAIN + 'study = pl.Study(train, metric="loss", mode="min", epochs=3, share=True)\n',
        ["has no space"],
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_an_error_in_a_file_is_one_sentence_with_its_line(case: str, tmp_path: Path) -> None:
    text, parts = MISTAKES[case]
    write_study_file(tmp_path, text=text)
    check_refused(run(tmp_path), *parts)
    assert not list(tmp_path.glob("*.db"))


def test_a_missing_file_and_other_file_types_are_refused(tmp_path: Path) -> None:
    check_refused(run(tmp_path), "there is no file study.py")
    check_refused(run_command(tmp_path, "run", "."), ". is a directory")
    (tmp_path / "study.txt").touch()
    check_refused(run_command(tmp_path, "run", "study.txt"), "study.txt is not a Python file")
    write_study_file(tmp_path)
    check_refused(run(tmp_path, "--policy", "ahsa"), "did you mean 'asha'?")
    check_refused(run(tmp_path, "--deadline", "soon"), "'soon'")
    check_refused(run(tmp_path, "--name", ""), "--name is empty")
    check_refused(run(tmp_path, "--store", "ftp://x"), "the scheme 'ftp'")
    assert not list(tmp_path.glob("*.db"))


def check_refused(ran: CommandResult, *parts: str) -> None:
    """Check for exit code 2 and one line with all these parts."""
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("paceline: ")
    assert ran.err.count("\n") == 1
    for part in parts:
        assert part in ran.err


def test_a_failed_study_exits_with_1_and_prints_the_function_s_error(tmp_path: Path) -> None:
    text = TRAIN.replace("            trial.report", "            raise OSError('no data')\n#")
    write_study_file(tmp_path, text=text + STUDY)
    ran = run(tmp_path)
    assert ran.code == 1
    sentence, *details = ran.err.splitlines()
    assert "failed before their first report: OSError: no data (study.py:" in sentence
    assert "    raise OSError('no data')" in details
    assert re.match(r"The output of trial \d is in paceline\.files/study-1-", details[-1])


def test_an_interrupted_study_is_resumed_with_its_own_file_and_options(tmp_path: Path) -> None:
    write_study_file(tmp_path)
    (tmp_path / "hold").touch()
    with RunningCommand(tmp_path, "paceline", "run", "study.py", "--policy", "fifo") as running:
        running.until("new best")
        # Another run under the same name gets an error with the driver.
        check_refused(
            run(tmp_path, "--name", "study-1"),
            f"is running (process {running.pid})",
            "paceline stop",
        )
        running.signal(signal.SIGINT)
        ran = running.end()
    assert ran.code == 130
    assert ran.err.endswith("resume with `paceline resume study-1`\n")
    assert "best" in ran.out.rpartition("new best")[2]  # the summary
    assert (tmp_path / "unwinding").exists()
    check_refused(run(tmp_path, "--name", "study-1"), "unfinished", "`paceline resume study-1`")
    (tmp_path / "hold").unlink()
    # Store and file may move together.
    moved = tmp_path.parent / f"{tmp_path.name}-moved"
    tmp_path.rename(moved)
    ran = run_command(moved, "resume", "study-1", "--json", "--quiet")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["policy"] == "fifo"
    assert (moved / "study-1.html").exists()
    log = read_log(f"sqlite:///{moved}/paceline.db", "study-1")
    assert any(isinstance(step.event, Resumed) for step in log)
    assert fold_log(log).end is not None
    check_refused(
        run_command(moved, "run", "study.py", "--name", "study-1"), "has ended", "paceline show"
    )
    again = run_command(moved, "resume", "study-1")
    assert (again.code, again.out) == (
        0,
        "study 'study-1' has ended: nothing is left to run: 4 trials were opened.\n",
    )


def test_a_terminated_study_exits_with_143_and_can_be_resumed(tmp_path: Path) -> None:
    file = write_study_file(tmp_path)
    (tmp_path / "hold").touch()
    command = ("paceline", "run", "study.py", "--name", "mine", "--store", "mine.db")
    with RunningCommand(tmp_path, *command) as running:
        running.until("new best")
        running.signal(signal.SIGTERM)
        ran = running.end()
    assert ran.code == 143
    assert ran.err.endswith("resume with `paceline resume mine --store mine.db`\n")
    (tmp_path / "hold").unlink()
    file.rename(tmp_path / "renamed.py")
    resume = ("resume", "mine", "--store", "mine.db")
    check_refused(
        run_command(tmp_path, *resume),
        "study.py of study 'mine' does not exist",
        "paceline resume mine STUDY.PY",
    )
    write_study_file(tmp_path, "other.py", TRAIN + STUDY.replace("epochs=9", "epochs=8"))
    check_refused(
        run_command(tmp_path, "resume", "mine", "other.py", "--store", "mine.db"),
        "epochs=8 is less",
        "give epochs=9 or more",
    )
    check_refused(
        run_command(tmp_path, *resume, "renamed.py", "--address", "10.0.0.1:6379"),
        "study 'mine' does not run on a Ray cluster",
        "leave out --address",
    )
    ran = run_command(tmp_path, "resume", "mine", "renamed.py", "--store", "mine.db", "--no-report")
    assert ran.code == 0, ran.err
    assert "study 'mine' resumes" in ran.out


def test_a_study_goes_on_when_its_output_is_closed(tmp_path: Path) -> None:
    write_study_file(tmp_path)
    (tmp_path / "hold").touch()
    with RunningCommand(tmp_path, "paceline", "run", "study.py", "--no-report") as running:
        running.until("2 slots are available")
        running.hang_up()
        (tmp_path / "hold").unlink()
        store = f"sqlite:///{tmp_path}/paceline.db"
        wait_for(lambda: fold_log(read_log(store, "study-1")).end is not None)


def test_a_second_interrupt_does_not_wait(tmp_path: Path) -> None:
    write_study_file(tmp_path)
    (tmp_path / "hold").touch()
    (tmp_path / "stubborn").touch()
    with RunningCommand(tmp_path, "paceline", "run", "study.py", "--name", "mine") as running:
        running.until("new best")
        running.signal(signal.SIGINT)
        wait_for((tmp_path / "unwinding").exists)
        running.signal(signal.SIGINT)
        ran = running.end()
    assert ran.code == 130
    assert "resume with `paceline resume mine`" in ran.err
    for name in ("hold", "stubborn"):
        (tmp_path / name).unlink()
    assert run_command(tmp_path, "resume", "mine", "-q", "--no-report").code == 0


def test_a_script_that_tunes_is_interrupted_in_order_too(tmp_path: Path) -> None:
    tune = STUDY.replace("study = pl.Study(", "pl.tune(").replace(
        "slots=2", 'slots=2, name="mine", store="mine.db", progress=True'
    )
    write_study_file(tmp_path, "script.py", TRAIN + tune)
    (tmp_path / "hold").touch()
    for number, code in ((signal.SIGINT, 0), (signal.SIGTERM, 143)):
        with RunningCommand(tmp_path, sys.executable, "script.py") as running:
            running.until("study 'mine'")
            running.until("2 slots are available")
            running.signal(number)
            ran = running.end()
        assert ran.code == code
        # After Ctrl-C the script goes on with what was found.
        assert ("run the same call again" in ran.err) == (number is signal.SIGINT)
    (tmp_path / "hold").unlink()
    check_refused(
        run_command(tmp_path, "resume", "mine", "--store", "mine.db"), "was not started by"
    )
    done = run_script(tmp_path)
    assert done.code == 0
    assert "study 'mine' resumes" in done.err
    assert "the study ends" in done.err


def run_script(folder: Path) -> CommandResult:
    """Run the script to its end."""
    with RunningCommand(folder, sys.executable, "script.py") as running:
        return running.end()
