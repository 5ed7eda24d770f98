"""Studies on this machine through the public API, and the mistakes a user may make."""

from __future__ import annotations

import os
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import paceline as pl
from paceline.api.options import Options
from paceline.api.registry import names
from paceline.core.events import ChangeSlots, StopStudy
from paceline.machine.invariants import complaints
from paceline.store import open_store

if TYPE_CHECKING:
    from collections.abc import Callable

SPACE = {"lr": pl.loguniform(0.01, 1.0), "width": pl.choice([1, 2])}


def learns(trial: Any) -> None:  # noqa: ANN401
    """Descend towards 1, at a speed that the learning rate decides."""
    weight = trial.keep(weight=[0.0])
    for _ in trial.epochs():
        weight[0] += trial["lr"] * (1.0 - weight[0]) / trial["width"]
        trial.report(loss=(1.0 - weight[0]) ** 2)


def options(**changes: Any) -> Any:  # noqa: ANN401
    told: dict[str, Any] = {
        "space": SPACE,
        "metric": "loss",
        "mode": "min",
        "epochs": 9,
        "generator": "random",
        "trials": 8,
        "slots": 2,
    }
    return {**told, **changes}


def test_the_public_names_are_frozen() -> None:
    assert paceline_names() == [
        "BrokenInvariant",
        "Checkpoint",
        "CheckpointError",
        "LogError",
        "PacelineError",
        "Part",
        "Ray",
        "Result",
        "SavedCheckpoint",
        "Search",
        "SimResult",
        "Simulation",
        "SpecError",
        "StoreError",
        "Study",
        "StudyFailed",
        "StudyNotFound",
        "Trace",
        "TraceError",
        "Trial",
        "TrialError",
        "TrialResult",
        "choice",
        "cosine",
        "cyclic",
        "each_epoch",
        "exponential",
        "get_checkpoint",
        "grid",
        "linear",
        "lograndint",
        "loguniform",
        "piecewise",
        "quniform",
        "randint",
        "read_trace",
        "report",
        "smooth",
        "step_decay",
        "together",
        "tune",
        "tune_scheduler",
        "uniform",
        "warmup",
        "write_trace",
    ]
    handle = {name for name in dir(pl.Trial) if not name.startswith("_")}
    assert handle >= {
        "changed",
        "config",
        "device",
        "epochs",
        "get",
        "id",
        "keep",
        "rank",
        "report",
        "seed",
        "value",
        "width",
    }
    assert {"run", "group", "close"} <= set(dir(pl.Study))
    assert {"best", "trials", "dataframe", "plot", "report", "story", "end", "why"} <= set(
        dir(pl.Result)
    )


def paceline_names() -> list[str]:
    return pl.__all__


def test_a_study_finds_the_best_config_and_keeps_its_checkpoint() -> None:
    result = pl.tune(learns, **options())
    assert result.end == "quiet"
    best = result.best
    assert best is not None
    assert best.value == min(trial.value for trial in result.trials if trial.value is not None)
    assert best.checkpoint is not None
    (weight,) = best.checkpoint.load()["weight"]
    assert (1.0 - weight) ** 2 == pytest.approx(best.values[best.checkpoint.epoch - 1])
    assert "the study ends" in result.story()
    assert "opened with" in result.story(best.id)
    assert repr(result).startswith("<Result 'learns-")


def test_a_result_is_drawn_and_reported(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'studies.db'}"
    result = pl.tune(learns, **options(trials=3, name="drawn", store=store))
    curves = result.plot("curves")
    drawn = {each for line in curves.data for each in line.customdata if each is not None}
    assert drawn == {0, 1, 2}
    with pytest.raises(pl.SpecError, match="unknown figure 'curve': did you mean 'curves'"):
        result.plot("curve")
    page = result.report(tmp_path / "drawn.html").read_text("utf-8")
    assert "paceline story --store" in page
    assert "paceline simulate" not in page


def test_a_result_is_a_dataframe() -> None:
    frame = pl.tune(learns, **options(trials=3)).dataframe()
    assert list(frame["trial"]) == [0, 1, 2]
    assert {"status", "value", "epoch", "seconds", "config.lr", "config.width"} <= set(frame)


def test_the_same_seed_trains_the_same() -> None:
    one, other = (pl.tune(learns, **options(policy="fifo", seed=3)) for _ in range(2))
    assert [t.config for t in one.trials] == [t.config for t in other.trials]
    assert [t.values for t in one.trials] == [t.values for t in other.trials]


def test_a_trial_that_does_not_listen_for_long_holds_nobody_up(tmp_path: Path) -> None:
    done = tmp_path / "done"

    def train(trial: Any) -> None:  # noqa: ANN401
        for epoch in trial.epochs():
            if trial["role"] == "waits" and epoch == 0:
                for _ in range(2_000):
                    if done.exists():
                        break
                    time.sleep(0.01)
                else:
                    raise TimeoutError("the other trial was held up")
            trial.report(loss=-epoch)
        done.touch()

    space = {"role": pl.choice(["waits", "talks"])}
    # The one that talks beats the study's best at each report, which the other is told.
    changes = {"space": space, "generator": "grid", "epochs": 3_000, "policy": "fifo"}
    result = pl.tune(train, **options(**changes))
    assert [trial.failures for trial in result.trials] == [0, 0]


class SlowToLoad:
    """Takes a while where it is unpickled, as the imports of a large framework do."""

    def __reduce__(self) -> tuple[Any, ...]:
        return time.sleep, (0.3,)


def test_the_clock_of_a_deadline_runs_from_the_call_and_counts_starting() -> None:
    slow = SlowToLoad()

    def train(trial: Any) -> None:  # noqa: ANN401
        assert slow is None  # what `sleep` returned
        learns(trial)

    result = pl.tune(train, **options(trials=1))
    assert result.log[1].event.at >= 0.3


def noisy(trial: Any) -> None:  # noqa: ANN401
    import random

    total = trial.keep(total=[0.0])
    random.random()  # what happens before the loop is no part of what is kept
    for _ in trial.epochs():
        total[0] += trial["lr"] * random.random()
        trial.report(loss=-total[0])


SCHEDULES = {
    "lr": pl.choice(
        [pl.piecewise([(0, 1.0), (3, b), (6, c)]) for b in (1.0, 0.5) for c in (0.5, 0.1)]
    )
}


def test_shared_prefixes_train_exactly_as_if_alone() -> None:
    runs = {
        share: pl.tune(
            noisy,
            **options(space=SCHEDULES, policy="fifo", generator="grid", trials=4, share=share),
        )
        for share in (True, False)
    }
    curves = [{str(t.config): t.values for t in run.trials} for run in runs.values()]
    assert curves[0] == curves[1]
    trained = [sum(type(s.event).__name__ == "Reported" for s in r.log) for r in runs.values()]
    assert trained[0] < trained[1] == 36


def test_a_study_in_a_store_goes_on_where_it_was(tmp_path: Path) -> None:
    store = str(tmp_path / "runs.db")
    first = pl.tune(learns, **options(name="s", store=store))
    again = pl.tune(learns, **options(name="s", store=store))
    assert [t.values for t in again.trials] == [t.values for t in first.trials]
    with pytest.raises(pl.SpecError, match="exists with another epochs"):
        pl.tune(learns, **options(name="s", store=store, epochs=3))
    assert list((tmp_path / "runs.files").iterdir())


def test_a_store_held_by_a_living_study_is_refused(tmp_path: Path) -> None:
    store = str(tmp_path / "runs.db")
    seen: list[str] = []

    def watch(state: Any, steps: Any) -> None:  # noqa: ANN401
        if not seen:
            try:
                pl.tune(learns, **options(name="s", store=store))
            except pl.StoreError as error:
                seen.append(str(error))

    pl.Study(learns, **options(name="s", store=store)).run(watch)
    assert len(seen) == 1
    assert "'s'" in seen[0]


def beats(trial: Any) -> None:  # noqa: ANN401
    count = trial.keep(count=[0])
    for _ in trial.epochs():
        time.sleep(0.01)
        count[0] += 1
        trial.report(loss=1.0 / count[0])


def test_a_command_in_the_inbox_stops_a_living_study(tmp_path: Path) -> None:
    store = str(tmp_path / "runs.db")
    study = pl.Study(beats, **options(name="s", store=store, epochs=10_000, policy="fifo"))
    posted = threading.Event()

    def watch(state: Any, steps: Any) -> None:  # noqa: ANN401
        if state.reports >= 4 and not posted.is_set():
            posted.set()
            other = open_store(store, create=False)
            other.post("s", ChangeSlots(1))
            other.post("s", StopStudy())
            other.close()

    result = study.run(watch)
    assert (result.end, result.why) == ("command", "a command asked for it")
    assert result.best is not None
    assert result.best.checkpoint is not None


def test_the_deadline_returns_the_best_checkpoint_whatever_trials_do() -> None:
    def sleeps(trial: Any) -> None:  # noqa: ANN401
        trial.keep(x=[1])
        for epoch in trial.epochs():
            trial.report(loss=1.0 / (epoch + 1))
            time.sleep(60)

    result = pl.tune(sleeps, **options(deadline=1.0, policy="fifo"))
    assert result.end == "deadline"
    assert result.best is not None
    assert result.best.checkpoint is not None


def test_a_deadline_may_be_a_time_of_day() -> None:
    soon = datetime.now(UTC) + timedelta(seconds=1)
    result = pl.tune(beats, **options(deadline=soon, epochs=10_000, policy="fifo"))
    assert result.end == "deadline"
    with pytest.raises(pl.SpecError, match="is over"):
        pl.tune(beats, **options(deadline=datetime.now(UTC) - timedelta(hours=1)))


def test_a_target_ends_the_study() -> None:
    result = pl.tune(beats, **options(target=0.25, epochs=100, policy="fifo"))
    assert result.end == "target"
    assert result.best is not None
    assert result.best.value == 0.25


def ray_style(config: dict[str, Any]) -> None:
    import tempfile

    start, weight = 0.0, 0.0
    checkpoint = pl.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            start, weight = map(float, Path(folder, "state.txt").read_text().split())
    for epoch in range(int(start), 9):
        weight += config["lr"] * (1.0 - weight)
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "state.txt").write_text(f"{epoch + 1} {weight!r}")
            pl.report(
                {"loss": (1.0 - weight) ** 2}, checkpoint=pl.Checkpoint.from_directory(folder)
            )


def test_rays_spelling_pauses_and_goes_on_from_its_directory(tmp_path: Path) -> None:
    result = pl.tune(ray_style, **options(space={"lr": pl.uniform(0.1, 0.9)}, trials=6))
    plain = {t.config["lr"]: t.values for t in result.trials}
    for lr, values in plain.items():
        weight, expected = 0.0, []
        for _ in values:
            weight += lr * (1.0 - weight)
            expected.append((1.0 - weight) ** 2)
        assert values == expected
    assert result.best is not None
    assert result.best.checkpoint is not None
    folder = result.best.checkpoint.to_directory(tmp_path / "best")
    assert (folder / "state.txt").read_text().startswith("9 ")
    with pytest.raises(pl.TrialError, match="outside a training function"):
        pl.report({"loss": 1.0})


def reports_more(trial: Any) -> None:  # noqa: ANN401
    for epoch in trial.epochs():
        extra = {"accuracy": 0.5 * epoch} if epoch else {}
        trial.report(loss=1.0 / (1 + epoch), **extra)


def test_every_metric_that_was_reported_is_in_the_result() -> None:
    result = pl.tune(reports_more, **options(epochs=3, trials=1, policy="fifo"))
    (trial,) = result.trials
    assert trial.metrics == {"loss": [1.0, 1 / 2, 1 / 3], "accuracy": [None, 0.5, 1.0]}


def test_an_outside_tuner_drives_groups() -> None:
    with pl.Study(learns, metric="loss", mode="min", epochs=9, slots=2) as study:
        configs = [{"lr": lr, "width": 1} for lr in (0.1, 0.5, 0.9)]
        first = study.group([(config, 3) for config in configs])
        assert [len(trial.values) for trial in first] == [3, 3, 3]
        best = min(first, key=lambda trial: trial.values[-1] or 0.0)
        assert best.config["lr"] == 0.9
        (on,) = study.group([(best.config, 9)])
        # It goes on from its checkpoint: the first three epochs are known.
        assert on.values[:3] == best.values
        assert len(on.values) == 9
        with pytest.raises(pl.SpecError, match="no space"):
            study.run()
    with pytest.raises(pl.SpecError, match="finds its own configs"):
        pl.Study(learns, **options()).group([])


@pytest.mark.parametrize("allocator", names("allocator"))
def test_several_groups_are_trained_at_once_under_any_allocator(allocator: str) -> None:
    given: dict[str, Any] = {"metric": "loss", "mode": "min", "epochs": 6, "slots": 2}
    with pl.Study(learns, **given, allocator=allocator, pack=2) as study:
        slow = study.submit([({"lr": lr, "width": 1}, 6) for lr in (0.1, 0.2, 0.3)])
        quick = study.submit(
            [({"lr": lr, "width": 1}, until) for lr, until in ((0.4, 1), (0.5, 3))]
        )
        assert [len(trial.values) for trial in quick.wait()] == [1, 3]
        done = slow.wait()
        assert [trial.config["lr"] for trial in done] == [0.1, 0.2, 0.3]
        assert [len(trial.values) for trial in done] == [6, 6, 6]


def test_unneeded_checkpoints_are_deleted_and_the_budget_is_kept(tmp_path: Path) -> None:
    def heavy(trial: Any) -> None:  # noqa: ANN401
        state = trial.keep(state={"blob": b"x" * 50_000, "n": 0})
        for _ in trial.epochs():
            state["n"] += 1
            trial.report(loss=trial["lr"] / state["n"])

    files = tmp_path / "files"
    result = pl.tune(heavy, **options(files=files, checkpoint_bytes=220_000, trials=12))
    kept = list((files / "checkpoints").iterdir())
    assert sum(path.stat().st_size for path in kept) <= 220_000
    assert result.best is not None
    assert result.best.checkpoint is not None
    assert result.best.checkpoint.load()["state"]["n"] == result.best.checkpoint.epoch


def test_a_trial_that_fails_is_an_event_and_the_study_goes_on() -> None:
    def fragile(trial: Any) -> None:  # noqa: ANN401
        for epoch in trial.epochs():
            if trial["lr"] > 0.3 and epoch == 2:
                os._exit(3)
            trial.report(loss=trial["lr"])

    result = pl.tune(fragile, **options(policy="fifo", retries=1, trials=6))
    fates = {trial.config["lr"] > 0.3: trial.status for trial in result.trials}
    assert fates[True] == "failed"
    assert fates[False] == "finished"


# Mistakes get one-sentence answers


def never_reports(trial: Any) -> None:  # noqa: ANN401
    trial.keep(x=1)


def reports_text(trial: Any) -> None:  # noqa: ANN401
    for _ in trial.epochs():
        trial.report(loss="low")


def reads_early(trial: Any) -> None:  # noqa: ANN401
    trial["lr"]
    for _ in trial.epochs():
        trial.report(loss=1.0)


def forgets_a_report(trial: Any) -> None:  # noqa: ANN401
    for _ in trial.epochs():
        pass


def keeps_an_object(trial: Any) -> None:  # noqa: ANN401
    trial.keep(model=object())
    for _ in trial.epochs():
        trial.report(loss=1.0)


@pytest.mark.parametrize(
    ("train", "changes", "complaint"),
    [
        (never_reports, {}, "without one report"),
        (learns, {"metric": "accuracy"}, "the study's metric is 'accuracy'"),
        (reports_text, {}, "reported as a str"),
        (reads_early, {"space": SCHEDULES, "generator": "grid"}, "no value before the first epoch"),
        (forgets_a_report, {}, "ended without a report"),
        (keeps_an_object, {"retries": 0}, "cannot be written"),
    ],
)
def test_a_function_that_cannot_work_is_told_why(
    train: Callable[..., Any],
    changes: dict[str, Any],
    complaint: str,
) -> None:
    with pytest.raises(pl.StudyFailed) as error:
        pl.tune(train, **options(**changes))
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


def holding_a_lock() -> Any:  # noqa: ANN401
    lock = threading.Lock()

    def train(trial: Any) -> None:  # noqa: ANN401
        with lock:
            trial.report(loss=1.0)

    return train


@pytest.mark.parametrize(
    ("train", "changes", "complaint"),
    [
        (lambda a, b: None, {}, "takes a, b"),
        (lambda: None, {}, "takes nothing"),
        (holding_a_lock(), {}, "cannot be sent to workers"),
        (learns, {"space": {}}, "the space is empty"),
        (learns, {"space": {"lr": pl.uniform(1, 0)}}, "the low end must be below"),
        (learns, {"target": float("nan")}, "target=nan"),
        (learns, {"trails": 3}, "did you mean 'trials'"),
        (learns, {"policy": "ahsa"}, "did you mean 'asha'"),
        (learns, {"slots": 0}, "cannot train anything"),
        (learns, {"slots": "gpu:2"}, "asks for GPUs"),
        (learns, {"slots": "two"}, "cannot be read"),
        (learns, {"deadline": "soon"}, "is no duration"),
        (learns, {"store": "runs.db"}, "needs a name"),
        (learns, {"mode": "up"}, "say 'min' or 'max'"),
    ],
)
def test_a_study_that_cannot_be_meant_is_refused(
    train: Callable[..., Any],
    changes: dict[str, Any],
    complaint: str,
) -> None:
    with pytest.raises(pl.SpecError) as error:
        pl.tune(train, **options(**changes))
    assert complaint in str(error.value)


def test_a_target_of_the_wrong_sign_is_doubted_in_the_reason() -> None:
    result = pl.tune(learns, **options(target=1e6))
    assert (result.why or "").endswith("even the first report is past it: check its sign, and mode")


@pytest.mark.parametrize("missing", ["metric", "mode", "epochs"])
def test_what_has_no_default_is_asked_for(missing: str) -> None:
    given = options()
    del given[missing]
    with pytest.raises(pl.SpecError, match=f"{missing} is missing"):
        pl.tune(learns, **given)


def test_every_option_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    for name in Options.__annotations__:
        assert f"| `{name}` |" in text, name


@pytest.fixture(autouse=True)
def _states_are_sound(machines: list[Any]) -> Any:  # noqa: ANN401
    yield
    for machine in machines:
        if machine.state.number:
            assert complaints(machine.state) == []
