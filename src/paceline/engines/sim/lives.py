"""The life of an attempt in virtual time: what it is doing, since when, at which rate.

Knows one attempt. Does not know what time it is, nor who else there is: the engine tells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.plan.saving import due, likely_branches
from paceline.plan.settings import constant

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.decisions import Launch
    from paceline.core.values import Config

# What a life is doing. Plain numbers: they are compared at every epoch of every attempt.
TRAINING, REPORTED, SAVING, SAVED, GONE = range(5)


class Life:
    """One attempt: what it does now, and when that is done."""

    __slots__ = (
        "began",
        "branches",
        "config",
        "constant",
        "epoch",
        "fails_at",
        "goal",
        "id",
        "last",
        "outcome",
        "phase",
        "rate",
        "save_at",
        "saved_at",
        "since",
        "slots",
        "state",
        "ticket",
        "version",
        "width",
        "work",
    )

    def __init__(self, launch: Launch, config: Config, state: object) -> None:
        self.id = launch.attempt
        self.state = state
        self.epoch = launch.start
        self.goal = launch.goal
        self.save_at = launch.save_at
        self.slots = launch.slots
        self.width = launch.width
        self.version = 0
        self.phase = TRAINING
        # Which entry of the heap is this life's; -1 while it waits for nothing.
        self.ticket = -1
        # What is being done takes so much work, since then, at this rate.
        self.work = 0.0
        self.since = 0.0
        self.rate = 1.0
        # When the epoch began, and when the last save was.
        self.began = 0.0
        self.saved_at = 0.0
        self.fails_at: float | None = None
        self.outcome: Any = None
        # The training function has returned.
        self.last = False
        self.follow(config)

    def follow(self, config: Config) -> None:
        self.config = config
        self.constant = constant(config)
        self.branches: Sequence[int] | None = None

    def due(self, every: float, now: float) -> bool:
        """Say whether to save for safety's sake."""
        if self.branches is None:
            self.branches = likely_branches(self.config, max(self.goal, self.epoch))
        return due(now - self.saved_at, every, self.epoch, now - self.began, self.branches)
