"""An S3 server for tests in a process of its own, and the environment of its clients."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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


# What S3 answers with each status.
_CODES = {403: "AccessDenied", 500: "InternalError", 503: "SlowDown"}


class FaultyFront(ThreadingHTTPServer):
    """A server before the S3 server that forwards requests, except those that are to fail."""

    daemon_threads = True

    def __init__(self, server: S3Server) -> None:
        super().__init__(("127.0.0.1", 0), _Forwarder)
        self.behind = server.address.removeprefix("http://")
        self.address = f"http://127.0.0.1:{self.server_address[1]}"
        # The methods that fail, and how: with a status, or with 0 by a cut in a file's body.
        self.failing: dict[str, int] = {}
        # How many more requests fail; None: all.
        self.left: int | None = None
        self.failed = 0

    def choose_fault(self, method: str, path: str) -> int | None:
        """Return how a request fails; None: it does not."""
        fault = self.failing.get(method)
        is_list = "list-type=" in path
        if fault is None or self.left == 0 or (fault == 0 and is_list):
            return None
        if self.left is not None:
            self.left -= 1
        self.failed += 1
        return fault


class _Forwarder(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyFront

    def forward(self) -> None:
        body = self._read_body()
        fault = self.server.choose_fault(self.command, self.path)
        if fault:
            code = _CODES[fault]
            text = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>"
            self._answer(fault, [("Content-Type", "application/xml")], text.encode())
            return
        connection = HTTPConnection(self.server.behind, timeout=LIMIT_S)
        headers = {name.lower(): value for name, value in self.headers.items()}
        headers = {name: headers[name] for name in headers.keys() - {"transfer-encoding", "expect"}}
        headers["content-length"] = str(len(body))
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        found = answer.read()
        kept = [pair for pair in answer.getheaders() if pair[0].lower() not in _OWN_HEADERS]
        length = int(answer.headers.get("Content-Length", len(found)))
        connection.close()
        self._answer(answer.status, kept, found, length, cut=fault == 0)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = forward

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass  # trailers
        return body

    def _answer(
        self,
        status: int,
        headers: list[tuple[str, str]],
        body: bytes,
        length: int | None = None,
        *,
        cut: bool = False,
    ) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        self.close_connection = self.close_connection or cut


_OWN_HEADERS = ("content-length", "connection", "transfer-encoding", "server", "date")


@contextmanager
def run_faulty_front(server: S3Server) -> Iterator[FaultyFront]:
    """Start a front of the server inside the block."""
    with FaultyFront(server) as front:
        thread = threading.Thread(target=front.serve_forever, daemon=True)
        thread.start()
        yield front
        front.shutdown()
        thread.join()
