"""Trials in the driver's process: the engine's contract, and what debuggers and profilers see."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from process_engines import make_spec, make_training_function
from trials import make_start
from waiting import LIMIT_S, wait_for

import paceline as pl
from paceline.core import decisions as d
from paceline.core.errors import SpecError, StudyFailed
from paceline.engines.process.checkpoint_files import CheckpointFiles
from paceline.engines.process.engine import ProcessEngine
from paceline.engines.process.local.devices import LocalDevices
from paceline.engines.process.local.inline_pool import InlinePool
from paceline.testing.engines import EngineContract

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paceline.core.ports import Advisor, Engine, Workload


class TestInlineEngine(EngineContract):
    """The whole contract; attempts on two slots run one after the other."""

    epoch_s = 0.01

    @pytest.fixture(autouse=True)
    def serve(self) -> Iterator[None]:
        """Run attempts in a thread that stands for the caller's, until the test is over."""
        over = threading.Event()
        threads: list[threading.Thread] = []

        def make(workload: Workload, advisor: Advisor) -> Engine:
            pool = InlinePool(make_training_function(workload))
            engine = ProcessEngine(
                make_spec(),
                pool,
                LocalDevices(2, 2),
                files=CheckpointFiles(Path(tempfile.mkdtemp())),
                advisor=advisor,
            )

            def wait() -> None:
                over.wait()

            def serve() -> None:
                pool.serve(wait, over.set)

            threads.append(threading.Thread(target=serve))
            threads[-1].start()
            return engine

        self.make = make
        yield
        over.set()
        for thread in threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive(), "a worker did not unwind"


def run_script(folder: Path, text: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    """Run a program of its own that tunes inline; type into it."""
    path = folder / "script.py"
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return subprocess.run(
        [sys.executable, str(path)],
        input=typed,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        cwd=folder,
    )


_TUNE = """
import paceline as pl

def tune(train, **options):
    return pl.tune(
        train, space={"x": pl.uniform(0, 1)}, metric="loss", mode="min", epochs=1, trials=2,
        policy="fifo", generator="random", slots="inline", progress=False, **options)
"""

_BREAKPOINT = (
    _TUNE
    + """
def train(trial):
    for _ in trial.epochs():
        breakpoint()
        trial.report(loss=trial["x"])

print("trials:", len(tune(train).trials))
"""
)


def test_a_breakpoint_opens_the_debugger_in_the_training_function(tmp_path: Path) -> None:
    done = run_script(tmp_path, _BREAKPOINT, 'p "trial", trial.id\nc\np "trial", trial.id\nc\n')
    assert done.returncode == 0, done.stderr
    assert "('trial', 0)" in done.stdout
    assert "('trial', 1)" in done.stdout
    assert "trials: 2" in done.stdout


def test_quitting_the_debugger_ends_the_study_as_an_interrupt(tmp_path: Path) -> None:
    text = _BREAKPOINT.replace("print(", "result = tune(train)\nprint(result.interrupted, ")
    text = text.replace("len(tune(train).trials)", "len(result.trials)")
    done = run_script(tmp_path, text, "c\nq\n")
    assert done.returncode == 0, done.stderr
    assert "True trials: 2" in done.stdout


def test_an_interrupt_reaches_the_training_function_and_keeps_what_was_found() -> None:
    reached = []

    def train(trial: Any) -> None:  # noqa: ANN401
        for _ in trial.epochs():
            if trial.id:
                try:
                    signal.raise_signal(signal.SIGINT)
                except KeyboardInterrupt:
                    reached.append(trial.id)
                    raise
            trial.report(loss=trial["x"])

    result = tune_inline(train, trials=5)
    assert reached == [1]
    assert result.interrupted
    assert [len(trial.metrics["loss"]) for trial in result.trials] == [1, 0]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_study_in_a_store_may_be_interrupted_and_resumed(tmp_path: Path) -> None:
    stop = [True]

    def train(trial: Any) -> None:  # noqa: ANN401
        at = trial.keep(at=[0])
        for _ in trial.epochs():
            if at[0] == 2 and stop.pop():
                sys.exit("it quits in the third epoch")
            at[0] += 1
            trial.report(loss=1.0 / at[0])

    options: dict[str, Any] = {
        "epochs": 4,
        "trials": 1,
        "name": "quits",
        "store": str(tmp_path / "studies.db"),
        "files": tmp_path / "files",
        "plan": "quits",
    }
    assert tune_inline(train, **options).interrupted
    stop[:] = [False] * 9
    (trial,) = tune_inline(train, **options).trials
    assert trial.metrics["loss"] == [1.0, 1 / 2, 1 / 3, 1 / 4]


def test_an_error_is_printed_with_its_traceback_and_is_the_cause(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def train(trial: Any) -> float:  # noqa: ANN401
        return float(1.0 / (trial["x"] * 0.0))

    with pytest.raises(StudyFailed) as failed:
        tune_inline(train)
    assert isinstance(failed.value.__cause__, ZeroDivisionError)
    printed = capfd.readouterr().err
    assert "ZeroDivisionError" in printed
    assert 'return float(1.0 / (trial["x"] * 0.0))' in printed


def tune_inline(train: Any, **options: Any) -> pl.Result:  # noqa: ANN401
    given: dict[str, Any] = {
        "space": {"x": pl.uniform(0.0, 1.0)},
        "metric": "loss",
        "mode": "min",
        "epochs": 1,
        "trials": 2,
        "policy": "fifo",
        "generator": "random",
        "slots": "inline",
        "progress": False,
    }
    return pl.tune(train, **{**given, **options})


def test_a_failed_trial_is_not_tried_again() -> None:
    calls = []

    def train(trial: Any) -> None:  # noqa: ANN401
        calls.append(trial.id)
        for _ in trial.epochs():
            if not trial.id:
                raise RuntimeError("the first fails")
            trial.report(loss=trial["x"])

    tune_inline(train, trials=3)
    assert calls == [0, 1, 2]


def test_trials_run_in_the_calling_thread_and_leave_the_process_as_it_was() -> None:
    threads = set()

    def train(trial: Any) -> None:  # noqa: ANN401
        threads.add(threading.current_thread())
        for _ in trial.epochs():
            trial.report(loss=random.random())

    random.seed(7)
    expected, environment = random.getstate(), dict(os.environ)
    tune_inline(train)
    assert threads == {threading.current_thread()}
    assert random.getstate() == expected
    assert dict(os.environ) == environment
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_study_may_be_called_from_another_thread() -> None:
    found: list[pl.Result] = []

    def train(trial: Any) -> None:  # noqa: ANN401
        for _ in trial.epochs():
            trial.report(loss=trial["x"])

    thread = threading.Thread(target=lambda: found.append(tune_inline(train)))
    thread.start()
    thread.join(LIMIT_S)
    assert [len(result.trials) for result in found] == [2]


def train_noisily(trial: Any) -> None:  # noqa: ANN401
    """Descend by random steps, and keep where it is."""
    at = trial.keep(at=[0.0])
    for _ in trial.epochs():
        at[0] += trial["x"] * random.random()
        trial.report(loss=1.0 / (1.0 + at[0]))


def test_values_are_those_of_processes() -> None:
    options: dict[str, Any] = {"epochs": 3, "generator": "tpe", "trials": 4}
    inline = tune_inline(train_noisily, **options)
    processes = tune_inline(train_noisily, **options, slots=1)
    assert [(trial.config, trial.metrics) for trial in inline.trials] == [
        (trial.config, trial.metrics) for trial in processes.trials
    ]


def test_a_paused_trial_resumes_from_its_checkpoint() -> None:
    asha = pl.Part("asha", {"eta": 2, "first": 1, "drain": True})
    result = tune_inline(train_noisily, policy=asha, epochs=4, trials=4)
    launches = [
        decision
        for step in result.log
        for decision in step.decisions
        if isinstance(decision, d.Launch)
    ]
    assert any(launch.start > 0 and launch.source is not None for launch in launches)
    alone = tune_inline(train_noisily, epochs=4, trials=4)
    for trial, whole in zip(result.trials, alone.trials, strict=True):
        assert trial.metrics["loss"] == whole.metrics["loss"][: len(trial.metrics["loss"])]


def test_a_deadline_takes_effect_at_the_next_report() -> None:
    epochs = []

    def train(trial: Any) -> None:  # noqa: ANN401
        for epoch in trial.epochs():
            epochs.append(epoch)
            trial.report(loss=1.0)

    result = tune_inline(train, epochs=1_000_000, trials=1, deadline=0.5)
    assert "deadline" in (result.why or "")
    assert len(epochs) < 1_000_000


def test_a_function_whose_reports_nothing_reads_ends_with_the_loop(tmp_path: Path) -> None:
    channels = []

    def train(trial: Any) -> None:  # noqa: ANN401
        channels.append(trial._channel)
        for _ in trial.epochs():
            trial.report(loss=1.0)

    def is_full() -> bool:
        return bool(channels) and not select.select([], [channels[0]], [], 0)[1]

    pool = InlinePool(train)
    ((_, driver),) = pool.acquire([0])
    driver.send(make_start(tmp_path, epochs=1_000_000, goal=1_000_000))
    # The loop ends while the function waits in the middle of a report.
    pool.serve(lambda: wait_for(is_full, "a channel that takes no more reports"), lambda: None)
    assert pool.is_idle
    driver.close()
    pool.close(0.0)


def test_coverage_sees_the_lines_of_the_training_function(tmp_path: Path) -> None:
    text = (
        _TUNE
        + """
import coverage

def train(trial):
    for _ in trial.epochs():
        doubled = 2 * trial["x"]
        trial.report(loss=doubled)

measured = coverage.Coverage(data_file=None)
measured.start()
tune(train)
measured.stop()
lines = measured.get_data().lines(__file__)
source = open(__file__).read().splitlines()
print("seen:", [source[line - 1].strip() for line in sorted(lines)])
"""
    )
    done = run_script(tmp_path, text)
    assert done.returncode == 0, done.stderr
    assert "trial.report(loss=doubled)" in done.stdout.rpartition("seen:")[2]


@pytest.mark.parametrize("option", [{"span": 2}, {"pack": 2}, {"hang": "1m"}, {"mps": True}])
def test_options_that_need_processes_are_refused(option: dict[str, Any]) -> None:
    (name,) = option
    with pytest.raises(SpecError, match=rf"{name}=.* cannot act with slots='inline'"):
        tune_inline(train_noisily, **option)
