"""Events: facts, in the past tense, from an engine, a user or another log.

`at` is in seconds on the study's own clock, which starts at 0
and stands still while no driver runs.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from paceline.core.domains import Domain
from paceline.core.forecast_quantiles import Forecast
from paceline.core.run_info import RunInfo
from paceline.core.values import AttemptId, Config, Metrics, SlotId, StudySpec, TrialId, Value

# The version of the log format; a reader refuses newer versions.
FORMAT = 1
# The version of the decision logic. Raise it in every release in which the machine, a policy, a
# generator or an allocator decides differently for the same events, even if only a `why` is
# reworded: a replay of an older log then says that it was decided by another version.
LOGIC = 2


class Cause(StrEnum):
    """Why an attempt ended."""

    # It reached the goal of its order and saved a checkpoint there.
    GOAL = "goal"
    # The training function returned: there are no further epochs.
    FINISHED = "finished"
    # The training function raised TrialPruned: it has no further epochs.
    PRUNED = "pruned"
    # It was ordered to end at once.
    HALTED = "halted"
    # The training code failed; this costs one of the trial's retries.
    FAILED = "failed"
    # Its device or driver disappeared; this costs no retry.
    LOST = "lost"
    # It ran out of memory on a shared slot: this costs no retry, and it gets a whole slot next.
    CROWDED = "crowded"


class Event(Struct, frozen=True, kw_only=True, tag=str.lower, gc=False, omit_defaults=True):
    """A fact with its time."""

    at: float


class Opened(Event, frozen=True, kw_only=True):
    """The study was opened: the first entry of every log."""

    spec: StudySpec
    # Defaults to the first version: logs without the field are of that version.
    format: int = 1
    # The version of the decision logic that wrote the log; 0 for logs without a version.
    logic: int = 0
    # How the study is run, as `RunInfo.to_log` writes it. The machine does not read it.
    engine: dict[str, Value] = {}
    # The specs that the study had before it was extended, oldest first. Never written: a reader
    # fills it in when it replaces `spec` by the newest one (`core.extension`).
    earlier: tuple[StudySpec, ...] = ()

    @property
    def run(self) -> RunInfo:
        """How the study is run: what a later driver needs to rebuild the engine."""
        return RunInfo.from_log(self.engine)


class Resumed(Event, frozen=True, kw_only=True):
    """A driver resumed the study from its log. Attempts that are gone follow as Ended."""

    # For a deadline given as a time of day: its time on the study's clock, as of now.
    deadline_s: float | None = None


class Extended(Event, frozen=True, kw_only=True):
    """A driver resumed the study with another spec: more trials, epochs or time.

    Readers show the whole log as if the study had been opened with this spec (`core.extension`). A
    CapacityChanged follows: the driver may have other slots.
    """

    spec: StudySpec
    # What is different, in words: "40 trials and 27 epochs".
    to: str
    # As in Opened: the version of the decision logic, and how the study is run from now on.
    logic: int = 0
    engine: dict[str, Value] = {}
    # As in Resumed: the time of a deadline that was given as a time of day.
    deadline_s: float | None = None


class DeadlineChanged(Event, frozen=True, kw_only=True):
    """Training ends at another time than the log said, so that the call returns in time."""

    # When training ends, on the study's clock.
    deadline_s: float
    # How much later the call has to return: the driver needs this time for its start and its end.
    kept_s: float = 0.0
    # Why it changed; empty: the driver started.
    note: str = ""


class Reported(Event, frozen=True, kw_only=True):
    """An attempt finished one epoch."""

    attempt: AttemptId
    epoch: int
    metrics: Metrics
    # How long this epoch took.
    seconds: float
    # The share of its slot's memory that the attempt used; 0 if not measured.
    memory: float = 0.0
    # The version of the order in force when the epoch began; None for the latest one.
    version: int | None = None
    # The training function has returned with this report: there are no further epochs.
    last: bool = False


class Suggested(Event, frozen=True, kw_only=True):
    """The training function asked for these hyperparameters: its trial's config from now on."""

    attempt: AttemptId
    trial: TrialId
    params: Config
    # What the function asked for, by hyperparameter.
    domains: dict[str, Domain]


class Annotated(Event, frozen=True, kw_only=True):
    """The training function attached values to its trial; they replace those of the same names."""

    attempt: AttemptId
    trial: TrialId
    attrs: dict[str, Value]


class Saved(Event, frozen=True, kw_only=True):
    """A checkpoint of this epoch was saved. Its name is (attempt, epoch)."""

    attempt: AttemptId
    epoch: int
    seconds: float = 0.0
    bytes: int = 0
    # The hash of the file's bytes; empty if there is no file.
    digest: str = ""


class Missed(Event, frozen=True, kw_only=True):
    """A requested checkpoint was not saved: the order came too late, or saving failed."""

    attempt: AttemptId
    epoch: int
    note: str = ""


class Spoiled(Event, frozen=True, kw_only=True):
    """The checkpoint that this attempt should start from is damaged or missing."""

    attempt: AttemptId
    note: str = ""


class Ended(Event, frozen=True, kw_only=True):
    """The attempt's processes are gone and its slots are free."""

    attempt: AttemptId
    cause: Cause
    # Details from the engine: the last lines of the error, or the signal.
    note: str = ""
    # The class of the exception that the training function raised, and the place of the user's
    # last frame as file:line; empty if there was no exception.
    error: str = ""
    place: str = ""


class Forecasted(Event, frozen=True, kw_only=True):
    """The answer to AskForecast, by its key (trial, epoch)."""

    trial: TrialId
    epoch: int
    # None if the model had no answer; `note` has the reason.
    forecast: Forecast | None
    note: str = ""


class Proposed(Event, frozen=True, kw_only=True):
    """The answer to AskProposal, by its number."""

    number: int
    # None if the generator has ended.
    config: Config | None
    note: str = ""
    group: int = 0


class CapacityChanged(Event, frozen=True, kw_only=True):
    """The set of available slots changed to these."""

    slots: tuple[SlotId, ...]
    # The node of each slot, if that makes a difference; empty if all slots are alike.
    nodes: tuple[str, ...] = ()


class Woke(Event, frozen=True, kw_only=True):
    """The time that WakeAt asked for has come."""

    trial: TrialId | None = None


class StopStudy(Struct, frozen=True, tag="stop"):
    """A user ends the study now, with its best result."""


class ChangeSlots(Struct, frozen=True, tag="slots"):
    """A user gives the study more slots, or takes some away."""

    by: int


class ExtendStudy(Struct, frozen=True, tag="extend"):
    """A user gives a running study more trials, epochs or time: options by name, as of a call."""

    options: dict[str, Value]


Command: TypeAlias = StopStudy | ChangeSlots | ExtendStudy


class Commanded(Event, frozen=True, kw_only=True):
    """A command arrived through the study's inbox. Numbers rise; a repeated one is ignored."""

    number: int
    command: Command


class Submitted(Event, frozen=True, kw_only=True):
    """An outside tuner asked for this config to be trained up to this epoch."""

    config: Config
    until: int
    # How many more configs of its group follow at once; none starts before all are known.
    more: int = 0


class AdoptedSave(Struct, frozen=True, gc=False):
    """A checkpoint reused from another study: the epochs in it, its size and digest."""

    epoch: int
    bytes: int
    digest: str


class Adopted(Event, frozen=True, kw_only=True):
    """Reports of a config in another study, copied so that this log is self-contained."""

    study: str
    config: Config
    metrics: tuple[Metrics, ...]
    seconds: tuple[float, ...]
    # The first report is of epoch `after` + 1; earlier ones are in the log already.
    after: int = 0
    # Checkpoints on its path, and the attempt number in their names: negative and unique.
    saves: tuple[AdoptedSave, ...] = ()
    attempt: AttemptId = 0


class Recalled(Event, frozen=True, kw_only=True):
    """The result of a config in another study, for the generator only."""

    study: str
    config: Config
    # The objective after each epoch, and whether the last epoch was reached.
    values: tuple[float | None, ...]
    finished: bool = False
    # The domains of its hyperparameters, if its function asked for them while it ran.
    domains: dict[str, Domain] = {}


AnyEvent: TypeAlias = (
    Opened
    | Resumed
    | Extended
    | DeadlineChanged
    | Reported
    | Suggested
    | Annotated
    | Saved
    | Missed
    | Spoiled
    | Ended
    | Forecasted
    | Proposed
    | CapacityChanged
    | Woke
    | Commanded
    | Submitted
    | Adopted
    | Recalled
)
