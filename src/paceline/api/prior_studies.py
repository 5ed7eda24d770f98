"""Studies of the same plan in one store: who they are, and what a new one takes over from them.

Knows stores, folders and links between files. What there is to take over is read off the others'
logs as they are now, whether they have ended, wait or run elsewhere; nothing of theirs is changed.
"""

from __future__ import annotations

import os
import shutil
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from paceline.analysis.known_prefixes import Gatherer
from paceline.api.locations import storage_of, trained
from paceline.api.stored import folded
from paceline.core.errors import CheckpointError, LogError, PacelineWarning, SpecError, unknown
from paceline.core.events import Opened, Recalled
from paceline.core.space import Space
from paceline.core.values import Status
from paceline.machine.state import StudyState
from paceline.store import folder_of
from paceline.worker.trial import name_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paceline.core.events import Adopted
    from paceline.core.ports import Storage, Store
    from paceline.core.values import Config, StudySpec
    from paceline.engines.process.checkpoint_files import Shelf
    from paceline.machine.checkpoints import File, Name


class Kin(NamedTuple):
    """Another study of a plan."""

    name: str
    spec: StudySpec
    # Where its files lie, and where its checkpoints are kept, if not there.
    files: Path
    storage: Storage | None


def kin_of(store: Store, url: str, spec: StudySpec) -> list[Kin]:
    """Return the other studies of a plan's name that trained on real devices, oldest first."""
    found = []
    for name in store.studies() if spec.plan is not None else ():
        try:
            first = next(store.read(name), None)
        except LogError:
            continue  # written by a newer version: whatever it is, it is not the same
        event = None if first is None else first.event
        if name == spec.name or not isinstance(event, Opened) or not trained(event):
            continue
        plan, folder = event.spec.plan, event.engine.get("files") or folder_of(url, name)
        if plan is not None and spec.plan is not None and plan.name == spec.plan.name and folder:
            away = "checkpoints" in event.engine
            kept = storage_of(event, url) if away else None
            found.append(Kin(name, event.spec, Path(folder), kept))
    return found


def warn_of_change(kin: list[Kin], spec: StudySpec, what: str) -> None:
    """Say it where the last study of this plan's name was of another version."""
    if kin and kin[-1].spec.plan != spec.plan:
        warnings.warn(
            f"{what} changed since study {kin[-1].name!r} ({kin[-1].spec.plan} then, {spec.plan} "
            "now): nothing is shared with it.",
            PacelineWarning,
            stacklevel=2,
        )


def taken_over(store: Store, kin: list[Kin], spec: StudySpec, shelf: Shelf) -> Iterator[Adopted]:
    """Yield what studies with the same key and seed know, their checkpoints brought to the shelf.

    A checkpoint is one file with two names where the disk allows it, else a copy: whatever
    becomes of the other study's does not touch this one's.
    """
    gatherer = Gatherer(spec)
    for each in kin:
        if each.spec.plan != spec.plan or each.spec.seed != spec.seed:
            continue

        def bring(there: Name, file: File, here: Name, each: Kin = each) -> bool:
            try:
                _bring(each, name_of(*there), shelf, here)
            except (OSError, CheckpointError):
                return False  # collected meanwhile, or out of reach: it is trained again
            shelf.saved(here, file.digest)
            return True

        state = StudyState()
        try:
            for step in store.read(each.name):
                for entry in step.entries:
                    state.apply(entry)
        except LogError as error:
            word = f"nothing is taken over from study {each.name!r}: {error}"
            warnings.warn(word, PacelineWarning, stacklevel=2)
            continue
        yield from gatherer.take(state, bring)


def _bring(kin: Kin, there: str, shelf: Shelf, here: Name) -> None:
    """Bring a checkpoint of another study here, and to where this one keeps its own."""
    path = shelf.path(here)
    if kin.storage is None:
        _link(kin.files / "checkpoints" / there, path)
    else:
        kin.storage.get(there, str(path))
    if shelf.storage is not None:
        shelf.storage.put(path.name, str(path))
        shelf.cached(here)


def _link(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)  # of a driver that died before it had written a word
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(source, target)


def recalled(store: Store, spec: StudySpec, study: str) -> list[Recalled]:
    """Return what the trials of another study came to, in the order they were opened."""
    others = [name for name in store.studies() if name != spec.name]
    if study not in others:
        raise unknown("study to start from", study, others)
    state, space = folded(store.read(study)), Space(spec.generator.params["space"])
    facts = [
        Recalled(
            at=0.0,
            study=study,
            config=trial.config,
            values=tuple(trial.metric(spec.metric)),
            finished=trial.ended is Status.FINISHED,
        )
        for trial in state.trials
        if spec.metric in trial.metrics and trial.epoch and _within(space, trial.config)
    ]
    if not facts:
        raise SpecError(
            f"warm_start={study!r} gives nothing to learn from: none of its {len(state.trials)} "
            f"trials reported {spec.metric!r} under a config of this study's space."
        )
    return facts


def _within(space: Space, config: Config) -> bool:
    try:
        space.read(config)
    except SpecError:
        return False
    return True
