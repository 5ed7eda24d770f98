"""Background jobs at the exit of the program."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
import sys, threading, time
from pathlib import Path
from paceline.engines.process.background import BackgroundJobs

jobs, began = BackgroundJobs(), threading.Event()

def job():
    began.set()
    time.sleep(0.2)
    Path(sys.argv[1]).touch()

jobs.submit("forecasts", job)
began.wait()
jobs.close()
"""


def test_the_exit_of_a_program_waits_for_a_job_that_runs(tmp_path: Path) -> None:
    # Python would end its thread inside it; in the code of a C++ library that aborts the program.
    done = tmp_path / "done"
    subprocess.run([sys.executable, "-c", SCRIPT, str(done)], check=True)
    assert done.exists()
