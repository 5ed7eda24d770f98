"""Views: a study as the brains may see it.

Read-only by contract and cheap: reading one copies no history. Metrics are losses here: lower is
better.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from paceline.core.values import Config, Forecast, Status, StudySpec, TrialId


class TrialView(Protocol):
    """A trial as the brains may see it: its reports up to its goal, in losses (lower is better)."""

    @property
    def id(self) -> TrialId: ...
    @property
    def config(self) -> Config: ...
    @property
    def epoch(self) -> int:
        """Epochs seen so far."""
        ...

    @property
    def goal(self) -> int: ...
    @property
    def status(self) -> Status: ...
    @property
    def alive(self) -> bool:
        """Whether it may still train: neither finished nor stopped nor failed."""
        ...

    @property
    def loss(self) -> float:
        """The last loss seen; infinite before the first report and where there was no number."""
        ...

    @property
    def best_loss(self) -> float: ...
    @property
    def losses(self) -> Sequence[float]:
        """The loss of each epoch seen. A view: no copy is made."""
        ...

    @property
    def seconds(self) -> Sequence[float]:
        """The duration of each epoch seen."""
        ...

    def metric(self, name: str) -> Sequence[float | None]:
        """Return any reported metric, as reported, for each epoch seen."""
        ...

    def origin(self, epoch: int) -> int:
        """Return a number that is the same for two trials exactly if they share that epoch."""
        ...

    @property
    def forecast(self) -> Forecast | None:
        """The newest answered forecast of this trial."""
        ...

    @property
    def failures(self) -> int: ...


class ForesightView(Protocol):
    """How far this study's forecasts can be trusted, by what came of the earlier ones."""

    def chance(self, forecast: Forecast, epoch: int, loss: float) -> float:
        """Return the probability of `loss` or lower, as experience in this study corrects it."""
        ...

    @property
    def distrust(self) -> str:
        """Why chances should not be used now; empty where they may be."""
        ...


class StudyView(Protocol):
    """The study as the brains may see it."""

    @property
    def spec(self) -> StudySpec: ...
    @property
    def now(self) -> float: ...
    @property
    def deadline_s(self) -> float | None:
        """When the study ends at the latest, on the clock of `now`."""
        ...

    @property
    def trials(self) -> Sequence[TrialView]:
        """All trials, by id; of one of several studies driven as one, its own, still by id."""
        ...

    @property
    def delivered(self) -> Sequence[TrialView]:
        """The trials that have seen one more epoch by the entry now being taken."""
        ...

    @property
    def departed(self) -> Sequence[TrialView]:
        """The trials that ended for good by the entry now being taken."""
        ...

    @property
    def ready(self) -> Collection[TrialId]:
        """Trials with a goal ahead and nobody working for them, in the order of their line.

        Longest waiting first; where trials share prefixes, who has the longest path to its goal.
        A policy that treats all of them alike takes the first.
        """
        ...

    @property
    def live(self) -> int:
        """Trials that are neither finished nor stopped nor failed."""
        ...

    @property
    def running(self) -> int:
        """Attempts that hold slots."""
        ...

    @property
    def capacity(self) -> int:
        """Slots there are, held or free."""
        ...

    @property
    def free(self) -> float:
        """Slots that nobody holds; a shared slot counts by its free share."""
        ...

    @property
    def new(self) -> bool:
        """Whether a new trial may be opened now."""
        ...

    @property
    def closed(self) -> bool:
        """Whether no new trial will ever be opened again."""
        ...

    @property
    def best(self) -> TrialView | None: ...
    @property
    def best_loss(self) -> float: ...
    @property
    def foresight(self) -> ForesightView: ...
