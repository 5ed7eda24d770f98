"""Commands that read stored studies: ls, show, best, story, tree, replay, export, checkpoints.

Knows what each command prints and its exit code. Does not know how a log is read or summed up.
"""

from __future__ import annotations

from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from paceline.analysis.sharing import describe_changes, measure_sharing
from paceline.analysis.story import narrate_study, narrate_trial
from paceline.analysis.summary import find_best, make_study_row
from paceline.api.permissions import allow as allow_places
from paceline.api.stored import (
    StudyList,
    export_trace,
    fold_log,
    inspect_checkpoints,
    locate_best,
    make_page,
    open_existing,
    read_log,
    refuse_replacing,
    replay_log,
)
from paceline.cli.flags import allow_option, json_option, store_option, study_argument
from paceline.cli.output import echo, echo_json
from paceline.cli.progress import ProgressBar
from paceline.cli.report import require_plotly
from paceline.core.errors import SpecError
from paceline.core.events import LOGIC, Opened
from paceline.core.speedup import format_speeds
from paceline.core.text import format_bytes, format_count, format_duration, format_numbers
from paceline.store import hide_password

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.console import RenderableType

    from paceline.analysis.sharing import NodeRow, Sharing
    from paceline.api.stored import CheckpointPage
    from paceline.core.decisions import Step


# Trials that `show` lists without --limit.
SHOWN = 20


@contextmanager
def _open_log(store: str, study: str) -> Iterator[Iterator[Step]]:
    """Open a study's log: yield its steps, with a progress bar."""
    with open_existing(store) as stored, ProgressBar(f"reading {study}") as bar:
        yield bar.track(read_log(stored, study))


@click.command()
@store_option
@json_option
def ls(store: str, as_json: bool) -> None:
    """List the studies of a store, oldest first."""
    with open_existing(store) as stored:
        rows = []
        for name in stored.studies():
            with ProgressBar(f"reading {name}") as bar:
                state = fold_log(bar.track(read_log(stored, name)))
            rows.append(make_study_row(state, stored.holder(name)))
    if as_json:
        echo_json(StudyList(store=hide_password(store), studies=rows))
        return
    from paceline.cli import tables

    empty = f"{hide_password(store)} has no studies yet."
    tables.show(tables.render_study_list(rows) if rows else empty)


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
    with open_existing(store) as stored, ProgressBar(f"reading {study}") as bar:
        state = fold_log(bar.track(read_log(stored, study)))
        driver = stored.holder(study)
    if as_json:
        echo_json(make_page(state, limit, driver))
        return
    from paceline.cli import tables

    tables.show(tables.render_study(make_page(state, SHOWN if limit is None else limit, driver)))


@click.command()
@study_argument
@store_option
@allow_option
@json_option
def best(study: str, store: str, allow: tuple[str, ...], as_json: bool) -> int:
    """Show the best config a study has found."""
    with _open_log(store, study) as steps:
        first = next(steps)
        found = find_best(fold_log(chain([first], steps)))
    if found is not None and isinstance(first.event, Opened):
        found = locate_best(found, first.event, store, allow_places(*allow))
    if found is None:
        echo(f"paceline: study {study!r} has not reported a number yet.", err=True)
        return 1
    if as_json:
        echo_json(found)
    else:
        from paceline.cli import tables

        tables.show(tables.render_best(found))
    return 0


@click.command()
@study_argument
@click.argument("trial", type=click.IntRange(min=0), required=False)
@store_option
def story(study: str, trial: int | None, store: str) -> None:
    """Tell what happened to a study, or to one trial."""
    with _open_log(store, study) as steps:
        sentences = list(narrate_study(steps) if trial is None else narrate_trial(steps, trial))
    for sentence in sentences:
        echo(sentence)


@click.command()
@study_argument
@store_option
@allow_option
def replay(study: str, store: str, allow: tuple[str, ...]) -> int:
    """Check that a study's log leads to the same decisions.

    Decides every event of the log again. Prints the first difference and exits with 1 if there is
    one, unless another version of the decision logic wrote the log.
    """
    with _open_log(store, study) as steps:
        found = replay_log(steps, parts=allow)
    if found.difference is None:
        echo(f"identical: {found.decisions} decisions in {found.steps} steps")
        return 0
    from paceline.cli import tables

    if found.is_expected:
        echo(f"decided by logic version {found.logic}; this release has {LOGIC}")
    tables.show(tables.render_difference(found.difference, found.spec))
    return 0 if found.is_expected else 1


@click.command()
@study_argument
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@store_option
def export(study: str, file: str, force: bool, store: str) -> None:
    """Write a study's trials to a file.

    The suffix of FILE says how. .csv and .parquet: a row for each trial, with its status, its best
    value and its config. .json: the trials with all curves. .jsonl.gz and .jsonl: a trace, which
    `paceline simulate` reads.

    In a trace, each trial becomes one run, with its times as they were measured. Epochs on several
    slots, or on a share of one, are converted to one slot by the speeds that the study measured.
    Trials without a report are left out; of trials with the same config, the one with the most
    epochs is kept. Trials that were stopped, paused or unfinished are marked as cut short.
    """
    from paceline.api.load import load
    from paceline.api.tabulation import WRITERS, write_table

    if Path(file).suffix in WRITERS:
        refuse_replacing(file, force=force)
        count = write_table(load(study, store), Path(file))
        echo(f"{file}: {format_count(count, 'trial')}")
        return
    if not file.endswith((".jsonl", ".jsonl.gz")):
        raise SpecError(
            f"{file} has no known suffix: give a name that ends in {', '.join(WRITERS)}, .jsonl.gz "
            "or .jsonl."
        )
    with _open_log(store, study) as steps:
        written = export_trace(steps, file, force=force)
    left = [
        f"{count} {what}"
        for count, what in (
            (written.silent, "without a report"),
            (written.doubled, "with the config of another"),
        )
        if count
    ]
    cut = f", {written.cut} of them cut short" if written.cut else ""
    rest = f"; left out: {', '.join(left)}" if left else ""
    echo(f"{file}: {written.runs} runs{cut}{rest}")
    if written.speeds:
        echo(f"seconds are as on one slot alone, by these speeds: {format_speeds(written.speeds)}")


# Nodes that `tree` shows without --limit.
NODES_SHOWN = 60


@click.command()
@study_argument
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    help=f"Nodes to show. [default: {NODES_SHOWN} as text, all in JSON]",
)
@click.option("--plot", metavar="FILE", help="Write a figure to this HTML file.")
@store_option
@json_option
def tree(study: str, limit: int | None, plot: str | None, store: str, as_json: bool) -> None:
    """Show which epochs a study's trials share.

    Each line is a node of the prefix tree: epochs that its trials have in common, and the settings
    that differ from its parent. Its children are below it. --plot draws each node as a bar over its
    epochs, darker the more trials share it.
    """
    if plot is not None:
        require_plotly()
    with open_existing(store) as stored, ProgressBar(f"reading {study}") as bar:
        steps = bar.track(read_log(stored, study))
        found = measure_sharing(steps) if plot is None else _draw_tree(steps, plot)
    if as_json:
        shown = msgspec.structs.replace(found, nodes=found.nodes[:limit])
        echo_json(shown)
        return
    from paceline.cli import tables

    tables.show(*_render_tree(found, NODES_SHOWN if limit is None else limit))
    if plot is not None:
        echo(plot)


def _draw_tree(steps: Iterable[Step], path: str) -> Sharing:
    from paceline.analysis.timeline import build_timeline

    # Imported here: plotly takes longer to import than most commands run.
    from paceline.plots.tree_figure import render_tree_page

    timeline = build_timeline(steps)
    try:
        Path(path).write_text(render_tree_page(timeline), encoding="utf-8")
    except OSError as error:
        raise SpecError(f"{path} cannot be written: {error.strerror or error}.") from None
    return timeline.sharing


def _render_tree(found: Sharing, limit: int) -> Iterable[RenderableType]:
    from paceline.cli import tables

    yield tables.make_panel(found.study, _summarize_sharing(found))
    if not found.share:
        yield "This study shares nothing: every trial trains alone."
    from rich.text import Text
    from rich.tree import Tree

    top = Tree("", hide_root=True)
    branches: dict[int | None, Tree] = {None: top}
    for row in found.nodes[:limit]:
        branches[row.node] = branches[row.parent].add(Text(_format_node(row)))
    if top.children:
        yield top
    hidden = len(found.nodes) - len(branches) + 1
    if hidden:
        yield f"and {hidden} more: show them with --limit."


def _summarize_sharing(found: Sharing) -> dict[str, str]:
    saved = (
        f"{format_count(found.epochs_saved, 'epoch')}, "
        f"{format_duration(found.seconds_saved)} of training, "
        f"{found.slot_seconds_saved / 3600:.3g} slot-hours"
    )
    limit = "no epochs were requested yet"
    if found.merge_rate is not None and found.merge_rate_whole is not None:
        limit = (
            f"{found.merge_rate:.3g}x for the requested epochs ({found.epochs_needed} different), "
            f"{found.merge_rate_whole:.3g}x if all trials train to their last epoch"
        )
    trials = format_count(found.trials, "trial")
    return {
        "requested": f"{format_count(found.epochs_asked, 'epoch')} by {trials}",
        "trained": format_count(found.epochs_trained, "epoch"),
        **({"plan": found.plan} if found.plan else {}),
        **({"reused": _describe_reuse(found)} if found.adopted else {}),
        "saved": saved if found.epochs_saved > 0 else "nothing",
        "possible": limit,
    }


def _describe_reuse(found: Sharing) -> str:
    studies = [f"study {name!r}" for name in found.adopted]
    return f"{format_count(found.epochs_adopted, 'different epoch')} from {' and '.join(studies)}"


def _format_node(row: NodeRow) -> str:
    length = row.last - row.first + 1
    done = "" if row.epochs_known == length else f", {row.epochs_known} of {length} known"
    where = f"epoch {row.first}" if length == 1 else f"epochs {row.first}-{row.last}"
    return f"{where}: {describe_changes(row.changes)}; {format_numbers('trial', row.trials)}{done}"


@click.command()
@study_argument
@click.option(
    "--dry-run", is_flag=True, help="Delete nothing: list the files that would be deleted."
)
@store_option
@allow_option
@json_option
def checkpoints(
    study: str, dry_run: bool, store: str, allow: tuple[str, ...], as_json: bool
) -> None:
    """List a study's checkpoints, and delete files that its log does not name.

    A study deletes its own checkpoints: each one stays while a paused trial, a later trial or the
    best trial needs it. This command deletes the files that a crash has left.
    """
    with open_existing(store) as stored, ProgressBar(f"reading {study}") as bar:
        found = inspect_checkpoints(
            stored,
            store,
            bar.track(read_log(stored, study)),
            collect=not dry_run,
            allowed=allow_places(*allow),
        )
    if as_json:
        echo_json(found)
        return
    from paceline.cli import tables

    if found.checkpoints:
        tables.show(tables.render_checkpoints(found))
    for line in _describe_checkpoints(found):
        echo(line)


def _describe_checkpoints(found: CheckpointPage) -> list[str]:
    if found.place is None:
        return [f"study {found.study!r} was simulated: it has no checkpoints."]
    count = len(found.checkpoints)
    lines = [f"{format_count(count, 'checkpoint')}, {format_bytes(found.bytes)} in {found.place}"]
    if found.missing:
        lines.append(
            f"{format_count(found.missing, 'more is', 'more are')} in the log, but missing: "
            "a trial that needs one starts from an earlier checkpoint, or from the beginning."
        )
    if found.strays:
        action = "deleted" if found.collected else "would delete"
        lines.append(
            f"{action}: {format_count(len(found.strays), 'file')} that the log does not name, "
            f"{format_bytes(found.stray_bytes)}"
        )
        lines += [f"  {stray.name}  {format_bytes(stray.bytes)}" for stray in found.strays]
    else:
        lines.append("the log names all files: there is nothing to delete.")
    return lines
