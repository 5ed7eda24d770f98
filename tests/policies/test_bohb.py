"""BOHB combines two parts: Hyperband judges, TPE proposes from the results at the rungs."""

from __future__ import annotations

from statistics import mean
from typing import TYPE_CHECKING, Any

import pytest

import paceline as pl
from paceline.core.decisions import Go, Open, Stop
from paceline.core.events import Proposed
from paceline.core.values import Status

if TYPE_CHECKING:
    from paceline.core.decisions import Step


def simulated(seed: int, generator: str | None = "tpe") -> tuple[pl.Simulation, list[Step]]:
    """Return a simulation whose accuracy ends at the config's `end`, and its log."""
    simulation = pl.Simulation(
        source="families:epochs=27,crash=0,diverge=0",
        policy="hyperband",
        generator=generator,
        trials=80,
        seed=seed,
    )
    steps: list[Step] = []
    simulation.run(remember=steps.extend)
    return simulation, steps


def ends(steps: list[Step]) -> list[float]:
    return [each.config["end"] for step in steps for each in step.decisions if type(each) is Open]


@pytest.mark.parametrize("seed", range(3))
def test_the_sampler_learns_from_the_trials_that_halving_stopped(seed: int) -> None:
    _, steps = simulated(seed)
    later = ends(steps)[-40:]
    assert mean(later) > 0.8  # of 0.1 to 0.95
    assert mean(later) > mean(ends(simulated(seed, None)[1])[-40:]) + 0.2


def test_a_study_resumed_in_the_middle_ends_the_same() -> None:
    simulation, steps = simulated(0)
    again = steps[: len(steps) // 2]
    simulation.resume(list(again), remember=again.extend)
    assert again == steps


def learns(trial: Any) -> None:  # noqa: ANN401
    """Descend towards the distance of x from 0.3."""
    weight = trial.keep(weight=[1.0])
    for _ in trial.epochs():
        weight[0] *= 0.7
        trial.report(loss=(trial["x"] - 0.3) ** 2 + weight[0])


def test_a_live_study_halves_and_asks_the_sampler() -> None:
    result = pl.tune(
        learns,
        space={"x": pl.uniform(0.0, 1.0)},
        metric="loss",
        mode="min",
        epochs=9,
        policy="hyperband",
        generator="tpe",
        trials=17,
        slots=2,
        progress=False,
    )
    entries = [entry for step in result.log for entry in step.entries]
    assert {Proposed, Go, Stop} <= {type(entry) for entry in entries}
    assert any("of all 9 at epoch 1" in entry.why for entry in entries if type(entry) is Go)
    assert result.best is not None
    assert {trial.status for trial in result.trials} == {Status.FINISHED, Status.STOPPED}
