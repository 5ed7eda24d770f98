"""Trial and Attempt as the state keeps them.

Knows their fields and what can be read off them. They change in `state.py` alone; everybody else
sees them through the read-only views of `core.ports`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, TypeAlias, overload

from paceline.core.values import NO_LOSS, Config, Forecast, SlotId, Status, StudySpec, TrialId
from paceline.plan.tree import Node, node_of, way

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from paceline.core.decisions import Launch, Need
    from paceline.core.values import AttemptId

Leaf: TypeAlias = "Node[Trial, Attempt]"

# A first epoch may not have shown all that training takes.
_HEADROOM = 1.1


class Trial:
    """One config on its way to its last epoch. Sees its path's reports up to its goal."""

    __slots__ = (
        "asked",
        "attempt",
        "best_epoch",
        "best_loss",
        "config",
        "ended",
        "epoch",
        "failures",
        "forecast",
        "goal",
        "group",
        "id",
        "leaf",
        "least",
        "loss",
        "mark",
        "needs",
        "opened_at",
        "source",
        "spec",
    )

    def __init__(self, number: TrialId, config: Config, leaf: Leaf, spec: StudySpec) -> None:
        self.id = number
        self.config = config
        self.leaf = leaf
        self.spec = spec
        self.opened_at = 0.0
        # The trial it was forked from.
        self.source: TrialId | None = None
        # Whose it is, where several studies are driven as one.
        self.group = 0
        # What its stages need, where that was declared.
        self.needs: tuple[Need, ...] = ()
        self.epoch = 0
        self.goal = 0
        # The last epoch at which it was to leave a checkpoint for others; 0: at none.
        self.mark = 0
        self.loss = NO_LOSS
        self.best_loss = NO_LOSS
        self.best_epoch = 0
        self.failures = 0
        # The least width at which its memory has room, as far as it was measured; 0: it was not.
        self.least = 0.0
        # How it ended for good; None while it lives.
        self.ended: Status | None = None
        # Who trains for it now: its own attempt, or one on a prefix it shares.
        self.attempt: Attempt | None = None
        self.forecast: Forecast | None = None
        # The last epoch at which a forecast was asked for.
        self.asked = 0

    @property
    def alive(self) -> bool:
        return self.ended is None

    def takes(self, memory: float) -> float:
        """It took this share of a slot's memory; return the least width at which it has room."""
        share = memory * _HEADROOM
        self.least = max(self.least, 1.0 if share > 0.5 else 1.0 / int(1.0 / share))
        return self.least

    @property
    def status(self) -> Status:
        if self.ended is not None:
            return self.ended
        if self.attempt is not None:
            return Status.RUNNING
        return Status.READY if self.goal > self.epoch else Status.WAITING

    @property
    def losses(self) -> Sequence[float]:
        return self._column(lambda node: node.losses)

    @property
    def seconds(self) -> Sequence[float]:
        return self._column(lambda node: node.seconds)

    def metric(self, name: str) -> Sequence[float | None]:
        """Return a reported metric for each epoch seen; None where it was not a number."""
        values: list[float | None] = []
        for node in reversed(way(self.leaf)):
            if name == self.spec.metric:
                sign = self.spec.sign
                values += (None if loss == NO_LOSS else sign * loss for loss in node.losses)
            else:
                said = (metrics.get(name) for metrics in node.extra or ())
                values += islice(chain(said, repeat(None)), len(node.losses))
        return values[: self.epoch]

    @property
    def metrics(self) -> Sequence[str]:
        """The names of all metrics that were reported on its way, the objective first."""
        rows = (row for node in way(self.leaf) for row in node.extra or ())
        return list(dict.fromkeys([self.spec.metric, *(name for row in rows for name in row)]))

    def origin(self, epoch: int) -> int:
        return node_of(self.leaf, epoch).birth

    def _column(self, column: Callable[[Leaf], Sequence[float]]) -> Sequence[float]:
        leaf = self.leaf
        if leaf.parent is None and len(leaf.losses) == self.epoch:
            return column(leaf)
        return Curve([column(node) for node in reversed(way(leaf))], self.epoch)


class Attempt:
    """One life of a process, or gang of processes, executing stages."""

    __slots__ = (
        "epoch",
        "goal",
        "halting",
        "id",
        "launched_at",
        "members",
        "save_at",
        "slots",
        "source",
        "start",
        "trial",
        "turns",
        "version",
        "width",
        "yielding",
    )

    def __init__(self, number: AttemptId, trial: Trial, start: int) -> None:
        self.id = number
        # Whose path it follows.
        self.trial = trial
        self.start = start
        # The attempt that saved the checkpoint it started from.
        self.source: AttemptId | None = None
        # The last epoch it has reported.
        self.epoch = start
        self.goal = start
        self.save_at: tuple[int, ...] = ()
        self.version = 0
        # The orders that led it on to another trial's path, and the epoch after which these part.
        self.turns: tuple[tuple[int, int], ...] = ()
        self.slots: tuple[SlotId, ...] = ()
        self.width = 0.0
        self.launched_at = 0.0
        # The trials it trains for. Empty once all have what they wanted.
        self.members: tuple[Trial, ...] = ()
        # It was told to end at once: nobody may join it any more.
        self.halting = False
        # It must save and go at its next epoch end, because its slots or its width change.
        self.yielding = False

    @classmethod
    def launched(cls, decision: Launch, trial: Trial, now: float) -> Attempt:
        """Return the attempt that this decision starts now."""
        attempt = cls(decision.attempt, trial, decision.start)
        attempt.source = decision.source
        attempt.goal = decision.goal
        attempt.save_at = decision.save_at
        attempt.slots = decision.slots
        attempt.width = decision.width
        attempt.launched_at = now
        return attempt

    @property
    def parked(self) -> bool:
        """Whether it is about to save at its last epoch."""
        return self.epoch >= self.goal or self.epoch in self.save_at

    def strayed(self, epoch: int, version: int | None) -> bool:
        """Whether an epoch trained by this order lies on a path that it should have left."""
        if version is None:
            return False
        return any(order > version and epoch > parted for order, parted in self.turns)


class Curve(Sequence[float]):
    """The first `length` numbers of several columns, read in place."""

    __slots__ = ("_columns", "_length")

    def __init__(self, columns: list[Sequence[float]], length: int) -> None:
        self._columns = columns
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[float]:
        return islice((number for column in self._columns for number in column), self._length)

    @overload
    def __getitem__(self, index: int) -> float: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[float]: ...
    def __getitem__(self, index: int | slice) -> float | Sequence[float]:
        if isinstance(index, slice):
            return list(self)[index]
        at = index + self._length if index < 0 else index
        if not 0 <= at < self._length:
            raise IndexError(f"epoch {index} of a curve of {self._length}")
        for column in self._columns:
            if at < len(column):
                return column[at]
            at -= len(column)
        raise IndexError(f"epoch {index} of a curve of {self._length}")  # pragma: no cover
