"""A study's tenancy on a Ray cluster: the connection, its slots, and what nodes are told.

Knows what has to be put together for that, and in which order it is taken apart again.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from paceline.core.errors import SpecError
from paceline.engines.process.engine import LocalEngine
from paceline.engines.process.local.worker_pool import packed
from paceline.engines.process.ray.config import connected, imported
from paceline.engines.process.ray.devices import Places
from paceline.engines.process.ray.forecasters import AT_ONCE
from paceline.engines.process.ray.node_files import Ways
from paceline.engines.process.ray.nodes import Hosts
from paceline.engines.process.ray.placement import Reserve
from paceline.engines.process.ray.worker_pool import Nests

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from paceline.core.ports import Adviser, Storage
    from paceline.core.values import StudySpec
    from paceline.engines.process.checkpoint_files import Shelf
    from paceline.engines.process.ray.config import Ray
    from paceline.engines.process.supervisor import Patience


class RayEngine(LocalEngine):
    """Carries decisions out on a cluster, and ends its tenancy there."""

    # They are made on the cluster, and only waited for here.
    _forecasts_at_once = AT_ONCE

    def __init__(
        self,
        spec: StudySpec,
        tenancy: Tenancy,
        *,
        shelf: Shelf,
        adviser: Adviser | None = None,
        patience: Patience | None = None,
        began: float | None = None,
    ) -> None:
        self._tenancy = tenancy
        super().__init__(
            spec,
            tenancy.nests,
            tenancy.places,
            shelf=shelf,
            adviser=adviser,
            patience=patience,
            began=began,
        )

    def close(self, grace_s: float | None = None) -> None:
        """End everything that still runs, and give the cluster back what was held."""
        if self._closed:
            return
        self._tenancy.rest()
        try:
            super().close(grace_s)
        finally:
            self._tenancy.end()


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
