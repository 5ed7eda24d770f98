"""The contract of allocators: what every Allocator must keep, as tests to inherit.

Knows the port, the widths a slot can be cut into, and what happens to slots. Subclass
`AllocatorContract`, give `make`, and run pytest. `AllocatorLaws` is the part of it that the
machine relies on, for allocators that share out without looking for gain.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from paceline.core.decisions import Launch, Resize
from paceline.core.events import ChangeSlots
from paceline.core.values import Status
from paceline.engines.sim.cluster import Cluster, Faults
from paceline.testing.simulations import (
    Rehearsal,
    Scene,
    brains_for,
    broken_invariants,
    falling,
    rehearsal,
    table,
    unlike_replay,
)
from paceline.testing.snapshots import memory_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from paceline.core.decisions import Entry
    from paceline.core.ports import Allocator, Demands
    from paceline.core.values import TrialId
    from paceline.core.views import StudyView
    from paceline.machine.machine import Brains


PLACES = (
    Scene("a slot is a slot", Cluster(slots=3)),
    Scene("trials share slots", Cluster(slots=2, save_s=0.1), {"pack": 3}),
    Scene("trials span slots", Cluster(slots=4, setup_s=0.2), {"span": 3}),
    Scene(
        "slots come and go under failing attempts",
        Cluster(
            slots=4,
            save_every_s=1.0,
            faults=Faults(mean_life_s=9.0, seed=2),
            capacity=((1.5, 2), (4.0, 0), (6.0, 5), (9.5, 3)),
        ),
        {"pack": 2, "span": 4, "retries": 99},
    ),
    Scene(
        "a command gives slots and takes them",
        Cluster(slots=2, save_s=0.1),
        {"pack": 2, "span": 3},
        {20: ChangeSlots(2), 35: ChangeSlots(-3)},
    ),
    Scene(
        "stages need more and less",
        Cluster(slots=4, setup_s=0.2, save_s=0.1),
        {"pack": 2, "span": 2, "fit": True},
    ),
)
NEEDS = (0.5, 1, 3)
# `size` is read where trials need what their settings say, and changes on the way.
TABLE = table(
    falling(7, 5),
    configs=[
        {"run": run, "size": {"piecewise": [[0, run % 3], [2, (run + 1) % 3]]}} for run in range(7)
    ],
)


class AllocatorLaws:
    """What the machine relies on, whatever an allocator is after."""

    make: Callable[[], Allocator]

    def study(self, scene: Scene, allocator: Allocator | None = None) -> Rehearsal:
        """Return a study of a scene for the allocator."""
        return rehearsal(TABLE, self.fresh(scene, allocator), scene)

    def fresh(self, scene: Scene, allocator: Allocator | None = None) -> Brains:
        """Return brains that have seen nothing."""
        needs = (lambda setting: NEEDS[setting["size"]]) if scene.spec.get("fit") else None
        return brains_for(TABLE, allocator=allocator or self.make(), needs=needs)

    def complaints(self, about: str) -> str:
        """Return what is wrong with the allocator's answers in one respect, in all places."""
        found = []
        for scene in PLACES:
            watched = WatchedAllocator(self.make())
            self.study(scene, watched).run()
            found += [f"where {scene.name}, {text}" for text in watched.found[about][:1]]
        return "; ".join(found)

    def test_no_slot_is_ever_granted_twice(self) -> None:
        for scene in PLACES:
            steps = self.study(scene).run().steps
            wrong = broken_invariants(steps, self.fresh(scene))
            assert not wrong, f"where {scene.name}, {wrong[0]}"

    def test_widths_are_shares_of_a_slot_or_whole_slots(self) -> None:
        odd = self.complaints("odd")
        assert not odd, odd

    def test_nobody_is_given_less_than_it_needs(self) -> None:
        short = self.complaints("short")
        assert not short, short

    def test_it_speaks_of_those_who_ask_or_run(self) -> None:
        strangers = self.complaints("strangers")
        assert not strangers, strangers

    def test_placing_writes_nothing(self) -> None:
        wrote = self.complaints("wrote")
        assert not wrote, wrote

    def test_nobody_starves(self) -> None:
        for scene in PLACES:
            state = self.study(scene).run().state
            assert state.end is not None, f"where {scene.name}, the study stalls"
            for trial in state.trials:
                assert trial.status is Status.FINISHED, f"where {scene.name}, {trial.id} is left"
            assert len(state.trials) == len(TABLE.runs)

    def test_the_same_facts_cause_the_same_widths(self) -> None:
        for scene in PLACES:
            steps = self.study(scene).run().steps
            assert self.study(scene).run().steps == steps, f"where {scene.name}, it changes"
            difference = unlike_replay(steps, self.fresh(scene))
            assert not difference, f"where {scene.name}: {difference}"

    def test_its_memory_is_a_fold_of_the_log(self) -> None:
        for scene in PLACES:
            whole = self.study(scene).run().steps
            for cut in {1 + part * (len(whole) - 1) // 4 for part in range(4)}:
                again = self.study(scene).resume(whole[:cut]).steps
                assert again == whole, f"where {scene.name}, taken up after step {cut}, it differs"


class AllocatorContract(AllocatorLaws):
    """What every Allocator must satisfy. Subclass it, give `make`, run pytest."""

    def test_it_widens_only_into_slots_that_are_there(self) -> None:
        beyond = self.complaints("beyond")
        assert not beyond, beyond

    def test_fewer_slots_give_no_wider_start(self) -> None:
        for pack, span in ((1, 4), (4, 1), (4, 4)):
            widths = []
            for slots in (6, 4, 3, 2, 1):
                cluster = Cluster(slots=slots)
                scene = Scene("slots are few", cluster, {"pack": pack, "span": span})
                given = [launch.width for launch in self.study(scene).run().launches]
                assert max(given) <= slots, f"{max(given):g} of {slots} slots were given"
                widths.append(given[0])
            assert widths == sorted(widths, reverse=True), f"on 6, 4, 3, 2, 1 slots: {widths}"
            assert widths[-1] <= 1.0

    def test_it_shrinks_when_slots_go(self) -> None:
        cluster = Cluster(slots=4, capacity=((2.5, 1),))
        study = self.study(Scene("slots go", cluster, {"pack": 2, "span": 4})).run()
        late = [
            launch.width
            for step in study.steps
            for launch in step.decisions
            if step.event.at > 2.5 and isinstance(launch, Launch)
        ]
        assert late, "nothing was launched on the slot that was left"
        assert max(late) <= 1.0, f"one slot was left, and {max(late)} were given"
        assert study.state.live == 0, "not everybody came to an end on the slot that was left"

    def test_it_does_not_move_without_gain(self) -> None:
        # As many trials as slots, all alike: after the first moments nothing is to be gained.
        trace = table([[1.0] * 20] * 4)
        for pack, span in ((1, 4), (2, 2), (4, 1)):
            scene = Scene("all is steady", Cluster(slots=4), {"pack": pack, "span": span})
            study = rehearsal(trace, brains_for(trace, allocator=self.make()), scene).run()
            first = study.state.now / 4
            moved = [
                f"{decision.why} at {step.event.at:g} s"
                for step in study.steps
                for decision in step.decisions
                if isinstance(decision, Resize) and first < step.event.at < 3 * first
            ]
            assert not moved, f"nothing has changed, and {'; '.join(moved)}"


class WatchedAllocator:
    """An allocator whose answers are looked at, and whose memory before and after."""

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator
        about = ("odd", "short", "strangers", "wrote", "beyond")
        self.found: dict[str, list[str]] = {each: [] for each in about}

    def see(self, entry: Entry, study: StudyView) -> None:
        self._allocator.see(entry, study)

    def place(self, demands: Demands, study: StudyView) -> Mapping[TrialId, float]:
        before = memory_of(self._allocator)
        widths = dict(self._allocator.place(demands, study))
        if memory_of(self._allocator) != before:
            self.found["wrote"].append("place changed the allocator's memory: only `see` may")
        if dict(self._allocator.place(demands, study)) != widths:
            self.found["wrote"].append("place answers otherwise when it is asked again")
        held = {demand.trial: demand.width for demand in demands.running()}
        asking = () if demands.asking is None else (demands.asking.trial,)
        asked = (*demands.running(), *((demands.asking,) if demands.asking else ()))
        least = {demand.trial: demand.least for demand in asked}
        for trial, width in widths.items():
            if not _regular(width, study, max(least.get(trial, 0.0), held.get(trial, 0.0))):
                self.found["odd"].append(f"trial {trial} is given {width!r} slots")
            if width < least.get(trial, 0.0):
                said = f"trial {trial} needs {least[trial]:g} slots and is given {width:g}"
                self.found["short"].append(said)
            if trial not in held and trial not in asking:
                self.found["strangers"].append(f"trial {trial} neither asks nor runs")
        wider = [trial for trial in held if widths.get(trial, 0.0) > held[trial]]
        total = sum(widths.get(trial, width) for trial, width in held.items())
        if wider and total > study.capacity + 1e-9:
            self.found["beyond"].append(f"{total:g} slots are given of {study.capacity}: {widths}")
        return widths


def _regular(width: float, study: StudyView, good: float) -> bool:
    """Say whether a width is 1/k with k up to `pack`, or whole, up to `span` or what is good."""
    if not (width > 0 and math.isfinite(width)):
        return False
    if width >= 1:
        return width == int(width) <= max(study.spec.span, good)
    return any(width == 1.0 / k for k in range(2, study.spec.pack + 1))
