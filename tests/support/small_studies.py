"""Small simulated studies: short form of `paceline.testing.simulations` for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from paceline.engines.sim.cluster import Cluster
from paceline.engines.sim.trace_workload import TraceWorkload
from paceline.testing.simulations import SimulatedStudy, make_parts, make_spec, make_table

if TYPE_CHECKING:
    from paceline.core.events import Command
    from paceline.core.ports import Allocator, CurveModel, Generator, Needs, Policy, Workload
    from paceline.core.values import Config
    from paceline.engines.sim.traces import Trace

__all__ = ["POSTER", "SmallStudy", "make_table"]

_A, _B, _C, _D, _E = 0.1, 0.05, 0.02, 0.01, 0.001


def _make_steps(*rates: float) -> Config:
    """Return the schedule that has each of these learning rates for ten epochs."""
    return {"lr": {"piecewise": [[10 * index, rate] for index, rate in enumerate(rates)]}}


# The poster's four trials: A splits into A1, A2 at epoch 10 and into B2, E at 20; B1 into C, D.
POSTER = [
    _make_steps(_A, _A, _B),
    _make_steps(_A, _B, _C),
    _make_steps(_A, _B, _D),
    _make_steps(_A, _A, _E),
]


class SmallStudy(SimulatedStudy):
    """A simulated study on a trace, with keyword arguments for everything around it."""

    def __init__(
        self,
        trace: Trace,
        policy: Policy | None = None,
        *,
        slots: int = 1,
        cluster: dict[str, Any] | None = None,
        allocator: Allocator | None = None,
        generator: Generator | None = None,
        workload: Workload | None = None,
        commands: dict[int, Command] | None = None,
        curves: CurveModel | None = None,
        needs: Needs | None = None,
        others: tuple[tuple[Policy, Generator], ...] = (),
        **spec: Any,  # noqa: ANN401
    ) -> None:
        described = make_spec(trace, fit=needs is not None, **spec)
        super().__init__(
            described,
            replace(make_parts(trace, policy, allocator, generator, needs), others=others),
            workload or TraceWorkload(trace, share=described.share),
            Cluster(slots=slots, **(cluster or {})),
            commands,
            curves,
        )
