"""The report: one HTML file that shows a study in a browser, without network.

Puts the page together from its sections and figures. The same log gives the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import html
from importlib.metadata import version
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

import msgspec
from plotly.offline import get_plotlyjs

from paceline.analysis.timeline import build_timeline
from paceline.core.errors import SpecError
from paceline.plots.figures import FIGURES
from paceline.plots.report import html as sections
from paceline.plots.report.trial_table import make_table
from paceline.plots.style import CONFIG
from paceline.worker.atomic_file import write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterable

    import plotly.graph_objects as go

    from paceline.core.decisions import Step

_PAGE = Path(__file__).with_name("page_files")

# Figures side by side where there is room.
_PAIRS = (("best", "slots"), ("epochs", "times"))
# Pixels that each axis of a figure needs; a phone scrolls it.
_AXIS_ROOM = {"configs": 82}


def write_report(
    steps: Iterable[Step],
    path: str | Path,
    *,
    store: str | None = None,
    again: str | None = None,
    saved: str | None = None,
) -> Path:
    """Write the report of a study's log to a file, replacing it, and return its path.

    The report suggests commands: about the study in its `store`, and the one that simulates it
    `again`. `saved` is the path or address of the best checkpoint. Raises SpecError where the file
    cannot be written, LogError where there is no log.
    """
    path = Path(path)
    text = render_report(steps, store=store, again=again, saved=saved)
    try:
        # The previous report may be open in a browser.
        with write_atomically(path) as part:
            part.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SpecError(f"{path} cannot be written: {error.strerror or error}.") from None
    return path


def render_report(
    steps: Iterable[Step],
    *,
    store: str | None = None,
    again: str | None = None,
    saved: str | None = None,
) -> str:
    """Return the report of a study's log as one page."""
    timeline = build_timeline(steps)
    figures = {name: draw(timeline) for name, draw in FIGURES.items()}
    name = timeline.spec.name
    command = None if store is None else sections.make_study_command("story", name, store)
    table = make_table(timeline, command)
    body = [
        sections.render_head(timeline, saved),
        *_figures(figures),
        sections.render_trials(table, len(timeline.trials)),
        sections.render_decisions(timeline),
        sections.render_commands(timeline, store, again),
        '<footer class="note">Made by Paceline '
        f"{version('paceline')} from the study's log. "
        "This file needs no network.</footer>",
        "<noscript>The figures and the table of trials need JavaScript.</noscript>",
    ]
    payload = msgspec.json.encode(
        {
            "config": CONFIG,
            "figures": {name: _bare(each) for name, each in figures.items()},
            "table": table,
        }
    )
    plotly, script = get_plotlyjs(), _read("page.js")
    return Template(_read("page.html")).substitute(
        title=sections.escape(f"{timeline.spec.name}: Paceline report", 120),
        policy=_policy(plotly, script),
        css=_read("page.css"),
        body="\n".join(body),
        payload=_inside_script(payload.decode()),
        plotly=plotly,
        script=script,
    )


def _read(name: str) -> str:
    return (_PAGE / name).read_text(encoding="utf-8")


def _policy(*scripts: str) -> str:
    """Return a content policy that allows these scripts only: no string of a study can run."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for text in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "img-src data: blob:; form-action 'none'; base-uri 'none'"
    )


def _inside_script(json: str) -> str:
    """Return JSON in which no text can end the script element that holds it."""
    for mark in "<>&\u2028\u2029":
        json = json.replace(mark, f"\\u{ord(mark):04x}")
    return json


def _figures(figures: dict[str, go.Figure]) -> list[str]:
    first = {pair[0]: pair for pair in _PAIRS}
    second = {pair[1] for pair in _PAIRS}
    cards = []
    for name in figures:
        if name in first:
            pair = "".join(_card(each, figures[each]) for each in first[name])
            cards.append(f'<div class="pair">{pair}</div>')
        elif name not in second:
            cards.append(_card(name, figures[name]))
    return cards


def _card(name: str, figure: go.Figure) -> str:
    title = figure.layout.title
    # The title is escaped for plotly; HTML needs its own escaping.
    heading, note = (
        html.escape(html.unescape(text or "")) for text in (title.text, title.subtitle.text)
    )
    subtitle = f'<p class="note">{note}</p>' if note else ""
    axes = len(figure.layout.xaxis.tickvals or ())
    room = f' style="min-width:{_AXIS_ROOM[name] * axes}px"' if name in _AXIS_ROOM and axes else ""
    return (
        f'<figure class="card"><figcaption><h2>{heading}</h2>{subtitle}'
        f'</figcaption><div class="scroll"><div class="plot" data-figure="{name}"{room}>'
        "</div></div></figure>"
    )


def _bare(figure: go.Figure) -> msgspec.Raw:
    """Return a figure's JSON without its title, which the page shows: plotly does not wrap it."""
    figure.layout.title = None
    figure.layout.margin.t = (
        34 if any(trace.showlegend is not False for trace in figure.data) else 12
    )
    figure.layout.template = None
    return msgspec.Raw(figure.to_json().encode())
