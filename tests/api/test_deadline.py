"""The deadline counts from the call: import, start and end included, whatever clocks do."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from machine_bench import MachineBench
from msgspec.structs import replace

import paceline as pl
from paceline.api.deadline import Caller, DeadlineKeeper, count_from_call
from paceline.cli.main import main
from paceline.core import events as e
from paceline.core import lazy
from paceline.core.decisions import End
from paceline.core.values import Budget
from paceline.policies.fifo import Fifo

if TYPE_CHECKING:
    from pathlib import Path

SPACE = {"lr": pl.uniform(0, 1)}


def train(trial: Any) -> None:  # noqa: ANN401
    for _ in trial.epochs():
        trial.report(loss=trial["lr"])


def make_caller(**changes: Any) -> Caller:  # noqa: ANN401
    return replace(Caller.note(), **changes)


def open_study(deadline_s: float = 100.0) -> MachineBench:
    """Return a study with this deadline, of which one trial runs."""
    budget = Budget(deadline_s=deadline_s)
    return MachineBench(Fifo(), [{"a": number} for number in range(9)], budget=budget)


class Clocks:
    """The clocks of a machine, as a test sets them."""

    wall = 1_000_000.0
    slept = 7.0

    def keep(self, time_of_day: datetime | None = None, **caller: float) -> DeadlineKeeper:
        return DeadlineKeeper(
            make_caller(**caller),
            "local",
            time_of_day,
            wall=lambda: self.wall,
            slept=lambda: self.slept,
        )


def test_the_import_of_a_call_is_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy, "_import_times", (0.0, float("-inf")))
    moments = iter([1000.0, 1003.0])
    look_up = lazy.import_lazily(
        "package", {"dumps": "json", "loads": "json"}, clock=lambda: next(moments), timed=("dumps",)
    )
    look_up("loads")
    assert lazy.find_start_of_call(1000.0) == 1000.0
    look_up("dumps")
    assert lazy.find_start_of_call(1003.25) == 1000.25
    # Imported long before it is called.
    assert lazy.find_start_of_call(1010.0) == 1010.0


def test_what_a_call_did_before_its_study_began_counts() -> None:
    study = pl.Study(
        train, space=SPACE, metric="loss", mode="min", epochs=3, deadline="1h", progress=False
    )
    study.caller = make_caller(began=time.monotonic() - 3600.0)
    result = study.run()
    assert result.end == "deadline"
    assert not any(trial.values for trial in result.trials)
    # As the user has given it: what is kept for the end is not the user's concern.
    assert result.summary().deadline_s == 3600.0
    assert "the deadline of 3600 s has come" in str(result.log[-1].decisions[-1])


def test_training_ends_before_the_deadline_so_that_the_call_returns_at_it() -> None:
    bench = open_study()
    changed = Clocks().keep().begin(bench.state, 1.0)
    assert changed is not None
    bench.say(changed)
    assert 99.0 < changed.deadline_s < 100.0
    assert bench.state.deadline_s == changed.deadline_s
    assert bench.state.return_s == 100.0
    # The old request for a wake does not keep the study from ending by itself.
    assert bench.state.pending.wakes == {(changed.deadline_s, None)}
    assert bench.say(e.Woke(at=99.0)) == ()
    (end,) = bench.say(e.Woke(at=changed.deadline_s))
    assert isinstance(end, End)
    assert end.why == "the deadline of 100 s has come"


def test_the_start_of_a_driver_that_resumes_a_study_counts() -> None:
    bench = open_study()
    first = Clocks().keep().begin(bench.state, 1.0)
    assert first is not None
    bench.say(first)
    # Its clock stood still while no driver ran, and while this one started.
    bench.say(e.Resumed(at=40.0))
    assert bench.state.deadline_s == 100.0
    changed = Clocks().keep().begin(bench.state, 40.0, spent_s=5.0)
    assert changed is not None
    bench.say(changed)
    assert changed.deadline_s == first.deadline_s - 5.0
    assert bench.state.return_s == 100.0


def test_a_long_log_needs_more_time_at_the_end() -> None:
    bench = open_study()
    keeper = Clocks().keep(after_step_s=0.5)
    changed = keeper.begin(bench.state, 1.0)
    assert changed is not None
    bench.say(changed)
    bench.report(0, 3.0, 2.0, 1.0)
    assert keeper.look(bench.state, 50.0) is None
    later = keeper.look(bench.state, 99.0)
    assert later is not None
    bench.say(later)
    assert later.deadline_s < changed.deadline_s - 0.5
    assert bench.state.return_s == 100.0
    assert isinstance(bench.state.end, End)


def test_a_time_of_day_is_kept_when_the_clock_is_set() -> None:
    bench, clocks = open_study(), Clocks()
    keeper = clocks.keep(datetime.fromtimestamp(clocks.wall + 99.0, UTC))
    changed = keeper.begin(bench.state, 1.0)
    assert changed is not None
    bench.say(changed)
    clocks.wall += 10.2  # it is a little slow
    assert keeper.look(bench.state, 11.0) is None
    for jump in (-3600.0, 3630.0, 3600.0):  # back, forward, and beyond the deadline
        assert bench.state.end is None
        clocks.wall += jump
        moved = keeper.look(bench.state, 11.0)
        assert moved is not None
        assert moved.note == "the system's clock was set"
        bench.say(moved)
        assert bench.state.return_s == pytest.approx(11.0 + 1_000_099.0 - clocks.wall)
    assert isinstance(bench.state.end, End)


def test_a_duration_does_not_heed_the_clock_of_the_system_but_the_sleep_of_the_machine() -> None:
    bench, clocks = open_study(), Clocks()
    keeper = clocks.keep()
    changed = keeper.begin(bench.state, 1.0)
    assert changed is not None
    bench.say(changed)
    clocks.wall += 3600.0
    assert keeper.look(bench.state, 11.0) is None
    clocks.slept += 60.0
    moved = keeper.look(bench.state, 11.0)
    assert moved is not None
    bench.say(moved)
    assert moved.note == "the machine was asleep"
    assert moved.deadline_s == changed.deadline_s - 60.0
    assert bench.state.return_s == 100.0
    assert keeper.look(bench.state, 11.0) is None


def test_a_time_of_day_counts_from_the_call_of_run() -> None:
    until = datetime.now().astimezone() + timedelta(hours=1)
    study = pl.Study(train, space=SPACE, metric="loss", mode="min", epochs=3, deadline=until)
    caller = make_caller(began=time.monotonic() - 1000.0)
    spec = count_from_call(study.spec, until, caller)
    assert spec.budget.deadline_s is not None
    assert spec.budget.deadline_s >= 1000.0 + (until - datetime.now().astimezone()).total_seconds()
    assert count_from_call(study.spec, 3600.0, caller) is study.spec


def test_a_busy_machine_needs_more_time_at_the_end() -> None:
    now, cpu = time.monotonic(), time.thread_time()
    quiet = make_caller(noted=now - 1.0, noted_cpu=cpu - 1.0)
    busy = make_caller(noted=now - 5.0, noted_cpu=cpu - 1.0)
    idle = make_caller(noted=now - 3.0, noted_cpu=cpu)
    assert [round(each.measure_slowdown()) for each in (quiet, busy, idle)] == [1, 3, 1]


STUDY = """
import paceline as pl
def train(trial):
    for _ in trial.epochs():
        trial.report(loss=trial["lr"])
study = pl.Study(train, space={"lr": pl.uniform(0, 1)}, metric="loss", mode="min", epochs=3)
"""


def test_the_deadline_of_a_command_counts_from_the_start_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.py").write_text(STUDY)
    arguments = ["run", "study.py", "--deadline", "1000s", "--no-report", "--quiet", "--name", "a"]
    monkeypatch.setattr(sys, "argv", ["paceline", *arguments])
    started = time.monotonic() - 1000.0
    monkeypatch.setattr("paceline.cli.main.find_process_start", lambda: started)
    assert main() == 1  # it ended before it found anything
    assert "deadline: the deadline of 1000 s has come" in capsys.readouterr().out.replace("│", "")


@pytest.mark.skipif(sys.platform != "linux", reason="Linux says when a process started")
def test_the_start_of_a_process_is_before_its_first_line() -> None:
    script = (
        "import time\n"
        "first = time.monotonic()\n"
        "from paceline.cli.process_start import find_process_start\n"
        "print(find_process_start() <= first)\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert ran.stdout == "True\n"
