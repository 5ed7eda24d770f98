"""A PostgreSQL server for tests: a cluster of their own, on a socket in a folder of its own.

Nothing of the system's own servers is touched. Where PostgreSQL is not installed, tests that need
it are skipped with a word.
"""

from __future__ import annotations

import os
import select
import shutil
import socket
import subprocess
import tempfile
import threading
from contextlib import suppress
from glob import glob
from itertools import count
from pathlib import Path
from typing import Any, Self

import psycopg
import pytest

# Who the tests are to the server, and one whom it asks for a password.
USER, WALLED, PASSWORD = "paceline", "walled", "open sesame"
_ACCESS = f"local all {WALLED} scram-sha-256\nlocal all all trust\n"
# What a crash of the machine would cost is nobody's concern here; what a killed process costs is.
_SETTINGS = ["listen_addresses=''", "fsync=off", "shared_buffers=16MB", "max_connections=60"]
_SOCKET = ".s.PGSQL.5432"


def programs() -> Path:
    """Return the folder of the server's programs; skip where there is none."""
    found = shutil.which("initdb")
    folders = sorted(glob("/usr/lib/postgresql/*/bin"), key=lambda path: int(path.split("/")[-2]))
    if found is None and not folders:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    return Path(folders[-1]) if folders else Path(found or "").resolve().parent


class Cluster:
    """A server that runs from construction to `close`."""

    def __init__(self) -> None:
        self._programs = programs()
        # Not below pytest's folders, which the server's user may not enter.
        self.folder = Path(tempfile.mkdtemp(prefix="paceline-pg-"))
        # It refuses to run as root.
        self._user: dict[str, Any] = {}
        if os.getuid() == 0:
            self._user = {"user": "postgres", "group": "postgres", "extra_groups": []}
            shutil.chown(self.folder, "postgres", "postgres")
        self._data = self.folder / "data"
        try:
            self._run("initdb", "-D", self._data, "-U", USER, "-A", "trust", "-N", "-E", "UTF8")
            (self._data / "pg_hba.conf").write_text(_ACCESS)
            self.start()
            with self.connected() as connection:
                connection.execute(f"CREATE ROLE {WALLED} LOGIN PASSWORD '{PASSWORD}'")
        except BaseException:
            shutil.rmtree(self.folder)
            raise
        self._numbers = count()

    def start(self) -> None:
        """Start the server and wait until it answers."""
        settings = [*_SETTINGS, f"unix_socket_directories={self.folder}"]
        given = " ".join(f"-c {each}" for each in settings)
        log = self.folder / "log"
        self._run("pg_ctl", "-D", self._data, "-l", log, "-w", "-o", given, "start")

    def stop(self) -> None:
        """End the server at once, as a crash would."""
        self._run("pg_ctl", "-D", self._data, "-m", "immediate", "-w", "stop")

    def close(self) -> None:
        """Leave nothing behind."""
        self.stop()
        shutil.rmtree(self.folder)

    def connected(self) -> psycopg.Connection[Any]:
        """Return a connection of the tests' own."""
        return psycopg.connect(host=str(self.folder), user=USER, dbname="postgres", autocommit=True)

    def url(self, user: str = USER) -> str:
        """Return the address of a new and empty place for a store."""
        schema = f"place_{next(self._numbers)}"
        with self.connected() as connection:
            connection.execute(f"CREATE SCHEMA {schema}")
            connection.execute(f"GRANT ALL ON SCHEMA {schema} TO {WALLED}")
        return f"postgresql://{user}@/postgres?host={self.folder}&options=-csearch_path%3D{schema}"

    def end_sessions(self) -> int:
        """End every session of a driver, as a network that breaks down does; return how many."""
        with self.connected() as connection:
            ended = connection.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
                "WHERE application_name LIKE 'paceline, %'"
            ).fetchall()
        return len(ended)

    def _run(self, program: str, *arguments: str | Path) -> None:
        command = [self._programs / program, *arguments]
        # Into a file: the server that one of them starts would keep a pipe open.
        said = self.folder / "said"
        with said.open("w") as file:
            done = subprocess.run(
                command, cwd=self.folder, stdout=file, stderr=file, check=False, **self._user
            )
        assert done.returncode == 0, said.read_text()


class Cutter:
    """Stands between a store and the server, and cuts the line where steps are committed."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._server = str(cluster.folder / _SOCKET)
        self._folder = folder
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(str(folder / _SOCKET))
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
                    wrote |= b"INSERT INTO paceline_steps" in words
                    if end is client and wrote and b"COMMIT" in words and self.deliver is not None:
                        if self.deliver:
                            server.sendall(words)
                            assert b"COMMIT" in server.recv(1 << 20)
                        self.deliver = None
                        return
                    other.sendall(words)
