"""Who gets how many slots: widths by work, moves that pay, speeds that are learned."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from paceline.allocation.fixed import Fixed
from paceline.allocation.fluid import Confidence, Fluid, FluidStatic, SlotSupply, share_slots
from paceline.allocation.leaders import Softmax, Top, Uniform
from paceline.core.decisions import EndCause, Launch, Resize
from paceline.core.events import Ended, Reported
from paceline.core.rng import stream
from paceline.core.speedup import SpeedUp, parse_speedup
from paceline.core.values import Budget
from paceline.engines.sim.cluster import Cluster
from paceline.generators.queued import Queued
from paceline.machine.scheduler import MARGIN, REST
from paceline.machine.timing import EpochTimes, prior_speed
from paceline.policies.asha import Asha
from paceline.policies.fifo import Fifo
from paceline.policies.hypersched import HyperSched
from paceline.policies.pop import Pop
from paceline.policies.successive_halving import Hyperband, Sha
from paceline.testing.simulations import (
    SimulatedStudy,
    TableWorkload,
    find_broken_invariants,
    make_falling_curves,
    make_parts,
    make_spec,
    make_table,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from paceline.core.ports import Allocator, Demand, Policy

V100 = "table:1=1,2=1.87,4=3.42,8=5.6"
WORKS = st.lists(st.floats(0.0, 1e6), min_size=1, max_size=40)
VESSELS = st.builds(
    lambda least, **rest: SlotSupply(
        least=least, **{**rest, "span": max(rest["span"], int(least))}
    ),
    least=st.sampled_from([1 / 4, 1 / 3, 1 / 2, 1.0, 2.0, 3.0]),
    slots=st.integers(1, 16),
    span=st.integers(1, 8),
    speed=st.sampled_from([lambda width: width, prior_speed]),
)


def linear(width: float) -> float:
    return width


def trained(
    budgets: Sequence[int],
    allocator: Allocator,
    cluster: Cluster,
    **spec: Any,  # noqa: ANN401 - fields of a study
) -> SimulatedStudy:
    """Return a study in which an outside tuner had one group trained."""
    trace = make_table([[1.0] * max(budgets)] * len(budgets))
    parts = make_parts(trace, allocator=allocator, generator=Queued(configs=[]))
    study = SimulatedStudy(
        make_spec(trace, standing=True, **spec), parts, TableWorkload(trace), cluster
    )
    return study.train([({"run": number}, until) for number, until in enumerate(budgets)])


def simulated(
    policy: Policy,
    allocator: Allocator,
    cluster: Cluster,
    **spec: Any,  # noqa: ANN401 - fields of a study
) -> SimulatedStudy:
    """Return a study of falling curves, played to its end."""
    trace = make_table(make_falling_curves(12, 27))
    parts = make_parts(trace, policy=policy, allocator=allocator)
    return SimulatedStudy(make_spec(trace, **spec), parts, TableWorkload(trace), cluster).run()


def moves(study: SimulatedStudy) -> list[tuple[float, Resize]]:
    """Return every Resize with its time."""
    return [
        (step.event.at, decision)
        for step in study.steps
        for decision in step.decisions
        if isinstance(decision, Resize)
    ]


# Water


def test_the_toy_of_fluids_slides_gets_the_widths_on_the_slide() -> None:
    assert share_slots([30, 1, 1, 8], SlotSupply(5, 0.5, 4, linear)) == [3.0, 0.5, 0.5, 1.0]


@pytest.mark.parametrize("allocator", [FluidStatic, Fluid])
def test_a_group_of_the_toys_budgets_starts_with_these_widths(
    allocator: Callable[[], Allocator],
) -> None:
    study = trained([30, 1, 1, 8], allocator(), Cluster(slots=5), pack=2, span=4)
    assert [launch.width for launch in study.launches[:4]] == [3.0, 0.5, 0.5, 1.0]
    assert {launch.why for launch in study.launches[:4]} == {"it has waited longest"}


@given(works=WORKS, vessel=VESSELS)
@settings(max_examples=500)
def test_widths_never_exceed_the_slots_and_never_split_one_wrongly(
    works: list[float], vessel: SlotSupply
) -> None:
    widths = share_slots(works, vessel)
    assert vessel.count_used(widths) <= vessel.slots
    for width in widths:
        assert width in {0.0, vessel.least} or (width == int(width) and 1 <= width <= vessel.span)


@given(works=WORKS, vessel=VESSELS)
@settings(max_examples=500)
def test_no_trial_waits_while_slots_are_free_and_the_longest_never_waits(
    works: list[float], vessel: SlotSupply
) -> None:
    widths = share_slots(works, vessel)
    if 0.0 in widths:
        assert vessel.count_used([*widths, vessel.least]) > vessel.slots
    longest = max(works)
    served = any(width for work, width in zip(works, widths, strict=True) if work == longest)
    assert served or vessel.least > vessel.slots


@given(works=st.lists(st.floats(1.0, 1e3), min_size=1, max_size=20), slots=st.integers(1, 20))
def test_leftover_slots_go_to_the_trial_that_would_end_last(works: list[float], slots: int) -> None:
    vessel = SlotSupply(slots, 1.0, slots, linear)
    widths = share_slots(works, vessel)
    if all(widths):
        assert vessel.count_used(widths) == slots
        end = max(work / width for work, width in zip(works, widths, strict=True))
        # All could end sooner only with more slots than there are.
        assert sum(math.floor(work / (end - 1e-9 * end)) + 1 for work in works) > slots


def bound(budgets: Sequence[int], slots: int, span: int) -> float:
    """Return the strip-packing bound: no less than all work on all slots, or the longest alone."""
    return max(sum(budgets) / slots, max(budgets) / min(span, slots))


def ratios(kind: str, low: float, high: float, count: int) -> list[float]:
    """Return how far above the bound random groups end, sorted."""
    found = []
    for number in range(count):
        rng = stream(7, kind, number)
        slots = 2 + int(rng.random() * 11)
        many = max(1, round(slots * (low + (high - low) * rng.random())))
        budgets = sorted((10 + int(rng.random() * 140) for _ in range(many)), reverse=True)
        span, pack = 1 + int(rng.random() * 8), 1 + int(rng.random() * 3)
        cluster = Cluster(slots=slots, speed=SpeedUp(interference=1.0))
        study = trained(budgets, Fluid(), cluster, span=span, pack=pack)
        found.append(study.state.now / bound(budgets, slots, span))
    return sorted(found)


@pytest.mark.slow
@pytest.mark.unmeasured
def test_fluid_is_near_the_bound_with_many_trials() -> None:
    found = ratios("many", 2.0, 4.0, 40)
    assert found[0] >= 1.0 - 1e-9
    assert found[math.ceil(0.95 * len(found)) - 1] <= 1.05


@pytest.mark.unmeasured
@pytest.mark.slow
def test_fluid_is_near_the_bound_with_few_trials() -> None:
    found = ratios("few", 0.3, 1.9, 40)
    assert found[0] >= 1.0 - 1e-9
    assert found[math.ceil(0.9 * len(found)) - 1] <= 1.15


# Leaders


@pytest.mark.parametrize(
    ("allocator", "left", "shares"),
    [
        (Uniform(), 5, [2, 2, 1]),
        (Uniform(), 12, [3, 3, 3]),
        (Top(), 5, [3, 2, 0]),
        (Top(), 2, [2, 0, 0]),
        (Softmax(), 5, [3, 2, 0]),
    ],
)
def test_leftover_slots_are_dealt_out_best_trial_first(
    allocator: Uniform, left: int, shares: list[int]
) -> None:
    assert allocator._share(left, [0.1, 0.2, 0.9], 3) == shares


@given(
    losses=st.lists(st.one_of(st.floats(-10, 10), st.just(math.inf)), min_size=1, max_size=12),
    left=st.integers(0, 40),
    cap=st.integers(0, 8),
)
def test_leaders_get_no_more_slots_than_there_are(losses: list[float], left: int, cap: int) -> None:
    for allocator in (Uniform(), Top(), Softmax()):
        shares = allocator._share(left, sorted(losses), cap)
        assert sum(shares) == min(left, cap * len(losses))
        assert all(0 <= share <= cap for share in shares)


def test_with_a_deadline_hypersched_starts_fewer_and_its_last_hold_every_slot() -> None:
    trace = make_table(make_falling_curves(120, 600))
    studies = []
    for policy, allocator in ((HyperSched(), Uniform()), (Asha(), Fixed())):
        parts = make_parts(trace, policy=policy, allocator=allocator)
        spec = make_spec(trace, span=8 if isinstance(allocator, Uniform) else 1)
        cluster = Cluster(slots=8, setup_s=0.1, speed=parse_speedup(V100))
        spec = replace(spec, budget=Budget(deadline_s=90.0))
        studies.append(SimulatedStudy(spec, parts, TableWorkload(trace), cluster).run())
    ours, plain = studies
    assert [launch.width for launch in ours.launches[:8]] == [1.0] * 8
    gone = {ended.attempt for ended in ours.list_entries(Ended) if ended.at < 90.0}
    last = [launch.width for launch in ours.launches if launch.attempt not in gone]
    assert sum(last) == 8.0
    assert max(last) > 2.0
    assert len(ours.state.trials) < len(plain.state.trials)
    assert ours.state.best_loss < plain.state.best_loss


def test_time_left_after_the_leaders_goes_to_waiting_trials() -> None:
    trace = make_table(make_falling_curves(40, 60))
    parts = make_parts(trace, policy=HyperSched(), allocator=Uniform())
    spec = replace(make_spec(trace, span=8), budget=Budget(deadline_s=90.0))
    cluster = Cluster(slots=8, speed=parse_speedup(V100))
    study = SimulatedStudy(spec, parts, TableWorkload(trace), cluster).run()
    assert study.state.end is not None
    assert study.state.end.cause is EndCause.DEADLINE
    assert sum(trial.epoch == 60 for trial in study.state.trials) > 1


# Moves


def test_a_move_is_made_only_if_it_pays() -> None:
    # The last two of three trials are alone on four slots; a move costs more than it gains.
    budgets = [40, 40, 4, 4]
    cheap = trained(budgets, Fluid(), Cluster(slots=4, setup_s=0.1), span=4)
    dear = trained(budgets, Fluid(), Cluster(slots=4, setup_s=30.0), span=4)
    assert moves(cheap)
    assert not moves(dear)
    assert cheap.state.now < dear.state.now


def test_a_trial_rests_at_a_width_for_ten_times_what_a_move_costs() -> None:
    study = trained(
        [90, 80, 70, 20, 15, 10], Fluid(), Cluster(slots=6, setup_s=0.5, save_s=0.2), span=6
    )
    launched = {launch.attempt: at for at, launch in _timed(study)}
    assert moves(study)
    for at, move in moves(study):
        assert at - launched[move.attempt] >= REST * 0.5 * 0.9


def test_every_move_says_what_it_gains_and_what_it_costs() -> None:
    study = trained([90, 80, 20, 10], Fluid(), Cluster(slots=4, setup_s=0.5), span=4)
    whys = [move.why for _, move in moves(study)]
    assert whys[0].startswith("width ")
    assert " times as fast, for the " in whys[0]
    assert whys[0].endswith("a move costs 0.5 s")
    assert MARGIN > 1


def test_wide_trials_make_room_for_a_new_group() -> None:
    trace = make_table([[1.0] * 60] * 6)
    parts = make_parts(trace, allocator=Fluid(), generator=Queued(configs=[]))
    study = SimulatedStudy(
        make_spec(trace, standing=True, span=4), parts, TableWorkload(trace), Cluster(slots=4)
    )
    first = [({"run": 0}, 60)]
    study.train(first, [({"run": number}, 60) for number in range(1, 4)])
    assert study.launches[0].width == 4.0
    assert not find_broken_invariants(study.steps, make_parts(trace, allocator=Fluid()))
    assert all(trial.epoch == 60 for trial in study.state.trials)


@pytest.mark.parametrize("allocator", [Fluid, FluidStatic, Uniform, Top, Softmax, Confidence])
@pytest.mark.parametrize("policy", [Fifo, Asha, HyperSched])
def test_no_trial_starves_and_no_width_flaps(
    policy: Callable[[], Policy], allocator: Callable[[], Allocator]
) -> None:
    cluster = Cluster(slots=5, setup_s=0.2, save_s=0.1, speed=parse_speedup("amdahl:0.9", 0.4))
    study = simulated(policy(), allocator(), cluster, pack=2, span=4)
    assert study.state.end is not None
    assert not [trial for trial in study.state.trials if trial.alive and trial.goal > trial.epoch]
    # At most a tenth of the time goes into moving, but for the last of each.
    cost = 0.3 * len(moves(study))
    assert cost <= 0.1 * study.state.slot_seconds + 0.3 * len(study.state.trials)


def test_with_equal_chances_confidence_is_fluid() -> None:
    cluster = Cluster(slots=5, setup_s=0.2, speed=parse_speedup(V100))
    steps = [
        trained([90, 40, 20, 10], allocator, cluster, pack=2, span=4).steps
        for allocator in (Fluid(), Confidence())
    ]
    assert steps[0] == steps[1]


def test_with_a_width_confidence_gives_every_trial_the_k_slots_of_pop() -> None:
    study = simulated(Pop(), Confidence(width=2), Cluster(slots=6), span=4)
    assert {launch.width for launch in study.launches} == {2.0}
    assert not moves(study)


def test_a_trial_that_is_about_to_save_anyway_is_not_moved_before() -> None:
    # Alone on two slots after epoch 4, with its goal at 6: it would be back at work at its goal.
    study = trained([6, 4], Fluid(), Cluster(slots=2, setup_s=1.0, save_s=0.5), span=2)
    assert not moves(study)


def test_more_slots_are_used_as_soon_as_they_are_there() -> None:
    cluster = Cluster(slots=2, capacity=((10.0, 6),))
    study = trained([60, 60], Fluid(), cluster, span=3)
    assert study.state.now == pytest.approx(10 + (60 - 10) / 3, abs=2.0)


def test_fewer_slots_cost_nothing_that_was_saved() -> None:
    cluster = Cluster(slots=4, capacity=((10.0, 1),), save_every_s=1.0)
    study = trained([30, 30], Fluid(), cluster, span=2)
    assert [trial.epoch for trial in study.state.trials] == [30, 30]
    assert study.state.repeats <= 4


# Speeds


def _measure(durations: Mapping[float, Sequence[float]]) -> EpochTimes:
    """Return what is learned of one trial that took these seconds at each width, in turn."""
    times = EpochTimes()
    attempt: Any = _Attempt()
    epoch = 0
    for number, (width, seconds) in enumerate(durations.items()):
        attempt.id, attempt.start = number, epoch
        for each in seconds:
            epoch += 1
            event = Reported(at=0.0, attempt=number, epoch=epoch, metrics={}, seconds=each)
            times.record_epoch(attempt, event, width)
    return times


class _Attempt:
    id = 0
    start = 0
    launched_at = 0.0

    class trial:
        id = 0


def test_before_anything_is_measured_speeds_are_the_stated_prior() -> None:
    times = EpochTimes()
    assert [round(times.speed(width), 2) for width in (0.5, 1.0, 2.0, 4.0, 8.0)] == [
        0.67,
        1.0,
        1.89,
        3.39,
        5.63,
    ]


def test_measured_speeds_outweigh_the_prior() -> None:
    times = _measure({1.0: [8.0] * 30, 2.0: [7.0] * 30, 4.0: [6.0] * 30})
    assert times.speed(2.0) == pytest.approx(8 / 7, rel=0.1)
    assert times.speed(4.0) == pytest.approx(8 / 6, rel=0.15)
    # What was never measured is as far off the prior as its nearest neighbour.
    assert times.speed(8.0) < 3.0
    assert times.epoch_s(0) == pytest.approx(8.0, rel=0.1)


@given(
    st.dictionaries(
        st.sampled_from([0.25, 0.5, 1.0, 2.0, 3.0, 8.0]),
        st.lists(st.floats(0.0, 1e9), min_size=1, max_size=4),
        min_size=1,
    )
)
def test_no_noise_makes_a_speed_negative_or_infinite(durations: dict[float, list[float]]) -> None:
    times = _measure(durations)
    for width in (0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 8.0):
        assert 1e-4 < times.speed(width) < 1e4
    assert 0 < times.epoch_s(0) < math.inf
    assert 0 < times.epoch_s(99) < math.inf


def test_packing_that_gains_nothing_is_given_up_once_it_is_measured() -> None:
    useless = Cluster(slots=3, speed=SpeedUp(interference=1.0))
    useful = Cluster(slots=3, speed=SpeedUp(interference=0.1))
    budgets = [30] * 24
    shares = [
        sum(launch.width < 1 for launch in trained(budgets, Fluid(), cluster, pack=2).launches)
        for cluster in (useless, useful)
    ]
    assert shares[0] <= 6
    assert shares[1] >= 20


# Packing, and known numbers of trials


def packed(
    policy: Policy,
    allocator: Allocator,
    start_s: float,
    interference: float = 0.1,
    **spec: Any,  # noqa: ANN401 - fields of a study
) -> SimulatedStudy:
    """Return a study of more trials than slots, with starts that cost something."""
    trace = make_table(make_falling_curves(60, 9))
    cluster = Cluster(slots=2, setup_s=start_s, speed=SpeedUp(interference=interference))
    parts = make_parts(trace, policy=policy, allocator=allocator)
    return SimulatedStudy(make_spec(trace, **spec), parts, TableWorkload(trace), cluster).run()


@pytest.mark.parametrize("start_s", [1.0, 20.0])
@pytest.mark.parametrize(
    "policy",
    [
        Fifo,
        Asha,
        HyperSched,
        lambda: Pop(boundary=4),
        lambda: Sha(size=27),
        lambda: Hyperband(eta=3),
    ],
)
def test_fluid_packs_by_its_prior_from_the_start_through_every_queue(
    policy: Callable[[], Policy], start_s: float
) -> None:
    plain, full = (packed(policy(), Fixed(), start_s, pack=pack) for pack in (1, 4))
    fluid = packed(policy(), Fluid(), start_s, pack=4)
    assert fluid.state.now <= 1.1 * min(plain.state.now, full.state.now)
    assert sum(launch.width < 1 for launch in fluid.launches[:8]) >= 4


def test_trials_that_harm_each_other_on_a_slot_leave_it_once_that_is_measured() -> None:
    alone, shared = (packed(Fifo(), Fixed(), 1.0, 2.0, pack=pack) for pack in (1, 4))
    fluid = packed(Fifo(), Fluid(), 1.0, 2.0, pack=4)
    assert shared.state.now > 1.5 * alone.state.now
    assert fluid.state.now <= 1.15 * alone.state.now
    assert any("in total as one alone" in move.why for _, move in moves(fluid))


def test_until_sharing_is_measured_one_trial_is_alone_on_its_slot_for_an_epoch() -> None:
    study = packed(Fifo(), Fluid(), 1.0, pack=4)
    first = study.launches[0]
    joined = [at for at, launch in _timed(study) if launch.slots == first.slots][1]
    reports = [event for event in study.list_entries(Reported) if event.attempt == first.attempt]
    assert joined == reports[0].at
    assert 0.25 in study.state.epoch_times.list_measured()


@pytest.mark.parametrize("trials", [1, 3, 5, 7])
@pytest.mark.parametrize("allocator", [FluidStatic, Fluid])
def test_a_known_number_of_trials_shares_all_slots_from_the_start(
    allocator: Callable[[], Allocator], trials: int
) -> None:
    trace = make_table(make_falling_curves(trials, 9))
    parts = make_parts(trace, allocator=allocator())
    cluster = Cluster(slots=8, setup_s=0.5)
    study = SimulatedStudy(make_spec(trace, span=8), parts, TableWorkload(trace), cluster).run()
    first = [launch.width for launch in study.launches[:trials]]
    assert sum(first) == 8
    assert max(first) - min(first) <= 1


@pytest.mark.parametrize("allocator", [FluidStatic, Fluid])
def test_a_group_that_is_larger_than_the_slots_is_packed(
    allocator: Callable[[], Allocator],
) -> None:
    cluster = Cluster(slots=4, speed=SpeedUp(interference=0.1))
    study = trained([10] * 20, allocator(), cluster, pack=4)
    assert {launch.width for launch in study.launches[:16]} == {0.25}
    assert study.state.now < 10 * 20 / 4 / 1.5


def test_trials_that_share_spread_over_all_slots() -> None:
    study = trained([10] * 6, Fixed(), Cluster(slots=4), pack=4)
    assert [launch.slots for launch in study.launches] == [(0,), (1,), (2,), (3,), (0,), (1,)]


def test_paused_trials_that_the_policy_would_start_count_as_demand() -> None:
    # Of nine trials three are promoted together; each leaves room for the others.
    trace = make_table(make_falling_curves(9, 9))
    parts = make_parts(trace, policy=Sha(size=9), allocator=FluidStatic())
    cluster = Cluster(slots=9, setup_s=0.5)
    study = SimulatedStudy(make_spec(trace, span=9), parts, TableWorkload(trace), cluster).run()
    promoted = [launch.width for launch in study.launches if launch.start == 1]
    assert len(promoted) >= 2
    assert max(promoted) <= 4


def test_confidence_widens_promising_trials_while_trials_keep_coming() -> None:
    trace = make_table(make_falling_curves(400, 40))
    widths = {}
    for allocator in (Fluid(), Confidence()):
        parts = make_parts(trace, policy=Pop(boundary=2), allocator=allocator)
        spec = replace(make_spec(trace, span=4), budget=Budget(deadline_s=60.0))
        study = SimulatedStudy(spec, parts, TableWorkload(trace), Cluster(slots=8)).run()
        assert not study.state.closed
        widths[type(allocator)] = {launch.width for launch in study.launches}
    assert widths[Fluid] == {1.0}
    assert max(widths[Confidence]) > 1.0


def _timed(study: SimulatedStudy) -> list[tuple[float, Launch]]:
    return [
        (step.event.at, decision)
        for step in study.steps
        for decision in step.decisions
        if isinstance(decision, Launch)
    ]


class NoDemands:
    """Demands while all attempts are about to leave their slots, and a new trial would come."""

    asking = None
    coming = True
    expected = math.inf
    idle = 0

    def running(self) -> Iterator[Demand]:
        return iter(())

    ready = running

    def speed(self, width: float) -> float:
        return width

    def measured(self, width: float) -> bool:
        return False


@pytest.mark.parametrize(
    "allocator", [Fixed(), FluidStatic(), Fluid(), Confidence(), Uniform(), Top(), Softmax()]
)
def test_attempts_that_are_about_to_end_are_not_moved(allocator: Allocator) -> None:
    study = trained([1], Fixed(), Cluster(slots=1)).state
    assert allocator.place(NoDemands(), study) == {}
