"""The ranking: which trial, or a new one, makes the most of the next slot-second.

Knows the record of the study, the network's chances and the index. Keeps the index of each trial
as it was last computed, and computes it again when the study has changed. Does not know slots,
attempts or the log.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from paceline.policies.planner.index import (
    compute_costs,
    compute_indexes,
    compute_new_index,
    cut_at,
)
from paceline.policies.planner.looks import HORIZONS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from paceline.policies.planner.network import Networks
    from paceline.policies.planner.record import StudyRecord

    Floats = NDArray[np.float64]

# Without a target: how far the imagined target is below the best loss, in units of all gain so far.
_STEPS = (0.002, 0.006, 0.015, 0.03, 0.06, 0.1, 0.16, 0.25, 0.4, 0.7, 1.2)
# The most paused trials whose index is computed again at once.
_BATCH = 256
# Indexes are computed again when this share more trials were opened.
_MORE = 0.1
# Once this many trials are at a look, those that are clearly worse than a hopeless one are not
# computed, but for one in `_AUDIT`. Hopeless: the best other use of the slot has an index larger by
# the factor `_HOPELESS`.
_CROWD, _AUDIT, _HOPELESS = 64, 8, 3.0


class RankingSettings(NamedTuple):
    """The numbers behind the ranking."""

    # The share of the chances at first looks by which a new trial counts.
    new_share: float = 0.8
    # A running trial is paused only for one whose index is larger by this factor.
    margin: float = 1.3
    # Without a target: the chance with which the imagined target is within reach.
    reach: float = 0.5
    # The number of earlier trials that tell what a new one is worth.
    recent: int = 64


class Guard:
    """Scores the chances of next looks as they come true, and says how far to trust them.

    Where more successes were expected than came, trials are paused less readily and new ones count
    less, down to training each trial to its end.
    """

    def __init__(self) -> None:
        self.expected = self.seen = 0.0
        self._stated: dict[int, tuple[float, float]] = {}

    def state(self, trial: int, target: float, chance: float) -> None:
        """Note the chance that a trial reaches a loss by its next look."""
        self._stated[trial] = (target, chance)

    def score(self, trial: int, best: float) -> None:
        """Note what a trial has reached at the look for which a chance was stated."""
        target, chance = self._stated.pop(trial, (-math.inf, 0.0))
        self.expected += chance
        self.seen += chance > 0.0 and best <= target

    @property
    def trust(self) -> float:
        """The successes that came for each that was expected, at most 1; one more of both."""
        return min(1.0, (1.0 + self.seen) / (1.0 + self.expected))


class Assessment(NamedTuple):
    """Chances of trials by horizon, the seconds until then, and the expected cost."""

    chances: Floats
    seconds: Floats
    costs: Floats


class Ranking:
    """The index of every live trial, and of a new one."""

    def __init__(
        self,
        record: StudyRecord,
        networks: Networks,
        settings: RankingSettings,
        opening: Networks | None = None,
    ) -> None:
        self._record = record
        self._networks = networks
        self._opening = opening
        self._settings = settings
        # By trial: the index if it is paused, else minus infinity; whether that is only a bound.
        self._paused = np.full(64, -math.inf)
        self._is_bound = np.zeros(64, dtype=bool)
        # By trial: the index that was computed last.
        self.indexes = np.zeros(64)
        # The largest index of a paused trial, and its number; minus infinity: there is none.
        self.best_paused = (-math.inf, 0)
        # By look: the lowest loss that was hopeless, with its index; the highest that was not.
        self._hopeless: dict[int, tuple[float, float]] = {}
        self._hopeful: dict[int, float] = {}
        self._screened = 0
        self._recent: deque[int] = deque(maxlen=settings.recent)
        self.guard = Guard()
        self._running: dict[int, None] = {}
        self._setup_total, self._setup_count = 0.0, 0
        # The loss to reach, and its version; the state of the study when indexes were computed.
        self.target = -math.inf
        self._fixed: float | None = None
        self._lowest = -math.inf
        self._stamp = (0, 0, math.inf)
        self._version = 0
        self._new_index = math.inf
        self._new_stamp: tuple[int, int, float] | None = None
        self._aim_stamp: tuple[float, int, float] | None = None
        self.left = math.inf
        # The trial, target and look that were assessed last, and the assessment.
        self._latest: tuple[tuple[int, float, int], Assessment] | None = None
        # For training: called with (trials, levels, target) whenever chances are computed.
        self.spy: Callable[[list[int], list[int], float], None] | None = None

    # What happens

    def set_target(self, target: float | None, lowest: float = -math.inf) -> None:
        """Set the loss to reach; None: to be better than the best so far, down to the lowest."""
        self._fixed = target
        self._lowest = lowest
        self._record.is_target_given = target is not None
        if target is not None:
            self.target = target

    def open(self, trial: int) -> None:
        """Note a new trial, which runs."""
        while trial >= len(self._paused):
            self._paused = np.concatenate([self._paused, np.full(len(self._paused), -math.inf)])
            self._is_bound = np.concatenate([self._is_bound, np.zeros_like(self._is_bound)])
            self.indexes = np.concatenate([self.indexes, np.zeros_like(self.indexes)])
        self._running[trial] = None

    def note_setup(self, seconds: float) -> None:
        """Note the seconds from a launch to the first epoch."""
        self._setup_total += seconds
        self._setup_count += 1

    @property
    def setup(self) -> float:
        """The mean seconds from a launch to the first epoch."""
        return self._setup_total / self._setup_count if self._setup_count else 0.0

    def note_first_look(self, trial: int) -> None:
        """Note a trial that has had its first look."""
        self._recent.append(trial)

    def pause(self, trial: int, bound: float | None = None) -> None:
        """Note that a trial is paused; its index is computed with what a start costs, or bound."""
        self._running.pop(trial, None)
        known = self._latest
        if bound is not None:
            index = bound
        elif known is not None and known[0] == (trial, self.target, self._record.level(trial)):
            (index,) = _index(self._cut(known[1], self.setup), self.setup)
        else:
            (index,) = self._rank_paused([trial])
        self._paused[trial] = self.indexes[trial] = index
        self._is_bound[trial] = bound is not None
        if (-index, trial) < (-self.best_paused[0], self.best_paused[1]):
            self.best_paused = (float(index), trial)

    def resume(self, trial: int) -> None:
        """Note that a trial runs again."""
        self._forget(trial)
        self._running[trial] = None

    def end(self, trial: int) -> None:
        """Note that a trial has ended."""
        self._forget(trial)
        self._running.pop(trial, None)

    def _forget(self, trial: int) -> None:
        self._paused[trial] = -math.inf
        self._is_bound[trial] = False
        if self.best_paused[1] == trial:
            self._find_best_paused()

    # What follows

    def update(self, left: float) -> None:
        """Take note of the time left, and aim anew if there is no target."""
        self.left = left
        if self._fixed is None:
            self._aim()

    def rank_running(self, trial: int) -> float:
        """Return the index of a trial that runs, without a start."""
        level = self._record.level(trial)
        found = self._assess([trial], [level], self.target)
        self._latest = ((trial, self.target, level), found)
        (index,) = _index(self._cut(found, 0.0), 0.0)
        self.guard.state(trial, self.target, float(found.chances[0, 0]))
        self.indexes[trial] = index
        return float(index)

    def screen(self, trial: int, best: float) -> float | None:
        """Return a bound on the index of a trial that is clearly hopeless; None: compute it."""
        level = self._record.level(trial)
        known = self._hopeless.get(level)
        if known is None or best <= known[0] or self._record.count_peers(level) < _CROWD:
            return None
        self._screened += 1
        return None if self._screened % _AUDIT == 0 else known[1]

    def note_index(self, trial: int, best: float, own: float, other: float) -> None:
        """Note how the index of a trial compares, for trials that are worse at the same look."""
        level = self._record.level(trial)
        known = self._hopeless.get(level)
        if own * _HOPELESS >= other:
            self._hopeful[level] = max(best, self._hopeful.get(level, -math.inf))
            if known is not None and known[0] <= best:
                del self._hopeless[level]
        elif best > self._hopeful.get(level, -math.inf) and (known is None or best < known[0]):
            self._hopeless[level] = (best, own)

    def should_pause(self, own: float, other: float) -> bool:
        """Say whether a running trial should make way for another use of its slot."""
        return other * self.guard.trust > self._settings.margin * own

    def _find_best_paused(self) -> None:
        best = int(np.argmax(self._paused))
        self.best_paused = (float(self._paused[best]), best)

    @property
    def new_index(self) -> float:
        """The index of a new trial; infinite as long as no trial has had a look."""
        return self._new_index

    def count_paused(self) -> int:
        """Return the number of paused trials."""
        return int((self._paused > -math.inf).sum())

    def find_chance(self, trial: int) -> float:
        """Return a trial's chance to reach the target in the time left."""
        return self._find_chance([trial], self.target)

    def refresh(self) -> None:
        """Compute the indexes of paused trials and of a new one again, if they are out of date."""
        stamp = (self._record.opened, self._version, self.left)
        if _is_stale(self._stamp, stamp):
            self._stamp = stamp
            self._hopeless.clear()
            self._hopeful.clear()
            self._record.refresh_ranks()
            self._rank_best(_BATCH)
        while self._is_bound[self.best_paused[1]]:
            self._rank_best(_CROWD)
        if self._new_stamp is None or _is_stale(self._new_stamp, stamp):
            self._new_index = self._rank_new()
            self._new_stamp = stamp if self._recent else None

    def _rank_best(self, most: int) -> None:
        """Compute the largest indexes of paused trials again."""
        paused = np.flatnonzero(self._paused > -math.inf)
        if len(paused) > most:
            paused = paused[np.argsort(-self._paused[paused], kind="stable")[:most]]
        if len(paused):
            self._paused[paused] = self.indexes[paused] = self._rank_paused(paused.tolist())
            self._is_bound[paused] = False
            self._find_best_paused()

    def _rank_new(self) -> float:
        """Return the index of a new trial, by what recent ones were worth at their first look."""
        record = self._record
        if not self._recent or self.target == -math.inf:
            return math.inf
        recent = list(self._recent)
        first_s = self.setup + float(np.maximum(record.pace[recent], 1e-9).mean())
        found = self._cut(self._assess(recent, [0] * len(recent), self.target), first_s)
        at_once = self._find_opening_chance() if first_s <= self.left else 0.0
        share = self._settings.new_share * self.guard.trust
        return compute_new_index(found.chances * share, found.costs, first_s, at_once)

    def _find_opening_chance(self) -> float:
        """Return the chance that a new trial reaches the target at its first look."""
        if self._opening is None:
            return 0.0
        inputs = self._record.make_opening_inputs(self.target)[None]
        (chance,) = self._opening.compute_chances(inputs, np.zeros((1, 1, 1)))[0]
        return float(chance)

    def _rank_paused(self, trials: list[int]) -> Floats:
        """Return the indexes of paused trials, with what a start costs."""
        levels = [self._record.level(trial) for trial in trials]
        found = self._assess(trials, levels, self.target)
        return _index(self._cut(found, self.setup), self.setup)

    def _cut(self, found: Assessment, spent: float) -> Assessment:
        """Return what can be reached in the time left, after some seconds."""
        if self.left == math.inf:
            return found
        left = np.full(len(found.chances), max(0.0, self.left - spent))
        chances, seconds = cut_at(found.chances, found.seconds, left)
        return Assessment(chances, seconds, compute_costs(chances, seconds))

    def _assess(self, trials: Sequence[int], levels: Sequence[int], target: float) -> Assessment:
        """Return the chances of trials at looks."""
        record = self._record
        if self.spy is not None:
            self.spy(list(trials), list(levels), target)
        seconds = record.compute_seconds(trials, levels)
        if target == -math.inf:  # no trial has reported a number yet
            chances = np.zeros((len(levels), HORIZONS))
        else:
            chances = self._networks.compute_chances(*record.make_inputs(trials, levels, target))
        return Assessment(chances, seconds, compute_costs(chances, seconds))

    def _aim(self) -> None:
        """Set the target to what the best trials can just reach in the time left."""
        record = self._record
        best = record.best_loss
        if best == math.inf:
            return
        before, stamp = self._aim_stamp, (best, record.opened, self.left)
        if before is not None and before[0] == best:
            then, now = (before[1], 0, before[2]), (stamp[1], 0, stamp[2])
            if not _is_stale(then, now):
                return
        self._aim_stamp = stamp
        gain = record.first_loss - best
        gain = gain if 0.0 < gain < math.inf else max(abs(best), 1e-9)
        paused = np.flatnonzero(self._paused > -math.inf)
        leading = paused[np.argsort(-self._paused[paused], kind="stable")[:6]].tolist()
        trials = [each for each in self._running if record.level(each) >= 0] + leading
        low, high = 0, len(_STEPS) - 1
        while trials and low < high:
            middle = (low + high + 1) // 2
            if self._find_chance(trials, best - _STEPS[middle] * gain) >= self._settings.reach:
                low = middle
            else:
                high = middle - 1
        target = max(best - _STEPS[low] * gain, min(self._lowest, best))
        if target != self.target:
            self.target = target
            self._version += 1

    def _find_chance(self, trials: list[int], target: float) -> float:
        """Return the best chance of these trials to reach a loss in the time left."""
        levels = [self._record.level(trial) for trial in trials]
        found = self._cut(self._assess(trials, levels, target), 0.0)
        return float(found.chances[:, -1].max())


def _index(found: Assessment, start: float) -> Floats:
    """Return the indexes of trials that need a start of this many seconds."""
    return compute_indexes(found.chances, found.costs + start)


def _is_stale(before: tuple[int, int, float], now: tuple[int, int, float]) -> bool:
    """Say whether the target is another, or notably more trials or less time is there."""
    if before[1] != now[1] or now[0] > (1 + _MORE) * before[0]:
        return True
    return now[2] < 0.97 * before[2] if before[2] < math.inf else now[2] < math.inf
