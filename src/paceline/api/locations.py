"""Where a study's checkpoints and output lie, as its options say, or its log where it goes on.

Knows what is written into the log for that, so that whoever takes the study up finds them. Opens
storages; puts nothing into them.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from paceline.core.errors import SpecError
from paceline.store import folder_of, safe_name
from paceline.store.storage import Folder, open_storage

if TYPE_CHECKING:
    from paceline.api.options import Options
    from paceline.core.events import Opened
    from paceline.core.ports import Storage
    from paceline.core.values import Value

# What the copies on this machine may take of checkpoints that are kept elsewhere.
CACHE_BYTES = 10 * 10**9


class Places:
    """Where one study's files are: here, and perhaps elsewhere."""

    def __init__(self, study: str, options: Options, opened: Opened | None) -> None:
        told = {} if opened is None else opened.engine
        self.files = _files(study, options, told)
        self._given = "files" in options
        # Where checkpoints are kept, if not among the files.
        self.address = _address(study, options, told, begun=opened is not None)
        self.storage = None if self.address is None else open_storage(self.address)
        self.cache_bytes: int = options.get("cache_bytes", CACHE_BYTES)

    @property
    def told(self) -> dict[str, Value]:
        """What goes into the log, for whoever goes on or looks."""
        told: dict[str, Value] = {}
        if self._given:
            told["files"] = str(self.files.resolve())
        if self.address is not None:
            told["checkpoints"] = self.address
        return told


def trained(opened: Opened) -> bool:
    """Say whether a study trains on real devices, rather than in the simulator."""
    return not opened.engine.keys().isdisjoint(("local", "ray"))


def storage_of(opened: Opened, url: str) -> Storage | None:
    """Return where a study of this store keeps its checkpoints; None: it was simulated."""
    if "checkpoints" in opened.engine:
        return open_storage(opened.engine["checkpoints"])
    if not trained(opened):
        return None
    files = opened.engine.get("files")
    folder = Path(files) if files is not None else folder_of(url, opened.spec.name)
    return None if folder is None else Folder(folder / "checkpoints")


def _files(study: str, options: Options, told: dict[str, Value]) -> Path:
    given = options.get("files") or told.get("files")
    if given is not None:
        return Path(given)
    url = options.get("store")
    beside = None if url is None else folder_of(url, study)
    return beside or Path(tempfile.mkdtemp(prefix="paceline-"))


def _address(study: str, options: Options, told: dict[str, Value], *, begun: bool) -> str | None:
    given = options.get("checkpoints")
    base = None if given is None else _base(str(given))
    if not begun:
        # Studies of the same name, in other stores, may keep theirs under the same address.
        return None if base is None else f"{base}/{safe_name(study)}-{uuid4().hex[:8]}"
    known: str | None = told.get("checkpoints")
    before = None if known is None else known.rpartition("/")[0]
    if base is not None and base != before:
        where = "among its files" if known is None else f"in {before}"
        raise SpecError(
            f"study {study!r} keeps its checkpoints {where}, not in {base}: leave `checkpoints` as "
            "it was, or give the study another name."
        )
    return known


def _base(given: str) -> str:
    if not given.strip("/"):
        raise SpecError(
            f"checkpoints={given!r} names no place: give a path, or s3://bucket/prefix."
        )
    return given.rstrip("/") if "://" in given else str(Path(given).absolute())
