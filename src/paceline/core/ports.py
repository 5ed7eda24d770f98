"""Ports: the protocols of parts (policies, generators, …), engines, stores and storages.

Defines shapes only. What a part may read of a study is in `core.views`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

from msgspec import Struct

from paceline.core.decisions import (
    AskForecast,
    AskProposal,
    Close,
    Cut,
    End,
    Entry,
    Go,
    Pause,
    Step,
    Stop,
    WakeAt,
)
from paceline.core.values import Config, Metrics, TrialId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from paceline.core.events import AnyEvent, Command, Forecasted, Proposed
    from paceline.core.forecast_quantiles import Forecast
    from paceline.core.values import SlotId
    from paceline.core.views import EngineView, StudyView, TrialView


def see_nothing(entry: Entry, study: StudyView) -> None:
    """Ignore an entry; for parts without memory: `see = staticmethod(see_nothing)`."""


def train_to_the_end(trial: TrialView, study: StudyView) -> Sequence[Verdict]:
    """Let a trial of an extended study train to its last epoch, as a policy without rungs does."""
    if trial.goal >= study.spec.epochs:
        return ()
    why = f"the study was extended: trials now train to epoch {study.spec.epochs}"
    return (Go(trial=trial.id, until=study.spec.epochs, why=why),)


class Fork(Struct, frozen=True, kw_only=True):
    """Stop a trial and open one that equals `source` up to `epoch` and then has these changes."""

    trial: TrialId
    source: TrialId
    epoch: int
    changes: Config
    until: int
    why: str


Verdict: TypeAlias = Go | Pause | Cut | Stop | Fork | AskForecast | WakeAt | Close | End


class Pick(Struct, frozen=True, gc=False):
    """The trial that gets the free slot. `trial=None` opens a new one; `until` is its new goal."""

    trial: TrialId | None
    until: int
    why: str
    # As `label` of a decision.
    label: str = ""
    # The slots that the policy dedicates to the trial; 0: the allocator decides alone.
    width: float = 0


class Policy(Protocol):
    """Judges trials. Only `see` may change its memory; the other methods only read.

    A policy that pauses trials may define two more methods. `readmit(trial, study)` returns
    verdicts on a live trial of a study that was extended; without it, such trials train to the last
    epoch. `count_waiting(study, new)` returns how many more trials it would start if slots were
    free, paused ones and at most `new` new ones, so that an allocator leaves room for them; without
    it, `new` of them.
    """

    def see(self, entry: Entry, study: StudyView) -> None:
        """Update the memory with an entry, live and on resume; `study` is the state after it."""
        ...

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        """Return verdicts on trials after this one got a report, a forecast or a wake-up."""
        ...

    def next(self, study: StudyView) -> Pick | None:
        """Pick a ready, paused or new trial for the free slot; None leaves the slot free.

        A new trial's goal is 1 or later; a ready trial keeps its goal if the pick's is lower.
        """
        ...

    def admit(self, study: StudyView) -> int | None:
        """Return how many trials may be alive at once; None for any number."""
        ...


# A policy chooses among this many configs at most.
WIDEST_WINDOW = 1000


class ChoosingPolicy(Policy, Protocol):
    """A policy that chooses which config a new trial gets, if the generator has `ordered`."""

    # Among how many of the generator's next configs.
    window: int

    def choose(self, configs: Mapping[int, Config], study: StudyView) -> int:
        """Return the number of one of these configs."""
        ...


class Generator(Protocol):
    """Proposes configs.

    A generator that ends may define `count_left(number, study)` too, which returns how many configs
    it can still propose, from this number on; None: it has no end. One whose configs depend on
    their numbers alone may have `ordered`: from this number on, their order is free, and the policy
    may choose among the next ones; None: it is not.
    """

    @property
    def pure(self) -> bool:
        """Whether proposals are a function of the log, so that a replay can ask again."""
        ...

    def see(self, entry: Entry, study: StudyView) -> None: ...

    def propose(self, number: int, study: StudyView) -> Config | None:
        """Return the config of this number, counted from 0; None ends the generator for good.

        Randomness comes from `core.rng.stream(study.spec.seed, …)`, named by what it is for.
        """
        ...


# The slots that an epoch with these settings needs: a whole number, or a share of one slot.
Needs: TypeAlias = "Callable[[Config], float]"


class Demand(Protocol):
    """What one trial could use. Computed when read."""

    @property
    def trial(self) -> TrialId: ...
    @property
    def work(self) -> float:
        """Seconds to its goal on one slot: measured, or estimated from other trials' epochs."""
        ...

    @property
    def width(self) -> float:
        """The width it holds, or will hold after a move; 0 if it has no slot.

        On a shared slot, 1/k if k trials are on it: a trial that is alone there has all of it.
        """
        ...

    @property
    def least(self) -> float:
        """The smallest width that its current stage can run with; 0 if unknown."""
        ...

    @property
    def slots(self) -> Sequence[SlotId]:
        """The slots it holds, alone or with other trials."""
        ...


class Demands(Protocol):
    """The trials that hold or need slots, and how much faster a width makes them."""

    @property
    def asking(self) -> Demand | None:
        """The trial that is about to start; None if running trials may be moved instead."""
        ...

    def running(self) -> Iterator[Demand]: ...
    def ready(self) -> Iterator[Demand]:
        """Yield ready trials in the order of `study.ready`, without the asking one."""
        ...

    @property
    def coming(self) -> bool:
        """Whether new trials would be opened if slots were free."""
        ...

    @property
    def expected(self) -> float:
        """How many more trials would start if slots were free: paused and new; may be infinite."""
        ...

    @property
    def idle(self) -> int:
        """The number of slots that no trial holds or is about to take."""
        ...

    def speed(self, width: float) -> float:
        """Return the speed at this width relative to one slot, measured or by the prior."""
        ...

    def measured(self, width: float) -> bool:
        """Return whether the speed at this width was measured."""
        ...


class Allocator(Protocol):
    """Turns demands and capacity into widths."""

    def see(self, entry: Entry, study: StudyView) -> None: ...

    def place(self, demands: Demands, study: StudyView) -> Mapping[TrialId, float]:
        """Return a width for the asking trial, or for running ones that should change theirs.

        A width is a whole number of slots, or one over a whole number, and at least the demand's
        `least`. An asking trial without an entry gets one slot, or its `least`. If fewer slots are
        free than it was given, it starts on the free ones, provided they reach its `least`. A
        running trial moves only if the move pays for its cost (`machine.scheduler` decides).
        """
        ...


class Other(Struct, frozen=True):
    """The curve so far and the config of another trial of the same study."""

    losses: Sequence[float]
    config: Config


class History(Struct, frozen=True):
    """The input of a curve model: a curve so far, and what is known about its trial."""

    losses: Sequence[float]
    # The epochs to predict.
    horizons: Sequence[int]
    # The last epoch this trial could reach.
    epochs: int
    config: Config
    # The smallest and the largest possible loss, if the user declared the metric's range.
    bounds: tuple[float, float] | None = None
    # Trials of the same study, those with the most epochs first; as many as the model asks for.
    others: Sequence[Other] = ()


class CurveModel(Protocol):
    """Predicts later values of curves, many curves per call.

    Of more than 20 requested epochs a model is asked for 20, evenly spread, as its curves are
    smooth. One that knows more about each epoch has an attribute `every_epoch = True`.
    """

    @property
    def others(self) -> int:
        """How many other trials of the study the model wants with each curve."""
        ...

    def forecast(self, histories: Sequence[History]) -> Sequence[Forecast | None]:
        """Return a forecast for each curve; None if the model has none."""
        ...


class Advisor(Protocol):
    """Answers requests for forecasts and proposals, on behalf of an engine."""

    def answer(self, ask: AskForecast | AskProposal) -> Callable[[], Forecasted | Proposed]:
        """Read the request's inputs now, and return a function that computes the answer.

        The function may run in another thread: it reads nothing that changes.
        """
        ...


class Outcome(Struct, frozen=True, gc=False):
    """The result of one epoch of simulated training."""

    metrics: Metrics
    seconds: float
    state: object
    # The training function returns after this epoch.
    last: bool = False


class Crash(Struct, frozen=True):
    """Simulated training failed this many seconds into the epoch."""

    seconds: float
    note: str
    # Not a failure: the training function returned without another epoch.
    over: bool = False


class Workload(Protocol):
    """What the simulator trains: pure arithmetic that can start from any state."""

    @property
    def metric(self) -> str: ...

    def begin(self, config: Config) -> object:
        """Return the state before the first epoch."""
        ...

    def setup_s(self, state: object) -> float | None:
        """Return the seconds that starting a process in this state takes; None if unknown."""
        ...

    def advance(self, state: object, setting: Config) -> Outcome | Crash:
        """Train one epoch under these settings.

        A recorded workload raises SpecError for settings that were never recorded.
        """
        ...


class Engine(Protocol):
    """Carries out decisions and returns events; the only object that reads a clock."""

    @property
    def now(self) -> float:
        """Seconds on the study's clock."""
        ...

    def apply(self, step: Step, study: EngineView) -> None:
        """Carry out a step's decisions; applying a step twice has no further effect."""
        ...

    def wait(self, patience: float | None = None) -> Sequence[AnyEvent] | None:
        """Wait for the next events and return them in order of time.

        Returns an empty list after `patience` seconds, and None if no event will ever come again,
        as after `close`. A Woke has exactly the requested time, even if it comes late.
        """
        ...

    def close(self) -> None:
        """End all running attempts."""
        ...


class Store(Protocol):
    """Keeps logs and inboxes. Each study has one writer and any number of readers."""

    def studies(self) -> Sequence[str]:
        """Return the names of all studies, oldest first."""
        ...

    def claim(self, study: str) -> None:
        """Become the only writer of a study, until `close` or the end of this process.

        Raises StoreError if another running process is the writer.
        """
        ...

    def holder(self, study: str) -> str | None:
        """Return the current writer of a study, such as `process 4711`, or None."""
        ...

    def append(self, study: str, steps: Sequence[Step]) -> None:
        """Add steps to the end of a study's log: all or none, in order, without a gap."""
        ...

    def read(self, study: str, after: int = -1) -> Iterator[Step]:
        """Yield the steps whose number is greater than `after`."""
        ...

    def find_steps(self, study: str, kind: str) -> Sequence[Step]:
        """Return the steps whose event is of this kind, such as `extended`, without the others."""
        ...

    def delete(self, study: str) -> None:
        """Delete a study's log and inbox.

        Raises StudyNotFound, and StudyRunning if another running process is the writer.
        """
        ...

    def post(self, study: str, command: Command) -> int:
        """Put a command into a study's inbox and return its number."""
        ...

    def inbox(self, study: str, after: int = 0) -> Sequence[tuple[int, Command]]:
        """Return the commands numbered above `after`, oldest first."""
        ...

    def close(self) -> None: ...


class Stored(Struct, frozen=True):
    """Name and size of an object in a storage."""

    name: str
    bytes: int


class Storage(Protocol):
    """Keeps checkpoints by name, each whole or not at all. Safe for threads and processes.

    Every failure raises CheckpointError with the reason.
    """

    @property
    def url(self) -> str:
        """The URL as a user would write it."""
        ...

    def put(self, name: str, path: str) -> None:
        """Store a file's bytes under a name, which appears only once they are safe."""
        ...

    def get(self, name: str, path: str) -> None:
        """Write the object of this name to a file, which appears whole or not at all."""
        ...

    def delete(self, name: str) -> None:
        """Delete a name; do nothing if it does not exist."""
        ...

    def list(self) -> Sequence[Stored]:
        """Return all objects, including unfinished ones."""
        ...
