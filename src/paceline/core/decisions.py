"""Decisions: orders, in the imperative, each with its reason (`why`).

A decision is appended to the log together with the event that caused
it, and carried out afterwards; carrying it out twice must have no further effect.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from paceline.core.events import AnyEvent
from paceline.core.values import AttemptId, Config, SlotId, TrialId

# Up to this epoch a trial needs at least this width.
StageWidth: TypeAlias = tuple[int, float]


class Decision(Struct, frozen=True, kw_only=True, tag=str.lower, gc=False, omit_defaults=True):
    """An order. `why` is a sentence with the numbers behind it."""

    why: str


# About trials: from policies, or from the machine on their behalf.


class Open(Decision, frozen=True, kw_only=True):
    """Begin a trial with this config and this first goal."""

    trial: TrialId
    config: Config
    until: int
    # For a forked trial: the trial with the same settings up to epoch `branch`.
    source: TrialId | None = None
    branch: int | None = None
    # The number of its study, if several are driven together.
    group: int = 0
    # The width that each stage needs, if declared.
    needs: tuple[StageWidth, ...] = ()
    # The policy's class of the trial, such as `promising`; empty if the policy has no classes.
    label: str = ""
    # The number of its config's proposal; None: the first that no trial has taken.
    number: int | None = None


class Go(Decision, frozen=True, kw_only=True):
    """Raise the trial's goal."""

    trial: TrialId
    until: int
    # Save a checkpoint at the current epoch, for trials that may be forked from it.
    save: bool = False
    # The policy's class of the trial, such as `promising`; empty if the policy has no classes.
    label: str = ""
    # The slots that the policy dedicates to the trial from now on; 0: the allocator decides alone.
    width: float = 0


class Pause(Decision, frozen=True, kw_only=True):
    """Keep the trial at its goal, with its checkpoint, until its goal is raised."""

    trial: TrialId
    # The policy's class of the trial, such as `promising`; empty if the policy has no classes.
    label: str = ""


class Cut(Decision, frozen=True, kw_only=True):
    """Lower the trial's goal to the next epoch at which its attempt can stop."""

    trial: TrialId
    # The policy's class of the trial, such as `promising`; empty if the policy has no classes.
    label: str = ""


class Stop(Decision, frozen=True, kw_only=True):
    """End the trial for good."""

    trial: TrialId
    # The policy's class of the trial, such as `promising`; empty if the policy has no classes.
    label: str = ""


class Fail(Decision, frozen=True, kw_only=True):
    """Give up the trial: it failed more often than its retries allow."""

    trial: TrialId


class Credit(Decision, frozen=True, kw_only=True):
    """Credit the trial with one more epoch that another attempt has trained, at no cost."""

    trial: TrialId
    epoch: int


class Close(Decision, frozen=True, kw_only=True):
    """Open no further trials, or none of one group."""

    group: int = 0


# About attempts: from the machine, carried out by the engine.


class Launch(Decision, frozen=True, kw_only=True):
    """Start an attempt on these slots, on this trial's path, from a checkpoint or from scratch."""

    attempt: AttemptId
    trial: TrialId
    # Epochs already in the checkpoint; 0 starts from scratch.
    start: int
    # The attempt that saved the checkpoint of epoch `start`.
    source: AttemptId | None
    # Train up to this epoch, save there and end.
    goal: int
    # Earlier epochs at which other trials need a checkpoint.
    save_at: tuple[int, ...]
    slots: tuple[SlotId, ...]
    # 1/c on a shared slot, or the number of slots.
    width: float


class Amend(Decision, frozen=True, kw_only=True):
    """Replace a running attempt's order. The highest version wins; older ones are ignored."""

    attempt: AttemptId
    version: int
    # The trial whose path the attempt follows from now on.
    trial: TrialId
    goal: int
    save_at: tuple[int, ...]


class Halt(Decision, frozen=True, kw_only=True):
    """End the attempt now, without a checkpoint."""

    attempt: AttemptId


class Resize(Decision, frozen=True, kw_only=True):
    """Save at the end of the epoch and continue at another width; at its own width: do not move."""

    attempt: AttemptId
    width: float


class Drop(Decision, frozen=True, kw_only=True):
    """Delete checkpoints that are no longer needed, by name (attempt, epoch)."""

    checkpoints: tuple[tuple[AttemptId, int], ...]


# Requests to the engine, for answers that are not a function of the log.


class AskForecast(Decision, frozen=True, kw_only=True):
    """Request a forecast of this trial's curve, known up to `epoch`, at later epochs."""

    trial: TrialId
    epoch: int
    horizons: tuple[int, ...]


class AskProposal(Decision, frozen=True, kw_only=True):
    """Request a config from a generator that is not a function of the log."""

    number: int
    group: int = 0


class WakeAt(Decision, frozen=True, kw_only=True):
    """Request a Woke at that time; with a trial, the policy judges it again then."""

    at: float
    trial: TrialId | None = None


class Provide(Decision, frozen=True, kw_only=True):
    """Request more slots from the engine; CapacityChanged is the answer."""

    slots: int


class Retire(Decision, frozen=True, kw_only=True):
    """Give up these slots once the attempts on them have saved."""

    slots: tuple[SlotId, ...]


class EndCause(StrEnum):
    """What ended a study."""

    TARGET = "target"
    DEADLINE = "deadline"
    SLOT_SECONDS = "slot_seconds"
    POLICY = "policy"
    COMMAND = "command"
    # All trials failed, or some and none has reported a number; or no config can be proposed.
    FAILED = "failed"
    # Nothing runs and nothing is left to run.
    QUIET = "quiet"


class Leave(Decision, frozen=True, kw_only=True):
    """End one of several studies that are driven together; the others go on."""

    group: int
    cause: EndCause


class End(Decision, frozen=True, kw_only=True):
    """End the study. The last decision of every log."""

    cause: EndCause


AnyDecision: TypeAlias = (
    Open
    | Go
    | Pause
    | Cut
    | Stop
    | Fail
    | Credit
    | Close
    | Launch
    | Amend
    | Halt
    | Resize
    | Drop
    | AskForecast
    | AskProposal
    | WakeAt
    | Provide
    | Retire
    | Leave
    | End
)

Entry: TypeAlias = AnyEvent | AnyDecision


class Step(Struct, frozen=True, gc=False):
    """An event and all decisions it caused, appended together or not at all.

    Entries are numbered through the log: the event has `number`, its decisions the ones after it.
    """

    number: int
    event: AnyEvent
    decisions: tuple[AnyDecision, ...] = ()

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The event, then the decisions."""
        return (self.event, *self.decisions)

    @property
    def after(self) -> int:
        """The number of the entry that follows this step."""
        return self.number + 1 + len(self.decisions)
