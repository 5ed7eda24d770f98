"""The contract of engines: what every Engine must keep, as tests to inherit.

Knows the port and drives it by hand, one order at a time. Knows no clock: it waits for facts, and
an epoch may take a microsecond of virtual time or a second of a real one. Subclass
`EngineContract`, give `make`, and run pytest.
"""

from __future__ import annotations

from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING

from paceline.core import decisions as d
from paceline.core import events as e
from paceline.testing.engine_driver import FAR, FLAT, WHY, Advising, Hand, amend, halt, opened
from paceline.testing.simulations import Adding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from paceline.core.ports import Adviser, Engine, Workload
    from paceline.core.values import Config


class EngineContract:
    """What every Engine must satisfy. Subclass it, give `make`, run pytest."""

    # Returns an engine with two slots or more. Where training is real, it trains by calling
    # `begin` and `advance` of the workload and takes each epoch's seconds.
    make: Callable[[Workload, Adviser], Engine]
    # How long an epoch takes. An order must reach a running attempt within two of them.
    epoch_s = 0.02

    def left_over(self) -> Sequence[object]:
        """Return what still lives after `close`: processes, actors. Nothing, where none can."""
        return ()

    @contextmanager
    def driven(self, *configs: Config) -> Iterator[Hand]:
        """Yield an engine under control, with a trial open for each config; close it afterwards."""
        engine = self.make(Adding(self.epoch_s), Advising())
        try:
            hand = Hand(engine, self.epoch_s)
            hand.give(*(opened(trial, config) for trial, config in enumerate(configs)))
            yield hand
        finally:
            engine.close()

    def test_the_first_fact_is_the_slots_there_are(self) -> None:
        engine = self.make(Adding(self.epoch_s), Advising())
        first = next(iter(engine.wait() or ()), None)
        engine.close()
        assert isinstance(first, e.CapacityChanged), f"the first fact is {first}"
        assert len(first.slots) >= 2

    def test_every_launch_is_answered_by_exactly_one_ended(self) -> None:
        plain, short, bad = {"step": 1.0}, {"step": 1.0, "length": 2}, {"step": 1.0, "fails_in": 2}
        with self.driven(plain, short, bad, plain) as hand:
            for number, goal in enumerate((3, 9, 9, FAR)):
                hand.give(hand.launch(number, trial=number, goal=goal))
                hand.until_reported(number, 1)
                if goal == FAR:
                    hand.give(halt(number))
                hand.until_ended(number)
            hand.settle()
            ended = [(event.attempt, event.cause) for event in hand.of(e.Ended)]
        causes = (e.Cause.GOAL, e.Cause.FINISHED, e.Cause.FAILED, e.Cause.HALTED)
        assert ended == list(enumerate(causes)), f"four launches were answered by {ended}"

    def test_epochs_are_reported_in_order_without_a_gap(self) -> None:
        with self.driven({"step": 1.0}, {"step": 2.0}) as hand:
            hand.give(hand.launch(0, trial=0, goal=6), hand.launch(1, trial=1, goal=4))
            hand.until_ended(0)
            hand.until_ended(1)
            _told(hand.values(0), [(epoch, 1.0 * epoch) for epoch in range(1, 7)])
            _told(hand.values(1), [(epoch, 2.0 * epoch) for epoch in range(1, 5)])
            assert all(report.seconds >= 0.0 for report in hand.of(e.Reported))

    def test_the_checkpoint_at_the_goal_is_safe_before_the_attempt_ends(self) -> None:
        with self.driven({"step": 1.0}) as hand:
            hand.give(hand.launch(0, goal=3))
            hand.until_ended(0)
            about = hand.about(0)
        kinds = [type(event) for event in about]
        assert kinds[-1] is e.Ended
        safe = [event.epoch for event in about if isinstance(event, e.Saved)]
        assert safe, "it ended at its goal and saved nothing"
        assert safe[-1] == 3, f"its last checkpoint is of epoch {safe[-1]}, its goal was 3"
        assert kinds.index(e.Reported) < kinds.index(e.Saved), "it saved what it had not reported"

    def test_ended_is_an_attempts_last_word(self) -> None:
        with self.driven({"step": 1.0}) as hand:
            hand.give(hand.launch(0, goal=4), hand.launch(1, goal=FAR))
            hand.until_reported(1, 2)
            hand.give(halt(1))
            hand.until_ended(0)
            hand.until_ended(1)
            hand.settle()
            for attempt in (0, 1):
                last = hand.about(attempt)[-1]
                assert isinstance(last, e.Ended), f"after Ended came {last}"

    def test_a_training_function_that_returns_is_finished(self) -> None:
        with self.driven({"step": 1.0, "length": 3}) as hand:
            hand.give(hand.launch(0, goal=9))
            ended = hand.until_ended(0)
            _told(ended.cause, e.Cause.FINISHED)
            _told([epoch for epoch, _ in hand.values(0)], [1, 2, 3])

    def test_a_training_function_that_fails_says_why_and_harms_nobody(self) -> None:
        with self.driven({"step": 1.0, "fails_in": 2}, {"step": 1.0}) as hand:
            hand.give(hand.launch(0, goal=9), hand.launch(1, trial=1, goal=5))
            failed = hand.until_ended(0)
            _told(failed.cause, e.Cause.FAILED)
            assert failed.note, "the note is what the user needs to read: the error's last lines"
            _told([epoch for epoch, _ in hand.values(0)], [1])
            _told(hand.until_ended(1).cause, e.Cause.GOAL)

    def test_a_halted_attempt_ends_once_however_often_it_is_told(self) -> None:
        with self.driven({"step": 1.0}) as hand:
            hand.give(hand.launch(0, goal=FAR))
            hand.until_reported(0, 1)
            hand.give(halt(0))
            hand.give(halt(0))
            _told(hand.until_ended(0).cause, e.Cause.HALTED)
            hand.give(halt(0))
            hand.settle()
            _told(len(hand.of(e.Ended)), 1)

    def test_orders_to_nobody_are_ignored(self) -> None:
        with self.driven({"step": 1.0}) as hand:
            hand.give(halt(99), amend(99, version=1, goal=5))
            hand.give(hand.launch(0, goal=2))
            hand.until_ended(0)
            hand.give(halt(0), amend(0, version=1, goal=5, save_at=(1,)))
            hand.settle()
            _told(hand.about(99), [])
            assert isinstance(hand.about(0)[-1], e.Ended), "an order woke the dead"

    def test_a_step_applied_twice_does_nothing_more(self) -> None:
        told = []
        for twice in (False, True):
            with self.driven({"step": 1.0}) as hand:
                hand.twice = twice
                hand.give(hand.launch(0, goal=3, save_at=(1,)), hand.launch(1, goal=FAR))
                hand.until_ended(0)
                hand.give(halt(1), d.AskProposal(number=0, why=WHY))
                hand.until_ended(1)
                hand.until(lambda: bool(hand.of(e.Proposed)), "an answer")
                if twice:
                    hand.repeat()
                hand.settle()
                # In any order: a checkpoint may be on its way while the next epoch is told.
                facts = sorted(map(repr, hand.shape(0, (1, 3))))
                told.append([facts, len(hand.of(e.Ended)), len(hand.of(e.Proposed))])
        _told(told[1], told[0])

    def test_a_raised_goal_lets_a_running_attempt_go_on(self) -> None:
        with self.driven({"step": 1.0}) as hand:
            hand.give(hand.launch(0, goal=4))
            hand.until_reported(0, 1)
            hand.give(amend(0, version=1, goal=7))
            _told(hand.until_ended(0).cause, e.Cause.GOAL)
            _told([epoch for epoch, _ in hand.values(0)], [1, 2, 3, 4, 5, 6, 7])

    def test_a_goal_taken_back_ends_it_at_the_next_boundary_with_a_checkpoint(self) -> None:
        with self.driven({"step": 1.0}) as hand:
            hand.give(hand.launch(0, goal=FAR))
            hand.until_reported(0, 2)
            hand.give(amend(0, version=1, goal=2))
            _told(hand.until_ended(0).cause, e.Cause.GOAL)
            last = hand.values(0)[-1][0]
            saved = [event.epoch for event in hand.of(e.Saved)]
            assert saved, "it ended without a checkpoint"
            assert saved[-1] == last, f"it ended at epoch {last} with a checkpoint of {saved[-1]}"

    def test_an_older_amend_is_ignored(self) -> None:
        with self.driven({"step": 1.0}) as hand:
            hand.give(hand.launch(0, goal=8))
            hand.until_reported(0, 1)
            hand.give(amend(0, version=2, goal=5))
            hand.give(amend(0, version=1, goal=9))
            hand.until_ended(0)
            assert hand.values(0)[-1][0] == 5, "an older order was followed"

    def test_a_checkpoint_is_continued_with_its_epoch_and_its_values(self) -> None:
        other = {"step": {"piecewise": [[0, 1.0], [3, 10.0]]}}
        with self.driven({"step": 1.0}, other) as hand:
            hand.give(hand.launch(0, goal=3))
            hand.until_ended(0)
            hand.give(hand.launch(1, start=3, source=0, goal=5))
            hand.give(hand.launch(2, trial=1, start=3, source=0, goal=5))
            hand.until_ended(1)
            hand.until_ended(2)
            _told(hand.values(1), [(4, 4.0), (5, 5.0)])
            # From the same checkpoint on the other trial's path.
            _told(hand.values(2), [(4, 13.0), (5, 23.0)])

    def test_a_schedule_is_followed_and_so_is_an_amended_path(self) -> None:
        early = {"step": {"piecewise": [[0, 1.0], [2, 5.0]]}}
        late = {"step": {"piecewise": [[0, 1.0], [4, 10.0]]}}
        with self.driven(early, {"step": 1.0}, late) as hand:
            hand.give(hand.launch(0, goal=3), hand.launch(1, trial=1, goal=6))
            hand.until_reported(1, 1)
            hand.give(amend(1, version=1, trial=2, goal=6))
            hand.until_ended(0)
            hand.until_ended(1)
            _told([value for _, value in hand.values(0)], [1.0, 2.0, 7.0])
            _told([value for _, value in hand.values(1)], [1.0, 2.0, 3.0, 4.0, 14.0, 24.0])

    def test_a_save_that_is_asked_for_is_saved_or_missed(self) -> None:
        with self.driven({"step": 1.0}) as hand:
            hand.give(hand.launch(0, goal=9, save_at=(2, 4)))
            hand.until_reported(0, 5)
            hand.give(amend(0, version=1, goal=9, save_at=(1, 8)))
            hand.until_ended(0)
            saved = {event.epoch for event in hand.of(e.Saved)}
            missed = {event.epoch for event in hand.of(e.Missed)}
        assert saved >= {2, 4, 8, 9}, f"checkpoints of {sorted(saved)} are safe"
        assert 1 in saved | missed, "a save that came too late was not answered"

    def test_times_never_run_backwards(self) -> None:
        with self.driven({"step": 1.0}, {"step": 2.0, "fails_in": 4}) as hand:
            hand.give(hand.launch(0, goal=6, save_at=(2,)), hand.launch(1, trial=1, goal=9))
            for _ in range(4):
                hand.settle()
            hand.until_ended(0)
            hand.until_ended(1)
            times = [event.at for event in hand.told]
            assert all(sooner <= later for sooner, later in pairwise(times)), times
            assert all(sooner <= later for sooner, later in pairwise(hand.clock)), hand.clock

    def test_a_wake_comes_at_the_time_that_was_asked_for(self) -> None:
        with self.driven({"step": 1.0}) as hand:
            now = hand.engine.now
            late, soon = now + 3 * self.epoch_s, now + self.epoch_s
            hand.give(d.WakeAt(at=late, trial=0, why=WHY), d.WakeAt(at=soon, why=WHY))
            hand.until(lambda: len(hand.of(e.Woke)) == 2, "two wakes")
            _told(hand.of(e.Woke), [e.Woke(at=soon), e.Woke(at=late, trial=0)])
            hand.give(d.WakeAt(at=now, why=WHY))
            hand.until(lambda: len(hand.of(e.Woke)) == 3, "a wake whose time had already come")
            _told(hand.of(e.Woke)[-1], e.Woke(at=now))

    def test_what_is_asked_is_answered_by_its_key(self) -> None:
        with self.driven({"step": 1.0}) as hand:
            for epoch in (1, 2):
                ask = d.AskForecast(trial=0, epoch=epoch, horizons=(5, 9), why=WHY)
                hand.give(ask, d.AskProposal(number=epoch - 1, why=WHY))
            hand.until(lambda: len(hand.of(e.Forecasted)) == 2, "two forecasts")
            hand.until(lambda: len(hand.of(e.Proposed)) == 2, "two proposals")
            forecasts = {(event.trial, event.epoch): event for event in hand.of(e.Forecasted)}
            proposals = {event.number: event.config for event in hand.of(e.Proposed)}
        _told(sorted(forecasts), [(0, 1), (0, 2)])
        _told(forecasts[0, 1].forecast, FLAT)
        _told(forecasts[0, 2].forecast, None)
        assert forecasts[0, 2].note, "where there is no answer, the note says why"
        _told(proposals, {0: {"step": 3.0}, 1: None})

    def test_a_request_for_slots_is_answered(self) -> None:
        with self.driven() as hand:
            hand.give(d.Provide(slots=1, why=WHY))
            hand.until(lambda: len(hand.of(e.CapacityChanged)) == 2, "the slots there are now")
            before, after = hand.of(e.CapacityChanged)
            assert set(after.slots) >= set(before.slots)

    def test_after_close_nothing_is_told_and_nothing_is_left(self) -> None:
        with self.driven({"step": 1.0}, {"step": 2.0}) as hand:
            hand.give(hand.launch(0, goal=FAR), hand.launch(1, trial=1, goal=FAR))
            hand.until_reported(0, 2)
            hand.give(d.WakeAt(at=hand.engine.now + self.epoch_s, why=WHY))
            hand.engine.close()
            for _ in range(3):
                assert not hand.engine.wait(), "after close something was told"
        assert not self.left_over(), f"after close, {self.left_over()} still lives"


def _told(found: object, expected: object) -> None:
    assert found == expected, f"the engine told {found}, and should have told {expected}"
