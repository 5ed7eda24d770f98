"""The live view of a running study as text: head, running attempts, last decisions.

The same state, time and size give the same text. Knows neither when it is drawn nor on which
terminal.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from rich.text import Text

from paceline.core.text import format_config, format_duration, format_metric, format_number
from paceline.core.values import NO_LOSS, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from paceline.analysis.story import Sentence
    from paceline.machine.state import StudyState
    from paceline.machine.trial_state import AttemptState

BARS = "▁▂▃▄▅▆▇█"
# Points of a curve, and decisions shown if there is room.
CURVE = 12
DECISIONS = 6

_STYLES = {
    "running": "green",
    "paused": "yellow",
    "stopped": "red",
    "failed": "bold red",
    "finished": "cyan",
}


class Size(NamedTuple):
    """Columns and rows of the view."""

    columns: int
    rows: int


def render_study(state: StudyState, sentences: Iterable[Sentence], now: float, size: Size) -> Text:
    """Return the view, within the columns and rows of `size`."""
    head = _render_head(state, now)
    rows = size.rows - len(head) - 2
    # Attempts come first, but a third of the rows is for decisions.
    spare = min(DECISIONS, max(rows - 1 - len(state.attempts), rows // 3))
    last = list(sentences)[-spare:] if spare > 0 else []
    left = rows - (len(last) + 1 if last else 0)
    lines = [*head, *_render_attempts(state, now, max(left, 1))]
    if last:
        lines += [Text("last decisions", "dim"), *map(_render_sentence, last)]
    for line in lines:
        line.truncate(size.columns, overflow="ellipsis")
    return Text("\n", no_wrap=True, overflow="crop").join(lines[: max(size.rows, 1)])


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


def _render_head(state: StudyState, now: float) -> list[Text]:
    spec = state.spec
    title = Text.assemble((spec.name, "bold"), f"  {spec.policy}  {_format_time(state, now)}")
    busy = state.capacity - state.free
    title.append(f"  {max(busy, 0.0):.3g}/{state.capacity} slots busy")
    counts = Counter(trial.status for trial in state.trials)
    trials = Text("trials  ", "dim")
    trials.append(f"{len(state.trials)}", "default")
    for status in (s for s in Status if counts[s]):
        trials.append(", " if len(trials) > 10 else ": ", "default")
        trials.append(f"{counts[status]} {status.value}", _STYLES.get(status.value, "default"))
    trials.append(f"; {state.reports} reports", "default")
    lines = [title, _render_best(state)]
    if state.best is not None:
        lines.append(Text.assemble(("config  ", "dim"), format_config(state.best.config)))
    return [*lines, trials]


def _format_time(state: StudyState, now: float) -> str:
    if state.deadline_s is None:
        return format_duration(now)
    left = format_duration(max(state.deadline_s - now, 0.0))
    return f"{format_duration(now)} of {format_duration(state.deadline_s)}, {left} left"


def _render_best(state: StudyState) -> Text:
    spec, target = state.spec, state.spec.budget.target
    line = Text("best    ", "dim")
    if state.best is None:
        line.append(f"no {spec.metric} yet", "default")
    else:
        line.append(f"{spec.metric} {format_metric(state.best_loss, spec, 6)}", "bold green")
        line.append(f" at epoch {state.best_epoch} of trial {state.best.id}", "default")
    if target is not None:
        line.append(f", target {format_number(target.value)}", "default")
        if state.best is not None:
            missing = state.best_loss - spec.sign * target.value
            line.append(f": {missing:.3g} to go" if missing > 0 else ": reached", "default")
    return line


def _render_attempts(state: StudyState, now: float, rows: int) -> list[Text]:
    names = f"{'trial':>6}  {'status':<8} {'epoch':>7}  {'last':>10} {'best':>10} {'time':>6}"
    title = Text(f"{names}  {'curve':<{CURVE}}  config", "dim")
    attempts = sorted(state.attempts.values(), key=lambda a: (a.trial.best_loss, a.trial.id))
    shown = attempts if len(attempts) <= rows else attempts[: max(rows - 1, 0)]
    lines = [_render_attempt(attempt, state, now) for attempt in shown]
    if len(shown) < len(attempts):
        lines.append(Text(f"        and {len(attempts) - len(shown)} more", "dim"))
    if not attempts:
        lines = [Text("        no attempt is running", "dim")]
    return [Text(), title, *lines]


def _render_attempt(attempt: AttemptState, state: StudyState, now: float) -> Text:
    trial, spec = attempt.trial, state.spec
    status = "ending" if attempt.is_halting or not attempt.members else "running"
    others = len(attempt.members) - 1
    number = f"{trial.id}+{others}" if others > 0 else str(trial.id)
    place = f"{attempt.epoch}/{attempt.goal}"
    last, best = (format_metric(each, spec, 6, "-") for each in (trial.loss, trial.best_loss))
    elapsed = format_duration(round(max(now - attempt.launched_at, 0.0), 1))
    return Text.assemble(
        f"{number:>6}  ",
        (f"{status:<8}", _STYLES.get(status, "dim")),
        f" {place:>7}  {last:>10} {best:>10} {elapsed:>6}  ",
        (f"{draw_sparkline(trial.losses, spec.sign):<{CURVE}}", "cyan"),
        f"  {format_config(trial.config)}",
    )


def _render_sentence(sentence: Sentence) -> Text:
    return Text.assemble((f"{format_duration(sentence.at):>8}  ", "dim"), sentence.text)
