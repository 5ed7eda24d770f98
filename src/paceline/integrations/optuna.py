"""Optuna's interface on Paceline: objectives written for Optuna, run unchanged and in parallel.

`tune(objective, n_trials=100)` returns a Result. `create_study(…)` returns an object with
`optimize`, `ask`, `tell`, `trials` and `best_params`, so that a script changes its import alone:
`import paceline.integrations.optuna as optuna`. Its trials and values are Optuna's own objects. Any
other name (`samplers`, `distributions`, `visualization`, …) is Optuna's.
"""

from __future__ import annotations

from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

import optuna as _optuna

from paceline.api.ask_tell import AskTell
from paceline.api.load import load
from paceline.api.locations import make_temporary_folder
from paceline.api.stored import open_existing
from paceline.api.study import Study as PacelineStudy
from paceline.api.study import tune as run_study
from paceline.core.errors import SpecError, StoreError, TrialPruned, make_unknown_error
from paceline.integrations import optuna_pruners as pruners
from paceline.integrations.optuna_export import export
from paceline.integrations.optuna_pruners import find_policy
from paceline.store import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence

    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial, TrialState

    from paceline.api.ask_tell import AskedTrial
    from paceline.api.results import Result
    from paceline.worker.trial import Trial

    Objective = Callable[[Trial], Any]

__all__ = ["OptunaStudy", "TrialPruned", "create_study", "export", "load_study", "pruners", "tune"]

# Optuna's name for an option of `pl.tune`, where the two only differ in their spelling.
_SPELLINGS = {
    "n_trials": "trials",
    "timeout": "deadline",
    "n_jobs": "slots",
    "study_name": "name",
    "storage": "store",
    "sampler": "generator",
    "pruner": "policy",
    "direction": "mode",
}


def tune(
    objective: Objective,
    n_trials: int | None = None,
    timeout: float | None = None,
    direction: str = "minimize",
    **options: Any,  # noqa: ANN401
) -> Result:
    """Run an objective that was written for Optuna; return the result.

    Takes Optuna's `sampler`, `pruner`, `n_jobs`, `study_name` and `storage`, and every option of
    `pl.tune`, such as slots=4, policy="asha_stop" or progress=False.
    """
    given = {"n_trials": n_trials, "timeout": timeout, "direction": direction, **options}
    return run_study(objective, **_translate(given))


def create_study(
    *,
    storage: str | None = None,
    sampler: BaseSampler | str | None = None,
    pruner: object = None,
    study_name: str | None = None,
    direction: str | None = None,
    load_if_exists: bool = False,
    directions: Sequence[str] | None = None,
    **options: Any,  # noqa: ANN401
) -> OptunaStudy:
    """Return a study as Optuna's function of this name does.

    `storage` is a store of Paceline's, such as `sqlite:///runs.db`; without one the study is kept
    until the program ends. Further options are those of `pl.tune`.
    """
    if storage is not None:
        storage = _read_storage(storage)
    if directions is not None and len(directions) > 1:
        raise SpecError(f"directions={directions!r}: a study has one objective. Give direction=….")
    if storage is not None and study_name is None:
        raise SpecError("a study in a storage needs a name: give study_name='…', to find it again.")
    if storage is not None and not load_if_exists and _exists(storage, study_name):
        raise SpecError(
            f"the storage has a study named {study_name!r} already: give load_if_exists=True to go "
            "on with it, or give another study_name."
        )
    given = {
        "storage": storage,
        "sampler": sampler,
        "pruner": pruner,
        "study_name": study_name,
        "direction": direction or (directions[0] if directions else "minimize"),
        **options,
    }
    return OptunaStudy(_translate(given))


def load_study(*, study_name: str, storage: str, **options: Any) -> OptunaStudy:  # noqa: ANN401
    """Return a study that is in a storage already, to read it or to go on with it.

    Give the sampler and the pruner that it was created with.
    """
    with open_existing(_read_storage(storage)) as store:
        if study_name not in store.studies():
            raise SpecError(f"the storage has no study named {study_name!r}: use create_study(…).")
    return create_study(study_name=study_name, storage=storage, load_if_exists=True, **options)


class OptunaStudy:
    """A study with Optuna's methods. Trials and values are those of a copy in Optuna's memory."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        if "store" not in options:
            # A store with a name, so that the study lasts from one `optimize` to the next.
            options["store"] = f"memory:{uuid4().hex}"
            options.setdefault("name", "study")
            options.setdefault("files", make_temporary_folder())
        # Keeps a store in memory alive.
        self._store = open_store(options["store"], create=True)
        self._result: Result | None = None
        self._session: AskTell | None = None
        self._first: list[dict[str, Any]] = []
        # The copy in Optuna's memory, and the number of steps of the log it was made of.
        self._copy: tuple[int, _optuna.Study] | None = None

    def optimize(
        self,
        func: Objective,
        n_trials: int | None = None,
        timeout: float | None = None,
        n_jobs: int | None = None,
        **others: Any,  # noqa: ANN401
    ) -> None:
        """Run more trials in parallel processes: this number of them, or for this many seconds.

        `n_jobs` is the number of processes, by default one for each core. Of Optuna's other
        arguments `show_progress_bar` shows the live view. A trial that raises is tried again and
        then counts as failed, whatever `catch` says; the study fails if all its trials do. Each
        trial has a process of its own, so that `gc_after_trial` has no effect.
        """
        _check_others(others)
        self.close()
        options = dict(self._options)
        if n_trials is not None:
            options["trials"] = n_trials + len(self._list_known())
        if timeout is not None:
            options["deadline"] = timeout + (0.0 if self._result is None else self._result.clock_s)
        if n_jobs is not None:
            options.update(_translate({"n_jobs": n_jobs}))
        if others.get("show_progress_bar") is not None:
            options["progress"] = others["show_progress_bar"]
        self._result = run_study(func, **self._add_first(options))

    def ask(self, fixed_distributions: Mapping[str, BaseDistribution] | None = None) -> AskedTrial:
        """Return a trial to train in this program; `tell` its value afterwards.

        Hyperparameters whose distributions are given are suggested at once.
        """
        fixed = (fixed_distributions or {}).items()
        suggestions = [_find_suggestion(name, each) for name, each in fixed]
        if self._session is None:
            options = {**self._options, "slots": "cpu:1", "retries": 0}
            study = PacelineStudy(_ask, **self._add_first(options))
            self._session = AskTell(study.open_driver())
        trial = self._session.ask()
        for suggest in suggestions:
            suggest(trial)
        return trial

    def tell(
        self,
        trial: AskedTrial | int,
        values: float | None = None,
        state: Any = None,  # noqa: ANN401 - a name, or Optuna's TrialState
        skip_if_finished: bool = False,
    ) -> None:
        """Say how a trial that was asked for went."""
        if self._session is None:
            raise SpecError("no trial was asked for: call study.ask() first.")
        if skip_if_finished and self._session.is_told(trial):
            return
        self._session.tell(trial, values, getattr(state, "name", state) or "")
        self._result = self._session.result

    def enqueue_trial(self, params: Mapping[str, Any]) -> None:
        """Try these hyperparameters first; before the first trial of the study."""
        if self._result is not None or self._list_known():
            raise SpecError(
                "enqueue_trial after the first trial is not supported: call it before optimize."
            )
        self._first.append(dict(params))

    @property
    def result(self) -> Result:
        """The study as Paceline sees it: curves, checkpoints, stories, plots."""
        if self._session is not None:
            self._result = self._session.result
        if self._result is None:
            self._result = self._load()
        if self._result is None:
            raise SpecError("the study has no trials yet: call optimize, or ask and tell.")
        return self._result

    @property
    def trials(self) -> list[FrozenTrial]:
        """All trials, as Optuna's objects."""
        return self.get_trials()

    def get_trials(
        self, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """Return all trials, or those in some states, as Optuna's objects."""
        return self.to_optuna().get_trials(deepcopy=deepcopy, states=states)

    @property
    def best_trial(self) -> FrozenTrial:
        """The complete trial with the best value, as Optuna's object."""
        return self.to_optuna().best_trial

    @property
    def best_trials(self) -> list[FrozenTrial]:
        """The best trial, in a list: a study has one objective."""
        return self.to_optuna().best_trials

    @property
    def best_params(self) -> dict[str, Any]:
        """The hyperparameters of the best trial."""
        return self.result.trials[self.best_trial.number].config

    @property
    def best_value(self) -> float:
        """The best value that a complete trial returned."""
        return self.to_optuna().best_value

    @property
    def study_name(self) -> str:
        """The study's name."""
        return str(self._options["name"])

    @property
    def direction(self) -> _optuna.study.StudyDirection:
        """Whether the value is minimised or maximised."""
        directions = _optuna.study.StudyDirection
        return directions.MINIMIZE if self._options["mode"] == "min" else directions.MAXIMIZE

    @property
    def directions(self) -> list[_optuna.study.StudyDirection]:
        """The direction, in a list: a study has one objective."""
        return [self.direction]

    def trials_dataframe(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        """Return all trials as Optuna's pandas DataFrame."""
        return self.to_optuna().trials_dataframe(*arguments, **options)

    def to_optuna(self) -> _optuna.Study:
        """Return the study as an Optuna study in memory, for its plots and importances."""
        result = self.result
        if self._copy is None or self._copy[0] != len(result.log):
            self._copy = len(result.log), export(result)
        return self._copy[1]

    def close(self) -> None:
        """End what `ask` started; the study stays in its storage."""
        session, self._session = self._session, None
        if session is not None:
            self._result = session.result
            session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Study {self.study_name!r} with Optuna's interface>"

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        text = f"the study has no attribute {name!r}"
        if name in _GONE or (hasattr(_optuna.Study, name) and not name.startswith("_")):
            instead = _GONE.get(name, "study.to_optuna() returns an Optuna study that has it")
            text = f"study.{name} is not available: {instead}."
        raise AttributeError(text, name=name, obj=self)

    def _add_first(self, options: dict[str, Any]) -> dict[str, Any]:
        return {**options, "first": self._first} if self._first else options

    def _list_known(self) -> Sequence[Any]:
        """Return the trials that the study has so far."""
        if self._result is None:
            self._result = self._load()
        return () if self._result is None else self._result.trials

    def _load(self) -> Result | None:
        """Return what is in the store; None: nothing."""
        if self._options["name"] not in self._store.studies():
            return None
        return load(self._options["name"], self._options["store"])


# Names of Optuna's study that have no counterpart, and what to do instead.
_GONE = {
    "stop": "give n_trials or timeout, or press Ctrl-C: what was found is kept",
    "add_trial": "give create_study(warm_start=…) an Optuna study with these trials",
    "add_trials": "give create_study(warm_start=…) an Optuna study with these trials",
    "set_user_attr": "attach values to trials by trial.set_user_attr(key, value)",
    "user_attrs": "attach values to trials by trial.set_user_attr(key, value)",
    "set_system_attr": "attach values to trials by trial.set_user_attr(key, value)",
    "system_attrs": "attach values to trials by trial.set_user_attr(key, value)",
    "set_metric_names": "a study has one objective",
}


def _find_suggestion(name: str, distribution: object) -> Callable[[Trial], Any]:
    """Return the call of `trial.suggest_…` that stands for one of Optuna's distributions."""
    kinds = _optuna.distributions
    match distribution:
        case kinds.FloatDistribution(low=low, high=high, step=step, log=log):
            return lambda trial: trial.suggest_float(name, low, high, step=step, log=log)
        case kinds.IntDistribution(low=low, high=high, step=step, log=log):
            return lambda trial: trial.suggest_int(name, low, high, step=step, log=log)
        case kinds.CategoricalDistribution(choices=choices):
            return lambda trial: trial.suggest_categorical(name, choices)
    raise SpecError(
        f"ask: {name!r} is of class {type(distribution).__name__}: give a FloatDistribution, an "
        "IntDistribution or a CategoricalDistribution."
    )


def _check_others(others: Mapping[str, Any]) -> None:
    """Raise SpecError for arguments of Optuna's `optimize` that cannot act."""
    if others.get("callbacks"):
        raise SpecError(
            "callbacks=… is not supported: trials run in other processes. Read study.trials after "
            "optimize, or run `paceline watch` beside it."
        )
    known = {"callbacks", "catch", "gc_after_trial", "show_progress_bar"}
    for name in others:
        if name not in known:
            raise make_unknown_error("argument of optimize:", name, known)


def _ask(trial: Trial) -> None:
    """Stand in for the training function of a study that the program trains itself."""


def _exists(storage: str, name: str | None) -> bool:
    try:
        with open_existing(storage) as store:
            return name in store.studies()
    except StoreError:
        return False


def _translate(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return Optuna's options as those of `pl.tune`; options that are None are left out."""
    options = {name: value for name, value in given.items() if name not in _SPELLINGS}
    for name, value in given.items():
        if name not in _SPELLINGS or value is None:
            continue
        ours = _SPELLINGS[name]
        if ours in options:
            if name == "direction" and value == "minimize":
                continue  # the default
            raise SpecError(
                f"{name}={value!r} and {ours}={options[ours]!r} say the same: give one."
            )
        options[ours] = _CONVERT.get(name, _keep)(value)
        if options[ours] is None:
            del options[ours]
    return options


def _keep(value: Any) -> Any:  # noqa: ANN401
    return value


def _read_direction(given: Any) -> str:  # noqa: ANN401 - a name, or Optuna's StudyDirection
    name = str(getattr(given, "name", given)).lower()
    if name not in ("minimize", "maximize"):
        raise SpecError(f"direction={given!r} is invalid: must be 'minimize' or 'maximize'.")
    return "min" if name == "minimize" else "max"


def _read_storage(given: Any) -> str:  # noqa: ANN401
    if not isinstance(given, str | PathLike):
        raise SpecError(
            f"storage={type(given).__name__}(…) is of Optuna: give a path or a URL, such as "
            "'sqlite:///runs.db', or leave it out to keep the study until the program ends."
        )
    return fspath(given)


def _count_slots(jobs: int) -> int | None:
    """Return the number of slots; None: all of this machine."""
    return None if jobs == -1 else jobs


_CONVERT: dict[str, Callable[[Any], Any]] = {
    "direction": _read_direction,
    "n_jobs": _count_slots,
    "pruner": find_policy,
    "storage": _read_storage,
}


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name.startswith("_") or not hasattr(_optuna, name):
        raise AttributeError(f"neither Optuna nor paceline.integrations.optuna has {name!r}")
    return getattr(_optuna, name)
