"""The figures of a study in words: its best value, its trials, its time, its savings.

Every table, page and summary takes its words from here, so that they say the same. No markup.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Protocol

from paceline.core.decisions import EndCause
from paceline.core.text import format_config, format_count, format_duration, format_number
from paceline.core.values import Status

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paceline.analysis.summary import StudySummary
    from paceline.machine.groups import GroupState
    from paceline.machine.trial_state import TrialState


class Counts(Protocol):
    """The fields of a summary that count trials."""

    @property
    def trials_finished(self) -> int: ...
    @property
    def trials_stopped(self) -> int: ...
    @property
    def trials_failed(self) -> int: ...
    @property
    def trials_paused(self) -> int: ...
    @property
    def end(self) -> str | None: ...


def describe_trials(trials: int, counts: Counts, *, is_running: bool = False) -> str:
    """Return how many trials there are, and what became of them."""
    ended = counts.trials_finished + counts.trials_stopped + counts.trials_failed
    left = trials - ended - counts.trials_paused
    parts = (
        (counts.trials_finished, "finished"),
        (counts.trials_stopped, "stopped early"),
        (counts.trials_failed, "failed"),
        (counts.trials_paused, "paused"),
        (left, "running now" if is_running else describe_unfinished(counts.end)),
    )
    words = ", ".join(f"{count:,} {word}" for count, word in parts if count)
    return f"{trials:,}: {words}" if words else "none"


def describe_reuse(studies: Mapping[str, int]) -> str:
    """Return how many configs of each study were reused.

    >>> describe_reuse({"a": 24, "b": 1})
    "results of 24 configs of study 'a' and 1 config of study 'b' are reused"
    """
    configs = " and ".join(
        f"{format_count(count, 'config')} of study {name!r}" for name, count in studies.items()
    )
    return f"results of {configs} are reused"


def describe_unfinished(end: str | None) -> str:
    """Return the words for a trial that was training, or about to, at the end of its study."""
    return "unfinished at the deadline" if end == EndCause.DEADLINE else "unfinished"


def describe_status(status: Status | str, view: GroupState) -> str:
    """Return the status of a trial in words: while its study runs, or after its end."""
    if status not in (Status.RUNNING, Status.READY):
        return "stopped early" if status == Status.STOPPED else str(status)
    if view.end is not None:
        return describe_unfinished(view.end.cause.value)
    return "running now" if status == Status.RUNNING else "waiting for a slot"


def count_statuses(trials: Sequence[TrialState]) -> list[tuple[Status, int]]:
    """Return how many trials have each status, in the order in which people want to know it."""
    found = Counter(trial.status for trial in trials)
    order = (
        *(Status.RUNNING, Status.READY, Status.PAUSED),
        *(Status.FINISHED, Status.STOPPED, Status.FAILED),
    )
    return [(status, found[status]) for status in order if found[status]]


def describe_best(metric: str, value: float | None, epoch: int | None, trial: int | None) -> str:
    """Return the best value and where it was found."""
    if value is None:
        return f"no {metric} was reported"
    return f"{metric} {format_number(value)} at epoch {epoch} of trial {trial}"


def describe_target(target: float | None, time_to_target_s: float | None) -> str:
    """Return whether the target was reached, as the end of a sentence; empty without a target."""
    if target is None:
        return ""
    if time_to_target_s is None:
        return f"; the target {format_number(target)} was never reached"
    return f", when the target {format_number(target)} was reached"


def describe_savings(summary: StudySummary) -> str:
    """Return the epochs that were trained and those that were not, and why."""
    among = "trials and studies" if summary.adopted else "trials"
    saved = [
        f", {count:,} {how}"
        for count, how in (
            (summary.epochs_spared, "spared by stopping early"),
            (summary.epochs_shared, f"shared between {among}"),
        )
        if count
    ]
    return f"{summary.epochs_trained:,} trained{''.join(saved)}"


def describe_summary(summary: StudySummary) -> dict[str, str]:
    """Return a study's summary as named lines: what most people want to know at its end."""
    saved = f"{summary.checkpoint} (epoch {summary.checkpoint_epoch})"
    deadline = summary.deadline_s
    of_deadline = "" if deadline is None else f" of {format_duration(deadline)}"
    found = {
        "best": describe_best(
            summary.metric, summary.best_value, summary.best_epoch, summary.best_trial
        )
        + describe_target(summary.target, summary.time_to_target_s)
    }
    if summary.best_config is not None:
        found["config"] = format_config(summary.best_config)
        found["checkpoint"] = "not saved" if summary.checkpoint is None else saved
    slots = format_count(summary.slots, "slot")
    return found | {
        "trials": describe_trials(summary.trials, summary),
        "epochs": describe_savings(summary),
        "time": f"{format_duration(summary.clock_s)}{of_deadline} on {slots}, "
        f"{summary.busy_fraction:.0%} busy",
        **({"reuse": describe_reuse(summary.adopted)} if summary.adopted else {}),
    }
