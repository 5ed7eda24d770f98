"""The main function of a worker, run in this process with a driver's end of its channel."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import sys
from pdb import Pdb
from typing import TYPE_CHECKING, Any

import pytest
from trials import make_start

from paceline.worker.gang import GangLinks
from paceline.worker.memory_usage import is_out_of_memory, measure_memory
from paceline.worker.process import run_attempt
from paceline.worker.protocol import (
    AnyMessage,
    Channel,
    CheckpointUnusable,
    CheckpointWritten,
    EpochReport,
    FunctionFailed,
    FunctionReturned,
    Release,
)
from paceline.worker.ray_compat import get_checkpoint, report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., tuple[int, list[AnyMessage]]]]:
    """Run an attempt; restore output, signal handlers and environment afterwards."""
    sys.stdout.flush()
    sys.stderr.flush()
    output = [os.dup(number) for number in (1, 2)]
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    environ = dict(os.environ)
    threads = sys.modules["torch"].get_num_threads() if "torch" in sys.modules else 0

    def run(
        train: Callable[[Any], Any],
        *sent: AnyMessage,
        start: bool = True,
        **changes: Any,  # noqa: ANN401
    ) -> tuple[int, list[AnyMessage]]:
        near, far = socket.socketpair()
        driver, channel = Channel(near), Channel(far)
        for message in (make_start(tmp_path, **changes), *sent) if start else ():
            driver.send(message)
        if not start:
            near.shutdown(socket.SHUT_WR)
        code = run_attempt(channel, train, GangLinks())
        messages = []
        while (received := driver.receive(wait=False)) is not None:
            messages.append(received)
        driver.close()
        channel.close()
        return code, messages

    yield run
    sys.stdout.flush()
    sys.stderr.flush()
    for number, saved in zip((1, 2), output, strict=True):
        os.dup2(saved, number)
        os.close(saved)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    for name in set(os.environ) - set(environ):
        del os.environ[name]
    if threads:
        sys.modules["torch"].set_num_threads(threads)


def test_a_function_that_returns_is_reported_with_its_output_in_the_log(
    run: Callable[..., tuple[int, list[AnyMessage]]], tmp_path: Path
) -> None:
    def train(trial: Any) -> None:  # noqa: ANN401
        os.write(1, os.environ["GREETING"].encode())
        for _ in trial.epochs():
            trial.report(loss=1.0)

    code, messages = run(train, epochs=2, environ={"GREETING": "hello"})
    assert code == 0
    assert [type(message) for message in messages] == [EpochReport, EpochReport, FunctionReturned]
    assert (tmp_path / "attempt.log").read_text() == "hello"


def test_an_error_is_reported_with_the_end_of_its_traceback(
    run: Callable[..., tuple[int, list[AnyMessage]]],
) -> None:
    def train(trial: Any) -> None:  # noqa: ANN401
        raise MemoryError("no room for the batch")

    code, (failed,) = run(train)
    assert code == 1
    assert isinstance(failed, FunctionFailed)
    assert failed.out_of_memory
    assert failed.note.startswith("Traceback")
    assert failed.note.endswith("MemoryError: no room for the batch")
    assert "run_attempt" not in failed.note
    assert failed.kind == "MemoryError"
    assert failed.place.endswith(f"test_process.py:{train.__code__.co_firstlineno + 1}")


def test_a_debugger_without_a_terminal_is_answered_with_the_way_to_one(
    run: Callable[..., tuple[int, list[AnyMessage]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())  # ends at once, as a worker's does

    def train(trial: Any) -> float:  # noqa: ANN401
        Pdb(stdout=io.StringIO()).set_trace()
        return 1.0

    _, (failed,) = run(train)
    assert isinstance(failed, FunctionFailed)
    assert failed.note.splitlines()[-1] == (
        "BdbQuit: the training function opened a debugger, and its process has no terminal: give "
        "slots='inline' to debug it"
    )


def test_the_place_of_an_error_is_the_user_s_last_frame(
    run: Callable[..., tuple[int, list[AnyMessage]]],
) -> None:
    def misuse(trial: Any) -> None:  # noqa: ANN401
        for _ in trial.epochs():
            trial.report("low")

    def decode(trial: Any) -> None:  # noqa: ANN401
        json.loads("no JSON")

    for train, kind, line in ((misuse, "TrialError", 2), (decode, "JSONDecodeError", 1)):
        code, (failed,) = run(train)
        assert code == 1
        assert isinstance(failed, FunctionFailed)
        assert failed.kind == kind
        assert failed.place.endswith(f"test_process.py:{train.__code__.co_firstlineno + line}")
        assert "paceline/worker" not in failed.note


def test_a_function_that_reports_more_epochs_than_the_trial_has_ends_as_if_it_had_returned(
    run: Callable[..., tuple[int, list[AnyMessage]]],
) -> None:
    def train(trial: Any) -> None:  # noqa: ANN401
        while True:
            trial.report(1.0)

    code, messages = run(train, epochs=2)
    assert code == 0
    assert [type(message) for message in messages] == [EpochReport, EpochReport, FunctionReturned]


def test_a_function_without_a_report_has_failed(
    run: Callable[..., tuple[int, list[AnyMessage]]],
) -> None:
    def train(trial: Any) -> None:  # noqa: ANN401
        pass

    code, (failed,) = run(train)
    assert code == 1
    assert isinstance(failed, FunctionFailed)
    assert failed.kind == "TrialError"
    assert failed.place.endswith(f"test_process.py:{train.__code__.co_firstlineno}")
    assert "train returned nothing and reported nothing: return a number such" in failed.note


def test_an_unusable_checkpoint_is_reported(
    run: Callable[..., tuple[int, list[AnyMessage]]],
) -> None:
    code, (message,) = run(lambda trial: None, start=True, checkpoint="1-1.ckpt")
    assert code == 0
    assert isinstance(message, CheckpointUnusable)
    assert "1-1.ckpt cannot be read" in message.note


def test_a_released_or_terminated_function_unwinds(
    run: Callable[..., tuple[int, list[AnyMessage]]],
) -> None:
    unwound = []

    def train(trial: Any) -> None:  # noqa: ANN401
        try:
            for epoch in trial.epochs():
                if epoch == 1:
                    os.kill(os.getpid(), signal.SIGTERM)
                trial.report(loss=1.0)
        finally:
            unwound.append(trial.id)

    for sent in ((Release(),), ()):
        code, messages = run(train, *sent)
        assert code == 0
        assert all(isinstance(message, EpochReport) for message in messages)
    assert unwound == [3, 3]


def test_a_worker_without_an_attempt_exits(
    run: Callable[..., tuple[int, list[AnyMessage]]],
) -> None:
    assert run(lambda trial: None, start=False) == (0, [])


# Ray Tune's API


def test_a_function_that_takes_a_config_reports_and_restores_directories(
    run: Callable[..., tuple[int, list[AnyMessage]]], tmp_path: Path
) -> None:
    folder, restored = tmp_path / "state", []
    (folder / "deep").mkdir(parents=True)

    def train(config: dict[str, Any]) -> None:
        from paceline import Checkpoint

        found = get_checkpoint()
        if found is not None:
            with found.as_directory() as path:
                restored.append((tmp_path / path / "deep" / "step").read_text())
            copy = found.to_directory(tmp_path / "copy")
            restored.append((tmp_path / copy / "deep" / "step").read_text())
        for step in range(2):
            (folder / "deep" / "step").write_text(str(step))
            report({"loss": config["lr"]}, checkpoint=Checkpoint.from_directory(folder))

    code, messages = run(train, epochs=2)
    assert code == 0
    *_, last, _ = messages
    assert isinstance(last, EpochReport)
    assert isinstance(last.saved, CheckpointWritten)
    run(train, epochs=4, start=True, checkpoint="7-2.ckpt", attempt=8)
    assert restored == ["1", "1"]


def test_the_api_outside_of_a_training_function_is_an_error() -> None:
    from paceline.core.errors import TrialError

    with pytest.raises(TrialError, match=r"paceline\.report was called outside"):
        report({"loss": 1.0})
    with pytest.raises(TrialError, match=r"paceline\.get_checkpoint was called outside"):
        get_checkpoint()


# Memory


def test_memory_is_measured_on_the_device() -> None:
    assert 0 < measure_memory("cpu") < 1 << 45
    assert measure_memory("cuda") == 0


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (MemoryError(), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (OSError(12, "Cannot allocate memory"), True),
        (type("OutOfMemoryError", (RuntimeError,), {})(), True),
        (ValueError("wrong shape"), False),
    ],
)
def test_errors_that_mean_out_of_memory_are_recognized(error: Exception, is_memory: bool) -> None:
    assert is_out_of_memory(error) is is_memory
