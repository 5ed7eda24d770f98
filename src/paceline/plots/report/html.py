"""The parts of the report that are plain HTML: the head, the decisions, the commands.

Knows how each reads. Whatever a user wrote goes through `safe`. Does not know figures.
"""

from __future__ import annotations

import html
import re
import shlex
from typing import TYPE_CHECKING

import msgspec

from paceline.analysis.story import written
from paceline.core import decisions as d
from paceline.core.values import Status
from paceline.plots.style import human, many, slot_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from paceline.analysis.summary import StudyRow
    from paceline.analysis.timeline import Chronicle
    from paceline.core.values import Part
    from paceline.plots.report.trial_table import Table

_LONGEST_SPEC = 20_000


def safe(text: object, most: int = 400) -> str:
    """Return text that HTML shows as it is."""
    words = str(text)
    return html.escape(words if len(words) <= most else words[: most - 1] + "…")


def head(chronicle: Chronicle) -> str:
    """Return what one wants to know first."""
    spec, study = chronicle.spec, chronicle.study
    goal = "lowest" if spec.mode == "min" else "highest"
    looked = "looks" if study.end is None else "looked"
    lede = (
        f"{part(spec.policy)} {looked} for the {goal} {safe(spec.metric, 80)} "
        f"in {many(spec.epochs, 'epoch')} a trial. {_ending(chronicle)}"
    )
    return (
        '<header><p class="kicker">Paceline study</p>'
        f"<h1>{safe(spec.name)}</h1>"
        f'<p class="lede">{lede}</p>{_tiles(chronicle)}'
        f'<div class="pair">{_best(chronicle)}{_study(chronicle)}</div></header>'
    )


def part(given: Part) -> str:
    """Return a plug-in with its parameters, long ones by their size."""
    said = [f"{name}={_size(value)}" for name, value in given.params.items()]
    return safe(f"{given.name} ({', '.join(said)})" if said else given.name)


def _size(value: object) -> str:
    text = str(value)
    if len(text) <= 40:
        return text
    if isinstance(value, list | tuple):
        return f"list of {len(value):,}"
    if isinstance(value, dict):
        return f"{', '.join(map(str, value))}" if len(str(list(value))) < 90 else "…"
    return text[:39] + "…"


def _ending(chronicle: Chronicle) -> str:
    study, after = chronicle.study, human(chronicle.now)
    if study.end is None:
        return f"It has not ended: its log goes up to {after}."
    return f"It ended after {after}: {safe(study.end_why)}."


def _tiles(chronicle: Chronicle) -> str:
    study, best = chronicle.study, chronicle.best
    if best is None:
        first = _tile(f"best {study.metric}", "none", "no trial has reported a number")
    else:
        when = f", after {human(chronicle.leads[-1].at)}" if chronicle.leads else ""
        first = _tile(
            f"best {study.metric}",
            f"{best.value:.6g}",
            f"trial {best.trial}, epoch {best.epoch}{when}",
        )
    offered = chronicle.capacity_seconds
    busy = f"{study.slot_seconds / offered:.0%}" if offered > 0 else "none"
    fates = [(status, sum(t.status is status for t in chronicle.trials)) for status in Status]
    told = ", ".join(f"{count:,} {status}" for status, count in fates if count)
    return (
        '<div class="tiles">'
        + first
        + _tile("trials", f"{study.trials:,}", told or "none opened")
        + _tile(
            "epochs trained",
            f"{study.epochs_trained:,}",
            _seen(study),
        )
        + _tile("slots busy", busy, slot_time(study.slot_seconds))
        + "</div>"
    )


def _seen(study: StudyRow) -> str:
    if not study.reports:
        return "none was finished"
    if study.reports == study.epochs_trained:
        return "each seen by one trial"
    return f"{study.reports:,} seen by trials"


def _tile(label: str, value: str, note: str) -> str:
    return (
        f'<div class="card tile"><span class="note">{safe(label, 60)}</span>'
        f'<b>{safe(value)}</b><span class="note">{safe(note)}</span></div>'
    )


def _best(chronicle: Chronicle) -> str:
    best = chronicle.best
    if best is None:
        return '<section class="card"><h2>Best config</h2><p class="note">None yet.</p></section>'
    kept = best.checkpoint
    saved = (
        "none was saved at that epoch"
        if kept is None
        else f"attempt {kept.attempt}, epoch {kept.epoch}"
    )
    values = [(name, written({"": value})[1:]) for name, value in best.config.items()]
    return (
        f'<section class="card best"><h2>Best config</h2><p class="note">checkpoint: {saved}</p>'
        f"{_pairs(values or [('', 'no settings')])}</section>"
    )


def _study(chronicle: Chronicle) -> str:
    spec = chronicle.spec
    rows = [
        ("policy", part(spec.policy)),
        ("generator", part(spec.generator)),
        ("allocator", part(spec.allocator)),
        ("curve model", part(spec.curves)),
        ("metric", f"{safe(spec.metric)} ({spec.mode})"),
        ("budget", safe(_budget(chronicle))),
        ("ended by", safe(chronicle.study.end or "nothing yet")),
        ("slots", safe(_slots(chronicle))),
        ("seed", str(spec.seed)),
        ("sharing", "equal prefixes are trained once" if spec.share else "off"),
        ("retries", f"{spec.retries} a trial" if spec.retries else "none"),
    ]
    written_out = msgspec.json.format(msgspec.json.encode(spec)).decode()
    body = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in rows)
    return (
        f'<section class="card"><h2>The study</h2><dl>{body}</dl>'
        f"<details><summary>All of its spec</summary>"
        f"<pre>{safe(written_out, _LONGEST_SPEC)}</pre></details></section>"
    )


def _budget(chronicle: Chronicle) -> str:
    budget = chronicle.spec.budget
    said = []
    if budget.target is not None:
        over = "" if budget.target.over == 1 else f" over {budget.target.over} reports"
        said.append(f"target {budget.target.value:.6g}{over}")
    if budget.deadline_s is not None:
        said.append(f"deadline {human(budget.deadline_s)}")
    if budget.slot_seconds is not None:
        said.append(slot_time(budget.slot_seconds))
    if budget.trials is not None:
        said.append(many(budget.trials, "trial"))
    return ", ".join(said) or "no limit"


def _slots(chronicle: Chronicle) -> str:
    counts = [slots for _, slots in chronicle.capacity if slots or len(chronicle.capacity) == 1]
    low, high = min(counts, default=0), max(counts, default=0)
    said = f"{high}" if low == high else f"{low} to {high}"
    spec = chronicle.spec
    if spec.pack > 1:
        said += f", up to {spec.pack} trials on one"
    if spec.span > 1:
        said += f", up to {spec.span} for one trial"
    return said


def _pairs(rows: Iterable[tuple[str, str]]) -> str:
    return (
        "<dl>"
        + "".join(f'<dt>{safe(a)}</dt><dd title="{safe(b, 2000)}">{safe(b)}</dd>' for a, b in rows)
        + "</dl>"
    )


def trials(table: Table, opened: int) -> str:
    """Return the table's frame; its rows are written by the page's script."""
    if not table.rows:
        return '<section class="card"><h2>Trials</h2><p class="note">None yet.</p></section>'
    heads = "".join(
        f'<th scope="col"{" class=number" if column.number else ""}>'
        f'<button type="button">{safe(column.name, 40)}</button></th>'
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


def decisions(chronicle: Chronicle) -> str:
    """Return the last decisions with their why, newest first."""
    rows = "".join(
        f'<tr><td class="number">{each.number}</td><td>{human(each.at)}</td>'
        f'<td class="why">{safe(ordered(each.decision))}</td>'
        f'<td class="why">{safe(each.decision.why)}</td></tr>'
        for each in reversed(chronicle.decided)
    )
    if not rows:
        return ""
    heads = '<th class="number">entry</th><th>time</th><th>decision</th><th>why</th>'
    return (
        '<section class="card long"><h2>Last decisions</h2><p class="note">'
        f"The last {len(chronicle.decided)} with their why, newest first.</p>"
        '<div class="wide tall" tabindex="0"><table class="decisions">'
        f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div></section>"
    )


def ordered(decision: d.AnyDecision) -> str:
    """Return a decision as an order."""
    match decision:
        case d.Open(trial=trial, until=until):
            return f"open trial {trial}, up to epoch {until}"
        case d.Go(trial=trial, until=until):
            return f"let trial {trial} go on to epoch {until}"
        case d.Pause(trial=trial):
            return f"let trial {trial} wait"
        case d.Cut(trial=trial):
            return f"cut trial {trial} short"
        case d.Stop(trial=trial):
            return f"stop trial {trial}"
        case d.Fail(trial=trial):
            return f"give trial {trial} up"
        case d.Launch(attempt=attempt, trial=trial, start=start, goal=goal, slots=slots):
            origin = f"from epoch {start}" if start else "from nothing"
            return (
                f"launch attempt {attempt} of trial {trial} {origin} to epoch {goal} "
                f"on {_places(slots)}"
            )
        case d.Halt(attempt=attempt):
            return f"end attempt {attempt} at once"
        case d.Resize(attempt=attempt, width=width):
            return f"move attempt {attempt} to width {width:g}"
        case d.Provide(slots=slots):
            return f"ask for {many(slots, 'more slot')}"
        case d.Retire(slots=slots):
            return f"give {_places(slots)} up"
        case d.Close():
            return "open no further trials"
        case d.Leave(group=group, cause=cause):
            return f"end study {group + 1} of those driven as one: {cause}"
        case d.End(cause=cause):
            return f"end the study: {cause}"
        case _:
            return type(decision).__name__.lower()


def _places(slots: Sequence[int]) -> str:
    return f"slot{'' if len(slots) == 1 else 's'} {', '.join(map(str, slots))}"


def study_command(verb: str, study: str, store: str) -> str:
    """Return a command about a study where it is kept."""
    # A page is handed around: a password is not.
    url = re.sub(r"(://[^/@:]*):.*@", r"\1@", store)
    # A name that looks like an option is not one after two dashes.
    dashes = ["--"] if study.startswith("-") else []
    return shlex.join(["paceline", verb, "--store", url, *dashes, study])


def commands(chronicle: Chronicle, store: str | None, again: str | None) -> str:
    """Return what to type to go on from here; nothing where the study is kept nowhere."""
    said, name = [], chronicle.spec.name
    if store is not None:
        said = [
            ("tell the whole study", study_command("story", name, store)),
            ("decide every event of the log again", study_command("replay", name, store)),
        ]
        # A real study goes on where its own program is run again.
        if chronicle.study.end is None and again is not None:
            said.append(("go on with it", study_command("resume", name, store)))
    if again is not None:
        said.append(("simulate it again", again))
    if not said:
        return ""
    lines = "\n\n".join(f"# {why}\n{safe(line, 2000)}" for why, line in said)
    return f'<section class="card"><h2>Go on from here</h2><pre>{lines}</pre></section>'
