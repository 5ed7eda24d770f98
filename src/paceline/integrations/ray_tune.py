"""Ray Tune's trainables and spaces in studies of ours, and our policies as its schedulers.

Knows how Tune spells a space, a report and a checkpoint. What Tune's functions mean in a worker of
ours is decided there, in its own process; a program that also runs Tune itself is left alone.
"""

from __future__ import annotations

import sys
import tempfile
from typing import TYPE_CHECKING, Any, Protocol

try:
    from ray import tune
    from ray.tune.schedulers import TrialScheduler
    from ray.tune.search import sample
except ImportError as missing:
    raise ImportError(
        "paceline.integrations.ray_tune needs Ray Tune: pip install 'paceline[tune]'."
    ) from missing

from paceline.core import space as domains
from paceline.core.errors import SpecError
from paceline.worker import ray_compat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from paceline.core.values import Config, Metrics, Value
    from paceline.worker.trial import Trial


def space(param_space: Mapping[str, Any]) -> Config:
    """Return Tune's `param_space` as a space of ours.

    Raises a SpecError for what cannot be said here: `sample_from`, normal distributions, and
    quantised logarithmic ones.
    """
    return {name: _value(value, name) for name, value in param_space.items()}


def trainable(given: Callable[[dict[str, Any]], Any] | type[tune.Trainable]) -> Callable[..., None]:
    """Return a function or class that was written for Tune as a training function for a study.

    In a function, Tune's `report`, `get_checkpoint` and `get_context` mean the study's. A class is
    stepped once an epoch and saved only where the study wants a checkpoint.
    """
    if isinstance(given, type):
        if not issubclass(given, tune.Trainable):
            raise SpecError(
                f"{given.__name__} is no Tune trainable: give a function `train(config)`, or a "
                "class derived from ray.tune.Trainable."
            )
        return _stepped(given)
    return _called(given)


def _value(value: Any, name: str) -> Value:  # noqa: ANN401
    if isinstance(value, sample.Domain):
        return _domain(value, name)
    if isinstance(value, dict):
        if set(value) == {"grid_search"}:
            return domains.grid([_value(each, f"{name}[…]") for each in value["grid_search"]])
        return {key: _value(each, f"{name}.{key}") for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_value(each, f"{name}[{at}]") for at, each in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise SpecError(
        f"{name} is a {type(value).__name__}: a config holds numbers, words, lists and dicts. Let "
        "the training function reach for everything else itself."
    )


def _domain(domain: sample.Domain, name: str) -> Value:
    if isinstance(domain, sample.Categorical):
        return domains.choice([_value(each, f"{name}[…]") for each in domain.categories])
    sampler, step = domain.get_sampler(), None
    if isinstance(sampler, sample.Quantized):
        sampler, step = sampler.get_sampler(), sampler.q
    known = _KINDS.get(
        (type(domain), isinstance(sampler, sample.LogUniform), step is not None)
        if isinstance(sampler, sample.Uniform | sample.LogUniform)
        else None
    )
    if known is None:
        kind = f"{type(sampler).__name__.strip('_').lower()} {type(domain).__name__.lower()}"
        raise SpecError(
            f"{name} is a {'quantised ' * (step is not None)}{kind}, which has no counterpart "
            "here: give uniform, loguniform, quniform, randint, lograndint, qrandint, choice or "
            "grid_search."
        )
    return known(domain, step)


def _multiples(domain: sample.Integer, step: int) -> Value:
    """Return the multiples of a step; unlike without one, Tune counts the upper end in."""
    first = -(-domain.lower // step) * step
    return domains.choice(list(range(first, domain.upper + 1, step)))


# By what the values are, whether logarithmic, whether in steps.
_KINDS: dict[Any, Callable[[Any, Any], Value]] = {
    (sample.Float, False, False): lambda of, _: domains.uniform(of.lower, of.upper),
    (sample.Float, False, True): lambda of, step: domains.quniform(of.lower, of.upper, step),
    (sample.Float, True, False): lambda of, _: domains.loguniform(of.lower, of.upper),
    (sample.Integer, False, False): lambda of, _: domains.randint(of.lower, of.upper),
    (sample.Integer, False, True): _multiples,
    (sample.Integer, True, False): lambda of, _: domains.lograndint(of.lower, of.upper),
}


# Functions


class Context:
    """What `tune.get_context()` says of a trial."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial

    def get_trial_id(self) -> str:
        """Return the trial's number in its study."""
        return str(self._trial.id)

    def get_trial_name(self) -> str:
        """Return the trial's number in its study, as a name."""
        return f"trial_{self._trial.id}"


def _called(train: Callable[[dict[str, Any]], Any]) -> Callable[..., None]:
    def run(config: dict[str, Any]) -> None:
        _rebind(train)
        train(config)

    run.__name__ = getattr(train, "__name__", "train")
    return run


def _rebind(train: Callable[..., Any]) -> None:
    """Let Tune's functions mean the study's, wherever this process has a name for them.

    A worker lives for one attempt and runs nothing else, so there is nothing to undo.
    """
    ours: dict[int, Any] = {
        id(tune.report): _report,
        id(tune.get_checkpoint): _get_checkpoint,
        id(tune.get_context): lambda: Context(ray_compat.current("get_context")),
    }
    # A function of the user's main program was sent here with names of its own.
    spaces = [getattr(train, "__globals__", {})]
    spaces += [vars(module) for module in list(sys.modules.values()) if hasattr(module, "__dict__")]
    for names in spaces:
        for name, value in list(names.items()):
            if id(value) in ours:
                names[name] = ours[id(value)]


def _report(
    metrics: dict[str, Any],
    *,
    checkpoint: Any = None,  # noqa: ANN401
    checkpoint_dir_name: str | None = None,
) -> None:
    path = None if checkpoint is None else ray_compat.Checkpoint(checkpoint.path)
    ray_compat.report(dict(_numbers(metrics)), checkpoint=path)


def _get_checkpoint() -> tune.Checkpoint | None:
    found = ray_compat.get_checkpoint()
    return None if found is None else tune.Checkpoint.from_directory(found.path)


# Classes


def _stepped(made: type[tune.Trainable]) -> Callable[..., None]:
    class Counted(made):  # type: ignore[misc]
        """The class, with a count of steps that goes on where a checkpoint ended."""

        steps = 0

        @property
        def iteration(self) -> int:
            return self.steps

    def run(trial: Trial) -> None:
        stepper = Counted(config=dict(trial.config))
        try:
            trial.keep(trainable=(lambda: _saved(stepper), lambda files: _restore(stepper, files)))
            for stepper.steps in trial.epochs():
                result = stepper.step()
                trial.report(dict(_numbers(result)))
                if result.get("done"):
                    return
        finally:
            stepper.stop()

    run.__name__ = made.__name__
    return run


def _saved(stepper: tune.Trainable) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        stepper.save(folder)
        return ray_compat.files_in(folder)


def _restore(stepper: tune.Trainable, files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ray_compat.put_files(files, folder)
        stepper.restore(folder)


def _numbers(result: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the numbers of a result by the names that Tune gives them: `eval/loss`."""
    for name, value in result.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{above}{name}/")
        elif not isinstance(value, bool | str) and hasattr(value, "__float__"):
            yield f"{above}{name}", value


# Schedulers


class Judge(Protocol):
    """What a scheduler needs of a study whose trials Tune runs: `engines.outside.Outside`."""

    @property
    def why(self) -> str | None: ...
    def come(self, name: str, config: Config) -> None: ...
    def reported(self, name: str, epoch: int, metrics: Metrics, seconds: float) -> str: ...
    def left(self, name: str, *, failed: bool) -> None: ...
    def wanted(self) -> list[str]: ...
    def dismissed(self) -> list[str]: ...
    def close(self) -> None: ...


class Scheduler(TrialScheduler):  # type: ignore[misc]
    """Asks a study of ours what becomes of Tune's trials."""

    def __init__(self, study: Judge, metric: str) -> None:
        super().__init__()
        self._study = study
        self._metric = metric

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:  # noqa: ANN401
        scalars = bool | int | float | str
        config = {key: value for key, value in trial.config.items() if isinstance(value, scalars)}
        self._study.come(trial.trial_id, config)

    def on_trial_result(
        self,
        tune_controller: Any,  # noqa: ANN401
        trial: Any,  # noqa: ANN401
        result: dict[str, Any],
    ) -> str:
        metrics = {self._metric: result.get(self._metric)}
        epoch, seconds = result["training_iteration"], result["time_this_iter_s"]
        answer = self._study.reported(trial.trial_id, epoch, metrics, seconds)
        self._dismiss(tune_controller)
        return str(_ANSWERS[answer])

    def on_trial_complete(
        self,
        tune_controller: Any,  # noqa: ANN401
        trial: Any,  # noqa: ANN401
        result: dict[str, Any],
    ) -> None:
        self._study.left(trial.trial_id, failed=False)

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:  # noqa: ANN401
        self._study.left(trial.trial_id, failed=True)

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:  # noqa: ANN401
        self._study.left(trial.trial_id, failed=True)

    def choose_trial_to_run(self, tune_controller: Any) -> Any:  # noqa: ANN401
        trials = {trial.trial_id: trial for trial in tune_controller.get_trials()}
        waiting = {name: each for name, each in trials.items() if each.status in _WAITING}
        if self._study.why is None:
            chosen = next((name for name in self._study.wanted() if name in waiting), None)
            idle = all(trial.status not in _ACTIVE for trial in trials.values())
            if chosen is None and idle:
                # Tune has nothing left to begin: those that wait may be all there are.
                self._study.close()
                chosen = next((name for name in self._study.wanted() if name in waiting), None)
            self._dismiss(tune_controller)
            if chosen is not None:
                return trials[chosen]
            if not idle:
                return None
        for trial in waiting.values():
            tune_controller.stop_trial(trial)
        return None

    def debug_string(self) -> str:
        return self._study.why or "Judged by paceline."

    def _dismiss(self, tune_controller: Any) -> None:  # noqa: ANN401
        gone = set(self._study.dismissed())
        if gone:
            for trial in tune_controller.get_trials():
                if trial.trial_id in gone:
                    tune_controller.stop_trial(trial)


_ANSWERS = {
    "go on": TrialScheduler.CONTINUE,
    "pause": TrialScheduler.PAUSE,
    "stop": TrialScheduler.STOP,
}
_WAITING, _ACTIVE = ("PENDING", "PAUSED"), ("PENDING", "RUNNING")
