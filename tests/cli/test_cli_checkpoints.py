"""`paceline checkpoints`: the list, its reasons, and the files it deletes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from checkpoint_bench import EPOCHS, SCHEDULES, CheckpointBench
from command_line import CommandLine, compare_golden, write_log
from running_command import RunningCommand, write_study_file
from waiting import wait_for

import paceline as pl
from paceline.analysis.checkpoint_inventory import list_checkpoints
from paceline.api.stored import CheckpointPage
from paceline.core import events as e
from paceline.store import find_study_folder

if TYPE_CHECKING:
    from pathlib import Path


def make_study() -> CheckpointBench:
    """Return a study with a checkpoint for every reason to keep one."""
    study = CheckpointBench(slots=2, epochs=EPOCHS, share=True)
    study.submit(EPOCHS, **SCHEDULES[5])
    study.train(0, 0.9, 0.8, seconds=3.0)
    study.save(0, 2_000)
    study.train(0, 0.7, 0.6, seconds=3.0)
    study.save(0, 2_000)
    study.train(0, 0.7, 0.7, seconds=3.0)
    study.save(0, 2_500)
    study.end(0, e.Cause.FINISHED)
    study.submit(4, **SCHEDULES[1])
    study.train(1, 0.9, 0.1, seconds=5.0)
    study.save(1, 1_500_000)
    study.end(1)
    study.submit(4, **SCHEDULES[0])
    study.submit(6, **SCHEDULES[1])
    return study


def write_study(
    paceline: CommandLine, study: CheckpointBench, url: str = "sqlite:///paceline.db"
) -> Path:
    """Write a study's log and checkpoints as if it had run here; return their folder."""
    steps = [msgspec.structs.replace(study.steps[0], event=make_opened(study)), *study.steps[1:]]
    write_log(url, "bench", steps)
    folder = find_study_folder(url, "bench")
    assert folder is not None
    folder = paceline.folder / folder / "checkpoints"
    folder.mkdir(parents=True)
    for attempt, epoch in study.kept:
        (folder / f"{attempt}-{epoch}.ckpt").write_bytes(b"x")
    return folder


def make_opened(study: CheckpointBench) -> e.Opened:
    """Return the study's Opened as a driver on this machine would write it."""
    event = study.steps[0].event
    assert isinstance(event, e.Opened)
    return msgspec.structs.replace(event, engine={"local": True})


def test_each_checkpoint_has_its_trials_its_reason_and_its_cost() -> None:
    _, rows = list_checkpoints(make_study().steps)
    assert [(row.attempt, row.epoch, row.trials, row.slot_seconds, row.idle_s) for row in rows] == [
        (0, 2, [0], 6.0, 10.0),
        (0, 4, [0], 6.0, 16.0),
        (0, 6, [0], 6.0, 10.0),
        (1, 4, [1, 2, 3], 10.0, 0.0),
    ]
    assert [row.why for row in rows] == [
        "trials may come that branch there",
        "trials may come that branch there",
        "the result of trial 0",
        "the study's best; an attempt is about to start from it; trials 1, 2, 3 go on from it; "
        "trials may come that branch there",
    ]


def test_checkpoints_are_listed_as_a_table(paceline: CommandLine) -> None:
    folder = write_study(paceline, make_study())
    (folder / ".7-3.ckpt.part").write_bytes(b"x" * 300)
    (folder / "9-1.ckpt").write_bytes(b"x" * 4_000)
    ran = paceline("checkpoints", "bench", "--dry-run")
    assert ran.code == 0
    compare_golden("checkpoints.txt", ran.out)
    assert len(list(folder.iterdir())) == 6


def test_only_files_that_the_log_does_not_name_are_deleted(paceline: CommandLine) -> None:
    study = make_study()
    folder = write_study(paceline, study)
    (folder / "9-1.ckpt").write_bytes(b"x" * 4_000)
    (folder / "0-6.ckpt").unlink()
    found = read_page(paceline)
    assert [(stray.name, stray.bytes) for stray in found.strays] == [("9-1.ckpt", 4_000)]
    assert (found.collected, found.stray_bytes, found.missing) == (True, 4_000, 1)
    assert sorted(path.name for path in folder.iterdir()) == ["0-2.ckpt", "0-4.ckpt", "1-4.ckpt"]
    assert read_page(paceline).strays == []
    ran = paceline("checkpoints", "bench")
    assert "1 more is in the log, but missing" in ran.out
    assert "the log names all files" in ran.out


def read_page(paceline: CommandLine, *arguments: str) -> CheckpointPage:
    ran = paceline("checkpoints", "bench", "--json", *arguments)
    assert ran.code == 0, ran.err
    return msgspec.json.decode(ran.out, type=CheckpointPage)


def test_a_simulated_study_has_no_checkpoints(paceline: CommandLine) -> None:
    write_log("sqlite:///paceline.db", "bench", make_study().steps)
    assert read_page(paceline).place is None
    assert paceline("checkpoints", "bench").out == (
        "study 'bench' was simulated: it has no checkpoints.\n"
    )


def test_a_study_with_its_own_folder_is_listed(paceline: CommandLine) -> None:
    def train(trial: Any) -> None:  # noqa: ANN401
        weight = trial.keep(weight=[0.0])
        for epoch in trial.epochs():
            weight[0] += 1.0
            trial.report(loss=1.0 / (1 + epoch + trial["lr"]))

    result = pl.tune(
        train,
        name="bench",
        store="sqlite:///paceline.db",
        files=paceline.folder / "elsewhere",
        space={"lr": pl.uniform(0, 1)},
        metric="loss",
        mode="min",
        epochs=3,
        trials=3,
        policy="fifo",
        slots=2,
        progress=False,
        keep_best=1,
    )
    assert result.best is not None
    found = read_page(paceline)
    assert found.place == str(paceline.folder / "elsewhere" / "checkpoints")
    (row,) = found.checkpoints
    assert row.trials == [result.best.id]
    assert row.why == f"the study's best; the result of trial {result.best.id}"
    assert (row.epoch, found.missing, found.strays) == (3, 0, [])
    assert [path.name for path in (paceline.folder / "elsewhere/checkpoints").iterdir()] == [
        f"{row.attempt}-3.ckpt"
    ]


def test_a_running_study_is_listed_and_not_changed(paceline: CommandLine) -> None:
    folder = paceline.folder
    (folder / "hold").touch()
    write_study_file(folder)
    with RunningCommand(
        folder, "paceline", "run", "study.py", "--name", "bench", "--no-report"
    ) as driver:
        place = find_study_folder("sqlite:///paceline.db", "bench")
        assert place is not None
        wait_for(lambda: any((folder / place / "checkpoints").glob("*.ckpt")))
        ran = paceline("checkpoints", "bench")
        assert ran.code == 2
        assert ran.err == (
            f"paceline: study 'bench' is run by process {driver.pid}, which deletes unneeded "
            "checkpoints itself: add --dry-run, or wait until the study ends.\n"
        )
        assert read_page(paceline, "--dry-run").strays == []
        (folder / "hold").unlink()
        assert driver.end().code == 0
    assert read_page(paceline).strays == []


def test_a_missing_study_is_a_clear_error(paceline: CommandLine) -> None:
    write_study(paceline, make_study())
    ran = paceline("checkpoints", "other")
    assert (ran.code, ran.out) == (2, "")
    assert "no study" in ran.err
