"""The contract of storages, as tests to inherit.

Knows only the port. Subclass the kit, set `make`, which returns a storage for a `place`, and run
pytest.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from typing import TYPE_CHECKING

import pytest

from paceline.core.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

    from paceline.core.ports import Storage

BODY = bytes(range(256)) * 40


class StorageContract:
    """The contract of every Storage: a stored file is complete until it is deleted."""

    def make(self, place: str) -> Storage:
        """Return a storage; equal places are the same storage, also on another machine."""
        raise NotImplementedError

    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        """An empty storage."""
        return self.make(f"{tmp_path.parent.name}-{tmp_path.name}")

    @pytest.fixture
    def again(self, tmp_path: Path) -> Storage:
        """The same storage, as another machine sees it."""
        return self.make(f"{tmp_path.parent.name}-{tmp_path.name}")

    def test_a_stored_file_comes_back_byte_for_byte(
        self, storage: Storage, again: Storage, tmp_path: Path
    ) -> None:
        storage.put("0-3.ckpt", _file(tmp_path, BODY))
        again.get("0-3.ckpt", str(tmp_path / "back"))
        assert (tmp_path / "back").read_bytes() == BODY

    def test_only_stored_files_are_listed(
        self, storage: Storage, again: Storage, tmp_path: Path
    ) -> None:
        assert list(storage.list()) == []
        storage.put("0-3.ckpt", _file(tmp_path, BODY))
        storage.put("1-12.ckpt", _file(tmp_path, b""))
        found = {stored.name: stored.bytes for stored in again.list()}
        assert found == {"0-3.ckpt": len(BODY), "1-12.ckpt": 0}

    def test_putting_a_name_again_replaces_the_file(self, storage: Storage, tmp_path: Path) -> None:
        storage.put("0-3.ckpt", _file(tmp_path, BODY))
        storage.put("0-3.ckpt", _file(tmp_path, b"shorter"))
        storage.get("0-3.ckpt", str(tmp_path / "back"))
        assert (tmp_path / "back").read_bytes() == b"shorter"
        assert len(storage.list()) == 1

    def test_a_deleted_file_is_gone_and_may_be_deleted_again(
        self, storage: Storage, again: Storage, tmp_path: Path
    ) -> None:
        for name in ("0-3.ckpt", "0-4.ckpt"):
            storage.put(name, _file(tmp_path, BODY))
        storage.delete("0-3.ckpt")
        storage.delete("0-3.ckpt")
        assert [stored.name for stored in again.list()] == ["0-4.ckpt"]
        with pytest.raises(CheckpointError):
            again.get("0-3.ckpt", str(tmp_path / "back"))

    def test_getting_a_missing_file_fails_and_leaves_no_file(
        self, storage: Storage, tmp_path: Path
    ) -> None:
        folder = tmp_path / "cache"
        folder.mkdir()
        with pytest.raises(CheckpointError, match=r"0-9\.ckpt"):
            storage.get("0-9.ckpt", str(folder / "back"))
        assert os.listdir(folder) == []

    def test_a_failed_put_creates_no_name(self, storage: Storage, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match=r"0-9\.ckpt"):
            storage.put("0-9.ckpt", str(tmp_path / "never written"))
        assert list(storage.list()) == []

    def test_a_failed_put_or_get_leaves_the_old_file(
        self, storage: Storage, tmp_path: Path
    ) -> None:
        storage.put("0-3.ckpt", _file(tmp_path, BODY))
        with pytest.raises(CheckpointError):
            storage.put("0-3.ckpt", str(tmp_path / "never written"))
        (tmp_path / "back").write_bytes(b"before")
        with pytest.raises(CheckpointError):
            storage.get("0-9.ckpt", str(tmp_path / "back"))
        assert (tmp_path / "back").read_bytes() == b"before"
        storage.get("0-3.ckpt", str(tmp_path / "back"))
        assert (tmp_path / "back").read_bytes() == BODY

    def test_many_threads_may_use_it_at_once(self, storage: Storage, tmp_path: Path) -> None:
        bodies = {f"{number}-1.ckpt": b"%d" % number * 999 for number in range(12)}

        def there_and_back(name: str) -> bytes:
            path = tmp_path / f"of-{name}"
            path.write_bytes(bodies[name])
            storage.put(name, str(path))
            storage.get(name, str(path))
            return path.read_bytes()

        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(there_and_back, bodies)) == list(bodies.values())
        assert {stored.name for stored in storage.list()} == bodies.keys()

    def test_a_copy_in_another_process_reaches_the_same_files(
        self, storage: Storage, tmp_path: Path
    ) -> None:
        storage.put("0-3.ckpt", _file(tmp_path, BODY))
        copied = deepcopy(storage)
        assert copied.url == storage.url
        assert [stored.name for stored in copied.list()] == ["0-3.ckpt"]


def _file(folder: Path, body: bytes) -> str:
    path = folder / "written"
    path.write_bytes(body)
    return str(path)
