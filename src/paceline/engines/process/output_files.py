"""The output of a study's attempts: a file each, and one packed file for those that ended long ago.

Knows names and the form of the packed file. An attempt that prints nothing leaves no file, so that
thousands of short trials do not fill a folder.
"""

from __future__ import annotations

import os
import re
from collections import deque
from typing import IO, TYPE_CHECKING

from paceline.worker.atomic_file import open_regular_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from paceline.core.values import AttemptId

PACKED = "packed.log"
# How many attempts that have ended keep a file of their own.
MOST_FILES = 1000
# A larger file is not copied into the packed one.
_MOST_BYTES = 1_000_000

_NAME = re.compile(r"attempt-(\d+)\.log")
_HEADER = re.compile(rb"--- attempt (\d+), (\d+) bytes\n")
_LONGEST_HEADER = 80


def is_output(name: str) -> bool:
    """Return whether a file of this name in the folder of the outputs is one of them."""
    return name == PACKED or _NAME.fullmatch(name) is not None


class OutputFiles:
    """The folder of the outputs. The driver is the only one that packs."""

    def __init__(self, folder: Path, most_files: int = MOST_FILES) -> None:
        self._folder = folder
        self._most_files = most_files
        # Attempts that have ended and have a file of their own, the oldest first.
        self._ended: deque[AttemptId] | None = None

    def path(self, attempt: AttemptId) -> Path:
        """Return the file that an attempt writes to."""
        return self._folder / f"attempt-{attempt}.log"

    def finish(self, attempt: AttemptId) -> None:
        """Take note that an attempt has ended; without effect if the disk is full or gone."""
        try:
            if not self.path(attempt).stat().st_size:
                self.path(attempt).unlink()
                return
            if self._ended is None:
                self._cut_packed()
                self._ended = deque(sorted(set(self._list_numbers()) - {attempt}))
            self._ended.append(attempt)
            while len(self._ended) > self._most_files:
                self._pack(self._ended.popleft())
        except OSError:
            return

    def read(self, attempt: AttemptId, after: int = 0) -> bytes | None:
        """Return an attempt's output beyond its first bytes; None: there is none here."""
        try:
            with open_regular_file(self.path(attempt)) as file:
                file.seek(after)
                return bytes(file.read())
        except OSError:
            pass
        try:
            with open_regular_file(self._folder / PACKED) as file:
                for number, start, size in _list_entries(file):
                    if number == attempt:
                        file.seek(start + min(after, size))
                        return bytes(file.read(size - min(after, size)))
        except OSError:
            pass
        return None

    def _list_numbers(self) -> Iterator[AttemptId]:
        for entry in os.scandir(self._folder):
            found = _NAME.fullmatch(entry.name)
            if found is not None:
                yield int(found[1])

    def _pack(self, attempt: AttemptId) -> None:
        path = self.path(attempt)
        with open_regular_file(path) as file:
            body = file.read(_MOST_BYTES + 1)
        if len(body) > _MOST_BYTES:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        with open_regular_file(self._folder / PACKED, flags, "ab") as packed:
            packed.write(b"--- attempt %d, %d bytes\n%b\n" % (attempt, len(body), body))
        path.unlink()

    def _cut_packed(self) -> None:
        """Cut off an entry that a killed driver has not written to its end."""
        path = self._folder / PACKED
        if not path.exists():
            return
        with open_regular_file(path, os.O_RDWR, "r+b") as file:
            end = 0
            for _, start, size in _list_entries(file):
                end = start + size + 1
            file.truncate(end)


def _list_entries(file: IO[bytes]) -> Iterator[tuple[AttemptId, int, int]]:
    """Yield attempt, place and size of each complete entry of a packed file."""
    whole, at = file.seek(0, os.SEEK_END), 0
    while at < whole:
        file.seek(at)
        header = _HEADER.fullmatch(file.readline(_LONGEST_HEADER))
        if header is None:
            return
        start, size = file.tell(), int(header[2])
        at = start + size + 1
        if at > whole:
            return
        yield int(header[1]), start, size
