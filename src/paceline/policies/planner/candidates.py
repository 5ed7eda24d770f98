"""Candidates: which of the generator's next configs a new trial gets.

The config whose neighbours among the trials have the largest indexes, by a mean weighted by
distance. A draw is added that is the wider the fewer neighbours there are (Thompson, "On the
Likelihood that One Unknown Probability Exceeds Another", 1933), so that what is unknown is tried
too. Knows configs and indexes; opens nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from paceline.core.rng import stream
from paceline.policies.planner.record import NORMAL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paceline.core.values import Config
    from paceline.policies.planner.ranking import Ranking
    from paceline.policies.planner.record import StudyRecord

# With fewer trials than this, the next config is taken.
_FEWEST = 6
# The latest trials that are compared.
_COMPARED = 256


class CandidateSettings(NamedTuple):
    """The numbers behind the choice."""

    # Among how many configs a new trial is chosen.
    window: int = 64
    # The distance of configs at which a trial's weight has fallen to 0.6.
    width: float = 0.12
    # The weight of an average trial that each config has besides its neighbours.
    prior: float = 0.5
    # The spread of the draw, for a config with one neighbour.
    doubt: float = 0.5


class Candidates:
    """Chooses the config of a new trial."""

    def __init__(
        self, record: StudyRecord, ranking: Ranking, settings: CandidateSettings, seed: int = 0
    ) -> None:
        self._record = record
        self._ranking = ranking
        self._settings = settings
        self._seed = seed

    def choose(self, configs: Mapping[int, Config]) -> int:
        """Return the number of the most promising config; of equal ones, the first."""
        record, settings = self._record, self._settings
        numbers = list(configs)
        if len(numbers) < 2 or record.count_peers(0) < _FEWEST:
            return numbers[0]
        trials, squares = record.neighbours.compare(configs, _COMPARED)
        known = record.levels[trials] >= 0
        trials, squares = trials[known], squares[:, known]
        if len(trials) < _FEWEST:
            return numbers[0]
        indexes = self._ranking.indexes[trials]
        places = np.empty(len(trials))
        places[np.argsort(-indexes, kind="stable")] = np.arange(len(trials)) + 0.5
        ranks = NORMAL[(places / len(trials) * len(NORMAL)).astype(np.int64)]
        weights = np.exp(-0.5 * squares / settings.width**2)
        sums = weights.sum(axis=1) + settings.prior
        rng = stream(self._seed, "candidate", record.opened)
        draws = np.array([rng.gauss(0.0, 1.0) for _ in numbers])
        scores = weights @ ranks / sums + settings.doubt * draws / np.sqrt(sums)
        # Rounded, so that the last bits of a sum decide nothing.
        return numbers[int(np.argmin(scores.round(6)))]
