"""The local engine: real processes, real signals, the same contract as the simulator."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from process_engines import (
    list_forkservers,
    make_engine,
    make_training_function,
    train_forever,
    wait_for_exit,
)
from waiting import wait_for

from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.errors import PacelineWarning
from paceline.engines.process.local.worker_pool import ForkServerPool
from paceline.testing.engine_driver import (
    FAR,
    WHY,
    EngineDriver,
    make_amend,
)
from paceline.testing.engines import EngineContract

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.core.ports import Advisor, Engine, Workload


class TestLocalEngine(EngineContract):
    """The whole contract, with processes."""

    epoch_s = 0.03

    @staticmethod
    def make(workload: Workload, adviser: Advisor) -> Engine:
        return make_engine(make_training_function(workload), Path(tempfile.mkdtemp()), adviser)

    def left_over(self) -> list[int]:
        return list_forkservers()


def pid_of(driver: EngineDriver, attempt: int) -> int:
    reports = [event for event in driver.list_events(e.Reported) if event.attempt == attempt]
    return int(reports[-1].metrics["pid"] or 0)


def test_a_killed_worker_is_a_failure_with_its_signal(driven: Callable[..., EngineDriver]) -> None:
    driver = driven(train_forever, {"a": 1})
    driver.apply(driver.make_launch(0, goal=FAR))
    driver.wait_for_report(0, 2)
    os.kill(pid_of(driver, 0), signal.SIGKILL)
    ended = driver.wait_for_end(0)
    assert ended.cause is e.Cause.FAILED
    assert "SIGKILL" in ended.note
    assert "memory" in ended.note


def test_what_an_attempt_printed_goes_with_its_failure(
    driven: Callable[..., EngineDriver], tmp_path: Path
) -> None:
    def prints(trial: Any) -> None:  # noqa: ANN401
        print("loading the data")  # noqa: T201
        os._exit(7)

    driver = driven(prints, {"a": 1})
    driver.apply(driver.make_launch(0, goal=FAR))
    ended = driver.wait_for_end(0)
    assert ended.cause is e.Cause.FAILED
    assert ended.note.startswith("its process exited with code 7")
    assert (tmp_path / "logs" / "attempt-0.log").exists()


def test_a_traceback_begins_with_the_users_code(
    driven: Callable[..., EngineDriver],
) -> None:
    def raises(trial: Any) -> None:  # noqa: ANN401
        raise ValueError("a negative learning rate")

    driver = driven(raises, {"a": 1})
    driver.apply(driver.make_launch(0, goal=FAR))
    ended = driver.wait_for_end(0)
    assert ended.note.splitlines()[-1] == "ValueError: a negative learning rate"
    frames = [line for line in ended.note.splitlines() if line.lstrip().startswith("File ")]
    assert [Path(line.split('"')[1]).name for line in frames] == ["test_local_engine.py"]


def test_a_function_that_returns_without_a_report_fails(
    driven: Callable[..., EngineDriver],
) -> None:
    driver = driven(lambda trial: None, {"a": 1})
    driver.apply(driver.make_launch(0, goal=FAR))
    assert "reported nothing" in driver.wait_for_end(0).note


def test_a_worker_that_ignores_signals_is_ended_all_the_same(
    driven: Callable[..., EngineDriver],
) -> None:
    def stubborn(trial: Any) -> None:  # noqa: ANN401
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for _ in trial.epochs():
            trial.report(loss=1.0, pid=os.getpid())
            time.sleep(60)

    driver = driven(stubborn, {"a": 1}, grace_s=0.1)
    driver.apply(driver.make_launch(0, goal=FAR))
    driver.wait_for_report(0, 1)
    driver.apply(d.Halt(attempt=0, why=WHY))
    assert driver.wait_for_end(0).cause is e.Cause.HALTED


def test_a_halted_function_unwinds_and_its_finally_runs(
    driven: Callable[..., EngineDriver], tmp_path: Path
) -> None:
    mark = tmp_path / "unwound"

    def careful(trial: Any) -> None:  # noqa: ANN401
        try:
            for _ in trial.epochs():
                trial.report(loss=1.0)
                time.sleep(60)
        finally:
            mark.write_text("yes")

    driver = driven(careful, {"a": 1}, grace_s=30.0)
    driver.apply(driver.make_launch(0, goal=FAR))
    driver.wait_for_report(0, 1)
    driver.apply(d.Halt(attempt=0, why=WHY))
    driver.wait_for_end(0)
    assert mark.read_text() == "yes"


def test_a_halted_function_that_swallows_the_end_unwinds_at_its_next_report(
    driven: Callable[..., EngineDriver], tmp_path: Path
) -> None:
    mark = tmp_path / "unwound"

    def swallows(trial: Any) -> None:  # noqa: ANN401
        try:
            for _ in trial.epochs():
                trial.report(loss=1.0)
                with contextlib.suppress(BaseException):
                    time.sleep(60)
        finally:
            mark.write_text("yes")

    driver = driven(swallows, {"a": 1}, grace_s=30.0)
    driver.apply(driver.make_launch(0, goal=FAR))
    driver.wait_for_report(0, 1)
    driver.apply(d.Halt(attempt=0, why=WHY))
    assert driver.wait_for_end(0).cause is e.Cause.HALTED
    assert mark.read_text() == "yes"
    assert [epoch for epoch, _ in driver.list_reports(0)] == [1]


def test_a_hanging_attempt_is_a_failure(driven: Callable[..., EngineDriver]) -> None:
    def hangs(trial: Any) -> None:  # noqa: ANN401
        for _ in trial.epochs():
            trial.report(loss=1.0)
            time.sleep(60)

    driver = driven(hangs, {"a": 1}, hang_s=0.3)
    driver.apply(driver.make_launch(0, goal=FAR))
    ended = driver.wait_for_end(0)
    assert (ended.cause, ended.note) == (e.Cause.FAILED, "it reported nothing for 0.3 s")


def test_no_grandchild_survives_its_worker(driven: Callable[..., EngineDriver]) -> None:
    def breeds(trial: Any) -> None:  # noqa: ANN401
        child = subprocess.Popen(["sleep", "1000"])
        runaway = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        for _ in trial.epochs():
            trial.report(loss=1.0, child=child.pid, runaway=runaway.pid, pid=os.getpid())
            time.sleep(0.01)

    driver = driven(breeds, {"a": 1})
    driver.apply(driver.make_launch(0, goal=FAR))
    driver.wait_for_report(0, 1)
    metrics = driver.list_events(e.Reported)[0].metrics
    os.kill(pid_of(driver, 0), signal.SIGKILL)
    driver.wait_for_end(0)
    wait_for_exit({int(metrics[name] or 0) for name in ("child", "runaway")})


def list_workers(forkserver: int) -> set[int]:
    """Return the running workers of a fork server."""
    made = [path.read_text() for path in Path(f"/proc/{forkserver}/task").glob("*/children")]
    return {int(pid) for text in made for pid in text.split()}


def test_a_spare_worker_that_exits_costs_nothing(
    driven: Callable[..., EngineDriver],
) -> None:
    driver = driven(train_forever, {"a": 1})
    (forkserver,) = list_forkservers()
    wait_for(lambda: len(list_workers(forkserver)) == 2, "two workers")
    for pid in list_workers(forkserver):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not list_workers(forkserver), "the fork server to reap its workers")
    driver.settle()
    driver.apply(driver.make_launch(0, goal=3))
    assert driver.wait_for_end(0).cause is e.Cause.GOAL


def test_a_killed_fork_server_is_replaced_and_costs_no_retry(
    driven: Callable[..., EngineDriver], tmp_path: Path
) -> None:
    driver = driven(train_forever, {"a": 1}, {"a": 2})
    driver.apply(driver.make_launch(0, goal=FAR), driver.make_launch(1, trial=1, goal=FAR))
    driver.wait_for_report(0, 2)
    driver.wait_for_report(1, 2)
    (forkserver,) = list_forkservers()
    os.kill(forkserver, signal.SIGKILL)
    for attempt in (0, 1):
        ended = driver.wait_for_end(attempt)
        assert (ended.cause, ended.note) == (e.Cause.LOST, "all workers were killed")
    saved = max(event.epoch for event in driver.list_events(e.Saved) if event.attempt == 0)
    driver.apply(driver.make_launch(2, goal=saved + 2, start=saved, source=0))
    assert driver.wait_for_end(2).cause is e.Cause.GOAL
    assert [epoch for epoch, _ in driver.list_reports(2)] == [saved + 1, saved + 2]
    told = {f"{event.attempt}-{event.epoch}.ckpt" for event in driver.list_events(e.Saved)}
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == told


def test_a_halted_attempt_leaves_no_part_of_a_checkpoint(
    driven: Callable[..., EngineDriver], tmp_path: Path
) -> None:
    def heavy(trial: Any) -> None:  # noqa: ANN401
        kept = trial.keep(kept={"blob": bytes(20_000_000), "n": 0})
        for _ in trial.epochs():
            kept["n"] += 1
            trial.report(loss=-kept["n"])

    driver = driven(heavy, {"a": 1})
    folder = tmp_path / "checkpoints"
    driver.apply(driver.make_launch(0, goal=FAR))
    wait_for(lambda: any(folder.glob("*.part")), "a checkpoint that is being written")
    driver.apply(d.Halt(attempt=0, why=WHY))
    driver.wait_for_end(0)
    told = {f"0-{event.epoch}.ckpt" for event in driver.list_events(e.Saved)}
    assert {path.name for path in folder.iterdir()} == told


def test_the_best_and_the_last_epoch_are_reported_with_their_checkpoints(
    driven: Callable[..., EngineDriver],
) -> None:
    driver = driven(train_forever, {"a": 1})
    driver.apply(driver.make_launch(0, goal=3))
    driver.wait_for_end(0)
    kinds = [type(event) for event in driver.list_attempt_events(0)]
    assert kinds == [e.Reported, e.Saved] * 3 + [e.Ended]
    # In one message: the store has both or none.
    pairs = list(zip(driver.list_events(e.Reported), driver.list_events(e.Saved), strict=True))
    assert all(driver.events.index(saved) == driver.events.index(told) + 1 for told, saved in pairs)


def test_a_damaged_checkpoint_is_reported_and_costs_no_retry(
    driven: Callable[..., EngineDriver], tmp_path: Path
) -> None:
    driver = driven(train_forever, {"a": 1})
    driver.apply(driver.make_launch(0, goal=3))
    driver.wait_for_end(0)
    path = tmp_path / "checkpoints" / "0-3.ckpt"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    driver.apply(driver.make_launch(1, goal=9, start=3, source=0))
    ended = driver.wait_for_end(1)
    assert ended.cause is e.Cause.LOST
    (spoiled,) = driver.list_events(e.Spoiled)
    assert "damaged" in spoiled.note


def test_a_full_disk_is_reported_and_training_continues(
    driven: Callable[..., EngineDriver], tmp_path: Path
) -> None:
    driver = driven(train_forever, {"a": 1})
    folder = tmp_path / "checkpoints"
    folder.rmdir()
    folder.symlink_to("/dev/full")  # whatever is written there fails
    driver.apply(driver.make_launch(0, goal=4))
    with pytest.warns(PacelineWarning, match="cannot be written .* Training goes on without it"):
        ended = driver.wait_for_end(0)
    assert ended.cause is e.Cause.GOAL
    assert [epoch for epoch, _ in driver.list_reports(0)] == [1, 2, 3, 4]
    assert all("cannot be written" in missed.note for missed in driver.list_events(e.Missed))
    folder.unlink()


def test_an_epoch_that_beats_the_best_loss_is_saved_at_once(
    driven: Callable[..., EngineDriver],
) -> None:
    def falls(trial: Any) -> None:  # noqa: ANN401
        kept = trial.keep(kept=[0])
        for epoch in trial.epochs():
            kept[0] = epoch
            trial.report(loss=trial["from"] - epoch)
            time.sleep(0.02)

    driver = driven(falls, {"from": 5.0}, {"from": 99.0})
    driver.apply(driver.make_launch(0, goal=6))
    driver.wait_for_end(0)
    assert [event.epoch for event in driver.list_events(e.Saved)] == [1, 2, 3, 4, 5, 6]
    driver.apply(driver.make_launch(1, trial=1, goal=3))
    driver.wait_for_end(1)
    # Its first save tells what saves cost; then it saves where it must, for it is never the best.
    assert 3 in [event.epoch for event in driver.list_events(e.Saved) if event.attempt == 1]


def test_an_attempt_whose_goal_moved_back_to_its_checkpoint_ends_within_the_epoch(
    driven: Callable[..., EngineDriver],
) -> None:
    def lingers(trial: Any) -> None:  # noqa: ANN401
        kept = trial.keep(kept=[0])
        for epoch in trial.epochs():
            if epoch:
                time.sleep(3.0)  # longer than its process lives
            kept[0] = epoch
            trial.report(loss=1.0)

    driver = driven(lingers, {"a": 1})
    apply = driver._apply

    def move_goal_back(event: e.AnyEvent, *decisions: d.AnyDecision) -> None:
        if isinstance(event, e.Reported) and event.epoch == 1:
            decisions += (make_amend(0, version=1, goal=1),)
        apply(event, *decisions)

    driver._apply = move_goal_back  # type: ignore[method-assign]
    driver.apply(driver.make_launch(0, goal=FAR))
    # Its first epoch is the best so far and was saved before it was reported.
    ended = driver.wait_for_end(0)
    assert (ended.cause, driver.list_reports(0)) == (e.Cause.GOAL, [(1, 1.0)])
    assert [event.epoch for event in driver.list_events(e.Saved)] == [1]


def test_a_setting_changes_in_a_running_attempt(driven: Callable[..., EngineDriver]) -> None:
    def reads(trial: Any) -> None:  # noqa: ANN401
        for _ in trial.epochs():
            time.sleep(0.02)
            trial.report(loss=trial["lr"], changed=float(trial.changed("lr")))

    schedule = {"lr": {"piecewise": [[0, 1.0], [2, 0.5]]}}
    driver = driven(reads, schedule)
    driver.apply(driver.make_launch(0, goal=FAR))
    driver.wait_for_report(0, 4)
    seen = [event.metrics for event in driver.list_events(e.Reported)][:4]
    assert [metrics["loss"] for metrics in seen] == [1.0, 1.0, 0.5, 0.5]
    assert [metrics["changed"] for metrics in seen] == [0.0, 0.0, 1.0, 0.0]
    driver.apply(make_amend(0, version=1, goal=1))
    driver.wait_for_end(0)


def test_a_smooth_schedule_is_read_inside_the_epoch(driven: Callable[..., EngineDriver]) -> None:
    def reads(trial: Any) -> None:  # noqa: ANN401
        for _ in trial.epochs():
            middle, end = (trial.value("lr", progress) for progress in (0.5, 1.0))
            trial.report(loss=trial["lr"], middle=middle, end=end, deep=trial["opt"]["momentum"])

    config = {
        "lr": {
            "each_epoch": "smooth",
            "schedule": {"each_epoch": "linear", "start": 1.0, "end": 0.0, "epochs": 2},
        },
        "opt": {"momentum": {"each_epoch": "exponential", "start": 1.0, "factor": 0.5}},
    }
    driver = driven(reads, config)
    driver.apply(driver.make_launch(0, goal=3))
    driver.wait_for_end(0)
    assert [event.metrics for event in driver.list_events(e.Reported)] == [
        {"loss": 1.0, "middle": 0.75, "end": 0.5, "deep": 1.0},
        {"loss": 0.5, "middle": 0.25, "end": 0.0, "deep": 0.5},
        {"loss": 0.0, "middle": 0.0, "end": 0.0, "deep": 0.25},
    ]


def test_progress_beyond_the_epoch_is_refused(driven: Callable[..., EngineDriver]) -> None:
    def reads(trial: Any) -> None:  # noqa: ANN401
        for _ in trial.epochs():
            trial.report(loss=trial.value("lr", 30))

    driver = driven(reads, {"lr": {"piecewise": [[0, 1.0], [2, 0.5]]}})
    driver.apply(driver.make_launch(0, goal=3))
    ended = driver.wait_for_end(0)
    assert ended.cause is e.Cause.FAILED
    assert "progress=30 is invalid: must be between 0 and 1." in ended.note


def test_nothing_survives_a_driver_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "driver.py"
    script.write_text(
        "import os, sys, time, paceline as pl\n"
        "def train(trial):\n"
        "    import subprocess\n"
        "    child = subprocess.Popen(['sleep', '1000'])\n"
        "    runaway = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "    for _ in trial.epochs():\n"
        "        trial.report(loss=1.0)\n"
        f"        with open({str(tmp_path / 'pids')!r}, 'a') as file:\n"
        "            file.write(f'{os.getpid()} {child.pid} {runaway.pid}\\n')\n"
        "        time.sleep(0.05)\n"
        "pl.tune(train, space={'a': pl.uniform(0, 1)}, metric='loss', mode='min', epochs=9999,\n"
        "        generator='random', policy='fifo', slots=2)\n"
    )
    driver = subprocess.Popen([sys.executable, str(script)])
    pids = tmp_path / "pids"
    wait_for(
        lambda: pids.exists() and len(set(pids.read_text().splitlines())) >= 2,
        "two workers' reports",
    )
    started = [int(pid) for pid in pids.read_text().split()]
    driver.kill()
    driver.wait()
    wait_for_exit(set(started))


def test_a_fork_server_killed_at_its_start_is_started_again(tmp_path: Path) -> None:
    module = tmp_path / "dies_once.py"
    module.write_text(
        "import os, signal\n"
        "def deaths():\n"
        f"    return len(os.listdir({str(tmp_path / 'deaths')!r}))\n"
        "def train(trial):\n"
        "    for _ in trial.epochs():\n"
        "        trial.report(loss=1.0)\n"
        f"if os.path.exists({str(tmp_path / 'armed')!r}) and deaths() < 2:\n"
        f"    open(os.path.join({str(tmp_path / 'deaths')!r}, str(deaths())), 'w').close()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    (tmp_path / "deaths").mkdir()
    sys.path.insert(0, str(tmp_path))
    try:
        import dies_once  # type: ignore[import-not-found]

        pool = ForkServerPool(dies_once.train, {})
        (tmp_path / "armed").touch()
        pool.restart()
        pool.close(1.0)
    finally:
        sys.path.remove(str(tmp_path))
    assert len(list((tmp_path / "deaths").iterdir())) == 2
