"""The laws that hold for every history: invariants, fold, replay, cut, and split a batch."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from build import Played, table
from paceline.allocation.speedup import SpeedUp
from paceline.core.values import Budget, Target
from paceline.engines.sim.cluster import Faults
from paceline.machine.checks import complaints
from paceline.machine.machine import Brains, Machine
from paceline.machine.replay import replay
from paceline.testing.picture import picture
from paceline.testing.probe import AskedGenerator, ProbeAllocator, ProbePolicy

RATES = (0.1, 0.05, 0.01)


@st.composite
def studies(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a small study with everything in it that can happen to one."""
    epochs = draw(st.integers(1, 7))
    share = draw(st.booleans())
    number = st.one_of(st.floats(-5, 5, allow_nan=False), st.just(float("nan")))
    configs = []
    for run in range(draw(st.integers(1, 6))):
        cuts = draw(st.lists(st.integers(1, 6), max_size=2, unique=True))
        rates = draw(st.lists(st.sampled_from(RATES), min_size=3, max_size=3))
        pieces = [[at, rate] for at, rate in zip([0, *sorted(cuts)], rates, strict=False)]
        config = {"lr": {"piecewise": pieces}}
        configs.append(config if share else {**config, "run": run})
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
        "cluster": {
            "setup_s": draw(st.sampled_from([0.0, 0.3])),
            "save_s": draw(st.sampled_from([0.0, 0.2])),
            "restore_s": draw(st.sampled_from([0.0, 0.1])),
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
        },
    }


def made(study: dict[str, Any]) -> Played:
    """Return the study, ready to run."""
    configs = [run.config for run in study["trace"].runs]
    return Played(
        study["trace"],
        ProbePolicy(seed=study["seed"]),
        slots=study["slots"],
        cluster=study["cluster"],
        allocator=ProbeAllocator(seed=study["seed"]),
        generator=AskedGenerator(configs=configs) if study["asked"] else None,
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
    configs = [run.config for run in study["trace"].runs]
    fresh = made(study)
    brains = Brains(
        fresh.machine._policy, fresh.machine._filler._generator, fresh.machine._filler._allocator
    )
    assert configs
    assert replay(played.steps, brains) is None


@given(studies(), st.randoms(use_true_random=False))
def test_a_study_cut_anywhere_and_resumed_ends_the_same(study: dict[str, Any], rng: Random) -> None:
    played = made(study).run()
    cut = rng.randint(1, len(played.steps))
    assert made(study).resume(played.steps[:cut]).steps == played.steps
