"""The service for shared GPUs, on a machine that has none: what is told, and that it is ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.engines.local.mps import Mps

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

# A service that is up while its file lies in its folder.
CONTROL = """#!/bin/sh
echo "$@ $CUDA_VISIBLE_DEVICES" >> {log}
if [ "$1" = "-d" ]; then {begin}; exit; fi
read word
echo "$word" >> {log}
"""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, begin: str) -> Path:
    """Put a program of the service's name onto the path; return where it writes what it hears."""
    log = folder / "heard"
    program = folder / "nvidia-cuda-mps-control"
    program.write_text(CONTROL.format(log=log, begin=begin))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return log


def test_where_it_is_not_installed_the_note_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    mps = Mps(("gpu-a",))
    assert (mps.pipe, mps.note) == ("", "nvidia-cuda-mps-control is not installed")
    mps.close()


def test_where_it_does_not_start_the_note_has_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, "echo 'Cannot find the GPU'; exit 1")
    mps = Mps(("gpu-a",))
    assert mps.pipe == ""
    assert mps.note == "nvidia-cuda-mps-control does not work here (Cannot find the GPU)"


def test_one_that_no_program_can_reach_is_ended_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = install(tmp_path, monkeypatch, "true")
    mps = Mps(("gpu-a", "gpu-b"))
    assert mps.pipe == ""
    assert mps.note == "nvidia-cuda-mps-control does not work here (programs cannot reach it)"
    assert log.read_text().split() == ["-d", "gpu-a,gpu-b", "gpu-a,gpu-b", "quit"]
