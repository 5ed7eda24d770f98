"""A PostgreSQL server of one's own, for benchmarks and tests: a cluster in a new folder.

Knows how to make, start, stop and remove it. Nothing of the system's own servers is touched.
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


def programs() -> Path | None:
    """Return the folder of the server's programs; None where it is not installed."""
    folders = sorted(glob("/usr/lib/postgresql/*/bin"), key=lambda path: int(path.split("/")[-2]))
    found = shutil.which("initdb")
    if folders:
        return Path(folders[-1])
    return None if found is None else Path(found).resolve().parent


class Cluster:
    """A server that runs from construction to `close`.

    What a `durable` one commits survives a power cut. `access` is written to its pg_hba.conf.
    """

    def __init__(self, *, durable: bool = True, access: str = "local all all trust\n") -> None:
        folder = programs()
        if folder is None:
            raise FileNotFoundError("PostgreSQL is not installed: apt-get install postgresql")
        self._programs = folder
        # A place that the server's user may enter, and a name that a socket's may be as long as.
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
        """End the server at once, as a crash would."""
        self.run("pg_ctl", "-D", self._data, "-m", "immediate", "-w", "stop")

    def close(self) -> None:
        """Leave nothing behind."""
        self.stop()
        shutil.rmtree(self.folder)

    def connected(self) -> psycopg.Connection[Any]:
        """Return a connection that commits each statement."""
        import psycopg

        return psycopg.connect(host=str(self.folder), user=USER, dbname="postgres", autocommit=True)

    def url(self, user: str = USER) -> str:
        """Return the address of a new and empty place for a store."""
        schema = f"place_{next(self._numbers)}"
        with self.connected() as connection:
            connection.execute(f"CREATE SCHEMA {schema}")
            connection.execute(f"GRANT ALL ON SCHEMA {schema} TO {user}")
        return f"postgresql://{user}@/postgres?host={self.folder}&options=-csearch_path%3D{schema}"

    def run(self, program: str, *arguments: str | Path, text: str = "") -> str:
        """Run one of the server's programs as its user; return what it said."""
        command = [self._programs / program, *arguments]
        # Into a file: the server that one of them starts would keep a pipe open.
        said = self.folder / "said"
        with said.open("w") as file:
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
        told = said.read_text()
        if done.returncode:
            raise RuntimeError(f"{program} failed: {told}")
        return told
