"""Reuse of earlier studies in one store: shared prefixes of the same plan, and warm starts.

Knows stores, folders and hard links. Reads the other studies' logs as they are now, whether the
studies have ended or run elsewhere, and changes nothing of them.
"""

from __future__ import annotations

import os
import shutil
import warnings
from typing import TYPE_CHECKING, NamedTuple

from paceline.analysis.known_prefixes import PrefixReader
from paceline.api.locations import find_folder, open_checkpoints
from paceline.api.permissions import NOTHING
from paceline.api.stored import fold_log, read_log
from paceline.core.errors import (
    CheckpointError,
    LogError,
    PacelineWarning,
    SpecError,
    make_unknown_error,
    warn_user,
)
from paceline.core.events import Opened, Recalled
from paceline.core.space import Space
from paceline.core.text import format_count
from paceline.core.values import Status
from paceline.machine.state import StudyState
from paceline.worker.trial import checkpoint_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import optuna

    from paceline.api.permissions import Allowed
    from paceline.core.events import Adopted
    from paceline.core.ports import Storage, Store
    from paceline.core.run_info import RunInfo
    from paceline.core.values import StudySpec
    from paceline.engines.process.checkpoint_files import CheckpointFiles
    from paceline.machine.checkpoints import CheckpointName, CheckpointRecord
    from paceline.machine.trial_state import TrialState


class RelatedStudy(NamedTuple):
    """Another study of the same plan."""

    name: str
    spec: StudySpec
    # Its folder, and its checkpoint storage if the checkpoints are not in the folder.
    files: Path
    storage: Storage | None


def find_related(
    store: Store, url: str, spec: StudySpec, allowed: Allowed = NOTHING
) -> list[RelatedStudy]:
    """Return the other studies of a plan's name that trained on real devices, oldest first.

    Leaves out, with a warning, those with files in a place that is not allowed.
    """
    found = []
    for name in store.studies() if spec.plan is not None else ():
        try:
            first = next(store.read(name), None)
        except LogError:
            continue  # a newer version of Paceline wrote it
        event = None if first is None else first.event
        if name == spec.name or not isinstance(event, Opened) or not event.run.is_trained:
            continue
        plan = event.spec.plan
        if plan is None or spec.plan is None or plan.name != spec.plan.name:
            continue
        try:
            folder = find_folder(event, url, allowed)
            away = event.run.checkpoints is not None
            storage = open_checkpoints(event, url, allowed) if away else None
        except SpecError:
            warn_user(_explain_place(name, event.run))
            continue
        if folder is not None:
            found.append(RelatedStudy(name, event.spec, folder, storage))
    return found


def _explain_place(study: str, run: RunInfo) -> str:
    option, place = "files", f"{run.files}"
    if run.checkpoints is not None:
        option, place = "checkpoints", run.checkpoints.rpartition("/")[0]
    return (
        f"nothing is reused from study {study!r}: its log has its {option} in {place}, outside the "
        f"folder of the store; give this study its {option} there too to reuse them."
    )


def warn_of_change(related: list[RelatedStudy], spec: StudySpec, what: str) -> None:
    """Warn if the latest study of this plan has another version of the code."""
    last = related[-1] if related else None
    if last is not None and last.spec.plan != spec.plan:
        warnings.warn(
            f"{what} changed since study {last.name!r} ({last.spec.plan} then, {spec.plan} now): "
            "this study reuses nothing of it.",
            PacelineWarning,
            stacklevel=2,
        )


def reuse_prefixes(
    store: Store, related: list[RelatedStudy], spec: StudySpec, files: CheckpointFiles
) -> Iterator[Adopted]:
    """Yield the known prefixes of studies with the same plan and seed; bring their checkpoints.

    A checkpoint is hard-linked if the disk allows it, else copied: this study keeps it if the other
    study deletes its own.
    """
    reader = PrefixReader(spec)
    for each in related:
        if each.spec.plan != spec.plan or each.spec.seed != spec.seed:
            continue

        def bring(
            there: CheckpointName,
            record: CheckpointRecord,
            here: CheckpointName,
            each: RelatedStudy = each,
        ) -> bool:
            try:
                _fetch(each, checkpoint_name(*there), files, here)
            except (OSError, CheckpointError):
                return False  # deleted meanwhile, or not reachable: it is trained again
            return True

        state = StudyState()
        try:
            for step in read_log(store, each.name):
                for entry in step.entries:
                    state.apply(entry)
        except LogError as error:
            message = f"nothing is reused from study {each.name!r}: {error}"
            warnings.warn(message, PacelineWarning, stacklevel=2)
            continue
        yield from reader.take(state, bring)


def describe_taken_over(reused: Sequence[Adopted]) -> list[str]:
    """Return for each study how much of it was taken over, in words."""
    configs: dict[str, int] = {}
    epochs: dict[str, int] = {}
    for each in reused:
        configs[each.study] = configs.get(each.study, 0) + 1
        epochs[each.study] = epochs.get(each.study, 0) + len(each.metrics)
    return [
        f"took over {format_count(count, 'config')}, {format_count(epochs[name], 'epoch')} of "
        f"study {name!r}"
        for name, count in configs.items()
    ]


def _fetch(study: RelatedStudy, there: str, files: CheckpointFiles, here: CheckpointName) -> None:
    """Bring a checkpoint of another study to this study's folder and storage."""
    path = files.path(here)
    if study.storage is None:
        _link(study.files / "checkpoints" / there, path)
    else:
        study.storage.get(there, str(path))
    if files.storage is not None:
        files.storage.put(path.name, str(path))
        files.add_cached(here)


def _link(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)  # left by a driver that failed before its first entry
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(source, target)


def read_warm_start(store: Store, spec: StudySpec, study: str | optuna.Study) -> list[Recalled]:
    """Return the results of another study's trials, in the order they were opened."""
    if not isinstance(study, str):
        from paceline.api.optuna_results import read_optuna_study  # optuna takes long to import

        return read_optuna_study(study, spec)
    others = [name for name in store.studies() if name != spec.name]
    if study not in others:
        raise make_unknown_error("study for warm_start:", study, others)
    state = fold_log(read_log(store, study))
    space = None if spec.define_by_run else Space(spec.generator.params["space"])
    results = [
        Recalled(
            at=0.0,
            study=study,
            config=trial.config,
            values=tuple(trial.metric(spec.metric)),
            finished=trial.ended is Status.FINISHED,
            domains=dict(trial.domains) if space is None else {},
        )
        for trial in state.trials
        if spec.metric in trial.metrics and trial.epoch and _is_usable(space, trial)
    ]
    if not results:
        raise SpecError(
            f"warm_start={study!r} has nothing to learn from: none of its {len(state.trials)} "
            "trials "
            f"reported {spec.metric!r} for a config of this study's space."
        )
    return results


def _is_usable(space: Space | None, trial: TrialState) -> bool:
    """Say whether a generator can learn from a trial: its hyperparameters are known to it."""
    if space is None:
        return bool(trial.domains)
    try:
        space.read(trial.config)
    except SpecError:
        return False
    return True
