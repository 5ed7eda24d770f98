"""The worker pool of `slots="inline"`: attempts run in the driver's process, one after the other.

Runs the loop in a thread, and attempts in the thread that called, so that debuggers, profilers and
coverage see the training function. A worker is the same code as in a process of its own, at the
other end of the same kind of socket. It cannot be killed: a signal to it takes effect at its next
report.
"""

from __future__ import annotations

import threading
import traceback
from bdb import BdbQuit
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from paceline.engines.process.local.same_process_pool import SameProcessPool
from paceline.worker.function import check_function
from paceline.worker.gang import GangLinks
from paceline.worker.kept import get_random_states, seed_everything, set_random_states
from paceline.worker.process import OwnProcess, run_attempt
from paceline.worker.protocol import Channel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.core.values import SlotId
    from paceline.worker.protocol import StartAttempt
    from paceline.worker.stop_request import StopRequest

# What ends the study when it leaves the training function: Ctrl-C, `quit` in pdb, `sys.exit()`.
_INTERRUPTS = (KeyboardInterrupt, BdbQuit, SystemExit)


class _Caller(OwnProcess):
    """The surroundings of an attempt in the driver's process, whose output and signals stay."""

    def __init__(self) -> None:
        # The last error that a training function has raised.
        self.error: BaseException | None = None

    def set_up(self, start: StartAttempt, stop: StopRequest) -> None:
        """Seed the random generators; `serve` restores their states."""
        seed_everything(start.seed)

    def take_error(self, error: BaseException) -> None:
        """Print and remember an error; raise an interrupt again."""
        if isinstance(error, _INTERRUPTS):
            raise error
        self.error = error
        traceback.print_exception(error)


class InlinePool(SameProcessPool[Channel]):
    """One worker at a time, in the thread that calls `serve`."""

    def __init__(self, train: Callable[..., Any]) -> None:
        check_function(train)
        super().__init__(Channel)
        self._train = train
        self._caller = _Caller()
        # A token for each worker that waits for its turn; another token ends `serve`.
        self._tokens: SimpleQueue[None] = SimpleQueue()

    @property
    def error(self) -> BaseException | None:
        """The last error that the training function has raised; None: it has raised none."""
        return self._caller.error

    @property
    def is_idle(self) -> bool:
        """Whether no worker runs or waits."""
        return not self._ends

    def serve(self, loop: Callable[[], None], interrupt: Callable[[], None]) -> None:
        """Run the loop in a thread and its attempts in this one, until the loop returns.

        Call `interrupt` when an interrupt leaves the training function; the loop then has to end.
        Raise what the loop raises.
        """
        over = threading.Event()
        failed: list[BaseException] = []

        def drive() -> None:
            try:
                loop()
            except BaseException as error:
                failed.append(error)
            finally:
                over.set()
                # An attempt that still trains unwinds at its next report, which nothing reads.
                self.hang_up()
                self._tokens.put(None)

        states = get_random_states()
        thread = threading.Thread(target=drive, name="paceline-loop", daemon=True)
        thread.start()
        try:
            self._run_attempts(over)
        except _INTERRUPTS:
            interrupt()
        finally:
            thread.join()
            set_random_states(states)
        for worker in list(self._ends):
            self.exit(worker, 0)
        if failed:
            raise failed[0]

    def _run_attempts(self, over: threading.Event) -> None:
        while True:
            self._tokens.get()
            if over.is_set():
                return
            if self._waiting:
                worker, channel = self._waiting.popleft()
                try:
                    status = run_attempt(channel, self._train, GangLinks(), self._caller)
                finally:
                    channel.close()
                self.exit(worker, status)

    # The port

    def acquire(self, slots: Sequence[SlotId]) -> list[tuple[int, Channel]]:
        """Return a worker that runs when all before it have exited."""
        acquired = super().acquire(slots)
        self._tokens.put(None)
        return acquired
