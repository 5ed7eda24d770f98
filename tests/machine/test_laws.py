"""The laws that hold for every history: invariants, fold, replay, cut, and split a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from build import Played, table
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.events import ChangeSlots
from paceline.core.speedup import SpeedUp
from paceline.core.values import Budget, GroupSpec, Part, Target
from paceline.engines.loop import run
from paceline.engines.sim.cluster import Faults
from paceline.engines.sim.synthetic import Families
from paceline.engines.sim.traces import Header, Trace
from paceline.generators.queued import Queued
from paceline.machine.invariants import complaints
from paceline.machine.replay import replay
from paceline.testing.random_parts import AskedGenerator, ProbeAllocator, ProbePolicy
from paceline.testing.snapshots import picture

if TYPE_CHECKING:
    from random import Random

    from paceline.core.decisions import Step
    from paceline.core.events import AnyEvent
    from paceline.core.ports import Generator, Policy
    from paceline.machine.machine import Machine

RATES = (0.1, 0.05, 0.01)


@st.composite
def studies(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a small study with everything in it that can happen to one."""
    epochs = draw(st.integers(1, 7))
    share = draw(st.booleans())
    number = st.one_of(st.floats(-5, 5, allow_nan=False), st.just(float("nan")))
    configs = []
    for index in range(draw(st.integers(1, 6))):
        cuts = draw(st.lists(st.integers(1, 6), max_size=2, unique=True))
        rates = draw(st.lists(st.sampled_from(RATES), min_size=3, max_size=3))
        pieces = [[at, rate] for at, rate in zip([0, *sorted(cuts)], rates, strict=False)]
        config = {"lr": {"piecewise": pieces}}
        configs.append(config if share else {**config, "run": index})
    configs = [c for i, c in enumerate(configs) if c not in configs[:i]]
    # Shared prefixes give equal values only if the values depend on the setting alone.
    curve = draw(st.lists(number, min_size=epochs, max_size=epochs))
    curves = [
        curve if share else draw(st.lists(number, min_size=1, max_size=epochs)) for _ in configs
    ]
    seconds = draw(st.sampled_from([0.5, 1.0, 1.7]))
    return {
        "trace": table(curves, configs=configs, seconds=seconds, epochs=epochs),
        "seed": draw(st.integers(0, 50)),
        "slots": draw(st.integers(1, 3)),
        "asked": draw(st.booleans()),
        "needs": draw(st.sampled_from([None, {0.1: 2, 0.05: 0.5}, {0.01: 3, 0.05: 2}])),
        "cluster": {
            "setup_s": draw(st.sampled_from([0.0, 0.3])),
            "save_s": draw(st.sampled_from([0.0, 0.2])),
            "restore_s": draw(st.sampled_from([0.0, 0.1])),
            **draw(st.sampled_from([{}, {"node_slots": 2}, {"node_slots": 1, "fetch_s": 0.2}])),
            "forecast_s": draw(st.sampled_from([0.0, 0.4, 2.5])),
            "proposal_s": draw(st.sampled_from([0.0, 0.7])),
            "save_every_s": draw(st.sampled_from([None, 0.0, 1.5])),
            "speed": SpeedUp(interference=draw(st.sampled_from([0.0, 0.5]))),
            "faults": Faults(mean_life_s=draw(st.sampled_from([None, 3.0, 20.0])), seed=1),
            "capacity": draw(st.sampled_from([(), ((2.2, 1), (4.0, 3)), ((1.0, 0), (3.0, 2))])),
        },
        "spec": {
            "share": share,
            "pack": draw(st.integers(1, 2)),
            "span": draw(st.integers(1, 3)),
            "retries": draw(st.integers(0, 2)),
            "budget": Budget(
                draw(st.sampled_from([None, 3.0, 9.0])),
                draw(st.sampled_from([None, Target(-4.5), Target(-1.0, 2)])),
                draw(st.sampled_from([None, 8.0])),
                draw(st.sampled_from([None, 3])),
            ),
            "groups": draw(st.sampled_from([(), (), several(2), several(3)])),
        },
    }


def several(count: int) -> tuple[GroupSpec, ...]:
    """Return studies that are driven as one, of which the first has a target of its own."""
    part = Part("given")
    return tuple(
        GroupSpec(
            name=f"study {at}",
            policy=part,
            generator=part,
            target=None if at else Target(-2.0),
            trials=3 + at,
        )
        for at in range(count)
    )


def made(study: dict[str, Any]) -> Played:
    """Return the study, ready to run."""
    configs = [run.config for run in study["trace"].runs]
    needs = study["needs"]
    # The second asks where the first does not, and the other way round.
    others: list[tuple[Policy, Generator]] = [
        (
            ProbePolicy(seed=study["seed"] + at),
            Queued(configs=configs) if study["asked"] else AskedGenerator(configs=configs),
        )
        for at in range(1, len(study["spec"]["groups"]))
    ]
    return Played(
        study["trace"],
        ProbePolicy(seed=study["seed"]),
        others=tuple(others),
        slots=study["slots"],
        cluster=study["cluster"],
        allocator=ProbeAllocator(seed=study["seed"]),
        generator=AskedGenerator(configs=configs) if study["asked"] else None,
        needs=None if needs is None else (lambda setting: needs.get(setting["lr"], 1)),
        **study["spec"],
    )


def folded(study: dict[str, Any], steps: list[Any]) -> Machine:
    """Return a machine that has taken these steps and decided nothing."""
    machine = made(study).machine
    for step in steps:
        machine.fold(step)
    return machine


@given(studies())
def test_invariants_hold_after_every_step(study: dict[str, Any]) -> None:
    played = made(study).run()
    machine = made(study).machine
    for step in played.steps:
        machine.fold(step)
        assert complaints(machine.state) == [], step


@given(studies())
def test_a_folded_log_is_the_live_state(study: dict[str, Any]) -> None:
    played = made(study).run()
    assert picture(folded(study, played.steps).state) == picture(played.state)


@given(studies())
def test_a_log_replays_to_the_same_decisions(study: dict[str, Any]) -> None:
    played = made(study).run()
    assert replay(played.steps, made(study).brains) is None


@given(studies(), st.randoms(use_true_random=False))
def test_a_study_cut_anywhere_and_resumed_ends_the_same(study: dict[str, Any], rng: Random) -> None:
    played = made(study).run()
    cut = rng.randint(1, len(played.steps))
    assert made(study).resume(played.steps[:cut]).steps == played.steps


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

    def apply(self, step: Step) -> None:
        self.applied.append(step)

    def replay(self, step: Step) -> None:
        """Nothing is resumed."""

    def close(self) -> None:
        """Nothing runs."""


@given(studies(), st.lists(st.integers(1, 5), max_size=30))
def test_how_facts_are_batched_changes_no_decision(study: dict[str, Any], sizes: list[int]) -> None:
    played = made(study).run()
    engine = Scripted([step.event for step in played.steps], sizes)
    steps: list[Step] = []
    machine = made(study).machine
    run(machine, engine, steps.extend)
    assert steps == played.steps
    assert engine.applied == steps


def busy(seed: int) -> Played:
    """Return a study with forecasts, forks, failures, commands, capacity changes and sharing."""
    header = Header(paceline_trace=1, name="busy", metric="accuracy", mode="max", max_epochs=12)
    workload = Families(seed=seed, epochs=12, crash=0.2, diverge=0.2)
    base = {"epoch_s": 1.0, "luck": 0.5, "shape": "power", "start": 0.1, "end": 0.8}
    configs = [
        {**base, "rate": {"piecewise": [[0, 0.3], [3, rate], [6, late]]}, "luck": luck}
        for rate in (0.3, 0.5)
        for late in (0.1, 0.9)
        for luck in (0.05, 0.6)
    ]
    return Played(
        Trace(header, ()),
        ProbePolicy(seed=seed, forks=[{"rate": 0.7}, {"end": 0.9}]),
        slots=3,
        workload=workload,
        generator=AskedGenerator(configs=configs),
        allocator=ProbeAllocator(seed=seed),
        commands={20: ChangeSlots(2), 45: ChangeSlots(-2)},
        cluster={
            "setup_s": 0.3,
            "save_s": 0.1,
            "restore_s": 0.2,
            "forecast_s": 0.7,
            "proposal_s": 0.4,
            "save_every_s": 2.0,
            "speed": SpeedUp(interference=0.3),
            "faults": Faults(mean_life_s=9.0, seed=seed),
            "capacity": ((4.0, 2), (7.5, 4)),
        },
        share=True,
        pack=2,
        span=2,
        retries=1,
        seed=seed,
    )


@pytest.mark.parametrize("seed", [2, 13, 26, 33])
def test_a_busy_study_cut_after_every_single_entry_ends_the_same(seed: int) -> None:
    played = busy(seed).run()
    kinds = {type(entry).__name__ for entry in played.entries}
    assert kinds >= {"Forecasted", "Proposed", "CapacityChanged", "Commanded", "Credit", "Retire"}
    assert len(played.entries) <= 500
    assert replay(played.steps, busy(seed).brains) is None
    ends = [0]
    for cut in range(1, len(played.entries)):
        # A step of which only some entries were written was never written.
        kept = [step for step in played.steps if step.after <= cut]
        if kept and len(kept) > ends[-1]:
            ends.append(len(kept))
            assert busy(seed).resume(kept).steps == played.steps
