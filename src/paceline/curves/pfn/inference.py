"""Inference with the pre-trained network: histories in, forecasts out, one pass for a batch.

Knows the weights file, how curves are batched, and how outputs become forecasts. Needs numpy, so it
is imported on use.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from hashlib import sha256
from importlib.resources import files
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from paceline.core.errors import ModelError
from paceline.core.forecast_quantiles import LEVELS, Forecast
from paceline.curves.pfn import encoding
from paceline.curves.pfn.runtime import import_runtime

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from paceline.core.ports import History
    from paceline.curves.pfn.encoding import Array, Frame


FILE = "pfn.onnx"
SHA256 = "38d31615926191de26126151e30b40c237b96e525587cc481da5775bb75dea89"


def run_network(feed: Mapping[str, NDArray[np.float32]]) -> NDArray[np.float32]:
    """Return the probability of each bucket, for each requested epoch of each curve."""
    (output,) = _open_session().run(None, feed)
    return output  # type: ignore[no-any-return]


@cache
def _open_session() -> Any:  # noqa: ANN401 - onnxruntime has no types
    body = _read_weights()
    onnxruntime = import_runtime()
    options = onnxruntime.SessionOptions()
    # One thread: the machine's cores are for training.
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(body, options, providers=["CPUExecutionProvider"])


def _read_weights() -> bytes:
    try:
        body = files(__package__).joinpath(FILE).read_bytes()
    except OSError as error:
        raise ModelError(
            f"the weights {FILE} of the pre-trained curve model cannot be read "
            f"({error.strerror or error}): reinstall Paceline."
        ) from None
    if sha256(body).hexdigest() != SHA256:
        raise ModelError(
            f"the weights {FILE} of the pre-trained curve model are damaged (wrong "
            "checksum): reinstall Paceline."
        )
    return body


# A curve is padded to the smallest of these sizes that fits it: padding to the longest curve of the
# batch would change rounding, and a forecast must not depend on the rest of the batch.
_SIZES = (8, 16, 32, encoding.POINTS)
_CHUNK = 32
# The network's intervals are too wide on recorded curves, so quantiles are moved towards the median
# by these factors, without and with other trials. Measured without the held-out families.
_ALONE, _WITH_OTHERS = 0.82, 0.92


class _EncodedCurve(NamedTuple):
    """A curve as input of the network."""

    frame: Frame
    points: Array
    whole: Array
    others: Array
    asked: Array


def forecast_batch(histories: Sequence[History], others: int) -> Sequence[Forecast | None]:
    """Return a forecast for each curve; `others` is the most other trials to use for each."""
    curves = [_encode(history, others) for history in histories]
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, curve in enumerate(curves):
        if curve is not None:
            size = next(size for size in _SIZES if size >= len(curve.points))
            groups[size, encoding.OTHERS if len(curve.others) else 0].append(number)
    answers: list[Forecast | None] = [None] * len(curves)
    for (size, seats), members in groups.items():
        for start in range(0, len(members), _CHUNK):
            some = members[start : start + _CHUNK]
            known = [curve for number in some if (curve := curves[number]) is not None]
            rows = _run_batch(known, size, seats)
            for number, curve, row in zip(some, known, rows, strict=True):
                answers[number] = _make_forecast(histories[number], curve, row)
    return answers


def _encode(history: History, most: int) -> _EncodedCurve | None:
    values = np.array(history.losses, dtype=float)
    if not len(values):
        return None
    points = encoding.Points(values)
    frame = encoding.compute_frame(points)
    if frame is None:
        return None
    epochs = float(max(history.epochs, len(values), *history.horizons))
    others = np.array(
        [
            token
            for other in history.others[:most]
            if (token := encoding.encode_other(_to_array(other.losses), frame, len(values), epochs))
            is not None
        ]
    ).reshape(-1, encoding.OTHER)
    return _EncodedCurve(
        frame,
        encoding.encode_points(points, frame, epochs),
        encoding.encode_curve(points, frame, epochs, history.bounds, others),
        others,
        encoding.encode_questions(history.horizons, len(values), epochs),
    )


def _to_array(losses: Iterable[float]) -> Array:
    return np.fromiter(losses, dtype=float)


def _run_batch(curves: Sequence[_EncodedCurve], size: int, seats: int) -> Sequence[Array]:
    """Return the bucket probabilities for each requested epoch of each curve."""
    batch, questions = len(curves), max(len(curve.asked) for curve in curves)
    feed = {
        "points": np.zeros((batch, size, encoding.POINT), np.float32),
        "there": np.zeros((batch, size), np.float32),
        "whole": np.array([curve.whole for curve in curves], np.float32),
        "others": np.zeros((batch, seats, encoding.OTHER), np.float32),
        "met": np.zeros((batch, seats), np.float32),
        "asked": np.zeros((batch, questions, encoding.ASKED), np.float32),
    }
    for row, curve in enumerate(curves):
        feed["points"][row, : len(curve.points)] = curve.points
        feed["there"][row, : len(curve.points)] = 1
        feed["others"][row, : len(curve.others)] = curve.others
        feed["met"][row, : len(curve.others)] = 1
        feed["asked"][row, : len(curve.asked)] = curve.asked
    answer = run_network(feed).astype(float)
    return [answer[row, : len(curve.asked)] for row, curve in enumerate(curves)]


@cache
def _sharpen_levels(spread: float) -> Array:
    """Return the levels whose quantiles stand for LEVELS after sharpening, on a normal's scale."""
    normal = NormalDist()
    return np.array([normal.cdf(spread * normal.inv_cdf(level)) for level in LEVELS])


def _make_forecast(history: History, curve: _EncodedCurve, run_network: Array) -> Forecast | None:
    levels = _sharpen_levels(_WITH_OTHERS if len(curve.others) else _ALONE)
    losses = encoding.compute_quantiles(run_network, curve.frame, levels)
    if not np.isfinite(losses).all():
        return None
    rows = tuple(tuple(row) for row in losses.tolist())
    return Forecast(tuple(history.horizons), rows)
