"""A disk of a few hundred kilobytes that fills up and can be made read-only."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class SmallDisk:
    """A file system in memory, mounted at a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self) -> None:
        """Leave no room."""
        with open(self.folder / "filling", "wb", buffering=0) as file:
            for size in (1 << 16, 1 << 12, 1):
                while _write(file.fileno(), size):
                    pass

    def free(self) -> None:
        """Give back the room that `fill` took."""
        (self.folder / "filling").unlink()

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """Let nothing be written inside the block."""
        _mount("-o", "remount,ro", str(self.folder))
        try:
            yield
        finally:
            _mount("-o", "remount,rw", str(self.folder))


def _write(descriptor: int, size: int) -> bool:
    try:
        os.write(descriptor, bytes(size))
    except OSError:
        return False
    return True


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


@contextmanager
def mount_small_disk(folder: Path, kilobytes: int = 600) -> Iterator[SmallDisk]:
    """Mount such a disk; skip the test where that is not allowed."""
    folder.mkdir()
    try:
        _mount("-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder))
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting a file system needs root")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True, capture_output=True)
