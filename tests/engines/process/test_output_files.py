"""The output of attempts: thousands of them do not fill a folder, and none is lost."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

import paceline as pl
from paceline.engines.process.output_files import PACKED, OutputFiles

if TYPE_CHECKING:
    from pathlib import Path

    from command_line import CommandLine


def end_attempts(files: OutputFiles, bodies: dict[int, bytes]) -> None:
    for attempt, body in bodies.items():
        files.path(attempt).write_bytes(body)
        files.finish(attempt)


def test_old_outputs_are_packed_and_can_still_be_read(tmp_path: Path) -> None:
    bodies = {n: b"--- attempt 7, 3 bytes\n" * (n % 3 + 1) + b"%d" % n for n in range(30)}
    end_attempts(OutputFiles(tmp_path, most_files=10), bodies)
    assert len(list(tmp_path.iterdir())) == 11
    again = OutputFiles(tmp_path)
    assert {number: again.read(number) for number in bodies} == bodies
    assert again.read(3, after=20) == bodies[3][20:]
    assert again.read(30) is None


def test_an_empty_output_leaves_no_file(tmp_path: Path) -> None:
    end_attempts(OutputFiles(tmp_path), {0: b"", 1: b"a line\n"})
    assert os.listdir(tmp_path) == ["attempt-1.log"]


def test_a_large_output_stays_where_it_is(tmp_path: Path) -> None:
    bodies = {0: b"x" * 2_000_000, 1: b"one", 2: b"two"}
    end_attempts(OutputFiles(tmp_path, most_files=1), bodies)
    assert sorted(os.listdir(tmp_path)) == ["attempt-0.log", "attempt-2.log", PACKED]
    assert [OutputFiles(tmp_path).read(number) for number in bodies] == list(bodies.values())


def test_a_driver_killed_while_it_packs_loses_nothing(tmp_path: Path) -> None:
    bodies = {number: b"output %d\n" % number for number in range(6)}
    end_attempts(OutputFiles(tmp_path, most_files=3), bodies)
    packed = tmp_path / PACKED
    whole = packed.read_bytes()
    for size in range(len(whole)):
        packed.write_bytes(whole[:size])
        # What was being packed still has its file.
        for number, body in bodies.items():
            OutputFiles(tmp_path).path(number).write_bytes(body)
        later = OutputFiles(tmp_path, most_files=3)
        end_attempts(later, {9: b"after"})
        assert {number: later.read(number) for number in bodies} == bodies
        assert later.read(9) == b"after"
        assert not (tmp_path / "attempt-0.log").exists()


@pytest.mark.parametrize("hostile", [b"--- attempt 0, 99999999999999 bytes\nx\n", b"\x00" * 99])
def test_a_damaged_packed_file_is_not_believed(hostile: bytes, tmp_path: Path) -> None:
    (tmp_path / PACKED).write_bytes(hostile)
    assert OutputFiles(tmp_path).read(0) is None


def says(n: int) -> float:
    if n:
        print("this is", n)  # noqa: T201
    return float(n)


def test_logs_shows_packed_outputs(
    paceline: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("paceline.engines.process.checkpoint_files.OutputFiles", FewFiles)
    store = f"sqlite:///{tmp_path}/runs.db"
    space = {"n": pl.grid([0, 1, 2, 3])}
    pl.tune(says, space=space, name="it", store=store, slots="cpu:1", progress=False)
    (logs,) = tmp_path.glob("runs.files/*/logs")
    assert len(list(logs.iterdir())) == 2
    shown = [paceline("logs", "it", str(trial), "--store", store).out for trial in range(4)]
    assert sum(f"this is {n}\n" in "".join(shown) for n in (1, 2, 3)) == 3


class FewFiles(OutputFiles):
    """Keeps a file of its own for the last attempt alone."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, most_files=1)
