"""A fork server that ends while it starts: killed from outside, or by what it imports."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from paceline.core.errors import SpecError, StudyFailed
from paceline.engines.process.local.worker_pool import ForkServerPool

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class EndsItsLoader:
    """A training function; whatever loads it ends in this way, as often as it is told."""

    def __init__(self, folder: Path, how: int, times: int) -> None:
        self._arguments = (str(folder), how, times)

    def __call__(self, trial: Any) -> None:  # noqa: ANN401
        raise NotImplementedError

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, int, int]]:
        def load(folder: str, how: int, times: int) -> Callable[..., None]:
            loads = len(os.listdir(folder))
            open(os.path.join(folder, str(loads)), "w").close()
            if loads < times:
                if how < 0:
                    os.kill(os.getpid(), -how)
                os._exit(how)
            return lambda trial: None

        return load, self._arguments


def count_loads(folder: Path) -> int:
    return len(list(folder.iterdir()))


def test_a_fork_server_that_is_killed_while_it_starts_is_started_again(tmp_path: Path) -> None:
    pool = ForkServerPool(EndsItsLoader(tmp_path, -signal.SIGKILL, times=2), {})
    pool.close(1.0)
    assert count_loads(tmp_path) == 3


def test_after_five_kills_in_a_row_the_message_is_about_the_machine(tmp_path: Path) -> None:
    with pytest.raises(StudyFailed, match="was killed by SIGKILL, 5 times in a row") as failed:
        ForkServerPool(EndsItsLoader(tmp_path, -signal.SIGKILL, times=99), {})
    assert "the system's log" in str(failed.value)
    assert "cannot be loaded" not in str(failed.value)
    assert count_loads(tmp_path) == 5


@pytest.mark.parametrize(
    ("how", "ended"), [(7, "exited with code 7"), (-signal.SIGSEGV, "crashed with SIGSEGV")]
)
def test_a_function_whose_import_ends_the_process_cannot_be_loaded(
    how: int, ended: str, tmp_path: Path
) -> None:
    with pytest.raises(SpecError, match=f"cannot be loaded: .* {ended}, 2 times in a row"):
        ForkServerPool(EndsItsLoader(tmp_path, how, times=99), {})
    assert count_loads(tmp_path) == 2
