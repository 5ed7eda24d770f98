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
from paceline.policies.planner.network import Layers, compute_chances
from paceline.policies.planner.record import HORIZONS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from paceline.policies.planner.record import StudyRecord

    Floats = NDArray[np.float64]

# The number of earlier trials that tell what a new one is worth.
RECENT = 24
# The number of trials that tell how well chances at first looks hold.
DEEPENED = 16
# Without a target: how far the imagined target is below the best loss, in units of all gain so far.
_STEPS = (0.002, 0.006, 0.015, 0.03, 0.06, 0.1, 0.16, 0.25, 0.4, 0.7, 1.2)
# The most paused trials whose index is computed again at once.
_BATCH = 48
# Indexes are computed again when this share more trials were opened.
_MORE = 0.1
# A running trial is paused only for one whose index is larger by this factor.
_MARGIN = 1.1


def is_better_paused(own: float, other: float) -> bool:
    """Say whether a running trial should make way for another use of its slot."""
    return other > _MARGIN * own


def _is_stale(before: tuple[int, int, float], now: tuple[int, int, float]) -> bool:
    """Say whether the target is another, or notably more trials or less time is there."""
    if before[1] != now[1] or now[0] > (1 + _MORE) * before[0]:
        return True
    return now[2] < 0.97 * before[2] if before[2] < math.inf else now[2] < math.inf


class RankingSettings(NamedTuple):
    """The numbers behind the ranking."""

    # The share of first chances that is expected to be left after further looks.
    new_share: float = 1.0
    # Without a target: the chance with which the imagined target is within reach.
    reach: float = 0.5
    # The weight of that expectation, in trials.
    hope_weight: float = 8.0


class Ranking:
    """The index of every live trial, and of a new one."""

    def __init__(
        self, record: StudyRecord, networks: Sequence[Layers], settings: RankingSettings
    ) -> None:
        self._record = record
        self._networks = networks
        self._settings = settings
        self._pace = np.zeros(64)
        self._paused = np.full(64, -math.inf)
        self._recent: deque[int] = deque(maxlen=RECENT)
        self._deepened: deque[int] = deque(maxlen=DEEPENED)
        # The share of first chances that is left after further looks, in this study.
        self.hope = 1.0
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
        # The trial, target and look whose chances were computed last, and these.
        self._latest: tuple[tuple[int, float, int], Floats, Floats] | None = None
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
        while trial >= len(self._pace):
            self._pace = np.concatenate([self._pace, np.zeros(len(self._pace))])
            self._paused = np.concatenate([self._paused, np.full(len(self._paused), -math.inf)])
        self._running[trial] = None

    def note_pace(self, trial: int, seconds: float) -> None:
        """Note the mean seconds of an epoch of a trial."""
        self._pace[trial] = seconds

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

    def note_deepened(self, trial: int) -> None:
        """Note a trial that has had further looks."""
        self._deepened.append(trial)

    def pause(self, trial: int) -> None:
        """Note that a trial is paused; its index is computed with what a start costs."""
        self._running.pop(trial, None)
        known = self._latest
        if known is not None and known[0] == (trial, self.target, self._record.level(trial)):
            chances, costs = self._weigh(*known[1:], paused=True, spent=0.0)
            (self._paused[trial],) = compute_indexes(chances, costs)
        else:
            (self._paused[trial],) = self._compute([trial], paused=True)

    def resume(self, trial: int) -> None:
        """Note that a trial runs again."""
        self._paused[trial] = -math.inf
        self._running[trial] = None

    def end(self, trial: int) -> None:
        """Note that a trial has ended."""
        self._paused[trial] = -math.inf
        self._running.pop(trial, None)

    # What follows

    def update(self, left: float) -> None:
        """Take note of the time left, and aim anew if there is no target."""
        self.left = left
        if self._fixed is None:
            self._aim()

    def rank_running(self, trial: int) -> float:
        """Return the index of a trial that runs, without a start."""
        level = self._record.level(trial)
        chances, seconds = self._ask([trial], [level], self.target)
        self._latest = ((trial, self.target, level), chances, seconds)
        (index,) = compute_indexes(*self._weigh(chances, seconds, paused=False, spent=0.0))
        return float(index)

    @property
    def best_paused(self) -> tuple[float, int]:
        """The largest index of a paused trial, and its number; minus infinity: there is none."""
        best = int(np.argmax(self._paused))
        return float(self._paused[best]), best

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
            paused = np.flatnonzero(self._paused > -math.inf)
            if len(paused) > _BATCH:
                paused = paused[np.argsort(-self._paused[paused], kind="stable")[:_BATCH]]
            if len(paused):
                self._paused[paused] = self._compute(paused.tolist(), paused=True)
        if self._new_stamp is None or _is_stale(self._new_stamp, stamp):
            self._new_index = self._rank_new()
            self._new_stamp = stamp if self._recent else None

    def _rank_new(self) -> float:
        """Return the index of a new trial, by what recent ones were worth at their first look."""
        record = self._record
        if not self._recent or self.target == -math.inf:
            return math.inf
        recent = list(self._recent)
        first_s = self.setup + float(np.maximum(self._pace[recent], 1e-9).mean())
        chances, costs = self._profile(recent, [0] * len(recent), paused=False, spent=first_s)
        at_once = record.estimate_at_once(self.target) if first_s <= self.left else 0.0
        self.hope = self._measure_hope(float(chances[:, -1].mean()))
        return self.hope * compute_new_index(chances, costs, first_s, at_once)

    def _measure_hope(self, usual: float) -> float:
        """Return which share of the chances at first looks is left after further looks.

        Right chances neither rise nor fall on average as a trial trains on. Where they fall in this
        study, first looks are too hopeful, and so is the index of a new trial.
        """
        settings, trials = self._settings, list(self._deepened)
        weight = settings.hope_weight * usual
        before, after = weight, weight * settings.new_share
        if trials and settings.hope_weight < 1e6:
            levels = [self._record.level(trial) for trial in trials]
            first, _ = self._ask(trials, [0] * len(trials), self.target)
            now, _ = self._ask(trials, levels, self.target)
            before += float(first[:, -1].sum())
            after += float(now[:, -1].sum())
        return min(1.0, after / max(before, 1e-12))

    def _compute(self, trials: list[int], *, paused: bool) -> Floats:
        levels = [self._record.level(trial) for trial in trials]
        chances, costs = self._profile(trials, levels, paused=paused, spent=0.0)
        return compute_indexes(chances, costs)

    def _profile(
        self, trials: list[int], levels: list[int], *, paused: bool, spent: float
    ) -> tuple[Floats, Floats]:
        """Return chances and costs by horizon of trials at looks."""
        return self._weigh(*self._ask(trials, levels, self.target), paused=paused, spent=spent)

    def _weigh(
        self, chances: Floats, seconds: Floats, *, paused: bool, spent: float
    ) -> tuple[Floats, Floats]:
        """Return the chances in the time left, and their costs, with a start if paused."""
        start = self.setup if paused else 0.0
        if self.left < math.inf:
            left = np.full(len(chances), max(0.0, self.left - start - spent))
            chances, seconds = cut_at(chances, seconds, left)
        return chances, compute_costs(chances, seconds, np.full(len(chances), start))

    def _ask(self, trials: list[int], levels: list[int], target: float) -> tuple[Floats, Floats]:
        """Return chances by horizon, and the seconds until then."""
        record = self._record
        if self.spy is not None:
            self.spy(trials, levels, target)
        if target == -math.inf:  # no trial has reported a number yet
            chances = np.zeros((len(levels), HORIZONS))
        else:
            chances = compute_chances(self._networks, *record.make_inputs(trials, levels, target))
        looks, horizons = record.look_array, [record.horizons[level] for level in levels]
        ahead = looks[horizons] - looks[levels][:, None]
        paces = np.maximum(self._pace[trials], 1e-9)
        return chances, ahead * paces[:, None]

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
        chances, seconds = self._ask(trials, levels, target)
        if self.left < math.inf:
            left = np.full(len(trials), max(0.0, self.left))
            chances, _ = cut_at(chances, seconds, left)
        return float(chances[:, -1].max())
