"""The command line: simulate, demo, crashes, and the rules for all commands."""

from __future__ import annotations

import gzip
import json
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import click
import msgspec
import pytest
from command_line import (
    SCRIPT,
    CommandLine,
    compare_golden,
    make_environment,
    run_command,
    write_log,
    write_small_trace,
)

from paceline.api.options import StudyOptions
from paceline.api.simulation import SimResult, Simulation
from paceline.cli.flags import SIMULATION_FLAGS, STUDY_FIELDS_WITHOUT_FLAG, STUDY_FLAGS
from paceline.cli.main import COMMANDS, commands, main
from paceline.cli.run import run
from paceline.cli.submit import submit

if TYPE_CHECKING:
    from pathlib import Path

    from paceline.core.decisions import Step


def list_fields(kind: type) -> list[str]:
    """Return the names of a struct's fields."""
    return [field.name for field in msgspec.structs.fields(kind)]


# simulate


def test_json_is_one_object_with_the_fields_of_the_result(paceline: CommandLine) -> None:
    trace = write_small_trace(paceline.folder / "tiny.jsonl.gz")
    ran = paceline("simulate", trace, "--policy", "asha", "--slots", "2", "--json")
    assert ran.code == 0
    assert ran.out.count("\n") == 1
    assert list(json.loads(ran.out)) == list_fields(SimResult)


def test_the_table_shows_the_best_value_and_the_end(paceline: CommandLine) -> None:
    trace = write_small_trace(paceline.folder / "tiny.jsonl.gz")
    ran = paceline("simulate", trace, "--policy", "fifo", "--slots", "2", "--target", "0.7")
    assert ran.code == 0
    compare_golden("simulate.txt", ran.out)


def test_nothing_is_written_unless_a_store_or_a_name_is_given(paceline: CommandLine) -> None:
    trace = write_small_trace(paceline.folder / "tiny.jsonl.gz")
    assert paceline("simulate", trace).code == 0
    assert [path.name for path in paceline.folder.iterdir()] == ["tiny.jsonl.gz"]


def test_a_name_alone_goes_to_the_default_store(paceline: CommandLine) -> None:
    trace = write_small_trace(paceline.folder / "tiny.jsonl.gz")
    assert paceline("simulate", trace, "--name", "mine").code == 0
    assert (paceline.folder / "paceline.db").exists()
    assert "mine" in paceline("ls").out


def test_the_default_store_can_be_set_in_the_environment(
    paceline: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_STORE", "sqlite:///other.db")
    trace = write_small_trace(paceline.folder / "tiny.jsonl.gz")
    assert paceline("simulate", trace, "--name", "mine").code == 0
    assert not (paceline.folder / "paceline.db").exists()
    assert "mine" in paceline("ls", "--store", "other.db").out


def test_a_store_alone_names_the_study_after_its_source_and_policy(paceline: CommandLine) -> None:
    trace = write_small_trace(paceline.folder / "tiny.jsonl.gz")
    assert paceline("simulate", trace, "--slots", "2", "--store", "x.db").code == 0
    assert "tiny-asha-s2-0" in paceline("ls", "--store", "x.db").out


def test_a_given_setup_overrides_the_trace_s_own(paceline: CommandLine) -> None:
    trace = write_small_trace(paceline.folder / "tiny.jsonl.gz", runs=1, epochs=2, setup_s=5.0)

    def makespan(*options: str) -> float:
        ran = paceline("simulate", trace, "--policy", "fifo", "--json", *options)
        return float(json.loads(ran.out)["makespan_s"])

    assert makespan() == 25.0
    assert makespan("--setup", "0") == 20.0
    assert makespan("--setup", "1m") == 80.0


def test_every_option_reaches_the_simulation(paceline: CommandLine) -> None:
    trace = write_small_trace(paceline.folder / "tiny.jsonl.gz")
    given = (
        "--policy asha:eta=2 --slots 3 --target 0.99 --over 2 --range 0,1.5 --deadline 2h "
        "--slot-hours 3 --epochs 3 --trials 5 --seed 7 --order file --share --speedup amdahl:0.9 "
        "--allocator fluid --pack 2 --interference 0.1 --span 2 --setup 1 --save 2 --restore 3 "
        "--forecast 4 --live --save-every 1m --mean-life 1d --retries 2 --capacity 10=2,1m=3 "
        "--name all --json"
    )
    ran = paceline("simulate", trace, *given.split())
    assert ran.code == 0, ran.err
    with closing(sqlite3.connect(paceline.folder / "paceline.db")) as store:
        (body,) = store.execute(
            "select body from paceline_steps order by number limit 1"
        ).fetchone()
    assert msgspec.convert(json.loads(body)["event"]["engine"], Simulation) == Simulation(
        source=str(trace),
        policy="asha:eta=2",
        slots=3,
        target=0.99,
        over=2,
        range=(0.0, 1.5),
        deadline_s=7200.0,
        slot_seconds=10800.0,
        epochs=3,
        trials=5,
        seed=7,
        order="file",
        share=True,
        speedup="amdahl:0.9",
        allocator="fluid",
        pack=2,
        interference=0.1,
        span=2,
        setup_s=1.0,
        save_s=2.0,
        restore_s=3.0,
        forecast_s=4.0,
        live=True,
        save_every_s=60.0,
        mean_life_s=86400.0,
        retries=2,
        capacity=((10.0, 2), (60.0, 3)),
    )


def test_the_generator_option_proposes_configs_of_a_synthetic_workload(
    paceline: CommandLine,
) -> None:
    few = ("simulate", "toy:epochs=2", "--trials", "4", "--json")
    drawn, filled = (
        json.loads(paceline(*few, *more).out)["best_config"]
        for more in ((), ("--generator", "sobol"))
    )
    assert drawn != filled


def test_every_option_of_a_study_and_of_a_simulation_has_a_flag_or_a_reason() -> None:
    fields = [flag.field for flag in STUDY_FLAGS]
    assert sorted([*fields, *STUDY_FIELDS_WITHOUT_FLAG]) == sorted(StudyOptions.__struct_fields__)
    for command in (run, submit):
        assert {*fields, "name", "store"} <= {parameter.name for parameter in command.params}
    assert {flag.field for flag in SIMULATION_FLAGS} == set(list_fields(Simulation)) - {
        "source",
        "searches",
    }


def test_a_negative_target_is_a_value_and_not_an_option(paceline: CommandLine) -> None:
    ran = paceline("simulate", "toy:epochs=2", "--trials", "2", "--target", "-1", "--json")
    assert json.loads(ran.out)["target"] == -1.0


def test_a_study_that_stalls_is_shown_and_exits_with_1(paceline: CommandLine) -> None:
    trace = write_small_trace(paceline.folder / "tiny.jsonl.gz")
    ran = paceline("simulate", trace, "--slots", "2", "--capacity", "15=0")
    assert ran.code == 1
    assert "stalled" in ran.out


def test_a_study_exits_with_1_if_all_trials_failed(paceline: CommandLine) -> None:
    ran = paceline("simulate", "families:crash=1,diverge=0", "--trials", "3", "--retries", "0")
    assert ran.code == 1
    assert "3 failed" in ran.out


def test_a_file_may_have_a_colon_in_its_name(paceline: CommandLine) -> None:
    trace = write_small_trace(paceline.folder / "run:1.jsonl.gz")
    assert paceline("simulate", trace).code == 0


@pytest.mark.traces
def test_two_runs_of_a_simulation_differ_only_in_wall_time(
    paceline: CommandLine, traces: Path
) -> None:
    trace = traces / "nasbench_nlp_wikitext2.jsonl.gz"
    command = ("simulate", trace, "--policy", "asha", "--slots", "8", "--seed", "1", "--json")
    first, again = (json.loads(paceline(*command).out) for _ in range(2))
    assert {**first, "wall_s": 0} == {**again, "wall_s": 0}


@pytest.mark.traces
def test_fifo_on_one_slot_takes_the_sum_of_all_epochs(paceline: CommandLine, traces: Path) -> None:
    trace = traces / "nasbench_nlp_wikitext2.jsonl.gz"
    options = ["--policy", "fifo", "--order", "file", "--slots", "1", "--setup", "0", "--json"]
    result = json.loads(paceline("simulate", trace, *options).out)
    with gzip.open(trace, "rt", encoding="utf-8") as lines:
        _, *runs = map(json.loads, lines)
    spent = sum(sum(run["seconds"]) for run in runs)
    assert result["makespan_s"] == pytest.approx(spent, rel=1e-12)
    assert result["busy_fraction"] == pytest.approx(1.0)


# Crashes and interrupts

LONG = (
    *("simulate", "families", "--policy", "asha:drain=true", "--trials", "200", "--seed", "3"),
    *("--store", "x.db", "--name", "a"),
)


def start_simulation(folder: Path) -> subprocess.Popen[str]:
    """Start a long simulation in a shell; return when a part of its log is in the store."""
    process = subprocess.Popen(
        [SCRIPT, *LONG, "--json"],
        cwd=folder,
        env=make_environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while process.poll() is None:
        try:
            with closing(sqlite3.connect(f"file:{folder / 'x.db'}?mode=ro", uri=True)) as store:
                if store.execute("select count(*) from paceline_steps").fetchone()[0]:
                    return process
        except sqlite3.OperationalError:
            continue  # the store or its tables do not exist yet
    raise AssertionError(f"it ended before it could be stopped: {process.communicate()}")


def test_a_killed_simulation_resumes_to_the_same_result(paceline: CommandLine) -> None:
    process = start_simulation(paceline.folder)
    process.kill()
    process.communicate()
    assert "unfinished" in paceline("ls", "--store", "x.db").out
    resumed = paceline("resume", "a", "--store", "x.db", "--json")
    whole = paceline(*LONG[:-4], "--name", "a", "--store", "y.db", "--json")
    assert resumed.code == whole.code == 0
    assert {**json.loads(resumed.out), "wall_s": 0} == {**json.loads(whole.out), "wall_s": 0}
    assert paceline("replay", "a", "--store", "x.db").out.startswith("identical: ")


def test_an_interrupt_prints_one_line_and_the_study_can_be_resumed(paceline: CommandLine) -> None:
    process = start_simulation(paceline.folder)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, out, err) == (130, "", "paceline: interrupted\n")
    assert "unfinished" in paceline("ls", "--store", "x.db").out
    assert paceline("resume", "a", "--store", "x.db").code == 0


# Rules for all commands


def test_help_and_version_import_nothing_heavy() -> None:
    heavy = ("numpy", "scipy", "sqlalchemy", "rich", "paceline.api.study", "paceline.api.driver")
    code = (
        "import sys; import paceline; from paceline.cli.main import main; "
        "main(['--help']); main(['--version']); "
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "[]"


def test_the_list_of_commands_has_the_first_line_of_each_help() -> None:
    with click.Context(commands) as ctx:
        for name, place in COMMANDS.items():
            command = commands.get_command(ctx, name)
            assert command is not None
            assert command.name == name
            assert (command.help or "").splitlines()[0].startswith(place.help.rstrip("."))


def test_paceline_without_a_command_shows_the_help(paceline: CommandLine) -> None:
    ran = paceline()
    assert ran.code == 0
    assert "Commands:" in ran.out


def test_the_version_is_printed(paceline: CommandLine) -> None:
    assert paceline("--version").out.startswith("paceline, version ")


def test_letters_that_the_terminal_lacks_are_replaced(tmp_path: Path) -> None:
    ran = subprocess.run(
        [SCRIPT, "simulate", "toy:epochs=2", "--trials", "2", "--name", "größe"],
        cwd=tmp_path,
        env={**make_environment(tmp_path), "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, b"")


def test_the_simulated_demo_compares_two_policies_and_writes_nothing(paceline: CommandLine) -> None:
    ran = paceline("demo", "--simulated")
    assert (ran.code, ran.err) == (0, "")
    assert "times as fast" in ran.out
    assert "was held back" in ran.out
    assert "paceline compare" in ran.out
    assert list(paceline.folder.iterdir()) == []


def test_the_simulated_demo_works_in_the_installed_command(tmp_path: Path) -> None:
    ran = run_command(tmp_path, "demo", "--simulated")
    assert (ran.code, ran.err) == (0, "")
    assert list(tmp_path.iterdir()) == []


def test_a_closed_pipe_causes_no_traceback(folder_with_long_story: Path) -> None:
    with subprocess.Popen(
        [SCRIPT, "story", "mine"],
        cwd=folder_with_long_story,
        env=make_environment(folder_with_long_story),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        _, err = process.communicate()
    assert b"Traceback" not in err


@pytest.fixture
def folder_with_long_story(tmp_path: Path) -> Path:
    """A folder with a study; its story is longer than a pipe's buffer."""
    log: list[Step] = []
    Simulation(source="families", trials=20).run(name="mine", remember=log.extend)
    write_log(str(tmp_path / "paceline.db"), "mine", log)
    return tmp_path


def test_main_accepts_arguments(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["simulate"]) == 2
    assert capsys.readouterr().err.startswith("paceline: missing argument 'SOURCE'")
