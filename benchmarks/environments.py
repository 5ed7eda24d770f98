"""Virtual environments of the peers, one each under `.peers/`, created when missing."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from benchmarks.page import ROOT

if TYPE_CHECKING:
    from pathlib import Path

REQUIREMENTS = {
    "optuna": ("optuna==5.0.0",),
    "ray": ("ray[tune]==2.60.0",),
    # Syne Tune's module with the table backend imports `huggingface_hub`.
    "syne-tune": ("syne-tune==0.16.0", "huggingface_hub"),
}


def prepare_python(peer: str) -> Path:
    """Return the Python of a peer's environment; create the environment first if needed."""
    folder = ROOT / ".peers" / peer
    python, ready = folder / "bin" / "python", folder / "ready"
    wanted = "\n".join(REQUIREMENTS[peer])
    if not ready.exists() or ready.read_text() != wanted:
        print(f"installing {', '.join(REQUIREMENTS[peer])} (once)", file=sys.stderr)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([*pip, *REQUIREMENTS[peer]], check=True)
        ready.write_text(wanted)
    return python
