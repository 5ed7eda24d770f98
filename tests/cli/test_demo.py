"""`paceline demo`: its output, its files, its suggestions, and its training."""

from __future__ import annotations

import gzip
import json
import re
import signal
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from command_line import SCRIPT, CommandLine, CommandResult, make_environment, read_log, run_command
from data_sets import find_fashion_mnist

import paceline as pl
from paceline.api.stored import fold_log
from paceline.cli.demo_training import CLASSES, Pictures, data, fresh, gradient, layers, train

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

DATA = Path(str(files("paceline"))) / "data"
STORE = "paceline-demo/paceline.db"
# One demo for all tests.
once = pytest.mark.xdist_group("demo")


@pytest.fixture(scope="module")
def demo_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CommandResult]:
    """The folder and the output of a short demo."""
    # On a busy machine, 8 s may end before a trial is held back.
    for deadline in ("8s", "40s", "4m"):
        folder = tmp_path_factory.mktemp("demo")
        ran = run_command(folder, "demo", "--deadline", deadline)
        if "was held back" in ran.out:
            break
    return folder, ran


# Its output


@once
def test_the_demo_ends_with_the_best_and_why_it_ended(demo_run: tuple[Path, CommandResult]) -> None:
    folder, ran = demo_run
    assert (ran.code, ran.err) == (0, "")
    assert re.search(r"the deadline of \S+( s)? has come", ran.out)
    assert "was held back" in ran.out
    best = json.loads(run_command(folder, "best", "demo", "--store", STORE, "--json").out)
    assert f"accuracy {best['value']:.6g} at epoch {best['epoch']}" in ran.out


@once
def test_the_loaded_checkpoint_has_the_reported_accuracy(
    demo_run: tuple[Path, CommandResult],
) -> None:
    folder, ran = demo_run
    found = re.search(
        r"epoch (\d+) of trial (\d+), loaded again: accuracy (\S+) on", join_lines(ran.out)
    )
    assert found is not None
    epoch, number = int(found.group(1)), int(found.group(2))
    state = fold_log(read_log(f"sqlite:///{folder}/{STORE}", "demo"))
    assert state.best is not None
    assert number == state.best.id
    reported = state.trials[number].metric("accuracy")[epoch - 1]
    assert float(found.group(3)) == pytest.approx(reported, abs=1e-4)


@once
def test_the_demo_leaves_one_folder_with_its_report(demo_run: tuple[Path, CommandResult]) -> None:
    folder, ran = demo_run
    assert [path.name for path in folder.iterdir() if path.name != ".cache"] == ["paceline-demo"]
    assert "paceline-demo/demo.html" in ran.out
    assert "<html" in (folder / "paceline-demo" / "demo.html").read_text(encoding="utf-8")


@once
def test_every_command_that_the_demo_suggests_works(demo_run: tuple[Path, CommandResult]) -> None:
    folder, ran = demo_run
    suggested = [line.split()[1:] for line in ran.out.splitlines() if line.startswith("  paceline")]
    assert [command[0] for command in suggested] == [
        "story",
        "best",
        "replay",
        "export",
        "simulate",
    ]
    for command in suggested:
        followed = run_command(folder, *command)
        assert (followed.code, followed.err) == (0, ""), command
        assert followed.out, command


# Demos after the first


@pytest.mark.slow
def test_an_interrupted_demo_is_resumed_and_a_new_one_follows_an_ended_one(
    tmp_path: Path,
) -> None:
    with subprocess.Popen(
        [SCRIPT, "demo", "--deadline", "8s"],
        cwd=tmp_path,
        env=make_environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if "new best" in line)
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert process.returncode == 130
    for deadline, names in (("8s", ["demo"]), ("3s", ["demo", "demo-2"])):
        assert run_command(tmp_path, "demo", "--deadline", deadline).code == 0
        listed = json.loads(run_command(tmp_path, "ls", "--store", STORE, "--json").out)["studies"]
        assert [study["name"] for study in listed] == names
        assert {study["end"] for study in listed} == {"deadline"}


# Wrong usage


def test_the_simulated_demo_takes_no_deadline(paceline: CommandLine) -> None:
    ran = paceline("demo", "--simulated", "--deadline", "9s")
    assert ran.code == 2
    assert "--deadline works only without --simulated" in ran.err


def test_a_folder_that_cannot_be_created_is_one_line(paceline: CommandLine) -> None:
    (paceline.folder / "paceline-demo").write_text("in the way")
    ran = paceline("demo")
    assert ran.code == 2
    assert "the folder paceline-demo cannot be created here" in ran.err
    assert ran.err.count("\n") == 1


# The training


def test_each_part_of_the_data_has_every_class() -> None:
    parts = data()
    assert [len(part.labels) for part in parts] == [6000, 2000, 2000]
    for part in parts:
        assert set(part.labels) == set(range(CLASSES))
        assert (part.pixels.min(), part.pixels.max()) == (0.0, 1.0)


def test_the_gradient_agrees_with_finite_differences() -> None:
    some = data().training
    batch = Pictures(some.pixels[:4], some.labels[:4])
    weights: list[Any] = [each.astype(np.float64) for each in fresh(5, seed=1)]

    def loss() -> float:
        scores = layers(weights, batch.pixels)[-1]
        logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
        return -float(np.mean(logs[np.arange(4), batch.labels]))

    slopes = gradient(weights, batch, 0.0, np.random.default_rng(0))
    for weight, slope, place in pick_weights(weights, slopes):
        there = weight[place]
        weight[place] = there + 1e-6
        above = loss()
        weight[place] = there - 1e-6
        below = loss()
        weight[place] = there
        assert slope[place] == pytest.approx((above - below) / 2e-6, abs=1e-6)


def pick_weights(weights: list[Any], slopes: list[Any]) -> Iterator[tuple[Any, Any, Any]]:
    """Yield, for each layer, the weight with the largest gradient."""
    for weight, slope in zip(weights, slopes, strict=True):
        yield weight, slope, np.unravel_index(int(np.abs(slope).argmax()), slope.shape)


def test_a_paused_training_gives_the_same_result() -> None:
    config = {
        "lr": pl.piecewise([(0, 0.03), (1, 0.01)]),
        "width": 64,
        "momentum": 0.9,
        "dropout": 0.2,
    }
    with pl.Study(train, metric="accuracy", mode="max", epochs=2, slots="cpu:1") as study:
        study.group([(config, 1)])
        (paused,) = study.group([(config, 2)])
    with pl.Study(train, metric="accuracy", mode="max", epochs=2, slots="cpu:1") as study:
        (straight,) = study.group([(config, 2)])
    assert paused.values == straight.values
    assert straight.values[0] != straight.values[1]


# Its data


def test_every_data_file_has_its_source_and_licence() -> None:
    told = (DATA / "README.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## `(\S+)`\n(.*?)(?=^## |\Z)", told, re.M | re.S))
    assert sorted(sections) == sorted(
        path.name for path in DATA.iterdir() if path.suffix in (".gz", ".npz")
    )
    assert all("licence" in text for text in sections.values())


def test_the_documented_script_makes_the_pictures(tmp_path: Path) -> None:
    folder = find_fashion_mnist()
    found = re.search(
        r"```python\n(.*?)```", (DATA / "README.md").read_text(encoding="utf-8"), re.S
    )
    assert found is not None
    names: dict[str, Any] = {"gzip": gzip, "np": np}
    exec(found.group(1), names)
    names["make"](folder, tmp_path / "made.npz")
    assert read_arrays(tmp_path / "made.npz") == read_arrays(DATA / "fashion_mnist_14.npz")


def read_arrays(path: Path) -> dict[str, bytes]:
    """Return the arrays of a file as bytes."""
    with np.load(path) as stored:
        return {name: to_bytes(stored[name]) for name in stored}


def to_bytes(array: NDArray[np.uint8]) -> bytes:
    return array.tobytes()


def join_lines(text: str) -> str:
    """Return the text without line breaks."""
    return " ".join(text.split())
