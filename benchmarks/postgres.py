"""A private PostgreSQL server for benchmarks and tests, in a new folder.

Creates, starts, stops and removes it. Does not touch the system's own servers.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from glob import glob
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psycopg

USER = "paceline"
SOCKET = ".s.PGSQL.5432"
_SETTINGS = ("listen_addresses=''", "max_connections=60")


def find_programs() -> Path | None:
    """Return the folder of PostgreSQL's programs; None if it is not installed."""
    folders = sorted(glob("/usr/lib/postgresql/*/bin"), key=lambda path: int(path.split("/")[-2]))
    found = shutil.which("initdb")
    if folders:
        return Path(folders[-1])
    return None if found is None else Path(found).resolve().parent


class PostgresServer:
    """A server that runs from construction to `close`.

    With `durable`, commits survive a power cut. `access` is written to its pg_hba.conf.
    """

    def __init__(self, *, durable: bool = True, access: str = "local all all trust\n") -> None:
        folder = find_programs()
        if folder is None:
            raise FileNotFoundError("PostgreSQL is not installed: apt-get install postgresql")
        self._programs = folder
        # A folder that the server's user may enter, short enough for a socket path.
        self.folder = Path(tempfile.mkdtemp(prefix="paceline-pg-"))
        # It refuses to run as root.
        self._user: dict[str, Any] = {}
        if os.getuid() == 0:
            self._user = {"user": "postgres", "group": "postgres", "extra_groups": []}
            shutil.chown(self.folder, "postgres", "postgres")
        self._data = self.folder / "data"
        self._durable = durable
        self._numbers = count()
        try:
            self.run("initdb", "-D", self._data, "-U", USER, "-A", "trust", "-N", "-E", "UTF8")
            (self._data / "pg_hba.conf").write_text(access)
            self.start()
        except BaseException:
            shutil.rmtree(self.folder)
            raise

    def start(self) -> None:
        """Start the server and wait until it answers."""
        sync = "fsync=on" if self._durable else "fsync=off"
        settings = [*_SETTINGS, sync, f"unix_socket_directories={self.folder}"]
        given = " ".join(f"-c {each}" for each in settings)
        log = self.folder / "log"
        self.run("pg_ctl", "-D", self._data, "-l", log, "-w", "-o", given, "start")

    def stop(self) -> None:
        """Stop the server at once, as a crash would."""
        self.run("pg_ctl", "-D", self._data, "-m", "immediate", "-w", "stop")

    def close(self) -> None:
        """Stop the server and remove its folder."""
        self.stop()
        shutil.rmtree(self.folder)

    def connect(self) -> psycopg.Connection[Any]:
        """Return a connection that commits each statement."""
        import psycopg

        return psycopg.connect(host=str(self.folder), user=USER, dbname="postgres", autocommit=True)

    def url(self, user: str = USER) -> str:
        """Return the URL of a new and empty schema for a store."""
        schema = f"place_{next(self._numbers)}"
        with self.connect() as connection:
            connection.execute(f"CREATE SCHEMA {schema}")
            connection.execute(f"GRANT ALL ON SCHEMA {schema} TO {user}")
        return f"postgresql://{user}@/postgres?host={self.folder}&options=-csearch_path%3D{schema}"

    def run(self, program: str, *arguments: str | Path, text: str = "") -> str:
        """Run one of PostgreSQL's programs as the server's user; return its output."""
        command = [self._programs / program, *arguments]
        # Output goes to a file: the server that a program starts would keep a pipe open.
        output_file = self.folder / "output"
        with output_file.open("w") as file:
            done = subprocess.run(
                command,
                cwd=self.folder,
                input=text,
                text=True,
                stdout=file,
                stderr=subprocess.STDOUT,
                check=False,
                **self._user,
            )
        output = output_file.read_text()
        if done.returncode:
            raise RuntimeError(f"{program} failed: {output}")
        return output
