"""The speeds of trials at each width, measured from a log, and its epochs as on one slot alone.

An epoch's width is known from the log: the slots of its attempt, or how many attempts were on its
slot while it ran. Speeds are fitted to all epochs at once, so that epochs with the same settings
take the same time after division by the speed. The prior fills in what no trial has shown: a trial
must have run at two widths to compare them.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from paceline.core.decisions import Launch
from paceline.core.events import Ended, Reported
from paceline.core.speedup import WidthSpeed
from paceline.machine.state import StudyState
from paceline.machine.timing import estimate_speed, prior_speed
from paceline.plan.settings import list_stretches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from paceline.core.decisions import Step
    from paceline.core.speedup import SpeedUp
    from paceline.core.values import AttemptId, SlotId, TrialId
    from paceline.machine.trial_state import AttemptState, TrialState
    from paceline.plan.settings import Stretch

# The prior weighs as much as this many epochs: it decides only where no epoch does.
_PRIOR_EPOCHS = 0.001
# The weight of an attempt's first epoch, which may be longer because caches are cold.
_FIRST_WEIGHT = 0.1
# One epoch counts as off by no more than this: clocks stop, machines swap.
_MAX_LOG_RATIO = math.log(8.0)
_SHORTEST_S = 1e-9
_ROUNDS = 20
# The epochs whose settings are told apart, where only the training function knows the last one.
_LONGEST = 100_000


class EpochWidths(NamedTuple):
    """One reported epoch: how long it ran at each width."""

    # Epochs of the same settings; they would take equally long at the same width.
    settings: object
    seconds: Mapping[float, float]
    is_first: bool

    def compute_work(self, speeds: Mapping[float, float]) -> float:
        """Return the seconds that it would have taken on one slot alone."""
        return sum(took * speeds[width] for width, took in self.seconds.items())


def collect_epochs(log: Iterable[Step]) -> dict[int, EpochWidths]:
    """Return the epochs of a log at their widths, by the number of the step that reports them."""
    state, occupancy, settings = StudyState(), _Occupancy(), _Settings()
    epochs: dict[int, EpochWidths] = {}
    for step in log:
        event = step.event
        if isinstance(event, Reported):
            attempt = state.attempts.get(event.attempt)
            if attempt is not None:
                epochs[step.number] = EpochWidths(
                    settings.find(attempt.trial, event.epoch),
                    occupancy.split(attempt, event),
                    event.epoch == attempt.start + 1,
                )
        elif isinstance(event, Ended) and event.attempt in state.attempts:
            occupancy.leave(state.attempts[event.attempt], event.at)
        for decision in step.decisions:
            if isinstance(decision, Launch):
                occupancy.enter(decision, event.at)
        for entry in step.entries:
            state.apply(entry)
    return epochs


def measure_speeds(epochs: Iterable[EpochWidths]) -> list[WidthSpeed]:
    """Return the speed of each width at which epochs ran, by rising width, without one slot."""
    groups: dict[object, list[EpochWidths]] = defaultdict(list)
    for epoch in epochs:
        groups[epoch.settings].append(epoch)
    counts: dict[float, int] = defaultdict(int)
    pieces = [{width for each in group for width in each.seconds} for group in groups.values()]
    for group, widths in zip(groups.values(), pieces, strict=True):
        for epoch in group if len(widths) > 1 else ():
            counts[max(epoch.seconds, key=lambda width: epoch.seconds[width])] += 1
    speeds = _fit_speeds(list(groups.values()), sorted({1.0}.union(*pieces)))
    measured: dict[float, float] = {}
    found = []
    # One epoch alone compares nothing.
    compared = [
        each
        for group, widths in zip(groups.values(), pieces, strict=True)
        for each in ([widths] if len(group) > 1 else [{width} for width in widths])
    ]
    for linked in _list_linked(compared):
        # Of widths that no trial compares with one slot, the nearest one is assumed.
        near = min(linked, key=lambda width: (abs(math.log(width)), width))
        factor = estimate_speed(near, measured) / speeds[near]
        for width in linked:
            speed = speeds[width] * factor
            if 1.0 in linked:
                measured[width] = speed
            epochs_behind = max(counts[width], 1) if 1.0 in linked else 0
            found.append(WidthSpeed(width, speed, epochs_behind))
    return sorted((each for each in found if each.width != 1.0), key=lambda each: each.width)


def list_given_speeds(epochs: Iterable[EpochWidths], known: SpeedUp) -> list[WidthSpeed]:
    """Return the speed of each width at which epochs ran, where the speed-up is known."""
    counts: dict[float, int] = defaultdict(int)
    for epoch in epochs:
        for width in epoch.seconds:
            counts[width] += 1
    return [
        WidthSpeed(
            width, known.of(width) if width > 1.0 else known.shared(round(1.0 / width)), count
        )
        for width, count in sorted(counts.items())
        if width != 1.0
    ]


def normalise_seconds(
    log: Iterable[Step], epochs: Mapping[int, EpochWidths], speeds: Sequence[WidthSpeed]
) -> Iterator[Step]:
    """Yield the steps of a log with the epochs' seconds as on one slot alone."""
    table = {1.0: 1.0, **{each.width: each.speed for each in speeds}}
    for step in log:
        epoch = epochs.get(step.number)
        if epoch is None or epoch.seconds.keys() == {1.0}:
            yield step
        else:
            assert isinstance(step.event, Reported)
            # Rounded: equal epochs at different widths must not differ by rounding errors.
            seconds = round(epoch.compute_work(table), 9)
            yield replace(step, event=replace(step.event, seconds=seconds))


class _Occupancy:
    """How many attempts were on each shared slot, and since when."""

    def __init__(self) -> None:
        # (time, attempts from then on), by slot.
        self._counts: dict[SlotId, list[tuple[float, int]]] = defaultdict(lambda: [(-math.inf, 0)])
        self._present: set[AttemptId] = set()

    def enter(self, launch: Launch, now: float) -> None:
        if launch.width < 1.0:
            self._present.add(launch.attempt)
            self._change(launch.slots[0], now, 1)

    def leave(self, attempt: AttemptState, now: float) -> None:
        if attempt.id in self._present:
            self._present.discard(attempt.id)
            self._change(attempt.slots[0], now, -1)

    def _change(self, slot: SlotId, now: float, by: int) -> None:
        counts = self._counts[slot]
        counts.append((max(now, counts[-1][0]), counts[-1][1] + by))

    def split(self, attempt: AttemptState, report: Reported) -> dict[float, float]:
        """Return the seconds of an epoch at each width."""
        if attempt.width >= 1.0:
            return {attempt.width: report.seconds}
        spent: dict[float, float] = defaultdict(float)
        left, until = report.seconds, report.at
        for since, count in reversed(self._counts[attempt.slots[0]]):
            took = min(left, max(until - since, 0.0))
            if took > 0.0:
                spent[1.0 / max(count, 1)] += took
            left -= took
            until = min(until, since)
            if left <= 0.0:
                break
        return dict(spent) or {attempt.width: report.seconds}


class _Settings:
    """The settings of trials by epoch."""

    def __init__(self) -> None:
        self._stretches: dict[TrialId, Sequence[Stretch]] = {}

    def find(self, trial: TrialState, epoch: int) -> object:
        """Return the settings of an epoch; of settings that hold for one epoch only, the trial."""
        stretches = self._stretches.get(trial.id)
        if stretches is None:
            # As far as it has come: the last epoch may be known to the training function alone.
            stretches = list_stretches(trial.config, min(trial.spec.epochs, _LONGEST))
            self._stretches[trial.id] = stretches
        at = bisect_left(stretches, epoch, key=lambda stretch: stretch[0])
        if at == len(stretches):
            return trial.id
        before = stretches[at - 1][0] if at else 0
        until, setting = stretches[at]
        return setting if until - before > 1 else trial.id


def _fit_speeds(
    groups: Sequence[Sequence[EpochWidths]], widths: Sequence[float]
) -> dict[float, float]:
    """Return the speeds by which the works within each group differ least, by least squares."""
    free = [width for width in widths if width != 1.0]
    priors = [math.log(prior_speed(width)) for width in free]
    logs = list(priors)
    index = {width: at for at, width in enumerate(free)}
    for _ in range(_ROUNDS):
        speeds = {1.0: 1.0, **{w: math.exp(x) for w, x in zip(free, logs, strict=True)}}
        matrix = [[0.0] * len(free) for _ in free]
        right = [_PRIOR_EPOCHS * (prior - x) for prior, x in zip(priors, logs, strict=True)]
        for at in range(len(free)):
            matrix[at][at] = _PRIOR_EPOCHS
        for group in groups:
            _add_group(group, speeds, index, (matrix, right))
        steps = _solve(matrix, right)
        logs = [x + step for x, step in zip(logs, steps, strict=True)]
        if all(abs(step) < 1e-9 for step in steps):
            break
    return {1.0: 1.0, **{w: math.exp(x) for w, x in zip(free, logs, strict=True)}}


def _add_group(
    group: Sequence[EpochWidths],
    speeds: Mapping[float, float],
    index: Mapping[float, int],
    equations: tuple[list[list[float]], list[float]],
) -> None:
    """Add epochs of equal work to the normal equations."""
    matrix, right = equations
    rows = []
    mean: dict[int, float] = defaultdict(float)
    mean_log = total = 0.0
    for epoch in group:
        work = max(epoch.compute_work(speeds), _SHORTEST_S)
        weight = _FIRST_WEIGHT if epoch.is_first else 1.0
        shares = {
            index[width]: took * speeds[width] / work
            for width, took in epoch.seconds.items()
            if width != 1.0
        }
        rows.append((weight, shares, math.log(work)))
        for at, share in shares.items():
            mean[at] += weight * share
        mean_log += weight * math.log(work)
        total += weight
    for weight, shares, log_work in rows:
        off = mean_log / total - log_work
        off = max(-_MAX_LOG_RATIO, min(_MAX_LOG_RATIO, off))
        row = {at: shares.get(at, 0.0) - mean[at] / total for at in mean}
        for at, one in row.items():
            right[at] += weight * one * off
            for other, two in row.items():
                matrix[at][other] += weight * one * two


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Solve positive definite linear equations by elimination."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    size = len(rows)
    for at in range(size):
        for below in range(at + 1, size):
            factor = rows[below][at] / rows[at][at]
            if factor:
                rows[below] = [b - factor * a for a, b in zip(rows[at], rows[below], strict=True)]
    found = [0.0] * size
    for at in reversed(range(size)):
        rest = sum(rows[at][other] * found[other] for other in range(at + 1, size))
        found[at] = (rows[at][size] - rest) / rows[at][at]
    return found


def _list_linked(pieces: Iterable[set[float]]) -> list[set[float]]:
    """Return sets of widths that trials compare with each other; that of one slot first."""
    linked: list[set[float]] = []
    for widths in pieces:
        joined = set(widths)
        for other in [each for each in linked if each & widths]:
            joined |= other
            linked.remove(other)
        linked.append(joined)
    return sorted(linked, key=lambda each: (1.0 not in each, sorted(each)))
