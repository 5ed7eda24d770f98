"""Trials that the program trains itself: `ask` for one, train it, `tell` its value.

The study behind it is the same: its log has the same events and decisions as if a worker process
had trained, so that it can be resumed, exported and read as any other.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Self

from paceline.core.errors import SpecError
from paceline.core.events import CapacityChanged
from paceline.engines.process.local.asking_pool import AskingPool
from paceline.worker.gang import GangLinks
from paceline.worker.metrics import describe_value, parse_returned
from paceline.worker.protocol import FunctionFailed, FunctionPruned, FunctionReturned, StartAttempt
from paceline.worker.stop_request import StopRequest, Unwind
from paceline.worker.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.api.driver import Driver
    from paceline.api.results import Result
    from paceline.api.running_study import RunningStudy
    from paceline.core.values import Metrics
    from paceline.engines.process.local.asking_pool import AskedChannel


class AskedTrial(Trial):
    """A trial in the hands of the program."""

    def __init__(self, start: StartAttempt, channel: AskedChannel, worker: int, slot: int) -> None:
        super().__init__(start, channel, GangLinks(), StopRequest())
        self.attempt = start.attempt
        self.worker = worker
        self.slot = slot

    def report_files(
        self, metrics: Metrics, files: dict[str, bytes] | None, step: int | None = None
    ) -> None:
        """Close the epoch; a trial that was stopped reports into the void, as with Optuna."""
        with suppress(Unwind):
            super().report_files(metrics, files, step)


class AskTell:
    """A study whose trials the program trains itself. A context manager."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._pool = AskingPool(self._pump)
        driver.pool = self._pool
        self._running: RunningStudy | None = None
        # The trials in the hands of the program, by number; each has a slot of its own.
        self._open: dict[int, AskedTrial] = {}
        self._slots = 0

    @property
    def result(self) -> Result:
        """What was found so far."""
        return self._driver.result

    def ask(self) -> AskedTrial:
        """Return a new trial to train."""
        slot = self._slots
        self._slots += 1
        if self._running is None:
            self._running = self._driver.start()  # the engine itself offers the first slot
        else:
            self._offer([*(trial.slot for trial in self._open.values()), slot])
        if not self._pump(lambda: self._pool.is_waiting):
            end = self._driver.machine.state.end
            why = "no config is left" if end is None else end.why
            raise SpecError(f"study {self._driver.spec.name!r} has no further trial: {why}.")
        worker, channel = self._pool.take()
        start = channel.receive(wait=True)
        assert isinstance(start, StartAttempt)
        trial = AskedTrial(start, channel, worker, slot)
        self._open[trial.id] = trial
        return trial

    def tell(self, given: AskedTrial | int, value: object = None, state: str = "") -> None:
        """Say how a trial went: its value, or that it was `pruned` or has `fail`ed."""
        number = given if isinstance(given, int) else given.id
        trial = self._open.pop(number, None)
        if trial is None:
            raise SpecError(f"trial {number} was not asked for, or its value is known already.")
        state = state.lower()
        if state not in ("", "complete", "pruned", "fail"):
            self._open[number] = trial
            raise SpecError(f"state={state!r} is invalid: must be complete, pruned or fail.")
        metrics = parse_returned(value, trial.metric) if state in ("", "complete") else None
        if state in ("", "complete") and metrics is None:
            self._open[number] = trial
            raise SpecError(
                f"trial {number} was told {describe_value(value)}: tell a number, or state='fail' "
                "or state='pruned'."
            )
        # Its slot goes with it, so that no other trial starts before the program asks for one.
        self._offer([each.slot for each in self._open.values()])
        message: FunctionReturned | FunctionPruned | FunctionFailed = FunctionReturned()
        if state == "fail":
            message = FunctionFailed(note="the program told that it failed")
        elif state == "pruned":
            message = FunctionPruned()
        else:
            try:
                trial.finish(metrics)
            except Unwind:
                message = FunctionPruned()  # the policy has stopped it
        trial.send_news()
        trial.leave(message)
        self._pool.exit(trial.worker)
        self._pump(lambda: trial.attempt not in self._driver.machine.state.attempts)

    def is_told(self, given: AskedTrial | int) -> bool:
        """Return whether a trial's value is known."""
        number = given if isinstance(given, int) else given.id
        return number not in self._open and number < len(self._driver.machine.state.trials)

    def close(self) -> None:
        """Leave the study as it is; trials without a value are tried again when it is resumed."""
        for trial in self._open.values():
            trial.leave()
        self._driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _offer(self, slots: list[int]) -> None:
        assert self._running is not None
        self._running.take([CapacityChanged(at=self._running.now, slots=tuple(sorted(slots)))])

    def _pump(self, until: Callable[[], bool]) -> bool:
        """Run the study's loop until a condition holds; return whether it does."""
        if self._running is not None and not until():
            self._running.run(None, until)
        return until()
