"""The trial that a training function is given: hyperparameters, epochs, reports, kept objects.

Knows the trial's settings, its order (how far to train, where to save) and its channel to the
driver. A report is sent without waiting for an answer; `report` also reads new orders. At its goal
an attempt saves and waits for the next order. In a wide trial the first process does all this, and
the others follow it. A function may loop over `epochs`, or count its epochs itself: then each of
its reports closes one.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.core.errors import CheckpointError, TrialError
from paceline.core.values import Config, Metrics, to_loss
from paceline.plan.cadence import is_save_due, list_likely_branches
from paceline.plan.settings import is_changing, value_at
from paceline.worker import checkpoint_file
from paceline.worker.epochs_method import EpochsMethod
from paceline.worker.gang import GangLinks, derive_seed
from paceline.worker.kept import KeptObjects, seed_everything
from paceline.worker.memory_usage import measure_memory
from paceline.worker.metrics import parse_report
from paceline.worker.protocol import (
    KEEPS_NOTHING,
    NOT_WRITTEN,
    AskAddress,
    BestLoss,
    Channel,
    CheckpointFetched,
    CheckpointSkipped,
    CheckpointWritten,
    EpochReport,
    EpochTrained,
    PeerLost,
    Release,
    UpdateOrder,
)
from paceline.worker.stop_request import StopRequest, Unwind
from paceline.worker.suggest import SuggestingTrial, Suggestions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import SupportsFloat

    from paceline.worker.protocol import AnyMessage, StartAttempt


class Trial(SuggestingTrial):
    """One config in training, as its training function sees it."""

    def __init__(
        self, start: StartAttempt, channel: Channel, gang: GangLinks, stop: StopRequest
    ) -> None:
        self._start = start
        self._channel = channel
        self._gang = gang
        self._stop = stop
        self._suggestions = Suggestions(start)
        self._config = self._suggestions.params if start.define_by_run else start.config
        # The epochs after which its path may branch; None: not computed yet.
        self._branches: Sequence[int] | None = None
        self._goal = start.goal
        self._save_at = start.save_at
        # The version of its order, and the version that the running epoch was begun with.
        self._version = self._epoch_version = 0
        self._best = math.inf if start.best is None else start.best
        self._kept = KeptObjects()
        # Epochs done; the epoch in training of the `epochs` loop, None outside one; its start.
        self._done = start.start
        self._epoch: int | None = None
        self._began = time.monotonic()
        # The function loops over `epochs`; else its own loop's last step, if it gives steps.
        self._loops = False
        self._step: int | None = None
        # The report of a trial of one epoch, until the function returns; the last value reported.
        self._held: tuple[Metrics, dict[str, bytes] | None] | None = None
        self._last_value: float | None = None
        # The function counts its epochs itself, and has reported more than the trial has.
        self.is_over = False
        # The duration, end and epoch of the last save.
        self._save_s = 0.0
        self._saved_at = time.monotonic()
        self._saved = start.start
        self._files: dict[str, bytes] | None = None
        if start.awaits:
            self._await_checkpoint()
        if start.checkpoint is not None:
            values = checkpoint_file.read(Path(start.folder) / start.checkpoint, start.digest)
            self._kept.load(values)
            self._files = values.get("files")
        stop.check()

    # Properties and hyperparameters

    @property
    def id(self) -> int:
        """The trial's number in its study."""
        return self._start.trial

    @property
    def config(self) -> Config:
        """All hyperparameters; schedules as written."""
        return self._config

    @property
    def seed(self) -> int:
        """The seed of this trial; Python, numpy and torch were seeded with it."""
        return self._start.seed

    @property
    def width(self) -> float:
        """The number of slots this trial holds: 1, more, or a fraction of one."""
        return self._start.width

    @property
    def rank(self) -> int:
        """The number of this process within the trial, from 0; process 0 reports and saves."""
        return self._start.rank

    @property
    def size(self) -> int:
        """The number of processes of this trial: one on each of its slots."""
        return max(1, int(self._start.width))

    @property
    def device(self) -> str:
        """The device to train on: `cpu` or `cuda`. Only this trial's GPUs are visible."""
        return self._start.device

    @property
    def metric(self) -> str:
        """The study's metric: what a single number that is reported or returned means."""
        return self._start.metric

    def __contains__(self, name: str) -> bool:
        return name in self._config

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401
        return self.value(name)

    def get(self, name: str, default: Any = None) -> Any:  # noqa: ANN401
        """Return a hyperparameter's value, or the default if the config does not have it."""
        return self.value(name) if name in self._config else default

    def value(self, name: str, progress: float = 0.0) -> Any:  # noqa: ANN401
        """Return a hyperparameter's value at this point of the epoch, from 0 to 1.

        Within an epoch only `smooth` schedules change.
        """
        try:
            value = self._config[name]
        except KeyError:
            known = ", ".join(self._config) or "nothing"
            raise TrialError(
                f"this trial has no {name!r}: its config has {known}. Add it to the space, or "
                "read one of these."
            ) from None
        if not is_changing(value):
            return value
        if not 0.0 <= progress <= 1.0:
            raise TrialError(f"progress={progress!r} is invalid: must be between 0 and 1.")
        if self._epoch is None:
            raise TrialError(
                f"{name!r} changes during training, so it has no value before the first epoch: "
                "read it inside `for epoch in trial.epochs()`."
            )
        return value_at(value, self._epoch, progress)

    def changed(self, name: str) -> bool:
        """Say whether a hyperparameter's value differs from the previous epoch's."""
        now = self.value(name)
        if not self._epoch:
            return False
        return bool(value_at(self._config[name], self._epoch - 1) != now)

    def meeting(self) -> str:
        """Return a `host:port` for a server of process 0 that the other processes can reach.

        Every process calls this once for each meeting, and gets the same address; the port is free
        and reserved.
        """
        if not self.rank:
            self._await_others(AskAddress)
            return self._gang.send_address()
        address = self._gang.ask_address()
        if address is None:
            raise Unwind  # the first process is gone; its exit status has the reason
        return address

    # The loop

    def keep(self, *unnamed: Any, **objects: Any) -> Any:  # noqa: ANN401
        """Save these objects in every checkpoint; return them restored from the last one.

        Takes anything with `state_dict` and `load_state_dict`, arrays and JSON values, or a pair
        of functions (save, load). One object is returned as itself, several as a tuple.
        """
        if unnamed:
            kind = type(unnamed[0]).__name__
            raise TrialError(
                f"keep got an object of class {kind} without a name: name it, such as "
                "trial.keep(model=model)."
            )
        kept = tuple(self._kept.register(name, given) for name, given in objects.items())
        return kept[0] if len(kept) == 1 else kept

    @property
    def epochs(self) -> EpochsMethod:
        """Call it to get the index of each epoch to train, from 0 or from the checkpoint.

        Each epoch ends with one `report`. The loop ends after the last epoch; if the trial is
        paused or stopped before, the function unwinds and the code after the loop does not run.
        """
        return EpochsMethod(self._iterate_epochs)

    def _iterate_epochs(self) -> Iterator[int]:
        self._loops = True
        if self._done:
            self._kept.restore_random()
        while self._done < self._start.epochs:
            self._epoch = self._done
            if self.size > 1:
                seed_everything(derive_seed(self.seed, self.rank, self._epoch))
            self._begin_epoch()
            yield self._epoch
            if self._done == self._epoch:
                raise TrialError(
                    f"epoch {self._epoch + 1} ended without a report: call trial.report(…) in each."
                )
            self._epoch = None

    def report(
        self,
        metrics: Mapping[str, SupportsFloat] | SupportsFloat | None = None,
        /,
        step: int | None = None,
        **more: SupportsFloat,
    ) -> None:
        """Close the epoch with its metrics; saving, pausing and stopping happen here.

        A single number is the study's metric. A function with a loop of its own closes one epoch by
        each report; with a `step`, a second report of the same step is ignored.
        """
        self.report_files(parse_report(metrics, more, self._start.metric), None, step)

    def report_files(
        self, metrics: Metrics, files: dict[str, bytes] | None, step: int | None = None
    ) -> None:
        """Close the epoch with its metrics, and with the files of its checkpoint if it has some."""
        if self._loops:
            self._check_loop()
        elif not self._is_new_step(step):
            return
        self._expect_question(step)
        if self._loops or self._start.epochs > 1:
            self._close_epoch(metrics, files)
        else:
            # Sent when the function returns: if it goes on to report, its epochs were not given.
            self._held = (metrics, files)

    def _check_loop(self) -> None:
        """Raise TrialError unless the epoch of the `epochs` loop is still open."""
        if self._epoch is None:
            raise TrialError(
                "report was called outside of an epoch: call it inside `for epoch in "
                "trial.epochs()`, once per epoch."
            )
        if self._done > self._epoch:
            raise TrialError(
                f"epoch {self._epoch + 1} was reported twice: report once per epoch, all metrics "
                "in one call, such as trial.report(loss=…, accuracy=…)."
            )

    def _is_new_step(self, step: int | None) -> bool:
        """Say whether a report of the function's own loop closes an epoch; end it after its last.

        Raises a TrialError for a step that falls, and for a second report in a trial of one epoch.
        """
        if step is not None:
            # Optuna ignores a step that was reported before, so its objectives may repeat some.
            is_old = self._start.define_by_run and self._step is not None and step < self._step
            if not is_old:
                self._check_step(step)
            if is_old or step == self._step:
                return False
            self._step = step
        if self._held is not None:
            raise TrialError(
                "it reports more than once, and a trial has one epoch: give epochs=N, the number "
                "of reports of one trial."
            )
        if self._done >= self._start.epochs:
            print(  # noqa: T201  (into the attempt's own output)
                f"paceline: epoch {self._done} was the last of this trial, so the function ends "
                f"at this report (epochs={self._start.epochs}).",
                file=sys.stderr,
            )
            self.is_over = True
            raise Unwind
        return True

    def _check_step(self, step: int) -> None:
        if type(step) is not int and not hasattr(step, "__index__"):
            raise TrialError(
                f"step={step!r} is not a whole number: give the epoch, or leave the step out."
            )
        if self._step is not None and step < self._step:
            raise TrialError(
                f"step {step} was reported after step {self._step}: steps must rise, so give the "
                "epoch, or leave the step out."
            )
        if self._step is None and self._kept and step < self._start.start - 1:
            raise TrialError(
                f"this trial continues after epoch {self._start.start} and reports step {step}: "
                "loop by `for epoch in trial.epochs()`, which begins where it left off."
            )

    def _begin_epoch(self) -> None:
        self._began = time.monotonic()
        self._epoch_version = self._version

    def _close_epoch(
        self, numbers: Metrics, files: dict[str, bytes] | None, *, last: bool = False
    ) -> None:
        """Send the report, read orders, save if due, and wait at the goal.

        With the last one the function has returned: there is nothing to wait for.
        """
        self._stop.check()
        self._await_goal()
        self._done += 1
        self._last_value = numbers[self._start.metric]
        if self.rank:
            self._follow()
            self._begin_epoch()
            return
        self._await_others(EpochTrained)
        # The epoch of a gang takes as long as that of its slowest process.
        seconds = time.monotonic() - self._began
        self._read_orders()
        loss = to_loss(self._last_value, self._start.sign)
        better = loss < self._best
        self._best = min(self._best, loss)
        possible = files is not None or bool(self._kept)
        # The study's best and a trial's last epoch are saved before they are reported: without the
        # checkpoint they would have to be trained again. All others are reported first, since the
        # answer may raise the goal.
        save_first = last or self._done == self._start.epochs or (possible and better)
        saved = self._save(files) if save_first else None
        self.send_news()
        self._stop.is_deferred = True
        self._channel.send(
            EpochReport(
                epoch=self._done,
                metrics=numbers,
                seconds=seconds,
                saved=saved,
                memory=self._memory(),
                version=self._epoch_version,
                last=last,
            )
        )
        if not self._defers and not save_first:
            self._read_orders()
        # Past a goal that was moved back, a signal ends the process after the save: without it the
        # epoch that was just reported would be trained again.
        if self._done <= self._goal:
            self._obey_signals()
        if not save_first:
            ordered = self._done >= self._goal or self._done in self._save_at
            if ordered or (possible and self._is_save_due(seconds)):
                self._channel.send(self._save(files))
        self._obey_signals()
        if not (last or self._defers):
            self._await_goal()
        self._gang.lead(self._config)
        self._begin_epoch()

    def _obey_signals(self) -> None:
        """Let signals unwind the function from now on, unless it asks whether to end."""
        self._stop.is_deferred = self._defers
        if not self._defers:
            self._stop.check()

    def _await_goal(self) -> None:
        """Wait for another order, if the last report was that of the goal.

        Only the first process of a gang is sent orders; the others wait for it.
        """
        while (
            not self.rank
            and self._goal <= self._done < self._start.epochs
            and self._done > self._start.start
        ):
            message = self._channel.receive(wait=True)
            if message is None:
                raise Unwind  # the driver is gone
            self._handle(message)

    @property
    def has_reports(self) -> bool:
        """Whether an epoch of this trial was ever reported."""
        return self._done > 0 or self._held is not None

    def finish(self, returned: Metrics | None = None) -> None:
        """End the trial after its function returned, with the metrics that it returned.

        They are a report, unless they are of the last epoch that was reported, or no epoch is left.
        Without one, save if the function keeps objects.
        """
        held, self._held = self._held, None
        if held is not None:
            self._close_epoch(*held, last=True)
        elif returned is not None and self._done < self._start.epochs and self._is_news(returned):
            self._close_epoch(returned, None, last=True)
        elif not self.rank and self._kept and self._saved != self._done:
            self._channel.send(self._save(None))

    def _is_news(self, returned: Metrics) -> bool:
        return not self._done or returned[self._start.metric] != self._last_value

    def restored_files(self) -> dict[str, bytes] | None:
        """Return the files of a checkpoint that `ray_compat` has written; None: it has none."""
        return self._files

    def _memory(self) -> float:
        """Return the share of its slot's memory after the first epoch; later 0."""
        slot = self._start.slot_bytes
        if not slot or self._done != self._start.start + 1:
            return 0.0
        return measure_memory(self.device) / slot

    def _is_save_due(self, epoch_s: float) -> bool:
        share = self._start.save_share
        if share is None:
            return False
        if self._branches is None:
            self._branches = list_likely_branches(self._config, self._start.epochs)
        spent = time.monotonic() - self._saved_at
        return is_save_due(spent, share * self._save_s, self._done, epoch_s, self._branches)

    def _read_orders(self) -> None:
        while (message := self._channel.receive(wait=False)) is not None:
            self._handle(message)
        if self._channel.closed:
            raise Unwind

    def _handle(self, message: AnyMessage) -> None:
        if isinstance(message, UpdateOrder) and message.version > self._version:
            self._version = message.version
            self._set_config(message.config)
            self._goal = message.goal
            self._branches = None
            self._save_at = message.save_at
            for epoch in message.save_at:
                if epoch < self._done:
                    self._channel.send(
                        CheckpointSkipped(epoch=epoch, note="the order came too late")
                    )
        elif isinstance(message, BestLoss):
            self._best = min(self._best, message.loss)
        elif isinstance(message, Release):
            self._gang.release()
            raise Unwind

    def _await_checkpoint(self) -> None:
        """Wait until the checkpoint to start from is on this machine."""
        while not isinstance(message := self._channel.receive(wait=True), CheckpointFetched):
            if message is None:
                raise Unwind  # the driver is gone
            self._handle(message)
        if message.note:
            raise CheckpointError(message.note)

    def _await_others(self, expected: type[EpochTrained | AskAddress]) -> None:
        """Wait until all other processes of the trial have sent this message."""
        missing = self._gang.gather(expected)
        if missing is not None:
            self._channel.send(PeerLost(rank=missing))
            raise Unwind

    def _follow(self) -> None:
        """Wait for the first process, and follow its config."""
        config = self._gang.follow()
        if config is None:
            raise Unwind
        self._set_config(config)

    def _set_config(self, config: Config) -> None:
        """Follow another config; what the function itself asks for stays as it is."""
        if not self._start.define_by_run:
            self._config = config

    def _save(self, files: dict[str, bytes] | None) -> CheckpointWritten | CheckpointSkipped:
        started = time.monotonic()
        epoch = self._done
        try:
            if files is None and not self._kept:
                return CheckpointSkipped(epoch=epoch, note=KEEPS_NOTHING)
            values = self._kept.states()
            if files is not None:
                values["files"] = files
            path = Path(self._start.folder) / checkpoint_name(self._start.attempt, epoch)
            size, digest = checkpoint_file.write(path, values)
        except OSError as error:
            note = f"{NOT_WRITTEN}: {error.strerror or error}"
            return CheckpointSkipped(epoch=epoch, note=note)
        self._saved_at = time.monotonic()
        self._saved = epoch
        self._save_s = self._saved_at - started
        return CheckpointWritten(epoch=epoch, seconds=self._save_s, bytes=size, digest=digest)


def checkpoint_name(attempt: int, epoch: int) -> str:
    """Return the file name of a checkpoint; a negative attempt means one of another study."""
    return f"{attempt}-{epoch}.ckpt" if attempt >= 0 else f"adopted-{-attempt}-{epoch}.ckpt"
