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

from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.values import Part, StudySpec
from paceline.engines.process.checkpoint_files import Shelf
from paceline.engines.process.engine import LocalEngine
from paceline.engines.process.local.devices import Devices
from paceline.engines.process.local.worker_pool import Nest
from paceline.engines.process.supervisor import Patience
from paceline.testing.engine_driver import FAR, WHY, Advising, Hand, amend, opened
from paceline.testing.engines import EngineContract
from paceline.testing.simulations import Trained

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from paceline.core.ports import Adviser, Engine, Workload


def trains(workload: Workload) -> Callable[[Any], None]:
    """Return a training function that trains as a workload says, in real time."""

    def train(trial: Any) -> None:  # noqa: ANN401
        done = trial.keep(done=[0, 0.0])
        for _ in trial.epochs():
            setting = {name: trial[name] for name in trial.config}
            outcome: Any = workload.advance(Trained(*done), setting)
            time.sleep(outcome.seconds)
            if hasattr(outcome, "note"):
                raise RuntimeError(outcome.note)
            done[:] = outcome.state
            trial.report(outcome.metrics)
            if outcome.last:
                return

    return train


def spec() -> StudySpec:
    return StudySpec(
        name="local",
        metric="loss",
        mode="min",
        epochs=FAR,
        policy=Part("given"),
        generator=Part("given"),
    )


def local(
    train: Callable[[Any], Any], files: Path, adviser: Adviser | None = None, **patience: float
) -> LocalEngine:
    devices = Devices(2, 2)
    nest = Nest(train, devices.thread_limits())
    patient = Patience(**{"grace_s": 1.0, **patience})
    shelf = Shelf(files)
    return LocalEngine(spec(), nest, devices, shelf=shelf, adviser=adviser, patience=patient)


def children() -> list[int]:
    """Return the nurseries this process has started and that still live."""
    mine = [path.read_text() for path in Path("/proc/self/task").glob("*/children")]
    pids = [int(pid) for text in mine for pid in text.split()]
    return [pid for pid in pids if b"nursery" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def gone(pids: set[int]) -> bool:
    """Wait until none of these runs any more; a process that is only to be reaped does not run."""
    for _ in range(1000):
        pids = {pid for pid in pids if runs(pid)}
        if not pids:
            return True
        time.sleep(0.01)
    return False


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class TestLocalEngine(EngineContract):
    """The whole contract, with processes."""

    epoch_s = 0.03

    @staticmethod
    def make(workload: Workload, adviser: Adviser) -> Engine:
        return local(trains(workload), Path(tempfile.mkdtemp()), adviser)

    def left_over(self) -> list[int]:
        return children()


@pytest.fixture
def driven(tmp_path: Path) -> Iterator[Callable[..., Hand]]:
    """Give engines under control, and close them afterwards."""
    engines: list[LocalEngine] = []

    def make(train: Callable[[Any], Any], *configs: dict[str, Any], **patience: float) -> Hand:
        engines.append(local(train, tmp_path, Advising(), **patience))
        hand = Hand(engines[-1], 0.02)
        hand.give(*(opened(trial, config) for trial, config in enumerate(configs)))
        return hand

    yield make
    for engine in engines:
        engine.close()
    assert children() == []
    assert list((tmp_path / "checkpoints").glob("*.meeting")) == []


def beats(trial: Any) -> None:  # noqa: ANN401
    """Train fast, for ever, and keep the count."""
    count = trial.keep(count=[0])
    for _ in trial.epochs():
        time.sleep(0.005)
        count[0] += 1
        trial.report(loss=1.0 / count[0], pid=os.getpid())


def pid_of(hand: Hand, attempt: int) -> int:
    reports = [event for event in hand.of(e.Reported) if event.attempt == attempt]
    return int(reports[-1].metrics["pid"] or 0)


def test_a_killed_worker_is_a_failure_with_its_signal(driven: Callable[..., Hand]) -> None:
    hand = driven(beats, {"a": 1})
    hand.give(hand.launch(0, goal=FAR))
    hand.until_reported(0, 2)
    os.kill(pid_of(hand, 0), signal.SIGKILL)
    ended = hand.until_ended(0)
    assert ended.cause is e.Cause.FAILED
    assert "SIGKILL" in ended.note
    assert "memory" in ended.note


def test_what_an_attempt_printed_goes_with_its_failure(
    driven: Callable[..., Hand], tmp_path: Path
) -> None:
    def prints(trial: Any) -> None:  # noqa: ANN401
        print("loading the data")  # noqa: T201
        os._exit(7)

    hand = driven(prints, {"a": 1})
    hand.give(hand.launch(0, goal=FAR))
    ended = hand.until_ended(0)
    assert ended.cause is e.Cause.FAILED
    assert ended.note.startswith("its process exited with code 7")
    assert (tmp_path / "logs" / "attempt-0.log").exists()


def test_an_error_is_told_from_where_the_users_code_begins(driven: Callable[..., Hand]) -> None:
    def raises(trial: Any) -> None:  # noqa: ANN401
        raise ValueError("a negative learning rate")

    hand = driven(raises, {"a": 1})
    hand.give(hand.launch(0, goal=FAR))
    ended = hand.until_ended(0)
    assert ended.note.splitlines()[-1] == "ValueError: a negative learning rate"
    frames = [line for line in ended.note.splitlines() if line.lstrip().startswith("File ")]
    assert [Path(line.split('"')[1]).name for line in frames] == ["test_local_engine.py"]


def test_a_function_that_returns_without_a_report_fails(driven: Callable[..., Hand]) -> None:
    hand = driven(lambda trial: None, {"a": 1})
    hand.give(hand.launch(0, goal=FAR))
    assert "without one report" in hand.until_ended(0).note


def test_a_worker_that_ignores_signals_is_ended_all_the_same(driven: Callable[..., Hand]) -> None:
    def stubborn(trial: Any) -> None:  # noqa: ANN401
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for _ in trial.epochs():
            trial.report(loss=1.0, pid=os.getpid())
            time.sleep(60)

    hand = driven(stubborn, {"a": 1}, grace_s=0.1)
    hand.give(hand.launch(0, goal=FAR))
    hand.until_reported(0, 1)
    hand.give(d.Halt(attempt=0, why=WHY))
    assert hand.until_ended(0).cause is e.Cause.HALTED


def test_a_halted_function_unwinds_and_its_finally_runs(
    driven: Callable[..., Hand], tmp_path: Path
) -> None:
    mark = tmp_path / "unwound"

    def careful(trial: Any) -> None:  # noqa: ANN401
        try:
            for _ in trial.epochs():
                trial.report(loss=1.0)
                time.sleep(60)
        finally:
            mark.write_text("yes")

    hand = driven(careful, {"a": 1}, grace_s=30.0)
    hand.give(hand.launch(0, goal=FAR))
    hand.until_reported(0, 1)
    hand.give(d.Halt(attempt=0, why=WHY))
    hand.until_ended(0)
    assert mark.read_text() == "yes"


def test_a_halted_function_that_swallows_the_end_unwinds_at_its_next_report(
    driven: Callable[..., Hand], tmp_path: Path
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

    hand = driven(swallows, {"a": 1}, grace_s=30.0)
    hand.give(hand.launch(0, goal=FAR))
    hand.until_reported(0, 1)
    hand.give(d.Halt(attempt=0, why=WHY))
    assert hand.until_ended(0).cause is e.Cause.HALTED
    assert mark.read_text() == "yes"
    assert [epoch for epoch, _ in hand.values(0)] == [1]


def test_a_hanging_attempt_is_a_failure(driven: Callable[..., Hand]) -> None:
    def hangs(trial: Any) -> None:  # noqa: ANN401
        for _ in trial.epochs():
            trial.report(loss=1.0)
            time.sleep(60)

    hand = driven(hangs, {"a": 1}, hang_s=0.3)
    hand.give(hand.launch(0, goal=FAR))
    ended = hand.until_ended(0)
    assert (ended.cause, ended.note) == (e.Cause.FAILED, "it said nothing for 0.3 s")


def test_no_grandchild_survives_its_worker(driven: Callable[..., Hand]) -> None:
    def breeds(trial: Any) -> None:  # noqa: ANN401
        child = subprocess.Popen(["sleep", "1000"])
        runaway = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        for _ in trial.epochs():
            trial.report(loss=1.0, child=child.pid, runaway=runaway.pid, pid=os.getpid())
            time.sleep(0.01)

    hand = driven(breeds, {"a": 1})
    hand.give(hand.launch(0, goal=FAR))
    hand.until_reported(0, 1)
    metrics = hand.of(e.Reported)[0].metrics
    os.kill(pid_of(hand, 0), signal.SIGKILL)
    hand.until_ended(0)
    assert gone({int(metrics[name] or 0) for name in ("child", "runaway")})


def workers_of(nursery: int) -> set[int]:
    """Return the workers a nursery has made and that still live."""
    made = [path.read_text() for path in Path(f"/proc/{nursery}/task").glob("*/children")]
    return {int(pid) for text in made for pid in text.split()}


def test_a_worker_that_dies_while_it_waits_costs_nothing(driven: Callable[..., Hand]) -> None:
    hand = driven(beats, {"a": 1})
    (nursery,) = children()
    while len(workers_of(nursery)) < 2:
        time.sleep(0.001)
    for pid in workers_of(nursery):
        os.kill(pid, signal.SIGKILL)
    while workers_of(nursery):  # it says who is gone when it has buried them
        time.sleep(0.001)
    hand.settle()
    hand.give(hand.launch(0, goal=3))
    assert hand.until_ended(0).cause is e.Cause.GOAL


def test_a_killed_nursery_is_replaced_and_costs_no_retry(
    driven: Callable[..., Hand], tmp_path: Path
) -> None:
    hand = driven(beats, {"a": 1}, {"a": 2})
    hand.give(hand.launch(0, goal=FAR), hand.launch(1, trial=1, goal=FAR))
    hand.until_reported(0, 2)
    hand.until_reported(1, 2)
    (nursery,) = children()
    os.kill(nursery, signal.SIGKILL)
    for attempt in (0, 1):
        ended = hand.until_ended(attempt)
        assert (ended.cause, ended.note) == (e.Cause.LOST, "all workers were killed")
    saved = max(event.epoch for event in hand.of(e.Saved) if event.attempt == 0)
    hand.give(hand.launch(2, goal=saved + 2, start=saved, source=0))
    assert hand.until_ended(2).cause is e.Cause.GOAL
    assert [epoch for epoch, _ in hand.values(2)] == [saved + 1, saved + 2]
    told = {f"{event.attempt}-{event.epoch}.ckpt" for event in hand.of(e.Saved)}
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == told


def test_a_halted_attempt_leaves_no_part_of_a_checkpoint(
    driven: Callable[..., Hand], tmp_path: Path
) -> None:
    def heavy(trial: Any) -> None:  # noqa: ANN401
        kept = trial.keep(kept={"blob": bytes(20_000_000), "n": 0})
        for _ in trial.epochs():
            kept["n"] += 1
            trial.report(loss=-kept["n"])

    hand = driven(heavy, {"a": 1})
    folder = tmp_path / "checkpoints"
    hand.give(hand.launch(0, goal=FAR))
    while not list(folder.glob("*.part")):
        time.sleep(0.001)
    hand.give(d.Halt(attempt=0, why=WHY))
    hand.until_ended(0)
    told = {f"0-{event.epoch}.ckpt" for event in hand.of(e.Saved)}
    assert {path.name for path in folder.iterdir()} == told


def test_the_best_and_the_last_epoch_are_told_with_their_checkpoints(
    driven: Callable[..., Hand],
) -> None:
    hand = driven(beats, {"a": 1})
    hand.give(hand.launch(0, goal=3))
    hand.until_ended(0)
    kinds = [type(event) for event in hand.about(0)]
    assert kinds == [e.Reported, e.Saved] * 3 + [e.Ended]
    # In one piece: whoever remembers the report remembers the checkpoint.
    pairs = list(zip(hand.of(e.Reported), hand.of(e.Saved), strict=True))
    assert all(hand.told.index(saved) == hand.told.index(told) + 1 for told, saved in pairs)


def test_a_damaged_checkpoint_is_told_and_costs_no_retry(
    driven: Callable[..., Hand], tmp_path: Path
) -> None:
    hand = driven(beats, {"a": 1})
    hand.give(hand.launch(0, goal=3))
    hand.until_ended(0)
    path = tmp_path / "checkpoints" / "0-3.ckpt"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    hand.give(hand.launch(1, goal=9, start=3, source=0))
    ended = hand.until_ended(1)
    assert ended.cause is e.Cause.LOST
    (spoiled,) = hand.of(e.Spoiled)
    assert "damaged" in spoiled.note


def test_a_full_disk_is_told_and_training_goes_on(
    driven: Callable[..., Hand], tmp_path: Path
) -> None:
    hand = driven(beats, {"a": 1})
    folder = tmp_path / "checkpoints"
    folder.rmdir()
    folder.symlink_to("/dev/full")  # whatever is written there fails
    hand.give(hand.launch(0, goal=4))
    ended = hand.until_ended(0)
    assert ended.cause is e.Cause.GOAL
    assert [epoch for epoch, _ in hand.values(0)] == [1, 2, 3, 4]
    assert all("cannot be written" in missed.note for missed in hand.of(e.Missed))
    folder.unlink()


def test_whoever_beats_the_best_saves_at_once(driven: Callable[..., Hand]) -> None:
    def falls(trial: Any) -> None:  # noqa: ANN401
        kept = trial.keep(kept=[0])
        for epoch in trial.epochs():
            kept[0] = epoch
            trial.report(loss=trial["from"] - epoch)
            time.sleep(0.02)

    hand = driven(falls, {"from": 5.0}, {"from": 99.0})
    hand.give(hand.launch(0, goal=6))
    hand.until_ended(0)
    assert [event.epoch for event in hand.of(e.Saved)] == [1, 2, 3, 4, 5, 6]
    hand.give(hand.launch(1, trial=1, goal=3))
    hand.until_ended(1)
    # Its first save tells what saves cost; then it saves where it must, for it is never the best.
    assert 3 in [event.epoch for event in hand.of(e.Saved) if event.attempt == 1]


def test_a_setting_changes_in_a_running_attempt(driven: Callable[..., Hand]) -> None:
    def reads(trial: Any) -> None:  # noqa: ANN401
        for _ in trial.epochs():
            time.sleep(0.02)
            trial.report(loss=trial["lr"], changed=float(trial.changed("lr")))

    schedule = {"lr": {"piecewise": [[0, 1.0], [2, 0.5]]}}
    hand = driven(reads, schedule)
    hand.give(hand.launch(0, goal=FAR))
    hand.until_reported(0, 4)
    seen = [event.metrics for event in hand.of(e.Reported)][:4]
    assert [metrics["loss"] for metrics in seen] == [1.0, 1.0, 0.5, 0.5]
    assert [metrics["changed"] for metrics in seen] == [0.0, 0.0, 1.0, 0.0]
    hand.give(amend(0, version=1, goal=1))
    hand.until_ended(0)


def test_a_smooth_schedule_is_read_inside_the_epoch(driven: Callable[..., Hand]) -> None:
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
    hand = driven(reads, config)
    hand.give(hand.launch(0, goal=3))
    hand.until_ended(0)
    assert [event.metrics for event in hand.of(e.Reported)] == [
        {"loss": 1.0, "middle": 0.75, "end": 0.5, "deep": 1.0},
        {"loss": 0.5, "middle": 0.25, "end": 0.0, "deep": 0.5},
        {"loss": 0.0, "middle": 0.0, "end": 0.0, "deep": 0.25},
    ]


def test_progress_beyond_the_epoch_is_refused(driven: Callable[..., Hand]) -> None:
    def reads(trial: Any) -> None:  # noqa: ANN401
        for _ in trial.epochs():
            trial.report(loss=trial.value("lr", 30))

    hand = driven(reads, {"lr": {"piecewise": [[0, 1.0], [2, 0.5]]}})
    hand.give(hand.launch(0, goal=3))
    ended = hand.until_ended(0)
    assert ended.cause is e.Cause.FAILED
    assert "progress=30 is not in the epoch: give 0 to 1." in ended.note


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
    while not pids.exists() or len(set(pids.read_text().splitlines())) < 2:
        assert driver.poll() is None
        time.sleep(0.01)
    started = [int(pid) for pid in pids.read_text().split()]
    driver.kill()
    driver.wait()
    assert gone(set(started))


def test_a_nursery_that_is_killed_while_it_starts_is_started_again(tmp_path: Path) -> None:
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

        nest = Nest(dies_once.train, {})
        (tmp_path / "armed").touch()
        nest.revive()
        nest.close(1.0)
    finally:
        sys.path.remove(str(tmp_path))
    assert len(list((tmp_path / "deaths").iterdir())) == 2
