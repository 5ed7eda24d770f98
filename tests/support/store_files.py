"""Stores of every version there was, as files: what they hold, and how those of today are made.

`make stores` writes those of the newest version to `tests/stores`: a file of SQLite's and a dump of
PostgreSQL's. They are made once, when a version is new, and kept for ever.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.postgres import USER, Cluster
from postgres_kit import schema_of

from paceline.api.simulation import Simulation
from paceline.core.events import ChangeSlots
from paceline.store import open_store
from paceline.store.migrations import MIGRATIONS

if TYPE_CHECKING:
    from paceline.core.decisions import Step
    from paceline.core.ports import Store

FOLDER = Path(__file__).parents[1] / "stores"
# One study that has ended, and one that was cut short in the middle of its log.
WHOLE, CUT = "whole", "cut short"
ORDER = ChangeSlots(2)
# The schema, in a dump.
_PLACE = "place."
_SIMULATION = Simulation(source="toy:epochs=4", policy="fifo", trials=6, slots=2)


def log_of(study: str) -> list[Step]:
    """Return the log of a small study from its beginning to its end."""
    steps: list[Step] = []
    _SIMULATION.run(name=study, remember=steps.extend)
    return steps


def fill(store: Store) -> None:
    """Put both studies into a store, and an order into an inbox."""
    store.append(WHOLE, log_of(WHOLE))
    cut = log_of(CUT)
    store.append(CUT, cut[: len(cut) // 2])
    store.post(CUT, ORDER)


def load(cluster: Cluster, dump: Path) -> str:
    """Return the address of a place where a dump was read in."""
    url = cluster.url()
    text = dump.read_text(encoding="utf-8").replace(_PLACE, f"{schema_of(url)}.")
    cluster.run("psql", "-q", "-v", "ON_ERROR_STOP=1", *_where(cluster), text=text)
    return url


def main() -> None:
    """Write the files of the newest version."""
    version = len(MIGRATIONS)
    path = FOLDER / f"v{version}.sqlite"
    path.unlink(missing_ok=True)
    with closing(open_store(str(path), create=True)) as store:
        fill(store)
    cluster = Cluster()
    try:
        url = cluster.url()
        with closing(open_store(url, create=True)) as store:
            fill(store)
        tables = f"--table={schema_of(url)}.*"
        said = cluster.run("pg_dump", "--inserts", "--no-owner", tables, *_where(cluster))
    finally:
        cluster.close()
    # Without what only the program of the same day understands.
    lines = [line for line in said.splitlines() if line and not line.startswith(("\\", "--"))]
    dump = "\n".join(lines).replace(f"{schema_of(url)}.", _PLACE)
    (FOLDER / f"v{version}.sql").write_text(f"{dump}\n", encoding="utf-8")


def _where(cluster: Cluster) -> tuple[str, ...]:
    return "--host", str(cluster.folder), "--username", USER, "--dbname", "postgres"


if __name__ == "__main__":
    main()
