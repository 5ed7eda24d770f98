"""Objectives and scripts written for Optuna: run unchanged, resumed, exported and read."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from difflib import ndiff
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import optuna
import pytest
from optuna.trial import TrialState
from waiting import LIMIT_S

import paceline as pl
from paceline.core.events import Suggested

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.decisions import Step
    from paceline.machine.state import StudyState

SCRIPTS = Path(__file__).parents[2] / "examples" / "scripts"
NAME = "by-run"


def objective(trial: Any) -> float:  # noqa: ANN401
    """Report three steps of a curve in a conditional space."""
    layers = trial.suggest_int("layers", 1, 3)
    widths = [trial.suggest_int(f"width{at}", 8, 64, step=8) for at in range(layers)]
    last = trial.suggest_int("last", 1, layers)
    rate = trial.suggest_float("rate", 1e-3, 1.0, log=True)
    trial.set_user_attr("size", sum(widths))
    loss = 0.0
    for step in range(3):
        loss = rate + last / (step + 1)
        trial.report(loss, step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return loss


def prune_at_once(trial: Any) -> float:  # noqa: ANN401
    """Prune by the function's own decision."""
    x = trial.suggest_float("x", 0, 1)
    trial.report(x, 0)
    if trial.number % 2:
        raise pl.TrialPruned("not good enough")
    return float(x)


def return_nothing_to_tune(trial: Any) -> float:  # noqa: ANN401
    """Ask for nothing."""
    return float(trial.number)


# Scripts


def read_lines(name: str) -> list[str]:
    """Return the lines of a script that are not blank."""
    return [line for line in (SCRIPTS / f"{name}.py").read_text().splitlines() if line.strip()]


def test_one_line_of_a_script_changes() -> None:
    before, after = read_lines("optuna_original"), read_lines("optuna_paceline")
    changed = [line for line in ndiff(before, after) if line[0] in "-+"]
    assert changed == ["- import optuna", "+ from paceline.integrations import optuna"]
    page = (SCRIPTS.parents[1] / "docs" / "from-optuna.md").read_text()
    assert f"1 of its\n{len(before)} lines changes" in page


def run_script(name: str, folder: Path) -> str:
    """Run a script in a folder; return what it prints."""
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / f"{name}.py")],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_changed_script_finds_the_best_trial(tmp_path: Path) -> None:
    printed = run_script("optuna_paceline", tmp_path)
    assert re.search(r"^30 trials, \d+ pruned$", printed, re.M)
    assert re.search(r"^best [\d.]+ in trial \d+: \{'lr': .*\}$", printed, re.M)


@pytest.mark.slow
def test_the_original_script_runs(tmp_path: Path) -> None:
    assert "30 trials" in run_script("optuna_original", tmp_path)


# Studies


def test_an_objective_runs_in_parallel_processes_with_a_policy() -> None:
    result = pl.optuna.tune(
        objective,
        n_trials=12,
        n_jobs=2,
        pruner=pl.optuna.pruners.MedianPruner(n_startup_trials=2),
        progress=False,
    )
    assert len(result.trials) == 12
    assert result.best_params == result.best_trial.params == result.best.config
    assert result.best_value == result.best.value
    for trial in result.trials:
        assert trial.status in ("finished", "stopped")
        assert len(trial.values) == 3 or trial.status == "stopped"
        sizes = [value for name, value in trial.params.items() if name.startswith("width")]
        assert len(sizes) == trial.params["layers"] >= trial.params["last"]
        assert trial.user_attrs == {"size": sum(sizes)}
    story = result.story(0)
    assert "trial 0 asks for layers=" in story
    assert "trial 0 notes size=" in story


def test_an_objective_may_prune_by_its_own_decision() -> None:
    result = pl.tune(prune_at_once, trials=4, slots=2, progress=False)
    assert [trial.status for trial in result.trials] == ["finished", "stopped"] * 2
    assert "its function raised TrialPruned" in result.story(1)
    assert [trial.failures for trial in result.trials] == [0] * 4


def test_a_function_that_asks_for_nothing_ends_with_a_warning() -> None:
    with pytest.warns(pl.PacelineWarning, match="the training function asks for no hyperparameter"):
        result = pl.tune(return_nothing_to_tune, trials=50, slots="inline", progress=False)
    assert result.best_value == 0.0
    assert len(result.trials) < 50


def test_a_policy_that_pauses_trials_gives_them_the_same_values_again() -> None:
    with pytest.warns(pl.PacelineWarning, match="keeps nothing, so a paused trial starts over"):
        result = pl.tune(
            objective, epochs=3, trials=6, slots=2, policy="asha:eta=2,first=1", progress=False
        )
    asked: dict[int, list[Any]] = {}
    for step in result.log:
        if isinstance(step.event, Suggested):
            asked.setdefault(step.event.trial, []).append(step.event.params)
    assert any(len(params) > 1 for params in asked.values())
    assert all(each == params[0] for params in asked.values() for each in params)


def drive(store: str, kill_at: int) -> None:
    """Run a study of one slot; kill this process when a trial has reported twice."""

    def watch(state: StudyState, steps: Sequence[Step]) -> None:
        if len(state.trials) == kill_at > 0 and state.trials[-1].epoch == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    study = pl.Study(objective, trials=6, slots=1, seed=3, name=NAME, store=store, policy="fifo")
    study.run(watch)


def test_a_killed_study_resumes_with_the_same_hyperparameters(tmp_path: Path) -> None:
    code = "import sys, test_optuna; test_optuna.drive(sys.argv[1], int(sys.argv[2]))"
    configs = []
    for name, kill_at in (("whole", 0), ("killed", 3)):
        store = str(tmp_path / f"{name}.db")
        command = [sys.executable, "-c", code, store, str(kill_at)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(command, env=environment, timeout=LIMIT_S, check=False)
        assert done.returncode == (-signal.SIGKILL if kill_at else 0)
        study = pl.Study(
            objective, trials=6, slots=1, seed=3, name=NAME, store=store, policy="fifo"
        )
        result = study.run(lambda *_: None) if kill_at else pl.load(NAME, store)
        assert [trial.status for trial in result.trials] == ["finished"] * 6
        configs.append([trial.config for trial in result.trials])
    assert configs[0] == configs[1]


def test_optimize_goes_on_with_the_trials_before() -> None:
    study = pl.optuna.create_study(direction="maximize", seed=1)
    study.optimize(prune_at_once, n_trials=3, n_jobs=1, show_progress_bar=False)
    study.optimize(prune_at_once, n_trials=2, n_jobs=2, show_progress_bar=False)
    assert [trial.number for trial in study.trials] == [0, 1, 2, 3, 4]
    assert [trial.state for trial in study.get_trials(states=[TrialState.PRUNED])] == [
        *(TrialState.PRUNED, TrialState.PRUNED)
    ]
    values = [trial.value or 0.0 for trial in study.trials if trial.state is TrialState.COMPLETE]
    assert study.best_value == max(values) == study.best_trial.value
    assert study.best_params == {"x": study.best_value}
    assert study.direction is optuna.study.StudyDirection.MAXIMIZE


# ask and tell


def test_the_program_may_train_itself() -> None:
    with pl.optuna.create_study() as study:
        study.enqueue_trial({"x": 0.5})
        first, second = study.ask(), study.ask()
        assert first.suggest_float("x", 0, 1) == 0.5
        second.suggest_float("x", 0, 1)
        second.set_user_attr("note", "second")
        study.tell(second, state=TrialState.FAIL)
        study.tell(first.number, 0.25)
        with pytest.raises(pl.SpecError, match="trial 0 was not asked for, or its value is known"):
            study.tell(first, 1.0)
        one, two = study.trials
    assert (one.state, one.value, one.params) == (TrialState.COMPLETE, 0.25, {"x": 0.5})
    assert (two.state, two.user_attrs) == (TrialState.FAIL, {"note": "second"})


def test_ask_takes_distributions() -> None:
    given = {
        "rate": optuna.distributions.FloatDistribution(1e-3, 1.0, log=True),
        "width": optuna.distributions.IntDistribution(8, 64, step=8),
        "act": optuna.distributions.CategoricalDistribution(["relu", None]),
    }
    with pl.optuna.create_study() as study:
        trial = study.ask(given)
        assert list(trial.params) == ["rate", "width", "act"]
        study.tell(trial, trial.params["rate"])
        assert study.trials[0].distributions == given
        with pytest.raises(pl.SpecError, match="ask: 'rate' is of class float: give a Float"):
            study.ask({"rate": 0.5})  # type: ignore[dict-item]


def test_telling_a_finished_trial_again_can_be_skipped() -> None:
    with pl.optuna.create_study() as study:
        trial = study.ask()
        study.tell(trial, 0.25)
        study.tell(trial, 1.0, skip_if_finished=True)
        study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
        with pytest.raises(pl.SpecError, match="trial 9 was not asked for"):
            study.tell(9, 1.0, skip_if_finished=True)
        assert [each.value for each in study.best_trials] == [0.25]
        assert study.directions == [optuna.study.StudyDirection.MINIMIZE]


def test_a_trial_of_ask_may_be_pruned() -> None:
    with pl.optuna.create_study(policy="kill_below:value=0.9", direction="maximize") as study:
        trial = study.ask()
        trial.suggest_int("n", 1, 4)
        trial.report(0.95, 0)
        assert not trial.should_prune()
        study.tell(trial, 0.99)
        trial = study.ask()
        trial.suggest_int("n", 1, 4)
        trial.report(0.5, 0)
        assert trial.should_prune()
        trial.report(0.5, 1)  # goes nowhere
        study.tell(trial, state="pruned")
        assert [each.state.name for each in study.trials] == ["COMPLETE", "PRUNED"]
        assert study.trials[1].intermediate_values == {0: 0.5}


def test_a_trial_of_ask_may_report_more_than_a_socket_holds() -> None:
    with pl.optuna.create_study() as study:
        first, second = study.ask(), study.ask()
        for step in range(1000):
            first.report(1.0 + step, step)
            second.report(2.0 + step, step)
        study.tell(second, 0.5)
        study.tell(first, 0.25)
        values = [each.intermediate_values for each in study.trials]
    assert [each[999] for each in values] == [1000.0, 1001.0]
    assert {len(each) for each in values} <= {1000, 1001}


def test_a_study_in_a_storage_can_be_left_and_loaded(tmp_path: Path) -> None:
    where: dict[str, Any] = {"storage": str(tmp_path / "runs.db"), "study_name": "lasting"}
    with pl.optuna.create_study(**where) as study:
        trial = study.ask()
        x = trial.suggest_float("x", 0, 1)
        trial.report(1.0, 0)
        assert not trial.should_prune()
    with pytest.raises(pl.SpecError, match="the storage has a study named 'lasting' already"):
        pl.optuna.create_study(**where)
    with pl.optuna.load_study(**where) as study:
        again = study.ask()  # it was never told a value
        assert (again.number, again.suggest_float("x", 0, 1)) == (0, x)
        again.report(1.0, 0)
        study.tell(again, 0.5)
        assert study.best_value == 0.5


def test_telling_something_else_than_a_number_is_refused() -> None:
    with pl.optuna.create_study() as study:
        with pytest.raises(pl.SpecError, match="no trial was asked for"):
            study.tell(0, 1.0)
        trial = study.ask()
        with pytest.raises(pl.SpecError, match="trial 0 was told the text 'good': tell a number"):
            study.tell(trial, "good")  # type: ignore[arg-type]
        with pytest.raises(pl.SpecError, match="state='done' is invalid"):
            study.tell(trial, state="done")
        study.tell(trial, 1.0)


# Options


@pytest.mark.parametrize(
    ("pruner", "policy"),
    [
        (pl.optuna.pruners.NopPruner(), "fifo"),
        (pl.optuna.pruners.MedianPruner(3, 2), "median:grace=2,least=3"),
        (pl.optuna.pruners.PercentilePruner(50.0), "median:grace=0,least=5"),
        (pl.optuna.pruners.SuccessiveHalvingPruner(2, 3, 1), "asha_stop:eta=3,first=6"),
        (pl.optuna.pruners.HyperbandPruner(), "asha_stop:eta=3,first=1"),
        (pl.optuna.pruners.PatientPruner(None, 4), "plateau:patience=4,least=0.0"),
        (optuna.pruners.NopPruner(), "fifo"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_pruner_stands_for_a_policy(pruner: object, policy: str) -> None:
    with pl.optuna.create_study(pruner=pruner) as study:
        study.ask()
        opened = study.result.log[0].event
    assert str(opened.spec.policy) == policy  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: pl.optuna.create_study(pruner=optuna.pruners.MedianPruner()),
            r"does not show its arguments: write pl.optuna.pruners.MedianPruner\(…\)",
        ),
        (
            lambda: pl.optuna.create_study(pruner=optuna.pruners.ThresholdPruner(upper=1.0)),
            "pruner=ThresholdPruner has no counterpart: give one of",
        ),
        (lambda: pl.optuna.pruners.PercentilePruner(25.0), "has no counterpart: use MedianPruner"),
        (lambda: pl.optuna.pruners.MedianPruner(interval_steps=2), "interval_steps=2 has no"),
        (lambda: pl.optuna.pruners.HyperbandPruner(bootstrap_count=1), "bootstrap_count=1 has no"),
        (
            lambda: pl.optuna.pruners.PatientPruner(pl.optuna.pruners.NopPruner(), 3),
            "PatientPruner around another pruner has no counterpart",
        ),
        (lambda: pl.optuna.create_study(directions=["minimize", "maximize"]), "has one objective"),
        (lambda: pl.optuna.create_study(direction="up"), "direction='up' is invalid"),
        (lambda: pl.optuna.create_study(storage="runs.db"), "a study in a storage needs a name"),
        (
            lambda: pl.optuna.tune(objective, n_trials=3, trials=4),
            "n_trials=3 and trials=4 say the same: give one",
        ),
        (
            lambda: pl.optuna.create_study().optimize(objective, callbacks=[print]),
            "callbacks=… is not supported",
        ),
        (lambda: pl.optuna.create_study().best_value, "the study has no trials yet"),
        (lambda: pl.tune(objective, share=True), "share=True needs a space"),
        (lambda: pl.tune(objective, needs=lambda setting: 1.0), "needs=… needs a space"),
    ],
)
def test_what_has_no_counterpart_is_refused(call: Any, message: str) -> None:  # noqa: ANN401
    with pytest.raises(pl.SpecError, match=message):
        call()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("stop", "study.stop is not available: give n_trials or timeout"),
        ("set_user_attr", "attach values to trials by trial.set_user_attr"),
        ("metric_names", r"study.metric_names is not available: study.to_optuna\(\) returns"),
        ("optimise", "the study has no attribute 'optimise'$"),
    ],
)
def test_what_a_study_lacks_says_what_to_use_instead(name: str, message: str) -> None:
    with pytest.raises(AttributeError, match=message):
        getattr(pl.optuna.create_study(), name)


def test_storages_of_optuna_are_refused_with_the_way_to_use_them(tmp_path: Path) -> None:
    where = f"sqlite:///{tmp_path}/optuna.db"
    optuna.create_study(study_name="old", storage=where)
    memory: Any = optuna.storages.InMemoryStorage()
    for call in (pl.optuna.load_study, partial(pl.optuna.create_study, load_if_exists=True)):
        with pytest.raises(pl.StoreError, match=r"is a database of Optuna: give another file\. To"):
            call(study_name="old", storage=where)
        with pytest.raises(pl.SpecError, match=r"storage=InMemoryStorage\(…\) is of Optuna: give"):
            call(study_name="old", storage=memory)
    with pytest.raises(pl.StoreError, match=r"there is no store at .*missing\.db"):
        pl.optuna.load_study(study_name="old", storage=str(tmp_path / "missing.db"))


def test_other_names_are_optunas() -> None:
    assert pl.optuna.samplers is optuna.samplers
    assert pl.optuna.trial.TrialState is TrialState
    with pytest.raises(AttributeError, match="neither Optuna nor paceline"):
        _ = pl.optuna.nothing
    with pytest.raises(AttributeError, match="WilcoxonPruner has no counterpart"):
        _ = pl.optuna.pruners.WilcoxonPruner


# Optuna's storages


def test_a_study_can_be_exported_to_optunas_storage(tmp_path: Path) -> None:
    with pl.optuna.create_study(seed=1) as study:
        for _ in range(3):
            trial = study.ask()
            value = trial.suggest_float("x", 0, 1)
            trial.suggest_categorical("shape", [[1], [2, 3]])
            trial.report(value + 1, 0)
            study.tell(trial, value)
        result = study.result
    storage = f"sqlite:///{tmp_path}/optuna.db"
    pl.optuna.export(result, storage, "copy")
    copy = optuna.load_study(study_name="copy", storage=storage)
    assert [trial.value for trial in copy.trials] == [each.values[-1] for each in result.trials]
    assert copy.best_value == min(each.values[-1] or 0.0 for each in result.trials)
    assert copy.trials[0].distributions["shape"].choices == ("[1]", "[2, 3]")  # type: ignore[attr-defined]
    assert copy.trials[0].intermediate_values[0] == result.trials[0].values[0]
    with pytest.raises(pl.SpecError, match="the storage has a study named 'copy' already"):
        pl.optuna.export(result, storage, "copy")


def test_a_study_with_a_space_can_be_exported_by_its_name(tmp_path: Path) -> None:
    store = str(tmp_path / "runs.db")
    space = {"x": pl.quniform(0.1, 1, 0.25), "net": pl.choice([{"width": pl.randint(1, 9)}, "no"])}
    pl.tune(
        lambda config: config["x"],
        space=space,
        trials=3,
        slots="inline",
        name="spaced",
        store=store,
        progress=False,
    )
    copy = pl.optuna.export("spaced", store=store)
    assert [trial.state.name for trial in copy.trials] == ["COMPLETE"] * 3
    assert all(trial.params["x"] == trial.value for trial in copy.trials)
    with pytest.raises(pl.SpecError, match=r"export\('spaced', …\) needs the study's store"):
        pl.optuna.export("spaced")


def make_optuna_study(direction: Literal["minimize", "maximize"] = "minimize") -> optuna.Study:
    """Return an Optuna study that knows the quadratic well."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        direction=direction, sampler=optuna.samplers.TPESampler(seed=1), study_name="known"
    )
    study.optimize(lambda trial: (trial.suggest_float("x", -10, 10) - 3) ** 2, n_trials=40)
    return study


@pytest.mark.parametrize("space", [None, {"x": pl.uniform(-10, 10)}], ids=["asked", "given"])
def test_a_study_learns_from_an_optuna_study(space: Any) -> None:  # noqa: ANN401
    def quadratic(trial: Any) -> float:  # noqa: ANN401
        return float((trial.suggest_float("x", -10, 10) - 3) ** 2)

    options: dict[str, Any] = {} if space is None else {"space": space}
    known = make_optuna_study()
    result = pl.tune(
        quadratic, warm_start=known, trials=3, slots="inline", progress=False, **options
    )
    # Without it the first proposals would be random.
    assert sum(abs(trial.config["x"] - 3) < 2.5 for trial in result.trials) >= 2
    assert "the generator learns from study 'known'" in result.story()


def test_an_optuna_study_that_does_not_fit_is_refused() -> None:
    known = make_optuna_study("maximize")
    with pytest.raises(pl.SpecError, match="'known' has the direction maximize, and this study"):
        pl.tune(objective, warm_start=known, trials=2, slots="inline", progress=False)
    with pytest.raises(pl.SpecError, match="'known' has nothing to learn from: none of its 40"):
        pl.tune(
            objective,
            space={"lr": pl.uniform(0, 1)},
            mode="max",
            warm_start=known,
            trials=2,
            slots="inline",
            progress=False,
        )


# Studies without a space, whose configs an outside tuner gives


def test_a_study_without_a_space_takes_configs_from_an_outside_tuner_if_it_gives_some() -> None:
    study = pl.Study(prune_at_once, slots=1, progress=False)
    assert study.spec.define_by_run
    with study:
        # The function of this trial finds the config that the tuner gave.
        (trial,) = study.group([({"x": 0.5}, 1)])
        assert (trial.config, trial.value) == ({"x": 0.5}, 0.5)
        with pytest.raises(pl.SpecError, match="this study has no space, so it has nothing to run"):
            study.run()


def take_config(config: dict[str, Any]) -> float:
    """Take a config, which some space has to give."""
    return float(config["x"])


def test_a_function_that_takes_a_config_needs_a_space() -> None:
    with pytest.raises(pl.SpecError, match=r"give space=\{…\}, or let the function take the trial"):
        pl.tune(take_config, trials=3)
