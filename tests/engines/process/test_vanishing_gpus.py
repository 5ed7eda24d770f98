"""GPUs that vanish while a study trains on them, and come back. The list of GPUs is a file's."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from test_local_engine import children, spec

from paceline.core import decisions as d
from paceline.core import events as e
from paceline.engines.process.checkpoint_files import Shelf
from paceline.engines.process.engine import LocalEngine
from paceline.engines.process.local.devices import Devices, Gpu
from paceline.engines.process.local.worker_pool import Nest
from paceline.engines.process.supervisor import Patience
from paceline.testing.engine_driver import FAR, WHY, Advising, Hand, opened

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Listed(Devices, frozen=True):
    """GPUs that are there while a file names them."""

    def look(self) -> Sequence[Gpu]:
        return [Gpu(name, 1 << 30) for name in Path(self.mps).read_text().split()]


@pytest.fixture
def hand(tmp_path: Path) -> Iterator[Hand]:
    """An engine on two of three GPUs."""
    list_of_gpus = tmp_path / "gpus"
    list_of_gpus.write_text("a b c")
    devices = Listed(2, 2, ("a", "b", "c"), (1 << 30,) * 3, str(list_of_gpus))
    nest = Nest(beats, devices.thread_limits())
    patience = Patience(grace_s=1.0, look_s=0.02)
    shelf = Shelf(tmp_path)
    engine = LocalEngine(spec(), nest, devices, shelf=shelf, adviser=Advising(), patience=patience)
    driven = Hand(engine, 0.02)
    driven.give(*(opened(trial, {"list": str(list_of_gpus)}) for trial in (0, 1)))
    yield driven
    engine.close()
    assert children() == []


def beats(trial: Any) -> None:  # noqa: ANN401
    """Train fast, for ever; break where the GPU is gone."""
    gpu = os.environ["CUDA_VISIBLE_DEVICES"]
    for _ in trial.epochs():
        time.sleep(0.005)
        if trial.id and gpu not in Path(trial["list"]).read_text():
            raise RuntimeError("CUDA error: unspecified launch failure")
        trial.report(loss=1.0, gpu=ord(gpu))


def capacity(hand: Hand) -> list[tuple[int, ...]]:
    return [event.slots for event in hand.of(e.CapacityChanged)]


def test_a_gpu_that_vanishes_takes_its_slot_and_its_attempt_along(
    hand: Hand, tmp_path: Path
) -> None:
    hand.give(hand.launch(0, goal=FAR), hand.launch(1, trial=1, goal=FAR))
    hand.until_reported(0, 2)
    hand.until_reported(1, 2)
    (tmp_path / "gpus").write_text("b c")
    ended = hand.until_ended(0)
    assert (ended.cause, ended.note) == (e.Cause.LOST, "its GPU is gone")
    assert capacity(hand)[-1] == (1,)
    seen = hand.values(1)[-1][0]
    hand.until_reported(1, seen + 3)
    assert [event.attempt for event in hand.of(e.Ended)] == [0]


def test_an_error_on_a_gpu_that_is_gone_is_not_the_trials_fault(hand: Hand, tmp_path: Path) -> None:
    hand.give(hand.launch(0, goal=FAR), hand.launch(1, trial=1, goal=FAR))
    hand.until_reported(1, 2)
    (tmp_path / "gpus").write_text("a c")
    ended = hand.until_ended(1)
    assert (ended.cause, ended.note) == (e.Cause.LOST, "its GPU is gone")
    assert capacity(hand)[-1] == (0,)


def test_a_gpu_that_comes_back_is_a_slot_again(hand: Hand, tmp_path: Path) -> None:
    (tmp_path / "gpus").write_text("a c")
    hand.until(lambda: capacity(hand)[-1] == (0,), "a slot less")
    (tmp_path / "gpus").write_text("a b c")
    hand.until(lambda: capacity(hand)[-1] == (0, 1), "the slot again")


def test_more_slots_are_gpus_that_are_there_and_nobody_uses(hand: Hand, tmp_path: Path) -> None:
    hand.give(d.Retire(slots=(0,), why=WHY))
    hand.give(d.Provide(slots=1, why=WHY))
    hand.until(lambda: capacity(hand)[-1] == (1, 0), "the slot again")
    hand.give(d.Provide(slots=9, why=WHY))
    hand.until(lambda: capacity(hand)[-1] == (1, 0, 2), "the third GPU")
    hand.give(hand.launch(0, goal=2), hand.launch(1, goal=2), hand.launch(2, goal=2))
    for attempt in (0, 1, 2):
        hand.until_ended(attempt)
    gpus = [report.metrics["gpu"] for report in hand.of(e.Reported) if report.epoch == 1]
    assert sorted(map(int, filter(None, gpus))) == [ord("a"), ord("b"), ord("c")]
