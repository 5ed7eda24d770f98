"""The record of a study: what each trial had reached at each look, as inputs of the network.

A look is an epoch at which a trial is judged: 1, 2, 3, 4, 5, 7, 9, 12, … Knows losses, ranks among
the trials that reached the same look, and what deeper trials gained from there on. Does not know
chances or decisions.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from paceline.policies.planner.neighbours import Neighbours

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from paceline.core.values import Value

    Floats = NDArray[np.float64]

# Chances are computed for this many later looks at most.
HORIZONS = 10
# The number of the deepest trials that tell what to expect of later epochs.
DEEP = 16
# The ratio of two looks that follow each other.
_RATIO = 1.35
# Gaps and gains are measured in units of the study's first gap, and not below this.
_FLOOR = 1e-4
_LOG_FLOOR = math.log(_FLOOR)
# A gap is at most this many units.
_MOST = 5.0
# Distances of configs: close ones, the width of a broad neighbourhood, and almost equal ones.
_CLOSE, _BROAD, _TWIN = 0.08, 0.25, 0.02
TRIAL_INPUTS = 45
HORIZON_INPUTS = 9

# The quantiles of the normal distribution at (i + 0.5) / 2000.
_NORMAL = [NormalDist().inv_cdf((i + 0.5) / 2000) for i in range(2000)]


def list_looks(epochs: int) -> list[int]:
    """Return the epochs at which trials are judged; the last one is the last epoch.

    >>> list_looks(20)
    [1, 2, 3, 4, 5, 7, 9, 12, 16, 20]
    """
    looks = [1]
    while looks[-1] < epochs:
        looks.append(min(epochs, max(looks[-1] + 1, round(_RATIO * looks[-1]))))
    return looks


def list_horizons(looks: int) -> list[list[int]]:
    """Return for each look the later looks to ask for; repeats of the last one fill the row.

    >>> list_horizons(3)
    [[1, 2, 2, 2, 2, 2, 2, 2, 2, 2], [2, 2, 2, 2, 2, 2, 2, 2, 2, 2], [2, 2, 2, 2, 2, 2, 2, 2, 2, 2]]
    """
    rows = []
    for level in range(looks):
        ahead = looks - 1 - level
        steps = list(range(1, ahead + 1))
        if ahead > HORIZONS:
            spread = np.round(np.geomspace(1, ahead, HORIZONS)).astype(int)
            steps = sorted(set(spread.tolist()))
        row = [level + step for step in steps]
        rows.append(row + [looks - 1] * (HORIZONS - len(row)))
    return rows


def find_normal_quantile(share: float) -> float:
    """Return the normal quantile of a share between 0 and 1, in steps of 1/2000."""
    return _NORMAL[min(max(int(share * 2000), 0), 1999)]


def _log_gap(gap: float) -> float:
    return math.log(gap) if gap > _FLOOR else _LOG_FLOOR


def _find_spread(order: Sequence[float], most: float) -> float:
    """Return the distance of the quartiles of losses in order."""
    count = len(order)
    low, high = order[count // 4], order[(3 * count) // 4 - (count > 3)]
    return min(high, most) - min(low, most)


class Scale(NamedTuple):
    """The loss to reach, the unit of gaps, and the loss above which all count alike."""

    target: float
    unit: float
    most: float


class DeepTables(NamedTuple):
    """What the deepest trials gained, by look and horizon, in units of the study."""

    trials: tuple[int, ...]
    levels: list[int]
    # By look: the inputs of its horizons as far as they are the same for all trials.
    base: Floats
    # By look, horizon and deep trial: the gain, negative if the trial is not as deep.
    gains: Floats
    # By look: for each deep trial its gain to its end; its level; the largest gain.
    ends: list[list[float]]


class StudyRecord:
    """The best loss of each trial at each of its looks, and the order among trials there."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs
        self.looks = list_looks(epochs)
        self.level_of = {epoch: level for level, epoch in enumerate(self.looks)}
        self.horizons = list_horizons(len(self.looks))
        self._horizon_array = np.array(self.horizons)
        self.look_array = np.array(self.looks, dtype=np.float64)
        # For each look, that at half its epoch or before, and that at twice its epoch or after.
        self._half = [max(0, bisect_right(self.looks, look / 2) - 1) for look in self.looks]
        last = len(self.looks) - 1
        self._twice = [min(bisect_left(self.looks, 2 * look), last) for look in self.looks]
        self._fixed = self._make_fixed_inputs()
        # By trial: the best loss, the last loss and the rank at each of its looks.
        self.tracks: list[list[float]] = []
        self._lasts: list[list[float]] = []
        self.ranks: list[list[float]] = []
        # By look: the losses in order; the trials in the order in which they came there.
        self._sorted: list[list[float]] = [[] for _ in self.looks]
        self._reached: list[list[int]] = [[] for _ in self.looks]
        # By look: the squared changes of ranks since the look at half the epoch, and their number.
        self._moves = [[1.0, 1.0] for _ in self.looks]
        # Whether the loss to reach was given, and is not a step beyond the best so far.
        self.is_target_given = False
        self._neighbours = Neighbours()
        self.opened = 0
        self._finished, self._finished_epochs = 0, 0.0
        self._trained = 0.0
        self.best_loss = math.inf
        self._best_epoch = 1.0
        self._deep_level = 0
        self._deep: tuple[int, ...] | None = None
        self._tables: DeepTables | None = None
        self._tables_key: tuple[tuple[int, ...], Scale] | None = None

    def _make_fixed_inputs(self) -> Floats:
        looks, later = self.look_array[:, None], self.look_array[self._horizon_array]
        ahead = np.maximum(later - looks, 0.5)
        inputs = np.zeros((len(self.looks), HORIZONS, HORIZON_INPUTS))
        inputs[:, :, 0] = np.log(later / looks)
        inputs[:, :, 1] = later / self.epochs
        inputs[:, :, 2] = np.log(ahead) / 3
        inputs[:, :, 3] = ahead / self.epochs
        return inputs

    # What happens

    def open(self, trial: int, config: Mapping[str, Value]) -> None:
        """Note a new trial."""
        self.opened += 1
        self._neighbours.add(trial, config)
        while trial >= len(self.tracks):
            self.tracks.append([])
            self._lasts.append([])
            self.ranks.append([])

    def rename(self, trial: int, config: Mapping[str, Value]) -> None:
        """Take the config of a trial that is known only after its start."""
        self._neighbours.replace(trial, config)

    def level(self, trial: int) -> int:
        """Return the last look of a trial; -1 before the first."""
        return len(self.tracks[trial]) - 1

    def note_best(self, epoch: int, loss: float) -> None:
        """Note a report that may be the best so far."""
        if loss < self.best_loss:
            self.best_loss = loss
            self._best_epoch = float(epoch)

    def look(self, trial: int, best: float, last: float) -> None:
        """Note that a trial has reached its next look."""
        track, ranks = self.tracks[trial], self.ranks[trial]
        level = len(track)
        track.append(best)
        self._lasts[trial].append(last)
        order = self._sorted[level]
        insort(order, best)
        self._reached[level].append(trial)
        self._trained += self.looks[level] - (self.looks[level - 1] if level else 0)
        rank = find_normal_quantile((bisect_left(order, best) + 0.5) / len(order))
        ranks.append(rank)
        half = self._half[level]
        if half < level:
            moves = self._moves[level]
            moves[0] += (rank - ranks[half]) ** 2
            moves[1] += 1
        if level >= self._deep_level:
            self._deep = None

    def finish(self, epoch: int) -> None:
        """Note that a trial has ended at this epoch."""
        self._finished += 1
        self._finished_epochs += epoch

    # What is known

    @property
    def first_loss(self) -> float:
        """The median of the losses at the first look that are numbers."""
        order = self._sorted[0]
        count = bisect_left(order, math.inf)
        return order[count // 2] if count else math.inf

    def estimate_at_once(self, target: float) -> float:
        """Return the chance that the next trial reaches a loss with its first report.

        By the lowest first losses so far, as if their distances were exponential.
        """
        order = self._sorted[0]
        count = len(order)
        if count < 3:
            return 0.0
        lowest = order[: max(3, min(10, 1 + count // 5))]
        spread = lowest[-1] - sum(lowest[:-1]) / (len(lowest) - 1)
        gap = lowest[0] - target
        if not 0.0 < spread < math.inf:
            return 0.0
        return math.exp(-max(0.0, gap / spread)) / (count + 1)

    def find_scale(self, target: float) -> Scale:
        """Return the unit of gaps: the gap of a median first report."""
        unit = self.first_loss - target
        if not 0.0 < unit < math.inf:
            order = self._sorted[0]
            count = bisect_left(order, math.inf)
            unit = order[count - 1] - order[0] if count else 1.0
        unit = unit if 0.0 < unit < math.inf else 1.0
        return Scale(target, unit, target + _MOST * unit)

    def make_inputs(
        self, trials: Sequence[int], levels: Sequence[int], target: float
    ) -> tuple[Floats, Floats]:
        """Return the inputs of trials at looks of theirs: of each trial, and of its horizons."""
        scale = self.find_scale(target)
        tables = self._find_tables(scale)
        x = np.empty((len(trials), TRIAL_INPUTS))
        y = tables.base[levels] if tables is not None else self._fixed[levels]
        pairs = zip(trials, levels, strict=True)
        for row, (trial, level) in enumerate(pairs):
            inputs, gap = self._list_inputs(trial, level, scale, tables)
            x[row] = inputs
            if tables is not None:
                self._add_gap(y[row], gap, tables, level)
        return x, y

    def _list_inputs(
        self, trial: int, level: int, scale: Scale, tables: DeepTables | None
    ) -> tuple[list[float], float]:
        """Return the inputs of one trial at one look, and its gap."""
        target, unit, most = scale
        track, ranks = self.tracks[trial], self.ranks[trial]
        epoch = self.looks[level]
        best = min(track[level], most)
        gap = (best - target) / unit
        log_gap = _log_gap(gap)
        order = self._sorted[level]
        place, peers, opened = bisect_left(order, track[level]) + 0.5, len(order), self.opened
        rank = find_normal_quantile(place / peers)
        half = self._half[level]
        quarter = self._half[half]
        before, earlier = min(track[half], most), min(track[quarter], most)
        late, early = _log_gap((before - best) / unit), _log_gap((earlier - before) / unit)
        front = (min(self.best_loss, most) - target) / unit
        log_front = math.log(max(front, 0.0) + 1e-3)
        spread = _log_gap(_find_spread(order, most) / unit)
        total, count = self._moves[self._twice[level]]
        deep = (0.0,) * 6 if tables is None else _sum_up_deep(gap, level, tables, self.looks)
        finished = self._finished
        inputs = [
            rank,
            find_normal_quantile(place / max(1, opened)),
            math.log(peers + 1) / 4,
            math.log(opened + 1) / 4,
            epoch / self.epochs,
            math.log(epoch) / 3,
            math.log(self.epochs) / 4,
            gap,
            log_gap / 3,
            late / 3,
            early / 3,
            (log_gap - late) / 3,
            front,
            log_front / 3,
            spread / 3,
            (log_gap - spread) / 3,
            *deep,
            min((min(self._lasts[trial][level], most) - best) / unit, _MOST),
            finished / max(1, opened),
            self._finished_epochs / max(1, finished) / self.epochs,
            float(place < 1 < peers),
            float(level == 0),
            ranks[half],
            ranks[quarter],
            rank - ranks[half],
            math.sqrt(total / count),
            math.log(count) / 4,
            (log_gap - log_front) / 3,
            math.log(self._best_epoch / epoch) / 3,
            math.log1p(self._trained / self.epochs) / 3,
            math.log1p(finished) / 3,
            *self._sum_up_neighbours(trial, level, scale),
            float(self.is_target_given),
            max(-3.0, math.log(unit / (abs(target) + unit) + 1e-6) / 3),
        ]
        return inputs, gap

    def _sum_up_neighbours(
        self, trial: int, level: int, scale: Scale
    ) -> tuple[float, float, float, float, float, float, float]:
        """Return how trials with similar configs rank, and what an almost equal one has reached."""
        close = close_weight = broad = broad_weight = 0.0
        twin_gap, twin_depth, has_twin = 0.0, 0.0, 0.0
        tracks, order, scaled = self.tracks, self._sorted, 2000 / self.opened
        for distance, other in self._neighbours.nearest[trial]:
            track = tracks[other]
            if not track:
                continue
            end = len(track) - 1
            rank = _NORMAL[min(int((bisect_left(order[end], track[end]) + 0.5) * scaled), 1999)]
            if distance < 5 * _CLOSE:
                weight = math.exp(-0.5 * (distance / _CLOSE) ** 2)
                close += weight * rank
                close_weight += weight
            weight = math.exp(-0.5 * (distance / _BROAD) ** 2)
            broad += weight * rank
            broad_weight += weight
            if distance < _TWIN and end > level and self.looks[end] > twin_depth:
                twin_depth, has_twin = float(self.looks[end]), 1.0
                twin_gap = (min(track[end], scale.most) - scale.target) / scale.unit
        if has_twin:
            twin_depth = math.log(twin_depth / self.looks[level])
        return (
            close / (close_weight + 0.5),
            math.log1p(close_weight),
            broad / (broad_weight + 0.5),
            math.log1p(broad_weight) / 2,
            twin_gap,
            twin_depth,
            has_twin,
        )

    def _add_gap(self, y: Floats, gap: float, tables: DeepTables, level: int) -> None:
        """Complete the inputs of a trial's horizons by its own gap."""
        needed = max(gap, _FLOOR)
        known = y[:, 4] > 0.0
        y[:, 5] = (tables.gains[level] >= needed).sum(axis=1) * y[:, 5]
        shift = math.log(needed + _FLOOR) / 3
        y[:, 6] -= shift * known
        y[:, 7] -= shift * known
        y[:, 8] += _log_gap(gap) / 3 * known

    # The deepest trials

    def _find_deep(self) -> tuple[int, ...]:
        """Return the deepest trials, at most `DEEP`, the deepest first."""
        if self._deep is None:
            found: dict[int, None] = {}
            level = len(self._reached)
            while level > 1 and len(found) < DEEP:
                level -= 1
                for trial in reversed(self._reached[level]):
                    found[trial] = None
                    if len(found) >= DEEP:
                        break
            self._deep_level = level
            self._deep = tuple(found)
        return self._deep

    def _find_tables(self, scale: Scale) -> DeepTables | None:
        """Return what the deepest trials gained; None if no trial has had a second look."""
        deep = self._find_deep()
        if not deep:
            return None
        if self._tables is None or self._tables_key != (deep, scale) or self._deep_level < 2:
            self._tables_key = (deep, scale)
            self._tables = self._make_tables(deep, scale)
        return self._tables

    def _make_tables(self, deep: tuple[int, ...], scale: Scale) -> DeepTables:
        target, unit, most = scale
        levels = [len(self.tracks[trial]) - 1 for trial in deep]
        tracks = np.full((len(deep), len(self.looks)), most)
        for row, trial in enumerate(deep):
            tracks[row, : levels[row] + 1] = self.tracks[trial]
        tracks = (np.minimum(tracks, most) - target) / unit
        depth = np.array(levels)
        # By look, horizon and deep trial.
        valid = depth[None, None, :] >= self._horizon_array[:, :, None]
        here = tracks.T[:, None, :]
        there = tracks.T[self._horizon_array]
        gains = np.where(valid, here - there, -1.0)
        count = valid.sum(axis=2)
        safe = np.maximum(count, 1)
        known = count > 0
        mean = np.where(valid, gains, 0.0).sum(axis=2) / safe
        floored_there, floored_here = np.maximum(there, _FLOOR), np.maximum(here, _FLOOR)
        shrink = np.where(valid, np.log(floored_there / floored_here), 0.0).sum(axis=2) / safe
        base = self._fixed.copy()
        base[:, :, 4] = np.log1p(count) / 3
        base[:, :, 5] = known / safe
        base[:, :, 6] = np.log(mean + _FLOOR) / 3 * known
        base[:, :, 7] = np.log(np.maximum(gains.max(axis=2), 0.0) + _FLOOR) / 3 * known
        base[:, :, 8] = shrink / 3 * known
        last = tracks[np.arange(len(deep)), depth]
        ends = (tracks - last[:, None]).T.tolist()
        return DeepTables(deep, levels, base, gains, ends)


def _sum_up_deep(
    gap: float, level: int, tables: DeepTables, looks: Sequence[int]
) -> tuple[float, float, float, float, float, float]:
    """Return what the deepest trials gained from this look on, beside the gap."""
    gains, count, used, total, depth = tables.ends[level], 0, 0, 0.0, 0.0
    largest = 0.0
    for gain, end in zip(gains, tables.levels, strict=True):
        if end > level:
            count += 1
            largest = max(largest, gain)
            if used < 4:
                used += 1
                total += gain
                depth += math.log(looks[end] / looks[level])
    if not count:
        return (0.0,) * 6
    left = gap - total / used
    return (
        left,
        _log_gap(left) / 3,
        depth / used,
        1.0,
        gap - largest,
        math.log1p(count) / 3,
    )
