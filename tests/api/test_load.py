"""Stored studies without their functions, and files that go when they are no longer needed."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import paceline as pl
from paceline.worker import ray_compat


def train(trial: Any) -> None:  # noqa: ANN401
    done = trial.keep(done=[0])
    for _ in trial.epochs():
        done[0] += 1
        sys.stdout.write(f"epoch {done[0]} of trial {trial.id}\n")
        trial.report(loss=trial["lr"] / done[0])


def tune(store: str, name: str, **changes: Any) -> pl.Result:  # noqa: ANN401
    options: dict[str, Any] = {
        "space": {"lr": pl.uniform(0.1, 1.0)},
        "metric": "loss",
        "mode": "min",
        "epochs": 2,
        "policy": "fifo",
        "generator": "random",
        "slots": 1,
        "trials": 2,
        "progress": False,
    }
    return pl.tune(train, **(options | changes), name=name, store=store)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = str(tmp_path_factory.mktemp("load") / "runs.db")
    tune(url, "first")
    tune(url, "second", trials=1, seed=5)
    return url


def test_a_stored_study_is_loaded_without_its_function(store: str) -> None:
    result = pl.load("first", store)
    assert (result.name, result.end, result.interrupted) == ("first", "quiet", False)
    assert [trial.status for trial in result.trials] == ["finished", "finished"]
    assert result.best.checkpoint is not None
    assert result.best.checkpoint.load() == {"done": [2]}
    assert result.best.output is not None
    assert "epoch 2 of trial" in result.best.output.read_text()
    assert "study 'first' starts" in result.story()
    assert result.plot("curves").data
    assert pl.load("first", Path(store)).best.value == result.best.value


def test_the_studies_of_a_store_are_listed_in_short(store: str) -> None:
    first, second = pl.studies(store)
    assert (first.name, first.status, first.end, first.trials) == ("first", "ended", "quiet", 2)
    assert repr(second).startswith("<'second': ended (quiet), loss ")
    assert repr(second).endswith(" (trial 0), 1 trial>")
    assert second.load().best.value == second.best_value


def test_an_unknown_study_is_not_found_and_a_near_name_is_suggested(store: str) -> None:
    with pytest.raises(pl.StudyNotFound, match="did you mean 'first'"):
        pl.load("first1", store)
    with pytest.raises(pl.StoreError, match="there is no store"):
        pl.load("first", str(Path(store).with_name("none.db")))


def test_a_running_study_is_loaded_as_it_is(tmp_path: Path) -> None:
    url = str(tmp_path / "runs.db")
    seen: list[tuple[Any, Any]] = []
    hold = tmp_path / "hold"
    hold.touch()

    def train_while_held(trial: Any) -> None:  # noqa: ANN401
        for epoch in trial.epochs():
            while epoch == 1 and hold.exists():
                time.sleep(0.01)
            trial.report(loss=1.0)

    def look(state: Any, steps: Any) -> None:  # noqa: ANN401
        if state.reports == 1 and not seen:
            seen.append((pl.load("it", url), pl.studies(url)[0]))
            hold.unlink()

    study = pl.Study(
        train_while_held, space={"lr": pl.uniform(0.1, 1.0)}, metric="loss", mode="min", epochs=2,
        slots=1, policy="fifo", generator="random", trials=1, name="it", store=url,
    )  # fmt: skip
    study.run(look)
    ((result, row),) = seen
    assert result.end is None
    assert len(result.trials[0].values) == 1
    assert row.status == "running"


def test_files_of_a_study_in_memory_go_when_the_process_ends(tmp_path: Path) -> None:
    script = """
import os, sys, tempfile
import paceline as pl
def train(trial):
    done = trial.keep(done=[0])
    for _ in trial.epochs():
        done[0] += 1
        trial.report(loss=trial["lr"])
if __name__ == "__main__":
    result = pl.tune(train, space={"lr": pl.uniform(0, 1)}, metric="loss", mode="min", epochs=2,
                     trials=1, slots=1, generator="random", policy="fifo")
    if os.fork() == 0:
        sys.exit()  # a child that ends in order leaves its parent's files alone
    os.wait()
    assert result.best.checkpoint.load()["done"] == [1]
    from paceline.curves.pfn.runtime import import_runtime
    import_runtime()  # a forecast does
    print(len(os.listdir(tempfile.gettempdir())))
"""
    (tmp_path / "script.py").write_text(script)
    (tmp_path / "tmp").mkdir()
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={"TMPDIR": str(tmp_path / "tmp"), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[-1]) >= 1
    assert list((tmp_path / "tmp").iterdir()) == []


def test_folders_of_get_checkpoint_go_with_the_training_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    class Restored:
        """A trial that goes on from a checkpoint of files."""

        def restored_files(self) -> dict[str, bytes]:
            return {"model/weights": b"1"}

    with ray_compat.use_trial(Restored()):  # type: ignore[arg-type]
        found = ray_compat.get_checkpoint()
        assert found is not None
        assert Path(found.path, "model", "weights").read_bytes() == b"1"
    assert list(tmp_path.iterdir()) == []
