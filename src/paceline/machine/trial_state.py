"""Trials and attempts as the state keeps them.

Knows their fields and what follows from them. They change in `state.py` and `assignment.py` only;
parts see them through the read-only views of `core.views`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, TypeAlias, overload

from paceline.core.values import NO_LOSS, Config, Status, StudySpec, TrialId
from paceline.plan.tree import Node, find_node, path_to_root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from paceline.core.decisions import Launch, StageWidth
    from paceline.core.domains import Domain
    from paceline.core.forecast_quantiles import Forecast
    from paceline.core.values import AttemptId
    from paceline.machine.failures import Failure

Leaf: TypeAlias = "Node[TrialState, AttemptState]"

# Shared by all trials without domains or attributes; replaced, never changed.
_NOTHING: Config = {}
# The first epoch may not have used all the memory that training needs.
_HEADROOM = 1.1


class TrialState:
    """One config and how far it has come. It sees the reports of its path up to its goal."""

    __slots__ = (
        "alive",
        "attempt",
        "attrs",
        "best_epoch",
        "best_loss",
        "config",
        "dedicated",
        "domains",
        "ended",
        "epoch",
        "failure",
        "failures",
        "forecast",
        "forecast_epoch",
        "fork_epoch",
        "goal",
        "group",
        "id",
        "last_attempt",
        "leaf",
        "least_width",
        "loss",
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
        # The domains of the hyperparameters that its function asked for while it ran.
        self.domains: Mapping[str, Domain] = _NOTHING
        # The values that its function attached to it.
        self.attrs: Config = _NOTHING
        # The trial it was forked from.
        self.source: TrialId | None = None
        # Its study, by index, if several are run as one.
        self.group = 0
        # The width that each stage needs, if that was declared.
        self.needs: tuple[StageWidth, ...] = ()
        self.epoch = 0
        self.goal = 0
        # The last epoch at which trials may fork from it; 0: none.
        self.fork_epoch = 0
        self.loss = NO_LOSS
        self.best_loss = NO_LOSS
        self.best_epoch = 0
        self.failures = 0
        # Why it failed last, also if a later attempt went well; None: it never failed.
        self.failure: Failure | None = None
        # The attempt that was launched for it last; None: others have trained all its epochs.
        self.last_attempt: AttemptId | None = None
        # The smallest width whose memory suffices; 0 if never measured.
        self.least_width = 0.0
        # The slots that its policy dedicates to it; 0: the allocator decides alone.
        self.dedicated = 0.0
        # How it ended for good; None: it is alive. Both are read at every report.
        self.ended: Status | None = None
        self.alive = True
        # The attempt that trains for it: its own, or one on a prefix it shares.
        self.attempt: AttemptState | None = None
        self.forecast: Forecast | None = None
        # The last epoch at which a forecast was requested.
        self.forecast_epoch = 0

    def end(self, how: Status) -> None:
        """End it for good."""
        self.ended, self.alive = how, False

    def record_memory(self, memory: float) -> float:
        """Record the share of a slot's memory it took; return the smallest width that suffices."""
        share = memory * _HEADROOM
        self.least_width = max(self.least_width, 1.0 if share > 0.5 else 1.0 / int(1.0 / share))
        return self.least_width

    @property
    def status(self) -> Status:
        if self.ended is not None:
            return self.ended
        if self.attempt is not None:
            return Status.RUNNING
        return Status.READY if self.goal > self.epoch else Status.PAUSED

    @property
    def losses(self) -> Sequence[float]:
        return self._column(lambda node: node.losses)

    @property
    def seconds(self) -> Sequence[float]:
        return self._column(lambda node: node.seconds)

    def metric(self, name: str) -> Sequence[float | None]:
        """Return a reported metric for each epoch seen; None where it was not a number."""
        values: list[float | None] = []
        for node in reversed(path_to_root(self.leaf)):
            if name == self.spec.metric:
                sign = self.spec.sign
                values += (None if loss == NO_LOSS else sign * loss for loss in node.losses)
            else:
                extra = (metrics.get(name) for metrics in node.extra or ())
                values += islice(chain(extra, repeat(None)), len(node.losses))
        return values[: self.epoch]

    @property
    def metrics(self) -> Sequence[str]:
        """The names of all metrics reported on its path, the objective first."""
        rows = (row for node in path_to_root(self.leaf) for row in node.extra or ())
        return list(dict.fromkeys([self.spec.metric, *(name for row in rows for name in row)]))

    def origin(self, epoch: int) -> int:
        return find_node(self.leaf, epoch).origin

    def _column(self, column: Callable[[Leaf], Sequence[float]]) -> Sequence[float]:
        leaf = self.leaf
        if leaf.parent is None and len(leaf.losses) == self.epoch:
            return column(leaf)
        return Curve([column(node) for node in reversed(path_to_root(leaf))], self.epoch)


class AttemptState:
    """One run of a worker process, or of a gang of them, along a trial's path."""

    __slots__ = (
        "epoch",
        "goal",
        "has_ignored_epochs",
        "id",
        "is_halting",
        "last_epoch",
        "launched_at",
        "members",
        "must_yield",
        "ordered_at",
        "own_events",
        "path_changes",
        "save_at",
        "slots",
        "source",
        "stage_start",
        "start",
        "trial",
        "version",
        "width",
    )

    def __init__(self, launch: Launch, trial: TrialState, now: float) -> None:
        self.id = launch.attempt
        # The trial whose path it follows.
        self.trial = trial
        self.start = start = launch.start
        # The epoch at which the stage began that its width is for: a later one needs another width.
        self.stage_start = start
        # The attempt that saved the checkpoint it started from.
        self.source = launch.source
        # The last epoch it has reported.
        self.epoch = start
        self.goal = launch.goal
        self.save_at = launch.save_at
        self.version = 0
        # (version of the order, epoch after which the paths part) for each change of its path.
        self.path_changes: tuple[tuple[int, int], ...] = ()
        self.slots = launch.slots
        self.width = launch.width
        self.launched_at = now
        # The study's last epoch when it was launched: its process trains no further.
        self.last_epoch = 0
        # The trials it trains for; empty once all are at their goals.
        self.members: tuple[TrialState, ...] = ()
        # It has trained epochs that count for no trial: its path had changed, or the study ended.
        self.has_ignored_epochs = False
        # It was told to end at once: no trial may join it any more.
        self.is_halting = False
        # It must save and end after this epoch, because its slots or its width change.
        self.must_yield = False
        # The number of events about it, and of all others when it was ordered to end.
        self.own_events = 0
        self.ordered_at: int | None = None

    @property
    def saves_here(self) -> bool:
        """Whether it is about to save at its epoch."""
        return self.epoch >= self.goal or self.epoch in self.save_at

    @property
    def may_have_returned_early(self) -> bool:
        """Whether a return of its function means that its trials have no further epochs."""
        return self.epoch < self.last_epoch and not self.has_ignored_epochs

    def has_strayed(self, epoch: int, version: int | None) -> bool:
        """Whether an epoch trained under this order version lies on a path it had to leave."""
        if version is None:
            return False
        return any(order > version and epoch > parted for order, parted in self.path_changes)


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
