"""The driver: how a log is read on resume, and studies that have ended."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

import paceline as pl
from paceline.api.driver import Driver
from paceline.machine.machine import Machine
from paceline.store import open_store
from paceline.store.sql import SqlStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from paceline.core.decisions import Step


def train(trial: Any) -> None:  # noqa: ANN401
    done = trial.keep(done=[0])
    for _ in trial.epochs():
        done[0] += 1
        trial.report(loss=1.0 / done[0])


def make_study(folder: Path, **changes: Any) -> pl.Study:  # noqa: ANN401
    options: dict[str, Any] = {
        "metric": "loss",
        "mode": "min",
        "epochs": 4,
        "slots": 1,
        "name": "it",
        "store": f"sqlite:///{folder / 'runs.db'}",
    }
    return pl.Study(train, **(options | changes))


def read_log(folder: Path) -> list[Step]:
    with closing(open_store(f"sqlite:///{folder / 'runs.db'}", create=False)) as store:
        return list(store.read("it"))


def test_a_resumed_study_reads_and_folds_its_log_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make_study(tmp_path) as study:
        study.group([({"lr": 0.1}, 2)])
    log = read_log(tmp_path)
    reads: list[int] = []
    folds: list[int] = []
    read, fold = SqlStore.read, Machine.fold

    def count_read(store: SqlStore, study: str, after: int = -1) -> Iterator[Step]:
        reads.append(after)
        return read(store, study, after)

    def count_fold(machine: Machine, step: Step) -> None:
        folds.append(step.number)
        fold(machine, step)

    monkeypatch.setattr(SqlStore, "read", count_read)
    monkeypatch.setattr(Machine, "fold", count_fold)
    with make_study(tmp_path) as study:
        study.known_log = log[:-2]
        study.submit([({"lr": 0.1}, 4)])
    # Only the entries after the known ones are read.
    assert reads[0] == log[-3].number
    assert len(reads) == 1
    assert folds == [step.number for step in log]


def test_an_ended_study_that_is_run_again_gives_its_result_without_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = {"space": {"lr": pl.uniform(0, 1)}, "generator": "random", "policy": "fifo"}
    first = make_study(tmp_path, **search, trials=1).run()
    monkeypatch.setattr(Driver, "start", lambda *_: pytest.fail("an engine was started"))
    with pytest.warns(pl.PacelineWarning, match="nothing was trained now"):
        again = make_study(tmp_path, **search, trials=1).run()
    assert again.best is not None
    assert first.best is not None
    assert (again.best.id, again.best.value) == (first.best.id, first.best.value)
    assert again.best.checkpoint is not None
