"""The machine, case by case: these facts go in, exactly these decisions come out."""

from __future__ import annotations

from typing import Any

import pytest
from machine_bench import MachineBench, ScriptedPolicy

from paceline.allocation.fixed import Fixed
from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.errors import BrokenInvariant, LogError
from paceline.core.forecast_quantiles import LEVELS, Forecast
from paceline.core.ports import Fork
from paceline.core.values import Budget, Part, Saves, Status, StudySpec
from paceline.generators.queued import Queued
from paceline.machine.decider import Parts
from paceline.machine.invariants import verify
from paceline.machine.machine import Machine
from paceline.machine.replay import replay
from paceline.machine.slots import Slots
from paceline.machine.state import StudyState
from paceline.policies.fifo import Fifo


def launch(attempt: int, trial: int, slot: int, **changes: Any) -> d.Launch:  # noqa: ANN401
    fields: dict[str, Any] = {
        "start": 0,
        "source": None,
        "goal": 9,
        "save_at": (),
        "width": 1.0,
        "why": "a slot is free",
    }
    return d.Launch(attempt=attempt, trial=trial, slots=(slot,), **{**fields, **changes})


def test_free_slots_are_filled_lowest_first() -> None:
    bench = MachineBench(Fifo(), [{"a": 1}, {"a": 2}, {"a": 3}], slots=2)
    assert bench.first == (
        d.Open(trial=0, config={"a": 1}, until=9, why="a slot is free"),
        launch(0, 0, 0),
        d.Open(trial=1, config={"a": 2}, until=9, why="a slot is free"),
        launch(1, 1, 1),
    )


@pytest.mark.parametrize(("nodes", "slot"), [(("one", "one", "two"), 2), ((), 1)])
def test_a_trial_goes_on_where_its_checkpoint_was_saved_if_nodes_differ(
    nodes: tuple[str, ...], slot: int
) -> None:
    policy = ScriptedPolicy(until=1)
    policy.verdicts[0, 1] = (d.Go(trial=2, until=5, why="it is good"),)
    saves = Saves(collect=True)
    bench = MachineBench(policy, [{"a": 1}, {"a": 2}, {"a": 3}], slots=0, saves=saves)
    bench.say(e.CapacityChanged(at=0.0, slots=(0, 1, 2), nodes=nodes))
    for attempt in (1, 2):
        bench.report(attempt, 0.5)
        bench.save(attempt, 1)
        bench.end(attempt, e.Cause.GOAL)
    *_, begun = bench.report(0, 0.9)
    assert begun == launch(3, 2, slot, start=1, source=2, goal=5, why="it is ready")


def test_on_a_node_only_what_fits_there_as_a_whole_comes_first() -> None:
    slots = Slots()
    slots.set_slots((0, 1, 2, 3), ("one", "one", "two", "two"))
    assert slots.find(2.0, "two") == (2, 3)
    assert slots.find(3.0, "two") == (0, 1, 2)
    slots.take((0,), 0.5)
    assert slots.find(0.5, "two") == (0,), "what is begun is filled first"
    slots.take((3,), 0.5)
    assert slots.find(0.5, "two") == (3,)
    assert slots.find(1.0, "two") == (2,)
    slots.take((2,), 1.0)
    assert slots.find(1.0, "two") == (1,)


def test_a_report_on_the_way_decides_nothing() -> None:
    assert MachineBench(Fifo(), [{"a": 1}]).report(0, 0.5, 0.4) == ()


def test_a_freed_slot_goes_to_the_next_trial() -> None:
    bench = MachineBench(Fifo(), [{"a": 1}, {"a": 2}], slots=1, epochs=1)
    assert bench.report(0, 0.5) == ()
    bench.save(0, 1)
    assert bench.end(0, e.Cause.GOAL) == (
        d.Open(trial=1, config={"a": 2}, until=1, why="a slot is free"),
        launch(1, 1, 0, goal=1),
    )
    assert bench.state.trials[0].status is Status.FINISHED


def test_when_nothing_is_left_the_study_ends() -> None:
    bench = MachineBench(Fifo(), [{"a": 1}], epochs=1)
    bench.report(0, 0.5)
    assert bench.end(0, e.Cause.GOAL) == (
        d.Close(why="the generator has no more configs"),
        d.End(cause=d.EndCause.QUIET, why="nothing is left to run: 1 trial was opened"),
    )


def test_what_comes_after_the_end_is_folded_and_decides_nothing() -> None:
    bench = MachineBench(Fifo(), [{"a": 1}, {"a": 2}], slots=2)
    stop = e.Commanded(at=1.0, number=1, command=e.StopStudy())
    assert [type(decision) for decision in bench.say(stop)] == [d.End]
    assert bench.report(0, 0.1) == ()
    assert bench.state.best is None
    assert bench.state.strays == 1
    assert bench.end(0, e.Cause.HALTED) == ()
    assert bench.state.running == 1


def test_a_stopped_trial_never_comes_back() -> None:
    policy = ScriptedPolicy()
    policy.verdicts[0, 2] = (d.Stop(trial=0, why="it is hopeless"),)
    bench = MachineBench(policy, [{"a": 1}])
    assert bench.report(0, 0.5, 0.6) == (
        d.Stop(trial=0, why="it is hopeless"),
        d.Halt(attempt=0, why="no trial needs it any more"),
    )
    policy.verdicts[0, 2] = (d.Go(trial=0, until=9, why="too late"),)
    bench.say(e.Woke(at=5.0, trial=0))
    bench.end(0, e.Cause.HALTED)
    assert bench.state.trials[0].status is Status.STOPPED
    assert bench.state.launches == 1


def test_a_cut_trial_waits_at_the_next_epoch_its_attempt_can_honour() -> None:
    policy = ScriptedPolicy()
    policy.verdicts[0, 2] = (d.Cut(trial=0, why="others are better"),)
    bench = MachineBench(policy, [{"a": 1}])
    cut, amend = bench.report(0, 0.5, 0.6)
    assert cut == d.Cut(trial=0, why="others are better")
    assert isinstance(amend, d.Amend)
    assert (amend.goal, amend.version) == (2, 1)
    # The worker was already in epoch 3: it reports that, and the trial does not see it.
    bench.report(0, 0.4)
    assert bench.state.trials[0].epoch == 2
    assert bench.state.trials[0].status is Status.PAUSED


def test_a_raised_goal_delivers_what_is_already_known() -> None:
    policy = ScriptedPolicy(until=2)
    bench = MachineBench(policy, [{"a": 1}])
    bench.report(0, 0.5, 0.6, 0.7, 0.8)  # two epochs more than the trial may see
    policy.verdicts[0, 2] = (d.Go(trial=0, until=6, why="it may go on"),)
    bench.state.pending.wakes.add((9.0, 0))
    decided = bench.say(e.Woke(at=9.0, trial=0))
    assert [(type(x).__name__, getattr(x, "epoch", None)) for x in decided] == [
        ("Go", None),
        ("Credit", 3),
        ("Credit", 4),
        ("Amend", None),
    ]
    assert policy.judged[-2:] == [(0, 3), (0, 4)]


def test_a_goal_beyond_the_last_epoch_is_the_last_epoch() -> None:
    policy = ScriptedPolicy(until=1)
    policy.verdicts[0, 1] = (d.Go(trial=0, until=99, why="far"),)
    bench = MachineBench(policy, [{"a": 1}])
    go = bench.report(0, 0.5)[0]
    assert go == d.Go(trial=0, until=9, why="far")


def test_a_verdict_that_changes_nothing_is_not_a_decision() -> None:
    policy = ScriptedPolicy()
    policy.verdicts[0, 1] = (
        d.Go(trial=0, until=3, why="it may do that already"),
        d.Cut(trial=1, why="trial 1 stands at its goal"),
    )
    bench = MachineBench(policy, [{"a": 1}, {"a": 2}], slots=2)
    bench.state.trials[1].goal = 0
    assert bench.report(0, 0.5) == ()
    bench.state.trials[1].goal = 9


def test_a_policy_may_end_or_close_the_study() -> None:
    policy = ScriptedPolicy()
    policy.verdicts[0, 1] = (d.Close(why="enough"), d.Close(why="really"))
    policy.verdicts[0, 2] = (d.End(cause=d.EndCause.QUIET, why="all is said"),)
    bench = MachineBench(policy, [{"a": 1}, {"a": 2}])
    assert bench.report(0, 0.5) == (d.Close(why="enough"),)
    assert bench.report(0, 0.4) == (d.End(cause=d.EndCause.POLICY, why="all is said"),)


def test_a_fork_stops_one_trial_and_branches_another() -> None:
    policy = ScriptedPolicy()
    policy.verdicts[1, 2] = (
        Fork(trial=1, source=0, epoch=2, changes={"a": 7}, until=5, why="copy the best"),
    )
    bench = MachineBench(policy, [{"a": 1}, {"a": 2}], slots=2, share=True)
    bench.report(0, 0.1, 0.1)
    stop, opened, *_ = bench.report(1, 0.9, 0.9)
    assert stop == d.Stop(trial=1, why="copy the best")
    assert opened == d.Open(
        trial=2,
        config={"a": {"piecewise": [[0, 1], [2, 7]]}},
        until=5,
        source=0,
        branch=2,
        why="copy the best",
    )
    # It is credited with what trial 0 has trained.
    assert bench.state.trials[2].epoch == 2


def test_a_forecast_is_asked_once_an_epoch_and_judged_when_it_comes() -> None:
    policy = ScriptedPolicy()
    ask = d.AskForecast(trial=0, epoch=1, horizons=(9,), why="curious")
    policy.verdicts[0, 1] = (ask,)
    bench = MachineBench(policy, [{"a": 1}])
    assert bench.report(0, 0.5) == (ask,)
    forecast = Forecast((9,), (tuple(float(x) for x in range(len(LEVELS))),))
    given = e.Forecasted(at=2.0, trial=0, epoch=1, forecast=forecast)
    assert bench.say(given) == ()
    assert bench.state.trials[0].forecast == forecast
    assert policy.judged == [(0, 1), (0, 1)]
    bench.say(given)  # not awaited any more
    assert policy.judged == [(0, 1), (0, 1)]


def test_a_failed_attempt_is_retried_from_its_last_checkpoint() -> None:
    bench = MachineBench(Fifo(), [{"a": 1}], retries=1)
    bench.report(0, 0.5, 0.4, 0.3)
    bench.save(0, 2)
    (again,) = bench.end(0, e.Cause.FAILED, "out of memory")
    assert again == launch(1, 0, 0, start=2, source=0, why="it has waited longest")
    fail, *_ = bench.end(1, e.Cause.FAILED, "out of memory")
    assert fail == d.Fail(trial=0, why="failure 2, and only 1 may be retried: out of memory")


def test_retrained_epochs_are_compared_and_not_seen_twice() -> None:
    policy = ScriptedPolicy()
    bench = MachineBench(policy, [{"a": 1}])
    bench.report(0, 0.5, 0.4)
    bench.end(0, e.Cause.LOST)
    bench.report(1, 0.5, 0.9, 0.3)
    assert (bench.state.repeats, bench.state.mismatches) == (2, 1)
    assert policy.judged == [(0, 1), (0, 2), (0, 3)]
    assert list(bench.state.trials[0].losses) == [0.5, 0.4, 0.3]


def test_commands_give_slots_and_take_the_last_ones() -> None:
    bench = MachineBench(Fifo(), [{"a": n} for n in range(9)], slots=3)
    more = bench.say(e.Commanded(at=1.0, number=1, command=e.ChangeSlots(2)))
    assert more == (d.Provide(slots=2, why="a command gives 2 more"),)
    retire, amend = bench.say(e.Commanded(at=1.0, number=2, command=e.ChangeSlots(-1)))
    assert retire == d.Retire(slots=(2,), why="a command takes 1 away")
    assert isinstance(amend, d.Amend)
    assert (amend.attempt, amend.goal) == (2, 0)
    bench.report(2, 0.5)
    bench.save(2, 1)
    bench.end(2, e.Cause.GOAL)
    assert bench.state.slots.present == {0, 1}
    assert bench.state.trials[2].status is Status.READY
    many = bench.say(e.Commanded(at=2.0, number=3, command=e.ChangeSlots(-9)))
    assert many[0] == d.Retire(slots=(1,), why="a command takes 1 away")  # one slot stays


SHARED = [
    {"lr": {"piecewise": [[0, 1.0], [4, 2.0]]}},
    {"lr": {"piecewise": [[0, 1.0], [4, 3.0]]}},
]


def test_a_trial_that_shares_a_prefix_starts_from_the_branch() -> None:
    bench = MachineBench(ScriptedPolicy(), SHARED, slots=2, share=True)
    first = [decision for decision in bench.first if isinstance(decision, d.Launch)]
    assert [decision.save_at for decision in first] == [(4,)]
    assert bench.state.trials[1].status is Status.RUNNING
    bench.report(0, 0.9, 0.8, 0.7, 0.6)
    (started,) = bench.save(0, 4)
    assert started == launch(1, 1, 1, start=4, source=0, why="it is ready")


def test_a_branch_that_was_missed_is_retrained_from_the_last_checkpoint() -> None:
    bench = MachineBench(ScriptedPolicy(), SHARED, slots=2, share=True)
    bench.report(0, 0.9, 0.8)
    bench.save(0, 2)
    bench.report(0, 0.7, 0.6, 0.5)
    (started,) = bench.say(e.Missed(at=bench.at, attempt=0, epoch=4))
    assert started == launch(1, 1, 1, start=2, source=0, why="it is ready")
    bench.report(1, 0.7, 0.6, 0.4)
    assert bench.state.repeats == 2
    assert list(bench.state.trials[1].losses) == [0.9, 0.8, 0.7, 0.6, 0.4]


def test_an_attempt_at_its_goal_goes_on_with_another_branch_in_the_same_process() -> None:
    policy = ScriptedPolicy(until=4)
    bench = MachineBench(policy, SHARED, slots=2, share=True)
    policy.verdicts[1, 4] = (d.Go(trial=1, until=9, why="it may"),)
    decided = bench.report(0, 0.9, 0.8, 0.7, 0.6)
    assert decided[0] == d.Go(trial=1, until=9, why="it may")
    assert isinstance(decided[-1], d.Amend)
    assert (decided[-1].trial, decided[-1].goal) == (1, 9)
    assert bench.state.running == 1


def test_the_deadline_is_checked_at_every_event() -> None:
    bench = MachineBench(Fifo(), [{"a": 1}], budget=Budget(deadline_s=5.0))
    assert bench.report(0, 0.5, 0.4) == ()
    bench.at = 99.0
    (end,) = bench.report(0, 0.3)
    assert isinstance(end, d.End)
    assert end.cause is d.EndCause.DEADLINE


@pytest.mark.parametrize("last", [True, False])
def test_a_trial_whose_report_came_after_the_end_is_not_finished(last: bool) -> None:
    spec: dict[str, Any] = {"epochs": 3, "budget": Budget(deadline_s=5.0)}
    bench = MachineBench(Fifo(), [{"a": 1}, {"a": 2}], slots=2, **spec)
    bench.report(0, 0.5)
    bench.say(e.Woke(at=5.0))
    for attempt, epoch in ((0, 2), (1, 1)):
        report = e.Reported(
            at=5.0, attempt=attempt, epoch=epoch, metrics={"loss": 0.1}, seconds=1.0, last=last
        )
        assert bench.say(report) == ()
        assert bench.end(attempt, e.Cause.FINISHED) == ()
    assert [trial.status for trial in bench.state.trials] == [Status.READY, Status.READY]
    assert (bench.state.live, bench.state.epochs_trained, bench.state.strays) == (2, 1, 2)


def test_a_trial_that_returned_is_finished_even_if_its_attempt_ends_after_the_study() -> None:
    bench = MachineBench(Fifo(), [{"a": 1}], budget=Budget(deadline_s=5.0))
    bench.report(0, 0.5, 0.4)
    bench.say(e.Woke(at=5.0))
    bench.end(0, e.Cause.FINISHED)
    assert bench.state.trials[0].status is Status.FINISHED


def test_a_generator_that_repeats_itself_ends_the_study() -> None:
    bench = MachineBench(ScriptedPolicy(until=1), [{"a": 1}] * 3000, share=True, epochs=1)
    bench.report(0, 0.5)
    bench.save(0, 1)
    decided = bench.end(0, e.Cause.GOAL)
    assert isinstance(decided[-1], d.End)
    closed = [x for x in decided if isinstance(x, d.Close)]
    assert closed == [d.Close(why="the last 1000 configs were all known already")]


def test_all_metrics_are_kept_and_one_is_the_objective() -> None:
    bench = MachineBench(Fifo(), [{"a": 1}])
    bench.report(0, 0.5)
    bench.say(
        e.Reported(
            at=2.0, attempt=0, epoch=2, metrics={"loss": 0.4, "acc": float("nan")}, seconds=1.0
        )
    )
    trial = bench.state.trials[0]
    assert (trial.metric("loss"), trial.metric("acc")) == ([0.5, 0.4], [None, None])


def test_a_log_that_does_not_follow_is_refused() -> None:
    bench = MachineBench(Fifo(), [{"a": 1}])
    with pytest.raises(LogError, match="a second Opened"):
        bench.state.apply(e.Opened(at=0.0, spec=bench.state.spec))
    with pytest.raises(LogError, match="out of order"):
        bench.state.apply(d.Open(trial=7, config={}, until=1, why="no"))
    with pytest.raises(LogError, match="out of order"):
        bench.state.apply(launch(7, 0, 0))


def test_a_broken_state_is_reported_with_the_name_of_the_invariant() -> None:
    bench = MachineBench(Fifo(), [{"a": 1}])
    verify(bench.state)
    bench.state.live = 7
    with pytest.raises(BrokenInvariant, match="counters_of_trials_and_reports_are_right: 7 trials"):
        verify(bench.state)
    bench.state.live = 1


def test_a_replay_names_the_first_difference() -> None:
    bench = Machine(Parts(Fifo(), Queued(configs=[{"a": 1}]), Fixed()))
    spec = StudySpec(
        name="r", metric="loss", mode="min", epochs=2, policy=Part("p"), generator=Part("g")
    )
    steps = [
        bench.handle(e.Opened(at=0.0, spec=spec)),
        bench.handle(e.CapacityChanged(at=0.0, slots=(0,))),
    ]
    other = Parts(Fifo(), Queued(configs=[{"a": 2}]), Fixed())
    difference = replay(steps, other)
    assert difference is not None
    assert difference.number == 2
    assert isinstance(difference.logged, d.Open)
    assert isinstance(difference.replayed, d.Open)
    assert (difference.logged.config, difference.replayed.config) == ({"a": 1}, {"a": 2})
    shorter = replay(steps, Parts(Fifo(), Queued(configs=[]), Fixed()))
    assert shorter is not None
    assert isinstance(shorter.replayed, d.Close)


def test_an_empty_state_knows_nothing() -> None:
    state = StudyState()
    assert (state.live, state.running, state.capacity, state.best) == (0, 0, 0, None)
