"""`paceline checkpoints`: what is listed, why, and what goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from cli_kit import Here, golden, put
from live_kit import Running, study_file, wait_for
from test_checkpoint_lifetime import EPOCHS, SCHEDULES, Told

import paceline as pl
from paceline.analysis.checkpoint_inventory import inventory_of
from paceline.api.stored import CheckpointPage
from paceline.core import events as e
from paceline.store import folder_of

if TYPE_CHECKING:
    from pathlib import Path


def told() -> Told:
    """Return a study with a checkpoint for every reason there is."""
    study = Told(slots=2, epochs=EPOCHS, share=True)
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


def kept(paceline: Here, study: Told, url: str = "sqlite:///paceline.db") -> Path:
    """Keep a study as if it had run here, its checkpoints with it, and return their folder."""
    steps = [msgspec.structs.replace(study.steps[0], event=opened(study)), *study.steps[1:]]
    put(url, "told", steps)
    folder = folder_of(url, "told")
    assert folder is not None
    folder = paceline.folder / folder / "checkpoints"
    folder.mkdir(parents=True)
    for attempt, epoch in study.kept:
        (folder / f"{attempt}-{epoch}.ckpt").write_bytes(b"x")
    return folder


def opened(study: Told) -> e.Opened:
    """Return the study's first fact as a driver on this machine would have told it."""
    event = study.steps[0].event
    assert isinstance(event, e.Opened)
    return msgspec.structs.replace(event, engine={"local": True})


def test_each_checkpoint_says_for_whom_it_is_kept_and_what_it_would_cost() -> None:
    _, rows = inventory_of(told().steps)
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


def test_the_list_reads_as_a_table(paceline: Here) -> None:
    folder = kept(paceline, told())
    (folder / ".7-3.ckpt.part").write_bytes(b"x" * 300)
    (folder / "9-1.ckpt").write_bytes(b"x" * 4_000)
    ran = paceline("checkpoints", "told", "--dry-run")
    assert ran.code == 0
    golden("checkpoints.txt", ran.out)
    assert len(list(folder.iterdir())) == 6


def test_what_no_log_names_is_deleted_and_nothing_else(paceline: Here) -> None:
    study = told()
    folder = kept(paceline, study)
    (folder / "9-1.ckpt").write_bytes(b"x" * 4_000)
    (folder / "0-6.ckpt").unlink()
    found = page(paceline)
    assert [(stray.name, stray.bytes) for stray in found.strays] == [("9-1.ckpt", 4_000)]
    assert (found.collected, found.stray_bytes, found.missing) == (True, 4_000, 1)
    assert sorted(path.name for path in folder.iterdir()) == ["0-2.ckpt", "0-4.ckpt", "1-4.ckpt"]
    assert page(paceline).strays == []
    ran = paceline("checkpoints", "told")
    assert "1 more is named in the log and not there" in ran.out
    assert "nothing lies around" in ran.out


def page(paceline: Here, *arguments: str) -> CheckpointPage:
    ran = paceline("checkpoints", "told", "--json", *arguments)
    assert ran.code == 0, ran.err
    return msgspec.json.decode(ran.out, type=CheckpointPage)


def test_a_study_that_was_simulated_has_none(paceline: Here) -> None:
    put("sqlite:///paceline.db", "told", told().steps)
    assert page(paceline).place is None
    assert paceline("checkpoints", "told").out == (
        "study 'told' was simulated, and has no checkpoints.\n"
    )


def test_a_study_that_ran_here_is_listed_where_its_files_are(paceline: Here) -> None:
    def trains(trial: Any) -> None:  # noqa: ANN401
        weight = trial.keep(weight=[0.0])
        for epoch in trial.epochs():
            weight[0] += 1.0
            trial.report(loss=1.0 / (1 + epoch + trial["lr"]))

    result = pl.tune(
        trains,
        name="told",
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
    found = page(paceline)
    assert found.place == str(paceline.folder / "elsewhere" / "checkpoints")
    (row,) = found.checkpoints
    assert row.trials == [result.best.id]
    assert row.why == f"the study's best; the result of trial {result.best.id}"
    assert (row.epoch, found.missing, found.strays) == (3, 0, [])
    assert [path.name for path in (paceline.folder / "elsewhere/checkpoints").iterdir()] == [
        f"{row.attempt}-3.ckpt"
    ]


def test_a_study_that_is_driven_is_looked_at_and_left_alone(paceline: Here) -> None:
    folder = paceline.folder
    (folder / "hold").touch()
    study_file(folder)
    with Running(folder, "paceline", "run", "study.py", "--name", "told", "--no-report") as driver:
        place = folder_of("sqlite:///paceline.db", "told")
        assert place is not None
        wait_for(lambda: any((folder / place / "checkpoints").glob("*.ckpt")))
        ran = paceline("checkpoints", "told")
        assert ran.code == 2
        assert ran.err == (
            f"paceline: study 'told' is driven by process {driver.pid}, which collects what nobody "
            "needs by itself: look with --dry-run, or wait until that ends.\n"
        )
        assert page(paceline, "--dry-run").strays == []
        (folder / "hold").unlink()
        assert driver.end().code == 0
    assert page(paceline).strays == []


def test_a_study_that_is_not_there_is_a_clear_word(paceline: Here) -> None:
    kept(paceline, told())
    ran = paceline("checkpoints", "other")
    assert (ran.code, ran.out) == (2, "")
    assert "no study" in ran.err
