"""A study in figures: what was found, what it cost, and what was saved.

Knows how to read them off a state. The JSON of the struct is a contract: `docs/json.md`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from paceline.core.decisions import EndCause
from paceline.core.values import Config, Status

if TYPE_CHECKING:
    from paceline.machine.groups import Group
    from paceline.machine.state import StudyState


class Summary(Struct, frozen=True, kw_only=True):
    """What came of a study on real devices. Who knows `store` and `report` fills them in."""

    study: str
    store: str | None = None
    policy: str
    generator: str
    allocator: str
    curves: str
    slots: int
    seed: int
    # What is trained, as name@version, and how many configs were taken over from which studies.
    plan: str | None
    adopted: dict[str, int]
    metric: str
    mode: str
    best_value: float | None
    best_config: Config | None
    best_trial: int | None
    best_epoch: int | None
    # The path of the best trial's checkpoint, and the epochs in it.
    checkpoint: str | None
    checkpoint_epoch: int | None
    target: float | None
    time_to_target_s: float | None
    deadline_s: float | None
    clock_s: float
    slot_seconds: float
    busy_fraction: float
    trials: int
    trials_finished: int
    trials_stopped: int
    trials_failed: int
    trials_left: int
    epochs_trained: int
    reports: int
    # Epochs that trials saw and nobody trained for them here, and epochs that trials were spared.
    epochs_shared: int
    epochs_spared: int
    end: str | None
    end_why: str | None
    report: str | None = None


def summary_of(state: StudyState | Group, checkpoint: tuple[str, int] | None) -> Summary:
    """Return a study's figures; `checkpoint` is its best one's path and epoch."""
    spec, best, end = state.spec, state.best, state.end
    fates = [trial.ended for trial in state.trials]
    path, epoch = checkpoint or (None, None)
    there_was = state.capacity_seconds
    target = spec.budget.target
    reached = end is not None and end.cause is EndCause.TARGET
    return Summary(
        study=spec.name,
        policy=str(spec.policy),
        generator=spec.generator.name,
        allocator=str(spec.allocator),
        curves=str(spec.curves),
        slots=state.capacity,
        seed=spec.seed,
        plan=None if spec.plan is None else str(spec.plan),
        adopted=dict(state.adopted.studies),
        metric=spec.metric,
        mode=spec.mode,
        best_value=None if best is None else spec.sign * state.best_loss,
        best_config=None if best is None else best.config,
        best_trial=None if best is None else best.id,
        best_epoch=None if best is None else state.best_epoch,
        checkpoint=path,
        checkpoint_epoch=epoch,
        target=None if target is None else target.value,
        time_to_target_s=state.now if reached else None,
        deadline_s=state.deadline_s,
        clock_s=state.now,
        slot_seconds=state.slot_seconds,
        busy_fraction=state.slot_seconds / there_was if there_was else 0.0,
        trials=len(fates),
        trials_finished=fates.count(Status.FINISHED),
        trials_stopped=fates.count(Status.STOPPED),
        trials_failed=fates.count(Status.FAILED),
        trials_left=fates.count(None),
        epochs_trained=state.epochs_trained,
        reports=state.reports,
        epochs_shared=max(0, state.reports - state.epochs_trained + state.repeats),
        epochs_spared=sum(
            spec.epochs - trial.epoch
            for trial in state.trials
            if trial.status in (Status.STOPPED, Status.WAITING)
        ),
        end=None if end is None else end.cause.value,
        end_why=None if end is None else end.why,
    )
