"""Warnings about studies that do something other than their user means.

Knows what to look for before a study starts and while it runs. Each is told once, with the way out.
A study that could do nothing useful is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.api.registry import parse_part, split_policies
from paceline.core.errors import SpecError, warn_user
from paceline.core.events import Cause, Ended, Missed, Reported
from paceline.core.text import format_bytes
from paceline.core.values import FINITE_GENERATORS
from paceline.worker.protocol import KEEPS_NOTHING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.decisions import Step
    from paceline.core.values import AttemptId, StudySpec
    from paceline.engines.process.local.devices import LocalDevices
    from paceline.machine.state import StudyState

# Policies that end by themselves.
_FINITE_POLICIES = ("pbt",)
# More checkpoints than this are probably not wanted, and fill a folder.
_MANY_CHECKPOINTS = 1_000
# More trials for each core are probably a mistake.
_TRIALS_PER_CORE = 4


def warn_of_no_end(spec: StudySpec) -> None:
    """Warn if nothing but its user ends a study."""
    budget = spec.budget
    common = (budget.deadline_s, budget.slot_seconds)
    if spec.standing or any(limit is not None for limit in common):
        return
    endless = [
        study.name
        for study in spec.studies
        if study.budget.trials is None
        and study.budget.target is None
        and study.generator.name not in FINITE_GENERATORS
        and study.policy.name not in _FINITE_POLICIES
    ]
    if endless:
        name = endless[0]
        warn_user(
            f"study {name!r} has no end and runs until Ctrl-C: give trials=100, deadline='1h', "
            "slot_hours=… or target=… to end it.",
        )


def refuse_endless_barrier(spec: StudySpec) -> None:
    """Raise SpecError if the policy waits for a cohort that is never complete."""
    if spec.standing or spec.budget.trials is not None:
        return
    if spec.generator.name in FINITE_GENERATORS:
        return
    for text in split_policies(spec.policy.name):
        part = spec.policy if text == spec.policy.name else parse_part(text)
        if part.name == "barrier" and part.params.get("size") is None:
            raise SpecError(
                f"policy={str(spec.policy)!r} never leaves its first round: barrier trains all "
                "trials one round at a time, and there is no last trial. Give trials=20, or the "
                "size of the cohort, such as policy='barrier:size=8'."
            )


def warn_of_many_slots(devices: LocalDevices) -> None:
    """Warn if far more trials are to run at once than this machine has cores."""
    if not devices.gpus and devices.slots > _TRIALS_PER_CORE * devices.cores:
        warn_user(
            f"slots={devices.slots} runs {devices.slots} trials at once on "
            f"{devices.cores} CPU cores, so that each gets {devices.cores / devices.slots:.2g} of "
            f"a core: give slots={devices.cores}, or leave slots out.",
        )


class RestartCaution:
    """Warns when the first trial is paused whose function keeps nothing."""

    def __init__(self, spec: StudySpec) -> None:
        self._spec = spec
        self._is_told = False
        self._without_state: set[AttemptId] = set()

    def look(self, steps: Sequence[Step]) -> None:
        """Look for an attempt that ends at a goal, before the last epoch, without a checkpoint."""
        if self._is_told:
            return
        for step in steps:
            event = step.event
            if isinstance(event, Missed) and event.note == KEEPS_NOTHING:
                if event.epoch < self._spec.epochs:
                    self._without_state.add(event.attempt)
            elif isinstance(event, Reported):
                self._without_state.discard(event.attempt)  # it has gone on
            elif (
                isinstance(event, Ended)
                and event.cause is Cause.GOAL
                and event.attempt in self._without_state
            ):
                self._warn()
                return

    def _warn(self) -> None:
        self._is_told = True
        warn_user(
            f"the training function of study {self._spec.name!r} keeps nothing, so a paused trial "
            "starts over when it goes on: use trial.keep(…), or give policy='asha_stop', which "
            "pauses no trial.",
        )


class CheckpointCaution:
    """Warns when the checkpoints of finished trials become many, and nothing limits them."""

    def __init__(self, spec: StudySpec) -> None:
        saves = spec.saves
        self._is_told = saves.best is not None or saves.bytes is not None

    def look(self, state: StudyState) -> None:
        """Look at the number of checkpoints."""
        index = state.checkpoints
        if self._is_told or len(index.records) <= _MANY_CHECKPOINTS:
            return
        self._is_told = True
        name, size = state.spec.name, format_bytes(index.bytes)
        warn_user(
            f"study {name!r} keeps the last checkpoint of every finished trial, {size} in "
            f"{len(index.records)} files so far: give keep_best=10 to keep those of the ten best "
            f"trials alone, or `paceline extend {name} --keep-best 10`.",
        )
