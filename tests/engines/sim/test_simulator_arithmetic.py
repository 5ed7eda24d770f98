"""Answers known by arithmetic: what the simulator must say of studies one can do in one's head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from small_studies import POSTER, SmallStudy, make_table

from paceline.core.decisions import EndCause, Launch, Retire
from paceline.core.errors import SpecError
from paceline.core.events import CapacityChanged, Cause, Ended, Reported, Saved
from paceline.core.speedup import SpeedUp, parse_speedup
from paceline.core.values import Budget, Config, Status, Target
from paceline.engines.sim.cluster import Cluster, Faults
from paceline.engines.sim.engine import SimEngine
from paceline.testing.engine_driver import EngineDriver, make_amend, make_open
from paceline.testing.engines import EngineContract
from paceline.testing.simulations import AddingWorkload

if TYPE_CHECKING:
    from paceline.core.ports import Advisor, Engine, Workload


@pytest.mark.parametrize(("slots", "makespan"), [(1, 70), (2, 40), (4, 30)])
def test_the_posters_tree_trains_exactly_its_distinct_epochs(slots: int, makespan: int) -> None:
    curve = [1 / (epoch + 1) for epoch in range(30)]
    trace = make_table([curve] * 4, configs=POSTER)
    played = SmallStudy(trace, slots=slots, share=True, cluster={"save_every_s": 0.0}).run()
    assert played.state.epochs_trained == 70  # A1 A2 B1 B2 C D E, ten epochs each
    assert played.state.reports == 120  # and each of four trials has seen its thirty
    assert played.state.repeats == 0
    assert played.state.now == makespan
    assert [list(trial.losses) for trial in played.state.trials] == [curve] * 4


def test_without_sharing_the_posters_trials_are_trained_one_by_one() -> None:
    trace = make_table([[1.0] * 30] * 4, configs=POSTER)
    assert SmallStudy(trace, slots=4).run().state.epochs_trained == 120


def test_saves_on_order_are_enough_where_all_trials_are_known_at_the_start() -> None:
    trace = make_table([[1.0] * 30] * 4, configs=POSTER)
    played = SmallStudy(trace, slots=4, share=True).run()
    assert played.state.epochs_trained == 70
    saves = [
        (event.epoch, event.attempt) for event in played.list_entries(Saved) if event.epoch < 30
    ]
    assert saves == [(10, 0), (20, 1), (20, 0)]


def test_fifo_on_one_slot_takes_the_sum_of_all_seconds() -> None:
    trace = make_table([[1.0] * 5, [1.0] * 3, [1.0] * 4], seconds=2.5)
    played = SmallStudy(trace).run()
    assert played.state.now == 12 * 2.5
    assert played.state.slot_seconds == 12 * 2.5
    assert played.state.capacity_seconds == played.state.slot_seconds


def test_setup_is_paid_at_every_start() -> None:
    played = SmallStudy(make_table([[1.0] * 3] * 2), cluster={"setup_s": 10.0}).run()
    assert played.state.now == 2 * (10 + 3)


def test_width_two_with_linear_speed_up_halves_a_trials_time() -> None:
    played = SmallStudy(make_table([[1.0] * 8]), slots=2, span=2).run()
    assert played.state.now == 4.0
    assert played.state.slot_seconds == 8.0
    (launch,) = played.list_entries(Launch)
    assert (launch.slots, launch.width) == ((0, 1), 2.0)


def test_set_up_is_not_sped_up_by_width() -> None:
    played = SmallStudy(make_table([[1.0] * 8]), slots=2, span=2, cluster={"setup_s": 3.0}).run()
    assert played.state.now == 3 + 4


def test_a_speed_up_table_is_interpolated_and_constant_beyond_its_end() -> None:
    speed = parse_speedup("table:1=1,2=1.8,4=3.0")
    assert [speed.of(width) for width in (1, 2, 3, 4, 8)] == [1.0, 1.8, 2.4, 3.0, 3.0]
    assert parse_speedup("amdahl:0.5").of(2) == pytest.approx(4 / 3)
    played = SmallStudy(make_table([[1.0] * 9]), slots=3, span=3, cluster={"speed": speed}).run()
    assert played.state.now == pytest.approx(9 / 2.4)


def test_a_save_takes_as_long_on_several_slots_as_on_one() -> None:
    cluster = {"save_s": 3.0, "restore_s": 0.5}
    played = SmallStudy(make_table([[1.0] * 8]), slots=2, span=2, cluster=cluster).run()
    assert played.state.now == 4 + 3
    (saved,) = played.list_entries(Saved)
    assert (saved.at, saved.seconds) == (7.0, 3.0)


def test_a_start_takes_as_long_beside_another_trial_as_alone() -> None:
    # Both start for 3 s. The first trains 2 epochs at half speed, the second 2 more at full speed.
    cluster = {"speed": SpeedUp(interference=1.0), "setup_s": 3.0}
    played = SmallStudy(make_table([[1.0] * 2, [1.0] * 4]), slots=1, pack=2, cluster=cluster).run()
    assert played.state.now == pytest.approx(3 + 4 + 2)


def test_a_table_may_say_how_fast_trials_on_one_slot_are() -> None:
    speed = parse_speedup("table:1/4=0.3,1/2=0.8,1=1,2=1.5")
    assert [speed.shared(trials) for trials in (1, 2, 4)] == [1.0, 0.8, 0.3]
    # Between two points, and below the first, where the slot trains as much in total.
    assert speed.shared(3) == pytest.approx(0.3 + 0.5 / 3)
    assert speed.shared(8) == pytest.approx(0.15)
    assert parse_speedup(str(speed)) == speed
    with pytest.raises(SpecError, match="leave one of them out"):
        parse_speedup("table:1/2=0.8,1=1", 0.5)
    with pytest.raises(SpecError, match="cannot be read"):
        parse_speedup("table:0/2=0.8,1=1")
    with pytest.raises(SpecError, match="has the entry 1=1"):
        parse_speedup("table:1/2=0.8,2=1.5")


@pytest.mark.parametrize("interference", [0.0, 0.25, 1.0])
def test_two_packed_trials_with_interference_x_take_one_plus_x(interference: float) -> None:
    cluster = {"speed": SpeedUp(interference=interference)}
    played = SmallStudy(make_table([[1.0] * 4] * 2), slots=1, pack=2, cluster=cluster).run()
    assert played.state.now == pytest.approx(4 * (1 + interference))
    assert {launch.width for launch in played.list_entries(Launch)} == {0.5}


def test_a_packed_trial_speeds_up_when_its_neighbour_leaves() -> None:
    # Together for 2 epochs of the short one at half speed (4 s), then 2 epochs alone (2 s).
    cluster = {"speed": SpeedUp(interference=1.0)}
    played = SmallStudy(make_table([[1.0] * 2, [1.0] * 4]), slots=1, pack=2, cluster=cluster).run()
    assert played.state.now == pytest.approx(6.0)


def test_an_epoch_is_reported_with_the_time_that_it_took_beside_a_neighbour() -> None:
    # The neighbour leaves at 2 s, in the middle of an epoch that began at half speed.
    cluster = {"speed": SpeedUp(interference=1.0)}
    trace = make_table([[1.0], [1.0] * 3], seconds=[1.0, 2.0])
    played = SmallStudy(trace, slots=1, pack=2, cluster=cluster).run()
    took = [report.seconds for report in played.list_entries(Reported) if report.attempt == 1]
    assert took == [3.0, 2.0, 2.0]


def test_a_worker_is_killed_at_its_time_and_its_trial_goes_on() -> None:
    cluster = {"save_every_s": 0.0, "faults": Faults(kills=((2.5, 1), (9.0, 7)))}
    played = SmallStudy(make_table([[1.0] * 4] * 2), slots=2, cluster=cluster).run()
    ended = [(event.at, event.attempt, event.cause) for event in played.list_entries(Ended)]
    assert ended == [(2.5, 1, Cause.FAILED), (4.0, 0, Cause.FINISHED), (4.5, 2, Cause.FINISHED)]
    assert [trial.failures for trial in played.state.trials] == [0, 1]


def test_a_worker_killed_on_a_shared_slot_counts_as_out_of_memory() -> None:
    cluster = {"faults": Faults(kills=((1.5, 0),))}
    played = SmallStudy(make_table([[1.0] * 4] * 2), slots=2, pack=2, cluster=cluster).run()
    assert played.list_entries(Ended)[0].cause is Cause.CROWDED
    assert [trial.failures for trial in played.state.trials] == [0, 0]


# As worker processes do


@pytest.mark.parametrize(
    ("live", "step", "reports", "saves"),
    [(False, 1.0, [1, 2], [2]), (True, 1.0, [1, 2, 3], [1, 3]), (True, -1.0, [1, 2], [1, 2])],
)
def test_workers_train_on_while_their_report_is_judged(
    live: bool, step: float, reports: list[int], saves: list[int]
) -> None:
    # The order to end comes after the report of epoch 2, when a worker trains epoch 3 already. It
    # is ended at once only if it has just saved: because its loss is the best so far.
    engine = SimEngine(AddingWorkload(1.0), Cluster(slots=2, live=live))
    driver = EngineDriver(engine, 1.0)
    driver.apply(make_open(0, {"step": step}), driver.make_launch(0, goal=9))
    driver.wait_for_report(0, 2)
    driver.apply(make_amend(0, version=1, goal=2))
    ended = driver.wait_for_end(0)
    assert (ended.cause, ended.at) == (Cause.GOAL, float(reports[-1]))
    assert [epoch for epoch, _ in driver.list_reports(0)] == reports
    assert [event.epoch for event in driver.list_events(Saved)] == saves


def test_a_goal_raised_at_a_workers_goal_costs_a_save_and_no_start() -> None:
    engine = SimEngine(AddingWorkload(1.0), Cluster(slots=2, live=True, save_s=0.5))
    driver = EngineDriver(engine, 1.0)
    driver.apply(make_open(0, {"step": 1.0}), driver.make_launch(0, goal=2))
    driver.wait_for_report(0, 2)
    driver.apply(make_amend(0, version=1, goal=3))
    ended = driver.wait_for_end(0)
    # Saves after epoch 1, to learn their cost, and at both goals.
    assert (ended.cause, ended.at) == (Cause.GOAL, 3 + 3 * 0.5)


class TestLikeWorkers(EngineContract):
    """The contract of engines holds for a simulator that does as workers do."""

    @staticmethod
    def make(workload: Workload, advisor: Advisor) -> Engine:
        return SimEngine(workload, Cluster(slots=2, live=True), advisor)


def test_workers_save_first_to_learn_what_a_save_costs_and_then_the_best() -> None:
    curves = [[3.0, 4.0, 2.0, 5.0, 1.0, 6.0], [9.0] * 6]
    for live, saves in ((True, [1, 3, 5, 6, 1, 6]), (False, [6, 6])):
        cluster = {"live": live, "save_s": 0.25}
        played = SmallStudy(make_table(curves), cluster=cluster).run()
        assert [event.epoch for event in played.list_entries(Saved)] == saves


def test_a_failed_attempt_costs_exactly_the_lost_epochs_and_set_up_and_restore() -> None:
    cluster = {
        "setup_s": 5.0,
        "restore_s": 0.5,
        "save_s": 0.25,
        "save_every_s": 3.0,
        # 5 s set-up, epochs 1-3 (8), save (8.25), epochs 4 and 5 (10.25): fails half-way into 6.
        "faults": Faults(scripted={0: 10.75}),
    }
    undisturbed = SmallStudy(make_table([[1.0] * 8]), cluster={**cluster, "faults": Faults()}).run()
    played = SmallStudy(make_table([[1.0] * 8]), cluster=cluster).run()
    assert played.state.epochs_trained == 8 + 2
    assert played.state.repeats == 2
    # Lost: epochs 4 and 5, and half of 6; plus another set-up and the restore. The later save
    # falls on another epoch, but there are as many of them.
    assert played.state.now - undisturbed.state.now == pytest.approx(2.5 + 5.0 + 0.5)
    assert played.state.trials[0].failures == 1
    assert played.state.trials[0].status is Status.FINISHED


def test_a_trial_that_fails_more_often_than_it_may_is_given_up() -> None:
    faults = Faults(scripted={0: 1.5, 1: 1.5, 2: 1.5})
    played = SmallStudy(make_table([[1.0] * 4]), retries=2, cluster={"faults": faults}).run()
    trial = played.state.trials[0]
    assert (trial.status, trial.failures, trial.epoch) == (Status.FAILED, 3, 1)
    assert played.state.launches == 3


def test_a_slot_that_vanishes_delays_exactly_what_stood_on_it() -> None:
    # Slot 1 vanishes at 3.5 s and comes back at 10 s; what stood on it had saved epoch 3.
    cluster = {"capacity": ((3.5, 1), (10.0, 2)), "save_every_s": 0.0}
    played = SmallStudy(make_table([[1.0] * 8, [1.0] * 20]), slots=2, cluster=cluster).run()
    ended = [(event.at, event.attempt, event.cause) for event in played.list_entries(Ended)]
    # Trial 0 on slot 0 is not disturbed: it ends at 8 s, and the other goes on in its place.
    assert ended == [(3.5, 1, Cause.LOST), (8.0, 0, Cause.FINISHED), (25.0, 2, Cause.FINISHED)]
    assert played.state.now == 8 + (20 - 3)
    assert played.state.trials[1].failures == 0


def test_starting_on_another_node_costs_the_fetch_of_the_checkpoint() -> None:
    # Slot 1 vanishes at 3.5 s: what stood on it had saved epoch 3, and goes on on slot 0 at 8 s.
    cluster = {"capacity": ((3.5, 1),), "save_every_s": 0.0, "restore_s": 0.5, "fetch_s": 2.0}
    curves = make_table([[1.0] * 8, [1.0] * 20])
    apart = SmallStudy(curves, slots=2, cluster={**cluster, "node_slots": 1}).run()
    assert apart.list_entries(CapacityChanged)[0].nodes == ("node-0", "node-1")
    assert apart.state.now == 8 + 0.5 + 2.0 + (20 - 3)
    together = SmallStudy(curves, slots=2, cluster={**cluster, "node_slots": 2}).run()
    assert together.state.now == 8 + 0.5 + (20 - 3)


def test_of_free_slots_the_one_on_the_node_that_saved_is_taken() -> None:
    # Trial 0 has left slot 0 to trial 3, which has saved nothing when all slots go at 2.5 s. At 4 s
    # all are free at once: trials 1 and 2 find theirs again, and trial 3 takes what is left.
    cluster = {"capacity": ((2.5, 0), (4.0, 3)), "save_every_s": 0.0, "node_slots": 1}
    curves = make_table([[1.0] * 2, [1.0] * 4, [1.0] * 4, [1.0] * 4])
    played = SmallStudy(curves, slots=3, cluster={**cluster, "fetch_s": 1.0}).run()
    slots = [(launch.trial, launch.slots) for launch in played.list_entries(Launch)]
    assert slots[:4] == [(0, (0,)), (1, (1,)), (2, (2,)), (3, (0,))]
    assert slots[4:] == [(1, (1,)), (2, (2,)), (3, (0,))]
    assert played.state.now == 4.0 + 4.0


def test_slots_that_no_trial_can_use_any_more_are_given_back() -> None:
    curves = make_table([[1.0] * 2, [1.0] * 6])
    played = SmallStudy(curves, slots=3, cluster={"node_slots": 1}).run()
    assert [(retire.slots, retire.why) for retire in played.list_entries(Retire)] == [
        ((2,), "no more trials come, and the 2 that are left cannot use them"),
        ((0,), "no more trials come, and the 1 that are left cannot use them"),
    ]
    # All three until the first trial is open and the second, two for two epochs, one for four.
    assert played.state.capacity_seconds == 2 * 2 + 4 * 1
    assert SmallStudy(curves, slots=3).run().list_entries(Retire) == []


def test_whole_nodes_are_given_back_first() -> None:
    # Two trials share slot 0. Two of four slots stay: slot 1, which is on the same node, is one.
    played = SmallStudy(
        make_table([[1.0] * 4] * 2), slots=4, pack=2, cluster={"node_slots": 2}
    ).run()
    assert played.list_entries(Retire)[0].slots == (2, 3)


@pytest.mark.parametrize(
    ("given", "message"),
    [({"node_slots": 0}, "must be at least 1"), ({"fetch_s": 1.0}, "give node_slots, too")],
)
def test_invalid_nodes_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        SmallStudy(make_table([[1.0]]), cluster=given).run()


def test_lost_attempts_cost_no_retry() -> None:
    cluster = {"capacity": ((1.5, 0), (2.0, 1), (3.5, 0), (4.0, 1))}
    played = SmallStudy(make_table([[1.0] * 2]), retries=0, cluster=cluster).run()
    assert played.state.trials[0].status is Status.FINISHED
    assert played.state.now == 4.0 + 2.0


def test_busy_fraction_counts_the_slots_there_were() -> None:
    cluster = {"capacity": ((2.0, 1),)}
    played = SmallStudy(make_table([[1.0] * 6]), slots=2, cluster=cluster).run()
    assert played.state.capacity_seconds == 2 * 2 + 4 * 1
    assert played.state.slot_seconds == 6


def test_the_deadline_ends_the_study_to_the_second() -> None:
    played = SmallStudy(make_table([[1.0] * 9] * 3), slots=2, budget=Budget(deadline_s=5.5)).run()
    assert played.state.end is not None
    assert (played.state.end.cause, played.state.now) == (EndCause.DEADLINE, 5.5)
    assert played.state.epochs_trained == 10
    assert played.state.slot_seconds == 11.0


def test_slot_time_is_a_budget_met_to_the_second() -> None:
    played = SmallStudy(make_table([[1.0] * 9] * 3), slots=2, budget=Budget(slot_seconds=7.0)).run()
    assert played.state.end is not None
    assert (played.state.end.cause, played.state.now) == (EndCause.SLOT_SECONDS, 3.5)
    assert played.state.slot_seconds == pytest.approx(7.0)


def test_the_target_is_the_mean_of_the_last_reports() -> None:
    curve = [5.0, 1.0, 4.0, 2.0, 1.0, 1.0]
    played = SmallStudy(make_table([curve]), budget=Budget(target=Target(1.5, over=2))).run()
    assert played.state.end is not None
    assert (played.state.end.cause, played.state.now) == (EndCause.TARGET, 5.0)  # (2 + 1) / 2
    first = SmallStudy(make_table([curve]), budget=Budget(target=Target(1.5))).run()
    assert first.state.now == 2.0


def test_a_budget_of_trials_closes_the_study_to_new_ones() -> None:
    played = SmallStudy(make_table([[1.0]] * 5), budget=Budget(trials=3)).run()
    assert len(played.state.trials) == 3


def test_a_shorter_run_finishes_where_its_recording_ends() -> None:
    played = SmallStudy(make_table([[1.0] * 2, [1.0] * 5])).run()
    assert [trial.epoch for trial in played.state.trials] == [2, 5]
    assert {trial.status for trial in played.state.trials} == {Status.FINISHED}
    assert played.state.now == 7.0


def test_what_is_not_a_number_ranks_last_and_never_is_the_best() -> None:
    nan, inf = float("nan"), float("inf")
    played = SmallStudy(make_table([[nan, -inf, 3.0], [inf, 4.0, nan]])).run()
    assert played.state.best_loss == 3.0
    assert [list(trial.losses) for trial in played.state.trials] == [
        [inf, inf, 3.0],
        [inf, 4.0, inf],
    ]


def test_trials_that_share_a_recording_end_where_it_ends() -> None:
    configs: list[Config] = [
        {"lr": {"piecewise": [[0, 0.5], [3, after]]}} for after in (0.1, 0.2, 0.3)
    ]
    trace = make_table([[0.5], [0.5], [0.5]], configs=configs, epochs=9)
    played = SmallStudy(trace, share=True).run()
    assert [trial.status for trial in played.state.trials] == [Status.FINISHED] * 3
    assert [trial.epoch for trial in played.state.trials] == [1, 1, 1]
    assert played.state.epochs_trained == 1
