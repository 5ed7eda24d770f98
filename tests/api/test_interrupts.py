"""Ctrl-C and a notebook's stop button: a real SIGINT to a real process returns what was found."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import pytest
from running_command import RunningCommand
from waiting import wait_for

import paceline as pl

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
import sys, time
from pathlib import Path
import paceline as pl

{prelude}

def train(trial):
    helper
    done = trial.keep(done=[0])
    try:
        for _ in trial.epochs():
            done[0] += 1
            trial.report(loss=trial["lr"])
            while done[0] == 2 and not Path("go").exists():
                Path("waiting").touch()
                time.sleep(0.01)
    except BaseException:
        Path("unwinding").touch()
        while Path("stubborn").exists():
            time.sleep(0.01)
        raise

if __name__ == "__main__":
    print("begins", flush=True)
    result = pl.tune(train, space={{"lr": pl.uniform(0, 1)}}, metric="loss", mode="min", epochs=3,
                     trials=2, slots=1, policy="fifo", generator="random", progress=False{options})
    print("interrupted", result.interrupted, len(result.trials), result.end, flush=True)
    try:
        print("best", result.best.value > 0, result.best.checkpoint)
    except pl.NoResult as error:
        print("no result:", error)
"""
STORED = ', name="it", store="runs.db"'


def start(folder: Path, options: str = "", prelude: str = "helper = None") -> RunningCommand:
    script = SCRIPT.format(options=options, prelude=prelude)
    (folder / "script.py").write_text(script)
    return RunningCommand(folder, sys.executable, "script.py")


@pytest.mark.parametrize("options", ["", STORED], ids=["in memory", "SQLite"])
def test_an_interrupt_ends_in_order_and_returns_the_result(tmp_path: Path, options: str) -> None:
    with start(tmp_path, options) as running:
        wait_for((tmp_path / "waiting").exists)
        running.signal(signal.SIGINT)
        ran = running.end()
    assert ran.code == 0, ran.err
    assert "interrupted True 1 None" in ran.out
    assert "best True" in ran.out
    assert (tmp_path / "unwinding").exists()
    if not options:
        assert "what it found is in its result" in ran.err
        return
    assert "run the same call again to resume it" in ran.err
    (tmp_path / "go").touch()
    with RunningCommand(tmp_path, sys.executable, "script.py") as again:
        ran = again.end()
    assert "interrupted False 2 quiet" in ran.out
    assert [len(trial.values) for trial in pl.load("it", tmp_path / "runs.db").trials] == [3, 3]


def test_the_second_interrupt_does_not_wait(tmp_path: Path) -> None:
    (tmp_path / "stubborn").touch()
    with start(tmp_path, STORED) as running:
        wait_for((tmp_path / "waiting").exists)
        running.signal(signal.SIGINT)
        wait_for((tmp_path / "unwinding").exists)
        running.signal(signal.SIGINT)
        ran = running.end()
    assert ran.code == -signal.SIGINT
    assert "KeyboardInterrupt" in ran.err
    assert pl.load("it", tmp_path / "runs.db").end is None


def test_an_interrupt_before_the_first_trial_gives_a_result_without_trials(tmp_path: Path) -> None:
    # The module takes for ever to be imported where the workers start.
    (tmp_path / "slow.py").write_text("""
import os, time
from pathlib import Path
main = Path("main")
if not main.exists():
    main.write_text(str(os.getpid()))
elif main.read_text() != str(os.getpid()):
    Path("loading").touch()
    time.sleep(60)
""")
    with start(tmp_path, STORED, "import slow as helper") as running:
        running.until("begins")
        wait_for((tmp_path / "loading").exists)
        running.signal(signal.SIGINT)
        ran = running.end()
    assert ran.code == 0, ran.err
    assert "interrupted True 0 None" in ran.out
    assert "no result:" in ran.out


def test_an_interrupt_that_an_import_swallows_is_not_lost(tmp_path: Path) -> None:
    # As packages do that try imports and catch everything.
    prelude = """
helper = None
import os, signal
import paceline.api.driver as driver
start_engine = driver.Driver._start_engine
def swallow(self, *args):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)
    except BaseException:
        pass
    return start_engine(self, *args)
driver.Driver._start_engine = swallow
"""
    with start(tmp_path, "", prelude) as running:
        ran = running.end()
    assert ran.code == 0, ran.err
    assert "interrupted True" in ran.out


# Raises in a place where Python drops what is raised, as its own import machinery has.
DROP = """
import os, signal, weakref
class Dropped:
    pass
def drop():
    def interrupt(_):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)
    dropped = Dropped()
    reference = weakref.ref(dropped, interrupt)
    del dropped
"""


def test_an_interrupt_that_is_dropped_while_a_study_is_set_up_is_not_lost(tmp_path: Path) -> None:
    prelude = f"""
helper = None
{DROP}
import paceline.api.study as study
build = study.Study._build_parts
def build_parts(self):
    drop()
    return build(self)
study.Study._build_parts = build_parts
"""
    (tmp_path / "go").touch()
    with start(tmp_path, "", prelude) as running:
        ran = running.end()
    assert "Exception ignored" in ran.err
    assert ran.code == 0, ran.err
    assert "interrupted True 0 None" in ran.out


def test_an_interrupt_that_is_dropped_by_the_import_of_a_call_is_not_lost(tmp_path: Path) -> None:
    prelude = f"""
helper = None
{DROP}
class Finder:
    def find_spec(self, name, *_):
        if name == "paceline.api.driver":
            drop()
sys.meta_path.insert(0, Finder())
"""
    (tmp_path / "go").touch()
    with start(tmp_path, "", prelude) as running:
        ran = running.end()
    assert "Exception ignored" in ran.err
    assert ran.code == -signal.SIGINT
    assert "interrupted" not in ran.out
