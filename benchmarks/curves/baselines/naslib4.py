"""NASLib's variant of the published ensemble: four families, other bounds, shorter chains.

Differences: loglog linear, log power, MMF and a Hill curve with a product instead of a power; fits
start from all ones within bounds, weights come from non-negative least squares, recency does not
count, and every curve must rise throughout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from paceline.curves.ensemble.families import FAMILIES, Family
from paceline.curves.published.weighted_sum import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paceline.curves.arrays import Array


def _hill3(x: Array, theta: Array, eta: Array, kappa: Array) -> Array:
    return theta * x**eta / (kappa * eta + x**eta)


_BY_NAME: Mapping[str, Family] = {family.name: family for family in FAMILIES}
_FREE = (None, None)
_POSITIVE = (1e-9, None)
_KEPT = (
    (_BY_NAME["loglog linear"], (_POSITIVE, _POSITIVE)),
    (_BY_NAME["log power"], (_FREE, _FREE, _FREE)),
    (_BY_NAME["mmf"], (_FREE, _FREE, _FREE, _FREE)),
    (_BY_NAME["hill3"]._replace(formula=_hill3), (_POSITIVE, _FREE, _POSITIVE)),
)

NASLIB4 = Settings(
    families=tuple(family._replace(start=tuple(np.ones(len(family.start)))) for family, _ in _KEPT),
    walkers=50,
    burn_in=500,
    recency=False,
    hard=True,
    bounds={family.name: bounds for family, bounds in _KEPT},
)
