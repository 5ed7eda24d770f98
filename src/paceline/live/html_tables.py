"""Studies and trials as HTML for notebooks: tables without scripts, every text escaped.

The same state and time give the same HTML. Knows no notebook: `notebook` shows it in one.
"""

from __future__ import annotations

import html
from heapq import nsmallest
from typing import TYPE_CHECKING

from paceline.analysis.study_progress import describe_time_left, measure_progress
from paceline.analysis.summary_text import count_statuses, describe_best, describe_status
from paceline.core.text import (
    format_count,
    format_duration,
    format_epochs,
    format_number,
    format_value,
    truncate,
)
from paceline.core.values import NO_LOSS, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from paceline.core.values import Config
    from paceline.machine.groups import GroupState
    from paceline.machine.state import StudyState
    from paceline.machine.trial_state import TrialState

# Trials and hyperparameters in the table of the best.
LEADERS = 10
PARAMS = 12
# Failed trials in the list of errors.
FAILURES = 3
# Characters of a cell and of a line.
_CELL, _LINE = 60, 400

# Colours that are readable on light and on dark pages.
_RED, _GREEN, _GREY = "#e03131", "#2f9e44", "rgba(128,128,128,0.35)"
_CELL_STYLE = "text-align:right;padding:2px 10px;white-space:nowrap"
_LEFT_STYLE = "text-align:left;padding:2px 10px"


def escape(text: object, limit: int = _LINE) -> str:
    """Return text for HTML, of at most `limit` characters."""
    return html.escape(truncate(str(text), limit))


def render_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; cells are HTML already."""
    top = "".join(
        f'<th style="{_CELL_STYLE};border-bottom:1px solid {_GREY}">{escape(head)}</th>'
        for head in heads
    )
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL_STYLE}">{cell}</td>' for cell in row) + "</tr>"
        for row in rows
    )
    return (
        '<table style="border-collapse:collapse;margin:4px 0"><thead><tr>'
        f"{top}</tr></thead><tbody>{body}</tbody></table>"
    )


def render_pairs(rows: Mapping[str, str]) -> str:
    """Return named lines as a table of two columns; names and values are text."""
    body = "".join(
        f'<tr><td style="{_LEFT_STYLE};opacity:0.65;white-space:nowrap">{escape(name)}</td>'
        f'<td style="{_LEFT_STYLE}">{escape(value)}</td></tr>'
        for name, value in rows.items()
    )
    return f'<table style="border-collapse:collapse;margin:4px 0"><tbody>{body}</tbody></table>'


def render_page(title: str, *parts: str) -> str:
    """Return a heading and what follows it in one block."""
    return f'<div class="paceline"><b>{escape(title)}</b>{"".join(parts)}</div>'


def render_running(state: StudyState, now: float) -> str:
    """Return a running study: how far it is, its best trials, its failures."""
    spec = state.spec
    share, whole = measure_progress(state, now)
    left = describe_time_left(state, now)
    counts = ", ".join(
        f"{count:,} {describe_status(status, state)}"
        for status, count in count_statuses(state.trials)
    )
    value = None if state.best is None else spec.sign * state.best_loss
    best = describe_best(
        spec.metric, value, state.best_epoch, None if state.best is None else state.best.id
    )
    rows = {
        "best": best if state.best is not None else f"no {spec.metric} yet",
        "trials": f"{len(state.trials):,}" + (f": {counts}" if counts else ""),
        "epochs": f"{state.epochs_trained:,} trained",
        "time": format_duration(round(now, 1 if now < 10 else None))
        + (f", {left}" if left else ""),
    }
    bar = _render_bar(share, f"{share:.0%} of {whole}") if whole else ""
    slots = format_count(state.capacity, "slot")
    title = f"{spec.name}: {spec.policy} on {slots}"
    return render_page(
        title, bar, render_pairs(rows), render_failures(state), render_leaders(state)
    )


def render_notice(text: str, seconds: float) -> str:
    """Return what the start of a study waits for."""
    return f'<div class="paceline" style="opacity:0.7">{escape(text)}: {seconds:.0f} s</div>'


def render_result(title: str, rows: Mapping[str, str], view: GroupState) -> str:
    """Return a study's summary, its failures and its best trials."""
    return render_page(title, render_pairs(rows), render_failures(view), render_leaders(view))


def render_leaders(view: GroupState) -> str:
    """Return the table of the best trials; empty before the first value."""
    found = (trial for trial in view.trials if trial.best_loss != NO_LOSS)
    leaders = nsmallest(LEADERS, found, key=lambda trial: (trial.best_loss, trial.id))
    if not leaders:
        return ""
    names = list(dict.fromkeys(name for trial in leaders for name in trial.config))
    shown, spec = names[:PARAMS], view.spec
    more = len(names) - len(shown)
    heads = ["trial", spec.metric, "epoch", "trained", "status", *shown]
    if more:
        heads.append(f"and {more} more")
    rows = [
        [
            str(trial.id),
            _render_value(trial, is_best=trial is view.best),
            str(trial.best_epoch),
            format_epochs(trial.epoch, spec.epochs),
            _colour(trial.status, describe_status(trial.status, view)),
            *(_render_param(trial.config, name) for name in shown),
            *([""] if more else []),
        ]
        for trial in leaders
    ]
    return render_table(heads, rows)


def render_failures(view: GroupState) -> str:
    """Return the failed trials with their errors, in red; empty if none has failed."""
    hurt = [trial for trial in view.trials if trial.failure is not None]
    if not hurt:
        return ""
    kinds: dict[tuple[str, str], list[TrialState]] = {}
    for trial in hurt:
        assert trial.failure is not None
        kinds.setdefault(trial.failure.kind, []).append(trial)
    given_up = sum(trial.ended is Status.FAILED for trial in hurt)
    counts = f"{format_count(len(hurt), 'trial')} failed"
    if given_up < len(hurt):
        counts += f", {given_up} given up"
    most = sorted(kinds.values(), key=len, reverse=True)[:FAILURES]
    errors = "".join(
        f"<div>{len(trials)} x {escape(trials[-1].failure.headline)}</div>"
        for trials in most
        if trials[-1].failure is not None
    )
    return f'<div style="color:{_RED};margin:4px 10px"><b>{counts}</b>{errors}</div>'


def _render_bar(share: float, label: str) -> str:
    return (
        '<div style="display:flex;align-items:center;margin:4px 10px">'
        f'<div style="width:280px;height:8px;border-radius:4px;background:{_GREY};overflow:hidden">'
        f'<div style="width:{100 * share:.1f}%;height:8px;background:{_GREEN}"></div></div>'
        f'<span style="margin-left:10px">{escape(label)}</span></div>'
    )


def _render_value(trial: TrialState, *, is_best: bool) -> str:
    text = escape(format_number(trial.spec.sign * trial.best_loss))
    return f'<b style="color:{_GREEN}">{text}</b>' if is_best else text


def _render_param(config: Config, name: str) -> str:
    return escape(format_value(config[name]), _CELL) if name in config else ""


def _colour(status: Status | str, words: str) -> str:
    text = escape(words)
    return f'<span style="color:{_RED}">{text}</span>' if status == Status.FAILED else text
