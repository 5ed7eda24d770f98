"""Studies that are kept: their trials, replays and traces, read off their logs.

Knows stores and how to fold a log. Decides nothing: what it shows is what the log says. The JSON of
its structs is a contract: `docs/json.md`.
"""

from __future__ import annotations

import math
import time
from array import array
from contextlib import closing, contextmanager
from itertools import chain, count, islice
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from paceline.analysis.checkpoint_inventory import CheckpointRow, inventory_of
from paceline.analysis.costs import measured
from paceline.analysis.summary import GroupRow, StudyRow, group_rows, row_of, value_of
from paceline.api.locations import storage_of
from paceline.api.registry import brains_of
from paceline.core.errors import LogError, SpecError, StoreError, StudyRunning
from paceline.core.events import ChangeSlots, Opened
from paceline.core.values import NO_LOSS, Config
from paceline.engines.sim.traces import VERSION, Header, Run, write_trace
from paceline.machine.replay import Difference, replay
from paceline.machine.requirements import Told
from paceline.machine.state import StudyState
from paceline.plan.settings import key
from paceline.store import open_store, path_of, shown
from paceline.worker.trial import name_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from paceline.core.decisions import Step
    from paceline.core.events import Command
    from paceline.core.ports import Store
    from paceline.core.values import StudySpec
    from paceline.live.watcher import Watch
    from paceline.machine.trial_state import Trial


# How often to look for steps, and how long none may come before asking whether the driver lives.
LOOK_S = 0.25
QUIET_S = 5.0
# Steps that are shown at a time.
SOME = 1_000


def follow(store: Store, study: str, watch: Watch) -> StudyState:
    """Show a study from its first step on, until it has ended or nobody drives it; return it."""
    state = StudyState()
    last, ask_at = -1, time.monotonic()
    while state.end is None:
        steps = list(islice(store.read(study, last), SOME))
        for step in steps:
            last = step.number
            for entry in step.entries:
                state.apply(entry)
        # Also without steps: time passes.
        watch(state, steps)
        now = time.monotonic()
        if len(steps) == SOME:
            continue
        if steps:
            ask_at = max(ask_at, now + QUIET_S)
        elif now >= ask_at:
            if store.holder(study) is None:
                break
            ask_at = now + QUIET_S
        time.sleep(LOOK_S)
    return state


def free_name(url: str, stem: str) -> str:
    """Return the first of stem-1, stem-2, … that no study of the store has."""
    taken = set(_names(url))
    return next(name for number in count(1) if (name := f"{stem}-{number}") not in taken)


def refuse_known(url: str, study: str, resume: str) -> None:
    """Raise StoreError where a study has this name already; `resume` is the command to go on."""
    if study not in _names(url):
        return
    with opened(url) as store:
        holder = store.holder(study)
        if holder is not None:
            raise StudyRunning(
                f"study {study!r} in {shown(url)} is running ({holder}): wait, stop it with "
                f"`paceline stop {study}`, or choose another name.",
                holder,
            )
        end = folded(store.read(study)).end
    if end is not None:
        raise StoreError(
            f"study {study!r} in {shown(url)} has ended ({end.why}): choose another name, or look "
            f"at it with `paceline show {study}`."
        )
    raise StoreError(
        f"study {study!r} in {shown(url)} is unfinished: go on with `{resume}`, or choose another "
        "name."
    )


def command(store: Store, study: str, order: Command) -> str | None:
    """Put an order into a living study's inbox and return who will hear it; None: nobody."""
    first = next(store.read(study), None)
    spec_of([] if first is None else [first])
    holder = store.holder(study)
    if holder is None:
        return None
    if first is not None and isinstance(first.event, Opened) and "source" in first.event.engine:
        raise SpecError(
            f"study {study!r} is simulated by {holder} and takes no orders: interrupt that instead."
        )
    store.post(study, order)
    return holder


def slots_of(store: Store, study: str) -> int:
    """Return how many slots a study has, once it has heard what lies in its inbox."""
    state = folded(store.read(study))
    waiting = store.inbox(study, state.inbox)
    more = sum(order.by for _, order in waiting if isinstance(order, ChangeSlots))
    return state.capacity + more


def _names(url: str) -> Sequence[str]:
    path = path_of(url)
    if path is not None and not path.exists():
        return ()
    # Made on a server, as who asks is about to begin a study; a file may yet turn out unneeded.
    with closing(open_store(url, create=path is None)) as store:
        return store.studies()


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


class Stray(Struct, frozen=True, kw_only=True):
    """Something among the checkpoints that no log names: a crash has left it."""

    name: str
    bytes: int


class CheckpointPage(Struct, frozen=True, kw_only=True):
    """A study's checkpoints, and what lies around them."""

    study: str
    # The folder or the address they lie at; None: the study was simulated and has none.
    place: str | None
    checkpoints: list[CheckpointRow]
    # Of these together.
    bytes: int
    # How many more the log names that are not there: whoever needs one starts from an earlier one.
    missing: int
    strays: list[Stray]
    # Whether the strays were deleted.
    collected: bool
    # What they take, or took.
    stray_bytes: int


def looked_after(store: Store, url: str, steps: Iterable[Step], *, collect: bool) -> CheckpointPage:
    """Return a study's checkpoints; with `collect`, delete what no log names."""
    log = list(steps)
    event = log[0].event if log else None
    if not isinstance(event, Opened):
        raise SpecError("this log does not begin with Opened: it is not the log of a study.")
    study = event.spec.name
    holder = store.holder(study)
    if holder is not None and collect:
        raise StudyRunning(
            f"study {study!r} is driven by {holder}, which collects what nobody needs by itself: "
            "look with --dry-run, or wait until that ends.",
            holder,
        )
    if collect:
        store.claim(study)  # so that nobody takes it up meanwhile
    storage = storage_of(event, url)
    lying = {} if storage is None else {each.name: each.bytes for each in storage.list()}
    state, rows = inventory_of(log)
    there = [row for row in rows if name_of(row.attempt, row.epoch) in lying]
    named = {name_of(*name) for name in state.files.files}
    # Whoever drives a study may be about to name what it writes.
    around = {} if holder is not None else {n: b for n, b in lying.items() if n not in named}
    if collect and storage is not None:
        for name in around:
            storage.delete(name)
    return CheckpointPage(
        study=study,
        place=None if storage is None else storage.url,
        checkpoints=there,
        bytes=sum(row.bytes for row in there),
        missing=len(rows) - len(there),
        strays=[Stray(name=name, bytes=size) for name, size in around.items()],
        collected=collect,
        stray_bytes=sum(around.values()),
    )
