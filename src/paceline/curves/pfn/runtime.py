"""The import of onnxruntime, which runs the pre-trained network.

Knows what that package does beside: it sends telemetry, and for that it writes the id of a session
to the temporary directory. Neither happens with the variable that is set here.
"""

from __future__ import annotations

import os
from typing import Any

from paceline.core.errors import ModelError

# Read by onnxruntime while it is imported.
_VARIABLE = "ORT_DISABLE_TELEMETRY"


def import_runtime() -> Any:  # noqa: ANN401 - onnxruntime has no types
    """Import onnxruntime; let it send nothing, and leave no file of its session behind."""
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = "1"
    try:
        import onnxruntime
    except ImportError:
        raise ModelError(
            "the pre-trained curve model needs the package 'onnxruntime', which is not installed: "
            "pip install onnxruntime, or choose another curve model such as 'last'."
        ) from None
    finally:
        if before is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = before
    onnxruntime.disable_telemetry_events()
    return onnxruntime
