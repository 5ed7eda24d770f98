"""Studies by name in a store: whether one is there, whether it lives, and how to reach it.

Knows claims and inboxes. A study lives while a driver holds it; that dies with its process.
"""

from __future__ import annotations

from contextlib import closing
from itertools import count
from typing import TYPE_CHECKING

from paceline.api.studies import folded, opened, spec_of
from paceline.core.errors import SpecError, StoreError, StudyRunning
from paceline.core.events import ChangeSlots, Opened
from paceline.store import open_store, path_of, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.events import Command
    from paceline.core.ports import Store


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
