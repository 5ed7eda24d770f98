"""Reuse between studies of one plan in one store: a study does not train known epochs again."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from command_line import CommandLine, read_log, run_command
from running_command import write_study_file

import paceline as pl
from paceline.analysis.sharing import measure_sharing
from paceline.analysis.story import LiveStory, narrate_study
from paceline.api.plan_key import compute_plan_key
from paceline.api.stored import replay_log
from paceline.core.events import Adopted, Spoiled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from paceline.core.decisions import Step
    from paceline.machine.state import StudyState

FAST, SLOW = 0.5, 0.1


def train_adding(trial: Any) -> None:  # noqa: ANN401
    """Descend towards 1, at a speed that the learning rate decides."""
    weight = trial.keep(weight=[0.0])
    for _ in trial.epochs():
        weight[0] += trial["lr"] * (1.0 - weight[0])
        trial.report(loss=(1.0 - weight[0]) ** 2, weight=weight[0])


def train_with_rays_api(config: dict[str, Any]) -> None:
    """Report a loss that depends on the learning rate, epoch by epoch."""
    for epoch in range(3):
        pl.report({"loss": config["lr"] / (epoch + 1)})


def make_train(step: float) -> Callable[[Any], None]:
    """Return a training function with this step."""

    def train(trial: Any) -> None:  # noqa: ANN401
        for _ in trial.epochs():
            trial.report(loss=step * trial["lr"])

    return train


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'studies.db'}"


def options(store: str, name: str, **changes: Any) -> Any:  # noqa: ANN401
    given: dict[str, Any] = {
        "space": {"lr": pl.grid([0.1, 0.2, 0.3, 0.4])},
        "metric": "loss",
        "mode": "min",
        "epochs": 6,
        "generator": "grid",
        "policy": "fifo",
        "slots": 2,
        "store": store,
        "name": name,
    }
    return {**given, **changes}


def train_group(
    store: str,
    name: str,
    configs: Sequence[Any],
    **changes: Any,  # noqa: ANN401
) -> list[pl.TrialResult]:
    """Train these configs to their last epoch in a study without a space."""
    given = options(store, name, **changes)
    given = {key: given[key] for key in given if key not in ("space", "generator", "policy")}
    with pl.Study(train_adding, **given) as study:
        return study.group([(config, given["epochs"]) for config in configs])


def lr(*pieces: tuple[int, float]) -> dict[str, Any]:
    return {"lr": pl.piecewise(pieces)}


def list_adopted(store: str, name: str) -> list[Adopted]:
    return [step.event for step in read_log(store, name) if isinstance(step.event, Adopted)]


def list_results(result: pl.Result) -> list[Any]:
    return [(trial.config, trial.status, trial.values, trial.metrics) for trial in result.trials]


def count_trained(store: str, name: str) -> int:
    return measure_sharing(read_log(store, name)).epochs_trained


def test_a_study_that_repeats_another_costs_nothing(store: str) -> None:
    first = pl.tune(train_adding, **options(store, "first"))
    again = pl.tune(train_adding, **options(store, "again"))
    assert list_results(again) == list_results(first)
    assert (count_trained(store, "first"), count_trained(store, "again")) == (24, 0)
    assert first.best is not None
    assert again.best is not None
    assert again.best.checkpoint is not None
    assert first.best.checkpoint is not None
    assert again.best.checkpoint.path != first.best.checkpoint.path
    assert again.best.checkpoint.load() == first.best.checkpoint.load()
    assert replay_log(read_log(store, "again")).difference is None


def test_reused_checkpoints_survive_the_deletion_of_the_other_study(
    store: str, tmp_path: Path
) -> None:
    first = pl.tune(train_adding, **options(store, "first"))
    again = pl.tune(train_adding, **options(store, "again"))
    assert first.best is not None
    assert again.best is not None
    assert again.best.checkpoint is not None
    before = again.best.checkpoint.load()
    assert first.best.checkpoint is not None
    shutil.rmtree(first.best.checkpoint.path.parents[1])
    assert again.best.checkpoint.load() == before
    third = pl.tune(train_adding, **options(store, "third"))
    assert third.best is not None
    assert third.best.checkpoint is not None, "the second study's copies were not found"
    assert third.best.checkpoint.load() == before
    assert count_trained(store, "third") == 0


def test_a_longer_study_trains_only_the_rest_and_gets_the_same_result(store: str) -> None:
    pl.tune(train_adding, **options(store, "short"))
    on = pl.tune(train_adding, **options(store, "long", epochs=9))
    alone = pl.tune(train_adding, **options(store, "alone", epochs=9, plan=None))
    assert list_results(on) == list_results(alone)
    assert (count_trained(store, "long"), count_trained(store, "alone")) == (4 * 3, 4 * 9)
    for trial, other in zip(on.trials, alone.trials, strict=True):
        assert trial.checkpoint is not None
        assert other.checkpoint is not None
        assert trial.checkpoint.load() == other.checkpoint.load()


def test_a_branch_starts_from_the_other_studys_checkpoint(store: str) -> None:
    # Two trials that differ after epoch 4 save a checkpoint there; a third one branches there too.
    train_group(store, "two", [lr((0, FAST), (4, SLOW)), lr((0, FAST), (4, 0.2))])
    (third,) = train_group(store, "third", [lr((0, FAST), (4, 0.3))])
    (alone,) = train_group(store, "alone", [lr((0, FAST), (4, 0.3))], plan=None)
    assert count_trained(store, "third") == 2
    assert third.values == alone.values
    assert third.checkpoint is not None
    assert alone.checkpoint is not None
    assert third.checkpoint.load() == alone.checkpoint.load()


def test_the_results_of_a_running_study_are_reused(store: str) -> None:
    given = options(store, "open", epochs=6)
    given = {key: given[key] for key in given if key not in ("space", "generator", "policy")}
    with pl.Study(train_adding, **given) as study:
        study.group([({"lr": FAST}, 3)])
        train_group(store, "beside", [{"lr": FAST}])
        assert count_trained(store, "beside") == 3
        assert study.group([({"lr": FAST}, 6)])[0].values[5] is not None


def test_a_prefix_of_another_path_is_written_once(store: str) -> None:
    long, part, fork = lr((0, FAST), (4, SLOW)), {"lr": FAST}, lr((0, FAST), (2, SLOW))
    given = options(store, "first")
    given = {key: given[key] for key in given if key not in ("space", "generator", "policy")}
    with pl.Study(train_adding, **given) as study:
        study.group([(long, 6), (part, 3), (fork, 6)])
    train_group(store, "again", [long])
    facts = list_adopted(store, "again")
    assert sorted((fact.after, len(fact.metrics)) for fact in facts) == [(0, 6), (2, 4)]
    names = [(fact.attempt, save.epoch) for fact in facts for save in fact.saves]
    assert len(names) == len(set(names))
    assert all(attempt < 0 for attempt, _ in names)


@pytest.mark.parametrize(
    "changes",
    [{"seed": 1}, {"plan": None}, {"share": False}, {"plan": "another"}],
    ids=["another seed", "no plan", "no sharing", "another plan"],
)
def test_a_study_with_another_key_reuses_nothing(store: str, changes: dict[str, Any]) -> None:
    pl.tune(train_adding, **options(store, "first"))
    pl.tune(train_adding, **options(store, "second", **changes))
    assert count_trained(store, "second") == 24
    assert list_adopted(store, "second") == []


def test_a_function_with_rays_api_reuses_nothing(store: str) -> None:
    pl.tune(train_with_rays_api, **options(store, "first", epochs=3))
    pl.tune(train_with_rays_api, **options(store, "second", epochs=3))
    assert count_trained(store, "second") == 12


def test_a_changed_function_warns_and_reuses_nothing(store: str) -> None:
    pl.tune(make_train(1.0), **options(store, "first"))
    with pytest.warns(
        UserWarning, match=r"`train` changed since study 'first' .* this study reuses nothing"
    ):
        other = pl.tune(make_train(2.0), **options(store, "second"))
    assert other.best is not None
    assert other.best.value == 0.2
    assert count_trained(store, "second") == 24
    # The latest study of this plan has the same code: no warning.
    pl.tune(make_train(2.0), **options(store, "third"))
    assert count_trained(store, "third") == 0


def test_the_command_line_prints_the_change_in_one_line(tmp_path: Path) -> None:
    file = write_study_file(tmp_path)
    assert run_command(tmp_path, "run", file, "--no-report", "--quiet").err == ""
    file.write_text(file.read_text("utf-8").replace("** 2", "** 4"), encoding="utf-8")
    ran = run_command(tmp_path, "run", file, "--no-report", "--quiet")
    assert ran.code == 0
    assert re.fullmatch(
        r"paceline: training function `train` changed since study 'study-1' "
        r"\(study.train@\w{12} then, study.train@\w{12} now\): this study reuses nothing of it.\n",
        ran.err,
    )


def test_a_resumed_study_with_a_changed_function_warns_and_runs(store: str) -> None:
    first = pl.tune(make_train(1.0), **options(store, "s"))
    with (
        pytest.warns(UserWarning, match="study 's' ended before"),
        pytest.warns(UserWarning, match="`train` changed .* was trained with the old one"),
    ):
        again = pl.tune(make_train(2.0), **options(store, "s"))
    assert list_results(again) == list_results(first)


def test_a_named_plan_is_trusted_without_a_digest(store: str) -> None:
    pl.tune(make_train(1.0), **options(store, "first", plan="steps"))
    pl.tune(make_train(2.0), **options(store, "second", plan="steps"))
    assert count_trained(store, "second") == 0
    with pytest.warns(UserWarning, match=r"plan changed .*\(steps then, steps@2 now\)"):
        pl.tune(make_train(2.0), **options(store, "third", plan="steps@2"))
    assert count_trained(store, "third") == 24


@pytest.mark.parametrize("given", ["", "@3", "steps@"])
def test_an_invalid_plan_is_refused(store: str, given: str) -> None:
    with pytest.raises(pl.SpecError, match=r"plan=.* give a name such as"):
        pl.Study(train_adding, **options(store, "s", plan=given))
    with pytest.raises(pl.SpecError, match="needs share=True"):
        pl.Study(train_adding, **options(store, "s", plan="steps", share=False))


def test_another_metric_of_the_same_reports_is_reused(store: str) -> None:
    pl.tune(train_adding, **options(store, "first"))
    result = pl.tune(train_adding, **options(store, "second", metric="weight", mode="max"))
    assert count_trained(store, "second") == 0
    assert result.best is not None
    assert result.best.config == {"lr": 0.4}
    assert result.best.value == result.best.metrics["weight"][-1]


def test_reports_without_the_metric_are_not_reused(store: str) -> None:
    pl.tune(make_train(1.0), **options(store, "first", plan="mine"))
    pl.tune(train_adding, **options(store, "second", plan="mine", metric="weight", mode="max"))
    assert count_trained(store, "second") == 24


def test_the_epochs_of_a_damaged_checkpoint_are_trained_again(store: str) -> None:
    first = pl.tune(train_adding, **options(store, "short"))
    for trial in first.trials:
        assert trial.checkpoint is not None
        with trial.checkpoint.path.open("r+b") as file:  # its hard links change too
            file.seek(-1, 2)
            file.write(b"\xff")
    on = pl.tune(train_adding, **options(store, "long", epochs=9))
    alone = pl.tune(train_adding, **options(store, "alone", epochs=9, plan=None))
    assert any(isinstance(step.event, Spoiled) for step in read_log(store, "long"))
    assert list_results(on) == list_results(alone)


def test_reports_are_reused_without_their_checkpoints(store: str) -> None:
    first = pl.tune(train_adding, **options(store, "short"))
    assert first.best is not None
    assert first.best.checkpoint is not None
    shutil.rmtree(first.best.checkpoint.path.parents[1])
    again = pl.tune(train_adding, **options(store, "again"))
    assert list_results(again) == list_results(first)
    assert count_trained(store, "again") == 0
    on = pl.tune(train_adding, **options(store, "long", epochs=9))
    alone = pl.tune(train_adding, **options(store, "alone", epochs=9, plan=None))
    assert list_results(on) == list_results(alone)


def test_checkpoints_of_another_folder_are_copied_if_they_cannot_be_linked(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(18, "another disk")

    monkeypatch.setattr("paceline.api.prior_studies.os.link", refuse)
    pl.tune(train_adding, **options(store, "first", files=tmp_path / "elsewhere"))
    again = pl.tune(train_adding, **options(store, "again"))
    assert again.best is not None
    assert again.best.checkpoint is not None
    assert again.best.checkpoint.path.stat().st_nlink == 1
    assert again.best.checkpoint.load()["weight"]


def test_a_resumed_driver_keeps_the_reused_results(store: str) -> None:
    pl.tune(train_adding, **options(store, "short"))

    def fail(state: StudyState, steps: Sequence[Step]) -> None:
        raise RuntimeError("the driver fails")

    with pytest.raises(RuntimeError, match="driver fails"):
        pl.Study(train_adding, **options(store, "long", epochs=9)).run(fail)
    on = pl.tune(train_adding, **options(store, "long", epochs=9))
    alone = pl.tune(train_adding, **options(store, "alone", epochs=9, plan=None))
    assert list_results(on) == list_results(alone)
    assert count_trained(store, "long") == 4 * 3
    assert replay_log(read_log(store, "long")).difference is None


def test_a_reused_checkpoint_is_deleted_when_no_trial_needs_it(store: str) -> None:
    pl.tune(train_adding, **options(store, "short"))
    on = pl.tune(train_adding, **options(store, "long", epochs=9, space={"lr": pl.grid([0.1])}))
    assert on.best is not None
    assert on.best.checkpoint is not None
    assert [path.name for path in on.best.checkpoint.path.parent.iterdir()] == ["0-9.ckpt"]


def test_the_plan_and_the_reuse_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = CommandLine(tmp_path, capsys, monkeypatch)
    pl.tune(train_adding, **options("paceline.db", "first"))
    result = pl.tune(train_adding, **options("paceline.db", "again"))
    key = str(compute_plan_key(train_adding))
    assert re.fullmatch(r"test_prior_studies\.train_adding@[0-9a-f]{12}", key)
    row = msgspec.json.decode(here("show", "again", "--json").out)["study"]
    assert (row["plan"], row["adopted"], row["epochs_trained"]) == (key, {"first": 4}, 0)
    listed = msgspec.json.decode(here("ls", "--json").out)["studies"]
    assert [(each["plan"], each["adopted"]) for each in listed] == [(key, {}), (key, {"first": 4})]
    tree = msgspec.json.decode(here("tree", "again", "--json").out)
    assert (tree["plan"], tree["epochs_adopted"], tree["epochs_trained"]) == (key, 24, 0)
    assert "24 different epochs from study 'first'" in here("tree", "again").out
    lines = "results of 4 configs of study 'first' are reused"
    assert lines in here("show", "again").out
    assert "reused from another study" in here("best", "again").out
    assert [line for line in narrate_study(result.log) if "reused" in line] == [f"0s: {lines}."]
    assert result.summary().adopted == {"first": 4}


def test_the_live_lines_name_the_reuse_once(store: str) -> None:
    pl.tune(train_adding, **options(store, "first"))
    story = LiveStory()
    lines: list[str] = []

    def watch(state: StudyState, steps: Sequence[Step]) -> None:
        lines.extend(each.text for each in story.take(state, steps))

    pl.Study(train_adding, **options(store, "again")).run(watch)
    given = [text for text in lines if "reused" in text]
    assert given == ["results of 4 configs of study 'first' are reused"]


# The version of a function

SOURCE = """
import math
from dataclasses import dataclass

import paceline as pl

RATE = 0.5
LAYERS = {{"wide": [32, 64]}}

@dataclass
class Model:
    size: tuple = (1, 2)

    def forward(self, x):
        return x * {factor}

def helper(x):
    return math.sqrt(x) + {constant}

def train(trial):{docstring}
    names = {{"a", "b", "c"}}
    for epoch in trial.epochs():{comment}
        trial.report(loss=helper(RATE) + len(LAYERS) + Model().forward(1) + ("a" in names))

study = pl.Study(train, space={{"a": pl.uniform(0, 1)}}, metric="loss", mode="min", epochs=3)
print(study.spec.plan)
"""
# Ways to execute a file; each gives its module another name.
IMPORTED = ("-c", "import model")
AS_A_SCRIPT = ("model.py",)
AS_A_STUDY_FILE = ("-c", "from paceline.cli.run import load_study; load_study('model.py')")


SECONDS = count(1_000_000_000)


def version(
    folder: Path,
    how: Sequence[str] = IMPORTED,
    change: tuple[str, str] = ("", ""),
    seed: str = "0",
    **changes: str,
) -> str:
    """Return the version of the file's function, computed in a new process."""
    given = {"factor": "2", "constant": "1", "docstring": "", "comment": "", **changes}
    source = SOURCE.format(**given)
    if change[0]:
        assert change[0] in source
        source = source.replace(*change)
    (folder / "model.py").write_text(source, encoding="utf-8")
    # Each text has its own time: Python compares only seconds and lengths with the compiled file.
    os.utime(folder / "model.py", (second := next(SECONDS), second))
    path = ":".join([str(folder), *filter(None, sys.path)])
    ran = subprocess.run(
        [sys.executable, *how],
        cwd=folder,
        env={"PYTHONHASHSEED": seed, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    name, _, found = ran.stdout.strip().partition("@")
    assert name == "model.train"
    return found


def test_comments_and_docstrings_do_not_change_the_version(tmp_path: Path) -> None:
    first = version(tmp_path)
    assert version(tmp_path, seed="7") == first, "by the compiled file of the run before"
    assert version(tmp_path, AS_A_SCRIPT) == first
    assert version(tmp_path, AS_A_STUDY_FILE) == first
    assert version(tmp_path, docstring='\n    """Train."""', comment="  # one by one\n") == first


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("math.sqrt(x) + 1", "math.sqrt(x) + 1.0"),
        ("x * 2", "x * 3"),
        pytest.param("RATE = 0.5", "RATE = 0.25", marks=pytest.mark.slow),
        pytest.param("[32, 64]", "[32, 65]", marks=pytest.mark.slow),
        ("math.sqrt", "math.exp"),
        pytest.param('"c"}', '"d"}', marks=pytest.mark.slow),
        pytest.param("(1, 2)", "(1, 3)", marks=pytest.mark.slow),
    ],
)
def test_a_change_of_the_code_changes_the_version(tmp_path: Path, old: str, new: str) -> None:
    assert version(tmp_path, change=(old, new)) != version(tmp_path)


def test_every_kind_of_callable_has_a_version() -> None:
    from functools import partial

    def train(step: float, trial: Any) -> None:  # noqa: ANN401
        trial.report(loss=step)

    class Trainer:
        def __call__(self, trial: Any) -> None:  # noqa: ANN401
            trial.report(loss=1.0)

        def method(self, trial: Any) -> None:  # noqa: ANN401
            trial.report(loss=2.0)

    one, two = compute_plan_key(partial(train, 1.0)), compute_plan_key(partial(train, 2.0))
    assert one is not None
    assert two is not None
    assert one.name == two.name
    assert one.version != two.version
    assert compute_plan_key(partial(train, 1.0)) == one
    called, method = compute_plan_key(Trainer()), compute_plan_key(Trainer().method)
    assert called is not None
    assert method is not None
    assert called.name.endswith("Trainer.__call__")
    assert method.name.endswith("Trainer.method")
    assert compute_plan_key(len) is None
