"""The lifetime of checkpoints: why each is kept, which is dropped first, what is trained again."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from checkpoint_bench import EPOCHS, SCHEDULES, CheckpointBench
from command_line import read_log
from hypothesis import given
from hypothesis import strategies as st
from machine_bench import MachineBench, ScriptedPolicy
from msgspec.structs import replace

import paceline as pl
from paceline.allocation.fixed import Fixed
from paceline.api.stored import fold_log
from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.errors import SpecError
from paceline.core.values import Part, Saves, StudySpec
from paceline.engines.sim.cluster import Cluster, Faults
from paceline.generators.queued import Queued
from paceline.machine.decider import Parts
from paceline.plan.settings import setting_at
from paceline.policies.asha import Asha
from paceline.policies.fifo import Fifo
from paceline.testing.random_parts import RandomAllocator
from paceline.testing.simulations import AddingWorkload, SimulatedStudy, find_replay_difference

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from paceline.core.decisions import Step
    from paceline.core.ports import Engine, Policy
    from paceline.core.values import Config
    from paceline.core.views import EngineView


class Weighing:
    """An engine whose checkpoints weigh something, and are gone once they are dropped."""

    def __init__(self, engine: Engine, weights: Sequence[int]) -> None:
        self._engine = engine
        self._weights = weights
        self._held: set[tuple[int, int]] = set()

    @property
    def now(self) -> float:
        return self._engine.now

    def wait(self, patience: float | None = None) -> Sequence[e.AnyEvent] | None:
        told = self._engine.wait(patience)
        return None if told is None else [self._weighed(event) for event in told]

    def _weighed(self, event: e.AnyEvent) -> e.AnyEvent:
        if not isinstance(event, e.Saved):
            return event
        self._held.add((event.attempt, event.epoch))
        return replace(event, bytes=self._weights[event.attempt % len(self._weights)])

    def apply(self, step: Step, study: EngineView) -> None:
        for decision in step.decisions:
            if isinstance(decision, d.Drop):
                self._held -= set(decision.checkpoints)
            elif isinstance(decision, d.Launch) and decision.source is not None:
                assert (decision.source, decision.start) in self._held, (
                    "it starts from what is gone"
                )
        self._engine.apply(step, study)

    def close(self) -> None:
        self._engine.close()


def rehearsed(
    saves: Saves,
    weights: Sequence[int],
    policy: Policy,
    cluster: Cluster,
    **spec: Any,  # noqa: ANN401
) -> SimulatedStudy:
    """Simulate the schedules to their ends, with checkpoints that weigh something."""
    allocator = spec.pop("allocator", None) or Fixed()
    parts = Parts(policy, Queued(configs=SCHEDULES), allocator)
    described = StudySpec(
        name="weighed",
        metric="loss",
        mode="min",
        epochs=EPOCHS,
        policy=Part("given"),
        generator=Part("queued"),
        saves=saves,
        **{"retries": 99, **spec},
    )
    played = SimulatedStudy(described, parts, AddingWorkload(), cluster)
    return played.run(lambda engine: Weighing(engine, weights))


def curve_of(config: Config) -> list[float]:
    """Return what training alone, without a pause, would report."""
    totals, total = [], 0.0
    for epoch in range(EPOCHS):
        total += setting_at(config, epoch)["step"]
        totals.append(round(total, 9))
    return totals


@given(
    limit=st.integers(1, 12),
    best=st.sampled_from([None, 0, 2]),
    weights=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    share=st.booleans(),
    asha=st.booleans(),
    seed=st.integers(0, 30),
    elastic=st.booleans(),
    life=st.sampled_from([None, 7.0]),
    every=st.sampled_from([None, 1.0, 3.0]),
)
def test_with_any_budget_every_trial_reaches_its_goal_as_if_nothing_was_dropped(
    limit: int,
    best: int | None,
    weights: list[int],
    share: bool,
    asha: bool,
    seed: int,
    elastic: bool,
    life: float | None,
    every: float | None,
) -> None:
    saves = Saves(collect=True, bytes=limit, best=best)
    cluster = Cluster(
        slots=2,
        setup_s=0.1,
        save_s=0.05,
        restore_s=0.05,
        save_every_s=every,
        faults=Faults(mean_life_s=life, seed=seed),
    )
    played = rehearsed(
        saves,
        weights,
        Asha(eta=2, first=1) if asha else Fifo(),
        cluster,
        share=share,
        allocator=RandomAllocator(seed=seed) if elastic else None,
        **({"pack": 2, "span": 2} if elastic else {}),
    )
    state = played.state
    assert state.end is not None
    assert state.mismatches == 0
    for trial in state.trials:
        assert trial.epoch == (trial.goal if asha else EPOCHS)
        assert list(trial.losses) == curve_of(trial.config)[: trial.epoch]
    assert find_replay_difference(played.steps, played.parts) == ""


# What is kept, and why


def test_of_a_paused_trial_the_last_checkpoint_is_kept_and_earlier_ones_go() -> None:
    told = CheckpointBench()
    told.pause(1, 0.1)  # the best, so that nothing else is kept for that
    told.submit(4, which=9)
    told.train(1, 0.9, 0.8)
    told.save(1)
    assert told.kept == {(0, 1), (1, 2)}
    told.train(1, 0.7, 0.6)
    told.save(1)
    told.end(1)
    assert told.kept == {(0, 1), (1, 4)}


def test_of_a_trial_that_failed_nothing_is_kept_but_what_was_the_best() -> None:
    told = CheckpointBench()
    told.submit(9, which=0)
    told.train(0, 0.5)
    told.save(0)
    told.train(0, 0.9)
    told.save(0)
    assert told.kept == {(0, 1), (0, 2)}
    told.end(0, e.Cause.FAILED)
    assert told.kept == {(0, 1)}


def test_of_finished_trials_all_are_kept_or_only_the_best_n() -> None:
    kept = []
    for saves in (Saves(collect=True), Saves(collect=True, best=2), Saves(collect=True, best=0)):
        told = CheckpointBench(saves=saves)
        for loss in (0.5, 0.3, 0.7, 0.4):
            told.pause(9, loss)
        told.pause(3, 0.9)
        kept.append(told.kept)
    assert kept == [
        {(0, 9), (1, 9), (2, 9), (3, 9), (4, 3)},
        {(1, 9), (3, 9), (4, 3)},
        {(1, 9), (4, 3)},
    ], "the study's best is always kept"


def test_a_shared_checkpoint_stays_until_the_last_trial_has_started_from_it() -> None:
    told = CheckpointBench(slots=2, epochs=EPOCHS, share=True, configs=[SCHEDULES[0], SCHEDULES[3]])
    told.train(0, 0.5, 0.4)
    told.save(0)
    assert told.state.closed
    assert (told.state.attempts[1].source, told.state.attempts[1].start) == (0, 2)
    told.train(0, 0.3, 0.2)
    told.save(0)
    assert told.kept == {(0, 2), (0, 4)}, "the second starts from the first one's"
    told.train(0, 0.1, 0.0)
    told.save(0)
    told.end(0, e.Cause.FINISHED)
    told.train(1, 0.9)
    assert told.kept == {(0, 2), (0, 6)}
    told.save(1)
    assert told.kept == {(0, 6), (1, 3)}


def test_checkpoints_at_branches_are_kept_for_an_outside_tuner() -> None:
    told = CheckpointBench(epochs=EPOCHS, share=True)
    told.submit(EPOCHS, **SCHEDULES[5])
    for until in (2, 4, 6):
        told.train(0, 1.0 / until, 0.9 / until)
        told.save(0)
    told.end(0, e.Cause.FINISHED)
    assert told.kept == {(0, 2), (0, 4), (0, 6)}
    told.submit(EPOCHS, **SCHEDULES[1])
    assert (told.state.attempts[1].source, told.state.attempts[1].start) == (0, 2)


def test_when_a_study_ends_checkpoints_kept_for_others_are_dropped() -> None:
    told = CheckpointBench(epochs=EPOCHS, share=True, saves=Saves(collect=True, best=1))
    told.submit(EPOCHS, **SCHEDULES[5])
    for until in (2, 4):
        told.train(0, 1.0 / until, 0.9 / until)
        told.save(0)
    told.submit(2, **SCHEDULES[1])
    told.pause(2, 0.9)
    assert told.kept == {(0, 2), (0, 4), (1, 2)}
    told.say(e.Commanded(at=told.state.now, number=1, command=e.StopStudy()))
    assert told.kept == {(0, 4)}, "the best of those who could have gone on"
    assert isinstance(told.steps[-1].decisions[-1], d.End)


# What goes first where all is too much


def test_the_checkpoint_that_costs_least_per_byte_is_dropped_first() -> None:
    told = CheckpointBench(saves=Saves(collect=True, bytes=200))
    told.pause(1, 0.1, size=20)  # the best
    told.pause(3, 0.5, size=60, seconds=10.0)  # 30 s: 0.5 s a byte
    told.pause(2, 0.5, size=20, seconds=6.0)  # 12 s: 0.6 s a byte
    told.pause(4, 0.5, size=90, seconds=10.0)  # 40 s: 0.44 s a byte
    assert told.kept == {(0, 1), (1, 3), (2, 2), (3, 4)}
    told.pause(1, 0.5, size=20)
    assert told.kept == {(0, 1), (1, 3), (2, 2), (3, 4)}, "0.05 s a byte"
    told.pause(2, 0.5, size=40, seconds=99.0)
    assert told.kept == {(0, 1), (1, 3), (2, 2), (5, 2)}
    told.pause(2, 0.5, size=70, seconds=99.0)
    assert told.kept == {(0, 1), (2, 2), (5, 2), (6, 2)}
    told.pause(9, 0.5, size=60)
    why = told.steps[-2].decisions[0].why
    assert why == "all may take 200 bytes, and these cost least to train again"
    assert told.kept == {(0, 1), (2, 2), (5, 2), (6, 2)}, "a result is not trained again"


def test_a_checkpoint_without_the_one_before_it_costs_more() -> None:
    told = CheckpointBench(share=True, epochs=EPOCHS, saves=Saves(collect=True, bytes=45))
    told.pause(1, 0.0, size=1)
    told.submit(EPOCHS, **SCHEDULES[5])
    told.train(1, 0.9, 0.8, seconds=3.0)
    told.save(1, 20)  # 6 s
    told.train(1, 0.7, 0.6, seconds=4.0)
    told.save(1, 20)  # 8 s, or 14 s without the one before
    told.pause(2, 0.5, size=20, seconds=5.0)  # 10 s
    assert told.kept == {(0, 1), (1, 4), (2, 2)}
    told.pause(2, 0.5, size=20, seconds=6.0)  # 12 s
    assert told.kept == {(0, 1), (1, 4), (3, 2)}


def test_results_are_dropped_first_worst_first_except_the_best_n() -> None:
    kept = []
    for best in (None, 2):
        told = CheckpointBench(saves=Saves(collect=True, bytes=30, best=best))
        told.pause(1, 0.1)
        told.pause(9, 0.6)
        told.pause(9, 0.5)
        told.pause(2, 0.9)
        kept.append(told.kept)
    assert kept == [{(0, 1), (2, 9), (3, 2)}, {(0, 1), (1, 9), (2, 9)}]


def test_the_best_and_the_start_of_an_attempt_are_never_dropped() -> None:
    told = CheckpointBench(share=True, saves=Saves(collect=True, bytes=5))
    told.pause(2, 0.5)
    assert told.kept == {(0, 2)}
    told.pause(2, 0.6)
    assert told.kept == {(0, 2)}
    told.submit(4, which=0)
    assert (told.state.attempts[2].source, told.state.attempts[2].start) == (0, 2)
    told.pause(1, 0.4)
    assert told.kept == {(0, 2), (3, 1)}, "the third has not started yet"
    told.train(2, 0.9)
    told.pause(1, 0.6)
    assert told.kept == {(3, 1)}


def test_a_dropped_checkpoint_is_trained_again_and_reported_once() -> None:
    told = CheckpointBench(share=True, saves=Saves(collect=True, bytes=5))
    told.pause(1, 0.1)
    told.pause(3, 0.5)
    assert told.kept == {(0, 1)}
    told.submit(5, which=1)
    trial = told.state.trials[2]
    assert told.state.attempts[2].start == 0
    told.train(2, 0.52, 0.51, 0.7)
    assert (trial.epoch, told.state.repeats, told.state.mismatches) == (3, 3, 1)
    told.train(2, 0.4, 0.3)
    assert list(trial.losses) == [0.52, 0.51, 0.5, 0.4, 0.3], "the first report wins"


# Live


def learns(trial: Any) -> None:  # noqa: ANN401
    """Train a linear model on noise and batches of its own; report what its weights hash to."""
    rng = np.random.default_rng(3)
    inputs, labels = rng.normal(size=(64, 5)), rng.normal(size=64)
    weights = trial.keep(weights=np.zeros(5))
    for _ in trial.epochs():
        rows = np.random.permutation(64)[:32]  # noqa: NPY002 - its state is kept for the function
        errors = inputs[rows] @ weights - labels[rows]
        weights -= trial["lr"] / 32 * errors @ inputs[rows]
        code = int.from_bytes(hashlib.sha256(weights.tobytes()).digest()[:6])
        trial.report(loss=float(np.mean((inputs @ weights - labels) ** 2)), code=code)


def test_epochs_trained_again_are_the_same_to_the_last_bit(tmp_path: Path) -> None:
    rates = [
        pl.piecewise([(0, first), (3, second)]) for first in (0.1, 0.3) for second in (0.1, 0.2)
    ]
    codes, repeats = [], []
    for name, limit in (("ample", 10**9), ("scarce", 12_000)):
        # A store of its own: from the same one the second would take over what the first has.
        store = f"sqlite:///{tmp_path / name}.db"
        told: dict[str, Any] = {"metric": "loss", "mode": "min", "epochs": 9, "slots": 2}
        told |= {"name": name, "store": store, "progress": False, "checkpoint_bytes": limit}
        with pl.Study(learns, **told) as study:
            for until in (2, 5, 9):
                ran = study.group([({"lr": rate}, until) for rate in rates])
        codes.append([trial.metrics["code"] for trial in ran])
        state = fold_log(read_log(store, name))
        repeats.append(state.repeats)
        assert state.mismatches == 0
        assert state.checkpoints.bytes <= limit
    assert codes[0] == codes[1]
    assert len({tuple(code) for code in codes[0]}) == len(rates), (
        "all train the same: nothing is shown"
    )
    assert repeats[0] == 0 < repeats[1]


@pytest.mark.parametrize(
    ("option", "given"),
    [("keep_best", -1), ("keep_best", 1.5), ("checkpoint_bytes", 0), ("checkpoint_bytes", "1GB")],
)
def test_an_invalid_limit_is_refused(option: str, given: object) -> None:
    with pytest.raises(SpecError, match=f"{option}={given!r} is invalid: must be a whole number"):
        pl.Study(learns, metric="loss", mode="min", epochs=3, **{option: given})  # type: ignore[arg-type]


@pytest.mark.parametrize("collect", [False, True])
def test_the_engine_can_check_a_checkpoint_whether_or_not_checkpoints_are_collected(
    collect: bool,
) -> None:
    bench = MachineBench(ScriptedPolicy(), [{"lr": 1}], saves=Saves(collect=collect))
    bench.report(0, 0.5)
    bench.say(e.Saved(at=1.0, attempt=0, epoch=1, bytes=8, digest="abc"))
    assert bench.state.checkpoint_digest((0, 1)) == "abc"
