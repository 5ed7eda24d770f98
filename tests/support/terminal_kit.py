"""A terminal for tests: runs a command on a pty and shows what a person would see."""

from __future__ import annotations

import os
import pty
import re
import select
import struct
import subprocess
import termios
from fcntl import ioctl
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_TOKEN = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|(\r)|(\n)|([^\x1b\r\n]+)|(\x1b)")


class Glass:
    """What stands on the screen, and everything that was ever written to it."""

    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        self.columns, self.rows = columns, rows
        self.written = ""
        # Frames: the screen as it stood after each write.
        self._lines: list[str] = [""]
        self._row = self._column = 0

    @property
    def text(self) -> str:
        """The screen from its first line that was used, without blanks at the ends of lines."""
        return "\n".join(line.rstrip() for line in self._lines).rstrip("\n") + "\n"

    def feed(self, text: str) -> None:
        """Take what a program writes. Sequences it does not know are a failed test."""
        self.written += text
        for args, command, back, down, plain, broken in _TOKEN.findall(text):
            assert not broken, "half a control sequence"
            if back:
                self._column = 0
            elif down:
                self._row, self._column = self._row + 1, 0
                if self._row == len(self._lines):
                    self._lines.append("")
            elif plain:
                self._put(plain)
            elif command == "A":
                self._row -= int(args or 1)
                assert self._row >= 0, "the cursor left the screen"
            elif command == "K":
                self._lines[self._row] = self._lines[self._row][: self._column]
            elif command == "J":
                del self._lines[self._row + 1 :]
                self._lines[self._row] = self._lines[self._row][: self._column]
            else:
                assert command == "m", f"unknown sequence {args}{command}"

    def _put(self, text: str) -> None:
        line = self._lines[self._row].ljust(self._column)
        self._lines[self._row] = line[: self._column] + text + line[self._column + len(text) :]
        self._column += len(text)
        assert self._column <= self.columns, "a line is wider than the terminal"


class OnTerminal:
    """A command on a pty of its own."""

    def __init__(
        self,
        command: Sequence[str | Path],
        folder: Path,
        environ: Mapping[str, str],
        size: tuple[int, int] = (100, 30),
    ) -> None:
        columns, rows = size
        self._mine, theirs = pty.openpty()
        ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env={**environ, "TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": str(rows)},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.output = ""

    def until(self, words: str | None, patience_s: float = 60.0) -> str:
        """Read until these words were written, or to the end where there are none."""
        while words is None or words not in self.output:
            ready, _, _ = select.select([self._mine], [], [], patience_s)
            assert ready, f"nothing more is written; so far: {self.output[-2000:]}"
            try:
                read = os.read(self._mine, 65536)
            except OSError:  # the other end is closed
                read = b""
            if not read:
                assert words is None, f"{words!r} was never written: {self.output[-2000:]}"
                break
            self.output += read.decode()
        return self.output

    def close(self) -> int:
        """Wait for the command and return its exit code."""
        self.until(None)
        os.close(self._mine)
        return self.process.wait(60)
