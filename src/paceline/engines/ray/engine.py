"""The Ray engine: the same attempts, facts and orders as on one machine, on the nodes of a cluster.

Knows that its workers and slots are a tenancy's. Everything an attempt does and says is known
elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.engines.local.engine import LocalEngine
from paceline.engines.ray.forecasts import AT_ONCE

if TYPE_CHECKING:
    from paceline.core.ports import Adviser
    from paceline.core.values import StudySpec
    from paceline.engines.local.shelf import Shelf
    from paceline.engines.local.staff import Patience
    from paceline.engines.ray.tenancy import Tenancy


class RayEngine(LocalEngine):
    """Carries decisions out on a cluster, and ends its tenancy there."""

    # They are made on the cluster, and only waited for here.
    _forecasts_at_once = AT_ONCE

    def __init__(
        self,
        spec: StudySpec,
        tenancy: Tenancy,
        *,
        shelf: Shelf,
        adviser: Adviser | None = None,
        patience: Patience | None = None,
        began: float | None = None,
    ) -> None:
        self._tenancy = tenancy
        super().__init__(
            spec,
            tenancy.nests,
            tenancy.places,
            shelf=shelf,
            adviser=adviser,
            patience=patience,
            began=began,
        )

    def close(self, grace_s: float | None = None) -> None:
        """End everything that still runs, and give the cluster back what was held."""
        if self._closed:
            return
        self._tenancy.rest()
        try:
            super().close(grace_s)
        finally:
            self._tenancy.end()
