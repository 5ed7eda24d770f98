"""Stopping rules and synchronous halving, against naive re-implementations on random tables."""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING, get_args

import numpy as np
import pytest
from build import Played, table
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.decisions import Go, Launch, Open, Pause, Stop
from paceline.core.errors import SpecError
from paceline.core.events import Reported
from paceline.core.values import Mode, Status
from paceline.policies.asha_stop import AshaStop
from paceline.policies.bandit import Bandit
from paceline.policies.median import Median
from paceline.policies.quantiles import Quantile
from paceline.policies.rungs import halvings, milestones
from paceline.policies.successive_halving import Hyperband, Sha, rungs_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paceline.core.ports import Policy
    from paceline.testing.simulations import Rehearsal

# Few values, so that ties are common; and runs that were no number in between.
VALUES = st.one_of(
    st.integers(0, 5).map(float), st.floats(0.0, 5.0, allow_nan=False), st.just(math.nan)
)
TABLES = st.integers(2, 12).flatmap(
    lambda epochs: st.lists(
        st.lists(VALUES, min_size=epochs, max_size=epochs), min_size=1, max_size=30
    )
)


def told(played: Rehearsal) -> Iterator[tuple[int, int, float, set[int]]]:
    """Yield trial, epoch, loss and who was stopped by it, report by report."""
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
    """Return what lies at a place between two sorted numbers; numpy has no answer at infinity."""
    low, high = numbers[math.floor(place)], numbers[math.ceil(place)]
    return low if low == high else low + (place % 1.0) * (high - low)


def play(
    curves: list[list[float]], policy: Policy, slots: int, paces: int, mode: Mode
) -> Rehearsal:
    seconds = [1.0 + (number * 7 % paces) / 3 for number in range(len(curves))]
    return Played(table(curves, seconds=seconds, mode=mode), policy, slots=slots).run()


@given(TABLES, st.integers(1, 4), st.integers(1, 5), st.integers(2, 4))
def test_asha_stop_stops_whom_a_percentile_of_the_earlier_scores_stops(
    curves: list[list[float]], slots: int, paces: int, eta: int
) -> None:
    played = play(curves, AshaStop(eta=eta), slots, paces, "min")
    epochs = len(curves[0])
    scores: dict[int, list[float]] = {level: [] for level in milestones(1, eta, epochs)[:-1]}
    for trial, epoch, loss, stopped in told(played):
        expected = set()
        if epoch in scores:
            earlier = scores[epoch]
            if earlier and loss > between(sorted(earlier), (len(earlier) - 1) / eta):
                expected = {trial}
            earlier.append(loss)
        assert stopped == expected


@given(TABLES, st.integers(1, 4), st.integers(1, 5))
def test_median_stops_who_is_worse_than_the_median_of_the_others_means(
    curves: list[list[float]], slots: int, paces: int
) -> None:
    played = play(curves, Median(grace=1, least=2), slots, paces, "min")
    means: dict[int, list[float]] = {}
    seen: dict[int, list[float]] = {}
    for trial, epoch, loss, stopped in told(played):
        own = seen.setdefault(trial, [])
        own.append(loss)
        numbers = [each for each in own if each < math.inf]
        others = means.setdefault(epoch, [])
        middle = median(others) if others else math.inf
        late = epoch > 1 and len(others) >= 2 and epoch < len(curves[0])
        assert stopped == ({trial} if late and min(own) > middle else set())
        others.append(sum(numbers) / len(numbers) if numbers else math.inf)


@given(TABLES, st.integers(1, 4), st.integers(1, 5), st.sampled_from(get_args(Mode)))
def test_bandit_keeps_who_comes_within_its_slack_of_the_best(
    curves: list[list[float]], slots: int, paces: int, mode: Mode
) -> None:
    played = play(curves, Bandit(boundary=2, slack=0.5), slots, paces, mode)
    best, firsts = math.inf, []
    bests: dict[int, float] = {}
    for trial, epoch, loss, stopped in told(played):
        bests[trial] = min(bests.get(trial, math.inf), loss)
        best = min(best, loss)
        if epoch == 1:
            firsts.append(loss)
        start = median(firsts) if mode == "min" else 0.0
        behind = (start - bests[trial]) * 1.5 <= start - best and bests[trial] > best
        judged = epoch % 2 == 0 and epoch < len(curves[0]) and start < math.inf
        assert stopped == ({trial} if judged and best < math.inf and behind else set())


def test_bandit_takes_gains_where_a_reward_was_negative() -> None:
    rewards = [[-100.0, -50.0, -20.0, 10.0], [-100.0, -95.0, -90.0, -90.0]]
    played = Played(table(rewards, mode="max"), Bandit(boundary=2), slots=2).run()
    (stop,) = played.of(Stop)
    assert stop.trial == 1
    assert "-95 by epoch 2 times 1.5 does not reach the best of all, -50 as gains over -100" in (
        stop.why
    )


class Naive:
    """A bracket by the book: lists, sorted when they are whole."""

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
def test_brackets_promote_and_stop_as_by_the_book(
    curves: list[list[float]], slots: int, paces: int, hyper: bool
) -> None:
    epochs = len(curves[0])
    played = play(curves, Hyperband() if hyper else Sha(), slots, paces, "min")
    most = halvings(1, 3, epochs)
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
                    brackets.append(Naive(size, rungs_of(epochs / 3**s, 3, epochs), 3))
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


def test_a_bracket_waits_for_its_slowest_and_a_free_slot_opens_the_next() -> None:
    # Nine epochs: brackets of nine, rungs at 1, 3 and 9.
    curves = [[float(number)] * 9 for number in range(18)]
    seconds = [5.0] + [1.0] * 17
    played = Played(table(curves, seconds=seconds), Sha(), slots=2).run()
    opened = [step.event.at for step in played.steps for d in step.decisions if type(d) is Open]
    # While trial 0 takes five seconds the other slot trains 1 to 5; nobody goes on before.
    assert opened[:10] == [0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 5.0, 6.0, 6.0]
    waits = [pause.why for pause in played.of(Pause)]
    assert "others of its bracket are still on their way to epoch 1" in waits
    first = next(go for go in played.of(Go))
    assert first.why == "it is among the best 3 of all 9 at epoch 1"
    assert [t.id for t in played.state.trials if t.status is Status.FINISHED] == [0, 9]
    losers = {stop.trial for stop in played.of(Stop)}
    assert losers == set(range(18)) - {0, 9}


def test_rungs_are_the_whole_epochs_nearest_to_the_paper_s() -> None:
    assert rungs_of(40 / 27, 3, 40) == [1, 4, 13, 40]
    assert rungs_of(81 / 81, 3, 81) == [1, 3, 9, 27, 81]
    assert rungs_of(1.0, 3, 1) == [1]
    assert [halvings(1, 3, epochs) for epochs in (1, 2, 3, 8, 9, 81)] == [0, 0, 1, 1, 2, 4]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=80), st.sampled_from([0.5, 0.25, 1 / 3]))
def test_a_growing_quantile_is_numpy_s(numbers: list[int], share: float) -> None:
    quantile = Quantile(share)
    for count, number in enumerate(numbers, 1):
        quantile.add(number)
        assert quantile.value == pytest.approx(np.quantile(numbers[:count], share))


@pytest.mark.parametrize(
    "made",
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
def test_what_cannot_be_meant_is_refused(made: object) -> None:
    with pytest.raises(SpecError, match="cannot be meant"):
        made()  # type: ignore[operator]
