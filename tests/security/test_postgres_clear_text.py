"""Passwords and logs on their way to a PostgreSQL server: none leaves this machine unencrypted."""

from __future__ import annotations

import select
import socket
import struct
import threading
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING

import pytest
from benchmarks.postgres import SOCKET
from postgres_server import PASSWORD, PASSWORD_USER

from paceline.core.errors import PacelineWarning, StoreError
from paceline.store import open_store, postgres_security
from paceline.testing.stores import make_sample_log

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.postgres import PostgresServer

SECRET = "hunter2"


class FalseServer:
    """A server that asks every client for its password in clear text, and keeps what it gets."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.got = b""
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with client:
                    self._answer(client)

    def _answer(self, client: socket.socket) -> None:
        while body := client.recv(1 << 16):
            self.got += body
            if body[:1] == b"p":
                return  # it has what it asked for
            code = struct.unpack("!I", body[4:8])[0] if len(body) == 8 else 0
            # 80877103 asks for encryption, 80877104 for GSSAPI; 3 is a password in clear text.
            client.sendall(
                b"N" if code in (80877103, 80877104) else struct.pack("!cII", b"R", 8, 3)
            )

    def close(self) -> None:
        """Stop listening."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this machine's addresses count as those of another machine."""
    monkeypatch.setattr(postgres_security, "is_local", lambda host: host.startswith("/"))
    for name in ("PGSSLMODE", "PGREQUIREAUTH", "PGHOST"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def false_server() -> Iterator[FalseServer]:
    """A server of somebody else."""
    server = FalseServer()
    yield server
    server.close()


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("query", ["", "?sslmode=prefer", "?sslmode=allow"])
def test_a_password_is_not_sent_in_clear_text_to_another_machine(
    false_server: FalseServer, query: str
) -> None:
    url = f"postgresql://me:{SECRET}@127.0.0.1:{false_server.port}/db{query}"
    with pytest.raises(StoreError, match=r"password in clear text: add sslmode=verify-full"):
        open_store(url, create=True)
    assert false_server.got
    assert SECRET.encode() not in false_server.got


@pytest.mark.usefixtures("elsewhere")
def test_sslmode_of_the_url_reaches_the_driver(false_server: FalseServer) -> None:
    url = f"postgresql://me:{SECRET}@127.0.0.1:{false_server.port}/db?sslmode=require"
    with pytest.raises(StoreError, match=r"does not offer the encryption that sslmode asks for"):
        open_store(url, create=True)
    assert SECRET.encode() not in false_server.got


@pytest.mark.usefixtures("elsewhere")
def test_a_password_is_sent_in_clear_text_if_the_url_says_so(false_server: FalseServer) -> None:
    url = f"postgresql://me:{SECRET}@127.0.0.1:{false_server.port}/db?require_auth=password"
    with pytest.raises(StoreError):
        open_store(url, create=True)
    assert SECRET.encode() in false_server.got


@pytest.mark.parametrize(("kind", "works"), [("scram-sha-256", True), ("none", False)])
def test_require_auth_of_the_url_reaches_the_driver(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, kind: str, *, works: bool
) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    url = f"{postgres.url(PASSWORD_USER)}&require_auth={kind}"
    if works:
        with closing(open_store(url, create=True)) as store:
            store.append("study", make_sample_log())
    else:
        with pytest.raises(StoreError, match="a kind of authentication that was refused"):
            open_store(url, create=True)


@contextmanager
def forward_to(postgres: PostgresServer) -> Iterator[int]:
    """Yield a port of this machine that leads to the server's socket."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def serve() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                threads.append(threading.Thread(target=copy, args=(client, postgres)))
                threads[-1].start()

    threads.append(threading.Thread(target=serve))
    threads[0].start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for thread in threads:
            thread.join()


def copy(client: socket.socket, postgres: PostgresServer) -> None:
    """Copy between a client and the server until one of them closes the connection."""
    with client, socket.socket(socket.AF_UNIX) as server:
        server.connect(str(postgres.folder / SOCKET))
        while True:
            for source in select.select([client, server], [], [])[0]:
                body = source.recv(1 << 16)
                if not body:
                    return
                (server if source is client else client).sendall(body)


@pytest.mark.usefixtures("elsewhere")
def test_a_connection_in_clear_text_to_another_machine_warns_once(
    postgres: PostgresServer, recwarn: pytest.WarningsRecorder
) -> None:
    options = postgres.url().partition("options=")[2]
    with forward_to(postgres) as port:
        url = f"postgresql://paceline@127.0.0.1:{port}/postgres?options={options}"
        for _ in range(2):
            open_store(url, create=True).close()
        open_store(f"{url}&sslmode=disable", create=True).close()
    found = [str(each.message) for each in recwarn if each.category is PacelineWarning]
    assert len(found) == 1
    assert found[0].startswith("the connection to postgresql://paceline@127.0.0.1")
    assert "is not encrypted" in found[0]
    assert "add sslmode=verify-full to the URL" in found[0]


def test_a_connection_on_this_machine_does_not_warn(
    postgres: PostgresServer, recwarn: pytest.WarningsRecorder
) -> None:
    with forward_to(postgres) as port:
        options = postgres.url().partition("options=")[2]
        open_store(
            f"postgresql://paceline@127.0.0.1:{port}/postgres?options={options}", create=True
        ).close()
    assert not [each for each in recwarn if each.category is PacelineWarning]
