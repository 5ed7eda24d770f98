"""What people see: tables and sentences made of results.

Knows how each result reads at a glance. Decides nothing and counts nothing that a result does not
say. Imported when something is about to be shown: rich takes longer than most commands.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import msgspec
from rich import box
from rich.console import Console, Group
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from paceline.analysis.story import size, span, taken_over, written

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType

    from paceline.analysis.live_summary import Summary
    from paceline.analysis.summary import Best, Forecasts, GroupRow, Speeds, StudyRow
    from paceline.api.comparison import CompareRow
    from paceline.api.simulation import SimResult
    from paceline.api.stored import CheckpointPage, StudyPage
    from paceline.core.decisions import Entry
    from paceline.core.values import Config
    from paceline.machine.replay import Difference


def show(*what: RenderableType) -> None:
    """Print to standard output. What users wrote is never read as markup."""
    console = Console(markup=False, emoji=False, highlight=False)
    for each in what:
        console.print(each)


def indented(sentences: Iterable[str]) -> RenderableType:
    """Return sentences a little to the right, also where one needs several lines."""
    return Padding(Group(*sentences), (0, 0, 0, 2))


def simulated(result: SimResult) -> RenderableType:
    """Return what a simulation found."""
    rows = {
        "best": _best_line(result.metric, result.best_value, result.best_epoch, result.best_trial),
        "config": _config(result.best_config),
        "time": span(result.makespan_s) + _target_words(result),
        "slots": f"{result.slots}, {result.busy_fraction:.0%} busy, "
        f"{span(result.slot_seconds)} of slot time",
        "trials": _fates(
            result.trials_started,
            result.trials_finished,
            result.trials_stopped,
            result.trials_failed,
        ),
        "epochs": _epochs(result.epochs_trained, result.reports),
        "ended": f"{result.end}: {result.end_why}",
    }
    return panel(f"{result.study}: {result.policy}", rows)


def summed_up(told: Summary) -> RenderableType:
    """Return what came of a study on this machine."""
    saved = (
        "none was saved"
        if told.checkpoint is None
        else f"{told.checkpoint} (epoch {told.checkpoint_epoch})"
    )
    fates = told.trials, told.trials_finished, told.trials_stopped, told.trials_failed
    rows = {
        "best": _best_line(told.metric, told.best_value, told.best_epoch, told.best_trial)
        + _target_words(told),
        "config": _config(told.best_config),
        "checkpoint": saved,
        "ended": f"{told.end}: {told.end_why}",
        "time": span(told.clock_s)
        + ("" if told.deadline_s is None else f" of {span(told.deadline_s)}"),
        "slots": f"{told.slots}, {told.busy_fraction:.0%} busy, "
        f"{span(told.slot_seconds)} of slot time",
        "trials": _fates(*fates),
        "epochs": f"{told.epochs_trained} trained{_savings(told)}",
        **({"shares": taken_over(told.adopted)} if told.adopted else {}),
        "report": told.report or "none",
    }
    return panel(f"{told.study}: {told.policy}", rows)


def side_by_side(results: Sequence[SimResult]) -> RenderableType:
    """Return several simulations with the same target as one table."""
    target = results[0].target
    goal = "makespan" if target is None else f"time to {target:.6g}"
    table = _table("policy", f">{goal}", ">slot time", ">busy", ">trials", ">epochs", ">best")
    for result in results:
        table.add_row(
            result.policy,
            span(result.makespan_s),
            span(result.slot_seconds),
            f"{result.busy_fraction:.0%}",
            str(result.trials_started),
            str(result.epochs_trained),
            _number(result.best_value),
        )
    return table


def compared(rows: Sequence[CompareRow]) -> Iterable[RenderableType]:
    """Yield one table for each trace."""
    # What is the same in all rows needs no column.
    who = ["policy"]
    who += [name for name in ("allocator", "curves") if len({getattr(r, name) for r in rows}) > 1]
    for (source, _), found in groupby(rows, key=lambda row: (row.source, row.target)):
        yield _comparison(source, list(found), who)
    if any(row.never for row in rows):
        yield "never: runs that ended before the target; they count with the time they ended at."


def listed(rows: Sequence[StudyRow]) -> RenderableType:
    """Return the studies of a store as a table."""
    table = _table("study", "policy", "metric", "status", ">trials", ">best", ">clock")
    for row in rows:
        table.add_row(
            row.name,
            row.policy,
            f"{row.metric} ({row.mode})",
            _status(row),
            str(row.trials),
            _number(row.best_value),
            span(row.clock_s),
        )
    return table


def paged(page: StudyPage) -> RenderableType:
    """Return a study and its trials."""
    study = page.study
    rows = {
        "policy": f"{study.policy}, allocator {study.allocator}, curves {study.curves}",
        "looks for": f"the {'lowest' if study.mode == 'min' else 'highest'} {study.metric}"
        f" within {study.epochs} epochs" + _limits(study),
        "status": f"{_status(study)} after {span(study.clock_s)}"
        + (f": {study.end_why}" if study.end_why else ""),
        "trials": _fates(
            study.trials, study.trials_finished, study.trials_stopped, study.trials_failed
        ),
        "epochs": _epochs(study.epochs_trained, study.reports),
        **({"plan": study.plan} if study.plan else {}),
        **({"shares": taken_over(study.adopted)} if study.adopted else {}),
        **({"forecasts": _foreseen(study.forecasts)} if study.forecasts else {}),
        **({"speeds": _speeds(study.speeds)} if study.speeds else {}),
        "best": _best_line(study.metric, study.best_value, study.best_epoch, study.best_trial),
    }
    whose = ["study"] if page.groups else []
    table = _table(">trial", *whose, "status", ">epoch", ">best", ">at", "config")
    for column in table.columns[:-1]:
        column.no_wrap = True  # where there is little room, the config gives way
    for trial in page.trials:
        table.add_row(
            str(trial.trial),
            *([trial.group or ""] if page.groups else []),
            trial.status,
            f"{trial.epoch}/{trial.goal}",
            _number(trial.best_value),
            "-" if trial.best_epoch is None else str(trial.best_epoch),
            Text(written(trial.config), no_wrap=True, overflow="ellipsis"),
        )
    hidden = study.trials - len(page.trials)
    rest = [f"and {hidden} more: --limit shows them."] if hidden else []
    several = [_several(page.groups)] if page.groups else []
    return Group(panel(study.name, rows), *several, table, *rest)


def _several(groups: Sequence[GroupRow]) -> RenderableType:
    """Return the studies that are driven as one, in their order."""
    table = _table("study", "policy", "status", ">trials", ">best", ">slot time")
    for group in groups:
        table.add_row(
            group.name,
            group.policy,
            _status(group),
            str(group.trials),
            _number(group.best_value),
            span(group.slot_seconds),
        )
    return table


def _speeds(speeds: Speeds) -> str:
    parts = [
        f"{each.speed:.3g}x on {each.width:g} {'slot' if each.width <= 1 else 'slots'} "
        f"({each.epochs:g} {'epoch' if each.epochs == 1 else 'epochs'})"
        for each in speeds.widths
    ]
    return f"{', '.join(parts)}; a move costs {span(speeds.move_s)}"


def found(best: Best) -> RenderableType:
    """Return the best config, one value a line."""
    saved = best.checkpoint
    rows = {
        best.metric: f"{best.value:.6g}",
        "trial": str(best.trial),
        "epoch": str(best.epoch),
        "checkpoint": (
            "none was saved at that epoch"
            if saved is None
            else f"attempt {saved.attempt}, epoch {saved.epoch}"
            if saved.attempt >= 0
            else f"taken over from another study, epoch {saved.epoch}"
        ),
        **{
            f"  {name}": written({name: value})[len(name) + 1 :]
            for name, value in best.config.items()
        },
    }
    return panel(best.study, rows)


def stocked(page: CheckpointPage) -> RenderableType:
    """Return a study's checkpoints as a table."""
    table = _table("checkpoint", "trials", ">epoch", ">size", ">idle", ">to train again", "why")
    for row in page.checkpoints:
        table.add_row(
            f"{row.attempt}-{row.epoch}",
            ", ".join(map(str, row.trials)),
            str(row.epoch),
            size(row.bytes),
            span(row.idle_s),
            span(row.slot_seconds),
            row.why,
        )
    return table


def different(difference: Difference) -> RenderableType:
    """Return where a replay decided otherwise."""
    event = difference.event
    return panel(
        f"different at entry {difference.number}",
        {
            "event": f"{span(event.at)}: {in_words(event)}",
            "logged": in_words(difference.logged),
            "replayed": in_words(difference.replayed),
        },
    )


def in_words(entry: Entry | None) -> str:
    """Return an entry as `stop trial 3: why`."""
    if entry is None:
        return "nothing more"
    said = [
        f"{field} {_plain(value)}"
        for field, value in msgspec.structs.asdict(entry).items()
        if field not in ("at", "why", "spec", "engine") and value is not None
    ]
    why = getattr(entry, "why", "")
    name = type(entry).__name__.lower()
    return f"{name} {', '.join(said)}".strip() + (f": {why}" if why else "")


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return f"({written(value)})"
    if isinstance(value, tuple):
        return f"({', '.join(map(str, value))})"
    return str(value)


def _comparison(source: str, rows: Sequence[CompareRow], who: Sequence[str]) -> RenderableType:
    first = rows[0]
    timed = first.target is not None
    goal = f"time to {first.target:.6g}" if first.target is not None else "no target"
    times = (">median", ">mean", ">p10", ">p90", ">never") if timed else (">makespan",)
    # Eighty columns hold no more.
    slot_time = (">slot time",) if len(who) == 1 else ()
    table = _table(*who, ">slots", *times, ">best", *slot_time)
    for column in table.columns[: len(who)]:
        column.no_wrap = True
    table.title = f"{first.trace}: {goal}, {first.seeds} {'seed' if first.seeds == 1 else 'seeds'}"
    for row in rows:
        spans = [row.time_median_s, row.time_mean_s, row.time_p10_s, row.time_p90_s]
        table.add_row(
            *(getattr(row, name) for name in who),
            str(row.slots),
            *(
                (*("-" if each is None else span(each) for each in spans), str(row.never))
                if timed
                else (span(row.makespan_median_s),)
            ),
            _number(row.best_median),
            *((span(row.slot_seconds_mean),) if slot_time else ()),
        )
    return table


def _table(*columns: str) -> Table:
    """Return a plain table; a column that begins with `>` is flush right."""
    table = Table(
        box=box.SIMPLE_HEAD,
        title_justify="left",
        title_style="bold",
        pad_edge=False,
        collapse_padding=True,
    )
    for column in columns:
        right = column.startswith(">")
        # Numbers stay whole; where there is little room, names go on in the next line.
        table.add_column(
            column.lstrip(">"), justify="right" if right else "left", no_wrap=right, overflow="fold"
        )
    return table


def panel(title: str, rows: dict[str, str]) -> RenderableType:
    """Return named facts in a frame."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows.items():
        grid.add_row(name, value)
    return Panel(grid, title=Text(title), title_align="left", box=box.ROUNDED)


def _status(study: StudyRow | GroupRow) -> str:
    return study.status if study.end is None else f"ended: {study.end}"


def _limits(study: StudyRow) -> str:
    target = "" if study.target is None else f", target {study.target:.6g}"
    deadline = "" if study.deadline_s is None else f", deadline {span(study.deadline_s)}"
    return target + deadline


def _savings(told: Summary) -> str:
    """Say what nobody had to train, as far as there is any."""
    saved = [
        f"{count} {how}"
        for count, how in (
            (told.epochs_spared, "spared by stopping early"),
            (told.epochs_shared, "shared between trials" + " and studies" * bool(told.adopted)),
        )
        if count
    ]
    return "".join(f", {each}" for each in saved)


def _target_words(result: SimResult | Summary) -> str:
    if result.target is None:
        return ""
    if result.time_to_target_s is None:
        return f"; the target {result.target:.6g} was never reached"
    return f", when the target {result.target:.6g} was reached"


def _fates(started: int, finished: int, stopped: int, failed: int) -> str:
    left = started - finished - stopped - failed
    return f"{started}: {finished} finished, {stopped} stopped, {failed} failed, {left} unfinished"


def _epochs(trained: int, reports: int) -> str:
    return f"{trained} trained" + (f", {reports} reports seen" if reports != trained else "")


def _foreseen(told: Forecasts) -> str:
    words = f"{told.met:.4g} met: {told.coverage_80:.0%} in the 80 % intervals"
    if told.brier is None:
        return words
    return f"{words}; Brier score {told.brier:.3f}, base rate {told.brier_of_base_rate:.3f}"


def _best_line(metric: str, value: float | None, epoch: int | None, trial: int | None) -> str:
    if value is None:
        return f"no {metric} was reported"
    return f"{metric} {value:.6g} at epoch {epoch} of trial {trial}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def _config(config: Config | None) -> str:
    return "-" if config is None else written(config)
