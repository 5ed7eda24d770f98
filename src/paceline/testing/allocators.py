"""The contract of allocators, as tests to inherit.

Knows the port, the valid widths, and what can happen to slots. Subclass `AllocatorContract`, set
`make`, and run pytest. `BaseAllocatorContract` holds the clauses that the machine relies on, for
allocators that do not look for gain.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from paceline.core.decisions import Launch, Resize
from paceline.core.events import ChangeSlots
from paceline.core.values import Status
from paceline.engines.sim.cluster import Cluster, Faults
from paceline.testing.simulations import (
    Scenario,
    SimulatedStudy,
    find_broken_invariants,
    find_replay_difference,
    make_falling_curves,
    make_parts,
    make_study,
    make_table,
)
from paceline.testing.snapshots import dump_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from paceline.core.decisions import Entry
    from paceline.core.ports import Allocator, Demands
    from paceline.core.values import TrialId
    from paceline.core.views import StudyView
    from paceline.machine.decider import Parts


SCENARIOS = (
    Scenario("a slot is a slot", Cluster(slots=3)),
    Scenario("trials share slots", Cluster(slots=2, save_s=0.1), {"pack": 3}),
    Scenario("trials span slots", Cluster(slots=4, setup_s=0.2), {"span": 3}),
    Scenario(
        "slots come and go under failing attempts",
        Cluster(
            slots=4,
            save_every_s=1.0,
            faults=Faults(mean_life_s=9.0, seed=2),
            capacity=((1.5, 2), (4.0, 0), (6.0, 5), (9.5, 3)),
        ),
        {"pack": 2, "span": 4, "retries": 99},
    ),
    Scenario(
        "a command gives slots and takes them",
        Cluster(slots=2, save_s=0.1),
        {"pack": 2, "span": 3},
        {20: ChangeSlots(2), 35: ChangeSlots(-3)},
    ),
    Scenario(
        "stages need more and less",
        Cluster(slots=4, setup_s=0.2, save_s=0.1),
        {"pack": 2, "span": 2, "fit": True},
    ),
)
NEEDS = (0.5, 1, 3)
# With `fit`, a trial's need depends on `size`, which changes during the run.
TABLE = make_table(
    make_falling_curves(7, 5),
    configs=[
        {"run": run, "size": {"piecewise": [[0, run % 3], [2, (run + 1) % 3]]}} for run in range(7)
    ],
)


class BaseAllocatorContract:
    """The clauses that the machine relies on."""

    make: Callable[[], Allocator]

    def study(self, scenario: Scenario, allocator: Allocator | None = None) -> SimulatedStudy:
        """Return a study in a scenario with the allocator."""
        return make_study(TABLE, self.fresh(scenario, allocator), scenario)

    def fresh(self, scenario: Scenario, allocator: Allocator | None = None) -> Parts:
        """Return parts that have seen nothing."""
        needs = (lambda setting: NEEDS[setting["size"]]) if scenario.spec.get("fit") else None
        return make_parts(TABLE, allocator=allocator or self.make(), needs=needs)

    def find_problems(self, about: str) -> str:
        """Return what is wrong with the allocator's widths in one respect, in all scenarios."""
        found = []
        for scenario in SCENARIOS:
            watched = CheckedAllocator(self.make())
            self.study(scenario, watched).run()
            found += [f"where {scenario.name}, {text}" for text in watched.found[about][:1]]
        return "; ".join(found)

    def test_no_slot_is_ever_granted_twice(self) -> None:
        for scenario in SCENARIOS:
            steps = self.study(scenario).run().steps
            wrong = find_broken_invariants(steps, self.fresh(scenario))
            assert not wrong, f"where {scenario.name}, {wrong[0]}"

    def test_widths_are_shares_of_a_slot_or_whole_slots(self) -> None:
        odd = self.find_problems("odd")
        assert not odd, odd

    def test_no_trial_gets_less_than_it_needs(self) -> None:
        short = self.find_problems("short")
        assert not short, short

    def test_it_sets_widths_only_of_asking_and_running_trials(self) -> None:
        unknown = self.find_problems("unknown")
        assert not unknown, unknown

    def test_placing_does_not_change_its_memory(self) -> None:
        wrote = self.find_problems("wrote")
        assert not wrote, wrote

    def test_no_trial_starves(self) -> None:
        for scenario in SCENARIOS:
            state = self.study(scenario).run().state
            assert state.end is not None, f"where {scenario.name}, the study stalls"
            for trial in state.trials:
                assert trial.status is Status.FINISHED, f"where {scenario.name}, {trial.id} is left"
            assert len(state.trials) == len(TABLE.runs)

    def test_the_same_events_cause_the_same_widths(self) -> None:
        for scenario in SCENARIOS:
            steps = self.study(scenario).run().steps
            assert self.study(scenario).run().steps == steps, (
                f"where {scenario.name}, a second run differs"
            )
            difference = find_replay_difference(steps, self.fresh(scenario))
            assert not difference, f"where {scenario.name}: {difference}"

    def test_its_memory_is_rebuilt_from_the_log(self) -> None:
        for scenario in SCENARIOS:
            whole = self.study(scenario).run().steps
            for cut in {1 + part * (len(whole) - 1) // 4 for part in range(4)}:
                again = self.study(scenario).resume(whole[:cut]).steps
                assert again == whole, (
                    f"where {scenario.name}, resumed after step {cut}, it differs"
                )


class AllocatorContract(BaseAllocatorContract):
    """The contract of every Allocator. Subclass it, set `make`, run pytest."""

    def test_it_widens_only_into_existing_slots(self) -> None:
        beyond = self.find_problems("beyond")
        assert not beyond, beyond

    def test_fewer_slots_give_no_wider_start(self) -> None:
        for pack, span in ((1, 4), (4, 1), (4, 4)):
            widths = []
            for slots in (6, 4, 3, 2, 1):
                cluster = Cluster(slots=slots)
                scenario = Scenario("slots are few", cluster, {"pack": pack, "span": span})
                given = [launch.width for launch in self.study(scenario).run().launches]
                assert max(given) <= slots, f"{max(given):g} of {slots} slots were given"
                widths.append(given[0])
            assert widths == sorted(widths, reverse=True), f"on 6, 4, 3, 2, 1 slots: {widths}"
            assert widths[-1] <= 1.0

    def test_it_shrinks_when_capacity_shrinks(self) -> None:
        cluster = Cluster(slots=4, capacity=((2.5, 1),))
        study = self.study(Scenario("slots go", cluster, {"pack": 2, "span": 4})).run()
        late = [
            launch.width
            for step in study.steps
            for launch in step.decisions
            if step.event.at > 2.5 and isinstance(launch, Launch)
        ]
        assert late, "nothing was launched on the remaining slot"
        assert max(late) <= 1.0, f"one slot was left, and a trial was given {max(late)}"
        assert study.state.live == 0, "trials are left unfinished on the remaining slot"

    def test_it_does_not_resize_without_gain(self) -> None:
        # As many equal trials as slots: after the first moments no resize can gain anything.
        trace = make_table([[1.0] * 20] * 4)
        for pack, span in ((1, 4), (2, 2), (4, 1)):
            scenario = Scenario("all is steady", Cluster(slots=4), {"pack": pack, "span": span})
            study = make_study(trace, make_parts(trace, allocator=self.make()), scenario).run()
            first = study.state.now / 4
            moved = [
                f"{decision.why} at {step.event.at:g} s"
                for step in study.steps
                for decision in step.decisions
                if isinstance(decision, Resize) and first < step.event.at < 3 * first
            ]
            assert not moved, f"it resized without gain: {'; '.join(moved)}"


class CheckedAllocator:
    """Wraps an allocator: checks its widths, and that `place` does not change its memory."""

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator
        about = ("odd", "short", "unknown", "wrote", "beyond")
        self.found: dict[str, list[str]] = {each: [] for each in about}

    def see(self, entry: Entry, study: StudyView) -> None:
        self._allocator.see(entry, study)

    def place(self, demands: Demands, study: StudyView) -> Mapping[TrialId, float]:
        before = dump_memory(self._allocator)
        widths = dict(self._allocator.place(demands, study))
        if dump_memory(self._allocator) != before:
            self.found["wrote"].append("place changed the allocator's memory: only `see` may")
        if dict(self._allocator.place(demands, study)) != widths:
            self.found["wrote"].append("place gives other widths when it is called again")
        held = {demand.trial: demand.width for demand in demands.running()}
        asking = () if demands.asking is None else (demands.asking.trial,)
        asked = (*demands.running(), *((demands.asking,) if demands.asking else ()))
        least = {demand.trial: demand.least for demand in asked}
        for trial, width in widths.items():
            if not _is_valid_width(width, study, max(least.get(trial, 0.0), held.get(trial, 0.0))):
                self.found["odd"].append(f"trial {trial} is given {width!r} slots")
            if width < least.get(trial, 0.0):
                short = f"trial {trial} needs {least[trial]:g} slots and is given {width:g}"
                self.found["short"].append(short)
            if trial not in held and trial not in asking:
                self.found["unknown"].append(f"trial {trial} neither asks nor runs")
        wider = [trial for trial in held if widths.get(trial, 0.0) > held[trial]]
        total = sum(widths.get(trial, width) for trial, width in held.items())
        if wider and total > study.capacity + 1e-9:
            self.found["beyond"].append(f"{total:g} slots are given of {study.capacity}: {widths}")
        return widths


def _is_valid_width(width: float, study: StudyView, limit: float) -> bool:
    """Return whether a width is 1/k with k up to `pack`, or whole up to `span` or `limit`."""
    if not (width > 0 and math.isfinite(width)):
        return False
    if width >= 1:
        return width == int(width) <= max(study.spec.span, limit)
    return any(width == 1.0 / k for k in range(2, study.spec.pack + 1))
