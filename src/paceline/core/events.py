"""Events: facts, in the past tense. Each is what an engine, a person or another log has said.

Knows what can happen to a study. `at` is in seconds on the study's own clock, which starts at 0
and stands still while no driver runs.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from paceline.core.values import (
    AttemptId,
    Config,
    Forecast,
    Metrics,
    SlotId,
    StudySpec,
    TrialId,
    Value,
)

# The version of the log's format; a reader refuses what is newer than itself.
FORMAT = 1


class Cause(StrEnum):
    """Why an attempt ended."""

    # It reached the goal of its order and saved a checkpoint there.
    GOAL = "goal"
    # The training function returned: there are no further epochs.
    FINISHED = "finished"
    # It was told to end at once.
    HALTED = "halted"
    # The training code failed; this costs one of the trial's retries.
    FAILED = "failed"
    # The device or the driver went away under it; this costs no retry.
    LOST = "lost"
    # It ran out of memory on a slot it shared: this costs no retry, and it gets a whole one next.
    CROWDED = "crowded"


class Event(Struct, frozen=True, kw_only=True, tag=str.lower, gc=False, omit_defaults=True):
    """A fact with its time."""

    at: float


class Opened(Event, frozen=True, kw_only=True):
    """The study was opened: the first entry of every log."""

    spec: StudySpec
    # The first version, so that a log which does not say is read as one of that.
    format: int = 1
    # What the engine was told, so that a driver can build it again. The machine does not read it.
    engine: dict[str, Value] = {}


class Resumed(Event, frozen=True, kw_only=True):
    """A driver took the study up again from its log. What it no longer finds follows as Ended."""

    # Where the deadline is a time of day: when that is on the study's clock, as of now.
    deadline_s: float | None = None


class Reported(Event, frozen=True, kw_only=True):
    """An attempt finished one epoch."""

    attempt: AttemptId
    epoch: int
    metrics: Metrics
    # How long this epoch took.
    seconds: float
    # The share of its slot's memory that the attempt held then; 0: nobody has measured it.
    memory: float = 0.0
    # The order that was in force when the epoch began; None: the one that was decided last.
    version: int | None = None


class Saved(Event, frozen=True, kw_only=True):
    """A checkpoint of this epoch is safe. Its name is (attempt, epoch)."""

    attempt: AttemptId
    epoch: int
    seconds: float = 0.0
    bytes: int = 0
    # What the file's bytes hash to; empty where there is no file.
    digest: str = ""


class Missed(Event, frozen=True, kw_only=True):
    """A checkpoint was wanted and there is none: the order came too late, or it cannot be saved."""

    attempt: AttemptId
    epoch: int
    note: str = ""


class Spoiled(Event, frozen=True, kw_only=True):
    """The checkpoint this attempt was to start from is damaged or gone."""

    attempt: AttemptId
    note: str = ""


class Ended(Event, frozen=True, kw_only=True):
    """The attempt's processes are gone and its slots are free."""

    attempt: AttemptId
    cause: Cause
    # What the engine knows of it: the error's last lines, the signal.
    note: str = ""


class Forecasted(Event, frozen=True, kw_only=True):
    """The answer to AskForecast, by its key (trial, epoch)."""

    trial: TrialId
    epoch: int
    # None: the model had no answer; the note says why.
    forecast: Forecast | None
    note: str = ""


class Proposed(Event, frozen=True, kw_only=True):
    """The answer to AskProposal, by its number."""

    number: int
    # None: there are no more.
    config: Config | None
    note: str = ""
    group: int = 0


class CapacityChanged(Event, frozen=True, kw_only=True):
    """These are the slots there are now."""

    slots: tuple[SlotId, ...]
    # The node that each is on, where that makes a difference; empty: they are all alike.
    nodes: tuple[str, ...] = ()


class Woke(Event, frozen=True, kw_only=True):
    """The time that WakeAt asked for has come."""

    trial: TrialId | None = None


class StopStudy(Struct, frozen=True, tag="stop"):
    """A person wants the study to end now, with its best result."""


class ChangeSlots(Struct, frozen=True, tag="slots"):
    """A person gives the study more slots, or takes some away."""

    by: int


Command: TypeAlias = StopStudy | ChangeSlots


class Commanded(Event, frozen=True, kw_only=True):
    """A command arrived through the study's inbox. Numbers rise; a repeated one is ignored."""

    number: int
    command: Command


class Submitted(Event, frozen=True, kw_only=True):
    """An outside tuner asked for this config to be trained up to this epoch."""

    config: Config
    until: int
    # So many more of its group follow at once: nobody is placed before all are known.
    more: int = 0


class AdoptedSave(Struct, frozen=True, gc=False):
    """A checkpoint that was taken over: the epochs in it, its size and digest."""

    epoch: int
    bytes: int
    digest: str


class Adopted(Event, frozen=True, kw_only=True):
    """What another study learned about a config, copied in so that this log stands alone."""

    study: str
    config: Config
    metrics: tuple[Metrics, ...]
    seconds: tuple[float, ...]
    # The first of these is the epoch after this one; those before were told already.
    after: int = 0
    # Checkpoints on its path, and the attempt they are named by here: one below zero that no other
    # fact has.
    saves: tuple[AdoptedSave, ...] = ()
    attempt: AttemptId = 0


class Recalled(Event, frozen=True, kw_only=True):
    """What a config came to in another study, for the generator alone to learn from."""

    study: str
    config: Config
    # The objective after each epoch, and whether there was no further one.
    values: tuple[float | None, ...]
    finished: bool = False


AnyEvent: TypeAlias = (
    Opened
    | Resumed
    | Reported
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
