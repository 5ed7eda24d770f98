"""A trace as a workload: training looks up recorded epochs.

Raises SpecError for settings that were not recorded. Where trials share prefixes, the state is the
set of runs that agree with all settings so far; the first of them gives the values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from paceline.core.errors import SpecError
from paceline.core.ports import Crash, Outcome
from paceline.engines.sim.traces import TraceRun
from paceline.plan.settings import config_key, is_constant, setting_at

if TYPE_CHECKING:
    from paceline.core.values import Config
    from paceline.engines.sim.traces import Trace


# The runs that agree so far, and the number of epochs done. A plain tuple: one is made for every
# simulated epoch.
_TraceState: TypeAlias = tuple[tuple[TraceRun, ...], int]


class TraceWorkload:
    """Replays the runs of a trace."""

    def __init__(self, trace: Trace, *, share: bool = False) -> None:
        self.metric = trace.header.metric
        self._share = share
        self._all = tuple(trace.runs)
        self._by_config = {config_key(run.config): run for run in trace.runs}

    def begin(self, config: Config) -> object:
        if self._share:
            return self._all, 0
        run = self._by_config.get(config_key(config))
        if run is None:
            raise SpecError(f"the trace has no run with config {config}: use configs of the trace.")
        return (run,), 0

    def setup_s(self, state: object) -> float | None:
        position: _TraceState = state  # type: ignore[assignment]  # `cast` would cost time
        return position[0][0].setup_s

    def advance(self, state: object, setting: Config) -> Outcome | Crash:
        position: _TraceState = state  # type: ignore[assignment]  # `cast` would cost time
        runs, done = position
        if self._share:
            runs = self._select_runs(runs, done, setting)
        run = runs[0]
        values = run.values
        length, after = len(values), done + 1
        if done == length:
            return Crash(0.0, "", over=True)
        value = values[done]
        return Outcome(
            {self.metric: value if value == value else None},  # NaN is not equal to itself
            run.seconds[done],
            (runs, after),
            after == length,
        )

    def _select_runs(
        self, runs: tuple[TraceRun, ...], done: int, setting: Config
    ) -> tuple[TraceRun, ...]:
        wanted = config_key(setting)
        alike = [run for run in runs if config_key(_setting(run.config, done)) == wanted]
        if not alike:
            raise SpecError(f"the trace has no run with {setting} in epoch {done + 1}.")
        # If all of them end here, the trial ends, too.
        return tuple(run for run in alike if len(run.values) > done) or tuple(alike)


def _setting(config: Config, epoch: int) -> Config:
    return config if is_constant(config) else setting_at(config, epoch)
