"""Results as a person reads them: one line in a console, a table in a notebook.

Knows what of a trial and of a study is worth a line. No scripts, every text escaped.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Protocol

from paceline.analysis.summary_text import describe_trials
from paceline.core.text import format_config, format_number, format_value, truncate
from paceline.core.values import Status
from paceline.live.html_tables import render_page, render_pairs
from paceline.store import hide_password

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paceline.analysis.summary import StudySummary
    from paceline.core.values import Config, StudySpec

# Characters of a config and of an error on one line.
_CONFIG, _ERROR = 300, 120
# The epochs of a curve that a table shows: the last ones.
_EPOCHS = 10


class ShownCheckpoint(Protocol):
    """What is shown of a checkpoint."""

    @property
    def place(self) -> str: ...
    @property
    def epoch(self) -> int: ...


class ShownTrial(Protocol):
    """What is shown of a trial: fields of `TrialResult`."""

    @property
    def id(self) -> int: ...
    @property
    def config(self) -> Config: ...
    @property
    def status(self) -> str: ...
    @property
    def value(self) -> float | None: ...
    @property
    def epoch(self) -> int | None: ...
    @property
    def metrics(self) -> Mapping[str, Sequence[float | None]]: ...
    @property
    def error(self) -> str | None: ...
    @property
    def checkpoint(self) -> ShownCheckpoint | None: ...


def describe_trial(trial: ShownTrial) -> str:
    """Return a trial on one line.

    `<TrialResult 3: loss=0.0123 at epoch 9, finished, lr=0.01, width=64>`
    """
    metric = next(iter(trial.metrics), "value")
    value = f"no {metric}"
    if trial.value is not None:
        value = f"{metric}={format_number(trial.value)} at epoch {trial.epoch}"
    error = trial.error if trial.status == Status.FAILED else None
    status = f"failed: {truncate(read_last_line(error), _ERROR)}" if error else trial.status
    config = truncate(format_config(trial.config), _CONFIG)
    return f"<TrialResult {trial.id}: {value}, {status}, {config}>"


def render_trial(trial: ShownTrial) -> str:
    """Return a trial as HTML: its best value, its config, its last epochs."""
    metric = next(iter(trial.metrics), "value")
    best = f"no {metric} was reported"
    if trial.value is not None:
        best = f"{metric} {format_number(trial.value)} at epoch {trial.epoch}"
    rows = {"best": best, "status": trial.status}
    rows |= {name: format_value(value) for name, value in trial.config.items()}
    for name, values in trial.metrics.items():
        last = [format_number(value, "NaN") for value in values[-_EPOCHS:]]
        rows[f"{name}, last epochs"] = ("… " if len(values) > _EPOCHS else "") + ", ".join(last)
    if trial.error:
        rows["last error"] = read_last_line(trial.error)
    if trial.checkpoint is not None:
        rows["checkpoint"] = f"{trial.checkpoint.place} (epoch {trial.checkpoint.epoch})"
    return render_page(f"trial {trial.id}", render_pairs(rows))


def describe_result(summary: StudySummary) -> str:
    """Return a study's result on one line."""
    best = f"no {summary.metric}"
    if summary.best_value is not None:
        value = format_number(summary.best_value)
        best = f"{summary.metric}={value} at epoch {summary.best_epoch} of trial "
        best += str(summary.best_trial)
    trials = describe_trials(summary.trials, summary).replace(":", " trials:", 1)
    if summary.trials == 1:
        trials = trials.replace("trials", "trial", 1)
    return f"<Result {summary.study!r}: {best}; {trials}; end: {summary.end or 'not yet'}>"


def describe_spec(spec: StudySpec, function: str, space: object) -> dict[str, str]:
    """Return what a study searches, as named lines."""
    budget, goal = spec.budget, "minimize" if spec.mode == "min" else "maximize"
    limits = {
        "trials": None if budget.trials is None else str(budget.trials),
        "deadline": None if budget.deadline_s is None else f"{budget.deadline_s:g} s",
        "target": None if budget.target is None else format_number(budget.target.value),
    }
    names = ", ".join(space) if isinstance(space, dict) else "chosen by the function or by a tuner"
    return {
        "function": function,
        "goal": f"{goal} {spec.metric}",
        "space": names,
        "policy": f"{spec.policy}, generator {spec.generator.name}",
        **{name: value for name, value in limits.items() if value is not None},
    }


def read_last_line(text: str) -> str:
    """Return the last line of a text that is not empty."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def suggest_next(name: str, url: str | None, best: ShownTrial | None) -> tuple[str, ...]:
    """Return what a user may do with the result of a study."""
    steps = []
    if best is not None and best.checkpoint is not None:
        steps.append("result.best.checkpoint.load()")
    steps.append("result.dataframe()" if best is not None else "result.story()")
    if url is not None and not url.startswith("memory:"):
        steps.append(f"paceline show {shlex.quote(name)} --store {hide_password(url)}")
    elif best is not None:
        steps.append('result.plot("curves")')
    return tuple(steps)
