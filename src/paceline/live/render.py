"""The picture of a living study: its head, what runs, and what was decided last.

Knows how a state looks in so many columns and rows. The same state, time and size give the same
picture. Does not know when it is drawn, nor on what.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from rich.text import Text

from paceline.analysis.story import span, written
from paceline.core.values import NO_LOSS, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from paceline.analysis.live_lines import Said
    from paceline.machine.state import StudyState
    from paceline.machine.trial_state import Attempt

BARS = "▁▂▃▄▅▆▇█"
# Points of a curve that are drawn, and decisions that are shown where there is room.
CURVE = 12
DECISIONS = 6

_STYLES = {
    "running": "green",
    "waiting": "yellow",
    "stopped": "red",
    "failed": "bold red",
    "finished": "cyan",
}


class Size(NamedTuple):
    """What there is room for."""

    columns: int
    rows: int


def picture(state: StudyState, said: Iterable[Said], now: float, size: Size) -> list[Text]:
    """Return the lines of the picture, none longer or more than there is room for."""
    head = _head(state, now)
    room = size.rows - len(head) - 2
    # What runs comes first, but for a third.
    spare = min(DECISIONS, max(room - 1 - len(state.attempts), room // 3))
    told = list(said)[-spare:] if spare > 0 else []
    left = room - (len(told) + 1 if told else 0)
    lines = [*head, *_running(state, now, max(left, 1))]
    if told:
        lines += [Text("last decisions", "dim"), *map(_decision, told)]
    for line in lines:
        line.no_wrap = True
        line.truncate(size.columns, overflow="ellipsis")
    return lines[: max(size.rows, 1)]


def sparkline(losses: Sequence[float], sign: float) -> str:
    """Return the last values of a curve as bars between its lowest and its highest.

    >>> sparkline([4.0, 3.0, float("inf"), 1.0], 1.0)
    '█▅ ▁'
    """
    values = [None if loss == NO_LOSS else sign * loss for loss in losses[-CURVE:]]
    found = [value for value in values if value is not None]
    if not found:
        return " " * len(values)
    low = min(found)
    height = (max(found) - low) or 1.0
    return "".join(
        " " if value is None else BARS[int((value - low) / height * (len(BARS) - 1))]
        for value in values
    )


def _head(state: StudyState, now: float) -> list[Text]:
    spec = state.spec
    title = Text.assemble((spec.name, "bold"), f"  {spec.policy}  {_time(state, now)}")
    busy = state.capacity - state.free
    title.append(f"  {max(busy, 0.0):.3g}/{state.capacity} slots busy")
    counts = Counter(trial.status for trial in state.trials)
    trials = Text("trials  ", "dim")
    trials.append(f"{len(state.trials)}", "default")
    for status in (s for s in Status if counts[s]):
        trials.append(", " if len(trials) > 10 else ": ", "default")
        trials.append(f"{counts[status]} {status.value}", _STYLES.get(status.value, "default"))
    trials.append(f"; {state.reports} reports", "default")
    lines = [title, _best(state)]
    if state.best is not None:
        lines.append(Text.assemble(("config  ", "dim"), written(state.best.config)))
    return [*lines, trials]


def _time(state: StudyState, now: float) -> str:
    if state.deadline_s is None:
        return span(now)
    left = max(state.deadline_s - now, 0.0)
    return f"{span(now)} of {span(state.deadline_s)}, {span(left)} left"


def _best(state: StudyState) -> Text:
    spec, target = state.spec, state.spec.budget.target
    line = Text("best    ", "dim")
    if state.best is None:
        line.append(f"no {spec.metric} yet", "default")
    else:
        line.append(f"{spec.metric} {spec.sign * state.best_loss:.6g}", "bold green")
        line.append(f" at epoch {state.best_epoch} of trial {state.best.id}", "default")
    if target is not None:
        line.append(f", target {target.value:.6g}", "default")
        if state.best is not None:
            line.append(_distance(state.best_loss - spec.sign * target.value), "default")
    return line


def _distance(missing: float) -> str:
    return f": {missing:.3g} to go" if missing > 0 else ": reached"


def _running(state: StudyState, now: float, rows: int) -> list[Text]:
    names = f"{'trial':>6}  {'status':<8} {'epoch':>7}  {'last':>10} {'best':>10} {'time':>6}"
    title = Text(f"{names}  {'curve':<{CURVE}}  config", "dim")
    attempts = sorted(state.attempts.values(), key=lambda a: (a.trial.best_loss, a.trial.id))
    shown = attempts if len(attempts) <= rows else attempts[: max(rows - 1, 0)]
    lines = [_row(attempt, state, now) for attempt in shown]
    if len(shown) < len(attempts):
        lines.append(Text(f"        and {len(attempts) - len(shown)} more", "dim"))
    if not attempts:
        lines = [Text("        nothing runs", "dim")]
    return [Text(), title, *lines]


def _row(attempt: Attempt, state: StudyState, now: float) -> Text:
    trial, spec = attempt.trial, state.spec
    status = "leaving" if attempt.halting or not attempt.members else "running"
    others = len(attempt.members) - 1
    number = f"{trial.id}+{others}" if others > 0 else str(trial.id)
    place = f"{attempt.epoch}/{attempt.goal}"
    last, best = _number(trial.loss, spec.sign), _number(trial.best_loss, spec.sign)
    took = span(round(max(now - attempt.launched_at, 0.0), 1))
    return Text.assemble(
        f"{number:>6}  ",
        (f"{status:<8}", _STYLES.get(status, "dim")),
        f" {place:>7}  {last:>10} {best:>10} {took:>6}  ",
        (f"{sparkline(trial.losses, spec.sign):<{CURVE}}", "cyan"),
        f"  {written(trial.config)}",
    )


def _decision(said: Said) -> Text:
    return Text.assemble((f"{span(said.at):>8}  ", "dim"), said.text)


def _number(loss: float, sign: float) -> str:
    return "-" if loss == NO_LOSS else f"{sign * loss:.6g}"
