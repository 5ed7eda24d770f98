"""A recorded trace as a workload: training is looked up.

Knows what was recorded, and refuses settings that never were. Where trials share prefixes, the
state is the set of runs that agree with all settings so far, and the first of them speaks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, cast

from paceline.core.errors import SpecError
from paceline.core.ports import Crash, Outcome
from paceline.engines.sim.traces import Run
from paceline.plan.settings import constant, key, setting_at

if TYPE_CHECKING:
    from paceline.core.values import Config
    from paceline.engines.sim.traces import Trace


# The runs this could still be, and how many epochs of them are done. A plain tuple: one is made at
# every epoch of every simulation.
_At: TypeAlias = tuple[tuple[Run, ...], int]


class Recorded:
    """Replays a trace's runs."""

    def __init__(self, trace: Trace, *, share: bool = False) -> None:
        self.metric = trace.header.metric
        self._share = share
        self._all = tuple(trace.runs)
        self._by_config = {key(run.config): run for run in trace.runs}

    def begin(self, config: Config) -> object:
        if self._share:
            return self._all, 0
        run = self._by_config.get(key(config))
        if run is None:
            raise SpecError(f"the trace has no run with config {config}: it can only be replayed.")
        return (run,), 0

    def setup_s(self, state: object) -> float | None:
        runs, _ = cast("_At", state)
        return runs[0].setup_s

    def advance(self, state: object, setting: Config) -> Outcome | Crash:
        runs, done = cast("_At", state)
        if self._share:
            runs = self._agreeing(runs, done, setting)
        run = runs[0]
        if len(run.values) == done:
            return Crash(0.0, "", over=True)
        value = run.values[done]
        return Outcome(
            {self.metric: value if value == value else None},  # NaN is not equal to itself
            run.seconds[done],
            (runs, done + 1),
            done + 1 == len(run.values),
        )

    def _agreeing(self, runs: tuple[Run, ...], done: int, setting: Config) -> tuple[Run, ...]:
        wanted = key(setting)
        alike = [run for run in runs if key(_setting(run.config, done)) == wanted]
        if not alike:
            raise SpecError(f"the trace never recorded epoch {done + 1} under {setting}.")
        # Where all of them end here, so does whoever is like them.
        return tuple(run for run in alike if len(run.values) > done) or tuple(alike)


def _setting(config: Config, epoch: int) -> Config:
    return config if constant(config) else setting_at(config, epoch)
