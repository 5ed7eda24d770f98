"""Ports: what the machine, the loop and the simulator need from whoever plugs in.

Knows the shapes alone; what the brains may see of a study are the views.
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
from paceline.core.values import (
    Config,
    Forecast,
    Metrics,
    TrialId,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from paceline.core.events import AnyEvent, Command, Forecasted, Proposed
    from paceline.core.views import StudyView, TrialView


def sees_nothing(entry: Entry, study: StudyView) -> None:
    """Be the `see` of a brain without memory: `see = staticmethod(sees_nothing)`."""


class Fork(Struct, frozen=True, kw_only=True):
    """Stop a trial and open one that is `source` up to `epoch` and then has these changes."""

    trial: TrialId
    source: TrialId
    epoch: int
    changes: Config
    until: int
    why: str


Verdict: TypeAlias = Go | Pause | Cut | Stop | Fork | AskForecast | WakeAt | Close | End


class Pick(Struct, frozen=True, gc=False):
    """Who gets the free slot. `trial=None` is a new one; `until` its goal from now on."""

    trial: TrialId | None
    until: int
    why: str


class Policy(Protocol):
    """Judges trials. Memory grows in `see` alone; the other methods read and never write."""

    def see(self, entry: Entry, study: StudyView) -> None:
        """Take note of an entry, live and on resume; `study` is the state after it."""
        ...

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        """Say what becomes of trials now that this one has news: a report, a forecast, a wake."""
        ...

    def next(self, study: StudyView) -> Pick | None:
        """Say who gets the free slot: a ready trial, a waiting one, a new one, or nobody.

        A new trial's goal is 1 or later; a ready trial keeps its goal where the pick's is lower.
        """
        ...

    def admit(self, study: StudyView) -> int | None:
        """Say how many live trials are worth having; None is no limit."""
        ...


class Generator(Protocol):
    """Proposes configs."""

    @property
    def pure(self) -> bool:
        """Whether proposals are a function of the log, so that replay may ask again."""
        ...

    def see(self, entry: Entry, study: StudyView) -> None: ...

    def propose(self, number: int, study: StudyView) -> Config | None:
        """Return the config of this number, counted from 0, or None: there are no more, for ever.

        Randomness comes from `core.rng.stream(study.spec.seed, …)`, named by what it is for.
        """
        ...


# Slots that an epoch under this setting cannot do without: whole ones, or a share of one.
Needs: TypeAlias = "Callable[[Config], float]"


class Demand(Protocol):
    """What one trial could use. Worked out as it is read."""

    @property
    def trial(self) -> TrialId: ...
    @property
    def work(self) -> float:
        """Seconds to its goal on one slot: measured, or as others' epochs take."""
        ...

    @property
    def width(self) -> float:
        """The width it holds, or is about to hold after a move; 0 where it waits."""
        ...

    @property
    def least(self) -> float:
        """The width that this stage of it cannot do without; 0 where nothing is known."""
        ...


class Demands(Protocol):
    """Who asks for slots, who holds some, who waits, and what a width is worth."""

    @property
    def asking(self) -> Demand | None:
        """The trial that is about to start; None when those who run may be moved."""
        ...

    def running(self) -> Iterator[Demand]: ...
    def waiting(self) -> Iterator[Demand]:
        """Those who want a slot and have none, in the order of `ready`; the asking one is not."""
        ...

    @property
    def coming(self) -> bool:
        """Whether new trials would be opened if there were room."""
        ...

    def speed(self, width: float) -> float:
        """How many times as fast as on one slot a trial is at this width, as far as is known."""
        ...

    def measured(self, width: float) -> bool:
        """Whether that speed rests on more than the prior."""
        ...


class Allocator(Protocol):
    """Turns demands and capacity into widths."""

    def see(self, entry: Entry, study: StudyView) -> None: ...

    def place(self, demands: Demands, study: StudyView) -> Mapping[TrialId, float]:
        """Return a width for the asking trial, or for running ones that should change theirs.

        A width is a whole number of slots, or one over a whole number, and no less than the
        demand's least. An asking trial that is not named gets one slot, or its least, and one for
        whom not all its slots are free starts on those that are, if that is its least or more.
        A running one moves only where that pays: the machine weighs it (`machine.resizing`).
        """
        ...


class Other(Struct, frozen=True):
    """Another trial of the same study, as far as it has come."""

    losses: Sequence[float]
    config: Config


class History(Struct, frozen=True):
    """A curve so far, for a curve model: losses and where they come from."""

    losses: Sequence[float]
    # The epochs whose losses are asked for.
    horizons: Sequence[int]
    # The last epoch this trial could reach.
    epochs: int
    config: Config
    # The least and the greatest loss there can be, where the user declared the metric's range.
    bounds: tuple[float, float] | None = None
    # Trials of the same study, those that have come furthest first; as many as the model wants.
    others: Sequence[Other] = ()


class CurveModel(Protocol):
    """Predicts later values. Batched: many curves a call."""

    @property
    def others(self) -> int:
        """How many other trials of the study it wants to see beside each curve; 0 for none."""
        ...

    def forecast(self, histories: Sequence[History]) -> Sequence[Forecast | None]:
        """Return a forecast for each curve; None where the model has no answer."""
        ...


class Adviser(Protocol):
    """Answers what is not a function of the log, for an engine to pass on."""

    def answer(self, ask: AskForecast | AskProposal) -> Callable[[], Forecasted | Proposed]:
        """Read what the question needs now, and return the work that answers it.

        The work may be done beside the loop, in another thread: it reads nothing that changes.
        """
        ...


class Outcome(Struct, frozen=True, gc=False):
    """What one epoch of simulated training gave."""

    metrics: Metrics
    seconds: float
    state: object
    # The training function returns after this epoch.
    last: bool = False


class Crash(Struct, frozen=True):
    """Simulated training failed, this long into the epoch."""

    seconds: float
    note: str
    # It did not fail: the training function returned without another epoch.
    over: bool = False


class Workload(Protocol):
    """What the simulator trains: pure arithmetic that can be entered at any state."""

    @property
    def metric(self) -> str: ...

    def begin(self, config: Config) -> object:
        """Return the state before the first epoch."""
        ...

    def setup_s(self, state: object) -> float | None:
        """Return what starting a process in this state costs; None where it is not known."""
        ...

    def advance(self, state: object, setting: Config) -> Outcome | Crash:
        """Train one epoch under these settings.

        A recorded workload refuses settings it never recorded with a SpecError.
        """
        ...


class Engine(Protocol):
    """Carries decisions out and brings facts back; the only part that knows the time."""

    @property
    def now(self) -> float:
        """Seconds on the study's clock."""
        ...

    def apply(self, step: Step) -> None:
        """Carry a step's decisions out; a step that was carried out before does nothing."""
        ...

    def wait(self, patience: float | None = None) -> Sequence[AnyEvent] | None:
        """Return the next facts in order of time, waiting for them where it must.

        After so many seconds of patience the answer is empty; None means that there will never be
        any more facts, as after `close`. A Woke names exactly the time that was asked for, even
        where it comes late.
        """
        ...

    def replay(self, step: Step) -> None:
        """Take a step of a log that is being resumed, before anything is waited for."""
        ...

    def close(self) -> None:
        """End everything that still runs."""
        ...


class Store(Protocol):
    """Keeps logs and inboxes. One writer a study; any number of readers."""

    def studies(self) -> Sequence[str]:
        """Return the names of all studies, oldest first."""
        ...

    def claim(self, study: str) -> None:
        """Be the one writer of a study, until `close` or the end of this process.

        Raises StoreError where another living process is.
        """
        ...

    def holder(self, study: str) -> str | None:
        """Return the living writer of a study, such as `process 4711`; None: there is none."""
        ...

    def append(self, study: str, steps: Sequence[Step]) -> None:
        """Add steps to the end of a study's log: all or none, in order, without a gap."""
        ...

    def read(self, study: str, after: int = -1) -> Iterator[Step]:
        """Yield the steps whose number is greater than `after`."""
        ...

    def post(self, study: str, command: Command) -> int:
        """Put a command into a study's inbox and return its number."""
        ...

    def inbox(self, study: str, after: int = 0) -> Sequence[tuple[int, Command]]:
        """Return the commands numbered above `after`, oldest first."""
        ...

    def close(self) -> None: ...


class Stored(Struct, frozen=True):
    """Something that lies in a storage."""

    name: str
    bytes: int


class Storage(Protocol):
    """Keeps checkpoints by name, each whole or not at all. Any thread and process may use it.

    Whatever cannot be done is a CheckpointError with the reason.
    """

    @property
    def url(self) -> str:
        """Where it is, as a person would write it."""
        ...

    def put(self, name: str, path: str) -> None:
        """Keep a file's bytes under a name, which is there once they are safe, and not before."""
        ...

    def get(self, name: str, path: str) -> None:
        """Write what has this name to a file, which appears whole or not at all."""
        ...

    def delete(self, name: str) -> None:
        """Forget a name; one that is not there is forgotten already."""
        ...

    def list(self) -> Sequence[Stored]:
        """Return all that lies there, also what was never finished."""
        ...
