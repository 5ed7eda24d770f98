"""Sobol: a quasi-random sequence that fills the space evenly, shifted by the study's seed.

Sobol, 1967, with the direction numbers of Joe and Kuo, 2008, from scipy. The shift is one random
offset for each dimension, modulo 1: it keeps the sequence even and makes seeds differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.core.base_part import BasePart
from paceline.core.ports import see_nothing
from paceline.core.rng import stream
from paceline.core.space import Space
from paceline.generators.initial import InitialConfigs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.values import Config
    from paceline.core.views import StudyView


class Sobol(BasePart):
    """The n-th config is the n-th point of the sequence, after the configs of `first`.

    Dimensions that these leave out have the values of the sequence's first point.
    """

    from_study = ("space",)
    pure = True
    see = staticmethod(see_nothing)

    def __init__(
        self,
        *,
        space: dict[str, Any] | None = None,
        first: list[dict[str, Any]] | None = None,
    ) -> None:
        self._space = Space(space or {})
        self._first = InitialConfigs(self._space, first)
        # The sequence so far: a cache of a pure function, not memory.
        self._points: Sequence[Sequence[float]] = ()
        # The policy may choose among the configs after those of the user.
        self.ordered = len(self._first)

    def propose(self, number: int, study: StudyView) -> Config | None:
        dimensions = self._space.dimensions
        if not dimensions:
            return self._space.config([])
        rng = stream(study.spec.seed, "sobol")
        shift = [rng.random() for _ in dimensions]
        point = self._get_point(max(number - len(self._first), 0), len(dimensions))
        values = {
            each.name: each.at((share + offset) % 1.0)
            for each, share, offset in zip(dimensions, point, shift, strict=True)
        }
        if number < len(self._first):
            return self._first.make_config(number, lambda dimension: values[dimension.name])
        return self._space.fill(lambda dimension: values[dimension.name])

    def _get_point(self, number: int, dimensions: int) -> Sequence[float]:
        if number >= len(self._points):
            from scipy.stats import qmc  # on use: the import takes half a second

            sequence = qmc.Sobol(dimensions, scramble=False)
            self._points = sequence.random_base2(max(6, (number + 1).bit_length())).tolist()
        return self._points[number]
