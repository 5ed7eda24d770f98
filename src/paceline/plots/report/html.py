"""The plain HTML of the report: head, table frame, decisions, commands.

All text from users goes through `escape`. Does not know figures.
"""

from __future__ import annotations

import html
import re
import shlex
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from paceline.analysis.story import describe
from paceline.core.text import (
    format_count,
    format_duration,
    format_slot_time,
    format_value,
    truncate,
)
from paceline.core.values import Status
from paceline.plan.config_code import format_code

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paceline.analysis.summary import StudyRow
    from paceline.analysis.timeline import Timeline
    from paceline.core.values import Part
    from paceline.plots.report.trial_table import TrialTable

_LONGEST_SPEC = 20_000


# What can become of a trial, in the order of the tile.
_FATES = (*(status.value for status in Status), "unfinished")


def escape(text: object, most: int = 400) -> str:
    """Return text that HTML shows literally, cut to `most` characters."""
    return html.escape(truncate(str(text), most))


def render_head(timeline: Timeline, saved: str | None = None) -> str:
    """Return the head: the goal, the end, the best config with its checkpoint, and the spec."""
    spec, study = timeline.spec, timeline.study
    verb = "minimize" if spec.mode == "min" else "maximize"
    verb += "s" if study.end is None else "d"
    lede = (
        f"{format_part(spec.policy)} {verb} {escape(spec.metric, 80)} "
        f"in {format_count(spec.epochs, 'epoch')} a trial. {_describe_end(timeline)}"
    )
    return (
        '<header><p class="kicker">Paceline study</p>'
        f"<h1>{escape(spec.name)}</h1>"
        f'<p class="lede">{lede}</p>{_render_tiles(timeline)}'
        f'<div class="pair">{_render_best(timeline, saved)}{_render_study(timeline)}</div></header>'
    )


def format_part(given: Part) -> str:
    """Return a part with its parameters; long ones are abbreviated."""
    params = [f"{name}={_abbreviate(value)}" for name, value in given.params.items()]
    return escape(f"{given.name} ({', '.join(params)})" if params else given.name)


def _abbreviate(value: object) -> str:
    text = str(value)
    if len(text) <= 40:
        return text
    if isinstance(value, list | tuple):
        return f"list of {len(value):,}"
    if isinstance(value, dict):
        return f"{', '.join(map(str, value))}" if len(str(list(value))) < 90 else "…"
    return truncate(text, 40)


def _describe_end(timeline: Timeline) -> str:
    study, after = timeline.study, format_duration(timeline.now)
    if study.end is None:
        return f"It has not ended: its log goes up to {after}."
    return f"It ended after {after}: {escape(study.end_why)}."


def _render_tiles(timeline: Timeline) -> str:
    study, best = timeline.study, timeline.best
    if best is None:
        first = _render_tile(f"best {study.metric}", "none", "no trial has reported a number")
    else:
        when = (
            f", after {format_duration(timeline.best_changes[-1].at)}"
            if timeline.best_changes
            else ""
        )
        first = _render_tile(
            f"best {study.metric}",
            f"{best.value:.6g}",
            f"trial {best.trial}, epoch {best.epoch}{when}",
        )
    offered = timeline.capacity_seconds
    busy = f"{study.slot_seconds / offered:.0%}" if offered > 0 else "none"
    found = Counter(trial.fate for trial in timeline.trials)
    counts = ", ".join(f"{found[fate]:,} {fate}" for fate in _FATES if found[fate])
    return (
        '<div class="tiles">'
        + first
        + _render_tile("trials", f"{study.trials:,}", counts or "none opened")
        + _render_tile(
            "epochs trained",
            f"{study.epochs_trained:,}",
            _describe_reports(study),
        )
        + _render_tile("slots busy", busy, format_slot_time(study.slot_seconds))
        + "</div>"
    )


def _describe_reports(study: StudyRow) -> str:
    if not study.reports:
        return "no epoch was finished"
    if study.reports == study.epochs_trained:
        return "each reported to one trial"
    return f"{study.reports:,} reported to trials"


def _render_tile(label: str, value: str, note: str) -> str:
    return (
        f'<div class="card tile"><span class="note">{escape(label, 60)}</span>'
        f'<b>{escape(value)}</b><span class="note">{escape(note)}</span></div>'
    )


def _render_best(timeline: Timeline, path: str | None) -> str:
    best = timeline.best
    if best is None:
        return '<section class="card"><h2>Best config</h2><p class="note">None yet.</p></section>'
    kept = best.checkpoint
    saved = (
        "not saved at that epoch" if kept is None else f"attempt {kept.attempt}, epoch {kept.epoch}"
    )
    if path is not None:
        saved += f", in {escape(path)}"
    values = [(name, format_value(value)) for name, value in best.config.items()]
    code = html.escape(format_code(best.config))
    return (
        '<section class="card best"><h2>Best config</h2>'
        f'<button type="button" class="copy" data-copy="{code}">Copy as Python</button>'
        f'<p class="note">checkpoint: {saved}</p>'
        f"{_render_pairs(values or [('', 'no settings')])}</section>"
    )


def _render_study(timeline: Timeline) -> str:
    spec = timeline.spec
    rows = [
        ("policy", format_part(spec.policy)),
        ("generator", format_part(spec.generator)),
        ("allocator", format_part(spec.allocator)),
        ("curve model", format_part(spec.curves)),
        ("metric", f"{escape(spec.metric)} ({spec.mode})"),
        ("budget", escape(_format_budget(timeline))),
        ("ended by", escape(timeline.study.end or "nothing yet")),
        ("slots", escape(_format_slots(timeline))),
        ("seed", str(spec.seed)),
        ("sharing", "equal prefixes are trained once" if spec.share else "off"),
        ("retries", f"{spec.retries} a trial" if spec.retries else "none"),
    ]
    written_out = msgspec.json.format(msgspec.json.encode(spec)).decode()
    body = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in rows)
    return (
        f'<section class="card"><h2>The study</h2><dl>{body}</dl>'
        f"<details><summary>All of its spec</summary>"
        f"<pre>{escape(written_out, _LONGEST_SPEC)}</pre></details></section>"
    )


def _format_budget(timeline: Timeline) -> str:
    budget = timeline.spec.budget
    limits = []
    if budget.target is not None:
        over = "" if budget.target.over == 1 else f" over {budget.target.over} reports"
        limits.append(f"target {budget.target.value:.6g}{over}")
    if budget.deadline_s is not None:
        limits.append(f"deadline {format_duration(budget.deadline_s)}")
    if budget.slot_seconds is not None:
        limits.append(format_slot_time(budget.slot_seconds))
    if budget.trials is not None:
        limits.append(format_count(budget.trials, "trial"))
    return ", ".join(limits) or "no limit"


def _format_slots(timeline: Timeline) -> str:
    counts = [slots for _, slots in timeline.capacity if slots or len(timeline.capacity) == 1]
    low, high = min(counts, default=0), max(counts, default=0)
    text = f"{high}" if low == high else f"{low} to {high}"
    spec = timeline.spec
    if spec.pack > 1:
        text += f", up to {spec.pack} trials on one"
    if spec.span > 1:
        text += f", up to {spec.span} for one trial"
    return text


def _render_pairs(rows: Iterable[tuple[str, str]]) -> str:
    return (
        "<dl>"
        + "".join(
            f'<dt>{escape(a)}</dt><dd title="{escape(b, 2000)}">{escape(b)}</dd>' for a, b in rows
        )
        + "</dl>"
    )


def render_trials(table: TrialTable, opened: int) -> str:
    """Return the table's frame; the page's script writes its rows."""
    if not table.rows:
        return '<section class="card"><h2>Trials</h2><p class="note">None yet.</p></section>'
    heads = "".join(
        f'<th scope="col"{" class=number" if column.number else ""}>'
        f'<button type="button">{escape(column.name, 40)}</button></th>'
        for column in table.columns
    )
    cut = f"The best {len(table.rows):,} of {opened:,}. " if len(table.rows) < opened else ""
    return (
        '<section class="card long" id="trials"><div class="bar"><div><h2>Trials</h2>'
        f'<p class="note">{cut}Click a row for its story, a heading to sort. '
        '<span id="count" role="status"></span></p></div>'
        '<input type="search" id="filter" placeholder="filter: stopped lr=0.1" '
        'aria-label="filter trials"></div>'
        f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody></tbody></table></div>'
        '<p class="more" id="more" hidden><button type="button"></button></p></section>'
    )


def render_decisions(timeline: Timeline) -> str:
    """Return the last decisions with their reasons, newest first."""
    rows = "".join(
        f'<tr><td class="number">{each.number}</td><td>{format_duration(each.at)}</td>'
        f'<td class="why">{escape(describe(each.decision, timeline.spec))}</td>'
        f'<td class="why">{escape(each.decision.why)}</td></tr>'
        for each in reversed(timeline.decisions)
    )
    if not rows:
        return ""
    heads = '<th class="number">entry</th><th>time</th><th>decision</th><th>why</th>'
    return (
        '<section class="card long"><h2>Last decisions</h2><p class="note">'
        f"The last {len(timeline.decisions)} with their reasons, newest first.</p>"
        '<div class="wide tall" tabindex="0"><table class="decisions">'
        f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div></section>"
    )


def make_study_command(verb: str, study: str, store: str) -> str:
    """Return a command about a study in its store."""
    # Reports are passed on; passwords must not be.
    url = re.sub(r"(://[^/@:]*):.*@", r"\1@", store)
    # After two dashes, a name that looks like an option is a name.
    dashes = ["--"] if study.startswith("-") else []
    return shlex.join(["paceline", verb, "--store", url, *dashes, study])


def render_commands(timeline: Timeline, store: str | None, again: str | None) -> str:
    """Return the commands to continue with; nothing if the study is not stored."""
    commands, name = [], timeline.spec.name
    if store is not None:
        commands = [
            ("show the whole story", make_study_command("story", name, store)),
            ("decide every event of the log again", make_study_command("replay", name, store)),
        ]
        # A real study is resumed by running its own program again.
        if timeline.study.end is None and again is not None:
            commands.append(("resume it", make_study_command("resume", name, store)))
    if again is not None:
        commands.append(("simulate it again", again))
    if not commands:
        return ""
    lines = "\n\n".join(f"# {why}\n{escape(line, 2000)}" for why, line in commands)
    return f'<section class="card"><h2>Commands</h2><pre>{lines}</pre></section>'
