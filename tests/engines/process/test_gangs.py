"""Wide trials on this machine: a gang of processes that trains, pauses and ends as one."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from process_engines import list_forkservers, wait_for_exit, widen
from running_command import RunningCommand, write_study_file
from waiting import wait_for

import paceline as pl
from paceline.core import decisions as d
from paceline.core import events as e
from paceline.engines.process.attempt import RunningAttempt
from paceline.testing.engine_driver import FAR, EngineDriver, make_amend, make_halt
from paceline.worker.protocol import Channel

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def marks(folder: Path) -> Callable[[Any], None]:
    """Return a function whose processes each leave a line for every epoch they train."""

    def train(trial: Any) -> None:  # noqa: ANN401
        count = trial.keep(count=[0])
        for epoch in trial.epochs():
            count[0] += 1
            with open(folder / f"rank-{trial.rank}", "a") as file:
                file.write(f"{os.getpid()} {epoch} {count[0]} {trial['a']}\n")
            time.sleep(0.002 * (1 + trial.rank))
            trial.report(loss=1.0 / count[0], rank=trial.rank, size=trial.size, width=trial.width)

    return train


def lines(folder: Path, rank: int) -> list[list[str]]:
    return [line.split() for line in (folder / f"rank-{rank}").read_text().splitlines()]


def pids(folder: Path) -> set[int]:
    """Return the processes that have trained."""
    return {int(lines(folder, rank)[-1][0]) for rank in (0, 1)}


def test_every_process_trains_every_epoch_and_only_the_first_reports(
    driven: Callable[..., EngineDriver], tmp_path: Path
) -> None:
    driver = driven(marks(tmp_path), {"a": 1})
    driver.apply(widen(driver.make_launch(0, goal=5)))
    assert driver.wait_for_end(0).cause is e.Cause.GOAL
    assert [epoch for epoch, _ in driver.list_reports(0)] == [1, 2, 3, 4, 5]
    assert {event.metrics["rank"] for event in driver.list_events(e.Reported)} == {0}
    assert {event.metrics["width"] for event in driver.list_events(e.Reported)} == {2.0}
    trained = [[line[1] for line in lines(tmp_path, rank)] for rank in (0, 1)]
    assert trained[0] == trained[1] == ["0", "1", "2", "3", "4"]
    assert len(driver.list_events(e.Ended)) == 1
    wait_for_exit(pids(tmp_path))


def test_a_goal_that_moves_while_they_run_is_every_processs_goal(
    driven: Callable[..., EngineDriver], tmp_path: Path
) -> None:
    driver = driven(marks(tmp_path), {"a": 1})
    driver.apply(widen(driver.make_launch(0, goal=FAR)))
    driver.wait_for_report(0, 3)
    driver.apply(make_amend(0, version=1, goal=3))
    driver.wait_for_end(0)
    trained = [[line[1] for line in lines(tmp_path, rank)] for rank in (0, 1)]
    assert trained[0] == trained[1]
    assert driver.list_events(e.Saved)[-1].epoch == driver.list_reports(0)[-1][0]


def test_an_amended_path_is_followed_by_every_process(
    driven: Callable[..., EngineDriver], tmp_path: Path
) -> None:
    late = {"a": {"piecewise": [[0, 1], [4, 7]]}}
    driver = driven(marks(tmp_path), {"a": 1}, late)
    driver.apply(widen(driver.make_launch(0, goal=3)))
    driver.wait_for_report(0, 1)
    driver.apply(make_amend(0, version=1, trial=1, goal=6))
    driver.wait_for_end(0)
    for rank in (0, 1):
        assert [line[3] for line in lines(tmp_path, rank)] == ["1", "1", "1", "1", "7", "7"]


def test_a_gang_goes_on_from_one_processs_checkpoint_and_one_from_a_gangs(
    driven: Callable[..., EngineDriver], tmp_path: Path
) -> None:
    driver = driven(marks(tmp_path), {"a": 1})
    driver.apply(driver.make_launch(0, goal=2))
    driver.wait_for_end(0)
    driver.apply(widen(driver.make_launch(1, start=2, source=0, goal=4)))
    driver.wait_for_end(1)
    driver.apply(driver.make_launch(2, start=4, source=1, goal=6))
    driver.wait_for_end(2)
    counts = [[line[2] for line in lines(tmp_path, rank)] for rank in (0, 1)]
    assert counts == [["1", "2", "3", "4", "5", "6"], ["3", "4"]]
    assert [event.attempt for event in driver.list_events(e.Saved) if event.epoch == 4] == [1]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_gang_fails_as_one_if_any_of_its_processes_is_killed(
    driven: Callable[..., EngineDriver], tmp_path: Path, rank: int
) -> None:
    driver = driven(marks(tmp_path), {"a": 1}, grace_s=30.0)
    driver.apply(widen(driver.make_launch(0, goal=FAR)))
    driver.wait_for_report(0, 2)
    processes = pids(tmp_path)
    os.kill(int(lines(tmp_path, rank)[-1][0]), signal.SIGKILL)
    ended = driver.wait_for_end(0)
    assert ended.cause is e.Cause.FAILED
    assert ended.note.startswith(f"process {rank} of its 2 was ended by SIGKILL")
    wait_for_exit(processes)
    driver.settle()
    assert len(driver.list_events(e.Ended)) == 1


def test_the_reason_of_an_exit_counts_before_the_lost_peer(tmp_path: Path) -> None:
    ends = [socket.socketpair() for _ in range(2)]
    launch = d.Launch(
        attempt=0,
        trial=0,
        start=0,
        source=None,
        goal=1,
        save_at=(),
        slots=(0, 1),
        width=2.0,
        why="",
    )
    attempt = RunningAttempt(
        launch, [(rank, Channel(end)) for rank, (end, _) in enumerate(ends)], tmp_path
    )
    attempt.lose_peer(1)
    assert attempt.lose("its checkpoint is damaged")
    assert not attempt.lose("the same of another process")
    ended = attempt.describe_end(1.0)
    assert (ended.cause, ended.note) == (e.Cause.LOST, "its checkpoint is damaged")
    for end in (end for pair in ends for end in pair):
        end.close()


def test_an_error_of_any_process_is_the_gangs_error(driven: Callable[..., EngineDriver]) -> None:
    def fails(trial: Any) -> None:  # noqa: ANN401
        for epoch in trial.epochs():
            if trial.rank and epoch == 1:
                raise ValueError("the second shard is empty")
            trial.report(loss=1.0)

    driver = driven(fails, {"a": 1})
    driver.apply(widen(driver.make_launch(0, goal=FAR)))
    ended = driver.wait_for_end(0)
    assert ended.cause is e.Cause.FAILED
    assert ended.note.splitlines()[-1] == "ValueError: the second shard is empty"
    assert [epoch for epoch, _ in driver.list_reports(0)] == [1]


def test_a_process_that_waits_for_a_killed_one_and_ignores_signals_is_ended(
    driven: Callable[..., EngineDriver], tmp_path: Path
) -> None:
    def deaf(trial: Any) -> None:  # noqa: ANN401
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (tmp_path / f"rank-{trial.rank}").write_text(f"{os.getpid()}\n")
        for _ in trial.epochs():
            trial.report(loss=1.0)
            if trial.rank:
                os._exit(3)
            time.sleep(1000)

    driver = driven(deaf, {"a": 1}, grace_s=1000.0)
    driver.apply(widen(driver.make_launch(0, goal=FAR)))
    ended = driver.wait_for_end(0)
    assert ended.cause is e.Cause.FAILED
    assert ended.note.startswith("process 1 of its 2 exited with code 3 and without an error")
    wait_for_exit(pids(tmp_path))


def test_a_gang_whose_second_process_returns_early_does_not_hang(
    driven: Callable[..., EngineDriver],
) -> None:
    def uneven(trial: Any) -> None:  # noqa: ANN401
        for epoch in trial.epochs():
            trial.report(loss=1.0)
            if trial.rank and epoch == 1:
                return

    driver = driven(uneven, {"a": 1})
    driver.apply(widen(driver.make_launch(0, goal=FAR)))
    ended = driver.wait_for_end(0)
    assert ended.cause is e.Cause.FAILED
    assert ended.note == "process 1 of its 2 left before the others"


def test_a_halted_gang_unwinds_in_every_process(
    driven: Callable[..., EngineDriver], tmp_path: Path
) -> None:
    def careful(trial: Any) -> None:  # noqa: ANN401
        try:
            for _ in trial.epochs():
                trial.report(loss=1.0)
                time.sleep(1000)
        finally:
            (tmp_path / f"unwound-{trial.rank}").touch()

    driver = driven(careful, {"a": 1}, grace_s=30.0)
    driver.apply(widen(driver.make_launch(0, goal=FAR)))
    driver.wait_for_report(0, 1)
    driver.apply(make_halt(0))
    assert driver.wait_for_end(0).cause is e.Cause.HALTED
    assert sorted(path.name for path in tmp_path.glob("unwound-*")) == ["unwound-0", "unwound-1"]


def test_a_finished_gang_has_finished_once(driven: Callable[..., EngineDriver]) -> None:
    def short(trial: Any) -> None:  # noqa: ANN401
        for epoch in trial.epochs():
            trial.report(loss=1.0)
            if epoch == 2:
                return

    driver = driven(short, {"a": 1})
    driver.apply(widen(driver.make_launch(0, goal=FAR)))
    assert driver.wait_for_end(0).cause is e.Cause.FINISHED
    driver.settle()
    assert len(driver.list_events(e.Ended)) == 1


def test_a_gang_killed_with_its_fork_server_costs_no_retry(
    driven: Callable[..., EngineDriver], tmp_path: Path
) -> None:
    driver = driven(marks(tmp_path), {"a": 1})
    driver.apply(widen(driver.make_launch(0, goal=FAR)))
    driver.wait_for_report(0, 2)
    processes = pids(tmp_path)
    (forkserver,) = list_forkservers()
    os.kill(forkserver, signal.SIGKILL)
    assert driver.wait_for_end(0).cause is e.Cause.LOST
    wait_for_exit(processes)


def test_a_gang_does_not_survive_its_study(
    driven: Callable[..., EngineDriver], tmp_path: Path
) -> None:
    driver = driven(marks(tmp_path), {"a": 1})
    driver.apply(widen(driver.make_launch(0, goal=FAR)))
    driver.wait_for_report(0, 2)
    processes = pids(tmp_path)
    driver.engine.close()
    wait_for_exit(processes)


GANG_STUDY = """
import os
from pathlib import Path

import paceline as pl


def train(trial):
    for epoch in trial.epochs():
        trial.report(loss=1.0)
        if epoch == 0:  # once: a second write would empty it first
            (Path(__file__).parent / f"rank-{trial.rank}").write_text(f"{os.getpid()}\\n")


pl.tune(
    train, space={"a": pl.choice([1])}, metric="loss", mode="min", epochs=10**9, policy="fifo",
    generator="random", trials=1, slots="cpu:2", span=2, share=False,
)
"""


def test_a_gang_does_not_survive_its_driver(tmp_path: Path) -> None:
    script = write_study_file(tmp_path, "gang.py", GANG_STUDY)
    with RunningCommand(tmp_path, sys.executable, script) as driver:
        wait_for(lambda: len(list(tmp_path.glob("rank-*"))) == 2)
        wait_for(lambda: all(path.stat().st_size for path in tmp_path.glob("rank-*")))
        processes = pids(tmp_path)
        driver.signal(signal.SIGKILL)
        wait_for_exit(processes)


def test_each_process_of_a_gang_draws_its_own_numbers_and_the_same_after_a_pause(
    driven: Callable[..., EngineDriver], tmp_path: Path
) -> None:
    def draws(trial: Any) -> None:  # noqa: ANN401
        import random

        trial.keep(nothing=0)
        for epoch in trial.epochs():
            with open(tmp_path / f"drawn-{trial.id}-{trial.rank}", "a") as file:
                file.write(f"{epoch} {random.random()}\n")
            trial.report(loss=1.0)

    driver = driven(draws, {"a": 1}, {"a": 1})
    driver.apply(widen(driver.make_launch(0, goal=4)))
    driver.wait_for_end(0)
    driver.apply(widen(driver.make_launch(1, trial=1, goal=2)))
    driver.wait_for_end(1)
    driver.apply(widen(driver.make_launch(2, trial=1, start=2, source=1, goal=4)))
    driver.wait_for_end(2)
    drawn = {path.name: path.read_text() for path in tmp_path.glob("drawn-*")}
    for rank in (0, 1):
        assert drawn[f"drawn-0-{rank}"] == drawn[f"drawn-1-{rank}"]
    assert drawn["drawn-0-0"] != drawn["drawn-0-1"]


def steady(trial: Any) -> None:  # noqa: ANN401
    """Train slowly in one process and quickly in two, and keep the number of processes."""
    sizes = trial.keep(sizes=[])
    for _ in trial.epochs():
        sizes.append(trial.size)
        # Slow enough that the other trial ends before this one, on any machine.
        time.sleep(0.5 if trial.size == 1 else 0.001)
        trial.report(loss=1.0 / len(sizes))


def test_a_trial_is_widened_when_the_other_ends_and_goes_on_from_where_it_was() -> None:
    given: dict[str, Any] = {"metric": "loss", "mode": "min", "epochs": 200, "slots": "cpu:2"}
    with pl.Study(steady, **given, allocator="fluid", span=2, curves="last") as study:
        long, short = study.group([({"a": 1}, 200), ({"a": 2}, 3)])
        assert long.checkpoint is not None
        sizes = long.checkpoint.load()["sizes"]
    assert short.values == [1.0, 1 / 2, 1 / 3]
    assert long.values == [1 / epoch for epoch in range(1, 201)]
    assert sizes == [1] * sizes.count(1) + [2] * sizes.count(2)
    assert sizes[-1] == 2
