"""What other users of the machine can read, and what they can connect to."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import paceline as pl
from paceline.api.locations import make_temporary_folder

if TYPE_CHECKING:
    from paceline.worker.trial import Trial

# The state of a listening socket, and the addresses of this machine alone, in /proc/net/tcp.
LISTENS = "0A"
LOOPBACK = ("0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F")


def list_open_ports() -> list[str]:
    """Return the addresses that processes of this process's group listen on, beyond loopback."""
    own = set()
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            own.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        except OSError:
            continue
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/self/net", table).read_text(encoding="ascii").splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == LISTENS and f"socket:[{rest[5]}]" in own:
                found.append(local)
    return [each for each in found if not each.startswith(LOOPBACK)]


def train_together(trial: Trial) -> None:
    """Report how many ports this process has open to other machines."""
    from paceline.integrations.torch import gang

    with gang(trial) as all_of_it:
        for _ in trial.epochs():
            count = all_of_it.mean(float(len(list_open_ports())))
            trial.report(ports=count)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="needs Linux's /proc")
def test_the_processes_of_a_wide_trial_open_no_port_to_other_machines(tmp_path: Path) -> None:
    space = {"x": pl.uniform(0, 1)}
    options: dict[str, Any] = {"slots": "cpu:2", "span": 2, "allocator": "uniform"}
    result = pl.tune(
        train_together,
        space=space,
        metric="ports",
        mode="min",
        epochs=2,
        trials=1,
        files=tmp_path,
        progress=False,
        needs=lambda setting: 2,
        **options,
    )
    assert result.best.values == [0.0, 0.0]


@pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="needs Linux's /proc")
def test_a_study_opens_no_port(tmp_path: Path) -> None:
    seen: list[list[str]] = []
    pl.Study(
        score, space={"x": pl.uniform(0, 1)}, trials=1, slots=1, files=tmp_path, progress=False
    ).run(lambda state, steps: seen.append(list_open_ports()))
    assert seen
    assert not any(seen)


def score(x: float) -> float:
    """Return a value to be minimised."""
    return x


def test_temporary_folders_are_the_users_own() -> None:
    assert stat.S_IMODE(make_temporary_folder().stat().st_mode) == 0o700


def test_the_folder_of_studies_on_a_server_is_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from paceline.api.locations import StudyLocations
    from paceline.api.options import resolve_options

    monkeypatch.setenv("HOME", str(tmp_path))
    options = resolve_options(
        {"space": {"x": pl.uniform(0, 1)}, "name": "s", "store": "postgresql://me@host/db"}
    )
    StudyLocations("s", options, None)
    assert stat.S_IMODE((tmp_path / ".paceline").stat().st_mode) == 0o700
