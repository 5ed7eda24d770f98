"""What a study is described by: configs, budgets, targets, parts, forecasts, the spec.

Knows their shapes and limits. Does not know how any of them is used.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from paceline.core.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

TrialId: TypeAlias = int
AttemptId: TypeAlias = int
SlotId: TypeAlias = int
Mode = Literal["min", "max"]

# A hyperparameter's value: anything JSON can hold. A schedule is `{"piecewise": [[0, a], …]}`, or a
# rule: `{"each_epoch": "linear", "start": a, …}`.
# `Any` because the type is recursive, and msgspec would check it at every decode.
Value: TypeAlias = Any
Config: TypeAlias = dict[str, Value]

# What an attempt says after an epoch; None is a number that was none (NaN, infinity).
Metrics: TypeAlias = dict[str, float | None]

# The loss of an epoch without a number. It ranks last in every comparison.
NO_LOSS = math.inf


class Status(StrEnum):
    """Where a trial is on its way. The first three are alive, the last three are for good."""

    # It has a goal ahead and no attempt works for it: found in `study.ready`.
    READY = "ready"
    # An attempt works for it, its own or one that trains a prefix it shares.
    RUNNING = "running"
    # It stands at its goal with a checkpoint until the policy raises the goal.
    WAITING = "waiting"
    # It has trained its last epoch, or its training function returned.
    FINISHED = "finished"
    # The policy ended it.
    STOPPED = "stopped"
    # It failed more often than the study's retries allow.
    FAILED = "failed"


class Part(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The name and parameters of a plug-in: a policy, generator, allocator or curve model."""

    name: str
    params: dict[str, Value] = {}

    def __str__(self) -> str:
        params = ",".join(f"{key}={value}" for key, value in self.params.items())
        return f"{self.name}:{params}" if params else self.name


class Target(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A value to reach, as the mean of a trial's last `over` reports."""

    value: float
    over: int = 1


class Budget(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What may be used. Whichever limit is met first ends the study; None is no limit."""

    # Seconds of the study's own clock, which stands still while no driver runs.
    deadline_s: float | None = None
    target: Target | None = None
    slot_seconds: float | None = None
    trials: int | None = None


class Saves(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """When checkpoints are written besides stage ends and branches."""

    # Save when this many seconds have passed since the last save; None: never for that reason.
    every_s: float | None = None
    # Delete checkpoints as soon as nobody needs them.
    collect: bool = False
    # What all checkpoints together may take, where they are collected; None: no limit.
    bytes: int | None = None
    # Of how many finished trials, the best, the last checkpoint is kept; None: of all.
    best: int | None = None


class PlanKey(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is trained: the name and version of training code and data.

    Studies of one store with the same key and seed share what they have in common.
    """

    name: str
    # Empty: whoever gave the name vouches that nothing has changed.
    version: str = ""

    def __str__(self) -> str:
        return f"{self.name}@{self.version}" if self.version else self.name


class GroupSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One of several studies that are driven as one: what is its own, and not all studies'."""

    name: str
    policy: Part
    generator: Part
    curves: Part = Part("last")
    target: Target | None = None
    trials: int | None = None


class StudySpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One question put to the system. Written into the log's first entry, never changed."""

    name: str
    metric: str
    mode: Mode
    # The last epoch of every trial.
    epochs: int
    # The least and the greatest value the metric can have, where that is known.
    range: tuple[float, float] | None = None
    policy: Part
    generator: Part
    allocator: Part = Part("fixed")
    curves: Part = Part("last")
    budget: Budget = Budget()
    saves: Saves = Saves()
    seed: int = 0
    # Trials whose settings agree epoch by epoch are trained once.
    share: bool = False
    # What is shared with other studies; None: nothing is.
    plan: PlanKey | None = None
    # Wait for more when nothing is left to run: an outside tuner gives it its trials.
    standing: bool = False
    # How often a trial may fail before it is given up. Lost attempts do not count.
    retries: int = 3
    # At most `pack` trials on one slot, at most `span` slots for one trial.
    pack: int = 1
    span: int = 1
    # What trials need depends on their settings: it stands in every Open.
    fit: bool = False
    # Several studies driven as one, each with brains and limits of its own. What stands above is
    # then theirs together; `policy`, `generator` and `curves` only name theirs to a reader.
    groups: tuple[GroupSpec, ...] = ()

    def __post_init__(self) -> None:
        budget, target = self.budget, self.budget.target
        _need(bool(self.name), "name", self.name, "a study needs a name that is not empty")
        _need(self.mode in ("min", "max"), "mode", self.mode, "say 'min' or 'max'")
        _need(self.epochs >= 1, "epochs", self.epochs, "a trial needs at least one epoch")
        _need(self.retries >= 0, "retries", self.retries, "give 0 or more")
        _need(self.pack >= 1, "pack", self.pack, "give the trials that may share a slot, 1 or more")
        _need(self.span >= 1, "span", self.span, "give the slots a trial may hold, 1 or more")
        for label, limit in (
            ("deadline_s", budget.deadline_s),
            ("slot_seconds", budget.slot_seconds),
            ("trials", budget.trials),
            ("bytes", self.saves.bytes),
        ):
            good = limit is None or (limit > 0 and math.isfinite(limit))
            _need(good, label, limit, "give a positive number, or leave it out for no limit")
        if self.range is not None:
            low, high = self.range
            good = math.isfinite(low) and math.isfinite(high) and low < high
            _need(good, "range", self.range, "give the least and the greatest value: (0, 1)")
        every = self.saves.every_s
        _need(every is None or every >= 0, "every_s", every, "give 0 or more seconds")
        if target is not None:
            _need(math.isfinite(target.value), "target", target.value, "give a finite number")
            _need(target.over >= 1, "over", target.over, "give the reports to average, 1 or more")
        names = [group.name for group in self.groups]
        good = all(names) and len(set(names)) == len(names)
        _need(good, "name", names, "studies that are driven as one need names that differ")

    @property
    def studies(self) -> tuple[StudySpec, ...]:
        """Each of several studies as it would be alone; of one that is alone, itself."""
        return tuple(map(self._alone, self.groups)) or (self,)

    def _alone(self, group: GroupSpec) -> StudySpec:
        return replace(
            self,
            name=group.name,
            policy=group.policy,
            generator=group.generator,
            curves=group.curves,
            budget=replace(self.budget, target=group.target, trials=group.trials),
            groups=(),
        )

    @property
    def sign(self) -> float:
        """+1 where lower is better, -1 where higher is: loss = sign x value."""
        return 1.0 if self.mode == "min" else -1.0

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The metric's range as losses."""
        return None if self.range is None else bounds_of(self.range, self.mode)


def _need(good: bool, label: str, found: object, rule: str) -> None:
    if not good:
        raise SpecError(f"{label}={found!r} cannot be meant: {rule}.")


def bounds_of(range_: tuple[float, float], mode: Mode) -> tuple[float, float]:
    """Turn the range of a metric so that lower is better."""
    low, high = range_
    return range_ if mode == "min" else (-high, -low)


def finite(value: float | None) -> float | None:
    """Settle a reported number at the door: what is not finite is None from here on."""
    return value if value is not None and math.isfinite(value) else None


def loss_of(value: float | None, sign: float) -> float:
    """Turn a metric so that lower is better; what is not a number ranks last."""
    return NO_LOSS if value is None or not math.isfinite(value) else sign * value


# The levels at which a forecast states its quantiles, dense in the tails where decisions are made.
LEVELS = (0.005, 0.025, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.975, 0.995)


# The exponential tail whose density goes on where the outermost piece's ends, per its width.
TAIL = LEVELS[0] / (LEVELS[1] - LEVELS[0])


def chance_of(row: Sequence[float], loss: float) -> float:
    """Return the probability of `loss` or lower by a row of quantiles at LEVELS.

    Between quantiles it runs straight; beyond the outermost ones it fades exponentially, and at
    once where they coincide.
    """
    if loss < row[0]:
        tail = TAIL * (row[1] - row[0])
        return LEVELS[0] * math.exp((loss - row[0]) / tail) if tail > 0 else 0.0
    if loss > row[-1]:
        tail = TAIL * (row[-1] - row[-2])
        return 1 - (LEVELS[0] * math.exp((row[-1] - loss) / tail) if tail > 0 else 0.0)
    at = bisect_right(row, loss)
    if at == len(row):
        return LEVELS[-1]
    share = (loss - row[at - 1]) / (row[at] - row[at - 1])
    return LEVELS[at - 1] + share * (LEVELS[at] - LEVELS[at - 1])


class Forecast(Struct, frozen=True):
    """Where a curve may go: quantiles of the loss at later epochs, never a bare number."""

    # Rising epochs, all later than the curve's last.
    epochs: tuple[int, ...]
    # For each epoch the losses at LEVELS, rising.
    quantiles: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        if len(self.epochs) != len(self.quantiles) or not self.epochs:
            raise SpecError("a forecast needs one row of quantiles for each of its epochs")
        if any(later <= sooner for sooner, later in pairwise(self.epochs)):
            raise SpecError("a forecast's epochs must rise")
        for row in self.quantiles:
            rising = all(low <= high for low, high in pairwise(row))
            if len(row) != len(LEVELS) or not rising or not all(map(math.isfinite, row)):
                raise SpecError(f"a forecast needs {len(LEVELS)} finite, rising quantiles an epoch")

    def median(self, epoch: int) -> float:
        """Return the middle of what the loss may be at that epoch."""
        return self.row(epoch)[len(LEVELS) // 2]

    def chance(self, epoch: int, loss: float) -> float:
        """Return the probability that the loss at that epoch is `loss` or lower."""
        return chance_of(self.row(epoch), loss)

    def row(self, epoch: int) -> Sequence[float]:
        """Return the quantiles for that epoch."""
        try:
            return self.quantiles[self.epochs.index(epoch)]
        except ValueError:
            raise SpecError(
                f"this forecast says nothing about epoch {epoch}: it covers {self.epochs}"
            ) from None
