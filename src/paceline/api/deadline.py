"""The deadline as the user means it: wall time from the call to its return.

Knows when the call began, how long the end of a study takes, and the clocks of this machine. The
machine is told when training has to end, by an event; how a study ends it does not know.
"""

from __future__ import annotations

import math
import time
from datetime import datetime
from typing import TYPE_CHECKING, Self

from msgspec import Struct
from msgspec.structs import replace

from paceline.api.options import seconds_until
from paceline.core.events import DeadlineChanged
from paceline.core.lazy import find_start_of_call
from paceline.engines.loop import POLL_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.core.run_info import RunKind
    from paceline.core.values import StudySpec
    from paceline.machine.state import StudyState

# Processor seconds between the end of training and the return of the call: the workers end, the
# result is made, the summary is written.
_CLOSING_S: dict[RunKind, float] = {"local": 0.06, "ray": 1.25}
# The same for each step of the log, which the result reads.
_STEP_S = 5e-6
# How much longer than its processor seconds the end may take on a busy machine.
_MOST_SLOWDOWN = 4.0
# Less processor time than this says little about how busy the machine is.
_LEAST_CPU_S = 0.03
# Clocks that differ by less than this were not set.
_JUMP_S = 0.5
# A change of the estimate that is worth an entry in the log.
_WORTH_S = 0.02


class Caller(Struct, frozen=True, kw_only=True):
    """The call that runs a study: when it began, and what it has to do when the study is over."""

    # On the monotonic clock: the moment from which a deadline counts.
    began: float
    # When this was noted, on the same clock, and the processor time of this thread then.
    noted: float
    noted_cpu: float
    # Processor seconds for what follows the study, such as a report, and for each step of its log.
    after_s: float = 0.0
    after_step_s: float = 0.0

    @classmethod
    def note(cls, *, with_import: bool = False) -> Self:
        """Return the call that begins now, or a moment ago with the import of what is called."""
        now = time.monotonic()
        began = find_start_of_call(now) if with_import else now
        return cls(began=began, noted=now, noted_cpu=time.thread_time())

    def measure_slowdown(self) -> float:
        """Return how much longer this thread took than it would have on an idle machine."""
        cpu = time.thread_time() - self.noted_cpu
        if cpu < _LEAST_CPU_S:
            return 1.0
        ratio = (time.monotonic() - self.noted) / cpu
        # Part of it was time for reading files, which are known at the end.
        return min(max((1.0 + ratio) / 2, 1.0), _MOST_SLOWDOWN)


class DeadlineKeeper:
    """Tells a study when its training has to end, so that the call returns at its deadline.

    A duration counts from the call, and goes on while the driver is stopped or the machine sleeps.
    A time of day is that of the system's clock, also after that clock was set.
    """

    def __init__(
        self,
        caller: Caller,
        kind: RunKind,
        time_of_day: datetime | None = None,
        *,
        wall: Callable[[], float] = time.time,
        slept: Callable[[], float] | None = None,
    ) -> None:
        self._caller = caller
        self._kind = kind
        self._time_of_day = None if time_of_day is None else time_of_day.timestamp()
        self._wall = wall
        self._slept = slept or _measure_sleep
        # Measured while the call was set up: from then on this thread mostly waits.
        self._slowdown = caller.measure_slowdown()
        self._slept_before = self._slept()
        # Time since the call that the study's clock has not counted.
        self._uncounted_s = 0.0
        # The deadline on the study's clock; None: there is none.
        self._due: float | None = None

    def begin(self, state: StudyState, now: float, spent_s: float = 0.0) -> DeadlineChanged | None:
        """Return when training ends, for a study whose log says when it has to be over.

        `spent_s` is time since the call that the study's clock has not counted.
        """
        self._uncounted_s += spent_s
        if state.return_s is None:
            self._due = None
            return None
        is_duration = self._time_of_day is None
        self._due = state.return_s - (self._uncounted_s if is_duration else 0.0)
        return self._tell(state, now, "")

    def look(self, state: StudyState, now: float) -> DeadlineChanged | None:
        """Return when training ends, if that has changed; call this often."""
        if self._due is None or state.return_s is None:
            return None
        jump = self._measure_jump(now)
        if abs(jump) > _JUMP_S:
            self._due += jump
            if self._time_of_day is not None:
                return self._tell(state, now, "the system's clock was set")
            self._uncounted_s -= jump
            return self._tell(state, now, "the machine was asleep")
        end = self._due - self.estimate_closing(state.number)
        is_near = now + 2 * POLL_S >= end
        if not is_near or state.deadline_s is None or state.deadline_s - end < _WORTH_S:
            return None
        return self._tell(state, now, "the end of the study takes longer than it seemed")

    def estimate_closing(self, steps: int) -> float:
        """Return the seconds from the end of training to the return of the call."""
        caller = self._caller
        cpu = _CLOSING_S[self._kind] + caller.after_s + steps * (_STEP_S + caller.after_step_s)
        return cpu * self._slowdown

    def _measure_jump(self, now: float) -> float:
        """Return by how much the deadline moved on the study's clock."""
        assert self._due is not None
        if self._time_of_day is not None:
            return now + self._time_of_day - self._wall() - self._due
        before, self._slept_before = self._slept_before, self._slept()
        return before - self._slept_before

    def _tell(self, state: StudyState, now: float, note: str) -> DeadlineChanged:
        assert self._due is not None
        assert state.return_s is not None
        # What the user gave stays what it is, unless it is a time of day and the clock was set.
        given = state.return_s if self._time_of_day is None else self._due
        # A binary fraction: what is subtracted here can be added again without a rounding error.
        closing_s = math.ceil(self.estimate_closing(state.number) * 1024) / 1024
        deadline_s = max(self._due - closing_s, 0.0)
        return DeadlineChanged(at=now, deadline_s=deadline_s, kept_s=given - deadline_s, note=note)


def count_from_call(spec: StudySpec, deadline: object, caller: Caller) -> StudySpec:
    """Return a spec whose deadline, if it is a time of day, is counted from the call."""
    if not isinstance(deadline, datetime):
        return spec
    left = seconds_until(deadline)
    assert left is not None
    limit = left + time.monotonic() - caller.began
    return replace(spec, budget=replace(spec.budget, deadline_s=limit))


def _measure_sleep() -> float:
    """Return how long this machine has slept since it was started; 0 where it does not say."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return 0.0 if clock is None else time.clock_gettime(clock) - time.monotonic()
