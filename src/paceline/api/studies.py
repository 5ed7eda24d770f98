"""Studies that are kept: their trials, replays and traces, read off their logs.

Knows stores and how to fold a log. Decides nothing: what it shows is what the log says. The JSON of
its structs is a contract: `docs/json.md`.
"""

from __future__ import annotations

import math
from array import array
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from paceline.api.brains import brains_of
from paceline.api.measuring import measured
from paceline.core.errors import LogError, SpecError, StoreError
from paceline.core.events import Opened
from paceline.core.values import NO_LOSS, Config
from paceline.engines.sim.traces import VERSION, Header, Run, write_trace
from paceline.machine.fitting import Told
from paceline.machine.glance import GroupRow, StudyRow, group_rows, row_of, value_of
from paceline.machine.replay import Difference, replay
from paceline.machine.state import StudyState
from paceline.plan.settings import key
from paceline.store import open_store, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from paceline.core.decisions import Step
    from paceline.core.ports import Store
    from paceline.core.values import StudySpec
    from paceline.machine.records import Trial


class TrialRow(Struct, frozen=True, kw_only=True):
    """A trial at a glance."""

    trial: int
    status: str
    epoch: int
    goal: int
    best_value: float | None
    best_epoch: int | None
    last_value: float | None
    failures: int
    config: Config
    # Whose it is, where several studies are driven as one.
    group: str | None


class StudyList(Struct, frozen=True, kw_only=True):
    """The studies of a store, oldest first."""

    store: str
    studies: list[StudyRow]


class StudyPage(Struct, frozen=True, kw_only=True):
    """A study and its trials, best first."""

    study: StudyRow
    # The studies that are driven as one; none where it stands alone.
    groups: list[GroupRow]
    trials: list[TrialRow]


class Replayed(Struct, frozen=True, kw_only=True):
    """What came of deciding a log's events again."""

    # As far as it got: to the log's end, or to the step that differs.
    steps: int
    decisions: int
    # None: all are the same.
    difference: Difference | None


class Exported(Struct, frozen=True, kw_only=True):
    """What went into a trace file."""

    runs: int
    # Trials without a report, and trials with the config of another one that got further.
    silent: int
    doubled: int


@contextmanager
def opened(url: str, *, lazy: bool = False) -> Iterator[Store]:
    """Open a store that exists, and close it in the end."""
    store = open_store(url, create=False, lazy=lazy)
    try:
        yield store
    finally:
        store.close()


class NewStudy:
    """Takes the log of a study that begins: its `remember`.

    The store is opened, and made where there is none, with the first step; so a study that cannot
    be meant leaves no file behind. Raises StoreError where the study exists already.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._store: Store | None = None

    def remember(self, steps: Sequence[Step]) -> None:
        """Append the steps; the first one is the study's Opened."""
        if self._store is None:
            self._name = spec_of(steps).name
            self._store = open_store(self._url, create=True, lazy=True)
            if self._name in self._store.studies():
                raise StoreError(
                    f"study {self._name!r} exists already in {shown(self._url)}: choose another "
                    "name, or resume that one."
                )
        self._store.append(self._name, steps)

    def close(self) -> None:
        """Make everything durable that was appended."""
        if self._store is not None:
            self._store.close()


def spec_of(steps: Sequence[Step]) -> StudySpec:
    """Return the spec that a log begins with."""
    event = steps[0].event if steps else None
    if not isinstance(event, Opened):
        raise LogError("this log does not begin with Opened: it is not the log of a study.")
    return event.spec


def folded(steps: Iterable[Step]) -> StudyState:
    """Return the state that a log leads to."""
    state = StudyState()
    for step in steps:
        for entry in step.entries:
            state.apply(entry)
    if not state.number:
        raise LogError("this log is empty: the study has not begun.")
    return state


def page_of(state: StudyState, limit: int | None = None) -> StudyPage:
    """Return a study and its trials, best first; those without a number come last, by id."""
    order = sorted(state.trials, key=lambda trial: (trial.best_loss, trial.id))
    return StudyPage(
        study=row_of(state),
        groups=group_rows(state),
        trials=[_trial_row(trial, state.spec) for trial in order[:limit]],
    )


def replayed(steps: Iterable[Step]) -> Replayed:
    """Decide a log's events again, with the brains its spec names, up to the first difference."""
    log = iter(steps)
    first = next(log, None)
    spec = spec_of([first] if first is not None else [])
    if spec.fit:
        kept = list(log)
        log, needs = iter(kept), Told(kept)
    else:
        needs = None
    brains = brains_of(spec, needs=needs)
    seen = decisions = 0

    def counted() -> Iterator[Step]:
        nonlocal seen, decisions
        for step in chain([first] if first is not None else [], log):
            seen += 1
            decisions += len(step.decisions)
            yield step

    difference = replay(counted(), brains)
    return Replayed(steps=seen, decisions=decisions, difference=difference)


def export(steps: Iterable[Step], path: str | Path, *, force: bool = False) -> Exported:
    """Write a log's curves as a trace that `simulate` can read.

    `seconds` and all costs are as measured on the slots that each trial had.
    """
    path = Path(path)
    if path.exists() and not force:
        raise SpecError(f"{path} exists already: give another path, or --force to replace it.")
    state, costs = measured(steps)
    spec = state.spec
    told = [trial for trial in state.trials if trial.epoch]
    kept: dict[bytes, Trial] = {}
    for trial in told:
        # A trace holds a config once; the longer curve tells more.
        first = kept.setdefault(key(trial.config), trial)
        if trial.epoch > first.epoch:
            kept[key(trial.config)] = trial
    if all(trial.best_loss == NO_LOSS for trial in told):
        raise SpecError(f"study {spec.name!r} has no number in its reports: nothing to export.")
    header = Header(
        paceline_trace=VERSION,
        name=spec.name,
        metric=spec.metric,
        mode=spec.mode,
        max_epochs=spec.epochs,
        source=f"exported from study {spec.name} by paceline",
        save_s=costs.save_s,
        restore_s=costs.restore_s,
    )
    runs = [_run(trial, spec, costs.setup_s.get(trial.id)) for trial in kept.values()]
    runs.sort(key=lambda run: run.id)
    try:
        write_trace(path, header, runs)
    except OSError as error:
        raise SpecError(f"{path} cannot be written: {error.strerror or error}.") from None
    silent = len(state.trials) - len(told)
    return Exported(runs=len(runs), silent=silent, doubled=len(told) - len(runs))


def _run(trial: Trial, spec: StudySpec, setup_s: float | None) -> Run:
    values = [math.nan if value is None else value for value in trial.metric(spec.metric)]
    return Run(trial.id, trial.config, array("d", values), array("d", trial.seconds), setup_s)


def _trial_row(trial: Trial, spec: StudySpec) -> TrialRow:
    return TrialRow(
        trial=trial.id,
        status=trial.status.value,
        epoch=trial.epoch,
        goal=trial.goal,
        best_value=value_of(trial.best_loss, spec),
        best_epoch=trial.best_epoch or None,
        last_value=value_of(trial.loss, spec),
        failures=trial.failures,
        config=trial.config,
        group=spec.groups[trial.group].name if spec.groups else None,
    )
