"""A PostgreSQL server for tests, and a line to it that can be cut.

Where PostgreSQL is not installed, tests that need it are skipped with a word.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Self

import pytest
from benchmarks.postgres import SOCKET, Cluster, programs

if TYPE_CHECKING:
    from pathlib import Path

# A user whom the server asks for a password.
WALLED, PASSWORD = "walled", "open sesame"
_ACCESS = f"local all {WALLED} scram-sha-256\nlocal all all trust\n"


def tests_cluster() -> Cluster:
    """Return a server of the tests' own; skip where PostgreSQL is not installed."""
    if programs() is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    # What a crash of the machine would cost is nobody's concern here; of a process, it is.
    cluster = Cluster(durable=False, access=_ACCESS)
    with cluster.connected() as connection:
        connection.execute(f"CREATE ROLE {WALLED} LOGIN PASSWORD '{PASSWORD}'")
    return cluster


def schema_of(url: str) -> str:
    """Return the schema that an address of the cluster leads to."""
    return url.rpartition("%3D")[2]


def end_sessions(cluster: Cluster) -> int:
    """End every session of a driver, as a network that breaks down does; return how many."""
    with cluster.connected() as connection:
        ended = connection.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            "WHERE application_name LIKE 'paceline, %'"
        ).fetchall()
    return len(ended)


class Cutter:
    """Stands between a store and the server, and cuts the line where steps are committed."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._server = str(cluster.folder / SOCKET)
        self._folder = folder
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(str(folder / SOCKET))
        self._door.listen()
        # Whether the next commit is let through before the line is cut; None: leave it alone.
        self.deliver: bool | None = None
        threading.Thread(target=self._serve, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._door.close()

    def url(self, direct: str) -> str:
        """Return the address of the same place, by way of this."""
        return direct.replace(os.path.dirname(self._server), str(self._folder))

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._door.accept()
                threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        wrote = False
        with client, socket.socket(socket.AF_UNIX) as server:
            server.connect(self._server)
            while True:
                ready, _, _ = select.select([client, server], [], [])
                for end, other in ((client, server), (server, client)):
                    if end not in ready:
                        continue
                    words = end.recv(1 << 20)
                    if not words:
                        return
                    wrote |= b"INSERT INTO paceline_" in words
                    if end is client and wrote and b"COMMIT" in words and self.deliver is not None:
                        if self.deliver:
                            server.sendall(words)
                            assert b"COMMIT" in server.recv(1 << 20)
                        self.deliver = None
                        return
                    other.sendall(words)
