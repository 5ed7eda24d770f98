"""Requests to curve models: at which epochs, and within which bounds.

The only place that calls a curve model, so that every forecast stays inside the metric's range.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from paceline.core.forecast_quantiles import HORIZONS, thin_horizons

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.forecast_quantiles import Forecast
    from paceline.core.ports import CurveModel, History


def forecast_curves(model: CurveModel, histories: Sequence[History]) -> list[Forecast | None]:
    """Return the model's forecast of each curve, inside the curve's bounds; None if it has none.

    A model whose curves are smooth forecasts some of many requested epochs: chances between them
    are interpolated. A model with `every_epoch` forecasts them all.
    """
    if not getattr(model, "every_epoch", False):
        histories = [
            replace(history, horizons=thin_horizons(history.horizons))
            if len(history.horizons) > HORIZONS
            else history
            for history in histories
        ]
    forecasts = model.forecast(histories)
    return [
        forecast.clip(history.bounds) if forecast and history.bounds else forecast
        for history, forecast in zip(histories, forecasts, strict=True)
    ]
