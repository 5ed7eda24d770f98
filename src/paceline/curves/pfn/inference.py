"""From histories to forecasts through the pre-trained network, one pass for a batch.

Knows how curves are put into a batch and what comes out. Needs numpy, so it is imported on use.
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
from paceline.core.values import LEVELS, Forecast
from paceline.curves.pfn import encoding

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from paceline.core.ports import History
    from paceline.curves.pfn.encoding import Array, Frame


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


# Curves are padded to one of these, by their own length alone: sums of another length round
# otherwise, and an answer must not depend on the rest of the batch.
_SIZES = (8, 16, 32, encoding.POINTS)
_CHUNK = 32
# The network is too careful on recorded curves: quantiles are drawn so far towards the median, for
# a curve alone and for one with others beside it. Measured without the families that are held out.
_ALONE, _TOLD = 0.82, 0.92


class _Curve(NamedTuple):
    """A curve as the network sees it."""

    frame: Frame
    points: Array
    whole: Array
    others: Array
    asked: Array


def forecasts(histories: Sequence[History], others: int) -> Sequence[Forecast | None]:
    """Return a forecast for each curve, told of so many other trials of its study."""
    curves = [_curve(history, others) for history in histories]
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
            rows = _ask(known, size, seats)
            for number, curve, row in zip(some, known, rows, strict=True):
                answers[number] = _answer(histories[number], curve, row)
    return answers


def _curve(history: History, most: int) -> _Curve | None:
    values = np.array(history.losses, dtype=float)
    if not len(values):
        return None
    points = encoding.Points(values)
    frame = encoding.frame_of(points)
    if frame is None:
        return None
    epochs = float(max(history.epochs, len(values), *history.horizons))
    others = np.array(
        [
            token
            for other in history.others[:most]
            if (token := encoding.other_token(_values(other.losses), frame, len(values), epochs))
            is not None
        ]
    ).reshape(-1, encoding.OTHER)
    return _Curve(
        frame,
        encoding.point_tokens(points, frame, epochs),
        encoding.whole_token(points, frame, epochs, history.bounds, others),
        others,
        encoding.asked_tokens(history.horizons, len(values), epochs),
    )


def _values(losses: Iterable[float]) -> Array:
    return np.fromiter(losses, dtype=float)


def _ask(curves: Sequence[_Curve], size: int, seats: int) -> Sequence[Array]:
    """Return the chances for each question of each curve."""
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
    answer = chances(feed).astype(float)
    return [answer[row, : len(curve.asked)] for row, curve in enumerate(curves)]


@cache
def _drawn(spread: float) -> Array:
    """Return the levels whose quantiles are told as those of LEVELS, on a normal's scale."""
    normal = NormalDist()
    return np.array([normal.cdf(spread * normal.inv_cdf(level)) for level in LEVELS])


def _answer(history: History, curve: _Curve, chances: Array) -> Forecast | None:
    levels = _drawn(_TOLD if len(curve.others) else _ALONE)
    losses = encoding.quantiles_of(chances, curve.frame, levels)
    if history.bounds is not None:
        losses = np.clip(losses, *history.bounds)
    if not np.isfinite(losses).all():
        return None
    rows = tuple(tuple(row) for row in losses.tolist())
    return Forecast(tuple(history.horizons), rows)
