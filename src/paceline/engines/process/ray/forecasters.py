"""Forecasts on the cluster: a curve model that thinks there, beside the training.

Knows how a model gets there and who has time for the next question. Those who think are actors, not
plain tasks: where slots hold all CPUs Ray ends a task's process at once, and the next would load
the model again. What is forecast, and for whom, it does not know.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from paceline.engines.process.ray.config import imported

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.core.ports import CurveModel, History
    from paceline.core.values import Forecast

    Asked = tuple[History, Future[Forecast | None]]

# How many think at once, and how many questions may be asked meanwhile.
_THINKERS, AT_ONCE = 2, 16


class Thinker:
    """Lives on some node and has the model there; made an actor."""

    def __init__(self, load: Callable[[], CurveModel]) -> None:
        self._model = load()

    def forecast(self, histories: Sequence[History]) -> Sequence[Forecast | None]:
        """Return what the model says."""
        return self._model.forecast(histories)


class FarCurves:
    """A curve model on the cluster: `load` makes it there.

    Asked from several threads at once: what is asked while all think goes into the next call.
    """

    def __init__(self, load: Callable[[], CurveModel], others: int) -> None:
        self.others = others
        self._load = load
        self._asked: list[Asked] = []
        self._lock = threading.Lock()
        self._idle: SimpleQueue[Any] = SimpleQueue()
        for _ in range(_THINKERS):
            self._idle.put(None)  # made when it is needed

    def forecast(self, histories: Sequence[History]) -> Sequence[Forecast | None]:
        """Return what the model says, on whatever node has time for it."""
        mine: list[Asked] = [(history, Future()) for history in histories]
        with self._lock:
            self._asked += mine
        thinker = self._idle.get()
        try:
            with self._lock:
                asked, self._asked = self._asked, []
            if asked:
                thinker = thinker or self._thinker()
                self._ask(thinker, asked)
        finally:
            self._idle.put(thinker)
        return [answer.result() for _, answer in mine]

    def _thinker(self) -> Any:  # noqa: ANN401 - an actor's handle
        # It asks for no CPU, since the slots may hold all of them: it shares one with training.
        # One that dies with its node is made again on another.
        thinker = (
            imported()
            .remote(Thinker)
            .options(num_cpus=0, scheduling_strategy="SPREAD", max_restarts=-1, max_task_retries=-1)
        )
        return thinker.remote(self._load)

    def _ask(self, thinker: Any, asked: Sequence[Asked]) -> None:  # noqa: ANN401
        try:
            histories = [history for history, _ in asked]
            found = imported().get(thinker.forecast.remote(histories))
        except Exception as error:
            for _, answer in asked:
                answer.set_exception(error)
            return
        for (_, answer), forecast in zip(asked, found, strict=True):
            answer.set_result(forecast)
