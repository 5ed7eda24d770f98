"""Views: what policies, generators, allocators and engines may read of a study.

Read-only by contract and cheap: reading copies no history. Metrics are losses here: lower is
better.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from paceline.core.forecast_quantiles import Forecast
    from paceline.core.values import AttemptId, Config, Status, StudySpec, TrialId


class TrialView(Protocol):
    """A trial as parts may read it: its reports up to its goal, as losses (lower is better)."""

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
        """Whether the trial may still train: it is not finished, stopped or failed."""
        ...

    @property
    def loss(self) -> float:
        """The last loss seen; infinite before the first report, and for NaN."""
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


class CalibrationView(Protocol):
    """How far this study's forecasts can be trusted, judged by earlier ones."""

    def chance(self, forecast: Forecast, epoch: int, loss: float) -> float:
        """Return the probability of `loss` or lower, corrected by earlier forecasts."""
        ...

    def correct(self, stated: float) -> float:
        """Return a probability that a forecast states, corrected by earlier forecasts.

        The order of two probabilities stays: the larger one is never corrected to less.
        """
        ...

    @property
    def scored(self) -> int:
        """The number of forecasts whose first epoch was reported, so that it shows their errors."""
        ...

    @property
    def distrust(self) -> str:
        """Why forecasts should not be used now; empty if they may be used."""
        ...


class StudyView(Protocol):
    """A study as parts may read it."""

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
        """All trials by id; for one of several studies driven together, only its own."""
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
        """Trials that have a goal ahead and no attempt, in queue order.

        Longest waiting first; if trials share prefixes, longest path to the goal first. A policy
        that treats all of them alike takes the first.
        """
        ...

    @property
    def live(self) -> int:
        """The number of trials that are not finished, stopped or failed."""
        ...

    @property
    def running(self) -> int:
        """The number of attempts that hold slots."""
        ...

    @property
    def capacity(self) -> int:
        """The number of slots, held or free."""
        ...

    @property
    def free(self) -> float:
        """The number of free slots; a shared slot counts by its free share."""
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
    def calibration(self) -> CalibrationView: ...


class EngineView(Protocol):
    """A study as an engine may read it while it carries out a step."""

    def config(self, trial: TrialId) -> Config:
        """Return the config of a trial."""
        ...

    def group(self, trial: TrialId) -> int:
        """Return the number of the trial's study if several are driven together; else 0."""
        ...

    def best_loss_for(self, trial: TrialId) -> float:
        """Return the best loss of the trial's study so far; infinite if there is none."""
        ...

    def checkpoint_digest(self, checkpoint: tuple[AttemptId, int]) -> str | None:
        """Return the digest of a checkpoint, by attempt and epoch; None: it was dropped."""
        ...
