"""Forecasts on the cluster: a curve model that runs in actors there, beside the training.

Knows how the model gets there and which actor is free. Actors, not tasks: where slots hold all CPUs
Ray ends the process of a task at once, and the next task would load the model again.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from paceline.engines.process.ray.config import import_ray

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.core.forecast_quantiles import Forecast
    from paceline.core.ports import CurveModel, History

    ForecastRequest = tuple[History, Future[Forecast | None]]

# Actors, and requests that may wait for them at once.
_ACTORS, MAX_REQUESTS = 2, 16


class ForecastActor:
    """Holds the curve model on a node; made an actor."""

    def __init__(self, load: Callable[[], CurveModel]) -> None:
        self._model = load()

    def forecast(self, histories: Sequence[History]) -> Sequence[Forecast | None]:
        """Return the model's forecasts."""
        return self._model.forecast(histories)


class RayCurveModel:
    """A curve model that `load` creates on the cluster.

    Called from several threads: requests that come while all actors are busy go into one batch.
    """

    def __init__(self, load: Callable[[], CurveModel], others: int) -> None:
        self.others = others
        self._load = load
        self._requests: list[ForecastRequest] = []
        self._lock = threading.Lock()
        # Idle actors; None stands for one that is not started yet.
        self._idle: SimpleQueue[Any] = SimpleQueue()
        for _ in range(_ACTORS):
            self._idle.put(None)

    def forecast(self, histories: Sequence[History]) -> Sequence[Forecast | None]:
        """Return the model's forecasts, computed by the next idle actor."""
        own: list[ForecastRequest] = [(history, Future()) for history in histories]
        with self._lock:
            self._requests += own
        actor = self._idle.get()
        try:
            with self._lock:
                batch, self._requests = self._requests, []
            if batch:
                actor = actor or self._start_actor()
                self._run_batch(actor, batch)
        finally:
            self._idle.put(actor)
        return [answer.result() for _, answer in own]

    def _start_actor(self) -> Any:  # noqa: ANN401 - an actor's handle
        # Without a CPU, since slots may hold all of them. Ray restarts it on another node when its
        # own is lost.
        actor = (
            import_ray()
            .remote(ForecastActor)
            .options(num_cpus=0, scheduling_strategy="SPREAD", max_restarts=-1, max_task_retries=-1)
        )
        return actor.remote(self._load)

    def _run_batch(self, actor: Any, batch: Sequence[ForecastRequest]) -> None:  # noqa: ANN401
        try:
            histories = [history for history, _ in batch]
            forecasts = import_ray().get(actor.forecast.remote(histories))
        except Exception as error:
            for _, answer in batch:
                answer.set_exception(error)
            return
        for (_, answer), forecast in zip(batch, forecasts, strict=True):
            answer.set_result(forecast)
