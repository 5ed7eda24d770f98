"""Studies of one plan in one store: what one has trained, the next does not train again."""

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
from cli_kit import Here, log_of, outside
from live_kit import study_file

import paceline as pl
from paceline.analysis.live_lines import Teller
from paceline.analysis.sharing import sharing_of
from paceline.analysis.story import study_story
from paceline.api.plan_key import key_of
from paceline.api.stored import replayed
from paceline.core.events import Adopted, Spoiled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from paceline.core.decisions import Step
    from paceline.machine.state import StudyState

FAST, SLOW = 0.5, 0.1


def learns(trial: Any) -> None:  # noqa: ANN401
    """Descend towards 1, at a speed that the learning rate decides."""
    weight = trial.keep(weight=[0.0])
    for _ in trial.epochs():
        weight[0] += trial["lr"] * (1.0 - weight[0])
        trial.report(loss=(1.0 - weight[0]) ** 2, weight=weight[0])


def in_rays_spelling(config: dict[str, Any]) -> None:
    """Report what the learning rate gives, epoch by epoch."""
    for epoch in range(3):
        pl.report({"loss": config["lr"] / (epoch + 1)})


def stepping(step: float) -> Callable[[Any], None]:
    """Return a training function that is the same but for its step."""

    def train(trial: Any) -> None:  # noqa: ANN401
        for _ in trial.epochs():
            trial.report(loss=step * trial["lr"])

    return train


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'studies.db'}"


def options(store: str, name: str, **changes: Any) -> Any:  # noqa: ANN401
    told: dict[str, Any] = {
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
    return {**told, **changes}


def grouped(store: str, name: str, configs: Sequence[Any], **changes: Any) -> list[pl.TrialResult]:  # noqa: ANN401
    """Train these configs to their last epoch in a study without a space."""
    told = options(store, name, **changes)
    told = {key: told[key] for key in told if key not in ("space", "generator", "policy")}
    with pl.Study(learns, **told) as study:
        return study.group([(config, told["epochs"]) for config in configs])


def lr(*pieces: tuple[int, float]) -> dict[str, Any]:
    return {"lr": pl.piecewise(pieces)}


def adopted(store: str, name: str) -> list[Adopted]:
    return [step.event for step in log_of(store, name) if isinstance(step.event, Adopted)]


def shown(result: pl.Result) -> list[Any]:
    return [(trial.config, trial.status, trial.values, trial.metrics) for trial in result.trials]


def trained(store: str, name: str) -> int:
    return sharing_of(log_of(store, name)).epochs_trained


def test_a_study_that_repeats_another_costs_nothing(store: str) -> None:
    first = pl.tune(learns, **options(store, "first"))
    again = pl.tune(learns, **options(store, "again"))
    assert shown(again) == shown(first)
    assert (trained(store, "first"), trained(store, "again")) == (24, 0)
    assert first.best is not None
    assert again.best is not None
    assert again.best.checkpoint is not None
    assert first.best.checkpoint is not None
    assert again.best.checkpoint.path != first.best.checkpoint.path
    assert again.best.checkpoint.load() == first.best.checkpoint.load()
    assert replayed(log_of(store, "again")).difference is None


def test_what_was_taken_over_stays_when_the_other_study_goes(store: str, tmp_path: Path) -> None:
    first = pl.tune(learns, **options(store, "first"))
    again = pl.tune(learns, **options(store, "again"))
    assert first.best is not None
    assert again.best is not None
    assert again.best.checkpoint is not None
    before = again.best.checkpoint.load()
    assert first.best.checkpoint is not None
    shutil.rmtree(first.best.checkpoint.path.parents[1])
    assert again.best.checkpoint.load() == before
    third = pl.tune(learns, **options(store, "third"))
    assert third.best is not None
    assert third.best.checkpoint is not None, "the second study's copies were not found"
    assert third.best.checkpoint.load() == before
    assert trained(store, "third") == 0


def test_a_study_that_goes_further_trains_the_rest_and_ends_as_one_alone(store: str) -> None:
    pl.tune(learns, **options(store, "short"))
    on = pl.tune(learns, **options(store, "long", epochs=9))
    alone = pl.tune(learns, **options(store, "alone", epochs=9, plan=None))
    assert shown(on) == shown(alone)
    assert (trained(store, "long"), trained(store, "alone")) == (4 * 3, 4 * 9)
    for trial, other in zip(on.trials, alone.trials, strict=True):
        assert trial.checkpoint is not None
        assert other.checkpoint is not None
        assert trial.checkpoint.load() == other.checkpoint.load()


def test_a_branch_starts_from_the_other_studys_checkpoint(store: str) -> None:
    # Two that part after epoch 4 leave a checkpoint there, and a third one parts there too.
    grouped(store, "two", [lr((0, FAST), (4, SLOW)), lr((0, FAST), (4, 0.2))])
    (third,) = grouped(store, "third", [lr((0, FAST), (4, 0.3))])
    (alone,) = grouped(store, "alone", [lr((0, FAST), (4, 0.3))], plan=None)
    assert trained(store, "third") == 2
    assert third.values == alone.values
    assert third.checkpoint is not None
    assert alone.checkpoint is not None
    assert third.checkpoint.load() == alone.checkpoint.load()


def test_a_study_that_is_still_running_gives_what_it_has(store: str) -> None:
    told = options(store, "open", epochs=6)
    told = {key: told[key] for key in told if key not in ("space", "generator", "policy")}
    with pl.Study(learns, **told) as study:
        study.group([({"lr": FAST}, 3)])
        grouped(store, "beside", [{"lr": FAST}])
        assert trained(store, "beside") == 3
        assert study.group([({"lr": FAST}, 6)])[0].values[5] is not None


def test_a_path_that_lies_on_another_is_not_told_twice(store: str) -> None:
    long, part, fork = lr((0, FAST), (4, SLOW)), {"lr": FAST}, lr((0, FAST), (2, SLOW))
    told = options(store, "first")
    told = {key: told[key] for key in told if key not in ("space", "generator", "policy")}
    with pl.Study(learns, **told) as study:
        study.group([(long, 6), (part, 3), (fork, 6)])
    grouped(store, "again", [long])
    facts = adopted(store, "again")
    assert sorted((fact.after, len(fact.metrics)) for fact in facts) == [(0, 6), (2, 4)]
    names = [(fact.attempt, save.epoch) for fact in facts for save in fact.saves]
    assert len(names) == len(set(names))
    assert all(attempt < 0 for attempt, _ in names)


@pytest.mark.parametrize(
    "changes",
    [{"seed": 1}, {"plan": None}, {"share": False}, {"plan": "another"}],
    ids=["another seed", "no plan", "no sharing", "another plan"],
)
def test_what_has_another_key_trains_for_itself(store: str, changes: dict[str, Any]) -> None:
    pl.tune(learns, **options(store, "first"))
    pl.tune(learns, **options(store, "second", **changes))
    assert trained(store, "second") == 24
    assert adopted(store, "second") == []


def test_rays_spelling_takes_nothing_over(store: str) -> None:
    pl.tune(in_rays_spelling, **options(store, "first", epochs=3))
    pl.tune(in_rays_spelling, **options(store, "second", epochs=3))
    assert trained(store, "second") == 12


def test_a_changed_function_warns_and_separates(store: str) -> None:
    pl.tune(stepping(1.0), **options(store, "first"))
    with pytest.warns(UserWarning, match=r"`train` changed since study 'first' .* nothing is sha"):
        other = pl.tune(stepping(2.0), **options(store, "second"))
    assert other.best is not None
    assert other.best.value == 0.2
    assert trained(store, "second") == 24
    # The last study of this name is the same: there is nothing to warn of.
    pl.tune(stepping(2.0), **options(store, "third"))
    assert trained(store, "third") == 0


def test_the_command_line_says_what_changed_in_one_line(tmp_path: Path) -> None:
    file = study_file(tmp_path)
    assert outside(tmp_path, "run", file, "--no-report", "--quiet").err == ""
    file.write_text(file.read_text("utf-8").replace("** 2", "** 4"), encoding="utf-8")
    ran = outside(tmp_path, "run", file, "--no-report", "--quiet")
    assert ran.code == 0
    assert re.fullmatch(
        r"paceline: training function `train` changed since study 'study-1' "
        r"\(study.train@\w{12} then, study.train@\w{12} now\): nothing is shared with it.\n",
        ran.err,
    )


def test_a_study_resumed_with_a_changed_function_warns_and_goes_on(store: str) -> None:
    first = pl.tune(stepping(1.0), **options(store, "s"))
    with pytest.warns(UserWarning, match="`train` changed since study 's' was opened"):
        again = pl.tune(stepping(2.0), **options(store, "s"))
    assert shown(again) == shown(first)


def test_whoever_names_a_plan_vouches_for_it(store: str) -> None:
    pl.tune(stepping(1.0), **options(store, "first", plan="steps"))
    pl.tune(stepping(2.0), **options(store, "second", plan="steps"))
    assert trained(store, "second") == 0
    with pytest.warns(UserWarning, match=r"plan changed .*\(steps then, steps@2 now\)"):
        pl.tune(stepping(2.0), **options(store, "third", plan="steps@2"))
    assert trained(store, "third") == 24


@pytest.mark.parametrize("given", ["", "@3", "steps@"])
def test_a_plan_that_cannot_be_meant_is_refused(store: str, given: str) -> None:
    with pytest.raises(pl.SpecError, match=r"plan=.* give a name such as"):
        pl.Study(learns, **options(store, "s", plan=given))
    with pytest.raises(pl.SpecError, match="where nothing is shared"):
        pl.Study(learns, **options(store, "s", plan="steps", share=False))


def test_another_metric_of_the_same_reports_is_looked_at(store: str) -> None:
    pl.tune(learns, **options(store, "first"))
    result = pl.tune(learns, **options(store, "second", metric="weight", mode="max"))
    assert trained(store, "second") == 0
    assert result.best is not None
    assert result.best.config == {"lr": 0.4}
    assert result.best.value == result.best.metrics["weight"][-1]


def test_reports_without_the_metric_are_of_no_use(store: str) -> None:
    pl.tune(stepping(1.0), **options(store, "first", plan="mine"))
    pl.tune(learns, **options(store, "second", plan="mine", metric="weight", mode="max"))
    assert trained(store, "second") == 24


def test_a_damaged_checkpoint_is_noticed_and_what_it_held_trained_again(store: str) -> None:
    first = pl.tune(learns, **options(store, "short"))
    for trial in first.trials:
        assert trial.checkpoint is not None
        with trial.checkpoint.path.open("r+b") as file:  # the other names of the file with it
            file.seek(-1, 2)
            file.write(b"\xff")
    on = pl.tune(learns, **options(store, "long", epochs=9))
    alone = pl.tune(learns, **options(store, "alone", epochs=9, plan=None))
    assert any(isinstance(step.event, Spoiled) for step in log_of(store, "long"))
    assert shown(on) == shown(alone)


def test_reports_count_where_the_checkpoints_are_gone(store: str) -> None:
    first = pl.tune(learns, **options(store, "short"))
    assert first.best is not None
    assert first.best.checkpoint is not None
    shutil.rmtree(first.best.checkpoint.path.parents[1])
    again = pl.tune(learns, **options(store, "again"))
    assert shown(again) == shown(first)
    assert trained(store, "again") == 0
    on = pl.tune(learns, **options(store, "long", epochs=9))
    alone = pl.tune(learns, **options(store, "alone", epochs=9, plan=None))
    assert shown(on) == shown(alone)


def test_files_elsewhere_are_found_and_copied_where_they_cannot_be_linked(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(18, "another disk")

    monkeypatch.setattr("paceline.api.prior_studies.os.link", refuse)
    pl.tune(learns, **options(store, "first", files=tmp_path / "elsewhere"))
    again = pl.tune(learns, **options(store, "again"))
    assert again.best is not None
    assert again.best.checkpoint is not None
    assert again.best.checkpoint.path.stat().st_nlink == 1
    assert again.best.checkpoint.load()["weight"]


def test_a_driver_that_dies_after_taking_over_goes_on_with_it(store: str) -> None:
    pl.tune(learns, **options(store, "short"))

    def die(state: StudyState, steps: Sequence[Step]) -> None:
        raise RuntimeError("the driver dies")

    with pytest.raises(RuntimeError, match="dies"):
        pl.Study(learns, **options(store, "long", epochs=9)).run(die)
    on = pl.tune(learns, **options(store, "long", epochs=9))
    alone = pl.tune(learns, **options(store, "alone", epochs=9, plan=None))
    assert shown(on) == shown(alone)
    assert trained(store, "long") == 4 * 3
    assert replayed(log_of(store, "long")).difference is None


def test_what_was_taken_over_is_collected_when_nobody_can_use_it(store: str) -> None:
    pl.tune(learns, **options(store, "short"))
    on = pl.tune(learns, **options(store, "long", epochs=9, space={"lr": pl.grid([0.1])}))
    assert on.best is not None
    assert on.best.checkpoint is not None
    assert [path.name for path in on.best.checkpoint.path.parent.iterdir()] == ["0-9.ckpt"]


def test_the_key_and_what_was_taken_over_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Here(tmp_path, capsys, monkeypatch)
    pl.tune(learns, **options("paceline.db", "first"))
    result = pl.tune(learns, **options("paceline.db", "again"))
    key = str(key_of(learns))
    assert re.fullmatch(r"test_studies_share\.learns@[0-9a-f]{12}", key)
    row = msgspec.json.decode(here("show", "again", "--json").out)["study"]
    assert (row["plan"], row["adopted"], row["epochs_trained"]) == (key, {"first": 4}, 0)
    listed = msgspec.json.decode(here("ls", "--json").out)["studies"]
    assert [(each["plan"], each["adopted"]) for each in listed] == [(key, {}), (key, {"first": 4})]
    tree = msgspec.json.decode(here("tree", "again", "--json").out)
    assert (tree["plan"], tree["epochs_adopted"], tree["epochs_trained"]) == (key, 24, 0)
    assert "24 different epochs from study 'first'" in here("tree", "again").out
    said = "what is known of 4 configs of study 'first' is taken over"
    assert said in here("show", "again").out
    assert "taken over from another study" in here("best", "again").out
    assert [line for line in study_story(result.log) if "taken over" in line] == [f"0s: {said}."]
    assert result.summary().adopted == {"first": 4}


def test_a_watcher_hears_once_what_is_taken_over(store: str) -> None:
    pl.tune(learns, **options(store, "first"))
    teller = Teller()
    said: list[str] = []

    def watch(state: StudyState, steps: Sequence[Step]) -> None:
        said.extend(each.text for each in teller.hear(state, steps))

    pl.Study(learns, **options(store, "again")).run(watch)
    told = [text for text in said if "taken over" in text]
    assert told == ["what is known of 4 configs of study 'first' is taken over"]


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
# Ways to execute a file, each with another name for its module.
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
    """Return the version that a fresh process finds of the function in a file."""
    told = {"factor": "2", "constant": "1", "docstring": "", "comment": "", **changes}
    source = SOURCE.format(**told)
    if change[0]:
        assert change[0] in source
        source = source.replace(*change)
    (folder / "model.py").write_text(source, encoding="utf-8")
    # Each text has a time of its own: by its length and second alone Python might take the last.
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


def test_a_version_is_that_of_what_is_executed(tmp_path: Path) -> None:
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
        ("RATE = 0.5", "RATE = 0.25"),
        ("[32, 64]", "[32, 65]"),
        ("math.sqrt", "math.exp"),
        ('"c"}', '"d"}'),
        ("(1, 2)", "(1, 3)"),
    ],
)
def test_a_change_of_what_is_executed_is_another_version(
    tmp_path: Path, old: str, new: str
) -> None:
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

    one, two = key_of(partial(train, 1.0)), key_of(partial(train, 2.0))
    assert one is not None
    assert two is not None
    assert one.name == two.name
    assert one.version != two.version
    assert key_of(partial(train, 1.0)) == one
    called, method = key_of(Trainer()), key_of(Trainer().method)
    assert called is not None
    assert method is not None
    assert called.name.endswith("Trainer.__call__")
    assert method.name.endswith("Trainer.method")
    assert key_of(len) is None
