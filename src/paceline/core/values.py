"""Values that describe a study: configs, budgets, targets, parts, the spec.

Defines their shapes and limits, not how they are used.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from paceline.core.errors import SpecError

TrialId: TypeAlias = int
AttemptId: TypeAlias = int
SlotId: TypeAlias = int
Mode = Literal["min", "max"]

# A hyperparameter's value: anything JSON can hold. A schedule is `{"piecewise": [[0, a], …]}`, or a
# rule: `{"each_epoch": "linear", "start": a, …}`.
# `Any` because the type is recursive, and msgspec would check it at every decode.
Value: TypeAlias = Any
Config: TypeAlias = dict[str, Value]

# The metrics of one epoch; None stands for NaN and infinity.
Metrics: TypeAlias = dict[str, float | None]

# The loss of an epoch without a number. It ranks last in every comparison.
NO_LOSS = math.inf

# The metric of a study that was given no other: the number that its function returns or reports.
DEFAULT_METRIC = "value"


# The last epoch of trials whose length only their training function knows: none reaches it.
OPEN_ENDED = 1_000_000
# Generators that propose a known number of configs.
FINITE_GENERATORS = ("grid", "queued")


class Status(StrEnum):
    """The state of a trial. The first three are alive, the last three are final."""

    # It has a goal ahead and no attempt: listed in `study.ready`.
    READY = "ready"
    # An attempt trains for it: its own, or one that trains a shared prefix.
    RUNNING = "running"
    # It reached its goal and saved; it continues when the policy raises the goal.
    PAUSED = "paused"
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
    """Limits of a study. The first one reached ends it; None means unlimited."""

    # Seconds of the study's own clock, which stands still while no driver runs.
    deadline_s: float | None = None
    target: Target | None = None
    slot_seconds: float | None = None
    trials: int | None = None


class Saves(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """When checkpoints are written besides stage ends and branches."""

    # Save when this many seconds have passed since the last save; None: never for that reason.
    every_s: float | None = None
    # Delete checkpoints as soon as they are no longer needed.
    collect: bool = False
    # The total size of all checkpoints, if they are collected; None for unlimited.
    bytes: int | None = None
    # Keep the last checkpoint of this many best finished trials; None for all.
    best: int | None = None


class PlanKey(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The name and version of training code and data.

    Studies in one store with the same key and seed share their common prefixes.
    """

    name: str
    # Empty: the user guarantees that code and data behind the name have not changed.
    version: str = ""

    def __str__(self) -> str:
        return f"{self.name}@{self.version}" if self.version else self.name


class GroupSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One of several studies that are driven together: the options of its own."""

    name: str
    policy: Part
    generator: Part
    curves: Part = Part("last")
    target: Target | None = None
    trials: int | None = None


class StudySpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The description of a study. Written to the first entry of the log, never changed."""

    name: str
    metric: str
    mode: Mode
    # The last epoch of every trial.
    epochs: int
    # The smallest and largest possible value of the metric, if known.
    range: tuple[float, float] | None = None
    policy: Part
    generator: Part
    allocator: Part = Part("fixed")
    curves: Part = Part("last")
    budget: Budget = Budget()
    saves: Saves = Saves()
    seed: int = 0
    # Train common prefixes of trials once: epochs with equal settings.
    share: bool = False
    # The key under which results are shared with other studies; None for not at all.
    plan: PlanKey | None = None
    # Wait for more trials when none is left to run: an outside tuner submits them.
    standing: bool = False
    # The training function asks for its hyperparameters while it runs: there is no space.
    define_by_run: bool = False
    # How often a trial may fail and be tried again. Lost attempts do not count.
    retries: int = 3
    # At most `pack` trials on one slot, at most `span` slots for one trial.
    pack: int = 1
    span: int = 1
    # The width a trial needs depends on its settings; every Open has it.
    fit: bool = False
    # Several studies driven together, each with parts and limits of its own. The fields above then
    # apply to all of them; `policy`, `generator` and `curves` only list theirs for a reader.
    groups: tuple[GroupSpec, ...] = ()

    def __post_init__(self) -> None:
        budget, target = self.budget, self.budget.target
        _need(bool(self.name), "name", self.name, "must not be empty")
        _need(self.mode in ("min", "max"), "mode", self.mode, "must be 'min' or 'max'")
        _need(self.epochs >= 1, "epochs", self.epochs, "must be at least 1")
        _need(self.retries >= 0, "retries", self.retries, "must be 0 or more")
        _need(self.pack >= 1, "pack", self.pack, "the trials that may share a slot, 1 or more")
        _need(self.span >= 1, "span", self.span, "the slots that a trial may hold, 1 or more")
        for label, limit in (
            ("deadline_s", budget.deadline_s),
            ("slot_seconds", budget.slot_seconds),
            ("trials", budget.trials),
            ("bytes", self.saves.bytes),
        ):
            good = limit is None or (limit > 0 and math.isfinite(limit))
            _need(good, label, limit, "must be positive; leave it out for no limit")
        if self.range is not None:
            low, high = self.range
            good = math.isfinite(low) and math.isfinite(high) and low < high
            _need(good, "range", self.range, "must be two rising numbers, such as (0, 1)")
        every = self.saves.every_s
        _need(every is None or every >= 0, "every_s", every, "must be 0 or more seconds")
        if target is not None:
            _need(math.isfinite(target.value), "target", target.value, "must be a finite number")
            _need(target.over >= 1, "over", target.over, "the reports to average, 1 or more")
        names = [group.name for group in self.groups]
        good = all(names) and len(set(names)) == len(names)
        _need(good, "name", names, "studies that run together need different names")

    @property
    def studies(self) -> tuple[StudySpec, ...]:
        """The spec of each of several studies as if it ran alone; one study gives itself."""
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
        """+1 if lower is better, -1 if higher is: loss = sign x value."""
        return 1.0 if self.mode == "min" else -1.0

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The metric's range as losses."""
        return None if self.range is None else to_loss_bounds(self.range, self.mode)


def _need(good: bool, label: str, found: object, rule: str) -> None:
    if not good:
        raise SpecError(f"{label}={found!r} is invalid: {rule}.")


def to_loss_bounds(range_: tuple[float, float], mode: Mode) -> tuple[float, float]:
    """Convert the range of a metric to losses."""
    low, high = range_
    return range_ if mode == "min" else (-high, -low)


def finite_or_none(value: float | None) -> float | None:
    """Return the number, or None if it is not finite."""
    return value if value is not None and math.isfinite(value) else None


def to_loss(value: float | None, sign: float) -> float:
    """Convert a metric to a loss (lower is better); NaN and infinity rank last."""
    return NO_LOSS if value is None or not math.isfinite(value) else sign * value
