"""The contract of policies, as tests to inherit.

Knows the port, and what can happen to studies: failures, lost slots, deadlines, NaN. Subclass
`PolicyContract`, set `make`, and run pytest. `BasePolicyContract` holds the clauses that the
machine relies on, for policies that schedule but do not tune.
"""

from __future__ import annotations

import math
import sys
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeVar, cast

from msgspec.structs import replace

from paceline.core.decisions import EndCause
from paceline.core.rng import shuffle_range, stream
from paceline.core.values import Budget
from paceline.engines.sim.cluster import Cluster
from paceline.testing.simulations import (
    CALM,
    SCENARIOS,
    AddingWorkload,
    DuplicatingEngine,
    Scenario,
    SimulatedStudy,
    find_broken_invariants,
    find_replay_difference,
    make_falling_curves,
    make_parts,
    make_study,
    make_table,
)
from paceline.testing.snapshots import dump_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import FrameType

    from paceline.core.decisions import Entry
    from paceline.core.ports import ChoosingPolicy, Pick, Policy, Verdict
    from paceline.core.values import Config
    from paceline.core.views import StudyView, TrialView
    from paceline.engines.sim.traces import Trace

T = TypeVar("T")

TABLE = make_table(make_falling_curves(12, 9))
# Better than any of the table's runs, from its first epoch to its last.
BEST = [-1.0 - 0.1 * epoch for epoch in range(9)]


class BasePolicyContract:
    """The clauses that the machine relies on."""

    make: Callable[[], Policy]

    def study(
        self, trace: Trace = TABLE, scenario: Scenario = CALM, policy: Policy | None = None
    ) -> SimulatedStudy:
        """Return a study with the policy; override it for a policy that needs more than a table."""
        return make_study(trace, make_parts(trace, policy or self.make()), scenario)

    def sharing(self) -> SimulatedStudy:
        """Return a study of eight schedules with common prefixes up to epochs 2, 4 and 6."""
        steps = [-0.3, -0.1]
        configs = [
            {"step": {"piecewise": [[0, -0.2], [2, one], [4, two], [6, three]]}}
            for one in steps
            for two in steps
            for three in steps
        ]
        trace = make_table([[0.0]] * len(configs), configs=configs, epochs=9)
        scenario = Scenario("prefixes are shared", Cluster(slots=2, save_s=0.1), {"share": True})
        like = self.study(trace, scenario)
        return SimulatedStudy(like.spec, like.parts, AddingWorkload(), scenario.cluster)

    def test_a_study_ends_and_frees_all_slots(self) -> None:
        for scenario in SCENARIOS:
            _assert_ended(self.study(scenario=scenario).run(), f"where {scenario.name}")

    def test_a_deadline_ends_the_study_even_without_slots(self) -> None:
        for capacity in ((), ((2.2, 0),)):
            cluster = Cluster(slots=2, capacity=capacity)
            scenario = Scenario("time is short", cluster, {"budget": Budget(deadline_s=7.5)})
            state = self.study(scenario=scenario).run().state
            assert state.end is not None, "the study continues after the deadline"
            assert state.now <= 7.5, f"it ended at {state.now} s, after the deadline"

    def test_the_same_events_cause_the_same_decisions(self) -> None:
        for scenario in SCENARIOS:
            steps = self.study(scenario=scenario).run().steps
            again = self.study(scenario=scenario).run().steps
            assert again == steps, f"where {scenario.name}, a second run makes other decisions"
            difference = find_replay_difference(steps, self.study().parts)
            assert not difference, f"where {scenario.name}, {difference}"

    def test_its_memory_is_rebuilt_from_the_log(self) -> None:
        for scenario in SCENARIOS:
            whole = self.study(scenario=scenario).run().steps
            for cut in {1 + part * (len(whole) - 1) // 6 for part in range(6)}:
                again = self.study(scenario=scenario).resume(whole[:cut]).steps
                assert again == whole, f"resumed after step {cut}, it makes other decisions"

    def test_judging_does_not_change_its_memory(self) -> None:
        checked = CheckedPolicy(self.make())
        self.study(policy=checked).run()
        assert not checked.memory_changes, "; ".join(checked.memory_changes)

    def test_it_picks_only_trials_that_can_use_a_slot(self) -> None:
        for scenario in SCENARIOS:
            checked = CheckedPolicy(self.make())
            self.study(TABLE, scenario, checked).run()
            assert not checked.idle_picks, f"where {scenario.name}, {checked.idle_picks[0]}"

    def test_every_decision_gives_a_reason(self) -> None:
        for scenario in SCENARIOS:
            for decision in self.study(scenario=scenario).run().decisions:
                why = decision.why
                assert len(why.split()) >= 3, f"{decision} has no reason: give a few words"
                assert why == why.strip().rstrip("."), (
                    f"{decision}: the reason has a full stop or stray spaces"
                )
                assert "\n" not in why, f"{decision}: the reason must be one line"

    def test_late_and_duplicate_reports_are_harmless(self) -> None:
        for scenario in SCENARIOS[:-1]:  # duplicates would shift the steps at which commands come
            once = self.study(scenario=scenario).run()
            twice = self.study(scenario=scenario).run(DuplicatingEngine)
            assert twice.decisions == once.decisions, (
                f"where {scenario.name}, duplicates change decisions"
            )

    def test_runs_that_end_early_do_not_stall_the_study(self) -> None:
        curves = [
            curve[: 1 + number % 5] for number, curve in enumerate(make_falling_curves(12, 9))
        ]
        _assert_ended(
            self.study(make_table(curves, epochs=9)).run(), "with runs shorter than their goals"
        )

    def test_runs_without_numbers_do_not_stall_the_study(self) -> None:
        for bad in (math.nan, math.inf, -math.inf):
            curves = [
                [bad] * 9 if n % 3 else curve for n, curve in enumerate(make_falling_curves(9, 9))
            ]
            _assert_ended(
                self.study(make_table(curves)).run(), f"where two runs of three report {bad}"
            )
            _assert_ended(
                self.study(make_table([[bad] * 9] * 5)).run(), f"where every run reports {bad}"
            )

    def test_it_works_when_trials_share_prefixes(self) -> None:
        study = self.sharing().run()
        _assert_ended(study, "with shared prefixes")
        assert study.state.epochs_trained < study.state.reports, "nothing was shared"
        half = study.steps[: len(study.steps) // 2]
        assert self.sharing().resume(half).steps == study.steps, "resumed, it makes other decisions"
        difference = find_replay_difference(study.steps, self.sharing().parts)
        assert not difference, difference

    def test_no_intermediate_state_breaks_an_invariant(self) -> None:
        for study in [self.sharing(), *(self.study(scenario=scenario) for scenario in SCENARIOS)]:
            wrong = find_broken_invariants(study.run().steps, self.study().parts)
            assert not wrong, wrong[0]


class PolicyContract(BasePolicyContract):
    """The contract of every Policy. Subclass it, set `make`, run pytest."""

    def test_nan_and_infinity_never_win(self) -> None:
        for number in (0, 4, 8):
            with_numbers = self._get_reached_epoch(number, BEST)
            for bad in (math.nan, math.inf, -math.inf):
                without = self._get_reached_epoch(number, [bad] * 9)
                assert without <= with_numbers, (
                    f"run {number} reaches epoch {without} when it reports {bad}, and only "
                    f"{with_numbers} with the best losses of all"
                )

    def _get_reached_epoch(self, number: int, curve: list[float]) -> int:
        curves = make_falling_curves(9, 9)
        curves[number] = curve
        # Time for half of the work, so that the policy must choose.
        scenario = Scenario("time is short", Cluster(slots=3), {"budget": Budget(deadline_s=13.5)})
        study = self.study(make_table(curves), scenario).run()
        assert math.isfinite(study.state.best_loss), f"the best loss is {study.state.best_loss}"
        return _count_epochs_by_run(study).get(number, 0)

    def test_the_order_of_equal_losses_does_not_matter(self) -> None:
        for trials, slots in ((9, 3), (27, 9)):
            reached = set()
            for seed in range(6):
                order = shuffle_range(trials, stream(seed, "order")) if seed else range(trials)
                # A slightly slower trial reports slightly later.
                seconds = [1.0 + 0.001 * late for late in order]
                trace = make_table([[3.0] * 9] * trials, seconds=seconds)
                # Time for some of the work, so that the policy must choose.
                spec = {"budget": Budget(deadline_s=4.5)}
                scenario = Scenario("time is short", Cluster(slots=slots), spec)
                reached.add((*sorted(self.study(trace, scenario).run().epochs),))
            assert len(reached) == 1, (
                f"the order of reports decides how far trials train: {reached}"
            )

    def test_a_lone_trial_is_never_starved(self) -> None:
        for slots in (1, 4):
            scenario = Scenario("one trial is alone", Cluster(slots=slots, save_s=0.1))
            epochs = self.study(make_table(make_falling_curves(1, 9)), scenario).run().epochs
            assert epochs == [9], f"on {slots} slots it stays at epoch {epochs} of 9"

    def test_the_best_run_is_trained_to_its_last_epoch(self) -> None:
        others = make_falling_curves(12, 9)
        for name, curves in {
            "the others train on": others,
            "the others end early": [curve[: 1 + n % 3] for n, curve in enumerate(others)],
            "the others report no numbers": [[math.nan] * 9] * 12,
        }.items():
            for place in (0, 5, 12):
                study = self.study(make_table([*curves[:place], BEST, *curves[place:]])).run()
                reached = _count_epochs_by_run(study).get(place, 0)
                assert reached == 9, f"where {name}, the best run stays at epoch {reached} of 9"

    def test_minimising_and_maximising_give_the_same_decisions(self) -> None:
        curves = make_falling_curves(12, 9)
        curves[3] = [math.nan] * 9
        lower = self.study(make_table(curves, mode="min")).run()
        mirrored = [[-value for value in curve] for curve in curves]
        higher = self.study(make_table(mirrored, mode="max")).run()
        for one, other in zip_longest(lower.decisions, higher.decisions):
            same = one and other and replace(one, why="") == replace(other, why="")
            assert same, f"minimised: {one}; negated and maximised: {other}"

    def test_the_cost_of_a_report_does_not_grow_with_the_number_of_trials(self) -> None:
        few, many = self._count_lines_per_report(100), self._count_lines_per_report(800)
        assert many <= 2 * few, (
            f"a report executes {many:.0f} lines of code with 800 trials, {few:.0f} with 100: "
            "update in `see` what `judge` and `next` need, instead of searching all trials"
        )

    def _count_lines_per_report(self, trials: int) -> float:
        counting = LineCountingPolicy(self.make())
        scenario = Scenario("there are many", Cluster(slots=8))
        study = self.study(make_table(make_falling_curves(trials, 4)), scenario, counting).run()
        return counting.lines / study.state.reports


def _count_epochs_by_run(study: SimulatedStudy) -> dict[int, int]:
    """Return the epochs of each run of the table, without forks."""
    trials = study.state.trials
    return {trial.config["run"]: trial.epoch for trial in trials if trial.source is None}


def _assert_ended(study: SimulatedStudy, when: str) -> None:
    state = study.state
    assert state.end is not None, f"{when}, the study stalls with {len(state.ready)} trials ready"
    assert state.end.cause in (EndCause.QUIET, EndCause.POLICY), f"{when}: {state.end.why}"
    if state.end.cause is EndCause.QUIET:
        assert not state.attempts, f"{when}, {len(state.attempts)} attempts are left"
        assert not state.slots.held, f"{when}, slots {sorted(state.slots.held)} are still held"


class CheckedPolicy:
    """Wraps a policy: calls every method twice and checks that only `see` changes its memory."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.window: int = getattr(policy, "window", 1)
        self.memory_changes: list[str] = []
        self.idle_picks: list[str] = []

    def see(self, entry: Entry, study: StudyView) -> None:
        self._policy.see(entry, study)

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        return self._check("judge", lambda: tuple(self._policy.judge(trial, study)))

    def next(self, study: StudyView) -> Pick | None:
        pick = self._check("next", lambda: self._policy.next(study))
        if pick is not None and not _is_useful(pick, study):
            self.idle_picks.append(f"{pick} can start no trial at {study.now:g} s")
        return pick

    def choose(self, configs: Mapping[int, Config], study: StudyView) -> int:
        policy = cast("ChoosingPolicy", self._policy)
        chosen = self._check("choose", lambda: policy.choose(configs, study))
        if chosen not in configs:
            self._add_problem(f"choose returns {chosen}, which is not in {sorted(configs)}")
            return min(configs)
        return chosen

    def admit(self, study: StudyView) -> int | None:
        return self._check("admit", lambda: self._policy.admit(study))

    def _check(self, method: str, ask: Callable[[], T]) -> T:
        before = dump_memory(self._policy)
        answer = ask()
        if dump_memory(self._policy) != before:
            self._add_problem(f"{method} changed the policy's memory: only `see` may")
        if ask() != answer:
            self._add_problem(f"{method} gives another answer when it is called again")
        return answer

    def _add_problem(self, text: str) -> None:
        if text not in self.memory_changes:
            self.memory_changes.append(text)


def _is_useful(pick: Pick, study: StudyView) -> bool:
    if pick.trial is None:
        return study.new and pick.until >= 1
    if not 0 <= pick.trial < len(study.trials):
        return False
    trial = study.trials[pick.trial]
    further = min(pick.until, study.spec.epochs) > max(trial.goal, trial.epoch)
    return trial.id in study.ready or (trial.alive and further)


class LineCountingPolicy:
    """Wraps a policy: counts the executed lines of Python, a measure without noise."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.window: int = getattr(policy, "window", 1)
        self.lines = 0

    def see(self, entry: Entry, study: StudyView) -> None:
        self._count(lambda: self._policy.see(entry, study))

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        return self._count(lambda: tuple(self._policy.judge(trial, study)))

    def next(self, study: StudyView) -> Pick | None:
        return self._count(lambda: self._policy.next(study))

    def choose(self, configs: Mapping[int, Config], study: StudyView) -> int:
        policy = cast("ChoosingPolicy", self._policy)
        return self._count(lambda: policy.choose(configs, study))

    def admit(self, study: StudyView) -> int | None:
        return self._count(lambda: self._policy.admit(study))

    def _count(self, work: Callable[[], T]) -> T:
        # A tracer that is already set (debugger, coverage) is restored.
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            return work()
        finally:
            sys.settrace(before)

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:  # noqa: ANN401
        self.lines += event == "line"
        return self._trace
