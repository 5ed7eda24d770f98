"""Random and busy simulated studies, for tests of laws that hold for every study."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from small_studies import SmallStudy, make_table

from paceline.core.events import ChangeSlots
from paceline.core.speedup import SpeedUp
from paceline.core.values import Budget, GroupSpec, Part, Target
from paceline.engines.sim.cluster import Faults
from paceline.engines.sim.synthetic import Families
from paceline.engines.sim.traces import Trace, TraceHeader
from paceline.generators.queued import Queued
from paceline.testing.random_parts import DeferredGenerator, RandomAllocator, RandomPolicy

if TYPE_CHECKING:
    from paceline.core.ports import Generator, Policy


RATES = (0.1, 0.05, 0.01)


@st.composite
def random_studies(draw: st.DrawFn) -> dict[str, Any]:
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
        "trace": make_table(curves, configs=configs, seconds=seconds, epochs=epochs),
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
            "groups": draw(st.sampled_from([(), (), make_groups(2), make_groups(3)])),
        },
    }


def make_groups(count: int) -> tuple[GroupSpec, ...]:
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


def make_study(study: dict[str, Any]) -> SmallStudy:
    """Return the study, ready to run."""
    configs = [run.config for run in study["trace"].runs]
    needs = study["needs"]
    # The second asks where the first does not, and the other way round.
    others: list[tuple[Policy, Generator]] = [
        (
            RandomPolicy(seed=study["seed"] + at),
            Queued(configs=configs) if study["asked"] else DeferredGenerator(configs=configs),
        )
        for at in range(1, len(study["spec"]["groups"]))
    ]
    return SmallStudy(
        study["trace"],
        RandomPolicy(seed=study["seed"]),
        others=tuple(others),
        slots=study["slots"],
        cluster=study["cluster"],
        allocator=RandomAllocator(seed=study["seed"]),
        generator=DeferredGenerator(configs=configs) if study["asked"] else None,
        needs=None if needs is None else (lambda setting: needs.get(setting["lr"], 1)),
        **study["spec"],
    )


def make_busy_study(seed: int) -> SmallStudy:
    """Return a study with forecasts, forks, failures, commands, capacity changes and sharing."""
    header = TraceHeader(
        paceline_trace=1, name="busy", metric="accuracy", mode="max", max_epochs=12
    )
    workload = Families(seed=seed, epochs=12, crash=0.2, diverge=0.2)
    base = {"epoch_s": 1.0, "luck": 0.5, "shape": "power", "start": 0.1, "end": 0.8}
    configs = [
        {**base, "rate": {"piecewise": [[0, 0.3], [3, rate], [6, late]]}, "luck": luck}
        for rate in (0.3, 0.5)
        for late in (0.1, 0.9)
        for luck in (0.05, 0.6)
    ]
    return SmallStudy(
        Trace(header, ()),
        RandomPolicy(seed=seed, forks=[{"rate": 0.7}, {"end": 0.9}]),
        slots=3,
        workload=workload,
        generator=DeferredGenerator(configs=configs),
        allocator=RandomAllocator(seed=seed),
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
