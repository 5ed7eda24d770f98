"""What a study found, as its user sees it: the best trial, all trials, and their checkpoints.

Knows how to read a state off. Values are as reported, not turned; nothing here changes a study.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from paceline.analysis.live_summary import Summary, summary_of
from paceline.analysis.story import study_story, trial_story
from paceline.core.errors import SpecError
from paceline.core.ports import Storage
from paceline.core.values import NO_LOSS, Config
from paceline.plan.tree import known_on, node_of, saved_on
from paceline.store import shown
from paceline.worker import checkpoint_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import plotly.graph_objects as go

    from paceline.core.decisions import Step
    from paceline.engines.process.checkpoint_files import Shelf
    from paceline.machine.groups import Group
    from paceline.machine.state import StudyState
    from paceline.machine.trial_state import Trial


class SavedCheckpoint(Struct, frozen=True):
    """A checkpoint on this machine's disk, or one that is brought there when it is read."""

    path: Path
    # The epochs of training in it.
    epoch: int
    # What its bytes hash to, and where it is kept, if not here.
    digest: str = ""
    storage: Storage | None = None

    @property
    def place(self) -> str:
        """Where it lies: a path on this machine, or an address."""
        if self.storage is None or self.path.exists():
            return str(self.path)
        return f"{self.storage.url}/{self.path.name}"

    def load(self) -> dict[str, Any]:
        """Return what the training function kept, by name: states, arrays, values."""
        kept: dict[str, Any] = self._read()["kept"]
        return kept

    def _read(self) -> dict[str, Any]:
        if self.storage is not None and not self.path.exists():
            self.storage.get(self.path.name, str(self.path))
        return checkpoint_file.read(self.path, self.digest)

    def to_directory(self, folder: str | Path) -> Path:
        """Write the files of a checkpoint in Ray's spelling to a folder."""
        files = self._read().get("files")
        if files is None:
            raise SpecError("this checkpoint holds kept objects and no files: use load().")
        root = Path(folder)
        for name, body in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body)
        return root


class TrialResult(Struct, frozen=True, kw_only=True):
    """A trial as it stands."""

    id: int
    config: Config
    status: str
    # The trial it was forked from; its config has that one's values up to there.
    source: int | None
    # The best value it has reported, and when; None where it never reported a number.
    value: float | None
    epoch: int | None
    # The objective after each epoch, and how long each took.
    values: list[float | None]
    seconds: list[float]
    # Every metric after each epoch, by name; None where it was not reported, or was no number.
    metrics: dict[str, list[float | None]]
    failures: int
    # Of its best epoch where that was saved, else its latest.
    checkpoint: SavedCheckpoint | None


class Result:
    """What came of a study; of several driven as one, of one. The log is then that of all."""

    def __init__(
        self,
        state: StudyState,
        log: Sequence[Step],
        shelf: Shelf,
        store: str | None = None,
        group: Group | None = None,
    ) -> None:
        # Kept, since a group has no hold on it.
        self._whole = state
        self._state = group or state
        self._log = log
        self._shelf = shelf
        # Where the study is kept; None: nowhere.
        self._store = store

    @property
    def name(self) -> str:
        """The study's name."""
        return self._state.spec.name

    @property
    def best(self) -> TrialResult | None:
        """The trial with the best value; None where nobody reported a number."""
        best = self._state.best
        return None if best is None else self._result(best)

    @property
    def trials(self) -> list[TrialResult]:
        """All trials, in the order they were opened."""
        return [self._result(trial) for trial in self._state.trials]

    def some(self, numbers: Iterable[int]) -> list[TrialResult]:
        """Return the trials of these numbers."""
        return [self._result(self._state.trials[number]) for number in numbers]

    @property
    def end(self) -> str | None:
        """What ended the study: target, deadline, slot_seconds, policy, command or quiet."""
        return None if self._state.end is None else self._state.end.cause.value

    @property
    def why(self) -> str | None:
        """The sentence that goes with it."""
        return None if self._state.end is None else self._state.end.why

    @property
    def clock_s(self) -> float:
        """How long the study was active."""
        return self._state.now

    @property
    def log(self) -> Sequence[Step]:
        """Everything that happened and was decided."""
        return self._log

    def summary(self) -> Summary:
        """Return the study in figures: what was found, what it cost, what was saved."""
        best = self.best
        saved = None if best is None else best.checkpoint
        return summary_of(self._state, None if saved is None else (saved.place, saved.epoch))

    def story(self, trial: int | None = None) -> str:
        """Tell what happened to the study, or to one trial, in sentences."""
        told = study_story(self._log) if trial is None else trial_story(self._log, trial)
        return "\n".join(told)

    def report(self, path: str | Path) -> Path:
        """Write the study as one HTML page, replacing the file, and return its path."""
        from paceline.plots.report.page import write_report  # plotly is large

        store = None if self._store is None else shown(self._store)
        return write_report(self._log, path, store=store)

    def plot(self, name: str) -> go.Figure:
        """Return a figure: attempts, best, configs, curves, epochs, slots, times or tree."""
        from paceline.plots.figures import figure_of

        return figure_of(self._log, name)

    def dataframe(self) -> Any:  # noqa: ANN401 - pandas is imported on use
        """Return one row a trial as a pandas DataFrame: its fate, its best, its config."""
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
        said = "no value" if best is None else f"{spec.metric}={best.value:.6g} (trial {best.id})"
        return f"<Result {spec.name!r}: {said}, {len(self._state.trials)} trials, {self.end}>"

    def _result(self, trial: Trial) -> TrialResult:
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
            checkpoint=self._checkpoint(trial),
        )

    def _checkpoint(self, trial: Trial) -> SavedCheckpoint | None:
        epoch = trial.best_epoch
        attempt = None
        if epoch:
            attempt = (node_of(trial.leaf, epoch).saves or {}).get(epoch)
        if attempt is None:
            saved = saved_on(trial.leaf, known_on(trial.leaf))
            if saved is None:
                return None
            epoch, attempt = saved
        path, storage = self._shelf.path((attempt, epoch)), self._shelf.storage
        file = self._whole.files.files.get((attempt, epoch))
        digest = "" if file is None else file.digest
        here = storage is not None or path.exists()
        return SavedCheckpoint(path, epoch, digest, storage) if here else None
