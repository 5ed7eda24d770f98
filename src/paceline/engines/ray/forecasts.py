"""Forecasts as Ray tasks: a curve model that thinks on the cluster, beside the training.

Knows how a model gets there and that each process there loads it once. What it forecasts, and for
whom, it does not know.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

from paceline.engines.ray.wanted import imported

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.core.ports import CurveModel, History
    from paceline.core.values import Forecast

# How many tasks think at once, and how many questions may be asked meanwhile.
_TASKS, AT_ONCE = 2, 16
# Those this process has loaded, by their names.
_loaded: dict[str, CurveModel] = {}


class FarCurves:
    """A curve model on the cluster: `load` makes it there, once in each process.

    Asked from several threads at once: what is asked while all tasks are busy goes into the next.
    """

    def __init__(self, name: str, load: Callable[[], CurveModel], others: int) -> None:
        self.others = others
        self._name = name
        self._load = load
        self._asked: list[tuple[History, Future[Forecast | None]]] = []
        self._lock = threading.Lock()
        self._free = threading.Semaphore(_TASKS)

    def forecast(self, histories: Sequence[History]) -> Sequence[Forecast | None]:
        """Return what the model says, on whatever node has time for it."""
        mine: list[tuple[History, Future[Forecast | None]]] = [
            (history, Future()) for history in histories
        ]
        with self._lock:
            self._asked += mine
        with self._free:
            with self._lock:
                asked, self._asked = self._asked, []
            if asked:
                self._ask(asked)
        return [answer.result() for _, answer in mine]

    def _ask(self, asked: Sequence[tuple[History, Future[Forecast | None]]]) -> None:
        ray = imported()
        # It asks for no CPU, since the slots may hold all of them: it shares one with training.
        task = ray.remote(_forecast).options(num_cpus=0, scheduling_strategy="SPREAD")
        try:
            histories = [history for history, _ in asked]
            found = ray.get(task.remote(self._name, self._load, histories))
        except Exception as error:
            for _, answer in asked:
                answer.set_exception(error)
            return
        for (_, answer), forecast in zip(asked, found, strict=True):
            answer.set_result(forecast)


def _forecast(
    name: str, load: Callable[[], CurveModel], histories: Sequence[History]
) -> Sequence[Forecast | None]:
    if name not in _loaded:
        _loaded[name] = load()
    return _loaded[name].forecast(histories)
