"""The version of the decision logic in the log: an old log that differs is not a bug."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from paceline.api.simulation import Simulation
from paceline.api.stored import replay_log
from paceline.cli.main import main
from paceline.core.codec import decode_step, encode_step
from paceline.core.decisions import Open, Step
from paceline.core.events import LOGIC, Opened
from paceline.store import open_store

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture
def log() -> list[Step]:
    """The log of a small study that this release has decided."""
    steps: list[Step] = []
    Simulation(source="toy:epochs=9", trials=4, slots=2).run(remember=steps.extend)
    return steps


def date_back(log: list[Step], version: int = 0) -> list[Step]:
    """Return the log as another version of the logic would have written it."""
    first = log[0].event
    assert isinstance(first, Opened)
    return [replace(log[0], event=replace(first, logic=version)), *log[1:]]


def rename(log: list[Step], name: str) -> list[Step]:
    """Return the log as that of a study with another name."""
    first = log[0].event
    assert isinstance(first, Opened)
    return [
        replace(log[0], event=replace(first, spec=replace(first.spec, name=name))),
        *log[1:],
    ]


def change_first_trial(log: list[Step], **fields: object) -> list[Step]:
    """Return the log with other values in the decision that opens its first trial."""
    at = next(i for i, step in enumerate(log) if any(isinstance(d, Open) for d in step.decisions))
    changed = tuple(
        replace(decision, **fields) if isinstance(decision, Open) else decision
        for decision in log[at].decisions
    )
    return [*log[:at], replace(log[at], decisions=changed), *log[at + 1 :]]


def test_a_log_says_which_version_of_the_logic_decided_it(log: list[Step]) -> None:
    assert f'"logic":{LOGIC}'.encode() in encode_step(log[0])
    assert replay_log(log).logic == LOGIC


@pytest.mark.parametrize("name", ["poster", "halving", "busy"])
def test_a_log_without_a_version_is_of_version_0(name: str) -> None:
    line = (GOLDEN / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()[0]
    event = decode_step(line.replace(f'"logic":{LOGIC}', '"logic":0')).event
    assert isinstance(event, Opened)
    assert event.logic == 0
    assert b"logic" not in encode_step(Step(0, event))


def test_an_old_log_with_the_same_decisions_is_identical(log: list[Step]) -> None:
    found = replay_log(date_back(log))
    assert found.difference is None
    assert found.logic == 0


def test_a_reworded_reason_is_a_difference_only_within_one_version(log: list[Step]) -> None:
    reworded = change_first_trial(log, why="an older sentence", label="older")
    assert replay_log(reworded).difference is not None
    assert replay_log(date_back(reworded)).difference is None


@pytest.mark.parametrize("version", [0, LOGIC + 1])
def test_a_difference_is_expected_only_of_another_version(log: list[Step], version: int) -> None:
    other = replay_log(change_first_trial(date_back(log, version), until=2))
    assert other.difference is not None
    assert other.is_expected
    own = replay_log(change_first_trial(log, until=2))
    assert own.difference is not None
    assert not own.is_expected


def test_the_command_names_both_versions_and_succeeds(
    log: list[Step], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = str(tmp_path / "studies.db")
    with closing(open_store(url, create=True)) as store:
        for name, steps in (("old", date_back(log)), ("own", log)):
            store.claim(name)
            store.append(name, rename(change_first_trial(steps, until=2), name))
    assert main(["replay", "old", "--store", url]) == 0
    old = capsys.readouterr().out
    assert f"decided by logic version 0; this release has {LOGIC}" in old
    assert "different at entry 2" in old
    assert main(["replay", "own", "--store", url]) == 1
    assert "decided by logic" not in capsys.readouterr().out
