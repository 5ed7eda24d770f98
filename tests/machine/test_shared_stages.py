"""What is shared is trained once: the merge-rate limit is met, and nothing is paid for nothing."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from command_line import read_log
from hypothesis import given
from hypothesis import strategies as st
from small_studies import SmallStudy, make_table

import paceline as pl
from paceline.analysis.sharing import measure_sharing
from paceline.api.sources import load_trace
from paceline.core.decisions import Drop, Open
from paceline.core.events import Saved
from paceline.core.ports import Outcome
from paceline.core.values import Status
from paceline.engines.sim.trace_workload import TraceWorkload
from paceline.engines.sim.traces import Trace
from paceline.plan.cadence import SAVE_SHARE, is_save_due, list_likely_branches
from paceline.plan.settings import canonicalize, config_key

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from paceline.core.decisions import Step
    from paceline.testing.simulations import SimulatedStudy

EPOCHS = 7
# Saved after every epoch, at no cost.
FREE = {"save_every_s": 0.0}
# After these epochs a schedule of three stages of ten changes, if it does each time.
ALL = [10, 20, 30]
rates = st.lists(st.sampled_from([0.1, 0.2, 0.3]), min_size=EPOCHS, max_size=EPOCHS)
sizes = st.lists(st.sampled_from([32, 64]), min_size=EPOCHS, max_size=EPOCHS)


def curve(path: Sequence[tuple[float, float]]) -> list[float]:
    """Return losses that tell all settings so far."""
    found, loss = [], 0.0
    for rate, size in path:
        loss = round(loss / 3.0 + rate * size, 9)
        found.append(loss)
    return found


@given(
    st.lists(st.tuples(rates, sizes), min_size=1, max_size=12, unique_by=str),
    st.integers(1, 5),
    st.sampled_from([1.0, 0.3, 7.0]),
)
def test_every_different_epoch_is_trained_exactly_once(
    drawn: list[tuple[list[float], list[int]]], slots: int, seconds: float
) -> None:
    paths = [list(zip(lr, batch, strict=True)) for lr, batch in drawn]
    curves = [curve(path) for path in paths]
    configs = [{"lr": pl.each_epoch(lr), "batch": pl.each_epoch(batch)} for lr, batch in drawn]
    trace = make_table(curves, configs=configs, seconds=seconds)
    played = SmallStudy(trace, share=True, slots=slots, cluster=FREE).run()
    state = played.state
    distinct = {tuple(path[: epoch + 1]) for path in paths for epoch in range(EPOCHS)}
    assert (state.epochs_trained, state.repeats) == (len(distinct), 0)
    assert state.slot_seconds == pytest.approx(len(distinct) * seconds)
    assert measure_sharing(played.steps).epochs_needed == len(distinct)
    # Every trial has the values it would have had alone.
    assert [list(trial.losses) for trial in state.trials] == curves
    assert {trial.ended for trial in state.trials} == {Status.FINISHED}


def staged(length: int, seed: int) -> list[dict[str, Any]]:
    """Return schedules of nine rates chosen afresh in each of three stages, in any order."""
    configs = [
        {"lr": pl.each_epoch([rate for rate in chosen for _ in range(length)])}
        for chosen in product(range(1, 10), repeat=3)
    ]
    Random(seed).shuffle(configs)
    return configs


def on_stages(length: int, slots: int, seed: int = 3, **cluster: Any) -> SimulatedStudy:  # noqa: ANN401
    """Return a study of all staged schedules that has come to its end."""
    configs = staged(length, seed)
    trace = make_table([[1.0] * 3 * length] * len(configs), configs=configs, seconds=7.0)
    return SmallStudy(trace, share=True, slots=slots, cluster={**FREE, **cluster}).run()


@pytest.mark.parametrize(("slots", "seed"), [(1, 1), (8, 2), (50, 3)])
def test_nine_settings_in_each_of_three_stages_are_819_stages_of_2187(
    slots: int, seed: int
) -> None:
    found = measure_sharing(on_stages(1, slots, seed).steps)
    assert (found.trials, found.epochs_asked) == (729, 2187)
    assert found.epochs_trained == found.epochs_needed == 819
    assert found.seconds_saved == pytest.approx(7.0 * (2187 - 819))
    assert found.merge_rate == pytest.approx(2187 / 819)


@pytest.mark.parametrize("slots", [1, 4, 8, 20])
def test_the_recorded_stages_are_819_of_2187_too(slots: int) -> None:
    log: list[Step] = []
    # Saves by default: an epoch takes 35 ms, a save 4 ms.
    recorded = pl.Simulation(source="fashion_stages", policy="fifo", slots=slots, share=True)
    recorded.run(remember=log.extend)
    # One save for each stage, and one for the study's best.
    assert sum(isinstance(step.event, Saved) for step in log) <= 819 + 1
    found = measure_sharing(log)
    # Three epochs a stage.
    assert (found.trials, found.epochs_asked) == (729, 3 * 2187)
    assert found.epochs_trained == found.epochs_needed == 3 * 819


def test_recorded_stages_have_the_same_values_together_and_apart() -> None:
    trace = load_trace("fashion_stages")
    told = {config_key(run.config): list(run.values) for run in trace.runs}
    study = SmallStudy(
        Trace(trace.header, trace.runs[::9]), share=True, slots=4, cluster=FREE
    ).run()
    for trial in study.state.trials:
        assert list(trial.metric("accuracy")) == told[config_key(trial.config)]


def test_a_recorded_trial_may_be_forked_where_stages_end_and_nowhere_else() -> None:
    trace = load_trace("fashion_stages")
    workload = TraceWorkload(trace, share=True)
    rest = {"dropout": 0.0, "momentum": 0.9, "width": 64}
    state = workload.begin({})
    for epoch in range(3):
        outcome = workload.advance(state, canonicalize({**rest, "lr": 0.1}))
        assert isinstance(outcome, Outcome)
        state = outcome.state
        if epoch < 2:
            with pytest.raises(pl.SpecError, match=f"in epoch {epoch + 2}"):
                workload.advance(state, canonicalize({**rest, "lr": 0.01}))
    (other,) = (
        run.values[3]
        for run in trace.runs
        if run.config["lr"] == {"piecewise": [[0, 0.1], [3, 0.01]]}
    )
    forked = workload.advance(state, canonicalize({**rest, "lr": 0.01}))
    assert isinstance(forked, Outcome)
    assert forked.metrics == {"accuracy": other}


@pytest.mark.parametrize("slots", [1, 8, 64])
@pytest.mark.parametrize(("setup", "save", "restore"), [(2.0, 0.1, 0.2), (5.0, 0.5, 1.0)])
def test_with_costs_slot_time_is_within_a_tenth_of_the_limit(
    setup: float, save: float, restore: float, slots: int
) -> None:
    costs: dict[str, Any] = {
        "setup_s": setup,
        "save_s": save,
        "restore_s": restore,
        "save_every_s": SAVE_SHARE * save,
    }
    played = on_stages(10, slots, **costs)
    limit = measure_sharing(played.steps).epochs_needed * 7.0
    assert limit <= played.state.slot_seconds <= 1.1 * limit


def test_one_process_goes_on_with_a_child_of_every_stage() -> None:
    # Each leaf needs an attempt; were children not continued, there would be one for each stage.
    assert on_stages(2, 8).state.launches == 729


def test_saves_wait_for_the_place_where_others_branch() -> None:
    # Every 20 s would be after epochs 3, 6 and 9 of a stage of ten, and the tenth trained again.
    changing = [config for config in staged(10, 3) if list(list_likely_branches(config, 30)) == ALL]
    trace = make_table([[1.0] * 30] * len(changing), configs=changing, seconds=7.0)
    played = SmallStudy(trace, share=True, slots=8, cluster={"save_every_s": 20.0}).run()
    assert played.state.repeats == 0
    assert played.state.epochs_trained == measure_sharing(played.steps).epochs_needed


def test_a_save_is_due_in_time_and_put_off_only_to_a_branch_that_is_near() -> None:
    assert not is_save_due(9.0, 10.0, epoch=4, epoch_s=1.0, branches=[4, 8])
    assert is_save_due(10.0, 10.0, epoch=4, epoch_s=1.0, branches=[4, 8])
    assert not is_save_due(10.0, 10.0, epoch=5, epoch_s=1.0, branches=[4, 8])
    assert is_save_due(10.0, 10.0, epoch=5, epoch_s=5.0, branches=[4, 8])
    assert is_save_due(10.0, 10.0, epoch=9, epoch_s=1.0, branches=[4, 8])
    assert is_save_due(0.0, 0.0, epoch=5, epoch_s=1.0, branches=[4, 8])


def test_a_path_may_branch_where_its_setting_changes() -> None:
    config = canonicalize({"lr": pl.step_decay(0.1, drops=[3, 5]), "net": {"drop": 0.1}})
    assert list(list_likely_branches(config, 8)) == [3, 5, 8]
    assert list(list_likely_branches(canonicalize({"lr": 0.1}), 8)) == []


def test_without_common_prefixes_sharing_changes_no_decision() -> None:
    rng = Random(4)
    points = [(rng.random(), rng.choice([8, 16])) for _ in range(40)]
    configs = [{"lr": lr, "width": width} for lr, width in points]
    trace = make_table([curve([point] * EPOCHS) for point in points], configs=configs)
    costs = {"setup_s": 0.5, "save_s": 0.1, "restore_s": 0.2, "save_every_s": 2.0}
    together, apart = (
        SmallStudy(trace, share=share, slots=6, cluster=costs).run() for share in (True, False)
    )
    assert together.steps[1:] == apart.steps[1:]
    assert together.state.now == apart.state.now


def climbs(trial: Any) -> None:  # noqa: ANN401
    """Improve on the best with every epoch, so that each is saved."""
    trial.keep(nothing=[0])
    for epoch in trial.epochs():
        trial.report(score=100.0 * trial.id + epoch + trial["lr"])


def climbed(store: str, first: Any, generator: str) -> pl.Result:  # noqa: ANN401
    """Return a study of four schedules that change after three epochs, one after the other."""
    return pl.tune(
        climbs,
        name="climbs",
        store=store,
        space={"lr": pl.piecewise([(0, first), (3, pl.grid([0.2, 0.4]))])},
        metric="score",
        mode="max",
        epochs=6,
        trials=4,
        generator=generator,
        policy="fifo",
        slots=1,
        progress=False,
    )


def held(steps: list[Step], trial: int) -> set[int]:
    """Return the epochs of which there are checkpoints when a trial is opened."""
    names: set[tuple[int, int]] = set()
    for entry in (entry for step in steps for entry in step.entries):
        if isinstance(entry, Saved):
            names.add((entry.attempt, entry.epoch))
        elif isinstance(entry, Drop):
            names -= set(entry.checkpoints)
        elif isinstance(entry, Open) and entry.trial == trial:
            break
    return {epoch for attempt, epoch in names if attempt > 0}


def test_a_checkpoint_at_a_branch_is_kept_while_trials_with_that_prefix_may_come(
    tmp_path: Path,
) -> None:
    store = f"sqlite:///{tmp_path / 'studies.db'}"
    result = climbed(store, pl.grid([0.3, 0.1]), "grid")
    assert result.summary().epochs_trained == 6 + 3 + 6 + 3
    assert held(read_log(store, "climbs"), 3) == {3, 6}
    # When no trial could come any more, the checkpoints at the branches were dropped.
    saved = [trial.checkpoint for trial in result.trials]
    assert [each and each.epoch for each in saved] == [6, 6, 6, 6]
    assert saved[0] is not None
    assert len(list(saved[0].path.parent.iterdir())) == 4


def test_without_shared_prefixes_no_checkpoint_is_kept_for_others(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'studies.db'}"
    result = climbed(store, pl.loguniform(0.01, 1.0), "random")
    assert result.summary().epochs_trained == 4 * 6
    assert held(read_log(store, "climbs"), 3) == {6}
