"""Stopping rules and synchronous halving, against naive re-implementations on random tables."""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING, get_args

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from small_studies import SmallStudy, make_table

from paceline.core.decisions import Go, Launch, Open, Pause, Stop
from paceline.core.errors import SpecError
from paceline.core.events import Reported
from paceline.core.values import Mode, Status
from paceline.policies.asha_stop import AshaStop
from paceline.policies.bandit import Bandit
from paceline.policies.median import Median
from paceline.policies.quantiles import RunningQuantile
from paceline.policies.rungs import compute_milestones, count_halvings
from paceline.policies.successive_halving import Hyperband, Sha, compute_bracket_rungs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paceline.core.ports import Policy
    from paceline.testing.simulations import SimulatedStudy

# Few distinct values, so that ties are common; and runs with NaN in between.
VALUES = st.one_of(
    st.integers(0, 5).map(float), st.floats(0.0, 5.0, allow_nan=False), st.just(math.nan)
)
TABLES = st.integers(2, 12).flatmap(
    lambda epochs: st.lists(
        st.lists(VALUES, min_size=epochs, max_size=epochs), min_size=1, max_size=30
    )
)


def iterate_reports(played: SimulatedStudy) -> Iterator[tuple[int, int, float, set[int]]]:
    """Yield trial, epoch, loss and the trials stopped by it, report by report."""
    launched: dict[int, int] = {}
    for step in played.steps:
        if isinstance(step.event, Reported):
            trial, epoch = launched[step.event.attempt], step.event.epoch
            loss = played.state.trials[trial].losses[epoch - 1]
            yield trial, epoch, loss, {d.trial for d in step.decisions if isinstance(d, Stop)}
        for decision in step.decisions:
            if isinstance(decision, Launch):
                launched[decision.attempt] = decision.trial


def between(numbers: list[float], place: float) -> float:
    """Return the interpolated number at a place; unlike numpy's, it works with infinity."""
    low, high = numbers[math.floor(place)], numbers[math.ceil(place)]
    return low if low == high else low + (place % 1.0) * (high - low)


def play(
    curves: list[list[float]], policy: Policy, slots: int, paces: int, mode: Mode
) -> SimulatedStudy:
    seconds = [1.0 + (number * 7 % paces) / 3 for number in range(len(curves))]
    return SmallStudy(make_table(curves, seconds=seconds, mode=mode), policy, slots=slots).run()


@given(TABLES, st.integers(1, 4), st.integers(1, 5), st.integers(2, 4))
@example(
    curves=[[loss] * 9 for loss in (0.0, math.nan, 0.0, math.nan, math.nan, 3.0, 2.0)],
    slots=1,
    paces=1,
    eta=3,
)
def test_asha_stop_stops_like_a_percentile_of_the_earlier_scores(
    curves: list[list[float]], slots: int, paces: int, eta: int
) -> None:
    played = play(curves, AshaStop(eta=eta), slots, paces, "min")
    epochs = len(curves[0])
    scores: dict[int, list[float]] = {
        level: [] for level in compute_milestones(1, eta, epochs)[:-1]
    }
    for trial, epoch, loss, stopped in iterate_reports(played):
        expected: list[set[int]] = [set()]
        if epoch in scores:
            earlier = scores[epoch]
            cutoff = between(sorted(earlier), (len(earlier) - 1) / eta) if earlier else math.inf
            if math.isclose(loss, cutoff, rel_tol=1e-12) and loss < math.inf:
                expected = [set(), {trial}]  # the interpolation's rounding decides
            elif loss > cutoff:
                expected = [{trial}]
            earlier.append(loss)
        assert stopped in expected


@given(TABLES, st.integers(1, 4), st.integers(1, 5))
def test_median_stops_trials_worse_than_the_median_of_the_others_means(
    curves: list[list[float]], slots: int, paces: int
) -> None:
    played = play(curves, Median(grace=1, least=2), slots, paces, "min")
    means: dict[int, list[float]] = {}
    seen: dict[int, list[float]] = {}
    for trial, epoch, loss, stopped in iterate_reports(played):
        own = seen.setdefault(trial, [])
        own.append(loss)
        numbers = [each for each in own if each < math.inf]
        others = means.setdefault(epoch, [])
        middle = median(others) if others else math.inf
        late = epoch > 1 and len(others) >= 2 and epoch < len(curves[0])
        assert stopped == ({trial} if late and min(own) > middle else set())
        others.append(sum(numbers) / len(numbers) if numbers else math.inf)


@given(TABLES, st.integers(1, 4), st.integers(1, 5), st.sampled_from(get_args(Mode)))
def test_bandit_keeps_trials_within_its_slack_of_the_best(
    curves: list[list[float]], slots: int, paces: int, mode: Mode
) -> None:
    played = play(curves, Bandit(boundary=2, slack=0.5), slots, paces, mode)
    best, firsts = math.inf, []
    bests: dict[int, float] = {}
    for trial, epoch, loss, stopped in iterate_reports(played):
        bests[trial] = min(bests.get(trial, math.inf), loss)
        best = min(best, loss)
        if epoch == 1:
            firsts.append(loss)
        start = median(firsts) if mode == "min" else 0.0
        behind = (start - bests[trial]) * 1.5 <= start - best and bests[trial] > best
        judged = epoch % 2 == 0 and epoch < len(curves[0]) and start < math.inf
        assert stopped == ({trial} if judged and best < math.inf and behind else set())


def test_bandit_compares_gains_when_a_reward_was_negative() -> None:
    rewards = [[-100.0, -50.0, -20.0, 10.0], [-100.0, -95.0, -90.0, -90.0]]
    played = SmallStudy(make_table(rewards, mode="max"), Bandit(boundary=2), slots=2).run()
    (stop,) = played.list_entries(Stop)
    assert stop.trial == 1
    assert "-95 by epoch 2 times 1.5 does not reach the best of all, -50 as gains over -100" in (
        stop.why
    )


class Naive:
    """A naive bracket: lists, sorted when they are complete."""

    def __init__(self, size: int, levels: list[int], eta: int) -> None:
        self.size, self.levels, self.eta = size, levels, eta
        self.members: list[int] = []
        self.at = 0
        self.scores: list[tuple[float, int, int]] = []
        self.expected: set[int] = set()

    def whole(self, closed: bool) -> bool:
        enough = closed or len(self.members) == self.size
        return enough and bool(self.scores) and not self.expected


@given(TABLES, st.integers(1, 4), st.integers(1, 5), st.booleans())
def test_brackets_promote_and_stop_like_a_naive_implementation(
    curves: list[list[float]], slots: int, paces: int, hyper: bool
) -> None:
    epochs = len(curves[0])
    played = play(curves, Hyperband() if hyper else Sha(), slots, paces, "min")
    most = count_halvings(1, 3, epochs)
    turns = list(range(most, -1, -1)) if hyper else [most]
    brackets: list[Naive] = []
    stopped: set[int] = set()
    promoted: dict[int, int] = {}
    launched: dict[int, int] = {}
    closed = False
    for step in played.steps:
        if isinstance(step.event, Reported):
            trial, epoch = launched[step.event.attempt], step.event.epoch
            (own,) = (each for each in brackets if trial in each.members)
            if epoch == own.levels[own.at]:
                own.expected.discard(trial)
                loss = played.state.trials[trial].losses[epoch - 1]
                own.scores.append((loss, len(own.scores), trial))
        for decision in step.decisions:
            if isinstance(decision, Open):
                if not brackets or len(brackets[-1].members) == brackets[-1].size:
                    s = turns[len(brackets) % len(turns)]
                    size = math.ceil((most + 1) / (s + 1) * 3**s) if hyper else 3**s
                    brackets.append(Naive(size, compute_bracket_rungs(epochs / 3**s, 3, epochs), 3))
                brackets[-1].members.append(decision.trial)
                brackets[-1].expected.add(decision.trial)
            elif isinstance(decision, Launch):
                launched[decision.attempt] = decision.trial
            elif isinstance(decision, Stop):
                stopped.add(decision.trial)
            elif isinstance(decision, Go):
                promoted[decision.trial] = decision.until
        closed = closed or len(played.state.trials) == sum(len(each.members) for each in brackets)
        for each in brackets:
            last = each.at + 1 == len(each.levels)
            if each.whole(closed and each is brackets[-1]) and not last:
                ranked = sorted(each.scores)
                quota = max(1, len(ranked) // 3)
                winners = {trial for loss, _, trial in ranked[:quota] if loss < math.inf}
                each.scores, each.expected, each.at = [], set(winners), each.at + 1
                for _, _, trial in ranked:
                    trial_now = played.state.trials[trial]
                    if trial in winners:
                        assert trial_now.epoch >= each.levels[each.at - 1]
                    else:
                        assert trial_now.status is not Status.FINISHED
    for each in brackets:
        for trial in each.expected:
            assert played.state.trials[trial].epoch >= each.levels[each.at]
    assert not stopped & {t.id for t in played.state.trials if t.status is Status.FINISHED}
    for trial, until in promoted.items():
        assert played.state.trials[trial].epoch == until


def test_a_bracket_waits_for_its_slowest_trial_and_a_free_slot_opens_the_next_bracket() -> None:
    # Nine epochs: brackets of nine, rungs at 1, 3 and 9.
    curves = [[float(number)] * 9 for number in range(18)]
    seconds = [5.0] + [1.0] * 17
    played = SmallStudy(make_table(curves, seconds=seconds), Sha(), slots=2).run()
    opened = [step.event.at for step in played.steps for d in step.decisions if type(d) is Open]
    # While trial 0 takes five seconds the other slot trains 1 to 5; no trial is promoted before.
    assert opened[:10] == [0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 5.0, 6.0, 6.0]
    waits = [pause.why for pause in played.list_entries(Pause)]
    assert "others of its bracket are still on their way to epoch 1" in waits
    first = next(go for go in played.list_entries(Go))
    assert first.why == "it is among the best 3 of all 9 at epoch 1"
    assert [t.id for t in played.state.trials if t.status is Status.FINISHED] == [0, 9]
    losers = {stop.trial for stop in played.list_entries(Stop)}
    assert losers == set(range(18)) - {0, 9}


def test_rungs_are_the_whole_epochs_nearest_to_the_papers() -> None:
    assert compute_bracket_rungs(40 / 27, 3, 40) == [1, 4, 13, 40]
    assert compute_bracket_rungs(81 / 81, 3, 81) == [1, 3, 9, 27, 81]
    assert compute_bracket_rungs(1.0, 3, 1) == [1]
    assert [count_halvings(1, 3, epochs) for epochs in (1, 2, 3, 8, 9, 81)] == [0, 0, 1, 1, 2, 4]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=80), st.sampled_from([0.5, 0.25, 1 / 3]))
def test_a_running_quantile_equals_numpys(numbers: list[int], share: float) -> None:
    quantile = RunningQuantile(share)
    for count, number in enumerate(numbers, 1):
        quantile.add(number)
        assert quantile.value == pytest.approx(np.quantile(numbers[:count], share))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Median(grace=-1),
        lambda: Median(least=0),
        lambda: Bandit(boundary=0),
        lambda: Bandit(slack=-0.1),
        lambda: AshaStop(eta=1),
        lambda: AshaStop(first=0),
        lambda: Sha(eta=1),
        lambda: Hyperband(eta=0),
    ],
)
def test_invalid_parameters_are_refused(make: object) -> None:
    with pytest.raises(SpecError, match="is invalid"):
        make()  # type: ignore[operator]
