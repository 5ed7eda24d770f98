"""The import of onnxruntime, which runs the pre-trained network.

Knows what that package does beside: it writes the id of a session to the temporary directory. The
one module among the parts that touches the disk, to delete that file.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from paceline.core.errors import ModelError


def import_runtime() -> Any:  # noqa: ANN401 - onnxruntime has no types
    """Import onnxruntime; let it send nothing, and leave no file of its session behind."""
    session = Path(tempfile.gettempdir(), ".ses")
    was_there = session.exists()
    try:
        import onnxruntime
    except ImportError:
        raise ModelError(
            "the pre-trained curve model needs the package 'onnxruntime', which is not installed: "
            "pip install onnxruntime, or choose another curve model such as 'last'."
        ) from None
    onnxruntime.disable_telemetry_events()
    if not was_there:
        session.unlink(missing_ok=True)
    return onnxruntime
