"""A running study as lines of text, for files, pipes and logs of clusters.

Few lines, each with something new: what runs on what, new best values, failures, and now and then
how far the study is. Never a line for each decision: `paceline story` has those.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import TYPE_CHECKING

from paceline.analysis.story import LiveStory
from paceline.analysis.study_progress import count_planned_trials, describe_time_left
from paceline.analysis.summary_text import count_statuses, describe_status
from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.text import format_count, format_duration, format_metric, show_controls
from paceline.core.values import OPEN_ENDED, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TextIO

    from paceline.analysis.story import Sentence
    from paceline.core.decisions import Step
    from paceline.core.values import StudySpec
    from paceline.live.ending import Ending
    from paceline.machine.failures import Failure
    from paceline.machine.state import StudyState

# Seconds between two lines about how far the study is: at first, and as a share of its time.
EVERY_S = 5.0
SHARE = 0.02
# Failures of one kind that get a line; the rest is counted.
SAME_FAILURES = 3
# Seconds of start-up that are not worth a line.
QUIET_START_S = 2.0

# What the program's own logging shows here is not written again.
_ENGINE = logging.getLogger("paceline.engine")
_DECISIONS = logging.getLogger("paceline.decisions")


class LineWriter:
    """Writes the lines about a running study that belong into a log file."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._story = LiveStory()
        # How often each kind of failure has come.
        self._failures: dict[tuple[str, str], int] = {}
        self._next_status = EVERY_S
        self._next_notice = QUIET_START_S
        # The reading of `clock` at study time 0; None before the first step.
        self._start: float | None = None

    def __call__(self, state: StudyState, steps: Sequence[Step]) -> None:
        lines = [
            line
            for sentence in self._story.take(state, steps)
            if not sentence.is_minor
            for line in self._write_sentence(sentence, state)
        ]
        now = self._tell_time(state, steps)
        if state.end is None and now >= self._next_status and state.trials:
            has_best = any(": new best: " in line for line in lines)
            text = describe_progress(state, now, with_best=not has_best)
            lines.append(f"{format_duration(now)}: {text}.")
            self._next_status = now + max(EVERY_S, SHARE * now)
        if lines:
            self._write(lines)

    def note(self, text: str, seconds: float) -> None:
        """Write what the start of a study waits for, if it takes long."""
        if seconds < QUIET_START_S:
            self._next_notice = QUIET_START_S  # something else is waited for now
        if seconds < self._next_notice:
            return
        self._next_notice = 2.0 * seconds
        self._write([f"{text}: {seconds:.0f} s"])

    def finish(self, ending: Ending) -> None:
        """Write the summary of a study at its end."""
        self._write(ending.lines)

    def _tell_time(self, state: StudyState, steps: Sequence[Step]) -> float:
        """Return the time on the study's clock, which goes on without steps."""
        clock = self._clock()
        if steps or self._start is None:
            self._start = clock - state.now
        return clock - self._start

    def _write_sentence(self, sentence: Sentence, state: StudyState) -> Iterator[str]:
        what = sentence.what
        if isinstance(what, e.Opened):
            yield f"{format_duration(sentence.at)}: {describe_start(state.spec)}."
            if why := what.run.policy_why:
                yield f"{format_duration(sentence.at)}: policy {state.spec.policy}: {why}."
        elif isinstance(what, e.Ended) and sentence.trial is not None:
            failure = state.trials[sentence.trial].failure
            if what.cause is e.Cause.FAILED and failure is not None:
                yield from self._write_failure(sentence.at, failure, state)
            else:
                yield str(sentence)
        elif isinstance(what, d.Fail):
            # The line about its last attempt says that it is given up.
            if state.trials[what.trial].failures == 0:
                yield str(sentence)
        elif not (isinstance(what, d.Decision) and self._is_logged(_DECISIONS, logging.INFO)):
            yield str(sentence)

    def _is_logged(self, logger: logging.Logger, level: int) -> bool:
        return _is_logged_to((self._stream, sys.stdout, sys.stderr), logger, level)

    def _write_failure(self, at: float, failure: Failure, state: StudyState) -> Iterator[str]:
        count = self._failures[failure.kind] = self._failures.get(failure.kind, 0) + 1
        if count > SAME_FAILURES or self._is_logged(_ENGINE, logging.WARNING):
            return
        given_up = state.trials[failure.trial].ended is Status.FAILED
        action = "it is given up" if given_up else "it is tried again"
        more = "; more failures like this are only counted" if count == SAME_FAILURES else ""
        yield (
            f"{format_duration(at)}: trial {failure.trial} fails: {failure.headline}; "
            f"{action}{more}."
        )

    def _write(self, lines: Sequence[str]) -> None:
        self._stream.write("".join(f"{show_controls(line)}\n" for line in lines))
        self._stream.flush()


def describe_start(spec: StudySpec) -> str:
    """Return what a study does and what limits it."""
    goal = "minimizes" if spec.mode == "min" else "maximizes"
    budget, trials = spec.budget, spec.budget.trials
    epochs = f" of at most {format_count(spec.epochs, 'epoch')}" if spec.epochs > 1 else ""
    epochs = "" if spec.epochs >= OPEN_ENDED else epochs
    limits = []
    if trials or epochs:
        limits.append(f"{format_count(trials, 'trial') if trials else 'trials'}{epochs}")
    if budget.deadline_s is not None:
        limits.append(f"deadline {format_duration(budget.deadline_s)}")
    if budget.target is not None:
        limits.append(f"target {budget.target.value:.6g}")
    return (
        f"study {spec.name!r} starts: {spec.policy} with {spec.generator.name} {goal} "
        f"{', '.join([spec.metric, *limits])}"
    )


def describe_progress(state: StudyState, now: float, *, with_best: bool = True) -> str:
    """Return how far a study is: its best value, its trials, its epochs, the time left."""
    spec = state.spec
    best = f"no {spec.metric} yet"
    if state.best is not None:
        value = format_metric(state.best_loss, spec, 6)
        best = f"best {spec.metric} {value} (trial {state.best.id}, epoch {state.best_epoch})"
    planned = count_planned_trials(state)
    of_all = f" of {planned:,}" if planned else ""
    counts = [
        f"{count:,} {describe_status(status, state)}"
        for status, count in count_statuses(state.trials)
    ]
    trials = f"{len(state.trials):,}{of_all} trials" + (f": {', '.join(counts)}" if counts else "")
    left = describe_time_left(state, now)
    epochs = format_count(state.epochs_trained, "epoch")
    parts = [*([best] if with_best else []), trials, epochs, *([left] if left else [])]
    return "; ".join(parts)


def _is_logged_to(streams: Sequence[TextIO], logger: logging.Logger, level: int) -> bool:
    """Whether the program's logging writes what this logger says to one of these streams."""
    if not logger.isEnabledFor(level):
        return False
    at: logging.Logger | None = logger
    while at is not None:
        if any(getattr(handler, "stream", None) in streams for handler in at.handlers):
            return True
        at = at.parent if at.propagate else None
    return False
