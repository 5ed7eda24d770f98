"""The laws that hold for every history: invariants, fold, replay, cut, and split a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_studies import make_busy_study, make_study, random_studies

from paceline.engines.loop import run
from paceline.machine.invariants import find_violations
from paceline.machine.replay import replay
from paceline.testing.snapshots import dump_state

if TYPE_CHECKING:
    from random import Random

    from paceline.core.decisions import Step
    from paceline.core.events import AnyEvent
    from paceline.core.views import EngineView
    from paceline.machine.machine import Machine


def folded(study: dict[str, Any], steps: list[Any]) -> Machine:
    """Return a machine that has taken these steps and decided nothing."""
    machine = make_study(study).machine
    for step in steps:
        machine.fold(step)
    return machine


@given(random_studies())
def test_invariants_hold_after_every_step(study: dict[str, Any]) -> None:
    played = make_study(study).run()
    machine = make_study(study).machine
    for step in played.steps:
        machine.fold(step)
        assert find_violations(machine.state) == [], step


@given(random_studies())
def test_a_folded_log_is_the_live_state(study: dict[str, Any]) -> None:
    played = make_study(study).run()
    assert dump_state(folded(study, played.steps).state) == dump_state(played.state)


@given(random_studies())
def test_a_log_replays_to_the_same_decisions(study: dict[str, Any]) -> None:
    played = make_study(study).run()
    assert replay(played.steps, make_study(study).parts) is None


@given(random_studies(), st.randoms(use_true_random=False))
def test_a_study_cut_anywhere_and_resumed_ends_the_same(study: dict[str, Any], rng: Random) -> None:
    played = make_study(study).run()
    cut = rng.randint(1, len(played.steps))
    assert make_study(study).resume(played.steps[:cut]).steps == played.steps


class Scripted:
    """An engine that tells given facts in given batches, whatever is decided."""

    now = 0.0

    def __init__(self, events: list[AnyEvent], sizes: list[int]) -> None:
        self._events = events
        self._sizes = sizes
        self.applied: list[Step] = []

    def wait(self, patience: float | None = None) -> list[AnyEvent] | None:
        size = self._sizes.pop() if self._sizes else len(self._events)
        batch, self._events = self._events[:size], self._events[size:]
        return batch or None

    def apply(self, step: Step, study: EngineView) -> None:
        self.applied.append(step)

    def close(self) -> None:
        """Nothing runs."""


@given(random_studies(), st.lists(st.integers(1, 5), max_size=30))
def test_how_events_are_batched_changes_no_decision(
    study: dict[str, Any], sizes: list[int]
) -> None:
    played = make_study(study).run()
    engine = Scripted([step.event for step in played.steps], sizes)
    steps: list[Step] = []
    machine = make_study(study).machine
    run(machine, engine, steps.extend)
    assert steps == played.steps
    assert engine.applied == steps


@pytest.mark.parametrize("seed", [2, 13, 26, 33])
def test_a_busy_study_cut_after_every_single_entry_ends_the_same(seed: int) -> None:
    played = make_busy_study(seed).run()
    kinds = {type(entry).__name__ for entry in played.entries}
    assert kinds >= {"Forecasted", "Proposed", "CapacityChanged", "Commanded", "Credit", "Retire"}
    assert len(played.entries) <= 500
    assert replay(played.steps, make_busy_study(seed).parts) is None
    ends = [0]
    for cut in range(1, len(played.entries)):
        # A step of which only some entries were written was never written.
        kept = [step for step in played.steps if step.after <= cut]
        if kept and len(kept) > ends[-1]:
            ends.append(len(kept))
            assert make_busy_study(seed).resume(kept).steps == played.steps
