"""The contract of policies: what every Policy must keep, as tests to inherit.

Knows the port, and what happens to studies: failures, lost slots, deadlines, numbers that are none.
Subclass `PolicyContract`, give `make`, and run pytest. `PolicyLaws` is the part of it that the
machine relies on, for policies that schedule but do not tune.
"""

from __future__ import annotations

import math
import sys
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from paceline.core.decisions import EndCause
from paceline.core.rng import shuffled, stream
from paceline.core.values import Budget
from paceline.engines.sim.cluster import Cluster
from paceline.testing.simulations import (
    CALM,
    SCENES,
    Adding,
    Doubling,
    Rehearsal,
    Scene,
    brains_for,
    broken_invariants,
    falling,
    rehearsal,
    table,
    unlike_replay,
)
from paceline.testing.snapshots import memory_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    from paceline.core.decisions import Entry
    from paceline.core.ports import Pick, Policy, Verdict
    from paceline.core.views import StudyView, TrialView
    from paceline.engines.sim.traces import Trace

T = TypeVar("T")

TABLE = table(falling(12, 9))
# Better than any of the table's runs, from its first epoch to its last.
BEST = [-1.0 - 0.1 * epoch for epoch in range(9)]


class PolicyLaws:
    """What the machine relies on, whatever a policy is for."""

    make: Callable[[], Policy]

    def study(
        self, trace: Trace = TABLE, scene: Scene = CALM, policy: Policy | None = None
    ) -> Rehearsal:
        """Return a study for the policy; one that needs more than a table overrides this."""
        return rehearsal(trace, brains_for(trace, policy or self.make()), scene)

    def sharing(self) -> Rehearsal:
        """Return a study of eight schedules that agree up to epochs 2, 4 and 6."""
        steps = [-0.3, -0.1]
        configs = [
            {"step": {"piecewise": [[0, -0.2], [2, one], [4, two], [6, three]]}}
            for one in steps
            for two in steps
            for three in steps
        ]
        trace = table([[0.0]] * len(configs), configs=configs, epochs=9)
        scene = Scene("prefixes are shared", Cluster(slots=2, save_s=0.1), {"share": True})
        like = self.study(trace, scene)
        return Rehearsal(like.spec, like.brains, Adding(), scene.cluster)

    def test_a_study_ends_and_frees_all_slots(self) -> None:
        for scene in SCENES:
            _ends(self.study(scene=scene).run(), f"where {scene.name}")

    def test_a_deadline_ends_the_study_even_without_slots(self) -> None:
        for capacity in ((), ((2.2, 0),)):
            cluster = Cluster(slots=2, capacity=capacity)
            scene = Scene("time is short", cluster, {"budget": Budget(deadline_s=7.5)})
            state = self.study(scene=scene).run().state
            assert state.end is not None, "the deadline has passed and the study goes on"
            assert state.now <= 7.5, f"it ended at {state.now} s, after the deadline"

    def test_the_same_facts_cause_the_same_decisions(self) -> None:
        for scene in SCENES:
            steps = self.study(scene=scene).run().steps
            again = self.study(scene=scene).run().steps
            assert again == steps, f"where {scene.name}, a second run decides otherwise"
            difference = unlike_replay(steps, self.study().brains)
            assert not difference, f"where {scene.name}, {difference}"

    def test_its_memory_is_a_fold_of_the_log(self) -> None:
        for scene in SCENES:
            whole = self.study(scene=scene).run().steps
            for cut in {1 + part * (len(whole) - 1) // 6 for part in range(6)}:
                again = self.study(scene=scene).resume(whole[:cut]).steps
                assert again == whole, f"taken up after step {cut}, it decides otherwise"

    def test_judging_writes_nothing(self) -> None:
        watched = WatchedPolicy(self.make())
        self.study(policy=watched).run()
        assert not watched.wrote, "; ".join(watched.wrote)

    def test_it_picks_only_whom_a_slot_is_of_use_to(self) -> None:
        for scene in SCENES:
            watched = WatchedPolicy(self.make())
            self.study(TABLE, scene, watched).run()
            assert not watched.idle_picks, f"where {scene.name}, {watched.idle_picks[0]}"

    def test_every_decision_says_why(self) -> None:
        for scene in SCENES:
            for decision in self.study(scene=scene).run().decisions:
                why = decision.why
                assert len(why.split()) >= 3, f"{decision} does not say why: give a few words"
                assert why == why.strip().rstrip("."), f"{decision}: no full stop, no stray space"
                assert "\n" not in why, f"{decision}: why is one line"

    def test_late_and_doubled_reports_are_harmless(self) -> None:
        for scene in SCENES[:-1]:  # commands come after so many steps, and repeats are steps
            once = self.study(scene=scene).run()
            twice = self.study(scene=scene).run(Doubling)
            assert twice.decisions == once.decisions, f"where {scene.name}, repeats are believed"

    def test_runs_that_end_early_do_not_hold_it_up(self) -> None:
        curves = [curve[: 1 + number % 5] for number, curve in enumerate(falling(12, 9))]
        _ends(self.study(table(curves, epochs=9)).run(), "with runs shorter than their goals")

    def test_runs_without_numbers_do_not_hold_it_up(self) -> None:
        for bad in (math.nan, math.inf, -math.inf):
            curves = [[bad] * 9 if n % 3 else curve for n, curve in enumerate(falling(9, 9))]
            _ends(self.study(table(curves)).run(), f"where two runs of three report {bad}")
            _ends(self.study(table([[bad] * 9] * 5)).run(), f"where every run reports {bad}")

    def test_it_works_where_trials_share_their_prefixes(self) -> None:
        study = self.sharing().run()
        _ends(study, "with shared prefixes")
        assert study.state.epochs_trained < study.state.reports, "nothing was shared"
        half = study.steps[: len(study.steps) // 2]
        assert self.sharing().resume(half).steps == study.steps, "resumed, it decides otherwise"
        difference = unlike_replay(study.steps, self.sharing().brains)
        assert not difference, difference

    def test_no_state_on_the_way_contradicts_itself(self) -> None:
        for study in [self.sharing(), *(self.study(scene=scene) for scene in SCENES)]:
            wrong = broken_invariants(study.run().steps, self.study().brains)
            assert not wrong, wrong[0]


class PolicyContract(PolicyLaws):
    """What every Policy must satisfy. Subclass it, give `make`, run pytest."""

    def test_what_is_not_a_number_never_wins(self) -> None:
        for number in (0, 4, 8):
            with_numbers = self._reached(number, BEST)
            for bad in (math.nan, math.inf, -math.inf):
                without = self._reached(number, [bad] * 9)
                assert without <= with_numbers, (
                    f"run {number} comes to epoch {without} when it reports {bad}, and to "
                    f"{with_numbers} with the best numbers of all"
                )

    def _reached(self, number: int, curve: list[float]) -> int:
        curves = falling(9, 9)
        curves[number] = curve
        # Time for half of the work, so that somebody has to stand back.
        scene = Scene("time is short", Cluster(slots=3), {"budget": Budget(deadline_s=13.5)})
        study = self.study(table(curves), scene).run()
        assert math.isfinite(study.state.best_loss), f"the best loss is {study.state.best_loss}"
        return _epochs_by_run(study).get(number, 0)

    def test_the_order_of_equal_losses_does_not_matter(self) -> None:
        for trials, slots in ((9, 3), (27, 9)):
            reached = set()
            for seed in range(6):
                order = shuffled(trials, stream(seed, "order")) if seed else range(trials)
                # Who is a little slower reports a little later.
                seconds = [1.0 + 0.001 * late for late in order]
                trace = table([[3.0] * 9] * trials, seconds=seconds)
                # Time for some of the work, so that somebody has to stand back.
                spec = {"budget": Budget(deadline_s=4.5)}
                scene = Scene("time is short", Cluster(slots=slots), spec)
                reached.add((*sorted(self.study(trace, scene).run().epochs),))
            assert len(reached) == 1, f"who reports first decides how far trials come: {reached}"

    def test_a_lone_trial_is_never_starved(self) -> None:
        for slots in (1, 4):
            scene = Scene("one trial is alone", Cluster(slots=slots, save_s=0.1))
            epochs = self.study(table(falling(1, 9)), scene).run().epochs
            assert epochs == [9], f"on {slots} slots it is left at epoch {epochs} of 9"

    def test_the_best_run_is_trained_to_its_end(self) -> None:
        others = falling(12, 9)
        for name, curves in {
            "the others train on": others,
            "the others end early": [curve[: 1 + n % 3] for n, curve in enumerate(others)],
            "the others report no numbers": [[math.nan] * 9] * 12,
        }.items():
            for place in (0, 5, 12):
                study = self.study(table([*curves[:place], BEST, *curves[place:]])).run()
                reached = _epochs_by_run(study).get(place, 0)
                assert reached == 9, f"where {name}, the best run is left at epoch {reached} of 9"

    def test_lower_and_higher_are_better_alike(self) -> None:
        curves = falling(12, 9)
        curves[3] = [math.nan] * 9
        lower = self.study(table(curves, mode="min")).run()
        mirrored = [[-value for value in curve] for curve in curves]
        higher = self.study(table(mirrored, mode="max")).run()
        for one, other in zip_longest(lower.decisions, higher.decisions):
            same = one and other and replace(one, why="") == replace(other, why="")
            assert same, f"with the losses as they are: {one}; mirrored, to be maximised: {other}"

    def test_the_cost_of_a_report_does_not_grow_with_the_trials(self) -> None:
        few, many = self._lines_a_report(100), self._lines_a_report(800)
        assert many <= 2 * few, (
            f"a report costs {many:.0f} lines of code with 800 trials, {few:.0f} with 100: keep "
            "in `see` what `judge` and `next` need, instead of looking through all trials"
        )

    def _lines_a_report(self, trials: int) -> float:
        metered = MeteredPolicy(self.make())
        scene = Scene("there are many", Cluster(slots=8))
        study = self.study(table(falling(trials, 4)), scene, metered).run()
        return metered.lines / study.state.reports


def _epochs_by_run(study: Rehearsal) -> dict[int, int]:
    """Return how far each run of the table came that was not forked into another."""
    trials = study.state.trials
    return {trial.config["run"]: trial.epoch for trial in trials if trial.source is None}


def _ends(study: Rehearsal, when: str) -> None:
    state = study.state
    assert state.end is not None, f"{when}, the study stalls with {len(state.ready)} trials ready"
    assert state.end.cause in (EndCause.QUIET, EndCause.POLICY), f"{when}: {state.end.why}"
    if state.end.cause is EndCause.QUIET:
        assert not state.attempts, f"{when}, {len(state.attempts)} attempts are left"
        assert not state.slots.held, f"{when}, slots {sorted(state.slots.held)} are still held"


class WatchedPolicy:
    """A policy that is asked everything twice, and whose memory is looked at before and after."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.wrote: list[str] = []
        self.idle_picks: list[str] = []

    def see(self, entry: Entry, study: StudyView) -> None:
        self._policy.see(entry, study)

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        return self._asked("judge", lambda: tuple(self._policy.judge(trial, study)))

    def next(self, study: StudyView) -> Pick | None:
        pick = self._asked("next", lambda: self._policy.next(study))
        if pick is not None and not _of_use(pick, study):
            self.idle_picks.append(f"{pick} can start nobody at {study.now:g} s")
        return pick

    def admit(self, study: StudyView) -> int | None:
        return self._asked("admit", lambda: self._policy.admit(study))

    def _asked(self, method: str, ask: Callable[[], T]) -> T:
        before = memory_of(self._policy)
        answer = ask()
        if memory_of(self._policy) != before:
            self._complain(f"{method} changed the policy's memory: only `see` may")
        if ask() != answer:
            self._complain(f"{method} answers otherwise when it is asked again")
        return answer

    def _complain(self, text: str) -> None:
        if text not in self.wrote:
            self.wrote.append(text)


def _of_use(pick: Pick, study: StudyView) -> bool:
    if pick.trial is None:
        return study.new and pick.until >= 1
    if not 0 <= pick.trial < len(study.trials):
        return False
    trial = study.trials[pick.trial]
    further = min(pick.until, study.spec.epochs) > max(trial.goal, trial.epoch)
    return trial.id in study.ready or (trial.alive and further)


class MeteredPolicy:
    """A policy whose work is counted in lines of Python, which no clock can blur."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.lines = 0

    def see(self, entry: Entry, study: StudyView) -> None:
        self._counted(lambda: self._policy.see(entry, study))

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        return self._counted(lambda: tuple(self._policy.judge(trial, study)))

    def next(self, study: StudyView) -> Pick | None:
        return self._counted(lambda: self._policy.next(study))

    def admit(self, study: StudyView) -> int | None:
        return self._counted(lambda: self._policy.admit(study))

    def _counted(self, work: Callable[[], T]) -> T:
        # Whoever traces already (a debugger, coverage) goes on afterwards.
        before = sys.gettrace()
        sys.settrace(self._count)
        try:
            return work()
        finally:
            sys.settrace(before)

    def _count(self, frame: FrameType, event: str, argument: object) -> Any:  # noqa: ANN401
        self.lines += event == "line"
        return self._count
