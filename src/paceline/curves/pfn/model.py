"""Forecasts by a small network that was trained on millions of synthetic curves.

Rule: a curve, measured from its last value in units of its own spread, and the epochs asked for go
through the network once; out come the chances of 257 changes. `pfn` looks at one curve alone,
`pfn_study` at other trials of the study too. `docs/model-card-pfn.md` says what it was trained on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.ports import History
    from paceline.core.values import Forecast


class Pfn:
    """One forward pass for a batch of curves, each for itself."""

    others = 0

    def forecast(self, histories: Sequence[History]) -> Sequence[Forecast | None]:
        # On use: a study whose policy never asks needs no numpy and no network.
        from paceline.curves.pfn.inference import forecasts

        return forecasts(histories, self.others)


class PfnStudy(Pfn):
    """The same network, told how other trials of the study went."""

    others = 16
