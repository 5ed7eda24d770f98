"""Ray Tune's trainables and spaces in studies, and policies as schedulers of Tune's own tuner."""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ray import tune
from ray.train._internal import session as tune_session
from ray.tune import report as report_by_name
from ray_clusters import RayCluster, connect

import paceline as pl
from paceline.core.errors import SpecError
from paceline.integrations import ray_tune

if TYPE_CHECKING:
    from collections.abc import Iterator


def train_with_folders(config: dict[str, Any]) -> None:
    """Train as in Tune's documentation: `tune.report` with a folder as checkpoint."""
    start, weight = 0, 0.0
    checkpoint = tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            saved = json.loads((Path(folder) / "state.json").read_text())
            start, weight = saved["epoch"], saved["weight"]
    for epoch in range(start, 9):
        weight += config["lr"] * (1 - weight)
        folder = Path(config["folder"]) / f"{tune.get_context().get_trial_id()}-{epoch}"
        folder.mkdir()
        (folder / "state.json").write_text(json.dumps({"epoch": epoch + 1, "weight": weight}))
        tune.report(
            {"loss": (1 - weight) ** 2, "text": "not a number", "nested": {"pid": os.getpid()}},
            checkpoint=tune.Checkpoint.from_directory(str(folder)),
        )


class Steps(tune.Trainable):  # type: ignore[misc]
    """The same as a class, which reads its step count from `self.iteration`."""

    def setup(self, config: dict[str, Any]) -> None:
        self.weight, self.rate = 0.0, config["lr"]

    def step(self) -> dict[str, float]:
        self.weight += self.rate * (1 - self.weight) / (1 + self.iteration)
        return {"loss": (1 - self.weight) ** 2, "steps": self.iteration + 1}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        (Path(checkpoint_dir) / "weight").write_text(repr(self.weight))

    def load_checkpoint(self, checkpoint: str) -> None:
        self.weight = float((Path(checkpoint) / "weight").read_text())


def test_a_tune_space_is_converted() -> None:
    given = {
        "lr": tune.loguniform(1e-4, 1e-1),
        "momentum": tune.uniform(0.5, 1.0),
        "decay": tune.quniform(0.0, 1.0, 0.25),
        "layers": tune.randint(1, 5),
        "width": tune.lograndint(8, 64),
        "batch": tune.qrandint(30, 128, 32),
        "net": {"act": tune.choice(["relu", "tanh"]), "depth": [1, tune.uniform(0, 1)]},
        "seed": tune.grid_search([1, 2]),
        "data": "cifar10",
    }
    assert ray_tune.space(given) == {
        "lr": pl.loguniform(1e-4, 1e-1),
        "momentum": pl.uniform(0.5, 1.0),
        "decay": pl.quniform(0.0, 1.0, 0.25),
        "layers": pl.randint(1, 5),
        "width": pl.lograndint(8, 64),
        "batch": pl.choice([32, 64, 96, 128]),
        "net": {"act": pl.choice(["relu", "tanh"]), "depth": [1, pl.uniform(0, 1)]},
        "seed": pl.grid([1, 2]),
        "data": "cifar10",
    }


@pytest.mark.parametrize(
    ("domain", "message"),
    [
        (tune.randn(0, 1), "x.y is a normal float"),
        (tune.qloguniform(1e-4, 1, 1e-4), "x.y is a quantised loguniform float"),
        (tune.sample_from(lambda spec: 1), "x.y is Ray Tune's sample_from"),
        (object(), "x.y is an object: a space holds domains"),
    ],
)
def test_a_domain_without_counterpart_is_refused_by_name(domain: object, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        ray_tune.space({"x": {"y": domain}})


def test_a_class_that_is_not_a_trainable_is_refused() -> None:
    with pytest.raises(SpecError, match="dict is not a Tune trainable"):
        ray_tune.trainable(dict)


def test_a_tune_function_pauses_and_resumes_from_its_own_checkpoint(tmp_path: Path) -> None:
    result = pl.tune(
        ray_tune.trainable(train_with_folders),
        space={
            **ray_tune.space({"lr": tune.choice([0.1, 0.2, 0.3, 0.4])}),
            "folder": str(tmp_path),
        },
        metric="loss",
        mode="min",
        epochs=9,
        policy="sha",
        generator="grid",
        slots=1,
    )
    best = result.best
    assert best is not None
    assert best.config["lr"] == 0.4
    assert best.value == pytest.approx((1 - 0.4) ** 18)
    # Halving has paused and resumed it, each time in a new process; no epoch was trained twice.
    assert len(set(best.metrics["nested/pid"])) > 1
    assert "text" not in best.metrics
    assert best.checkpoint is not None
    folder = best.checkpoint.to_directory(tmp_path / "best")
    assert json.loads((folder / "state.json").read_text())["epoch"] == 9


def test_tune_functions_reach_the_study_however_they_were_imported() -> None:
    def imports_inside(config: dict[str, Any]) -> None:
        from ray.tune import get_checkpoint, get_context
        from ray.tune import report as send

        assert get_checkpoint() is None
        name = get_context().get_trial_name()
        report_by_name({"loss": config["lr"], "id": int(name.removeprefix("trial_"))})
        send({"loss": config["lr"], "id": int(get_context().get_trial_id())})

    result = pl.tune(
        ray_tune.trainable(imports_inside),
        space={"lr": pl.grid([0.1, 0.2])},
        metric="loss",
        mode="min",
        epochs=2,
        generator="grid",
        policy="fifo",
        slots=1,
    )
    assert [trial.metrics["id"] for trial in result.trials] == [[0.0, 0.0], [1.0, 1.0]]
    # This process is not a trial: Tune's own functions are as they were.
    assert tune.report is report_by_name
    assert tune_session.get_session() is None


@pytest.mark.slow
def test_a_tune_class_continues_its_step_count_after_a_pause() -> None:
    def study(policy: str) -> Any:  # noqa: ANN401
        return pl.tune(
            ray_tune.trainable(Steps),
            space=ray_tune.space({"lr": tune.grid_search([0.1, 0.2, 0.3, 0.4])}),
            metric="loss",
            mode="min",
            epochs=9,
            policy=policy,
            generator="grid",
            slots=1,
        )

    paused, whole = study("sha").best, study("fifo").best
    assert paused.metrics["steps"] == list(range(1, 10))
    assert paused.metrics["loss"] == whole.metrics["loss"]


# Policies as schedulers of Tune


@pytest.fixture(scope="module")
def connection(ray_cluster: RayCluster) -> Iterator[None]:
    """Connect to the cluster that all tests on Ray share."""
    # Workers import this file's functions by module name.
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here), str(here.parent / "support")])
    runtime_env = {"env_vars": {"PYTHONPATH": paths}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with connect(ray_cluster, runtime_env=runtime_env):
            yield


def run_tuner(tmp_path: Path, scheduler: object, trials: int) -> Any:  # noqa: ANN401
    """Run `train_with_folders` in Tune with a scheduler."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tune.Tuner(
            train_with_folders,
            param_space={
                "lr": tune.grid_search([(1 + each) / 20 for each in range(trials)]),
                "folder": tune.sample_from(lambda spec: tempfile.mkdtemp(dir=tmp_path)),
            },
            tune_config=tune.TuneConfig(scheduler=scheduler),
            run_config=tune.RunConfig(storage_path=str(tmp_path / "results"), verbose=0),
        ).fit()


@pytest.mark.xdist_group("ray")
@pytest.mark.usefixtures("connection", "settled_cluster")
@pytest.mark.filterwarnings("ignore")
def test_tune_stops_and_promotes_by_a_policy(tmp_path: Path) -> None:
    scheduler = pl.tune_scheduler("asha:eta=2,drain=false", metric="loss", mode="min", epochs=4)
    results = run_tuner(tmp_path, scheduler, trials=4)
    epochs = {result.config["lr"]: result.metrics["training_iteration"] for result in results}
    assert not results.errors
    # Successive halving by pausing: some trial stays on the first rung, the best reaches the last.
    assert set(epochs.values()) <= {1, 2, 4}
    assert min(epochs.values()) == 1
    assert epochs[0.2] == 4


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
@pytest.mark.usefixtures("connection", "settled_cluster")
@pytest.mark.filterwarnings("ignore")
def test_a_target_ends_a_tune_run(tmp_path: Path) -> None:
    scheduler = pl.tune_scheduler("pop", metric="loss", mode="min", epochs=9, target=0.6)
    results = run_tuner(tmp_path, scheduler, trials=3)
    assert "the target is 0.6" in scheduler.debug_string()
    assert min(result.metrics["loss"] for result in results if "loss" in result.metrics) <= 0.6
    assert max(result.metrics.get("training_iteration", 0) for result in results) < 9


def test_a_policy_that_branches_is_refused() -> None:
    with pytest.raises(SpecError, match="branches trials, which Tune's schedulers cannot"):
        pl.tune_scheduler("pbt", metric="loss", mode="min", epochs=9)
