"""An S3 server for tests, as a process of its own, and what it takes to reach it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.request import Request, urlopen

from live_kit import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BUCKET = "trained"
_LISTENS = re.compile(r"http://127\.0\.0\.1:(\d+)")


class Server:
    """A server that listens on a port of its own."""

    def __init__(self, process: subprocess.Popen[bytes], address: str) -> None:
        self._process = process
        self.address = address

    @property
    def environ(self) -> dict[str, str]:
        """What tells a client where it is, as users would."""
        return {
            "AWS_ENDPOINT_URL": self.address,
            "AWS_ACCESS_KEY_ID": "somebody",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Let it answer nobody for a while."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it as a power cut would."""
        self._process.kill()
        self._process.wait()


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """Start a server with one empty bucket, and end it in the end."""
    log = folder / "server.log"
    with (
        open(log, "wb") as file,
        subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-p", "0"], stdout=file, stderr=file
        ) as process,
    ):
        try:
            wait_for(lambda: process.poll() is not None or bool(_LISTENS.search(log.read_text())))
            found = _LISTENS.search(log.read_text())
            assert found is not None, log.read_text()
            server = Server(process, found[0])
            urlopen(Request(f"{server.address}/{BUCKET}", method="PUT")).close()
            yield server
        finally:
            process.kill()
