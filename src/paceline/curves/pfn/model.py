"""PFN: forecasts by a small network that was trained on millions of synthetic curves.

Rule: a curve, measured from its last value in units of its own spread, and the requested epochs
pass through the network once; the output is a probability for each of 257 buckets of change and for
"not a number". `pfn` sees one curve, `pfn_study` also other trials of the study.

Adriaensen et al., "Efficient Bayesian Learning Curve Extrapolation using Prior-Data Fitted
Networks", NeurIPS 2023. Different from it: another prior, scale-free tokens, and other trials as
input; see `docs/model-card-pfn.md`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.base_part import BasePart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.forecast_quantiles import Forecast
    from paceline.core.ports import History


class Pfn(BasePart):
    """Forecasts each curve of a batch by itself, in one forward pass."""

    others = 0

    def forecast(self, histories: Sequence[History]) -> Sequence[Forecast | None]:
        # Imported on use: a study without forecasts needs neither numpy nor the network.
        from paceline.curves.pfn.inference import forecast_batch

        return forecast_batch(histories, self.others)


class PfnStudy(Pfn):
    """The same network, which also sees other trials of the study."""

    others = 16
