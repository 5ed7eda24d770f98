"""The planner: what its index prefers, how its studies end, and what it does without its model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from training.planner.fast_sim import FastSimulation, prepare
from training.planner.traces import read_study

import paceline as pl
from paceline.core.decisions import Go, Open, Pause
from paceline.policies.planner import planner, weights
from paceline.policies.planner.candidates import Candidates, CandidateSettings
from paceline.policies.planner.index import (
    compute_costs,
    compute_indexes,
    compute_new_index,
    cut_at,
)
from paceline.policies.planner.looks import Look, list_looks
from paceline.policies.planner.neighbours import Neighbours
from paceline.policies.planner.network import Networks
from paceline.policies.planner.ranking import Guard, Ranking, RankingSettings
from paceline.policies.planner.record import StudyRecord
from paceline.policies.planner.shared_stages import SharedStages
from paceline.testing.simulations import make_falling_curves, make_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.api.simulation import SimResult
    from paceline.core.decisions import Step
    from paceline.engines.sim.traces import Trace


ROOT = Path(__file__).parents[2]


def simulate(trace: Trace, **options: Any) -> tuple[SimResult, list[Step]]:  # noqa: ANN401
    steps: list[Step] = []
    given = {"policy": "planner", "slots": 2, "order": "file", **options}
    result = pl.Simulation(source="table", **given).run(trace=trace, remember=steps.extend)
    return result, steps


def list_reasons(steps: Sequence[Step], kind: type) -> list[str]:
    return [each.why for step in steps for each in step.decisions if isinstance(each, kind)]


def make_rows(*rows: Sequence[float] | np.ndarray) -> np.ndarray:
    return np.array(rows, dtype=np.float64)


# The index


def test_the_index_is_the_chance_per_slot_second_over_the_best_horizon() -> None:
    chances, seconds = make_rows([0.1, 0.5]), make_rows([1.0, 2.0])
    costs = compute_costs(chances, seconds)
    # Integrals of 1 - P with P straight from 0 over 0.1 to 0.5.
    assert_allclose(costs, [[0.95, 0.95 + 0.7]])
    assert_allclose(compute_indexes(chances, costs), [0.5 / 1.65])


def test_a_start_makes_a_paused_trial_worth_less() -> None:
    chances, seconds = make_rows([0.5], [0.5]), make_rows([1.0], [1.0])
    costs = compute_costs(chances, seconds) + np.array([[0.0], [3.0]])
    running, paused = compute_indexes(chances, costs)
    assert running > paused


@given(
    st.lists(st.floats(0, 1), min_size=3, max_size=3).map(sorted),
    st.lists(st.floats(0.1, 5), min_size=3, max_size=3).map(np.cumsum),
    st.floats(0.01, 20),
)
def test_chances_after_the_deadline_do_not_count(
    chances: list[float], seconds: np.ndarray, left: float
) -> None:
    cut, times = cut_at(make_rows(chances), make_rows(seconds), np.array([left]))
    at = [0.0, *seconds]
    expected = [np.interp(min(each, left), at, [0.0, *chances]) for each in seconds]
    assert_allclose(cut[0], expected, atol=1e-9)
    assert_allclose(times[0], np.minimum(seconds, left))


def test_a_new_trial_is_worth_its_first_look_only_if_some_trials_turn_out_well() -> None:
    costs = make_rows([10.0], [10.0])
    equal = compute_new_index(make_rows([0.1], [0.1]), costs, 1.0, 0.0)
    spread = compute_new_index(make_rows([0.0], [0.2]), costs, 1.0, 0.0)
    certain = compute_new_index(make_rows([0.1], [0.1]), costs, 1.0, 0.05)
    assert spread > equal  # the bad one is left after its look
    assert certain > equal
    # At the index, the look's cost equals the mean of what it brings.
    assert spread * 1.0 == pytest.approx(np.mean([0.0, max(0.0, 0.2 - spread * 10.0)]), rel=1e-6)


# The record


def test_looks_are_dense_at_first_and_end_at_the_last_epoch() -> None:
    assert list_looks(1) == [1]
    assert list_looks(30) == [1, 2, 3, 4, 5, 7, 9, 12, 16, 22, 30]


def test_the_inputs_are_numbers_whatever_is_reported() -> None:
    record = StudyRecord(9)
    for trial, losses in enumerate([[math.inf] * 4, [1e300, -1e300], [0.5, 0.5, 0.5], [0.7]]):
        record.open(trial, {"lr": 0.1})
        seen = Look()
        for epoch, loss in enumerate(losses, start=1):
            seen.add(epoch, loss)
            record.note_best(epoch, loss)
            record.look(trial, seen)
    for target in (0.4, -1e300, 0.7):
        x, y = record.make_inputs([0, 1, 2, 3], [3, 1, 2, 0], target)
        assert np.isfinite(x).all()
        assert np.isfinite(y).all()


def test_a_first_report_near_the_target_makes_success_at_once_likely() -> None:
    near, far = StudyRecord(9), StudyRecord(9)
    opening = weights.load_networks().opening
    assert opening is not None
    chances = []
    for record, shift in ((near, 0.0), (far, 10.0)):
        for trial in range(10):
            record.open(trial, {})
            record.note_best(1, shift + 0.1 * trial)
            record.look(trial, Look(shift + 0.1 * trial, shift + 0.1 * trial, 1))
        inputs = record.make_opening_inputs(-0.01)[None]
        chances.append(float(opening.compute_chances(inputs, np.zeros((1, 1, 1)))[0, 0]))
    assert 0.02 < chances[0] < 0.3  # one in eleven or so
    assert chances[1] < 0.01


def test_the_nearest_configs_are_found_by_scaled_distance() -> None:
    known = Neighbours()
    known.add(0, {"lr": 1e-4, "kind": "a"})
    known.add(1, {"lr": 1e-1, "kind": "a"})
    known.add(2, {"lr": 9e-2, "kind": "a"})
    known.add(3, {"lr": 1e-1, "kind": "b", "more": 1})
    others, distances = known.find(np.array([2, 1]))
    assert others[0, :3].tolist() == [1, 0, 3]
    assert distances[0, 0] < 0.05
    assert others[1, 0] == 2


def make_candidates() -> tuple[StudyRecord, Ranking, Candidates]:
    record = StudyRecord(9)
    ranking = Ranking(record, weights.load_networks().usable, RankingSettings())
    settings = CandidateSettings(doubt=0.0)
    return record, ranking, Candidates(record, ranking, settings)


def test_a_new_trial_gets_the_config_whose_neighbours_are_worth_most() -> None:
    record, ranking, candidates = make_candidates()
    for trial in range(20):
        record.open(trial, {"lr": trial / 20, "kind": "a"})
        ranking.open(trial)
        record.look(trial, Look(1.0, 1.0, 1))
        ranking.indexes[trial] = 1.0 - abs(trial - 15) / 20
    configs: dict[int, Any] = {
        3: {"lr": 0.2, "kind": "a"},
        4: {"lr": 0.74, "kind": "a"},
        7: {"lr": 0.74, "kind": "b"},
        8: {"lr": 2.0},
        9: {},
    }
    assert candidates.choose(configs) == 4
    # Configs that tell nothing leave the order as it is.
    assert candidates.choose({5: {}, 6: {}}) == 5


def test_the_first_new_trials_come_in_order() -> None:
    record, ranking, candidates = make_candidates()
    for trial in range(3):
        record.open(trial, {"lr": 0.1 * trial})
        ranking.open(trial)
        record.look(trial, Look(1.0, 1.0, 1))
    assert candidates.choose({3: {"lr": 0.9}, 4: {"lr": 0.1}}) == 3


def test_where_the_config_tells_the_result_fewer_trials_are_started() -> None:
    rng = np.random.default_rng(0)
    places = rng.random(200)
    curves = [[1.0 + abs(at - 0.8) - 0.01 * epoch for epoch in range(9)] for at in places]
    table = make_table(curves, configs=[{"lr": float(at)} for at in places])
    target = float(np.sort([curve[-1] for curve in curves])[2])
    chosen, _ = simulate(table, target=target)
    in_order, _ = simulate(table, target=target, policy="planner:window=1")
    assert chosen.trials_started < in_order.trials_started / 2


def test_epochs_that_several_trials_share_cost_each_a_part() -> None:
    stages = SharedStages()
    assert set(stages.move(0, origin=7, until=3)) == {0}
    assert set(stages.move(1, origin=7, until=3)) == {0, 1}
    assert set(stages.move(2, origin=8, until=3)) == {2}
    assert set(stages.move(1, origin=9, until=4)) == {1}
    assert set(stages.drop(0)) == set()
    record = StudyRecord(9)
    for trial in range(2):
        record.open(trial, {})
        record.look(trial, Look(1.0, 1.0, 1))
        record.pace[trial] = 1.0
    alone = record.compute_seconds([0], [0])
    record.share([0, 1])
    shared = record.compute_seconds([0], [0])
    # The look after epoch 1 is at epoch 2; later epochs are not shared as far as is known.
    assert_allclose(alone - shared, 0.5)


# The ranking


def test_chances_that_do_not_come_true_make_a_pause_less_likely() -> None:
    guard = Guard()
    assert guard.trust == 1.0
    for trial in range(9):
        guard.state(trial, target=0.5, chance=1.0)
        guard.score(trial, best=0.6)
    assert guard.trust == pytest.approx(0.1)
    for trial in range(9):
        guard.state(trial, target=0.5, chance=0.0)
        guard.score(trial, best=0.6)
    assert guard.trust == pytest.approx(0.1)  # a chance of 0 expects nothing


def test_a_trial_worse_than_a_hopeless_one_at_its_look_is_not_computed() -> None:
    record = StudyRecord(9)
    loaded = weights.load_networks()
    ranking = Ranking(record, loaded.usable, RankingSettings())
    for trial in range(100):
        record.open(trial, {})
        ranking.open(trial)
        record.look(trial, Look(1.0 + trial, 1.0 + trial, 1))
    assert ranking.screen(99, 100.0) is None  # nothing is known to be hopeless
    ranking.note_index(50, 51.0, own=0.1, other=1.0)
    assert ranking.screen(99, 100.0) == 0.1
    assert ranking.screen(20, 21.0) is None  # better than the hopeless one
    ranking.note_index(80, 81.0, own=0.9, other=1.0)
    assert ranking.screen(99, 100.0) is None  # a worse one was hopeful


# Studies


def test_the_reason_of_a_decision_names_the_chances_of_the_alternatives() -> None:
    _, steps = simulate(make_table(make_falling_curves(12, 9)), deadline_s=30.0)
    reasons = list_reasons(steps, Go) + list_reasons(steps, Pause)
    numbered = [why for why in reasons if "of slot time" in why]
    assert numbered
    assert any("trial " in why.partition(";")[2] for why in numbered)


def test_with_trials_alone_the_best_trial_finishes_and_hopeless_ones_stay_paused() -> None:
    good = [1.0 / epoch for epoch in range(1, 28)]
    bad = [[2.0 + 0.01 * n] * 27 for n in range(39)]
    trace = make_table([*bad[:20], good, *bad[20:]])
    result, _ = simulate(trace)
    assert result.best_value == pytest.approx(1.0 / 27)
    assert result.trials_paused > 30
    assert result.epochs_trained < 40 * 27 / 4
    assert "nothing is left that policy planner would train" in result.end_why


def test_a_slot_waits_for_a_config_that_is_on_its_way() -> None:
    options = pl.Simulation(
        source="quadratic", generator="tpe", policy="planner", trials=30, slots=2
    )
    result = options.run()
    assert result.trials_started == 30
    assert result.trials_paused > 15


def test_the_loss_to_reach_stays_inside_the_declared_range() -> None:
    curves = [[0.5, 0.2 + 0.01 * n, 0.05 + 0.01 * n] for n in range(8)]
    _, steps = simulate(make_table(curves), range=(0.0, 1.0), deadline_s=12.0)
    aims = [float(why.split()[2]) for why in list_reasons(steps, Go) if why.startswith("reaches")]
    assert aims
    assert min(aims) >= 0.0


def test_a_deadline_keeps_all_slots_busy_and_starts_nothing_that_cannot_report() -> None:
    trace = make_table(make_falling_curves(200, 9))
    result, steps = simulate(trace, deadline_s=20.5, slots=4)
    assert result.end == "deadline"
    assert result.busy_fraction > 0.99
    opened = [
        step.event.at
        for step in steps
        for each in step.decisions
        if isinstance(each, Open) and "of slot time" in each.why
    ]
    assert max(opened) <= 19.5


def test_trials_that_are_all_equal_are_trained_like_any_others() -> None:
    result, _ = simulate(make_table([[1.0] * 9] * 20))
    assert result.best_value == 1.0
    assert result.trials_failed == 0


def test_a_study_without_a_single_number_tries_all_its_trials() -> None:
    result, _ = simulate(make_table([[math.nan] * 5] * 7))
    assert (result.trials_started, result.best_value) == (7, None)


def test_a_lone_trial_trains_to_its_end() -> None:
    result, _ = simulate(make_table(make_falling_curves(1, 9)))
    assert result.epochs_trained == 9


@pytest.mark.parametrize(
    "trials",
    [2000, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.unmeasured])],
)
def test_thousands_of_trials_are_planned(trials: int) -> None:
    # The last one wins.
    ranks = [(number + 1) * 7919 % trials / trials for number in range(trials)]
    result, _ = simulate(make_table([[1.0 + rank, rank] for rank in ranks]), slots=64, target=0.0)
    assert (result.end, result.trials_started) == ("target", trials)


def test_a_wide_study_gives_several_slots_to_a_trial_that_is_sure_to_win() -> None:
    good = [1.0 - 0.02 * epoch for epoch in range(40)]
    bad = [[1.0 + 0.01 * n] * 40 for n in range(12)]
    _, steps = simulate(
        make_table([*bad[:3], good, *bad[3:]]),
        slots=8,
        span=8,
        allocator="fluid",
        speedup="amdahl:0.94",
        target=0.25,
    )
    widths = [
        each.width
        for step in steps
        for each in step.decisions
        if isinstance(each, Go) and each.width
    ]
    assert max(widths) > 1


# Without its model


def damage(monkeypatch: pytest.MonkeyPatch, numbers: Sequence[int | str]) -> None:
    """Make some of the networks useless: with NaN, and cut."""
    with weights.find_file().open("rb") as file:
        arrays = dict(np.load(file, allow_pickle=False))
    for number in numbers:
        arrays[f"{number}_bias"] = arrays[f"{number}_bias"] * math.nan
        arrays[f"{number}_second"] = arrays[f"{number}_second"][:3]
    found = weights.check_networks(arrays)
    monkeypatch.setattr(planner, "load_networks", lambda: found)


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ([1], "1 of its 3 networks is damaged"),
        ([0, 1], "2 of its 3 networks are damaged"),
        ([0, 1, 2], "all of its networks are damaged"),
        (["opening"], "its network for new trials is damaged"),
    ],
)
def test_damaged_networks_are_left_out_and_the_reason_says_so(
    monkeypatch: pytest.MonkeyPatch, numbers: list[int | str], says: str
) -> None:
    damage(monkeypatch, numbers)
    result, steps = simulate(make_table(make_falling_curves(20, 9)), deadline_s=40.0)
    assert result.best_value is not None
    assert any(says in why for why in list_reasons(steps, Go))


def test_a_missing_file_of_networks_is_told_and_ranks_decide(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(weights, "_FILE", "gone.npz")
    found = weights.load_networks.__wrapped__()
    assert found.fault == "its networks cannot be read (FileNotFoundError)"
    monkeypatch.setattr(planner, "load_networks", lambda: found)
    result, _ = simulate(make_table(make_falling_curves(20, 9)), deadline_s=40.0)
    assert result.best_value is not None


def test_networks_that_are_ten_times_too_hopeful_still_reach_the_target(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = weights.load_networks()
    hopeful = Networks(
        [each._replace(last_bias=each.last_bias + math.log(10)) for each in found.usable.members]
    )
    monkeypatch.setattr(planner, "load_networks", lambda: found._replace(usable=hopeful))

    def measure(policy: str, seed: int) -> float:
        options = pl.Simulation(
            source="cifar10_cnn14", policy=policy, slots=4, target=0.72, seed=seed
        )
        return options.run().time_to_target_s or math.inf

    times = {policy: [measure(policy, seed) for seed in range(5)] for policy in ("planner", "fifo")}
    assert np.median(times["planner"]) < np.median(times["fifo"])


def test_a_parameter_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(pl.SpecError, match="new=0 is invalid: must be above 0"):
        pl.policies.Planner(new=0)
    with pytest.raises(pl.SpecError, match="window=0 is invalid: must be from 1 to 1000"):
        pl.policies.Planner(window=0)
    with pytest.raises(pl.SpecError, match=r"margin=0\.5 is invalid: must be from 1 to 100"):
        pl.policies.Planner(margin=0.5)


# The simulator of the training


@pytest.mark.parametrize("seed", [4, 5, 6, 7])
def test_the_training_simulates_what_the_policy_does(seed: int) -> None:
    path = ROOT / "src" / "paceline" / "data" / "cifar10_cnn14.jsonl.gz"
    study = read_study(path)
    trace = pl.read_trace(path)
    order = np.random.default_rng(seed).permutation(len(trace.runs))
    shuffled = type(trace)(trace.header, [trace.runs[at] for at in order])
    result, _ = simulate(shuffled, slots=4, target=0.72)
    loaded = weights.load_networks()
    fast = FastSimulation(
        prepare(study, order),
        loaded.usable,
        RankingSettings(),
        target=-0.72,
        opening=loaded.opening,
    ).run(4)
    assert result.time_to_target_s == pytest.approx(fast.time, rel=0.02)
