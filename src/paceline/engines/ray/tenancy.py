"""A study's tenancy on a Ray cluster: the connection, its slots, and what nodes are told.

Knows what has to be put together for that, and in which order it is taken apart again.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from paceline.core.errors import SpecError
from paceline.engines.local.nest import packed
from paceline.engines.ray.home import Ways
from paceline.engines.ray.hosts import Hosts
from paceline.engines.ray.nests import Nests
from paceline.engines.ray.places import Places
from paceline.engines.ray.reserve import Reserve
from paceline.engines.ray.wanted import connected, imported

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from paceline.core.ports import Storage
    from paceline.engines.local.shelf import Shelf
    from paceline.engines.ray.wanted import Ray


class Tenancy:
    """What a study has of a cluster, from its beginning to its end."""

    def __init__(
        self, wanted: Ray, train: Callable[[Any], Any], shelf: Shelf, *, mps: bool = False
    ) -> None:
        _check(wanted.disk, shelf.storage)
        function = packed(train)
        self._connected = connected(wanted)
        self._ray = imported()
        self._mark = shelf.logs / "driver"
        moved = (wanted.runtime_env or {}).get("working_dir")
        ways = _ways(shelf, self._mark, None if moved else os.getcwd(), wanted.disk)
        self.nests = Nests()
        try:
            hosts = Hosts(function, ways, shelf.storage)
            self._reserve = Reserve(wanted, self.nests, hosts, mps=mps)
        except BaseException:
            self._disconnect()
            raise
        self.places = Places(self.nests, self._reserve)

    @property
    def mps(self) -> str:
        """What came of letting trials share GPUs at the same time; empty: nothing was asked."""
        return self._reserve.mps

    def rest(self) -> None:
        """Take in nothing more."""
        self._reserve.rest()

    def end(self) -> None:
        """Give the cluster back what was held."""
        self._reserve.give_back()
        self._disconnect()

    def _disconnect(self) -> None:
        self._mark.unlink(missing_ok=True)
        if self._connected:
            self._ray.shutdown()


def _check(disk: str | None, storage: Storage | None) -> None:
    """Refuse a disk from which nothing is published."""
    if disk is not None and storage is None:
        raise SpecError(
            f"disk={disk!r} keeps nothing for good: give checkpoints=… in a storage, or no disk."
        )


def _ways(shelf: Shelf, mark: Path, cwd: str | None, disk: str | None) -> Ways:
    """Return what nodes are told to look for; by the mark they know the study's folder."""
    word = uuid4().hex
    mark.write_text(word)
    storage = shelf.storage
    return Ways(
        files=str(shelf.checkpoints.resolve()),
        mark=str(mark.resolve()),
        word=word,
        cwd=cwd,
        url="" if storage is None else storage.url,
        storage=None if storage is None else imported().put(storage),
        cache_bytes=shelf.cache_bytes,
        disk=disk,
    )
