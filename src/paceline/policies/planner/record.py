"""The record of a study: what each trial had reached at each look, as inputs of the networks.

Knows losses, ranks among the trials that reached the same look, and what deeper trials gained from
there on. Does not know chances or decisions. Everything is an array by look and trial, so that
the inputs of many trials cost hardly more than those of one.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from paceline.policies.planner.looks import HORIZONS, list_horizons, list_looks
from paceline.policies.planner.neighbours import Neighbours

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from paceline.core.values import Value
    from paceline.policies.planner.looks import Look

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

# The number of the deepest trials that tell what to expect of later epochs.
DEEP = 16
# Gaps and gains are measured in units of the study's first gap, and not below this.
_FLOOR = 1e-4
# A gap is at most this many units.
_MOST = 5.0
# Distances of configs: close ones, the width of a broad neighbourhood, and almost equal ones.
_CLOSE, _BROAD, _TWIN = 0.08, 0.25, 0.02
TRIAL_INPUTS = 51
# The input of a trial that is its rank among those that got as far.
RANK_INPUT = 20
HORIZON_INPUTS = 11
OPENING_INPUTS = 14

# The quantiles of the normal distribution at (i + 0.5) / 2000.
NORMAL = np.array([NormalDist().inv_cdf((i + 0.5) / 2000) for i in range(2000)])


def _log(gap: float) -> float:
    return math.log(max(gap, _FLOOR)) / 3


class Scale(NamedTuple):
    """The loss to reach, the unit of gaps, and the loss above which all count alike."""

    target: float
    unit: float
    most: float


class DeepTables(NamedTuple):
    """What the deepest trials gained, by look and horizon, in units of the study."""

    # The look that each has reached.
    levels: Ints
    # By look: the inputs of its horizons as far as they are the same for all trials.
    base: Floats
    # By look, horizon and deep trial: the gain, negative if the trial is not as deep.
    gains: Floats
    # By look and deep trial: its gain from there to its end.
    ends: Floats


class StudyRecord:
    """The losses of each trial at each of its looks, and the order among trials there."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs
        self.looks = list_looks(epochs)
        self.level_of = {epoch: level for level, epoch in enumerate(self.looks)}
        count = len(self.looks)
        self.horizons = np.array(list_horizons(count))
        self.look_array = np.array(self.looks, dtype=np.float64)
        self._log_looks = np.log(self.look_array)
        # For each look, that at half its epoch or before, and that at twice its epoch or after.
        self._half = np.array([max(0, bisect_right(self.looks, e / 2) - 1) for e in self.looks])
        last = count - 1
        self._twice = np.array([min(bisect_left(self.looks, 2 * e), last) for e in self.looks])
        self._fixed = self._make_fixed_inputs()
        # By trial: the last look, -1 before the first; the seconds of an epoch.
        self.levels = np.full(64, -1)
        self.pace = np.zeros(64)
        # By trial: how many trials need what it would train up to its next look.
        self.sharers = np.ones(64)
        # By look and trial: the best loss, the last one, the rank when it got there, the epochs
        # without a new best as a share, and how rough the curve is.
        self.best_at, self.last_at, self.rank_at, self.still_at, self.rough_at = (
            np.full((count, 64), math.inf) for _ in range(5)
        )
        # The number of first looks, and the median seconds of an epoch then.
        self._usual_pace = 0, 1.0
        # By trial: its rank at its last look, among the trials that are known now.
        self._rank_now = np.zeros(64)
        # By look: the losses in order, the gains in order, and the trials in the order in which
        # they came there.
        self._sorted: list[list[float]] = [[] for _ in self.looks]
        self._gains: list[list[float]] = [[] for _ in self.looks]
        self._reached: list[list[int]] = [[] for _ in self.looks]
        self._peers = np.zeros(count)
        # By look: the squared changes of ranks since the look at half the epoch, and their number.
        self._moves = np.ones((count, 2))
        # Whether the loss to reach was given, and is not a step beyond the best so far.
        self.is_target_given = False
        self.neighbours = Neighbours()
        self.opened = 0
        self._ranked_at = 0
        self._finished, self._finished_epochs = 0, 0.0
        self._trained = 0.0
        self.best_loss = math.inf
        self._best_epoch = 1.0
        self._opened_at_best = 0
        self._deep_level = 0
        self._deep: Ints | None = None
        self._tables: DeepTables | None = None
        self._tables_key: tuple[int, Scale] | None = None
        self._deep_version = 0

    def _make_fixed_inputs(self) -> Floats:
        looks, later = self.look_array[:, None], self.look_array[self.horizons]
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
        self.neighbours.add(trial, config)
        while trial >= len(self.levels):
            self._grow()

    def _grow(self) -> None:
        self.levels = np.concatenate([self.levels, np.full_like(self.levels, -1)])
        self.pace = np.concatenate([self.pace, np.zeros_like(self.pace)])
        self.sharers = np.concatenate([self.sharers, np.ones_like(self.sharers)])
        self._rank_now = np.concatenate([self._rank_now, np.zeros_like(self._rank_now)])
        more = np.full_like(self.best_at, math.inf)
        for name in ("best_at", "last_at", "rank_at", "still_at", "rough_at"):
            setattr(self, name, np.concatenate([getattr(self, name), more], axis=1))

    def rename(self, trial: int, config: Mapping[str, Value]) -> None:
        """Take the config of a trial that is known only after its start."""
        self.neighbours.replace(trial, config)

    def level(self, trial: int) -> int:
        """Return the last look of a trial; -1 before the first."""
        return int(self.levels[trial])

    def note_best(self, epoch: int, loss: float) -> None:
        """Note a report that may be the best so far."""
        if loss < self.best_loss:
            self.best_loss = loss
            self._best_epoch = float(epoch)
            self._opened_at_best = self.opened

    def fill(self, trial: int, level: int, seen: Look) -> None:
        """Write down what a trial had reached at a look."""
        epoch = self.looks[level]
        first = seen.best if not level else float(self.best_at[0, trial])
        self.best_at[level, trial] = seen.best
        self.last_at[level, trial] = seen.last
        self.still_at[level, trial] = (epoch - seen.best_epoch) / epoch
        change = abs(first - seen.last) if max(first, seen.last) < math.inf else 0.0
        self.rough_at[level, trial] = max(0.0, seen.path - change) / max(1, epoch - 1)

    def look(self, trial: int, seen: Look) -> None:
        """Note that a trial has reached its next look."""
        level = int(self.levels[trial]) + 1
        best = seen.best
        self.fill(trial, level, seen)
        self.levels[trial] = level
        order = self._sorted[level]
        at = bisect_left(order, best)
        order.insert(at, best)
        self._reached[level].append(trial)
        count = len(order)
        self._peers[level] = count
        self._trained += self.looks[level] - (self.looks[level - 1] if level else 0)
        rank = float(NORMAL[int((at + 0.5) / count * 2000)])
        self.rank_at[level, trial] = self._rank_now[trial] = rank
        half = int(self._half[level])
        if half < level:
            self._moves[level, 0] += (rank - self.rank_at[half, trial]) ** 2
            self._moves[level, 1] += 1
            gain = float(self.best_at[half, trial]) - best
            insort(self._gains[level], gain if gain == gain else 0.0)
        if level >= self._deep_level:
            self._deep = None

    def share(self, trials: Iterable[int]) -> None:
        """Note all trials that need the same epochs up to their next look."""
        members = list(trials)
        if members:
            self.sharers[members] = len(members)

    def finish(self, epoch: int) -> None:
        """Note that a trial has ended at this epoch."""
        self._finished += 1
        self._finished_epochs += epoch

    def refresh_ranks(self) -> None:
        """Rank each trial at its last look among all that are known now."""
        if self.opened < 1.1 * self._ranked_at:
            return
        self._ranked_at = self.opened
        for level, order in enumerate(self._sorted):
            trials = np.array(self._reached[level], dtype=np.int64)
            trials = trials[self.levels[trials] == level]
            if len(trials):
                place = np.searchsorted(np.array(order), self.best_at[level, trials]) + 0.5
                shares = (place / len(order) * 2000).astype(np.int64)
                self._rank_now[trials] = NORMAL[shares]

    # What is known

    @property
    def first_loss(self) -> float:
        """The median of the losses at the first look that are numbers."""
        order = self._sorted[0]
        count = bisect_left(order, math.inf)
        return order[count // 2] if count else math.inf

    def make_opening_inputs(self, target: float) -> Floats:
        """Return the inputs for the chance that the next trial reaches a loss at its first look."""
        order = self._sorted[0]
        count = len(order)
        target, unit, most = self.find_scale(target)
        if not count:
            return np.zeros(OPENING_INPUTS)
        places = (0, 1, count // 10, count // 4, (3 * count) // 4)
        gaps = [(min(order[min(at, count - 1)], most) - target) / unit for at in places]
        lowest, second, tenth, quarter, upper = (max(-_MOST, gap) for gap in gaps)
        few = order[: max(3, min(10, 1 + count // 5))]
        spread = (min(few[-1], most) - min(few[0], most)) / unit
        front = max(0.0, (min(self.best_loss, most) - target) / unit)
        gains = self._gains[1][-32:] if len(self._gains) > 1 else []
        gain = sum(min(max(each / unit, 0.0), _MOST) for each in gains) / max(1, len(gains))
        return np.array(
            [
                math.log(count + 1) / 4,
                lowest,
                _log(lowest),
                _log(second - lowest),
                _log(tenth),
                _log(quarter),
                _log(upper - quarter),
                _log(spread),
                max(-3.0, -lowest / max(spread, _FLOOR) / 4),
                _log(front),
                (count - bisect_left(order, most)) / count,
                math.log(self.epochs) / 4,
                float(self.is_target_given),
                _log(gain) * bool(gains),
            ]
        )

    def find_scale(self, target: float) -> Scale:
        """Return the unit of gaps: the gap of a median first report."""
        unit = self.first_loss - target
        if not 0.0 < unit < math.inf:
            order = self._sorted[0]
            count = bisect_left(order, math.inf)
            unit = order[count - 1] - order[0] if count else 1.0
        unit = unit if 0.0 < unit < math.inf else 1.0
        return Scale(target, unit, target + _MOST * unit)

    def count_peers(self, level: int) -> int:
        """Return the number of trials that have had this look."""
        return len(self._sorted[level])

    def compute_seconds(self, trials: Sequence[int] | Ints, levels: Sequence[int] | Ints) -> Floats:
        """Return the slot-seconds of trials from looks to each of their horizons.

        What several trials train together, up to their next look, costs each a part.
        """
        levels = np.asarray(levels)
        ahead = self.look_array[self.horizons[levels]] - self.look_array[levels][:, None]
        pace = np.maximum(self.pace[trials], 1e-9)[:, None]
        saved = ahead[:, :1] * (1.0 - 1.0 / self.sharers[trials])[:, None]
        seconds: Floats = (ahead - saved) * pace
        return seconds

    def make_inputs(
        self, trials: Sequence[int] | Ints, levels: Sequence[int] | Ints, target: float
    ) -> tuple[Floats, Floats]:
        """Return the inputs of trials at looks of theirs: of each trial, and of its horizons."""
        trials, levels = np.asarray(trials), np.asarray(levels)
        scale = self.find_scale(target)
        tables = self._find_tables(scale)
        x = self._list_inputs(trials, levels, scale, tables)
        y = (self._fixed if tables is None else tables.base)[levels]
        if tables is not None:
            _add_gaps(y, x[:, 0], tables, levels)
        _extrapolate(y, x)
        return x, y

    def _list_inputs(
        self, trials: Ints, levels: Ints, scale: Scale, tables: DeepTables | None
    ) -> Floats:
        """Return the inputs of trials at looks."""
        curve = self._list_curve_inputs(trials, levels, scale, tables)
        ranks = self._list_rank_inputs(trials, levels)
        study = self._list_study_inputs(scale)
        x = np.empty((len(trials), TRIAL_INPUTS))
        end = 0
        for columns in (curve, ranks, study):
            for at, column in enumerate(columns, start=end):
                x[:, at] = column
            end += len(columns)
        x[:, end:] = self._sum_up_neighbours(trials, levels, scale)
        return x

    def _list_curve_inputs(
        self, trials: Ints, levels: Ints, scale: Scale, tables: DeepTables | None
    ) -> tuple[Floats | float, ...]:
        """Return how far each trial is from the loss to reach, and what it and deeper ones gained.

        The first three are what `_extrapolate` reads: the gap, and logs of its last two gains.
        """
        target, unit, most = scale
        half = self._half[levels]
        rows = (levels, half, self._half[half])
        # Gaps at the look, at half and a quarter of its epoch, and of the last report.
        losses = [*(self.best_at[row, trials] for row in rows), self.last_at[levels, trials]]
        gaps = np.maximum((np.minimum(np.stack(losses), most) - target) / unit, -_MOST)
        gap = gaps[0]
        front = max(-_MOST, (min(self.best_loss, most) - target) / unit)
        log_front = math.log(max(front, 0.0) + 1e-3) / 3
        rough = np.minimum(self.rough_at[levels, trials] / unit, _MOST)
        spread = self._find_spreads(levels.tolist(), most) / unit
        deep = _sum_up_deep(gap, levels, tables, self._log_looks)
        floored = np.stack([gap, gaps[1] - gap, gaps[2] - gaps[1], spread, rough, deep[0]])
        logs = np.log(np.maximum(floored, _FLOOR)) / 3
        log_gap, late, early, log_spread, log_rough, log_left = logs
        return (
            gap,
            late,
            early,
            log_gap,
            log_gap - late,
            front,
            log_front,
            log_gap - log_front,
            log_spread,
            log_gap - log_spread,
            deep[0],
            log_left * deep[2],
            *deep[1:],
            np.minimum(gaps[3] - gap, _MOST),
            self.still_at[levels, trials],
            log_rough,
            log_gap - log_rough,
        )

    def _list_rank_inputs(self, trials: Ints, levels: Ints) -> tuple[NDArray[Any], ...]:
        """Return where each trial stands among its peers, and how far it has come."""
        half = self._half[levels]
        raw = self.best_at[levels, trials]
        place, gain_place = self._find_places(levels.tolist(), raw.tolist(), trials, half)
        # A trial that is asked about a look to come is one more there.
        peers = self._peers[levels] + (levels > self.levels[trials])
        shares = np.stack([place / peers, place / max(1, self.opened), gain_place])
        rank, rank_all, gain_rank = NORMAL[np.clip(shares * 2000, 0, 1999).astype(np.int64)]
        rank_half = self.rank_at[half, trials]
        moves = self._moves[self._twice[levels]]
        log_epochs = self._log_looks[levels]
        pace = np.maximum(self.pace[trials], 1e-9) / self._find_usual_pace()
        return (
            rank,
            rank_all,
            gain_rank,
            rank_half,
            self.rank_at[self._half[half], trials],
            rank - rank_half,
            np.log(peers + 1) / 4,
            ((place < 1) & (peers > 1)).astype(np.float64),
            self.look_array[levels] / self.epochs,
            log_epochs / 3,
            levels == 0,
            np.sqrt(moves[:, 0] / moves[:, 1]),
            np.log(moves[:, 1]) / 4,
            (math.log(self._best_epoch) - log_epochs) / 3,
            np.log(pace).clip(-4, 4) / 2,
        )

    def _list_study_inputs(self, scale: Scale) -> tuple[float, ...]:
        """Return what is the same for all trials."""
        opened, finished = max(1, self.opened), self._finished
        return (
            math.log(opened + 1) / 4,
            math.log(self.epochs) / 4,
            finished / opened,
            self._finished_epochs / max(1, finished) / self.epochs,
            math.log1p(self._trained / self.epochs) / 3,
            math.log1p(finished) / 3,
            float(self.is_target_given),
            max(-3.0, math.log(scale.unit / (abs(scale.target) + scale.unit) + 1e-6) / 3),
            (self.opened - self._opened_at_best) / opened,
        )

    def _find_places(
        self, levels: list[int], losses: list[float], trials: Ints, half: Ints
    ) -> tuple[Floats, Floats]:
        """Return the place of each loss among the peers at its look, and the share of its gain."""
        places = [
            bisect_left(self._sorted[level], loss) + 0.5
            for level, loss in zip(levels, losses, strict=True)
        ]
        earlier = self.best_at[half, trials].tolist()
        shares = [
            (bisect_left(self._gains[level], before - loss) + 0.5) / (len(self._gains[level]) + 1)
            for level, loss, before in zip(levels, losses, earlier, strict=True)
        ]
        return np.array(places), np.array(shares)

    def _find_usual_pace(self) -> float:
        """Return the median seconds of an epoch among the first trials."""
        count = min(int(self._peers[0]), 64)
        if self._usual_pace[0] != count:
            known = self.pace[:64]
            known = known[known > 0.0]
            self._usual_pace = count, float(np.median(known)) if len(known) else 1.0
        return self._usual_pace[1]

    def _find_spreads(self, levels: list[int], most: float) -> Floats:
        """Return the distance of the quartiles of the losses at each look."""
        spreads: dict[int, float] = {}
        for level in set(levels):
            order = self._sorted[level]
            count = len(order)
            if not count:
                spreads[level] = 0.0
                continue
            low, high = order[count // 4], order[(3 * count) // 4 - (count > 3)]
            spreads[level] = min(high, most) - min(low, most)
        return np.array([spreads[level] for level in levels])

    def _sum_up_neighbours(self, trials: Ints, levels: Ints, scale: Scale) -> Floats:
        """Return how trials with similar configs rank, and what an almost equal one has reached."""
        others, distances = self.neighbours.find(trials)
        ends = self.levels[others]
        known = (others >= 0) & (ends >= 0)
        rank = self._rank_now[others]
        close = np.exp(-0.5 * (distances / _CLOSE) ** 2) * known
        broad = np.exp(-0.5 * (distances / _BROAD) ** 2) * known
        close_weight, broad_weight = close.sum(1), broad.sum(1)
        # The deepest of the almost equal ones that are deeper.
        twins = np.where(known & (distances < _TWIN) & (ends > levels[:, None]), ends, -1)
        at = twins.argmax(1)
        rows = np.arange(len(trials))
        twin, end = others[rows, at], twins[rows, at]
        has_twin = end >= 0
        best = np.minimum(self.best_at[end, twin], scale.most)
        return np.stack(
            [
                (close * rank).sum(1) / (close_weight + 0.5),
                np.log1p(close_weight),
                (broad * rank).sum(1) / (broad_weight + 0.5),
                np.log1p(broad_weight) / 2,
                np.maximum((best - scale.target) / scale.unit, -_MOST) * has_twin,
                (self._log_looks[end] - self._log_looks[levels]) * has_twin,
                has_twin,
            ],
            axis=1,
        )

    # The deepest trials

    def _find_deep(self) -> Ints:
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
            self._deep = np.array(list(found), dtype=np.int64)
            self._deep_version += 1
        return self._deep

    def _find_tables(self, scale: Scale) -> DeepTables | None:
        """Return what the deepest trials gained; None if no trial has had a second look."""
        deep = self._find_deep()
        if not len(deep):
            return None
        key = (self._deep_version, scale)
        if self._tables is None or self._tables_key != key:
            self._tables_key = key
            self._tables = self._make_tables(deep, scale)
        return self._tables

    def _make_tables(self, deep: Ints, scale: Scale) -> DeepTables:
        target, unit, most = scale
        levels = self.levels[deep]
        tracks = np.maximum((np.minimum(self.best_at[:, deep], most) - target) / unit, -_MOST)
        # By look, horizon and deep trial.
        valid = levels[None, None, :] >= self.horizons[:, :, None]
        here, there = tracks[:, None, :], tracks[self.horizons]
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
        last = tracks[levels, np.arange(len(deep))]
        return DeepTables(levels, base, gains, tracks - last)


def _add_gaps(y: Floats, gaps: Floats, tables: DeepTables, levels: Ints) -> None:
    """Complete the inputs of horizons by the gaps of their trials."""
    known = y[:, :, 4] > 0.0
    needed = np.maximum(gaps, _FLOOR)[:, None]
    y[:, :, 5] *= (tables.gains[levels] >= needed[:, :, None]).sum(axis=2)
    shift = np.log(needed + _FLOOR) / 3
    y[:, :, 6] -= shift * known
    y[:, :, 7] -= shift * known
    y[:, :, 8] += np.log(needed) / 3 * known


def _extrapolate(y: Floats, x: Floats) -> None:
    """Add the gaps at horizons if a trial's gains go on to change as they did.

    The gain over each doubling of the epochs is a constant share of the one before.
    """
    gap, late, early = x[:, 0], np.exp(3 * x[:, 1]), np.exp(3 * x[:, 2])
    ratio = np.clip(late / early, 0.3, 1.2)[:, None]
    doublings = y[:, :, 0] / math.log(2.0)
    gain = late[:, None] * ratio * (1 - ratio**doublings) / (1.0001 - ratio)
    left = gap[:, None] - gain
    y[:, :, 9] = np.clip(left, -_MOST, _MOST)
    y[:, :, 10] = np.log(np.clip(left / np.maximum(gap, _FLOOR)[:, None], 1e-2, 10.0)) / 3


def _sum_up_deep(
    gap: Floats, levels: Ints, tables: DeepTables | None, log_looks: Floats
) -> tuple[Floats, ...]:
    """Return what the deepest trials gained from these looks on, beside the gap.

    The gap after the mean gain of the four deepest, their depth, whether there are any, the gap
    after the largest gain, and the number of deeper trials.
    """
    if tables is None:
        return (np.zeros_like(gap),) * 5
    deeper = tables.levels > levels[:, None]
    gains = np.where(deeper, tables.ends[levels], 0.0)
    count = deeper.sum(1)
    # The deepest come first.
    used = np.minimum(count, 4)
    safe = np.maximum(used, 1)
    depth = np.where(deeper, log_looks[tables.levels] - log_looks[levels][:, None], 0.0)
    known = used > 0
    left = (gap - gains[:, :4].sum(1) / safe) * known
    return (
        left,
        depth[:, :4].sum(1) / safe,
        known.astype(np.float64),
        (gap - np.maximum(gains.max(1), 0.0)) * known,
        np.log1p(count) / 3 * known,
    )
