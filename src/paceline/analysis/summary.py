"""A study at a glance: its row and its best, read off its state.

Knows what a reader wants to know first; values are as reported, not turned. The JSON of its structs
is a contract: `docs/json.md`. Decides nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, structs

from paceline.core.values import NO_LOSS, Config, Status
from paceline.plan.tree import node_of

if TYPE_CHECKING:
    from paceline.core.values import StudySpec
    from paceline.machine.calibration import Foresight
    from paceline.machine.groups import Group
    from paceline.machine.state import StudyState
    from paceline.machine.timing import Paces


class GroupRow(Struct, frozen=True, kw_only=True):
    """One of several studies that are driven as one, at a glance."""

    name: str
    policy: str
    generator: str
    curves: str
    # "ended" or "unfinished"; `end` and `end_why` say what ended it.
    status: str
    end: str | None
    end_why: str | None
    # The clock of one of several stands still once it has ended.
    clock_s: float
    # Of attempts that were launched for it, as are `epochs_trained`.
    slot_seconds: float
    target: float | None
    trials: int
    trials_finished: int
    trials_stopped: int
    trials_failed: int
    epochs_trained: int
    reports: int
    best_value: float | None
    best_trial: int | None
    best_epoch: int | None


class StudyRow(GroupRow, frozen=True, kw_only=True):
    """A study at a glance: what one of several has, and what is all theirs."""

    allocator: str
    metric: str
    mode: str
    epochs: int
    seed: int
    # What is trained, as name@version; None: nothing is shared with other studies.
    plan: str | None
    # How many configs were taken over from each of these.
    adopted: dict[str, int]
    deadline_s: float | None
    # How good the forecasts were; None where none has come to its epoch yet.
    forecasts: Forecasts | None
    # What was learned of widths; None where no trial has had two.
    speeds: Speeds | None


class Forecasts(Struct, frozen=True, kw_only=True):
    """What became of a study's forecasts."""

    met: float
    coverage_80: float
    coverage_95: float
    log_score: float
    # None: too few to tell.
    brier: float | None
    brier_of_base_rate: float | None


class Speeds(Struct, frozen=True, kw_only=True):
    """How fast trials were at other widths than one slot, and what moving one cost."""

    widths: list[SpeedAt]
    move_s: float


class SpeedAt(Struct, frozen=True, kw_only=True):
    """How many times as fast as on one slot trials are at a width, and how many epochs tell."""

    width: float
    speed: float
    epochs: float


class CheckpointName(Struct, frozen=True, kw_only=True):
    """What a checkpoint is called: the attempt that saved it, and the epochs in it."""

    attempt: int
    epoch: int


class Best(Struct, frozen=True, kw_only=True):
    """The best that a study has found."""

    study: str
    metric: str
    mode: str
    value: float
    trial: int
    epoch: int
    config: Config
    # None: none was saved at that epoch.
    checkpoint: CheckpointName | None


def row_of(state: StudyState) -> StudyRow:
    """Return a study at a glance."""
    spec = state.spec
    return StudyRow(
        **structs.asdict(_row(state)),
        allocator=str(spec.allocator),
        metric=spec.metric,
        mode=spec.mode,
        epochs=spec.epochs,
        seed=spec.seed,
        plan=None if spec.plan is None else str(spec.plan),
        adopted=dict(state.adopted.studies),
        deadline_s=spec.budget.deadline_s,
        forecasts=_forecasts(state.foresight),
        speeds=_speeds(state.paces),
    )


def group_rows(state: StudyState) -> list[GroupRow]:
    """Return each of several studies that are driven as one; none of a study that is alone."""
    return [_row(group) for group in state.groups or ()]


def _row(view: StudyState | Group) -> GroupRow:
    spec, end, best = view.spec, view.end, view.best
    fates = [trial.ended for trial in view.trials]
    return GroupRow(
        name=spec.name,
        policy=str(spec.policy),
        generator=spec.generator.name,
        curves=str(spec.curves),
        status="unfinished" if end is None else "ended",
        end=None if end is None else end.cause.value,
        end_why=None if end is None else end.why,
        clock_s=view.now,
        slot_seconds=view.slot_seconds,
        target=None if spec.budget.target is None else spec.budget.target.value,
        trials=len(fates),
        trials_finished=fates.count(Status.FINISHED),
        trials_stopped=fates.count(Status.STOPPED),
        trials_failed=fates.count(Status.FAILED),
        epochs_trained=view.epochs_trained,
        reports=view.reports,
        best_value=value_of(view.best_loss, spec),
        best_trial=None if best is None else best.id,
        best_epoch=None if best is None else view.best_epoch,
    )


def _speeds(paces: Paces) -> Speeds | None:
    known = paces.measured()
    if not known:
        return None
    widths = [SpeedAt(width=at, speed=speed, epochs=n) for at, (speed, n) in known.items()]
    return Speeds(widths=widths, move_s=paces.move_s)


def _forecasts(foresight: Foresight) -> Forecasts | None:
    coverage, log_score = foresight.coverage, foresight.log_score
    if coverage is None or log_score is None:
        return None
    own, base = foresight.brier or (None, None)
    return Forecasts(
        met=foresight.met,
        coverage_80=coverage[0],
        coverage_95=coverage[1],
        log_score=log_score,
        brier=own,
        brier_of_base_rate=base,
    )


def best_of(state: StudyState) -> Best | None:
    """Return the best that was found; None where no trial has reported a number."""
    spec, trial = state.spec, state.best
    if trial is None:
        return None
    epoch = state.best_epoch
    attempt = (node_of(trial.leaf, epoch).saves or {}).get(epoch)
    return Best(
        study=spec.name,
        metric=spec.metric,
        mode=spec.mode,
        value=spec.sign * trial.best_loss,
        trial=trial.id,
        epoch=epoch,
        config=trial.config,
        checkpoint=None if attempt is None else CheckpointName(attempt=attempt, epoch=epoch),
    )


def value_of(loss: float, spec: StudySpec) -> float | None:
    """Return a loss as it was reported; None where there was no number."""
    return None if loss == NO_LOSS else spec.sign * loss
