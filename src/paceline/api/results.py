"""The result of a study for its user: the best trial, all trials, and their checkpoints.

Knows how to read a state. Values are as reported, not losses. Changes nothing of a study.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from paceline.analysis.story import narrate_study, narrate_trial
from paceline.analysis.summary import StudySummary, summarize
from paceline.api.failure_messages import make_no_result_error
from paceline.api.result_text import describe_result, describe_trial, render_trial, suggest_next
from paceline.core.domains import Domain
from paceline.core.errors import SpecError
from paceline.core.ports import Storage
from paceline.core.values import NO_LOSS, Config, Status
from paceline.plan.config_code import ReadableConfig
from paceline.plan.settings import value_at
from paceline.plan.tree import find_checkpoint, find_node, last_known_epoch
from paceline.store import hide_password
from paceline.worker import checkpoint_file
from paceline.worker.ray_compat import put_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import plotly.graph_objects as go

    from paceline.core.decisions import Step
    from paceline.engines.process.checkpoint_files import CheckpointFiles
    from paceline.live.ending import Ending
    from paceline.machine.groups import GroupState
    from paceline.machine.state import StudyState
    from paceline.machine.trial_state import TrialState


class SavedCheckpoint(Struct, frozen=True):
    """A checkpoint on this machine's disk, or in a storage from which it is fetched to be read."""

    path: Path
    # The epochs of training in it.
    epoch: int
    # The digest of its bytes, and its storage if it is not on this machine.
    digest: str = ""
    storage: Storage | None = None

    @property
    def place(self) -> str:
        """Its path on this machine, or its address."""
        if self.storage is None or self.path.exists():
            return str(self.path)
        return f"{self.storage.url}/{self.path.name}"

    def load(self) -> dict[str, Any]:
        """Return the objects that the training function kept, by name: states, arrays, values."""
        kept: dict[str, Any] = self._read()["kept"]
        return kept

    def _read(self) -> dict[str, Any]:
        if self.storage is not None and not self.path.exists():
            self.storage.get(self.path.name, str(self.path))
        return checkpoint_file.read(self.path, self.digest)

    def to_directory(self, folder: str | Path) -> Path:
        """Write the files of a checkpoint that was saved with Ray's API to a folder."""
        files = self._read().get("files")
        if files is None:
            raise SpecError("this checkpoint holds kept objects, not files: use load().")
        put_files(files, folder)
        return Path(folder)


class TrialResult(Struct, frozen=True, kw_only=True):
    """The state of one trial."""

    id: int
    # Schedules in it are dicts; printed, they read as the calls that make them, `pl.piecewise(…)`.
    config: Config
    # ready, running, paused, finished, stopped, failed; unfinished: the study ended before it.
    status: str
    # The trial it was forked from; up to the fork its config has that trial's values.
    source: int | None
    # Its best value and the epoch of it; None if it never reported a number.
    value: float | None
    epoch: int | None
    # The metric to optimise after each epoch, and the time of each epoch.
    values: list[float | None]
    seconds: list[float]
    # Every metric after each epoch, by name; None: not reported, or not a finite number.
    metrics: dict[str, list[float | None]]
    failures: int
    # What the training function attached to the trial by `set_user_attr`.
    user_attrs: dict[str, Any] = {}
    # What it asked for while it ran, by hyperparameter; empty in a study with a space.
    domains: dict[str, Domain] = {}
    # The end of the traceback of its last failure, or how its process exited; None: it never
    # failed.
    error: str | None = None
    # The file with what its last attempt has printed; None: the file is not on this machine.
    output: Path | None = None
    # The checkpoint of its best epoch if there is one, else its latest.
    checkpoint: SavedCheckpoint | None = None

    @property
    def number(self) -> int:
        """The trial's number in its study, as `id`."""
        return self.id

    @property
    def params(self) -> Config:
        """Its hyperparameters, as `config`."""
        return self.config

    @property
    def settings(self) -> list[Config]:
        """The hyperparameters in each epoch that it has seen: schedules as their values then."""
        return [
            {name: value_at(value, epoch) for name, value in self.config.items()}
            for epoch in range(len(self.values))
        ]

    def __repr__(self) -> str:
        return describe_trial(self)

    def _repr_html_(self) -> str:
        return render_trial(self)


def make_trial_rows(trials: Sequence[TrialResult]) -> list[dict[str, Any]]:
    """Return a row for each trial: its status, best value, last value of each metric, config."""
    return [
        {
            "trial": trial.id,
            "status": trial.status,
            "value": trial.value,
            "epoch": trial.epoch,
            "epochs": len(trial.values),
            "seconds": sum(trial.seconds),
            "failures": trial.failures,
            **{f"last.{name}": values[-1] for name, values in trial.metrics.items() if values},
            **{f"config.{name}": value for name, value in trial.config.items()},
        }
        for trial in trials
    ]


class Result:
    """The result of a study, or of one of several that were run as one. Those share one log."""

    # Whether Ctrl-C, or a notebook's stop button, has ended the driver before the study's end.
    interrupted: bool = False

    def __init__(
        self,
        state: StudyState,
        log: Sequence[Step],
        files: CheckpointFiles,
        store: str | None = None,
        group: GroupState | None = None,
    ) -> None:
        # A group does not have the checkpoints of the whole study.
        self._whole = state
        self._state = group or state
        self._log = log
        self._files = files
        # The store's URL; None: the study was in memory.
        self._store = store

    @property
    def name(self) -> str:
        """The study's name."""
        return self._state.spec.name

    @property
    def best(self) -> TrialResult:
        """The trial with the best value. Raises NoResult if no trial has reported a number."""
        best = self.best_or_none
        if best is None:
            raise make_no_result_error(self._state)
        return best

    @property
    def best_or_none(self) -> TrialResult | None:
        """The trial with the best value; None if no trial has reported a number."""
        best = self._state.best
        return None if best is None else self._make_result(best)

    @property
    def best_params(self) -> Config:
        """The hyperparameters of the best trial. Raises NoResult as `best` does."""
        return self.best.config

    @property
    def best_value(self) -> float:
        """The best value of all trials. Raises NoResult as `best` does."""
        value = self.best.value
        assert value is not None
        return value

    @property
    def best_trial(self) -> TrialResult:
        """The trial with the best value, as `best`."""
        return self.best

    @property
    def trials(self) -> list[TrialResult]:
        """All trials, in the order they were opened."""
        return [self._make_result(trial) for trial in self._state.trials]

    def some(self, numbers: Iterable[int]) -> list[TrialResult]:
        """Return the trials with these numbers."""
        return [self._make_result(self._state.trials[number]) for number in numbers]

    @property
    def end(self) -> str | None:
        """Why the study ended: target, deadline, slot_seconds, policy, command, failed or quiet."""
        return None if self._state.end is None else self._state.end.cause.value

    @property
    def why(self) -> str | None:
        """The reason of the study's end, as a sentence."""
        return None if self._state.end is None else self._state.end.why

    @property
    def clock_s(self) -> float:
        """The study's active time in seconds."""
        return self._state.now

    @property
    def log(self) -> Sequence[Step]:
        """All events and decisions of the study."""
        return self._log

    def summary(self) -> StudySummary:
        """Return the study in numbers: its best trial, its cost, and what sharing saved."""
        best = self.best_or_none
        saved = None if best is None else best.checkpoint
        return summarize(self._state, None if saved is None else (saved.place, saved.epoch))

    def story(self, trial: int | None = None) -> str:
        """Return what happened to the study, or to one trial, in sentences."""
        log = self._log
        return "\n".join(narrate_study(log) if trial is None else narrate_trial(log, trial))

    def report(self, path: str | Path) -> Path:
        """Write the report, one HTML page, to a file; return its path."""
        from paceline.plots.report.page import write_report  # plotly is large

        store = None if self._store is None else hide_password(self._store)
        best = self.best_or_none
        saved = None if best is None or best.checkpoint is None else best.checkpoint.place
        return write_report(self._log, path, store=store, saved=saved)

    def plot(self, name: str) -> go.Figure:
        """Return a figure: attempts, best, configs, curves, epochs, slots, times or tree."""
        from paceline.plots.figures import draw_figure

        return draw_figure(self._log, name)

    def dataframe(self) -> Any:  # noqa: ANN401 - pandas is imported on use
        """Return a pandas DataFrame with a row for each trial, as `paceline export` writes it."""
        try:
            import pandas
        except ImportError:
            raise SpecError("dataframe() needs pandas: pip install pandas.") from None
        return pandas.DataFrame(make_trial_rows(self.trials))

    def make_ending(self, *, is_old: bool = False) -> Ending:
        """Return what is shown at the end of the study; `is_old`: it had ended before."""
        from paceline.live.ending import make_ending

        return make_ending(
            self.summary(),
            self._state,
            suggest_next(self.name, self._store, self.best_or_none),
            is_interrupted=self.interrupted,
            is_old=is_old,
        )

    def __repr__(self) -> str:
        return describe_result(self.summary())

    def _repr_html_(self) -> str:
        from paceline.live.html_tables import render_result

        ending = self.make_ending()
        return render_result(ending.heading, ending.rows, self._state)

    def _describe_status(self, trial: TrialState) -> str:
        """Return a trial's status; nothing is running any more once the study has ended."""
        is_over = self.interrupted or self._state.end is not None
        is_open = trial.status in (Status.RUNNING, Status.READY)
        return "unfinished" if is_over and is_open else trial.status.value

    def _make_result(self, trial: TrialState) -> TrialResult:
        spec = self._state.spec
        found = trial.best_loss < NO_LOSS
        return TrialResult(
            id=trial.id,
            config=ReadableConfig(trial.config),
            status=self._describe_status(trial),
            source=trial.source,
            value=spec.sign * trial.best_loss if found else None,
            epoch=trial.best_epoch if found else None,
            values=list(trial.metric(spec.metric)),
            seconds=list(trial.seconds),
            metrics={name: list(trial.metric(name)) for name in trial.metrics},
            failures=trial.failures,
            user_attrs=dict(trial.attrs),
            domains=dict(trial.domains),
            error=None if trial.failure is None else trial.failure.note,
            output=self._find_output(trial),
            checkpoint=self._find_checkpoint(trial),
        )

    def _find_output(self, trial: TrialState) -> Path | None:
        attempt, failure = trial.last_attempt, trial.failure
        if trial.ended is Status.FAILED and failure is not None:
            attempt = failure.attempt
        if attempt is None:
            return None
        path = self._files.log(attempt)
        return path if path.exists() else None

    def _find_checkpoint(self, trial: TrialState) -> SavedCheckpoint | None:
        epoch = trial.best_epoch
        attempt = None
        if epoch:
            attempt = (find_node(trial.leaf, epoch).checkpoints or {}).get(epoch)
        if attempt is None:
            saved = find_checkpoint(trial.leaf, last_known_epoch(trial.leaf))
            if saved is None:
                return None
            epoch, attempt = saved
        path, storage = self._files.path((attempt, epoch)), self._files.storage
        record = self._whole.checkpoints.records.get((attempt, epoch))
        digest = "" if record is None else record.digest
        is_there = storage is not None or path.exists()
        return SavedCheckpoint(path, epoch, digest, storage) if is_there else None
