"""Commands on studies that are kept: ls, show, best, story, replay, export.

Knows what each prints and its exit code. Reads logs; writes nothing but the trace it was asked for.
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from paceline.analysis.sharing import settings_said, sharing_of, trials_said
from paceline.analysis.story import size, span, study_story, trial_story
from paceline.analysis.summary import best_of, row_of
from paceline.api.stored import StudyList, folded, looked_after, opened, page_of, replayed
from paceline.api.stored import export as write_export
from paceline.cli.flags import json_option, store_option, study_argument
from paceline.cli.progress import Bar
from paceline.core.errors import SpecError
from paceline.store import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.console import RenderableType

    from paceline.analysis.sharing import NodeRow, Sharing
    from paceline.api.stored import CheckpointPage
    from paceline.core.decisions import Step


# Trials that `show` lists where nobody says how many.
SHOWN = 20


@contextmanager
def _log(store: str, study: str) -> Iterator[Iterator[Step]]:
    """Give a study's log, step by step."""
    with opened(store) as kept, Bar(f"reading {study}") as bar:
        yield bar.counted(kept.read(study))


@click.command()
@store_option
@json_option
def ls(store: str, as_json: bool) -> None:
    """List the studies of a store, oldest first."""
    with opened(store) as kept:
        rows = []
        for name in kept.studies():
            with Bar(f"reading {name}") as bar:
                rows.append(row_of(folded(bar.counted(kept.read(name)))))
    if as_json:
        click.echo(msgspec.json.encode(StudyList(store=shown(store), studies=rows)))
        return
    from paceline.cli import tables

    tables.show(tables.listed(rows) if rows else f"{shown(store)} holds no study yet.")


@click.command()
@study_argument
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    help=f"Trials to show. [default: {SHOWN} in the table, all in JSON]",
)
@store_option
@json_option
def show(study: str, limit: int | None, store: str, as_json: bool) -> None:
    """Show a study and its trials, best first."""
    with _log(store, study) as steps:
        state = folded(steps)
    if as_json:
        click.echo(msgspec.json.encode(page_of(state, limit)))
        return
    from paceline.cli import tables

    tables.show(tables.paged(page_of(state, SHOWN if limit is None else limit)))


@click.command()
@study_argument
@store_option
@json_option
def best(study: str, store: str, as_json: bool) -> int:
    """Show the best config a study has found."""
    with _log(store, study) as steps:
        found = best_of(folded(steps))
    if found is None:
        click.echo(f"paceline: study {study!r} has not reported a number yet.", err=True)
        return 1
    if as_json:
        click.echo(msgspec.json.encode(found))
    else:
        from paceline.cli import tables

        tables.show(tables.found(found))
    return 0


@click.command()
@study_argument
@click.argument("trial", type=click.IntRange(min=0), required=False)
@store_option
def story(study: str, trial: int | None, store: str) -> None:
    """Tell what happened to a study, or to one trial."""
    with _log(store, study) as steps:
        told = study_story(steps) if trial is None else trial_story(steps, trial)
        sentences = list(told)
    for sentence in sentences:
        click.echo(sentence)


@click.command()
@study_argument
@store_option
def replay(study: str, store: str) -> int:
    """Check that a study's log leads to the same decisions.

    Decides every event of the log again. Prints the first difference and exits with 1 if there is
    one.
    """
    with _log(store, study) as steps:
        found = replayed(steps)
    if found.difference is None:
        click.echo(f"identical: {found.decisions} decisions in {found.steps} steps")
        return 0
    from paceline.cli import tables

    tables.show(tables.different(found.difference))
    return 1


@click.command()
@study_argument
@click.argument("trace", type=click.Path(dir_okay=False))
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@store_option
def export(study: str, trace: str, force: bool, store: str) -> None:
    """Write a study's curves as a trace file.

    Each trial becomes one run, with its times as they were measured. Trials without a report are
    left out; of trials with the same config, the one that got furthest is kept.
    """
    with _log(store, study) as steps:
        written = write_export(steps, trace, force=force)
    left = [
        f"{count} {what}"
        for count, what in (
            (written.silent, "without a report"),
            (written.doubled, "with the config of another"),
        )
        if count
    ]
    click.echo(f"{trace}: {written.runs} runs" + (f"; left out: {', '.join(left)}" if left else ""))


# Nodes that are shown where nobody says how many.
NODES_SHOWN = 60


@click.command()
@study_argument
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    help=f"Nodes to show. [default: {NODES_SHOWN} as text, all in JSON]",
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
    from paceline.cli import tables

    tables.show(*_drawn(found, NODES_SHOWN if limit is None else limit))
    if plot is not None:
        click.echo(plot)


def _plotted(steps: Iterable[Step], path: str) -> Sharing:
    from paceline.analysis.timeline import chronicle_of
    from paceline.plots.tree_figure import tree_page  # plotly takes longer than most commands

    chronicle = chronicle_of(steps)
    try:
        Path(path).write_text(tree_page(chronicle), encoding="utf-8")
    except OSError as error:
        raise SpecError(f"{path} cannot be written: {error.strerror or error}.") from None
    return chronicle.sharing


def _drawn(found: Sharing, limit: int) -> Iterable[RenderableType]:
    from paceline.cli import tables

    yield tables.panel(found.study, _figures(found))
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


@click.command()
@study_argument
@click.option("--dry-run", is_flag=True, help="Delete nothing: say what would go.")
@store_option
@json_option
def checkpoints(study: str, dry_run: bool, store: str, as_json: bool) -> None:
    """List a study's checkpoints, and delete what lies among them unnamed.

    A study collects its own checkpoints: each is kept while a paused trial, a trial that may come
    or the best need it. What a crash has left behind, which no log names, goes here.
    """
    with opened(store) as kept, Bar(f"reading {study}") as bar:
        found = looked_after(kept, store, bar.counted(kept.read(study)), collect=not dry_run)
    if as_json:
        click.echo(msgspec.json.encode(found))
        return
    from paceline.cli import tables

    if found.checkpoints:
        tables.show(tables.stocked(found))
    for line in _lines(found):
        click.echo(line)


def _lines(found: CheckpointPage) -> list[str]:
    """Return what there is in sentences."""
    if found.place is None:
        return [f"study {found.study!r} was simulated, and has no checkpoints."]
    count = len(found.checkpoints)
    lines = [f"{_count(count, 'checkpoint')}, {size(found.bytes)} in {found.place}"]
    if found.missing:
        lines.append(
            f"{_count(found.missing, 'more is', 'more are')} named in the log and not there: "
            "whoever needs one starts from an earlier one, or over."
        )
    if found.strays:
        did = "deleted" if found.collected else "would go"
        lines.append(
            f"{did}: {_count(len(found.strays), 'file')} that no log names, "
            f"{size(found.stray_bytes)}"
        )
        lines += [f"  {stray.name}  {size(stray.bytes)}" for stray in found.strays]
    else:
        lines.append("nothing lies around: there is nothing to delete.")
    return lines


def _count(number: int, what: str, several: str = "") -> str:
    return f"{number} {what}" if number == 1 else f"{number} {several or what + 's'}"
