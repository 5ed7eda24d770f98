"""`paceline tree`: what a study's trials have in common, as a tree.

Knows how a node reads in one line. Counts nothing that `machine.sharing` does not say.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from paceline.api.studies import opened
from paceline.cli.options import json_option, store_option, study_argument
from paceline.cli.progress import Bar
from paceline.core.errors import SpecError
from paceline.machine.sharing import settings_said, sharing_of, trials_said
from paceline.machine.story import span

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from paceline.core.decisions import Step
    from paceline.machine.sharing import NodeRow, Sharing

# Nodes that are shown where nobody says how many.
SHOWN = 60


@click.command()
@study_argument
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    help=f"Nodes to show. [default: {SHOWN} as text, all in JSON]",
)
@click.option("--plot", metavar="FILE", help="Draw it as HTML.")
@store_option
@json_option
def tree(study: str, limit: int | None, plot: str | None, store: str, as_json: bool) -> None:
    """Show what a study's trials share.

    Each line is a run of epochs that all its trials have in common, with what is different from the
    line it hangs on; beneath it hang those into which its trials part. --plot draws each as a bar
    over its epochs, darker the more trials share it.
    """
    with opened(store) as kept, Bar(f"reading {study}") as bar:
        steps = bar.counted(kept.read(study))
        found = sharing_of(steps) if plot is None else _plotted(steps, plot)
    if as_json:
        shown = msgspec.structs.replace(found, nodes=found.nodes[:limit])
        click.echo(msgspec.json.encode(shown))
        return
    from paceline.cli import views

    views.show(*_drawn(found, SHOWN if limit is None else limit))
    if plot is not None:
        click.echo(plot)


def _plotted(steps: Iterable[Step], path: str) -> Sharing:
    from paceline.plots.branches import tree_page  # plotly takes longer than most commands
    from paceline.plots.chronicle import chronicle_of

    chronicle = chronicle_of(steps)
    try:
        Path(path).write_text(tree_page(chronicle), encoding="utf-8")
    except OSError as error:
        raise SpecError(f"{path} cannot be written: {error.strerror or error}.") from None
    return chronicle.sharing


def _drawn(found: Sharing, limit: int) -> Iterable[RenderableType]:
    from paceline.cli import views

    yield views.panel(found.study, _figures(found))
    if not found.share:
        yield "Nothing is shared in this study: every trial trains alone."
    from rich.text import Text
    from rich.tree import Tree

    top = Tree("", hide_root=True)
    drawn: dict[int | None, Tree] = {None: top}
    for row in found.nodes[:limit]:
        drawn[row.node] = drawn[row.parent].add(Text(_line(row)))
    if top.children:
        yield top
    hidden = len(found.nodes) - len(drawn) + 1
    if hidden:
        yield f"and {hidden} more: --limit shows them."


def _figures(found: Sharing) -> dict[str, str]:
    saved = (
        f"{_count(found.epochs_saved, 'epoch')}, {span(found.seconds_saved)} of training, "
        f"{found.slot_seconds_saved / 3600:.3g} slot-hours"
    )
    limit = "nothing was asked for yet"
    if found.merge_rate is not None and found.merge_rate_whole is not None:
        limit = (
            f"{found.merge_rate:.3g}x for what was asked for ({found.epochs_needed} different), "
            f"{found.merge_rate_whole:.3g}x if all trials went to their last epoch"
        )
    return {
        "asked for": f"{_count(found.epochs_asked, 'epoch')} by {_count(found.trials, 'trial')}",
        "trained": _count(found.epochs_trained, "epoch"),
        **({"plan": found.plan} if found.plan else {}),
        **({"taken over": _taken(found)} if found.adopted else {}),
        "saved": saved if found.epochs_saved > 0 else "nothing",
        "at most": limit,
    }


def _taken(found: Sharing) -> str:
    studies = [f"study {name!r}" for name in found.adopted]
    return f"{_count(found.epochs_adopted, 'different epoch')} from {' and '.join(studies)}"


def _line(row: NodeRow) -> str:
    length = row.last - row.first + 1
    done = "" if row.epochs_known == length else f", {row.epochs_known} of {length} known"
    where = f"epoch {row.first}" if length == 1 else f"epochs {row.first}-{row.last}"
    return f"{where}: {settings_said(row.changes)}; {trials_said(row.trials)}{done}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
