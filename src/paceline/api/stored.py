"""Stored studies: their pages, replays, traces and checkpoints, commands to them, and new logs.

Knows stores and how to fold a log into a state. Decides nothing about a study. The JSON of its
structs is a contract: `docs/json.md`.
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
from msgspec.structs import replace

from paceline.analysis.checkpoint_inventory import CheckpointRow, list_checkpoints
from paceline.analysis.costs import measure_costs
from paceline.analysis.speeds import (
    collect_epochs,
    list_given_speeds,
    measure_speeds,
    normalise_seconds,
)
from paceline.analysis.summary import (
    Best,
    GroupRow,
    StudyRow,
    make_group_rows,
    make_study_row,
    to_metric,
)
from paceline.api.locations import find_checkpoint_files, open_checkpoints
from paceline.api.permissions import NOTHING, allow, check_parts
from paceline.api.registry import build_parts
from paceline.core.decisions import Launch
from paceline.core.errors import LogError, PacelineError, SpecError, StoreError, StudyRunning
from paceline.core.events import LOGIC, ChangeSlots, Extended, Opened
from paceline.core.extension import apply_newest_spec, list_extensions
from paceline.core.speedup import WidthSpeed, parse_speedup
from paceline.core.values import NO_LOSS, OPEN_ENDED, Config, Status, StudySpec
from paceline.engines.process.checkpoint_files import is_own_file
from paceline.engines.sim.traces import VERSION, TraceHeader, TraceRun, write_trace
from paceline.machine.replay import Difference, replay, replay_extended
from paceline.machine.requirements import RecordedNeeds
from paceline.machine.state import StudyState
from paceline.plan.settings import config_key
from paceline.store import find_store_file, hide_password, open_store
from paceline.worker.trial import checkpoint_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from paceline.api.permissions import Allowed
    from paceline.core.decisions import Step
    from paceline.core.events import Command
    from paceline.core.ports import Store
    from paceline.core.speedup import SpeedUp
    from paceline.live.watcher import Watch
    from paceline.machine.decider import Parts
    from paceline.machine.trial_state import TrialState


# Seconds between two reads of a log, and seconds without a step before the driver is looked for.
POLL_S = 0.25
QUIET_S = 5.0
# Steps that are read at a time.
BATCH = 1_000


def read_log(store: Store, study: str) -> Iterator[Step]:
    """Yield the steps of a log, those of an extended study with its newest spec."""
    extensions = list_extensions(store.find_steps(study, "extended"))
    left = len(extensions)
    for at, step in enumerate(store.read(study)):
        if at == 0:
            read_spec([step], study)
        if isinstance(step.event, Extended):
            if not left:
                return  # extended while it was read: this is how it was before
            left -= 1
        yield apply_newest_spec(step, extensions)


def follow(store: Store, study: str, watch: Watch) -> StudyState:
    """Watch a study from its first step until it ends or has no driver; return its state."""
    state = StudyState()
    known = store.find_steps(study, "extended")
    last, check_at = -1, time.monotonic()
    while state.end is None or (known and known[-1].number > last):
        steps = list(islice(store.read(study, last), BATCH))
        if any(isinstance(step.event, Extended) and step not in known for step in steps):
            # Extended meanwhile: all of it is read again, with the new spec.
            state, last = StudyState(), -1
            known = store.find_steps(study, "extended")
            continue
        steps = [apply_newest_spec(step, list_extensions(known)) for step in steps]
        for step in steps:
            last = step.number
            for entry in step.entries:
                state.apply(entry)
        # Also without steps: the view shows the time.
        watch(state, steps)
        now = time.monotonic()
        if len(steps) == BATCH:
            continue
        if steps:
            check_at = max(check_at, now + QUIET_S)
        elif now >= check_at:
            if store.holder(study) is None:
                break
            check_at = now + QUIET_S
        time.sleep(POLL_S)
    return state


def find_free_name(url: str, stem: str) -> str:
    """Return the first of stem-1, stem-2, … that is free in the store."""
    taken = set(_list_names(url))
    return next(name for number in count(1) if (name := f"{stem}-{number}") not in taken)


def refuse_existing(url: str, study: str, resume: str) -> None:
    """Raise StoreError if the store has a study of this name; `resume` is the command for it."""
    if study not in _list_names(url):
        return
    found = f"study {study!r} in {hide_password(url)}"
    with open_existing(url) as store:
        holder = store.holder(study)
        if holder is not None:
            raise StudyRunning(
                f"{found} is running ({holder}): wait, stop it with `paceline stop {study}`, or "
                "choose another name.",
                holder,
            )
        end = fold_log(read_log(store, study)).end
    if end is not None:
        raise StoreError(
            f"{found} has ended ({end.why}): choose another name, or look at it with "
            f"`paceline show {study}`."
        )
    raise StoreError(f"{found} is unfinished: resume it with `{resume}`, or choose another name.")


def send_command(store: Store, study: str, command: Command) -> str | None:
    """Put a command into the inbox of a running study; return its driver, None if it has none."""
    first = next(store.read(study), None)
    read_spec([] if first is None else [first])
    holder = store.holder(study)
    if holder is None:
        return None
    if first is not None and isinstance(first.event, Opened) and first.event.run.kind == "sim":
        raise SpecError(
            f"study {study!r} is a simulation and takes no commands: interrupt {holder} instead."
        )
    store.post(study, command)
    return holder


def count_slots(store: Store, study: str) -> int:
    """Return the number of slots of a study, after the commands in its inbox."""
    state = fold_log(read_log(store, study))
    pending = store.inbox(study, state.inbox)
    more = sum(command.by for _, command in pending if isinstance(command, ChangeSlots))
    return state.capacity + more


def _list_names(url: str) -> Sequence[str]:
    path = find_store_file(url)
    if path is not None and not path.exists():
        return ()
    # On a server the tables are created, since a study is about to begin; a file is not.
    with closing(open_store(url, create=path is None)) as store:
        return store.studies()


class TrialRow(Struct, frozen=True, kw_only=True):
    """One trial in a table."""

    trial: int
    status: str
    epoch: int
    goal: int
    best_value: float | None
    best_epoch: int | None
    last_value: float | None
    failures: int
    config: Config
    # Its study, if several are run as one.
    group: str | None


class StudyList(Struct, frozen=True, kw_only=True):
    """The studies of a store, oldest first."""

    store: str
    studies: list[StudyRow]


class StudyPage(Struct, frozen=True, kw_only=True):
    """A study and its trials, best first."""

    study: StudyRow
    # The studies that are run as one; empty for a single study.
    groups: list[GroupRow]
    trials: list[TrialRow]


class ReplayResult(Struct, frozen=True, kw_only=True):
    """The result of deciding a log's events again."""

    # Up to the end of the log, or to the step that differs.
    steps: int
    decisions: int
    # None: all are the same.
    difference: Difference | None
    # The version of the decision logic that wrote the log, as `core.events.LOGIC`.
    logic: int
    spec: StudySpec

    @property
    def is_expected(self) -> bool:
        """Whether another version of the logic wrote the log: a difference is then not a bug."""
        return self.logic != LOGIC


class ExportResult(Struct, frozen=True, kw_only=True):
    """The number of runs in an exported trace, and of trials left out."""

    runs: int
    # Runs that could have trained on.
    cut: int = 0
    # Trials without a report, and trials with the same config as a longer one.
    silent: int
    doubled: int
    # The speeds by which the epochs of other widths were converted to one slot alone.
    speeds: list[WidthSpeed] = []


@contextmanager
def open_existing(url: str, *, lazy: bool = False) -> Iterator[Store]:
    """Open an existing store; close it at the end of the block."""
    store = open_store(url, create=False, lazy=lazy)
    try:
        yield store
    finally:
        store.close()


# Errors of a log whose entries contradict each other.
_CONTRADICTIONS = (LookupError, ValueError, TypeError, AttributeError, ArithmeticError)


@contextmanager
def explain_damage() -> Iterator[None]:
    """Raise LogError where the entries of a log contradict each other."""
    try:
        yield
    except PacelineError:
        raise
    except (*_CONTRADICTIONS, AssertionError, RecursionError, MemoryError) as error:
        raise LogError(
            f"the log contradicts itself ({type(error).__name__}: {error}): it was edited or "
            "damaged; restore the store from a backup."
        ) from error


class NewStudyLog:
    """The log of a new study; its `remember` appends to it.

    The first step opens the store, and creates it if needed: a study with invalid options leaves no
    file. Raises StoreError if the study exists already.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._store: Store | None = None

    def remember(self, steps: Sequence[Step]) -> None:
        """Append steps; the first one is the study's Opened."""
        if self._store is None:
            self._name = read_spec(steps).name
            self._store = open_store(self._url, create=True, lazy=True)
            if self._name in self._store.studies():
                raise StoreError(
                    f"study {self._name!r} exists already in {hide_password(self._url)}: choose "
                    "another name, or resume that study."
                )
        self._store.append(self._name, steps)

    def close(self) -> None:
        """Make all appended steps durable."""
        if self._store is not None:
            self._store.close()


def read_spec(steps: Sequence[Step], study: str | None = None) -> StudySpec:
    """Return the spec in the first step of a log; raise LogError if it is of another study."""
    event = steps[0].event if steps else None
    if not isinstance(event, Opened):
        raise LogError("this log does not begin with Opened: it is not the log of a study.")
    if study is not None and event.spec.name != study:
        raise LogError(
            f"the log of study {study!r} is that of a study named {event.spec.name!r}: it was "
            "edited or damaged, and is not read."
        )
    return event.spec


def fold_log(steps: Iterable[Step]) -> StudyState:
    """Return the state at the end of a log."""
    state = StudyState()
    with explain_damage():
        for step in steps:
            for entry in step.entries:
                state.apply(entry)
    if not state.number:
        raise LogError("this log is empty: the study has not begun.")
    return state


def make_page(state: StudyState, limit: int | None = None, driver: str | None = None) -> StudyPage:
    """Return a study and its trials, best first; trials without a value are last, by id.

    `driver` is the process that runs it.
    """
    order = sorted(state.trials, key=lambda trial: (trial.best_loss, trial.id))
    return StudyPage(
        study=make_study_row(state, driver),
        groups=make_group_rows(state),
        trials=[_make_trial_row(trial, state.spec) for trial in order[:limit]],
    )


def replay_log(steps: Iterable[Step], *, parts: Sequence[object] = ()) -> ReplayResult:
    """Decide a log's events again with the parts of its spec, up to the first difference.

    Builds parts that are built in, and those in `parts`: classes, objects or names. Raises
    SpecError if the log names another one.
    """
    allowed = allow(*parts)
    log = iter(steps)
    first = next(log, None)
    spec = read_spec([first] if first is not None else [])
    assert first is not None
    assert isinstance(first.event, Opened)
    if first.event.earlier:
        return _replay_extended([first, *log], spec, allowed)
    if spec.fit:
        rest = list(log)
        log, needs = iter(rest), RecordedNeeds(rest)
    else:
        needs = None
    check_parts(spec, allowed)
    built = build_parts(spec, needs=needs)
    seen = decisions = 0

    def count_steps() -> Iterator[Step]:
        nonlocal seen, decisions
        for step in chain([first], log):
            seen += 1
            decisions += len(step.decisions)
            yield step

    difference = replay(count_steps(), built)
    logic = first.event.logic
    return ReplayResult(
        steps=seen, decisions=decisions, difference=difference, logic=logic, spec=spec
    )


def _replay_extended(log: Sequence[Step], spec: StudySpec, allowed: Allowed) -> ReplayResult:
    """Decide the log of an extended study again, each piece with the spec of its time."""
    needs = RecordedNeeds(log) if spec.fit else None

    def build(spec: StudySpec) -> Parts:
        check_parts(spec, allowed)
        return build_parts(spec, needs=needs)

    difference = replay_extended(log, build)
    reached = len(log)
    if difference is not None:
        reached = sum(step.number <= difference.number for step in log)
    begun = [step.event for step in log[:reached] if isinstance(step.event, Opened | Extended)]
    return ReplayResult(
        steps=reached,
        decisions=sum(len(step.decisions) for step in log[:reached]),
        difference=difference,
        logic=begun[-1].logic,
        spec=spec,
    )


def refuse_replacing(path: str | Path, *, force: bool) -> None:
    """Raise SpecError if a file exists that a command would replace without being told to."""
    if Path(path).exists() and not force:
        raise SpecError(f"{path} exists already: give another path, or --force to replace it.")


def locate_best(best: Best, opened: Opened, url: str, allowed: Allowed = NOTHING) -> Best:
    """Return the best value with the path or the address of its checkpoint."""
    if best.checkpoint is None:
        return best
    files = find_checkpoint_files(opened, url, allowed)
    name = (best.checkpoint.attempt, best.checkpoint.epoch)
    path: str | None = str(files.path(name))
    if not files.path(name).exists():
        storage = files.storage
        path = None if storage is None else f"{storage.url}/{checkpoint_name(*name)}"
    return replace(best, checkpoint=replace(best.checkpoint, path=path))


def export_trace(steps: Iterable[Step], path: str | Path, *, force: bool = False) -> ExportResult:
    """Write a log's curves as a trace file for `simulate`.

    Epochs of trials on several slots, or on a share of one, are written with the seconds that they
    would have taken on one slot alone; the header has the speeds.
    """
    path = Path(path)
    refuse_replacing(path, force=force)
    log = list(steps)
    state, costs = measure_costs(log)
    speeds: Sequence[WidthSpeed] = ()
    if any(launch.width != 1.0 for launch in _list_launches(log)):
        epochs = collect_epochs(log)
        known = _find_given_speedup(log)
        measured = list(epochs.values())
        speeds = measure_speeds(measured) if known is None else list_given_speeds(measured, known)
        state = fold_log(normalise_seconds(log, epochs, speeds))
    spec = state.spec
    reported = [trial for trial in state.trials if trial.epoch]
    kept: dict[bytes, TrialState] = {}
    for trial in reported:
        # A trace has a config once: the longer curve has more to say.
        first = kept.setdefault(config_key(trial.config), trial)
        if trial.epoch > first.epoch:
            kept[config_key(trial.config)] = trial
    if all(trial.best_loss == NO_LOSS for trial in reported):
        raise SpecError(f"study {spec.name!r} has not reported a number: nothing to export.")
    header = TraceHeader(
        paceline_trace=VERSION,
        name=spec.name,
        metric=spec.metric,
        mode=spec.mode,
        max_epochs=_find_last_epoch(spec, kept.values()),
        source=f"exported from study {spec.name} by paceline",
        save_s=costs.save_s,
        restore_s=costs.restore_s,
        forecast_s=costs.forecast_s,
        range=spec.range,
        live=_read_opened(log).run.is_trained,
        normalised=bool(speeds),
        speeds=tuple(speeds),
        cut=sum(map(_is_cut, kept.values())),
    )
    runs = [
        _make_run(trial, spec, costs.setup_s.get(trial.id, costs.start_s))
        for trial in kept.values()
    ]
    runs.sort(key=lambda run: run.id)
    try:
        write_trace(path, header, runs)
    except OSError as error:
        raise SpecError(f"{path} cannot be written: {error.strerror or error}.") from None
    silent = len(state.trials) - len(reported)
    doubled = len(reported) - len(runs)
    return ExportResult(
        runs=len(runs), cut=header.cut, silent=silent, doubled=doubled, speeds=list(speeds)
    )


def _list_launches(log: Iterable[Step]) -> Iterator[Launch]:
    return (each for step in log for each in step.decisions if isinstance(each, Launch))


def _read_opened(log: Sequence[Step]) -> Opened:
    opened = log[0].event
    assert isinstance(opened, Opened)
    return opened


def _find_given_speedup(log: Sequence[Step]) -> SpeedUp | None:
    """Return the speed-up of a simulated study; None: it was trained."""
    run = _read_opened(log).run
    if run.kind != "sim":
        return None
    given = run.simulation
    return parse_speedup(given.get("speedup"), given.get("interference"))


def _make_run(trial: TrialState, spec: StudySpec, setup_s: float | None) -> TraceRun:
    values = [math.nan if value is None else value for value in trial.metric(spec.metric)]
    seconds = array("d", trial.seconds)
    return TraceRun(trial.id, trial.config, array("d", values), seconds, setup_s, _is_cut(trial))


def _is_cut(trial: TrialState) -> bool:
    """Return whether a trial could have trained on after its last report."""
    return trial.status is not Status.FINISHED


def _find_last_epoch(spec: StudySpec, trials: Iterable[TrialState]) -> int:
    """Return the last epoch of trials; where only their function knows it, the longest so far."""
    if spec.epochs < OPEN_ENDED:
        return spec.epochs
    return max(trial.epoch for trial in trials)


def _make_trial_row(trial: TrialState, spec: StudySpec) -> TrialRow:
    return TrialRow(
        trial=trial.id,
        status=trial.status.value,
        epoch=trial.epoch,
        goal=trial.goal,
        best_value=to_metric(trial.best_loss, spec),
        best_epoch=trial.best_epoch or None,
        last_value=to_metric(trial.loss, spec),
        failures=trial.failures,
        config=trial.config,
        group=spec.groups[trial.group].name if spec.groups else None,
    )


class StrayFile(Struct, frozen=True, kw_only=True):
    """A file among the checkpoints that the log does not name: a crash has left it."""

    name: str
    bytes: int


class CheckpointPage(Struct, frozen=True, kw_only=True):
    """A study's checkpoints, and stray files beside them."""

    study: str
    # Their folder or address; None: the study was simulated and has no checkpoints.
    place: str | None
    checkpoints: list[CheckpointRow]
    # The sum over these.
    bytes: int
    # The number of checkpoints in the log without a file; a trial that needs one starts earlier.
    missing: int
    strays: list[StrayFile]
    # Whether the stray files were deleted.
    collected: bool
    # The size of the stray files.
    stray_bytes: int


def inspect_checkpoints(
    store: Store, url: str, steps: Iterable[Step], *, collect: bool, allowed: Allowed = NOTHING
) -> CheckpointPage:
    """Return a study's checkpoints; with `collect`, delete files that its log does not name."""
    log = list(steps)
    event = log[0].event if log else None
    if not isinstance(event, Opened):
        raise SpecError("this log does not begin with Opened: it is not the log of a study.")
    study = event.spec.name
    holder = store.holder(study)
    if holder is not None and collect:
        raise StudyRunning(
            f"study {study!r} is run by {holder}, which deletes unneeded checkpoints itself: add "
            "--dry-run, or wait until the study ends.",
            holder,
        )
    if collect:
        store.claim(study)  # so that no driver resumes it meanwhile
    storage = open_checkpoints(event, url, allowed)
    sizes = {} if storage is None else {each.name: each.bytes for each in storage.list()}
    state, rows = list_checkpoints(log)
    present = [row for row in rows if checkpoint_name(row.attempt, row.epoch) in sizes]
    named = {checkpoint_name(*name) for name in state.checkpoints.records}
    # A running driver may have written a file that its log will name.
    left = {} if holder is not None else sizes
    strays = {n: b for n, b in left.items() if n not in named and is_own_file(n)}
    if collect and storage is not None:
        for name in strays:
            storage.delete(name)
    return CheckpointPage(
        study=study,
        place=None if storage is None else storage.url,
        checkpoints=present,
        bytes=sum(row.bytes for row in present),
        missing=len(rows) - len(present),
        strays=[StrayFile(name=name, bytes=size) for name, size in strays.items()],
        collected=collect,
        stray_bytes=sum(strays.values()),
    )
