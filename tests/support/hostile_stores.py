"""Stores as an attacker would edit them, and a watch over what a command does with them."""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.api.simulation import Simulation
from paceline.store import find_study_folder, open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from paceline.core.decisions import Step

    Edit = Callable[[dict[str, Any], "Scene"], None]

STUDY = "runs"
# The module of a hostile part; importing it is the attack.
MODULE = "hostile_part"
# What stands in files outside the store's folder, and must appear nowhere.
SECRET = "a secret of the user"
ESCAPE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e<script>alert(1)</script>"


class Scene(NamedTuple):
    """A folder with a store from elsewhere, and a folder of the user beside it."""

    store: Path
    outside: Path

    @property
    def url(self) -> str:
        """The store's URL."""
        return f"sqlite:///{self.store}"

    def read_outside(self) -> dict[str, str]:
        """Return every file of the user, with its content."""
        found = (path for path in self.outside.rglob("*") if path.is_file())
        return {str(path): path.read_text(encoding="utf-8") for path in sorted(found)}


def make_scene(folder: Path) -> Scene:
    """Make the folders; the user's has files with the names that a study's files have."""
    scene = Scene(folder / "downloads" / "their.db", folder / "home")
    scene.store.parent.mkdir()
    for name in ("checkpoints/0-1.ckpt", "checkpoints/thesis.txt", "logs/attempt-0.log"):
        path = scene.outside / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SECRET, encoding="utf-8")
    (scene.outside / "study.py").write_text("raise SystemExit(0)", encoding="utf-8")
    modules = folder / "modules"
    modules.mkdir()
    (modules / f"{MODULE}.py").write_text("raise SystemExit(0)", encoding="utf-8")
    return scene


@cache
def _make_store(*, is_cut: bool) -> bytes:
    """Return the file of a store with one simulated study."""
    steps: list[Step] = []
    simulation = Simulation(source="toy:epochs=3", policy="fifo", trials=3, slots=2, deadline_s=1e6)
    simulation.run(name=STUDY, remember=steps.extend)
    with TemporaryDirectory() as folder:
        path = Path(folder, "store.db")
        with closing(open_store(str(path), create=True)) as store:
            store.append(STUDY, steps[: len(steps) // 2] if is_cut else steps)
        return path.read_bytes()


def write_store(scene: Scene, edit: Edit, *, is_cut: bool = False, is_trained: bool = True) -> None:
    """Write a store with one study whose first event was edited; a trained study if not simulated.

    `edit` changes the event's JSON.
    """
    scene.store.write_bytes(_make_store(is_cut=is_cut))
    with closing(sqlite3.connect(scene.store)) as connection:
        query = "SELECT body FROM paceline_steps WHERE number = 0"
        step = json.loads(connection.execute(query).fetchone()[0])
        if is_trained:
            step["event"]["engine"] = {"local": True}
        edit(step["event"], scene)
        change = "UPDATE paceline_steps SET body = ? WHERE number = 0"
        connection.execute(change, (json.dumps(step, separators=(",", ":")),))
        connection.commit()


def remove_store(scene: Scene) -> None:
    """Delete the store and everything beside it."""
    shutil.rmtree(scene.store.parent)
    scene.store.parent.mkdir()


def link_outside(scene: Scene) -> None:
    """Make the study's own folder a link to the user's."""
    folder = find_study_folder(scene.url, STUDY)
    assert folder is not None
    folder.parent.mkdir()
    folder.symlink_to(scene.outside)


class Seen(NamedTuple):
    """Something that the interpreter did."""

    event: str
    what: str


# Events of the interpreter that a command must not cause with a name from a log.
_PATHS = (
    *("open", "os.listdir", "os.scandir", "os.remove", "os.rmdir", "os.rename", "os.mkdir"),
    *("os.link", "os.symlink", "os.truncate", "os.chmod", "shutil.rmtree", "shutil.copyfile"),
)
_ALWAYS = (
    *("socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.system", "os.exec"),
    *("os.posix_spawn", "os.fork", "pickle.find_class"),
)
_watches: list[tuple[str, list[Seen]]] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    for outside, seen in _watches:
        if event in _ALWAYS or (event == "import" and str(arguments[0]) == MODULE):
            seen.append(Seen(event, repr(arguments)))
        elif event in _PATHS:
            seen += [Seen(event, str(path)) for path in arguments if _is_below(path, outside)]


def _is_below(path: object, folder: str) -> bool:
    if not isinstance(path, str | bytes | Path):
        return False
    text = path.decode(errors="replace") if isinstance(path, bytes) else str(path)
    return str(Path(text).resolve()).startswith(folder)


@contextmanager
def watch_interpreter(outside: Path) -> Iterator[list[Seen]]:
    """Yield a list that gets every use of the user's folder, every connection and every process."""
    if not _hooked:
        sys.addaudithook(_audit)  # cannot be removed: it looks at the list of watches
        _hooked.append(True)
    watch = (str(outside.resolve()), list[Seen]())
    _watches.append(watch)
    try:
        yield watch[1]
    finally:
        _watches.remove(watch)


_hooked: list[bool] = []
