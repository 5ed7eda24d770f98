"""Small studies for tests: what `paceline.testing.simulations` has, in fewer words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from paceline.engines.sim.cluster import Cluster
from paceline.engines.sim.trace_workload import Recorded
from paceline.testing.simulations import Rehearsal, brains_for, spec_for, table

if TYPE_CHECKING:
    from paceline.core.events import Command
    from paceline.core.ports import Allocator, CurveModel, Generator, Needs, Policy, Workload
    from paceline.engines.sim.traces import Trace

__all__ = ["Played", "table"]


class Played(Rehearsal):
    """A study that is simulated, with its log."""

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
        described = spec_for(trace, fit=needs is not None, **spec)
        super().__init__(
            described,
            replace(brains_for(trace, policy, allocator, generator, needs), others=others),
            workload or Recorded(trace, share=described.share),
            Cluster(slots=slots, **(cluster or {})),
            commands,
            curves,
        )
