"""Studies on this machine through the public API, and the errors of wrong usage."""

from __future__ import annotations

import os
import re
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import paceline as pl
from paceline.api.options import Options
from paceline.api.registry import list_parts
from paceline.core.events import ChangeSlots, StopStudy
from paceline.machine.invariants import find_violations
from paceline.store import open_store

if TYPE_CHECKING:
    from collections.abc import Callable

SPACE = {"lr": pl.loguniform(0.01, 1.0), "width": pl.choice([1, 2])}


def train_adding(trial: Any) -> None:  # noqa: ANN401
    """Descend towards 1, at a speed that the learning rate decides."""
    weight = trial.keep(weight=[0.0])
    for _ in trial.epochs():
        weight[0] += trial["lr"] * (1.0 - weight[0]) / trial["width"]
        trial.report(loss=(1.0 - weight[0]) ** 2)


def options(**changes: Any) -> Any:  # noqa: ANN401
    given: dict[str, Any] = {
        "space": SPACE,
        "metric": "loss",
        "mode": "min",
        "epochs": 9,
        "generator": "random",
        "trials": 8,
        "slots": 2,
    }
    return {**given, **changes}


def test_the_public_names_are_frozen() -> None:
    assert list_public_names() == [
        "BrokenInvariant",
        "Checkpoint",
        "CheckpointError",
        "ClusterLost",
        "LogError",
        "NoResult",
        "PacelineError",
        "PacelineWarning",
        "Part",
        "Ray",
        "Result",
        "SavedCheckpoint",
        "Search",
        "SimResult",
        "Simulation",
        "SpecError",
        "StoreError",
        "StoredStudy",
        "Study",
        "StudyFailed",
        "StudyNotFound",
        "Trace",
        "TraceError",
        "Trial",
        "TrialError",
        "TrialPruned",
        "TrialResult",
        "choice",
        "cosine",
        "cyclic",
        "each_epoch",
        "exponential",
        "get_checkpoint",
        "grid",
        "linear",
        "load",
        "lograndint",
        "loguniform",
        "piecewise",
        "quniform",
        "randint",
        "read_trace",
        "report",
        "smooth",
        "step_decay",
        "studies",
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


def list_public_names() -> list[str]:
    return pl.__all__


def test_a_study_finds_the_best_config_and_keeps_its_checkpoint() -> None:
    result = pl.tune(train_adding, **options())
    assert result.end == "quiet"
    best = result.best
    assert best is not None
    assert best.value == min(trial.value for trial in result.trials if trial.value is not None)
    assert best.checkpoint is not None
    (weight,) = best.checkpoint.load()["weight"]
    assert (1.0 - weight) ** 2 == pytest.approx(best.values[best.checkpoint.epoch - 1])
    assert "the study ends" in result.story()
    assert "opened with" in result.story(best.id)
    assert repr(result).startswith("<Result 'train_adding-")


def test_a_result_draws_figures_and_writes_a_report(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'studies.db'}"
    result = pl.tune(train_adding, **options(trials=3, name="drawn", store=store))
    curves = result.plot("curves")
    drawn = {each for line in curves.data for each in line.customdata if each is not None}
    assert drawn == {0, 1, 2}
    with pytest.raises(pl.SpecError, match="unknown figure 'curve': did you mean 'curves'"):
        result.plot("curve")
    page = result.report(tmp_path / "drawn.html").read_text("utf-8")
    assert "paceline story --store" in page
    assert "paceline simulate" not in page


def test_a_result_converts_to_a_dataframe() -> None:
    frame = pl.tune(train_adding, **options(trials=3)).dataframe()
    assert list(frame["trial"]) == [0, 1, 2]
    assert {"status", "value", "epoch", "seconds", "config.lr", "config.width"} <= set(frame)


def test_a_dataframe_has_every_metric() -> None:
    def train(trial: pl.Trial) -> dict[str, float]:
        return {"loss": 0.5, "size": 3.0 + trial.id}

    given: Any = {"space": {"lr": pl.uniform(0, 1)}, "trials": 2, "slots": 1, "progress": False}
    frame = pl.tune(train, metric="loss", mode="min", **given).dataframe()
    assert list(frame["last.size"]) == [3.0, 4.0]


def test_the_same_seed_gives_the_same_result() -> None:
    one, other = (pl.tune(train_adding, **options(policy="fifo", seed=3)) for _ in range(2))
    assert [t.config for t in one.trials] == [t.config for t in other.trials]
    assert [t.values for t in one.trials] == [t.values for t in other.trials]


def test_a_trial_that_does_not_read_its_messages_blocks_no_other(tmp_path: Path) -> None:
    done = tmp_path / "done"

    def train(trial: Any) -> None:  # noqa: ANN401
        for epoch in trial.epochs():
            if trial["role"] == "waits" and epoch == 0:
                for _ in range(12_000):
                    if done.exists():
                        break
                    time.sleep(0.01)
                else:
                    raise TimeoutError("the other trial was held up")
            trial.report(loss=-epoch)
        done.touch()

    space = {"role": pl.choice(["waits", "talks"])}
    # The reporting trial beats the study's best each time, which is sent to the other trial.
    changes = {"space": space, "generator": "grid", "epochs": 3_000, "policy": "fifo"}
    result = pl.tune(train, **options(**changes))
    assert [trial.failures for trial in result.trials] == [0, 0]


class SlowToLoad:
    """Takes a while to unpickle, as the imports of a large framework do."""

    def __reduce__(self) -> tuple[Any, ...]:
        return time.sleep, (0.3,)


def test_a_deadline_counts_from_the_call_and_includes_the_start() -> None:
    slow = SlowToLoad()

    def train(trial: Any) -> None:  # noqa: ANN401
        assert slow is None  # what `sleep` returned
        train_adding(trial)

    result = pl.tune(train, **options(trials=1))
    assert result.log[1].event.at >= 0.3


def train_with_noise(trial: Any) -> None:  # noqa: ANN401
    import random

    total = trial.keep(total=[0.0])
    random.random()  # draws before the loop are not part of the checkpoint
    for _ in trial.epochs():
        total[0] += trial["lr"] * random.random()
        trial.report(loss=-total[0])


SCHEDULES = {
    "lr": pl.choice(
        [pl.piecewise([(0, 1.0), (3, b), (6, c)]) for b in (1.0, 0.5) for c in (0.5, 0.1)]
    )
}


def test_shared_prefixes_give_the_same_results_as_separate_training() -> None:
    runs = {
        share: pl.tune(
            train_with_noise,
            **options(space=SCHEDULES, policy="fifo", generator="grid", trials=4, share=share),
        )
        for share in (True, False)
    }
    curves = [{str(t.config): t.values for t in run.trials} for run in runs.values()]
    assert curves[0] == curves[1]
    trained = [sum(type(s.event).__name__ == "Reported" for s in r.log) for r in runs.values()]
    assert trained[0] < trained[1] == 36


def test_a_study_in_a_store_is_resumed_by_the_same_call(tmp_path: Path) -> None:
    store = str(tmp_path / "runs.db")
    first = pl.tune(train_adding, **options(name="s", store=store))
    with pytest.warns(
        pl.PacelineWarning, match="study 's' ended before .* nothing was trained now"
    ):
        again = pl.tune(train_adding, **options(name="s", store=store))
    assert [t.values for t in again.trials] == [t.values for t in first.trials]
    with pytest.raises(pl.SpecError, match="trains 9 epochs, and epochs=3 is less"):
        pl.tune(train_adding, **options(name="s", store=store, epochs=3))
    assert list((tmp_path / "runs.files").iterdir())


def test_a_study_that_another_driver_runs_is_refused(tmp_path: Path) -> None:
    store = str(tmp_path / "runs.db")
    seen: list[str] = []

    def watch(state: Any, steps: Any) -> None:  # noqa: ANN401
        if not seen:
            try:
                pl.tune(train_adding, **options(name="s", store=store))
            except pl.StoreError as error:
                seen.append(str(error))

    pl.Study(train_adding, **options(name="s", store=store)).run(watch)
    assert len(seen) == 1
    assert "'s'" in seen[0]


def train_improving(trial: Any) -> None:  # noqa: ANN401
    count = trial.keep(count=[0])
    for _ in trial.epochs():
        time.sleep(0.01)
        count[0] += 1
        trial.report(loss=1.0 / count[0])


def test_a_command_in_the_inbox_stops_a_running_study(tmp_path: Path) -> None:
    store = str(tmp_path / "runs.db")
    study = pl.Study(
        train_improving, **options(name="s", store=store, epochs=10_000, policy="fifo")
    )
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


def test_the_deadline_returns_the_best_checkpoint_in_time() -> None:
    def train_slowly(trial: Any) -> None:  # noqa: ANN401
        trial.keep(x=[1])
        for epoch in trial.epochs():
            trial.report(loss=1.0 / (epoch + 1))
            time.sleep(60)

    # On a busy machine, the first report may come after the first deadlines.
    for deadline in (1.0, 8.0, 64.0):
        result = pl.tune(train_slowly, **options(deadline=deadline, policy="fifo"))
        assert result.end == "deadline"
        if result.best_or_none is not None:
            break
    assert result.best is not None
    assert result.best.checkpoint is not None


def test_a_deadline_may_be_a_time_of_day() -> None:
    soon = datetime.now(UTC) + timedelta(seconds=3)
    result = pl.tune(train_improving, **options(deadline=soon, epochs=10_000, policy="fifo"))
    assert result.end == "deadline"
    with pytest.raises(pl.SpecError, match="has passed"):
        pl.tune(train_improving, **options(deadline=datetime.now(UTC) - timedelta(hours=1)))


def test_a_target_ends_the_study() -> None:
    result = pl.tune(train_improving, **options(target=0.25, epochs=100, policy="fifo"))
    assert result.end == "target"
    assert result.best is not None
    assert result.best.value == 0.25


def train_with_rays_api(config: dict[str, Any]) -> None:
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


def test_a_function_with_rays_api_is_paused_and_resumed_from_its_directory(tmp_path: Path) -> None:
    result = pl.tune(train_with_rays_api, **options(space={"lr": pl.uniform(0.1, 0.9)}, trials=6))
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


def test_the_result_has_every_reported_metric() -> None:
    result = pl.tune(reports_more, **options(epochs=3, trials=1, policy="fifo"))
    (trial,) = result.trials
    assert trial.metrics == {"loss": [1.0, 1 / 2, 1 / 3], "accuracy": [None, 0.5, 1.0]}


def test_an_outside_tuner_trains_groups() -> None:
    with pl.Study(train_adding, metric="loss", mode="min", epochs=9, slots=2) as study:
        configs = [{"lr": lr, "width": 1} for lr in (0.1, 0.5, 0.9)]
        first = study.group([(config, 3) for config in configs])
        assert [len(trial.values) for trial in first] == [3, 3, 3]
        best = min(first, key=lambda trial: trial.values[-1] or 0.0)
        assert best.config["lr"] == 0.9
        (on,) = study.group([(best.config, 9)])
        # It starts from its checkpoint: the first three epochs are known.
        assert on.values[:3] == best.values
        assert len(on.values) == 9
        with pytest.raises(pl.SpecError, match="no space"):
            study.run()
    with pytest.raises(pl.SpecError, match="finds its own configs"):
        pl.Study(train_adding, **options()).group([])


@pytest.mark.parametrize("allocator", list_parts("allocator"))
def test_several_groups_are_trained_at_once_with_any_allocator(allocator: str) -> None:
    given: dict[str, Any] = {"metric": "loss", "mode": "min", "epochs": 6, "slots": 2}
    # Some give whole slots only.
    given |= {"span": 2} if allocator in ("uniform", "top", "softmax") else {"pack": 2}
    with pl.Study(train_adding, **given, allocator=allocator) as study:
        slow = study.submit([({"lr": lr, "width": 1}, 6) for lr in (0.1, 0.2, 0.3)])
        quick = study.submit(
            [({"lr": lr, "width": 1}, until) for lr, until in ((0.4, 1), (0.5, 3))]
        )
        assert [len(trial.values) for trial in quick.wait()] == [1, 3]
        done = slow.wait()
        assert [trial.config["lr"] for trial in done] == [0.1, 0.2, 0.3]
        assert [len(trial.values) for trial in done] == [6, 6, 6]


def test_unneeded_checkpoints_are_deleted_and_the_budget_is_kept(tmp_path: Path) -> None:
    def train_with_large_checkpoints(trial: Any) -> None:  # noqa: ANN401
        state = trial.keep(state={"blob": b"x" * 50_000, "n": 0})
        for _ in trial.epochs():
            state["n"] += 1
            trial.report(loss=trial["lr"] / state["n"])

    files = tmp_path / "files"
    result = pl.tune(
        train_with_large_checkpoints, **options(files=files, checkpoint_bytes=220_000, trials=12)
    )
    kept = list((files / "checkpoints").iterdir())
    assert sum(path.stat().st_size for path in kept) <= 220_000
    assert result.best is not None
    assert result.best.checkpoint is not None
    assert result.best.checkpoint.load()["state"]["n"] == result.best.checkpoint.epoch


def test_a_trial_that_fails_is_an_event_and_the_study_goes_on() -> None:
    def train_failing(trial: Any) -> None:  # noqa: ANN401
        for epoch in trial.epochs():
            if trial["lr"] > 0.3 and epoch == 2:
                os._exit(3)
            trial.report(loss=trial["lr"])

    with pytest.warns(pl.PacelineWarning, match="4 of 6 trials .* its process exited with code 3"):
        result = pl.tune(train_failing, **options(policy="fifo", retries=1, trials=6))
    statuses = {trial.config["lr"] > 0.3: trial.status for trial in result.trials}
    assert statuses[True] == "failed"
    assert statuses[False] == "finished"


# Wrong usage gives one sentence


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
        (never_reports, {}, "reported nothing"),
        (train_adding, {"metric": "accuracy"}, "not the study's metric 'accuracy'"),
        (reports_text, {}, "reported as the text 'low'"),
        (reads_early, {"space": SCHEDULES, "generator": "grid"}, "no value before the first epoch"),
        (forgets_a_report, {}, "ended without a report"),
        (keeps_an_object, {"retries": 0}, "cannot be written"),
    ],
)
def test_a_wrong_training_function_fails_with_the_reason(
    train: Callable[..., Any],
    changes: dict[str, Any],
    complaint: str,
) -> None:
    with pytest.raises(pl.StudyFailed) as error:
        pl.tune(train, **options(**changes))
    sentence, *details = str(error.value).splitlines()
    assert complaint in sentence
    assert "test_study.py" in sentence
    assert re.match(r"The output of trial \d is in ", details[-1])  # the first that failed


def make_train_with_lock() -> Any:  # noqa: ANN401
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
        (make_train_with_lock(), {}, "cannot be sent to workers"),
        (train_adding, {"space": {}}, "the space is empty"),
        (train_adding, {"space": {"lr": pl.uniform(1, 0)}}, "the low end must be below"),
        (train_adding, {"target": float("nan")}, "target=nan"),
        (train_adding, {"trails": 3}, "did you mean 'trials'"),
        (train_adding, {"policy": "ahsa"}, "did you mean 'asha'"),
        (train_adding, {"slots": 0}, "slots=0 is invalid: must be at least 1"),
        (train_adding, {"slots": "gpu:2"}, "needs GPUs, but none was found"),
        (train_adding, {"slots": "two"}, "slots='two' is invalid"),
        (train_adding, {"deadline": "soon"}, "is not a duration"),
        (train_adding, {"store": "runs.db"}, "needs a name"),
        (train_adding, {"mode": "up"}, "must be 'min' or 'max'"),
    ],
)
def test_a_study_with_invalid_options_is_refused(
    train: Callable[..., Any],
    changes: dict[str, Any],
    complaint: str,
) -> None:
    with pytest.raises(pl.SpecError) as error:
        pl.tune(train, **options(**changes))
    assert complaint in str(error.value)


def test_the_reason_doubts_a_target_of_the_wrong_sign() -> None:
    result = pl.tune(train_adding, **options(target=1e6))
    assert (result.why or "").endswith("even the first report is past it: check its sign, and mode")


def test_a_metric_needs_its_mode() -> None:
    given = options()
    del given["mode"]
    with pytest.raises(pl.SpecError, match="mode is missing"):
        pl.tune(train_adding, **given)


def test_every_option_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    for name in Options.__annotations__:
        assert f"| `{name}` |" in text, name


@pytest.fixture(autouse=True)
def _check_invariants(machines: list[Any]) -> Any:  # noqa: ANN401
    yield
    for machine in machines:
        if machine.state.number:
            assert find_violations(machine.state) == []
