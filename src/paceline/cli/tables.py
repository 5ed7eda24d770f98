"""Tables and panels of results, drawn with rich.

Shows what a result holds and computes nothing else. Imported only when something is shown: rich
takes longer to import than most commands take.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import msgspec
from rich import box
from rich.console import Group
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from paceline.analysis.story import explain
from paceline.analysis.summary import StudyRow
from paceline.analysis.summary_text import (
    describe_best,
    describe_reuse,
    describe_summary,
    describe_target,
    describe_trials,
)
from paceline.core.speedup import format_speeds
from paceline.core.text import (
    format_bytes,
    format_config,
    format_count,
    format_duration,
    format_epochs,
    format_number,
    format_slot_time,
    format_value,
)
from paceline.core.values import OPEN_ENDED
from paceline.live.console import PlainConsole

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType

    from paceline.analysis.summary import Best, Forecasts, GroupRow, Speeds, StudySummary
    from paceline.api.comparison import CompareRow
    from paceline.api.completion import Completion
    from paceline.api.simulation import SimResult
    from paceline.api.stored import CheckpointPage, StudyPage, TrialRow
    from paceline.core.values import Config, StudySpec
    from paceline.machine.replay import Difference


def show(*what: RenderableType) -> None:
    """Print to standard output; text from users is never read as markup."""
    console = PlainConsole()
    for each in what:
        console.print(each)


def indent(sentences: Iterable[str]) -> RenderableType:
    """Return sentences indented by two columns, on all of their lines."""
    return Padding(Group(*sentences), (0, 0, 0, 2))


def render_simulation(result: SimResult) -> RenderableType:
    """Return the panel of a simulation's result."""
    rows = {
        "best": _describe_best(result),
        "config": _describe_config(result.best_config),
        "time": format_duration(result.makespan_s)
        + describe_target(result.target, result.time_to_target_s),
        "slots": f"{result.slots}, {result.busy_fraction:.0%} busy, "
        f"{format_slot_time(result.slot_seconds)}",
        "trials": describe_trials(result.trials_started, result),
        "epochs": _describe_epochs(result.epochs_trained, result.reports),
        "ended": f"{result.end}: {result.end_why}",
        **({"speeds": format_speeds(result.speeds)} if result.speeds else {}),
        **(_describe_completion(result.completion) if result.completion else {}),
    }
    return make_panel(f"{result.study}: {result.policy}", rows)


def _describe_completion(found: Completion) -> dict[str, str]:
    """Return how uncertain the result of a completed trace is."""
    best = "none in some"
    if found.best_range is not None:
        best = " to ".join(map(format_number, found.best_range))
    time = " to ".join(map(format_duration, found.makespan_range))
    epochs = " to ".join(map(str, found.epochs_range))
    reached = "" if found.reached is None else f", target reached in {found.reached}"
    return {
        "curves": f"{found.cut} of {found.runs} completed by forecasts ({found.curves}); this is "
        f"the median of {found.draws} draws",
        "range": f"best {best}, time {time}, epochs {epochs}{reached}",
    }


def render_summary(summary: StudySummary) -> RenderableType:
    """Return the panel of a study's summary."""
    rows = describe_summary(summary)
    rows["ended"] = f"{summary.end}: {summary.end_why}"
    rows["report"] = summary.report or "none"
    return make_panel(f"{summary.study}: {summary.policy}", rows)


def render_side_by_side(results: Sequence[SimResult]) -> RenderableType:
    """Return several simulations with the same target as one table."""
    target = results[0].target
    goal = "makespan" if target is None else f"time to {format_number(target)}"
    table = _make_table("policy", f">{goal}", ">slot time", ">busy", ">trials", ">epochs", ">best")
    for result in results:
        table.add_row(
            result.policy,
            format_duration(result.makespan_s),
            format_duration(result.slot_seconds),
            f"{result.busy_fraction:.0%}",
            str(result.trials_started),
            str(result.epochs_trained),
            format_number(result.best_value),
        )
    return table


def render_comparison(rows: Sequence[CompareRow]) -> Iterable[RenderableType]:
    """Yield one table for each trace."""
    # A column that is the same in all rows is left out.
    parts = ["policy"]
    parts += [name for name in ("allocator", "curves") if len({getattr(r, name) for r in rows}) > 1]
    for (source, _), found in groupby(rows, key=lambda row: (row.source, row.target)):
        yield _render_trace(source, list(found), parts)
    for row in {row.source: row for row in rows if row.completed}.values():
        yield (
            f"completed: {row.completed} curves of {row.source} were cut short and are completed "
            "by forecasts, a new draw for each seed; the range is that of all seeds."
        )
    if any(row.never for row in rows):
        yield "never: runs that ended before the target; they count with the time they ended at."


def render_study_list(rows: Sequence[StudyRow]) -> RenderableType:
    """Return the studies of a store as a table."""
    table = _make_table("study", "policy", "metric", "status", ">trials", ">best", ">clock")
    for row in rows:
        table.add_row(
            row.name,
            row.policy,
            f"{row.metric} ({row.mode})",
            _describe_status(row),
            str(row.trials),
            format_number(row.best_value),
            format_duration(row.clock_s),
        )
    return table


def render_study(page: StudyPage) -> RenderableType:
    """Return a study and its trials."""
    study = page.study
    rows = {
        "policy": f"{study.policy}, allocator {study.allocator}, curves {study.curves}",
        "goal": ("minimize " if study.mode == "min" else "maximize ")
        + study.metric
        + ("" if study.epochs >= OPEN_ENDED else f" within {format_count(study.epochs, 'epoch')}")
        + _describe_limits(study),
        "status": f"{_describe_status(study)} after {format_duration(study.clock_s)}"
        + (f": {study.end_why}" if study.end_why else ""),
        "trials": describe_trials(study.trials, study, is_running=study.driver is not None),
        "epochs": _describe_epochs(study.epochs_trained, study.reports),
        **({"plan": study.plan} if study.plan else {}),
        **({"reuse": describe_reuse(study.adopted)} if study.adopted else {}),
        **({"forecasts": _describe_forecasts(study.forecasts)} if study.forecasts else {}),
        **({"speeds": _describe_speeds(study.speeds)} if study.speeds else {}),
        "best": _describe_best(study),
    }
    group_column = ["study"] if page.groups else []
    table = _make_table(">trial", *group_column, "status", ">epoch", ">best", ">at", "config")
    for column in table.columns[:-1]:
        column.no_wrap = True  # only the config is shortened
    for trial in page.trials:
        table.add_row(
            str(trial.trial),
            *([trial.group or ""] if page.groups else []),
            _describe_trial(trial, study),
            format_epochs(trial.epoch, trial.goal),
            format_number(trial.best_value),
            "-" if trial.best_epoch is None else str(trial.best_epoch),
            Text(format_config(trial.config), no_wrap=True, overflow="ellipsis"),
        )
    hidden = study.trials - len(page.trials)
    rest = [f"and {hidden} more: show them with --limit."] if hidden else []
    several = [_render_groups(page.groups, study)] if page.groups else []
    return Group(make_panel(study.name, rows), *several, table, *rest)


def _render_groups(groups: Sequence[GroupRow], whole: StudyRow) -> RenderableType:
    """Return the table of the studies that are driven as one."""
    table = _make_table("study", "policy", "status", ">trials", ">best", ">slot time")
    for group in groups:
        table.add_row(
            group.name,
            group.policy,
            _describe_status(group, whole),
            str(group.trials),
            format_number(group.best_value),
            format_duration(group.slot_seconds),
        )
    return table


def _describe_speeds(speeds: Speeds) -> str:
    parts = [
        f"{each.speed:.3g}x on {each.width:g} {'slot' if each.width <= 1 else 'slots'} "
        f"({each.epochs:g} {'epoch' if each.epochs == 1 else 'epochs'})"
        for each in speeds.widths
    ]
    return f"{', '.join(parts)}; a move costs {format_duration(speeds.move_s)}"


def render_best(best: Best) -> RenderableType:
    """Return the panel of the best config, one value per line."""
    saved = best.checkpoint
    rows = {
        best.metric: f"{format_number(best.value)}",
        "trial": str(best.trial),
        "epoch": str(best.epoch),
        "checkpoint": (
            "not saved at that epoch"
            if saved is None
            else saved.path or f"not on this machine: attempt {saved.attempt}, epoch {saved.epoch}"
        ),
        **({"origin": "reused from another study"} if saved and saved.attempt < 0 else {}),
        **{f"  {name}": format_value(value) for name, value in best.config.items()},
    }
    return make_panel(best.study, rows)


def render_checkpoints(page: CheckpointPage) -> RenderableType:
    """Return a study's checkpoints as a table."""
    table = _make_table(
        "checkpoint", "trials", ">epoch", ">size", ">idle", ">to train again", "why"
    )
    for row in page.checkpoints:
        table.add_row(
            f"{row.attempt}-{row.epoch}",
            ", ".join(map(str, row.trials)),
            str(row.epoch),
            format_bytes(row.bytes),
            format_duration(row.idle_s),
            format_duration(row.slot_seconds),
            row.why,
        )
    return table


def render_difference(difference: Difference, spec: StudySpec) -> RenderableType:
    """Return where a replay decided otherwise than the log."""
    event = difference.event
    decisions = difference.logged, difference.replayed
    texts = ["no decision" if each is None else explain(each, spec) for each in decisions]
    if texts[0] == texts[1]:
        # They differ in a field that the sentence leaves out.
        texts = [msgspec.json.encode(each).decode() for each in decisions]
    return make_panel(
        f"different at entry {difference.number}",
        {
            "event": f"{format_duration(event.at)}: {explain(event, spec)}",
            "logged": texts[0],
            "replayed": texts[1],
        },
    )


def _render_trace(source: str, rows: Sequence[CompareRow], parts: Sequence[str]) -> RenderableType:
    first = rows[0]
    timed = first.target is not None
    goal = f"time to {format_number(first.target)}" if first.target is not None else "no target"
    times = (">median", ">mean", ">p10", ">p90", ">never") if timed else (">makespan",)
    # Eighty columns have no room for more.
    last: Sequence[str] = (">slot time",) if len(parts) == 1 else ()
    if first.completed:
        last = (">range of best", "curves")
    table = _make_table(*parts, ">slots", *times, ">best", *last)
    for column in table.columns[: len(parts)]:
        column.no_wrap = True
    table.title = f"{first.trace}: {goal}, {format_count(first.seeds, 'seed')}"
    for row in rows:
        spans = [row.time_median_s, row.time_mean_s, row.time_p10_s, row.time_p90_s]
        table.add_row(
            *(getattr(row, name) for name in parts),
            str(row.slots),
            *(
                (
                    *("-" if each is None else format_duration(each) for each in spans),
                    str(row.never),
                )
                if timed
                else (format_duration(row.makespan_median_s),)
            ),
            format_number(row.best_median),
            *_list_last_cells(row, len(last)),
        )
    return table


def _list_last_cells(row: CompareRow, count: int) -> list[str]:
    if row.completed:
        return [f"{format_number(row.best_low)} to {format_number(row.best_high)}", "completed"]
    return [format_duration(row.slot_seconds_mean)][:count]


def _make_table(*columns: str) -> Table:
    """Return a plain table; a column whose name begins with `>` is right-aligned."""
    table = Table(
        box=box.SIMPLE_HEAD,
        title_justify="left",
        title_style="bold",
        pad_edge=False,
        collapse_padding=True,
    )
    for column in columns:
        right = column.startswith(">")
        # Numbers are never wrapped; names continue on the next line.
        table.add_column(
            column.lstrip(">"), justify="right" if right else "left", no_wrap=right, overflow="fold"
        )
    return table


def make_panel(title: str, rows: dict[str, str]) -> RenderableType:
    """Return named values in a frame."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows.items():
        grid.add_row(name, value)
    return Panel(grid, title=Text(title), title_align="left", box=box.ROUNDED)


def _describe_status(study: StudyRow | GroupRow, whole: StudyRow | None = None) -> str:
    """Return the status of a study, or of one of several in `whole`."""
    if study.end is not None:
        return f"ended: {study.end}"
    whole = study if isinstance(study, StudyRow) else whole
    return "running now" if whole is not None and whole.driver is not None else study.status


def _describe_trial(trial: TrialRow, study: StudyRow) -> str:
    """Return the status of a trial in words."""
    if trial.status in ("running", "ready"):
        # The line above the table says what ended it.
        waiting = "running now" if trial.status == "running" else "waiting"
        return "unfinished" if study.driver is None else waiting
    return "stopped early" if trial.status == "stopped" else trial.status


def _describe_limits(study: StudyRow) -> str:
    target = "" if study.target is None else f", target {format_number(study.target)}"
    deadline = "" if study.deadline_s is None else f", deadline {format_duration(study.deadline_s)}"
    return target + deadline


def _describe_epochs(trained: int, reports: int) -> str:
    return f"{trained} trained" + (f", {reports} reports seen" if reports != trained else "")


def _describe_forecasts(forecasts: Forecasts) -> str:
    text = f"{forecasts.met:.4g} resolved: {forecasts.coverage_80:.0%} in the 80 % intervals"
    if forecasts.brier is None:
        return text
    base = f"base rate {forecasts.brier_of_base_rate:.3f}"
    return f"{text}; Brier score {forecasts.brier:.3f}, {base}"


def _describe_best(result: SimResult | StudyRow) -> str:
    return describe_best(result.metric, result.best_value, result.best_epoch, result.best_trial)


def _describe_config(config: Config | None) -> str:
    return "-" if config is None else format_config(config)
