"""Files of stores of every version: their content, and how those of the newest version are made.

`make stores` writes the files of the newest version to `tests/stores`: an SQLite file and a dump of
PostgreSQL. They are made once for each version and never deleted.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.postgres import USER, PostgresServer
from postgres_server import get_schema

from paceline.api.simulation import Simulation
from paceline.core.events import ChangeSlots
from paceline.store import open_store
from paceline.store.schema import newest_version

if TYPE_CHECKING:
    from paceline.core.decisions import Step
    from paceline.core.ports import Store

FOLDER = Path(__file__).parents[1] / "stores"
# One study that has ended, and one whose log ends in the middle.
WHOLE, CUT = "whole", "cut short"
COMMAND = ChangeSlots(2)
# Stands for the schema in a dump.
_PLACE = "place."
_SIMULATION = Simulation(source="toy:epochs=4", policy="fifo", trials=6, slots=2)


def simulate_log(study: str) -> list[Step]:
    """Return the complete log of a small study."""
    steps: list[Step] = []
    _SIMULATION.run(name=study, remember=steps.extend)
    return steps


def fill(store: Store) -> None:
    """Write both studies into a store, and a command into an inbox."""
    store.append(WHOLE, simulate_log(WHOLE))
    cut = simulate_log(CUT)
    store.append(CUT, cut[: len(cut) // 2])
    store.post(CUT, COMMAND)


def load(postgres: PostgresServer, dump: Path) -> str:
    """Load a dump into a new schema and return its URL."""
    url = postgres.url()
    text = dump.read_text(encoding="utf-8").replace(_PLACE, f"{get_schema(url)}.")
    postgres.run("psql", "-q", "-v", "ON_ERROR_STOP=1", *_connect_options(postgres), text=text)
    return url


def main() -> None:
    """Write the files of the newest version."""
    version = newest_version()
    path = FOLDER / f"v{version}.sqlite"
    path.unlink(missing_ok=True)
    with closing(open_store(str(path), create=True)) as store:
        fill(store)
    postgres = PostgresServer()
    try:
        url = postgres.url()
        with closing(open_store(url, create=True)) as store:
            fill(store)
        tables = f"--table={get_schema(url)}.*"
        dumped = postgres.run(
            "pg_dump", "--inserts", "--no-owner", tables, *_connect_options(postgres)
        )
    finally:
        postgres.close()
    # Without comments, and commands that only the same version of psql understands.
    lines = [line for line in dumped.splitlines() if line and not line.startswith(("\\", "--"))]
    dump = "\n".join(lines).replace(f"{get_schema(url)}.", _PLACE)
    (FOLDER / f"v{version}.sql").write_text(f"{dump}\n", encoding="utf-8")


def _connect_options(postgres: PostgresServer) -> tuple[str, ...]:
    return "--host", str(postgres.folder), "--username", USER, "--dbname", "postgres"


if __name__ == "__main__":
    main()
