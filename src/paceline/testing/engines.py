"""The contract of engines, as tests to inherit.

Knows the port and drives the engine step by step. Uses no clock: it waits for events, and an epoch
may take a microsecond of virtual time or a second of real time. Subclass `EngineContract`, set
`make`, and run pytest.
"""

from __future__ import annotations

from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING

from paceline.core import decisions as d
from paceline.core import events as e
from paceline.testing.engine_driver import (
    FAR,
    FLAT,
    WHY,
    EngineDriver,
    StubAdvisor,
    make_amend,
    make_halt,
    make_open,
)
from paceline.testing.simulations import AddingWorkload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from paceline.core.ports import Advisor, Engine, Workload
    from paceline.core.values import Config


class EngineContract:
    """The contract of every Engine. Subclass it, set `make`, run pytest."""

    # Returns an engine with two slots or more. Where training is real, it trains by calling
    # `begin` and `advance` of the workload and takes each epoch's seconds.
    make: Callable[[Workload, Advisor], Engine]
    # The duration of an epoch. An order must reach a running attempt within two epochs.
    epoch_s = 0.02

    def left_over(self) -> Sequence[object]:
        """Return processes or actors that are left after `close`; override it for real engines."""
        return ()

    @contextmanager
    def drive(self, *configs: Config) -> Iterator[EngineDriver]:
        """Yield a driven engine with an open trial for each config; close it afterwards."""
        engine = self.make(AddingWorkload(self.epoch_s), StubAdvisor())
        try:
            driver = EngineDriver(engine, self.epoch_s)
            driver.apply(*(make_open(trial, config) for trial, config in enumerate(configs)))
            yield driver
        finally:
            engine.close()

    def test_the_first_event_is_the_capacity(self) -> None:
        engine = self.make(AddingWorkload(self.epoch_s), StubAdvisor())
        first = next(iter(engine.wait() or ()), None)
        engine.close()
        assert isinstance(first, e.CapacityChanged), f"the first event is {first}"
        assert len(first.slots) >= 2

    def test_every_launch_is_answered_by_exactly_one_ended(self) -> None:
        plain, short, bad = {"step": 1.0}, {"step": 1.0, "length": 2}, {"step": 1.0, "fails_in": 2}
        with self.drive(plain, short, bad, plain) as driver:
            for number, goal in enumerate((3, 9, 9, FAR)):
                driver.apply(driver.make_launch(number, trial=number, goal=goal))
                driver.wait_for_report(number, 1)
                if goal == FAR:
                    driver.apply(make_halt(number))
                driver.wait_for_end(number)
            driver.settle()
            ended = [(event.attempt, event.cause) for event in driver.list_events(e.Ended)]
        causes = (e.Cause.GOAL, e.Cause.FINISHED, e.Cause.FAILED, e.Cause.HALTED)
        assert ended == list(enumerate(causes)), f"four launches were answered by {ended}"

    def test_epochs_are_reported_in_order_without_a_gap(self) -> None:
        with self.drive({"step": 1.0}, {"step": 2.0}) as driver:
            driver.apply(
                driver.make_launch(0, trial=0, goal=6), driver.make_launch(1, trial=1, goal=4)
            )
            driver.wait_for_end(0)
            driver.wait_for_end(1)
            _assert_equal(driver.list_reports(0), [(epoch, 1.0 * epoch) for epoch in range(1, 7)])
            _assert_equal(driver.list_reports(1), [(epoch, 2.0 * epoch) for epoch in range(1, 5)])
            assert all(report.seconds >= 0.0 for report in driver.list_events(e.Reported))

    def test_the_checkpoint_at_the_goal_is_safe_before_the_attempt_ends(self) -> None:
        with self.drive({"step": 1.0}) as driver:
            driver.apply(driver.make_launch(0, goal=3))
            driver.wait_for_end(0)
            about = driver.list_attempt_events(0)
        kinds = [type(event) for event in about]
        assert kinds[-1] is e.Ended
        safe = [event.epoch for event in about if isinstance(event, e.Saved)]
        assert safe, "it ended at its goal without a checkpoint"
        assert safe[-1] == 3, f"its last checkpoint is of epoch {safe[-1]}, its goal was 3"
        assert kinds.index(e.Reported) < kinds.index(e.Saved), (
            "it saved an epoch before reporting it"
        )

    def test_ended_is_an_attempts_last_event(self) -> None:
        with self.drive({"step": 1.0}) as driver:
            driver.apply(driver.make_launch(0, goal=4), driver.make_launch(1, goal=FAR))
            driver.wait_for_report(1, 2)
            driver.apply(make_halt(1))
            driver.wait_for_end(0)
            driver.wait_for_end(1)
            driver.settle()
            for attempt in (0, 1):
                last = driver.list_attempt_events(attempt)[-1]
                assert isinstance(last, e.Ended), f"after Ended came {last}"

    def test_a_training_function_that_returns_is_finished(self) -> None:
        with self.drive({"step": 1.0, "length": 3}) as driver:
            driver.apply(driver.make_launch(0, goal=9))
            ended = driver.wait_for_end(0)
            _assert_equal(ended.cause, e.Cause.FINISHED)
            _assert_equal([epoch for epoch, _ in driver.list_reports(0)], [1, 2, 3])

    def test_a_training_function_that_fails_carries_its_error_and_harms_no_other(self) -> None:
        with self.drive({"step": 1.0, "fails_in": 2}, {"step": 1.0}) as driver:
            driver.apply(driver.make_launch(0, goal=9), driver.make_launch(1, trial=1, goal=5))
            failed = driver.wait_for_end(0)
            _assert_equal(failed.cause, e.Cause.FAILED)
            assert failed.note, "the note must hold the last lines of the error"
            _assert_equal([epoch for epoch, _ in driver.list_reports(0)], [1])
            _assert_equal(driver.wait_for_end(1).cause, e.Cause.GOAL)

    def test_a_halted_attempt_ends_once_however_often_it_is_halted(self) -> None:
        with self.drive({"step": 1.0}) as driver:
            driver.apply(driver.make_launch(0, goal=FAR))
            driver.wait_for_report(0, 1)
            driver.apply(make_halt(0))
            driver.apply(make_halt(0))
            _assert_equal(driver.wait_for_end(0).cause, e.Cause.HALTED)
            driver.apply(make_halt(0))
            driver.settle()
            _assert_equal(len(driver.list_events(e.Ended)), 1)

    def test_orders_for_unknown_attempts_are_ignored(self) -> None:
        with self.drive({"step": 1.0}) as driver:
            driver.apply(make_halt(99), make_amend(99, version=1, goal=5))
            driver.apply(driver.make_launch(0, goal=2))
            driver.wait_for_end(0)
            driver.apply(make_halt(0), make_amend(0, version=1, goal=5, save_at=(1,)))
            driver.settle()
            _assert_equal(driver.list_attempt_events(99), [])
            assert isinstance(driver.list_attempt_events(0)[-1], e.Ended), (
                "an order restarted an ended attempt"
            )

    def test_a_step_applied_twice_takes_effect_once(self) -> None:
        results = []
        for twice in (False, True):
            with self.drive({"step": 1.0}) as driver:
                driver.applies_twice = twice
                driver.apply(
                    driver.make_launch(0, goal=3, save_at=(1,)), driver.make_launch(1, goal=FAR)
                )
                driver.wait_for_end(0)
                driver.apply(make_halt(1), d.AskProposal(number=0, why=WHY))
                driver.wait_for_end(1)
                driver.wait_for(lambda: bool(driver.list_events(e.Proposed)), "an answer")
                if twice:
                    driver.repeat_steps()
                driver.settle()
                # In any order: a checkpoint may be uploading while the next epoch is reported.
                facts = sorted(map(repr, driver.summarize(0, (1, 3))))
                results.append(
                    [facts, len(driver.list_events(e.Ended)), len(driver.list_events(e.Proposed))]
                )
        _assert_equal(results[1], results[0])

    def test_a_raised_goal_lets_a_running_attempt_go_on(self) -> None:
        with self.drive({"step": 1.0}) as driver:
            driver.apply(driver.make_launch(0, goal=4))
            driver.wait_for_report(0, 1)
            driver.apply(make_amend(0, version=1, goal=7))
            _assert_equal(driver.wait_for_end(0).cause, e.Cause.GOAL)
            _assert_equal([epoch for epoch, _ in driver.list_reports(0)], [1, 2, 3, 4, 5, 6, 7])

    def test_a_lowered_goal_ends_it_at_the_next_epoch_with_a_checkpoint(self) -> None:
        with self.drive({"step": 1.0}) as driver:
            driver.apply(driver.make_launch(0, goal=FAR))
            driver.wait_for_report(0, 2)
            driver.apply(make_amend(0, version=1, goal=2))
            _assert_equal(driver.wait_for_end(0).cause, e.Cause.GOAL)
            last = driver.list_reports(0)[-1][0]
            saved = [event.epoch for event in driver.list_events(e.Saved)]
            assert saved, "it ended without a checkpoint"
            assert saved[-1] == last, f"it ended at epoch {last} with a checkpoint of {saved[-1]}"

    def test_an_older_amend_is_ignored(self) -> None:
        with self.drive({"step": 1.0}) as driver:
            driver.apply(driver.make_launch(0, goal=8))
            driver.wait_for_report(0, 1)
            driver.apply(make_amend(0, version=2, goal=5))
            driver.apply(make_amend(0, version=1, goal=9))
            driver.wait_for_end(0)
            assert driver.list_reports(0)[-1][0] == 5, "an older order was followed"

    def test_a_checkpoint_is_continued_with_its_epoch_and_its_values(self) -> None:
        other = {"step": {"piecewise": [[0, 1.0], [3, 10.0]]}}
        with self.drive({"step": 1.0}, other) as driver:
            driver.apply(driver.make_launch(0, goal=3))
            driver.wait_for_end(0)
            driver.apply(driver.make_launch(1, start=3, source=0, goal=5))
            driver.apply(driver.make_launch(2, trial=1, start=3, source=0, goal=5))
            driver.wait_for_end(1)
            driver.wait_for_end(2)
            _assert_equal(driver.list_reports(1), [(4, 4.0), (5, 5.0)])
            # From the same checkpoint on the other trial's path.
            _assert_equal(driver.list_reports(2), [(4, 13.0), (5, 23.0)])

    def test_a_schedule_is_followed_and_so_is_an_amended_path(self) -> None:
        early = {"step": {"piecewise": [[0, 1.0], [2, 5.0]]}}
        late = {"step": {"piecewise": [[0, 1.0], [4, 10.0]]}}
        with self.drive(early, {"step": 1.0}, late) as driver:
            driver.apply(driver.make_launch(0, goal=3), driver.make_launch(1, trial=1, goal=6))
            driver.wait_for_report(1, 1)
            driver.apply(make_amend(1, version=1, trial=2, goal=6))
            driver.wait_for_end(0)
            driver.wait_for_end(1)
            _assert_equal([value for _, value in driver.list_reports(0)], [1.0, 2.0, 7.0])
            _assert_equal(
                [value for _, value in driver.list_reports(1)], [1.0, 2.0, 3.0, 4.0, 14.0, 24.0]
            )

    def test_a_requested_checkpoint_is_saved_or_missed(self) -> None:
        with self.drive({"step": 1.0}) as driver:
            driver.apply(driver.make_launch(0, goal=9, save_at=(2, 4)))
            driver.wait_for_report(0, 5)
            driver.apply(make_amend(0, version=1, goal=9, save_at=(1, 8)))
            driver.wait_for_end(0)
            saved = {event.epoch for event in driver.list_events(e.Saved)}
            missed = {event.epoch for event in driver.list_events(e.Missed)}
        assert saved >= {2, 4, 8, 9}, f"checkpoints exist only of epochs {sorted(saved)}"
        assert 1 in saved | missed, "a request that came too late was not answered"

    def test_time_never_runs_backwards(self) -> None:
        with self.drive({"step": 1.0}, {"step": 2.0, "fails_in": 4}) as driver:
            driver.apply(
                driver.make_launch(0, goal=6, save_at=(2,)), driver.make_launch(1, trial=1, goal=9)
            )
            for _ in range(4):
                driver.settle()
            driver.wait_for_end(0)
            driver.wait_for_end(1)
            times = [event.at for event in driver.events]
            assert all(sooner <= later for sooner, later in pairwise(times)), times
            assert all(sooner <= later for sooner, later in pairwise(driver.clock_readings)), (
                driver.clock_readings
            )

    def test_a_wake_comes_at_the_requested_time(self) -> None:
        with self.drive({"step": 1.0}) as driver:
            now = driver.engine.now
            late, soon = now + 3 * self.epoch_s, now + self.epoch_s
            driver.apply(d.WakeAt(at=late, trial=0, why=WHY), d.WakeAt(at=soon, why=WHY))
            driver.wait_for(lambda: len(driver.list_events(e.Woke)) == 2, "two wakes")
            _assert_equal(driver.list_events(e.Woke), [e.Woke(at=soon), e.Woke(at=late, trial=0)])
            driver.apply(d.WakeAt(at=now, why=WHY))
            driver.wait_for(
                lambda: len(driver.list_events(e.Woke)) == 3, "a wake whose time had already come"
            )
            _assert_equal(driver.list_events(e.Woke)[-1], e.Woke(at=now))

    def test_every_request_is_answered_by_its_key(self) -> None:
        with self.drive({"step": 1.0}) as driver:
            for epoch in (1, 2):
                ask = d.AskForecast(trial=0, epoch=epoch, horizons=(5, 9), why=WHY)
                driver.apply(ask, d.AskProposal(number=epoch - 1, why=WHY))
            driver.wait_for(lambda: len(driver.list_events(e.Forecasted)) == 2, "two forecasts")
            driver.wait_for(lambda: len(driver.list_events(e.Proposed)) == 2, "two proposals")
            forecasts = {
                (event.trial, event.epoch): event for event in driver.list_events(e.Forecasted)
            }
            proposals = {event.number: event.config for event in driver.list_events(e.Proposed)}
        _assert_equal(sorted(forecasts), [(0, 1), (0, 2)])
        _assert_equal(forecasts[0, 1].forecast, FLAT)
        _assert_equal(forecasts[0, 2].forecast, None)
        assert forecasts[0, 2].note, "without a forecast, the note must say why"
        _assert_equal(proposals, {0: {"step": 3.0}, 1: None})

    def test_a_request_for_slots_is_answered(self) -> None:
        with self.drive() as driver:
            driver.apply(d.Provide(slots=1, why=WHY))
            driver.wait_for(
                lambda: len(driver.list_events(e.CapacityChanged)) == 2, "the slots there are now"
            )
            before, after = driver.list_events(e.CapacityChanged)
            assert set(after.slots) >= set(before.slots)

    def test_close_ends_all_events_and_all_processes(self) -> None:
        with self.drive({"step": 1.0}, {"step": 2.0}) as driver:
            driver.apply(driver.make_launch(0, goal=FAR), driver.make_launch(1, trial=1, goal=FAR))
            driver.wait_for_report(0, 2)
            driver.apply(d.WakeAt(at=driver.engine.now + self.epoch_s, why=WHY))
            driver.engine.close()
            for _ in range(3):
                assert not driver.engine.wait(), "the engine sent events after close"
        assert not self.left_over(), f"after close, {self.left_over()} is still running"


def _assert_equal(found: object, expected: object) -> None:
    assert found == expected, f"the engine sent {found} instead of {expected}"
