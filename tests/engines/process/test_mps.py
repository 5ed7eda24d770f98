"""The service for shared GPUs, on a machine that has none: what is told, and that it is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fake_mps import write_cuda_stub, write_mps_service
from waiting import LIMIT_S

from paceline.engines.process.local.mps import Mps

OWNER = """
import sys
from paceline.engines.process.local.mps import Mps
mps = Mps(("gpu-a",))
print(mps.pipe, flush=True)
sys.stdin.read()
mps.close()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a folder whose programs are found before all others."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path


def test_where_it_is_not_installed_the_note_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    mps = Mps(("gpu-a",))
    assert (mps.pipe, mps.note) == ("", "nvidia-cuda-mps-control is not installed")
    mps.close()


def test_a_service_that_does_not_start_has_its_message_in_the_note(folder: Path) -> None:
    write_mps_service(folder, "echo 'Cannot find the GPU'; exit 1")
    mps = Mps(("gpu-a",))
    assert mps.pipe == ""
    assert mps.note == "nvidia-cuda-mps-control does not work here (Cannot find the GPU)"


def test_one_that_no_program_can_reach_is_ended_again(folder: Path) -> None:
    log = write_mps_service(folder)
    mps = Mps(("gpu-a", "gpu-b"))
    assert mps.pipe == ""
    assert mps.note == "nvidia-cuda-mps-control does not work here (programs cannot reach it)"
    assert log.read_text().split() == ["-d", "gpu-a,gpu-b", "gpu-a,gpu-b", "quit"]


def owner(folder: Path) -> tuple[subprocess.Popen[str], Path]:
    """Start a process that has the service up; return it, and the service's folder."""
    write_cuda_stub(folder)
    path = f"{folder}:{os.environ.get('PYTHONPATH', '')}"
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    return owner, Path(owner.stdout.readline().strip())


def test_it_is_up_until_its_owner_has_closed_it(folder: Path) -> None:
    log = write_mps_service(folder)
    process, own = owner(folder)
    assert own.is_dir()
    assert log.read_text().split() == ["-d", "gpu-a"]
    process.communicate()
    assert log.read_text().split() == ["-d", "gpu-a", "gpu-a", "quit"]
    assert not own.exists()


def test_it_ends_with_an_owner_that_is_killed_with_all_its_children(folder: Path) -> None:
    os.mkfifo(folder / "ends")
    log = write_mps_service(folder, end=f"echo over > {folder / 'ends'}")
    process, _ = owner(folder)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(process.pid, signal.SIGKILL)
    for child in children:
        os.kill(int(child), signal.SIGKILL)
    # From a pipe: that waits until it is written to.
    assert subprocess.check_output(["cat", str(folder / "ends")], timeout=LIMIT_S) == b"over\n"
    assert log.read_text().split()[-1] == "quit"
    process.communicate()
