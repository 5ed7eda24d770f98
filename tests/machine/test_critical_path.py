"""Stages by critical path: the longest path first, the best child in the same process, siblings at
once; only requested epochs, each trained once, whatever is opened or stopped meanwhile."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st
from machine_bench import MachineBench, ScriptedPolicy
from small_studies import SmallStudy, make_table

import paceline as pl
from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.ports import Pick
from paceline.core.values import Status
from paceline.generators.queued import Queued
from paceline.machine.assignment import ReadyQueue
from paceline.machine.invariants import find_violations
from paceline.plan.settings import canonicalize, setting_at
from paceline.policies.fifo import Fifo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.ports import Policy, Verdict
    from paceline.core.views import StudyView, TrialView
    from paceline.engines.sim.traces import Trace
    from paceline.testing.simulations import SimulatedStudy

EPOCHS = 8
FREE = {"save_every_s": 0.0}


def rates(*pieces: tuple[int, float]) -> dict[str, Any]:
    return {"lr": pl.piecewise(list(pieces))}


def measured(configs: list[dict[str, Any]]) -> Trace:
    """Return a trace in which an epoch takes as many seconds as its rate says."""
    seconds = [
        [float(setting_at(canonicalize(config), epoch)["lr"]) for epoch in range(EPOCHS)]
        for config in configs
    ]
    curves = [[round(sum(took[: n + 1]), 9) for n in range(EPOCHS)] for took in seconds]
    trace = make_table(curves, configs=configs)
    for run, took in zip(trace.runs, seconds, strict=True):
        run.seconds[:] = array("d", took)
    return trace


def trained(
    configs: list[dict[str, Any]],
    policy: Policy | None = None,
    **more: Any,  # noqa: ANN401
) -> SimulatedStudy:
    """Return a study to which all configs came at once."""
    study = standing(configs, policy, **{"slots": 1, **more})
    return study.train([(config, EPOCHS) for config in configs])


def standing(
    configs: list[dict[str, Any]],
    policy: Policy | None = None,
    **more: Any,  # noqa: ANN401
) -> SmallStudy:
    """Return a study that waits for an outside tuner's groups."""
    options = {"cluster": FREE, "generator": Queued(configs=[]), **more}
    return SmallStudy(measured(configs), policy, share=True, standing=True, **options)


# Who waits


def test_the_ready_queue_has_the_longest_path_first_and_of_equals_the_oldest() -> None:
    line = ReadyQueue()
    for trial, length in ((4, 2.0), (7, 9.0), (1, 2.0), (3, 5.0)):
        line.add(trial, length)
    assert list(line) == [7, 3, 4, 1]
    line.discard(3)
    line.discard(8)
    line.add(4, 1.0)
    assert (list(line), 3 in line, 4 in line, len(line)) == ([7, 1, 4], False, True, 3)
    line.add(4, 2.0)
    assert list(line) == [7, 4, 1], "it came before the other, whatever its length was since"


def test_a_free_slot_goes_to_the_longest_path() -> None:
    # All three begin alike; the second leaves first and the third has slow epochs.
    configs = [rates((0, 1.0)), rates((0, 1.0), (6, 2.0)), rates((0, 1.0), (4, 3.0))]
    launches = trained(configs).launches
    assert [(each.trial, each.start) for each in launches] == [(0, 0), (2, 4), (1, 6)]


def test_the_length_of_a_path_is_the_measured_time_of_its_settings() -> None:
    # Trials 1 and 2 part from trial 0 after epoch 6 and have as many epochs to go, but what
    # the second one's rate takes is known from trial 3, which shares nothing with them.
    configs = [
        rates((0, 1.0)),
        rates((0, 1.0), (6, 2.0)),
        rates((0, 1.0), (6, 5.0)),
        rates((0, 5.0)),
    ]
    launches = trained(configs, slots=2, cluster={"setup_s": 20.0, **FREE}).launches
    assert [each.trial for each in launches] == [0, 3, 2, 1]


def test_the_pick_of_the_policy_comes_before_any_path() -> None:
    class Youngest(Fifo):
        def next(self, study: StudyView) -> Pick | None:
            if study.ready:
                return Pick(max(study.ready), 0, "the youngest")
            return super().next(study)

    configs = [rates((0, 1.0)), rates((0, 1.0), (2, 5.0)), rates((0, 1.0), (2, 0.5))]
    picked, first = (
        [(each.trial, each.start) for each in trained(configs, policy).launches]
        for policy in (Youngest(), Fifo())
    )
    assert picked == [(2, 0), (1, 2), (0, 2)]
    assert first == [(0, 0), (1, 2), (2, 2)]


def test_without_branches_the_longest_waiting_trial_is_first() -> None:
    bench = MachineBench(
        ScriptedPolicy(until=4), [{"a": 1}, {"a": 2}, {"a": 3}], slots=3, share=True
    )
    for attempt in (0, 1, 2):
        bench.report(attempt, *[0.5] * attempt)
    for attempt in (1, 0, 2):
        bench.say(e.CapacityChanged(at=bench.at, slots=()))
        bench.end(attempt, e.Cause.LOST)
    assert list(bench.state.ready) == [1, 0, 2], "though the first of them has least behind it"


# At a branch


def test_siblings_start_in_the_very_step_in_which_their_branch_is_saved() -> None:
    configs = [rates((0, 1.0), (3, 1.0 + n)) for n in range(4)]
    costs = {"setup_s": 1.0, "save_s": 0.5, "restore_s": 0.25}
    played = trained(configs, slots=4, cluster=costs)
    (branch,) = (s for s in played.steps if isinstance(s.event, e.Saved) and s.event.epoch == 3)
    launched = [each for each in branch.decisions if isinstance(each, d.Launch)]
    assert [(each.start, each.source) for each in launched] == [(3, 0)] * 3
    assert len(played.launches) == 4


def test_the_worker_goes_on_with_the_longest_child() -> None:
    # What the slow rate takes is known from the first trial; the second leads when the third joins.
    slow = rates((0, 1.0), (5, 3.0))
    configs = [rates((0, 3.0)), rates((0, 1.0)), slow]
    played = trained(configs, slots=3)
    assert [(each.trial, each.start) for each in played.launches] == [(0, 0), (1, 0), (1, 5)]
    (turn,) = (each for each in played.list_entries(d.Amend) if each.trial == 2)
    assert (turn.attempt, turn.goal, turn.save_at) == (1, EPOCHS, (5,))


def test_the_leader_is_not_replaced_for_less_than_a_start_costs() -> None:
    configs = [rates((0, 1.5)), rates((0, 1.0)), rates((0, 1.0), (3, 1.5))]
    played = trained(configs, slots=3, cluster={"setup_s": 3.0, **FREE})
    assert not [each for each in played.list_entries(d.Amend) if each.trial == 2]


SHARED = [rates((0, 1.0)), rates((0, 1.0), (4, 2.0))]


def test_epochs_trained_past_a_change_of_path_are_not_stored_on_the_new_path() -> None:
    policy = ScriptedPolicy(until=9)
    bench = MachineBench(policy, SHARED, slots=2, share=True)
    policy.verdicts[0, 2] = (d.Stop(trial=0, why="enough"),)
    (*_, turn) = bench.report(0, 0.9, 0.8)
    assert isinstance(turn, d.Amend)
    assert turn.trial == 1

    def late(epoch: int, version: int) -> tuple[d.AnyDecision, ...]:
        metrics: dict[str, float | None] = {"loss": 0.1 * epoch}
        report = e.Reported(
            at=9.0, attempt=0, epoch=epoch, metrics=metrics, seconds=1.0, version=version
        )
        return bench.say(report)

    # Up to epoch 4 the paths agree, so the older order is as good as the newer.
    late(3, turn.version - 1)
    late(4, turn.version - 1)
    assert bench.state.trials[1].epoch == 4
    bench.save(0, 4)
    halt, again = late(5, turn.version - 1)
    assert isinstance(halt, d.Halt)
    assert (bench.state.trials[1].epoch, bench.state.strays) == (4, 1)
    assert isinstance(again, d.Launch)
    assert (again.trial, again.start, again.source) == (1, 4, 0)
    bench.save(0, 5)
    assert not bench.state.trials[1].leaf.checkpoints, (
        "what was saved after the turn is no good either"
    )
    assert not find_violations(bench.state)


# Random trees: all that is asked for, once


paths = st.lists(st.sampled_from([1.0, 2.0, 3.0]), min_size=EPOCHS, max_size=EPOCHS)
some_paths = st.lists(paths, min_size=1, max_size=10, unique_by=tuple)


def prefixes(drawn: Sequence[list[float]], goals: Sequence[int]) -> set[tuple[float, ...]]:
    """Return each different epoch that is requested, by all settings up to it."""
    return {
        tuple(path[: epoch + 1])
        for path, goal in zip(drawn, goals, strict=True)
        for epoch in range(goal)
    }


def listed(drawn: Sequence[list[float]]) -> list[dict[str, Any]]:
    return [{"lr": pl.each_epoch(path)} for path in drawn]


@given(some_paths, st.integers(1, 6))
def test_no_slot_idles_while_a_stage_could_run(drawn: list[list[float]], slots: int) -> None:
    played = SmallStudy(measured(listed(drawn)), share=True, slots=slots, cluster=FREE).run()
    work = sum(prefix[-1] for prefix in prefixes(drawn, [EPOCHS] * len(drawn)))
    longest = max(sum(path) for path in drawn)
    # Graham's bound: whenever a slot is idle, the longest path that is left is being trained.
    assert max(longest, work / slots) - 1e-6 <= played.state.now
    assert played.state.now <= work / slots + (1 - 1 / slots) * longest + 1e-6


@given(some_paths, st.data(), st.integers(1, 4))
def test_goals_of_several_trials_on_one_node_are_all_met_and_nothing_more(
    drawn: list[list[float]], data: st.DataObject, slots: int
) -> None:
    goals = [data.draw(st.integers(1, EPOCHS)) for _ in drawn]
    later = [data.draw(st.integers(1, EPOCHS)) for _ in drawn]
    configs = listed(drawn)
    played = standing(configs, slots=slots)
    # The second group comes to a tree that is there already, and branches anywhere in it.
    asked = list(zip(configs * 2, [*goals, *later], strict=True))
    some = data.draw(st.integers(1, len(asked)))
    state = played.train(asked[:some], asked[some:]).state
    assert [trial.epoch for trial in state.trials] == [*goals, *later]
    assert state.epochs_trained == len(prefixes([*drawn, *drawn], [*goals, *later]))
    assert state.repeats == 0


class Stopping(Fifo):
    """Stops some trials, each at an epoch of its own."""

    def __init__(self, at: dict[int, int]) -> None:
        self._at = at

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        stop = self._at.get(trial.id) == trial.epoch
        return (d.Stop(trial=trial.id, why="drawn"),) if stop else ()


@given(some_paths, st.data(), st.integers(1, 4))
def test_a_stopped_trial_withdraws_only_its_own_requests_and_its_results_are_reused(
    drawn: list[list[float]], data: st.DataObject, slots: int
) -> None:
    stopped_trials = data.draw(st.sets(st.integers(0, len(drawn) - 1)))
    stops = {number: data.draw(st.integers(1, EPOCHS - 1)) for number in sorted(stopped_trials)}
    configs = listed(drawn)
    # In the end every stopped trial is submitted again and trained to its goal.
    comes = [*range(len(drawn)), *stops]
    trace = measured([configs[number] for number in comes])
    played = SmallStudy(trace, Stopping(stops), share=True, slots=slots, cluster=FREE).run()
    state = played.state
    for number, trial in zip(comes, state.trials, strict=True):
        stopped = trial.id in stops
        assert trial.ended is (Status.STOPPED if stopped else Status.FINISHED)
        assert trial.epoch == (stops[number] if stopped else EPOCHS)
    # The epochs of a stopped trial are reused by the one submitted again, except for the epoch at
    # whose end it was stopped: that one was not saved.
    needed = len(prefixes(drawn, [EPOCHS] * len(drawn)))
    assert state.epochs_trained - state.repeats == needed
    assert state.repeats <= len(stops)
    assert not state.mismatches
