"""The Ray engine: the same attempts, facts and orders as on one machine, on the nodes of a cluster.

Knows what has to be put together for that, and in which order it is taken apart again. Everything
an attempt does and says is known elsewhere.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from paceline.core.errors import SpecError
from paceline.engines.local.engine import LocalEngine
from paceline.engines.local.nest import packed
from paceline.engines.ray.forecasts import AT_ONCE
from paceline.engines.ray.home import Ways
from paceline.engines.ray.nests import Nests
from paceline.engines.ray.places import Places
from paceline.engines.ray.reserve import Reserve
from paceline.engines.ray.wanted import connected, imported

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from paceline.core.ports import Adviser, Storage
    from paceline.core.values import StudySpec
    from paceline.engines.local.shelf import Shelf
    from paceline.engines.local.staff import Patience
    from paceline.engines.ray.wanted import Ray


class RayEngine(LocalEngine):
    """Carries decisions out on a cluster."""

    # They are made on the cluster, and only waited for here.
    _forecasts_at_once = AT_ONCE

    def __init__(
        self,
        spec: StudySpec,
        train: Callable[[Any], Any],
        wanted: Ray,
        *,
        shelf: Shelf,
        adviser: Adviser | None = None,
        patience: Patience | None = None,
        began: float | None = None,
        mps: bool = False,
    ) -> None:
        _check(wanted.disk, shelf.storage)
        function = packed(train)
        self._connected = connected(wanted)
        self._ray = imported()
        self._mark = shelf.logs / "driver"
        moved = (wanted.runtime_env or {}).get("working_dir")
        ways = _ways(shelf, self._mark, None if moved else os.getcwd(), wanted.disk)
        nests = Nests()
        try:
            self._reserve = Reserve(wanted, nests, function, ways, shelf.storage, mps)
        except BaseException:
            self._disconnect()
            raise
        super().__init__(
            spec,
            nests,
            Places(nests, self._reserve),
            shelf=shelf,
            adviser=adviser,
            patience=patience,
            began=began,
        )

    @property
    def mps(self) -> str:
        """What came of letting trials share GPUs at the same time; empty: nothing was asked."""
        return self._reserve.mps

    def close(self, grace_s: float | None = None) -> None:
        """End everything that still runs, and give the cluster back what was held."""
        if self._closed:
            return
        self._reserve.rest()
        try:
            super().close(grace_s)
        finally:
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
