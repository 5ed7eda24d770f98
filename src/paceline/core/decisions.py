"""Decisions: orders, in the imperative, each with its why.

Knows what can be ordered. A decision is appended to the log together with the event that caused
it, and carried out afterwards; carrying it out twice must do nothing more.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from paceline.core.events import AnyEvent
from paceline.core.values import AttemptId, Config, SlotId, TrialId

# Up to this epoch a trial needs at least this width.
Need: TypeAlias = tuple[int, float]


class Decision(Struct, frozen=True, kw_only=True, tag=str.lower, gc=False, omit_defaults=True):
    """An order. `why` is a sentence with the numbers it rests on."""

    why: str


# What becomes of trials: given by policies, and by the machine on their behalf.


class Open(Decision, frozen=True, kw_only=True):
    """Begin a trial with this config and this first goal."""

    trial: TrialId
    config: Config
    until: int
    # The trial whose settings this one shares up to `branch`, where it was forked from one.
    source: TrialId | None = None
    branch: int | None = None
    # Whose trial it is, where several studies are driven as one.
    group: int = 0
    # What its stages need, in order, where that was declared; a fold asks nobody.
    needs: tuple[Need, ...] = ()


class Go(Decision, frozen=True, kw_only=True):
    """Raise the trial's goal."""

    trial: TrialId
    until: int
    # Leave a checkpoint where it stands, for trials that may be forked from it there.
    save: bool = False


class Pause(Decision, frozen=True, kw_only=True):
    """Leave the trial at its goal, with its checkpoint, until further notice."""

    trial: TrialId


class Cut(Decision, frozen=True, kw_only=True):
    """Take the trial's goal back to the next epoch its attempt can honour."""

    trial: TrialId


class Stop(Decision, frozen=True, kw_only=True):
    """End the trial for good."""

    trial: TrialId


class Fail(Decision, frozen=True, kw_only=True):
    """Give the trial up: it failed more often than it may."""

    trial: TrialId


class Credit(Decision, frozen=True, kw_only=True):
    """Give the trial one more epoch that is already known from others' work, at no cost."""

    trial: TrialId
    epoch: int


class Close(Decision, frozen=True, kw_only=True):
    """Open no further trials, or none of one group."""

    group: int = 0


# What becomes of attempts: given by the machine, carried out by the engine.


class Launch(Decision, frozen=True, kw_only=True):
    """Start an attempt on these slots, on this trial's path, from a checkpoint or from nothing."""

    attempt: AttemptId
    trial: TrialId
    # Epochs already in the checkpoint; 0 starts from nothing.
    start: int
    # The attempt that saved the checkpoint of epoch `start`.
    source: AttemptId | None
    # Train up to this epoch, save there and end.
    goal: int
    # Epochs on the way at which somebody else needs a checkpoint.
    save_at: tuple[int, ...]
    slots: tuple[SlotId, ...]
    # 1/c on a shared slot, or the number of slots.
    width: float


class Amend(Decision, frozen=True, kw_only=True):
    """Replace a running attempt's order. The highest version holds; an older one is ignored."""

    attempt: AttemptId
    version: int
    # Whose path is followed from here on.
    trial: TrialId
    goal: int
    save_at: tuple[int, ...]


class Halt(Decision, frozen=True, kw_only=True):
    """End the attempt now, without a checkpoint."""

    attempt: AttemptId


class Resize(Decision, frozen=True, kw_only=True):
    """Save at the next epoch end and go on with another width."""

    attempt: AttemptId
    width: float


class Drop(Decision, frozen=True, kw_only=True):
    """Delete checkpoints that nobody needs any more, by their names (attempt, epoch)."""

    checkpoints: tuple[tuple[AttemptId, int], ...]


# What is asked from outside, because it is not a function of the log.


class AskForecast(Decision, frozen=True, kw_only=True):
    """Ask where this trial's curve, known up to `epoch`, will be at these later epochs."""

    trial: TrialId
    epoch: int
    horizons: tuple[int, ...]


class AskProposal(Decision, frozen=True, kw_only=True):
    """Ask a generator that is not a function of the log for a config."""

    number: int
    group: int = 0


class WakeAt(Decision, frozen=True, kw_only=True):
    """Ask for a Woke at that time; with a trial, so that the policy may judge it again then."""

    at: float
    trial: TrialId | None = None


class Provide(Decision, frozen=True, kw_only=True):
    """Ask the engine for more slots; CapacityChanged answers."""

    slots: int


class Retire(Decision, frozen=True, kw_only=True):
    """Give these slots up as soon as what runs on them has saved."""

    slots: tuple[SlotId, ...]


class EndCause(StrEnum):
    """What ended a study."""

    TARGET = "target"
    DEADLINE = "deadline"
    SLOT_SECONDS = "slot_seconds"
    POLICY = "policy"
    COMMAND = "command"
    # Trials fail, or none can be proposed, and nothing has ever been reported.
    FAILED = "failed"
    # Nothing runs and nothing is left to run.
    QUIET = "quiet"


class Leave(Decision, frozen=True, kw_only=True):
    """End one of several studies that are driven as one; the others go on."""

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
    """An event and everything it caused: appended as one, or not at all.

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
