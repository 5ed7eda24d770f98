"""The live view of a running study as text: head, failures, running and best trials, decisions.

The same state, time and size give the same text. Knows neither when it is drawn nor on which
terminal.
"""

from __future__ import annotations

from heapq import nsmallest
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Group
from rich.table import Table
from rich.text import Text

from paceline.analysis.study_progress import describe_time_left, measure_progress
from paceline.analysis.summary_text import count_statuses, describe_status
from paceline.core.text import (
    format_config,
    format_count,
    format_duration,
    format_epochs,
    format_metric,
    format_number,
)
from paceline.core.values import NO_LOSS, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType

    from paceline.analysis.story import Sentence
    from paceline.live.ending import Ending
    from paceline.machine.state import StudyState
    from paceline.machine.trial_state import AttemptState, TrialState

BARS = "▁▂▃▄▅▆▇█"
# Points of a curve, and decisions shown if there is room.
CURVE = 12
DECISIONS = 6
# Best trials shown if there is room for more; as many columns as put them beside the running ones.
LEADERS = 20
WIDE = 140
_BAR = 40

_STYLES = {
    Status.RUNNING: "green",
    Status.READY: "green",
    Status.PAUSED: "yellow",
    Status.STOPPED: "magenta",
    Status.FAILED: "bold red",
    Status.FINISHED: "cyan",
}


class Size(NamedTuple):
    """Columns and rows of the view."""

    columns: int
    rows: int


def render_study(state: StudyState, sentences: Iterable[Sentence], now: float, size: Size) -> Text:
    """Return the view, within the columns and rows of `size`."""
    head = _render_head(state, now, size)
    last = list(sentences)
    if size.columns >= WIDE:
        body = _render_beside(state, now, Size(size.columns, size.rows - len(head)), len(last))
    else:
        body = _render_below(state, now, size.rows - len(head), len(last))
    spare = min(DECISIONS, size.rows - len(head) - len(body) - 2)
    lines = [*head, *body]
    if last and spare > 0:
        lines += [Text(), Text("last decisions", "dim"), *map(_render_sentence, last[-spare:])]
    for line in lines:
        line.truncate(size.columns, overflow="ellipsis")
    return Text("\n", no_wrap=True, overflow="crop").join(lines[: max(size.rows, 1)])


def render_notice(text: str, seconds: float, columns: int) -> Text:
    """Return the view before there is a study: what is waited for, and for how long."""
    line = Text.assemble(("starting  ", "dim"), f"{text}: {seconds:.0f} s")
    line.truncate(columns, overflow="ellipsis")
    return line


def render_ending(ending: Ending) -> RenderableType:
    """Return the summary of a study; long lines go on below themselves."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in ending.rows.items():
        grid.add_row(f"  {name}", Text(value, "bold green" if name == "best" else "default"))
    for name, step in zip_longest(("next",), ending.next_steps, fillvalue=""):
        if step:
            grid.add_row(f"  {name}", Text(step))
    return Group(Text(ending.heading, "bold"), grid)


def draw_sparkline(losses: Sequence[float], sign: float) -> str:
    """Return the last values of a curve as bars between the lowest and the highest.

    >>> draw_sparkline([4.0, 3.0, float("inf"), 1.0], 1.0)
    '█▅ ▁'
    """
    values = [None if loss == NO_LOSS else sign * loss for loss in losses[-CURVE:]]
    numbers = [value for value in values if value is not None]
    if not numbers:
        return " " * len(values)
    low = min(numbers)
    height = (max(numbers) - low) or 1.0
    return "".join(
        " " if value is None else BARS[int((value - low) / height * (len(BARS) - 1))]
        for value in values
    )


# The head


def _render_head(state: StudyState, now: float, size: Size) -> list[Text]:
    spec = state.spec
    busy = max(state.capacity - state.free, 0.0)
    title = Text.assemble((spec.name, "bold"), f"  {spec.policy}  {_format_time(state, now)}")
    title.append(f"  {busy:.3g}/{state.capacity} {'slot' if state.capacity == 1 else 'slots'} busy")
    trials = Text.assemble(("trials  ", "dim"), f"{len(state.trials)}")
    for status, count in count_statuses(state.trials):
        trials.append(", " if ":" in trials.plain else ": ")
        trials.append(f"{count} {describe_status(status, state)}", _STYLES[status])
    trials.append(f"; {format_count(state.epochs_trained, 'epoch')}")
    lines = [title, *_render_bar(state, now, size.columns), _render_best(state)]
    if state.best is not None:
        lines.append(Text.assemble(("config  ", "dim"), format_config(state.best.config)))
    return [*lines, trials, *_render_failures(state)]


def _format_time(state: StudyState, now: float) -> str:
    left = describe_time_left(state, now)
    spent = format_duration(now if now < 10 else round(now))
    of_all = "" if state.return_s is None else f" of {format_duration(state.return_s)}"
    return f"{spent}{of_all}" + (f", {left}" if left else "")


def _render_bar(state: StudyState, now: float, columns: int) -> list[Text]:
    """Return the bar of what is done; none if nothing limits the study."""
    share, whole = measure_progress(state, now)
    if not whole:
        return []
    width = max(min(_BAR, columns - 30), 5)
    full = round(share * width)
    # In one piece for each colour: a bar without colours must be readable too.
    return [
        Text.assemble(
            ("done    ", "dim"),
            ("━" * full, "green"),
            ("╌" * (width - full), "dim"),
            f" {share:.0%} of {whole}",
        )
    ]


def _render_best(state: StudyState) -> Text:
    spec, target = state.spec, state.spec.budget.target
    line = Text.assemble(("best    ", "dim"))
    if state.best is None:
        line.append(f"no {spec.metric} yet")
    else:
        line.append(f"{spec.metric} {format_metric(state.best_loss, spec, 6)}", "bold green")
        line.append(f" at epoch {state.best_epoch} of trial {state.best.id}")
    if target is not None:
        line.append(f", target {format_number(target.value)}")
        if state.best is not None:
            missing = state.best_loss - spec.sign * target.value
            line.append(f": {missing:.3g} to go" if missing > 0 else ": reached")
    return line


def _render_failures(state: StudyState) -> list[Text]:
    """Return the number of failures and the last error; nothing if there was none."""
    failure = state.last_failure
    if failure is None:
        return []
    count = state.failed
    attempts = sum(trial.failures for trial in state.trials)
    counts = format_count(count, "trial") if count else format_count(attempts, "attempt")
    text = f"failed  {counts}; last, trial {failure.trial}: {failure.headline}"
    return [Text(text, "bold red")]


# The trials


def _render_below(state: StudyState, now: float, rows: int, decisions: int) -> list[Text]:
    """Return the running trials, and the best ones below them."""
    if rows >= 8:  # else there is no room for decisions
        rows -= min(decisions, DECISIONS, max(rows // 5, 1)) + 2
    leaders = _list_leaders(state)
    # Running trials come first, but some rows are for the best ones.
    reserved = min(len(leaders) + 2, max(rows * 2 // 5, 3)) if leaders else 0
    running = _render_attempts(state, now, max(rows - reserved, 3))
    left = rows - len(running)
    return [*running, *(_render_leaders(state, leaders, left) if leaders and left >= 3 else [])]


def _render_beside(state: StudyState, now: float, size: Size, decisions: int) -> list[Text]:
    """Return the best trials, and the running ones to their right."""
    rows = size.rows - (min(decisions, DECISIONS) + 2 if decisions else 0)
    width = (size.columns - 2) // 2
    left = _render_leaders(state, _list_leaders(state), rows)
    right = _render_attempts(state, now, rows)
    lines = []
    for one, other in zip_longest(left, right, fillvalue=Text()):
        line = one.copy()
        line.truncate(width, overflow="ellipsis", pad=True)
        lines.append(Text.assemble(line, "  ", other))
    return lines


def _list_leaders(state: StudyState) -> list[TrialState]:
    """Return the trials with the best values, the best first."""
    found = (trial for trial in state.trials if trial.best_loss != NO_LOSS)
    return nsmallest(LEADERS, found, key=lambda trial: (trial.best_loss, trial.id))


def _render_leaders(state: StudyState, leaders: Sequence[TrialState], rows: int) -> list[Text]:
    names = f"best trials  {'epoch':>6}  {_pad(state.spec.metric, 10)}  {'status':<13}"
    lines = [_render_leader(trial, state) for trial in leaders[: max(rows - 2, 0)]]
    if not lines:
        lines = [Text(f"             no {state.spec.metric} yet", "dim")]
    return [Text(), Text(f"{names}  config", "dim"), *lines]


def _pad(text: str, width: int) -> str:
    return (text if len(text) <= width else text[: width - 1] + "…").rjust(width)


def _render_leader(trial: TrialState, state: StudyState) -> Text:
    spec = state.spec
    value = format_metric(trial.best_loss, spec, 6)
    words = describe_status(trial.status, state)
    status = {"waiting for a slot": "waiting"}.get(words, words.partition(" at ")[0])
    return Text.assemble(
        f"{trial.id:>11}  {trial.best_epoch:>6}  ",
        (f"{value:>10}", "bold green" if trial is state.best else "default"),
        "  ",
        (f"{status:<13}", _STYLES[trial.status]),
        f"  {format_config(trial.config)}",
    )


def _render_attempts(state: StudyState, now: float, rows: int) -> list[Text]:
    names = f"running now  {'epoch':>6}  {'last':>10}  {'best':>10}  {'time':>6}"
    title = Text(f"{names}  {'curve':<{CURVE}}  config", "dim")
    attempts = sorted(state.attempts.values(), key=lambda a: (a.trial.best_loss, a.trial.id))
    rows -= 2
    shown = attempts if len(attempts) <= rows else attempts[: max(rows - 1, 0)]
    lines = [_render_attempt(attempt, state, now) for attempt in shown]
    if len(shown) < len(attempts):
        lines.append(Text(f"             and {len(attempts) - len(shown)} more running", "dim"))
    if not attempts:
        lines = [Text("             no trial is running now", "dim")]
    return [Text(), title, *lines]


def _render_attempt(attempt: AttemptState, state: StudyState, now: float) -> Text:
    trial, spec = attempt.trial, state.spec
    is_ending = attempt.is_halting or not attempt.members
    others = len(attempt.members) - 1
    number = f"{trial.id}+{others}" if others > 0 else str(trial.id)
    place = format_epochs(attempt.epoch, attempt.goal)
    last, best = (format_metric(each, spec, 6, "-") for each in (trial.loss, trial.best_loss))
    elapsed = max(now - attempt.launched_at, 0.0)
    shown = format_duration(round(elapsed) if elapsed >= 10 else round(elapsed, 1))
    return Text.assemble(
        (f"{number:>11}", "dim" if is_ending else "green"),
        f"  {place:>6}  {last:>10}  {best:>10}  {'ending' if is_ending else shown:>6}  ",
        (f"{draw_sparkline(trial.losses, spec.sign):<{CURVE}}", "cyan"),
        f"  {format_config(trial.config)}",
    )


def _render_sentence(sentence: Sentence) -> Text:
    return Text.assemble((f"{format_duration(sentence.at):>8}  ", "dim"), sentence.text)
