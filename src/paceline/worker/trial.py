"""The trial handle: what a training function is given, and the contract it keeps.

Knows the trial's settings, its order (how far to train, where to save) and its channel to the
driver. Reports are sent and never waited for; orders are looked at inside `report`. At its goal an
attempt saves and waits for what comes next. Of a wide trial's processes the first does all this,
and the others follow it.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.core.errors import CheckpointError, TrialError
from paceline.core.values import Config, Metrics, loss_of
from paceline.plan.cadence import due, likely_branches
from paceline.plan.settings import changing, value_at
from paceline.worker import checkpoint_file
from paceline.worker.gang import Ties, seed_of
from paceline.worker.kept import Keeper, seed_everything
from paceline.worker.memory_usage import taken
from paceline.worker.protocol import (
    Bereft,
    Best,
    Channel,
    Fetched,
    Order,
    Reached,
    Release,
    Report,
    Seek,
    Skipped,
    Wrote,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from paceline.worker.protocol import AnyMessage, Begin


class Unwind(BaseException):
    """The attempt ends here: `finally` blocks run, and nobody is meant to catch it."""


class Notice:
    """Whether the process was told to end, which may be at any moment, by a signal.

    What is raised then may be swallowed by whatever it interrupts (compiled modules do so while
    they are imported), so it is remembered, too, and heeded again at every report.
    """

    def __init__(self) -> None:
        self._given = False

    def give(self, *_: object) -> None:
        """Unwind, wherever the process is; a signal's handler."""
        self._given = True
        raise Unwind

    def heed(self) -> None:
        """Unwind, if it was given before."""
        if self._given:
            raise Unwind


class Trial:
    """One config on its way, as its training function sees it."""

    def __init__(self, begin: Begin, channel: Channel, ties: Ties, notice: Notice) -> None:
        self._begin = begin
        self._channel = channel
        self._ties = ties
        self._notice = notice
        self._config = begin.config
        # After which epochs its path may branch; None: not worked out yet.
        self._branches: Sequence[int] | None = None
        self._goal = begin.goal
        self._save_at = begin.save_at
        self._version = self._under = 0
        self._best = math.inf if begin.best is None else begin.best
        self._keeper = Keeper()
        # Epochs done; the epoch being trained, None outside one; when it began.
        self._done = begin.start
        self._epoch: int | None = None
        self._began = time.monotonic()
        # What the last save cost, and when it was.
        self._save_s = 0.0
        self._saved_at = time.monotonic()
        self._saved = begin.start
        self._files: dict[str, bytes] | None = None
        if begin.awaits:
            self._await_checkpoint()
        if begin.checkpoint is not None:
            values = checkpoint_file.read(Path(begin.folder) / begin.checkpoint, begin.digest)
            self._keeper.load(values)
            self._files = values.get("files")
        notice.heed()

    # What the function may ask

    @property
    def id(self) -> int:
        """The trial's number in its study."""
        return self._begin.trial

    @property
    def config(self) -> Config:
        """All hyperparameters; a schedule as it was written."""
        return self._config

    @property
    def seed(self) -> int:
        """The seed of this trial; every generator was set to it before the function began."""
        return self._begin.seed

    @property
    def width(self) -> float:
        """How many slots this trial holds: 1, more, or a share of one."""
        return self._begin.width

    @property
    def rank(self) -> int:
        """Which process of the trial this is, from 0; process 0 reports and saves."""
        return self._begin.rank

    @property
    def size(self) -> int:
        """How many processes train this trial: one on each of its slots."""
        return max(1, int(self._begin.width))

    @property
    def device(self) -> str:
        """Where to train: `cpu` or `cuda`. Only this trial's GPUs are visible."""
        return self._begin.device

    def __contains__(self, name: str) -> bool:
        return name in self._config

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401
        return self.value(name)

    def get(self, name: str, default: Any = None) -> Any:  # noqa: ANN401
        """Return a hyperparameter's value, or the default where the config has none."""
        return self.value(name) if name in self._config else default

    def value(self, name: str, progress: float = 0.0) -> Any:  # noqa: ANN401
        """Return a hyperparameter's value at this point of the epoch, from 0 to 1.

        Within an epoch only what was given as `smooth` changes.
        """
        try:
            value = self._config[name]
        except KeyError:
            known = ", ".join(self._config) or "none"
            raise TrialError(f"this trial has no {name!r}: its config holds {known}.") from None
        if not changing(value):
            return value
        if not 0.0 <= progress <= 1.0:
            raise TrialError(f"progress={progress!r} is not in the epoch: give 0 to 1.")
        if self._epoch is None:
            raise TrialError(
                f"{name!r} changes during training, so it has no value before the first epoch: "
                "read it inside `for epoch in trial.epochs()`."
            )
        return value_at(value, self._epoch, progress)

    def changed(self, name: str) -> bool:
        """Say whether a hyperparameter has another value in this epoch than in the one before."""
        now = self.value(name)
        if not self._epoch:
            return False
        return bool(value_at(self._config[name], self._epoch - 1) != now)

    def meeting(self) -> str:
        """Return a `host:port` at which process 0 may open a server and the others reach it.

        Every process calls this, once for each time they meet, and all are given the same; the port
        is free, and nobody else is given it meanwhile.
        """
        if not self.rank:
            self._await_others(Seek)
            return self._ties.invite()
        address = self._ties.invited()
        if address is None:
            raise Unwind  # the first process is gone, and its end says why
        return address

    # The loop

    def keep(self, **objects: Any) -> Any:  # noqa: ANN401
        """Let these survive pauses, moves and crashes; return them as they were restored.

        Takes anything with `state_dict` and `load_state_dict`, arrays and JSON values, or a pair
        of functions (save, load). One object is returned as itself, several as a tuple.
        """
        kept = tuple(self._keeper.register(name, given) for name, given in objects.items())
        return kept[0] if len(kept) == 1 else kept

    def epochs(self) -> Iterator[int]:
        """Yield the index of each epoch to train, from 0 or from where the checkpoint ended.

        Each epoch ends with one `report`. The loop ends after the last epoch; where the trial is
        paused or stopped before, it unwinds and the code after it does not run.
        """
        if self._done:
            self._keeper.restore_random()
        while self._done < self._begin.epochs:
            self._epoch = self._done
            if self.size > 1:
                seed_everything(seed_of(self.seed, self.rank, self._epoch))
            self._began = time.monotonic()
            self._under = self._version
            yield self._epoch
            if self._done == self._epoch:
                raise TrialError(
                    f"epoch {self._epoch} ended without a report: call trial.report(…) in each."
                )
            self._epoch = None

    def report(self, metrics: Metrics | None = None, /, **more: float) -> None:
        """Close the epoch with what was measured; saving, pausing and stopping happen here."""
        if self._epoch is None or self._done > self._epoch:
            raise TrialError("report was called twice in an epoch, or outside one.")
        self.close_epoch({**(metrics or {}), **more}, None)

    def close_epoch(self, metrics: dict[str, Any], files: dict[str, bytes] | None) -> None:
        """Report, look for orders, save where it is due, and stop where the goal is."""
        self._notice.heed()
        seconds = time.monotonic() - self._began
        settled = _settled(metrics, self._begin.metric)
        self._done += 1
        if self.rank:
            self._follow()
            return
        self._await_others(Reached)
        self._hear()
        loss = loss_of(settled.get(self._begin.metric), self._begin.sign)
        better = loss < self._best
        self._best = min(self._best, loss)
        possible = files is not None or bool(self._keeper)
        # Nobody trains the study's best or a trial's last epoch again to have its checkpoint, so
        # these are safe before they are told. All others are told first, since the answer may
        # move the goal on.
        precious = self._done == self._begin.epochs or (possible and better)
        saved = self._save(files) if precious else None
        self._channel.send(
            Report(
                epoch=self._done,
                metrics=settled,
                seconds=seconds,
                saved=saved,
                memory=self._memory(),
                version=self._under,
            )
        )
        if not precious:
            self._hear()
            ordered = self._done >= self._goal or self._done in self._save_at
            if ordered or (possible and self._due(seconds)):
                self._channel.send(self._save(files))
        while self._done >= self._goal and self._done < self._begin.epochs:
            message = self._channel.receive(wait=True)
            if message is None:
                raise Unwind  # the driver is gone
            self._take(message)
        self._ties.lead(self._config)

    @property
    def silent(self) -> bool:
        """Whether nothing has ever been reported of this trial."""
        return self._done == 0

    def finish(self) -> None:
        """Save the end of a function that returned before its goal, if it keeps anything."""
        if not self.rank and self._keeper and self._saved != self._done:
            self._channel.send(self._save(None))

    def restored_files(self) -> dict[str, bytes] | None:
        """Return the files that a checkpoint in Ray's spelling holds."""
        return self._files

    def _memory(self) -> float:
        """Return the share of its slot's memory that the first epoch has taken; later 0."""
        slot = self._begin.slot_bytes
        if not slot or self._done != self._begin.start + 1:
            return 0.0
        return taken(self.device) / slot

    def _due(self, epoch_s: float) -> bool:
        patience = self._begin.patience
        if patience is None:
            return False
        if self._branches is None:
            self._branches = likely_branches(self._config, self._begin.epochs)
        spent = time.monotonic() - self._saved_at
        return due(spent, patience * self._save_s, self._done, epoch_s, self._branches)

    def _hear(self) -> None:
        while (message := self._channel.receive(wait=False)) is not None:
            self._take(message)
        if self._channel.closed:
            raise Unwind

    def _take(self, message: AnyMessage) -> None:
        if isinstance(message, Order) and message.version > self._version:
            self._version = message.version
            self._config, self._goal = message.config, message.goal
            self._branches = None
            self._save_at = message.save_at
            for epoch in message.save_at:
                if epoch < self._done:
                    self._channel.send(Skipped(epoch=epoch, note="the order came too late"))
        elif isinstance(message, Best):
            self._best = min(self._best, message.loss)
        elif isinstance(message, Release):
            self._ties.release()
            raise Unwind

    def _await_checkpoint(self) -> None:
        """Wait until what to start from has come to this machine."""
        while not isinstance(message := self._channel.receive(wait=True), Fetched):
            if message is None:
                raise Unwind  # the driver is gone
            self._take(message)
        if message.note:
            raise CheckpointError(message.note)

    def _await_others(self, come: type[Reached | Seek]) -> None:
        """Wait until all processes of the trial have come so far: what is told is done."""
        missing = self._ties.gather(come)
        if missing is not None:
            self._channel.send(Bereft(rank=missing))
            raise Unwind

    def _follow(self) -> None:
        """Wait until the first process goes on, and go on as it does."""
        config = self._ties.follow()
        if config is None:
            raise Unwind
        self._config = config

    def _save(self, files: dict[str, bytes] | None) -> Wrote | Skipped:
        started = time.monotonic()
        epoch = self._done
        try:
            if files is None and not self._keeper:
                note = "it keeps nothing, so that it starts over when it is paused"
                return Skipped(epoch=epoch, note=note)
            values = self._keeper.states()
            if files is not None:
                values["files"] = files
            path = Path(self._begin.folder) / name_of(self._begin.attempt, epoch)
            size, digest = checkpoint_file.write(path, values)
        except OSError as error:
            note = f"its checkpoint cannot be written: {error.strerror or error}"
            return Skipped(epoch=epoch, note=note)
        self._saved_at = time.monotonic()
        self._saved = epoch
        self._save_s = self._saved_at - started
        return Wrote(epoch=epoch, seconds=self._save_s, bytes=size, digest=digest)


def name_of(attempt: int, epoch: int) -> str:
    """Return the file name of a checkpoint; attempts below zero saved it in another study."""
    return f"{attempt}-{epoch}.ckpt" if attempt >= 0 else f"adopted-{-attempt}-{epoch}.ckpt"


def _settled(metrics: dict[str, Any], wanted: str) -> Metrics:
    """Return reported numbers as plain ones, what is not finite as None."""
    if wanted not in metrics:
        named = ", ".join(metrics) or "nothing"
        raise TrialError(f"report names {named}, and the study's metric is {wanted!r}.")
    settled: Metrics = {}
    for name, value in metrics.items():
        try:
            number = float(value)
        except (TypeError, ValueError):
            kind = type(value).__name__
            raise TrialError(f"{name!r} was reported as a {kind}: report a number.") from None
        settled[name] = number if math.isfinite(number) else None
    return settled
