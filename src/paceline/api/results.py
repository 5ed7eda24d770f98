"""The result of a study for its user: the best trial, all trials, and their checkpoints.

Knows how to read a state. Values are as reported, not losses. Changes nothing of a study.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from paceline.analysis.story import narrate_study, narrate_trial
from paceline.analysis.summary import StudySummary, summarize
from paceline.core.errors import SpecError
from paceline.core.ports import Storage
from paceline.core.values import NO_LOSS, Config
from paceline.plan.tree import find_checkpoint, find_node, last_known_epoch
from paceline.store import hide_password
from paceline.worker import checkpoint_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import plotly.graph_objects as go

    from paceline.core.decisions import Step
    from paceline.engines.process.checkpoint_files import CheckpointFiles
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
        root = Path(folder)
        for name, body in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body)
        return root


class TrialResult(Struct, frozen=True, kw_only=True):
    """The state of one trial."""

    id: int
    config: Config
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
    # The checkpoint of its best epoch if there is one, else its latest.
    checkpoint: SavedCheckpoint | None


class Result:
    """The result of a study, or of one of several that were run as one. Those share one log."""

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
    def best(self) -> TrialResult | None:
        """The trial with the best value; None if no trial reported a number."""
        best = self._state.best
        return None if best is None else self._make_result(best)

    @property
    def trials(self) -> list[TrialResult]:
        """All trials, in the order they were opened."""
        return [self._make_result(trial) for trial in self._state.trials]

    def some(self, numbers: Iterable[int]) -> list[TrialResult]:
        """Return the trials with these numbers."""
        return [self._make_result(self._state.trials[number]) for number in numbers]

    @property
    def end(self) -> str | None:
        """Why the study ended: target, deadline, slot_seconds, policy, command or quiet."""
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
        best = self.best
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
        return write_report(self._log, path, store=store)

    def plot(self, name: str) -> go.Figure:
        """Return a figure: attempts, best, configs, curves, epochs, slots, times or tree."""
        from paceline.plots.figures import draw_figure

        return draw_figure(self._log, name)

    def dataframe(self) -> Any:  # noqa: ANN401 - pandas is imported on use
        """Return a pandas DataFrame with a row for each trial: its status, best value, config."""
        try:
            import pandas
        except ImportError:
            raise SpecError("dataframe() needs pandas: pip install pandas.") from None
        return pandas.DataFrame(
            {
                "trial": trial.id,
                "status": trial.status,
                "value": trial.value,
                "epoch": trial.epoch,
                "epochs": len(trial.values),
                "seconds": sum(trial.seconds),
                "failures": trial.failures,
                **{f"config.{name}": value for name, value in trial.config.items()},
            }
            for trial in self.trials
        )

    def __repr__(self) -> str:
        spec, best = self._state.spec, self.best
        best_text = (
            "no value" if best is None else f"{spec.metric}={best.value:.6g} (trial {best.id})"
        )
        return f"<Result {spec.name!r}: {best_text}, {len(self._state.trials)} trials, {self.end}>"

    def _make_result(self, trial: TrialState) -> TrialResult:
        spec = self._state.spec
        found = trial.best_loss < NO_LOSS
        return TrialResult(
            id=trial.id,
            config=trial.config,
            status=trial.status.value,
            source=trial.source,
            value=spec.sign * trial.best_loss if found else None,
            epoch=trial.best_epoch if found else None,
            values=list(trial.metric(spec.metric)),
            seconds=list(trial.seconds),
            metrics={name: list(trial.metric(name)) for name in trial.metrics},
            failures=trial.failures,
            checkpoint=self._find_checkpoint(trial),
        )

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
