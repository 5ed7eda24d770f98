"""The pre-trained network: the file in this package, and onnxruntime, which runs it.

Knows where the weights lie and what they must add up to. Does not know what goes in or out.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from paceline.core.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

FILE = "pfn.onnx"
SHA256 = "38d31615926191de26126151e30b40c237b96e525587cc481da5775bb75dea89"


def chances(feed: Mapping[str, NDArray[np.float32]]) -> NDArray[np.float32]:
    """Return the chance of each bucket, for each question of each curve."""
    (answer,) = _session().run(None, feed)
    return answer  # type: ignore[no-any-return]


@cache
def _session() -> Any:  # noqa: ANN401 - onnxruntime has no types
    body = _weights()
    try:
        import onnxruntime
    except ImportError:
        raise ModelError(
            "the pre-trained curve model needs the package 'onnxruntime', which is not installed: "
            "install it, or choose another curve model such as 'last'."
        ) from None
    options = onnxruntime.SessionOptions()
    # The machine's cores belong to the training.
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(body, options, providers=["CPUExecutionProvider"])


def _weights() -> bytes:
    try:
        body = files(__package__).joinpath(FILE).read_bytes()
    except OSError as error:
        raise ModelError(
            f"the weights {FILE} of the pre-trained curve model cannot be read "
            f"({error.strerror or error}): install Paceline again."
        ) from None
    if sha256(body).hexdigest() != SHA256:
        raise ModelError(
            f"the weights {FILE} of the pre-trained curve model are damaged (their checksum is "
            "another): install Paceline again."
        )
    return body
