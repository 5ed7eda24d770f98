"""Trainables and search spaces written for Ray Tune, as those of a study.

Knows Tune's domains, its Trainable class, and the session object behind `tune.report`,
`tune.get_checkpoint` and `tune.get_context`. The session is set in the worker process of an
attempt only: a program that also runs Tune itself is not affected.
"""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any

try:
    import ray
    from ray import tune
    from ray.train._internal import session as tune_session
except ImportError as missing:
    raise ImportError(
        "paceline.integrations.ray_tune needs Ray Tune: pip install 'paceline[tune]'."
    ) from missing

from paceline.api.spaces import convert_space, wrap_lists
from paceline.core.errors import SpecError, TrialError
from paceline.worker import ray_compat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from paceline.core.values import Config
    from paceline.worker.trial import Trial


def space(param_space: Mapping[str, Any]) -> Config:
    """Convert Tune's `param_space` to the space of a study.

    Raises a SpecError for domains without a counterpart: `sample_from`, normal distributions, and
    quantised logarithmic ones.
    """
    return convert_space(wrap_lists(param_space))


def trainable(given: Callable[[dict[str, Any]], Any] | type[tune.Trainable]) -> Callable[..., None]:
    """Wrap a function or class that was written for Tune as the training function of a study.

    In a function, Tune's `report`, `get_checkpoint` and `get_context` act on the study's trial. A
    class is stepped once an epoch and saved only when the study wants a checkpoint.
    """
    if isinstance(given, type):
        if not issubclass(given, tune.Trainable):
            raise SpecError(
                f"{given.__name__} is not a Tune trainable: pass a function `train(config)` or a "
                "subclass of ray.tune.Trainable."
            )
        return _wrap_class(given)
    return _wrap_function(given)


# Functions


class TrialSession:
    """The session that Tune's functions find in this process: it acts on the study's trial.

    Tune keeps one session per process, and `report`, `get_checkpoint` and `get_context` read it at
    every call, however they were imported.
    """

    # Tune's mark of a session that is not a worker of Ray Train.
    world_rank = None

    def __init__(self, trial: Trial) -> None:
        self.trial_id = str(trial.id)
        self.trial_name = f"trial_{trial.id}"

    @property
    def loaded_checkpoint(self) -> tune.Checkpoint | None:
        """The checkpoint to start from; None at the first epoch."""
        found = ray_compat.get_checkpoint()
        return None if found is None else tune.Checkpoint.from_directory(found.path)

    def report(self, metrics: dict[str, Any], checkpoint: Any = None) -> None:  # noqa: ANN401
        """End an epoch with its metrics and its checkpoint."""
        saved = None if checkpoint is None else ray_compat.Checkpoint(checkpoint.path)
        ray_compat.report(dict(_flatten_numbers(metrics)), checkpoint=saved)


def _wrap_function(train: Callable[[dict[str, Any]], Any]) -> Callable[..., None]:
    def run(config: dict[str, Any]) -> None:
        # The process ends with the attempt, so the session is never reset.
        current = TrialSession(ray_compat.current_trial("integrations.ray_tune.trainable"))
        tune_session._session = current
        if tune_session.get_session() is not current:
            raise TrialError(
                f"Ray {ray.__version__} keeps Tune's session in another place: report() would not "
                "reach the study. Use a Ray version that paceline supports."
            )
        train(config)

    run.__name__ = getattr(train, "__name__", "train")
    return run


# Classes


def _wrap_class(trainable_class: type[tune.Trainable]) -> Callable[..., None]:
    class Counted(trainable_class):  # type: ignore[misc]
        """The class, with a step count that continues from the checkpoint."""

        steps = 0

        @property
        def iteration(self) -> int:
            return self.steps

    def run(trial: Trial) -> None:
        stepper = Counted(config=dict(trial.config))
        try:
            trial.keep(
                trainable=(lambda: _save(stepper), lambda files: _restore(stepper, files)),
            )
            for stepper.steps in trial.epochs():
                result = stepper.step()
                trial.report(dict(_flatten_numbers(result)))
                if result.get("done"):
                    return
        finally:
            stepper.stop()

    run.__name__ = trainable_class.__name__
    return run


def _save(stepper: tune.Trainable) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        stepper.save(folder)
        return ray_compat.files_in(folder)


def _restore(stepper: tune.Trainable, files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ray_compat.put_files(files, folder)
        stepper.restore(folder)


def _flatten_numbers(result: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the numbers of a result under Tune's flat names, such as `eval/loss`."""
    for name, value in result.items():
        if isinstance(value, dict):
            yield from _flatten_numbers(value, f"{above}{name}/")
        elif not isinstance(value, bool | str) and hasattr(value, "__float__"):
            yield f"{above}{name}", value
