"""A gang of which one process sees the study's folder and another does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from test_local_engine import spec

from paceline.core import decisions as d
from paceline.core import events as e
from paceline.engines.process.attempt import Life
from paceline.engines.process.background import Beside
from paceline.engines.process.checkpoint_files import Shelf
from paceline.engines.process.engine import Briefing
from paceline.engines.process.local.devices import Devices
from paceline.engines.process.ray.node_files import Afar
from paceline.engines.process.ray.node_protocol import AnyWord, Clear, Drop, Publish, Settle
from paceline.engines.process.ray.nodes import FarLine
from paceline.engines.process.uploads import Transit
from paceline.store.storage import Folder

if TYPE_CHECKING:
    from pathlib import Path

    from paceline.engines.process.ports import Line


class Half(Devices, frozen=True):
    """Slots of which only the first is on this machine."""

    far: Any = None

    def away(self, slot: int) -> Any:  # noqa: ANN401
        return self.far if slot else None


LAUNCH = d.Launch(
    attempt=7,
    trial=0,
    start=3,
    source=5,
    goal=6,
    save_at=(),
    slots=(0, 1, 2),
    width=3.0,
    why="the test asks for it",
)


def test_each_process_is_told_where_its_own_files_are(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "study", Folder(tmp_path / "kept"))
    said: list[AnyWord] = []
    far = Afar("/far", said.append)
    briefing = Briefing(spec(), Half(3, 3, far=far), shelf)
    begins = list(briefing.of(LAUNCH, {}, None))
    near = str(shelf.checkpoints)
    assert [begin.folder for begin in begins] == [near, "/far/checkpoints", "/far/checkpoints"]
    assert [begin.checkpoint for begin in begins] == ["5-3.ckpt"] * 3
    assert begins[0].log == str(shelf.log(7))
    assert begins[1].log == begins[2].log == "/far/logs/attempt-7.log"
    # Nobody has it yet; and when it is here, only the far ones wait for their own node.
    assert [begin.awaits for begin in begins] == [True, True, True]
    shelf.path((5, 3)).touch()
    assert [begin.awaits for begin in briefing.of(LAUNCH, {}, None)] == [False, True, True]


def transit(shelf: Shelf, told: list[e.AnyEvent]) -> Transit:
    return Transit(shelf, Beside({}), told.append, lambda: 0.0)


def gang(log: Path) -> Life:
    lines: list[tuple[int, Line]] = [(40 + rank, FarLine(lambda _: None)) for rank in range(3)]
    return Life(LAUNCH, lines, log)


def test_every_far_process_settles_and_only_the_first_ones_node_publishes(tmp_path: Path) -> None:
    said: list[tuple[str, AnyWord]] = []
    here = Afar("/a", lambda word: said.append(("a", word)))
    there = Afar("/b", lambda word: said.append(("b", word)))
    shelf = Shelf(tmp_path / "study", Folder(tmp_path / "kept"))
    told: list[e.AnyEvent] = []
    way, life = transit(shelf, told), gang(tmp_path / "log")
    way.begin(life, [here, None, there], (5, 3))
    assert said == [("a", Settle(40, 7, (5, 3))), ("b", Settle(42, 7, (5, 3)))]
    assert [way.here(member) for member in life.members] == [False, True, False]
    said.clear()
    saved = e.Saved(at=0.0, attempt=7, epoch=6, seconds=0.1, bytes=1, digest="d")
    way.wrote(saved, None, asked=True)
    assert said == [("a", Publish((7, 6)))]
    said.clear()
    way.drop((5, 3))
    assert sorted(said, key=str) == [("a", Drop((5, 3))), ("b", Drop((5, 3)))]
    said.clear()
    way.clear(e.Ended(at=0.0, attempt=7, cause=e.Cause.GOAL))
    assert sorted(said, key=str) == [("a", Clear(7)), ("b", Clear(7))]
