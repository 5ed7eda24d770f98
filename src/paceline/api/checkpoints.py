"""A study's checkpoints as a person looks after them: what there is, and what can go.

Knows where a study's checkpoints lie and compares that with its log. A study that somebody drives
collects by itself: here only what lies around and no log names is deleted, and only where nobody
drives. The JSON of its structs is a contract: `docs/json.md`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from paceline.api.places import storage_of
from paceline.core.errors import SpecError, StudyRunning
from paceline.core.events import Opened
from paceline.machine.inventory import CheckpointRow, inventory_of
from paceline.worker.trial import name_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paceline.core.decisions import Step
    from paceline.core.ports import Store


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
