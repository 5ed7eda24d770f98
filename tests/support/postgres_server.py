"""A PostgreSQL server for tests, and a proxy that cuts connections to it.

Tests that need PostgreSQL are skipped with a message if it is not installed.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Self

import pytest
from benchmarks.postgres import SOCKET, PostgresServer, find_programs

if TYPE_CHECKING:
    from pathlib import Path

# A user that needs a password.
PASSWORD_USER, PASSWORD = "secured", "open sesame"
_ACCESS = f"local all {PASSWORD_USER} scram-sha-256\nlocal all all trust\n"


def start_postgres() -> PostgresServer:
    """Start a server for tests; skip the test if PostgreSQL is not installed."""
    if find_programs() is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    # Without fsync: tests kill processes, not the machine.
    postgres = PostgresServer(durable=False, access=_ACCESS)
    with postgres.connect() as connection:
        connection.execute(f"CREATE ROLE {PASSWORD_USER} LOGIN PASSWORD '{PASSWORD}'")
    return postgres


def get_schema(url: str) -> str:
    """Return the schema in a URL of the server."""
    return url.rpartition("%3D")[2]


def end_sessions(postgres: PostgresServer) -> int:
    """End every session of a driver, as a broken network does; return how many."""
    with postgres.connect() as connection:
        ended = connection.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            "WHERE application_name LIKE 'paceline, %'"
        ).fetchall()
    return len(ended)


class CuttingProxy:
    """A proxy between a store and the server that cuts the connection at a commit."""

    def __init__(self, postgres: PostgresServer, folder: Path) -> None:
        self._server = str(postgres.folder / SOCKET)
        self._folder = folder
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / SOCKET))
        self._listener.listen()
        # Whether the next commit is forwarded before the connection is cut; None: do not cut.
        self.deliver: bool | None = None
        threading.Thread(target=self._serve, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def url(self, direct: str) -> str:
        """Return the URL of the same schema through this proxy."""
        return direct.replace(os.path.dirname(self._server), str(self._folder))

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        wrote = False
        with client, socket.socket(socket.AF_UNIX) as server:
            server.connect(self._server)
            while True:
                ready, _, _ = select.select([client, server], [], [])
                for end, other in ((client, server), (server, client)):
                    if end not in ready:
                        continue
                    data = end.recv(1 << 20)
                    if not data:
                        return
                    wrote |= b"INSERT INTO paceline_" in data
                    if end is client and wrote and b"COMMIT" in data and self.deliver is not None:
                        if self.deliver:
                            server.sendall(data)
                            assert b"COMMIT" in server.recv(1 << 20)
                        self.deliver = None
                        return
                    other.sendall(data)
