"""A study in figures: what was found, what it cost, what was saved, and its best checkpoint.

`summarize` reads every figure off a state, once; the rows of `ls` and `show` and the result of a
simulation are other forms of the same summary. Values are as reported. The JSON of these structs is
a contract: `docs/json.md`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from paceline.core.decisions import EndCause
from paceline.core.values import NO_LOSS, OPEN_ENDED, Config, Status
from paceline.plan.tree import find_node

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.values import StudySpec
    from paceline.machine.calibration import Calibration
    from paceline.machine.groups import GroupState
    from paceline.machine.state import StudyState
    from paceline.machine.timing import EpochTimes
    from paceline.machine.trial_state import TrialState

T = TypeVar("T", bound=Struct)


class StudySummary(Struct, frozen=True, kw_only=True):
    """All figures of a study. The caller fills in `store` and `report`."""

    study: str
    store: str | None = None
    policy: str
    generator: str
    allocator: str
    curves: str
    slots: int
    seed: int
    # What is trained, as name@version, and how many configs were reused from which studies.
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
    # Of those left: paused at a goal; the others were running or ready.
    trials_paused: int
    epochs_trained: int
    reports: int
    # Epochs that trials saw but that were trained elsewhere, and epochs that trials were spared.
    epochs_shared: int
    epochs_spared: int
    end: str | None
    end_why: str | None
    report: str | None = None


class GroupRow(Struct, frozen=True, kw_only=True):
    """One of several studies that are driven as one."""

    name: str
    policy: str
    generator: str
    curves: str
    # "ended" or "unfinished"; `end` and `end_why` give the cause.
    status: str
    end: str | None
    end_why: str | None
    # A group's clock stops when the group ends.
    clock_s: float
    # Of attempts launched for it, as are `epochs_trained`.
    slot_seconds: float
    target: float | None
    trials: int
    trials_finished: int
    trials_stopped: int
    trials_failed: int
    trials_paused: int
    epochs_trained: int
    reports: int
    best_value: float | None
    best_trial: int | None
    best_epoch: int | None


class StudyRow(GroupRow, frozen=True, kw_only=True):
    """A study: the figures of a group, and those that only a whole study has."""

    allocator: str
    metric: str
    mode: str
    epochs: int
    seed: int
    # What is trained, as name@version; None if nothing is shared with other studies.
    plan: str | None
    # How many configs were reused from which studies.
    adopted: dict[str, int]
    deadline_s: float | None
    # How good the forecasts were; None while no forecast epoch has been reached.
    forecasts: Forecasts | None
    # Measured speed by width; None while no trial has run at two widths.
    speeds: Speeds | None
    # The process that runs it now; None: none does, or the caller did not look.
    driver: str | None = None


class Forecasts(Struct, frozen=True, kw_only=True):
    """How good a study's forecasts were."""

    met: float
    coverage_80: float
    coverage_95: float
    log_score: float
    # None while there are too few forecasts.
    brier: float | None
    brier_of_base_rate: float | None


class Speeds(Struct, frozen=True, kw_only=True):
    """Measured speed at widths other than one slot, and the cost of moving a trial."""

    widths: list[SpeedAt]
    move_s: float


class SpeedAt(Struct, frozen=True, kw_only=True):
    """The speed at a width relative to one slot, and the number of epochs measured."""

    width: float
    speed: float
    epochs: float


class BestCheckpoint(Struct, frozen=True, kw_only=True):
    """A checkpoint: the attempt that saved it, the epochs in it, and where it is."""

    attempt: int
    epoch: int
    # Its path on this machine, or its address; None: it is not here, or the caller did not look.
    path: str | None = None


class Best(Struct, frozen=True, kw_only=True):
    """The best value that a study has found, and its config."""

    study: str
    metric: str
    mode: str
    value: float
    trial: int
    epoch: int
    config: Config
    # None if no checkpoint was saved at that epoch.
    checkpoint: BestCheckpoint | None


def summarize(view: GroupState, checkpoint: tuple[str, int] | None = None) -> StudySummary:
    """Return the figures of a study or a group; `checkpoint` is its best one's path and epoch."""
    spec, best, end = view.spec, view.best, view.end
    fates = [trial.ended for trial in view.trials]
    held = [t for t in view.trials if t.status in (Status.STOPPED, Status.PAUSED)]
    path, epoch = checkpoint or (None, None)
    available = view.capacity_seconds
    reached = end is not None and end.cause is EndCause.TARGET
    return StudySummary(
        study=spec.name,
        policy=str(spec.policy),
        generator=spec.generator.name,
        allocator=str(spec.allocator),
        curves=str(spec.curves),
        slots=view.capacity,
        seed=spec.seed,
        plan=None if spec.plan is None else str(spec.plan),
        adopted=dict(view.reused.studies),
        metric=spec.metric,
        mode=spec.mode,
        best_value=to_metric(view.best_loss, spec),
        best_config=None if best is None else best.config,
        best_trial=None if best is None else best.id,
        best_epoch=None if best is None else view.best_epoch,
        checkpoint=path,
        checkpoint_epoch=epoch,
        target=None if spec.budget.target is None else spec.budget.target.value,
        time_to_target_s=view.now if reached else None,
        deadline_s=view.return_s,
        clock_s=view.now,
        slot_seconds=view.slot_seconds,
        busy_fraction=view.slot_seconds / available if available else 0.0,
        trials=len(fates),
        trials_finished=fates.count(Status.FINISHED),
        trials_stopped=fates.count(Status.STOPPED),
        trials_failed=fates.count(Status.FAILED),
        trials_left=fates.count(None),
        trials_paused=sum(trial.alive for trial in held),
        epochs_trained=view.epochs_trained,
        reports=view.reports,
        epochs_shared=max(0, view.reports - view.epochs_trained + view.repeats),
        epochs_spared=_count_spared(held, spec.epochs),
        end=None if end is None else end.cause.value,
        end_why=None if end is None else end.why,
    )


def _count_spared(held: Sequence[TrialState], last: int) -> int:
    """Return the epochs that stopped and paused trials did not train; 0 if they have no last."""
    return sum(last - trial.epoch for trial in held) if last < OPEN_ENDED else 0


def convert_summary(summary: StudySummary, form: type[T], **others: Any) -> T:  # noqa: ANN401
    """Return a summary in another form: the fields that both have, and `others`."""
    shared = {
        name: getattr(summary, name)
        for name in form.__struct_fields__
        if name not in others and hasattr(summary, name)
    }
    return form(**shared, **others)


def make_study_row(state: StudyState, driver: str | None = None) -> StudyRow:
    """Return a study's row; `driver` is the process that runs it."""
    summary = summarize(state)
    return convert_summary(
        summary,
        StudyRow,
        **_name_and_status(summary),
        epochs=state.spec.epochs,
        deadline_s=state.spec.budget.deadline_s,
        forecasts=_summarize_forecasts(state.calibration),
        speeds=_summarize_speeds(state.epoch_times),
        driver=driver if state.end is None else None,
    )


def make_group_rows(state: StudyState) -> list[GroupRow]:
    """Return a row for each of several studies that are driven as one; none of a single study."""
    summaries = map(summarize, state.together or ())
    return [convert_summary(each, GroupRow, **_name_and_status(each)) for each in summaries]


def _name_and_status(summary: StudySummary) -> dict[str, str]:
    status = "unfinished" if summary.end is None else "ended"
    return {"name": summary.study, "status": status}


def _summarize_speeds(times: EpochTimes) -> Speeds | None:
    known = times.list_measured()
    if not known:
        return None
    widths = [SpeedAt(width=at, speed=speed, epochs=n) for at, (speed, n) in known.items()]
    return Speeds(widths=widths, move_s=times.move_s)


def _summarize_forecasts(calibration: Calibration) -> Forecasts | None:
    coverage, log_score = calibration.coverage, calibration.log_score
    if coverage is None or log_score is None:
        return None
    own, base = calibration.brier or (None, None)
    return Forecasts(
        met=calibration.met,
        coverage_80=coverage[0],
        coverage_95=coverage[1],
        log_score=log_score,
        brier=own,
        brier_of_base_rate=base,
    )


def find_best(state: StudyState) -> Best | None:
    """Return the best value found; None while no trial has reported a number."""
    spec, trial = state.spec, state.best
    if trial is None:
        return None
    epoch = state.best_epoch
    attempt = (find_node(trial.leaf, epoch).checkpoints or {}).get(epoch)
    return Best(
        study=spec.name,
        metric=spec.metric,
        mode=spec.mode,
        value=spec.sign * trial.best_loss,
        trial=trial.id,
        epoch=epoch,
        config=trial.config,
        checkpoint=None if attempt is None else BestCheckpoint(attempt=attempt, epoch=epoch),
    )


def to_metric(loss: float, spec: StudySpec) -> float | None:
    """Return a loss as the value that was reported; None if that was not a number."""
    return None if loss == NO_LOSS else spec.sign * loss
