"""An S3 server for tests in a process of its own, and the environment of its clients."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.request import Request, urlopen

from waiting import LIMIT_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BUCKET = "trained"
_LISTENS = re.compile(r"http://127\.0\.0\.1:(\d+)")


class S3Server:
    """A server that listens on a free port."""

    def __init__(self, process: subprocess.Popen[bytes], address: str) -> None:
        self._process = process
        self.address = address

    @property
    def environ(self) -> dict[str, str]:
        """Environment variables that lead a client to the server."""
        return {
            "AWS_ENDPOINT_URL": self.address,
            "AWS_ACCESS_KEY_ID": "tester",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Pause the server inside the block, so that it does not answer."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the server."""
        self._process.kill()
        self._process.wait()


@contextmanager
def run_s3_server(folder: Path) -> Iterator[S3Server]:
    """Start a server with one empty bucket; kill it at the end of the block."""
    log = folder / "server.log"
    with (
        open(log, "wb") as file,
        subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-p", "0"], stdout=file, stderr=file
        ) as process,
    ):
        try:
            wait_for(
                lambda: process.poll() is not None or bool(_LISTENS.search(log.read_text())),
                "the S3 server to listen",
            )
            found = _LISTENS.search(log.read_text())
            assert found is not None, log.read_text()
            server = S3Server(process, found[0])
            urlopen(Request(f"{server.address}/{BUCKET}", method="PUT"), timeout=LIMIT_S).close()
            yield server
        finally:
            process.kill()
