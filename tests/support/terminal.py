"""A terminal for tests: a command on a pty, and the screen that its output makes."""

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

from waiting import LIMIT_S

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_TOKEN = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|(\r)|(\n)|([^\x1b\r\n]+)|(\x1b)")


class Screen:
    """The text on the screen, and everything that was ever written to it."""

    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        self.columns, self.rows = columns, rows
        self.written = ""
        self._lines: list[str] = [""]
        self._row = self._column = 0

    @property
    def text(self) -> str:
        """The used lines of the screen, without trailing blanks."""
        return "\n".join(line.rstrip() for line in self._lines).rstrip("\n") + "\n"

    def feed(self, text: str) -> None:
        """Apply the output of a program. An unknown control sequence fails the test."""
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
            elif command == "K" and args == "2":
                self._lines[self._row] = ""
            elif command == "K":
                self._lines[self._row] = self._lines[self._row][: self._column]
            elif command == "J":
                del self._lines[self._row + 1 :]
                self._lines[self._row] = self._lines[self._row][: self._column]
            else:
                # Colours, and whether the cursor is visible.
                known = command == "m" or args + command in ("?25l", "?25h")
                assert known, f"unknown sequence {args}{command}"

    def _put(self, text: str) -> None:
        line = self._lines[self._row].ljust(self._column)
        self._lines[self._row] = line[: self._column] + text + line[self._column + len(text) :]
        self._column += len(text)
        assert self._column <= self.columns, "a line is wider than the terminal"


class TerminalCommand:
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

    def until(self, words: str | None) -> str:
        """Read until these words were written, or to the end of the output with None."""
        while words is None or words not in self.output:
            ready, _, _ = select.select([self._mine], [], [], LIMIT_S)
            assert ready, f"nothing was written for {LIMIT_S:g} s after: {self.output[-2000:]}"
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
        return self.process.wait(LIMIT_S)
