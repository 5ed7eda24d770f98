"""Options that cannot act together are refused with a sentence: allocators, `span` and `pack`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from command_line import CommandLine

import paceline as pl

if TYPE_CHECKING:
    from pathlib import Path

INERT: dict[str, tuple[dict[str, Any], str]] = {
    "fluid alone": ({"allocator": "fluid"}, "cannot act with span=1 and pack=1"),
    "uniform alone": ({"allocator": "uniform"}, "give span=2 or more"),
    "confidence alone": ({"allocator": "confidence"}, "or leave the allocator out"),
    "pack with top": ({"allocator": "top", "span": 2, "pack": 2}, "pack=2 cannot act"),
    "pack with softmax": ({"allocator": "softmax", "pack": 4}, "which gives whole slots"),
    "fixed": ({"span": 2, "pack": 2}, "gives every trial the same width"),
    "a width": ({"allocator": "confidence:width=4", "span": 2}, "width=4 cannot act"),
}


def train(trial: pl.Trial) -> None:
    for _ in trial.epochs():
        trial.report(loss=1.0)


@pytest.mark.parametrize("name", INERT)
def test_an_option_that_cannot_act_is_refused(name: str) -> None:
    given, words = INERT[name]
    search: dict[str, Any] = {"space": {"x": pl.uniform(0, 1)}, "epochs": 2}
    with pytest.raises(pl.SpecError, match=words) as study:
        pl.Study(train, **search, **given)
    with pytest.raises(pl.SpecError) as simulated:
        pl.Simulation(source="toy", **given).run()
    assert str(simulated.value) == str(study.value)
    members = [pl.Study(train, **search, policy=policy) for policy in ("fifo", "asha")]
    with pytest.raises(pl.SpecError) as together:
        pl.together(*members, **given)
    assert str(together.value) == str(study.value)


def test_the_command_line_refuses_it_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    paceline = CommandLine(tmp_path, capsys, monkeypatch)
    for command in (("simulate", "toy"), ("compare", "toy", "--policies", "fifo")):
        done = paceline(*command, "--allocator", "fluid")
        assert done.code == 2
        assert "cannot act with span=1 and pack=1" in done.err


@pytest.mark.parametrize(
    "given",
    [
        {"allocator": "fluid", "pack": 2},
        {"allocator": "fluid_static", "span": 2, "pack": 2},
        {"allocator": "uniform", "span": 2},
        {"allocator": "confidence:width=2", "span": 2},
        {"span": 2},
        {"pack": 2},
        {"allocator": "fixed"},
    ],
)
def test_what_can_act_is_taken(given: dict[str, Any]) -> None:
    assert pl.Study(train, space={"x": pl.uniform(0, 1)}, epochs=2, **given).spec.name
    simulation = pl.Simulation(source="toy", policy="fifo", trials=2, epochs=2, **given)
    assert simulation.run().trials_finished == 2
