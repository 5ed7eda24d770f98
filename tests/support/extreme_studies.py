"""Logs with extreme content, for tests of figures and pages."""

from __future__ import annotations

import math
from typing import Any

from small_studies import SmallStudy, make_table

from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.decisions import Step
from paceline.core.values import Part, StudySpec
from paceline.engines.sim.cluster import Faults

NAN = math.nan


WHY = "the test wants it"


HOSTILE = "</script><img src=x onerror=hacked=1><b>%{x}</b>&\u2028$'\"`"


def make_log(*parts: tuple[e.AnyEvent, list[d.AnyDecision]]) -> list[Step]:
    """Return facts and what they caused as a log."""
    steps: list[Step] = []
    for event, decisions in parts:
        number = steps[-1].after if steps else 0
        steps.append(Step(number, event, tuple(decisions)))
    return steps


def make_spec(**changes: Any) -> StudySpec:  # noqa: ANN401
    defaults = {"name": "hand", "metric": "loss", "mode": "min", "epochs": 3}
    parts = {"policy": Part("fifo"), "generator": Part("random")}
    return StudySpec(**{**defaults, **parts, **changes})


def make_launch(attempt: int, trial: int, slots: tuple[int, ...], width: float = 1.0) -> d.Launch:
    return d.Launch(
        attempt=attempt,
        trial=trial,
        start=0,
        source=None,
        goal=3,
        save_at=(),
        slots=slots,
        width=width,
        why=WHY,
    )


def make_report(at: float, attempt: int, epoch: int, value: float | None) -> e.Reported:
    return e.Reported(at=at, attempt=attempt, epoch=epoch, metrics={"loss": value}, seconds=1.5)


def make_open(*trials: int) -> list[d.AnyDecision]:
    return [d.Open(trial=each, config={"lr": 0.1 * each}, until=3, why=WHY) for each in trials]


def write_log_by_hand() -> list[Step]:
    """Return a study of two trials: one has 1.5 slots for 6 s, one fails after 4 s on a half."""
    failed = e.Ended(at=4.0, attempt=1, cause=e.Cause.FAILED, note="out of memory")
    halves = [make_launch(0, 0, (0, 1), 1.5), make_launch(1, 1, (2,), 0.5)]
    return make_log(
        (e.Opened(at=0.0, spec=make_spec(retries=0)), []),
        (e.CapacityChanged(at=0.0, slots=(0, 1, 2)), [*make_open(0, 1), *halves]),
        (make_report(2.0, 0, 1, 0.5), []),
        (make_report(3.0, 1, 1, None), []),
        (failed, [d.Fail(trial=1, why=WHY)]),
        (e.CapacityChanged(at=5.0, slots=(0, 1)), []),
        (make_report(5.5, 0, 2, 0.7), []),
        (make_report(6.0, 0, 3, 0.25), []),
        (e.Ended(at=6.0, attempt=0, cause=e.Cause.GOAL), [d.End(cause=d.EndCause.QUIET, why=WHY)]),
    )


def degenerate_logs() -> dict[str, list[Step]]:
    """Return logs with next to nothing in them."""
    begun: tuple[e.AnyEvent, list[d.AnyDecision]] = (e.Opened(at=0.0, spec=make_spec()), [])
    slots = e.CapacityChanged(at=0.0, slots=(0,))
    running: list[d.AnyDecision] = [*make_open(0), make_launch(0, 0, (0,))]
    huge = make_table([[1e300, -1e300], [1e-300, 5.0]], epochs=2)
    frail = {"faults": Faults(mean_life_s=0.5, seed=1)}
    return {
        "only opened": make_log(begun),
        "no trials": make_log(begun, (slots, []), (e.Woke(at=9.0), [])),
        "launched and silent": make_log(begun, (slots, running)),
        "one report": make_log(begun, (slots, running), (make_report(2.0, 0, 1, 0.5), [])),
        "one report at once": make_log(begun, (slots, running), (make_report(0.0, 0, 1, 0.5), [])),
        "no number": SmallStudy(make_table([[NAN] * 3] * 4), epochs=3).run().steps,
        "all the same": SmallStudy(make_table([[0.5] * 3] * 4), epochs=3).run().steps,
        "no settings": SmallStudy(make_table([[0.5], [0.4]], configs=[{}, {}]), epochs=1)
        .run()
        .steps,
        "huge numbers": SmallStudy(huge, epochs=2).run().steps,
        "all failed": SmallStudy(make_table([[1.0] * 5] * 3), cluster=frail, retries=0).run().steps,
    }


def make_hostile_log() -> list[Step]:
    """Return a study in which everything a user can write is an attack."""
    bad = make_spec(name=HOSTILE, metric=HOSTILE, policy=Part(HOSTILE, {HOSTILE: HOSTILE}))
    configs = [{HOSTILE: HOSTILE, "lr": 0.1 * at, "kind": f"{at}{HOSTILE}"} for at in range(3)]
    opened = [d.Open(trial=at, config=configs[at], until=3, why=HOSTILE) for at in range(3)]
    launched = [make_launch(at, at, (at,)) for at in range(3)]
    reports: list[tuple[e.AnyEvent, list[d.AnyDecision]]] = [
        (
            e.Reported(at=1.0 + at, attempt=at, epoch=1, metrics={HOSTILE: 0.5 - at}, seconds=1.0),
            [],
        )
        for at in range(3)
    ]
    failed = e.Ended(at=5.0, attempt=1, cause=e.Cause.FAILED, note=HOSTILE)
    return make_log(
        (e.Opened(at=0.0, spec=bad, engine={"source": HOSTILE}), []),
        (e.CapacityChanged(at=0.0, slots=(0, 1, 2)), [*opened, *launched]),
        *reports,
        (failed, [d.Fail(trial=1, why=HOSTILE)]),
        (e.Woke(at=9.0), [d.End(cause=d.EndCause.POLICY, why=HOSTILE)]),
    )
