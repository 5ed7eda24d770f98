"""The contracts of stores, as tests to inherit.

Knows only the port. Subclass `StoreContract`, or `DurableStoreContract` for a store that can be
opened again, set `make`, and run pytest.
"""

from __future__ import annotations

import os
from itertools import islice
from typing import TYPE_CHECKING

import pytest

from paceline.core.decisions import Credit, Go, Launch, Open, Step, Stop
from paceline.core.errors import (
    LogError,
    PacelineError,
    StoreError,
    StudyNotFound,
    StudyRunning,
)
from paceline.core.events import (
    CapacityChanged,
    Cause,
    ChangeSlots,
    Ended,
    Extended,
    Opened,
    Reported,
    Saved,
    StopStudy,
)
from paceline.core.values import Part, StudySpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from paceline.core.decisions import AnyDecision
    from paceline.core.events import AnyEvent, Command
    from paceline.core.ports import Store


def number_steps(
    moves: Iterable[tuple[AnyEvent, tuple[AnyDecision, ...]]], start: int = 0
) -> list[Step]:
    """Return events with their decisions as the steps of a log, from entry `start` on."""
    steps = []
    for event, decisions in moves:
        step = Step(start, event, decisions)
        steps.append(step)
        start = step.after
    return steps


def make_sample_log(name: str = "study", reports: int = 4) -> list[Step]:
    """Return a small log with values that are hard to store: odd text, number gaps, nesting."""
    spec = StudySpec(
        name=name,
        metric="Güte",
        mode="max",
        epochs=90,
        policy=Part("fifo"),
        generator=Part(
            "grid", {"space": {"lr": {"grid": [0.1, 1e-300]}, "名": {"grid": ["é'\"\n"]}}}
        ),
    )
    config = {"lr": {"piecewise": [[0, 0.1], [30, 0.01]]}, "名": "é'\"\n\0", "on": [True, None, -7]}
    opened = Open(why="the first", trial=0, config=config, until=90)
    launch = Launch(
        why="a slot is free",
        attempt=0,
        trial=0,
        start=0,
        source=None,
        goal=90,
        save_at=(3, 9),
        slots=(0, 1),
        width=2.0,
    )
    credit = Credit(why="epoch 1 is known from trial 0", trial=1, epoch=1)
    moves: list[tuple[AnyEvent, tuple[AnyDecision, ...]]] = [
        (Opened(at=0.0, spec=spec, engine={"slots": 2}), ()),
        (CapacityChanged(at=0.0, slots=(0, 1)), (opened, launch)),
    ]
    for epoch in range(1, reports + 1):
        metrics = {"Güte": None if epoch == 2 else 1 / (3 + epoch), "steps": 1e15}
        event = Reported(at=1.1 * epoch, attempt=0, epoch=epoch, metrics=metrics, seconds=1.1)
        # Steps of one, two and three entries, so that entry numbers are not step numbers.
        moves.append((event, (credit, Go(why="it leads", trial=1, until=epoch))[: epoch % 3]))
    moves.append((Saved(at=99.0, attempt=0, epoch=reports, bytes=2**40), ()))
    ended = Ended(at=100.0, attempt=0, cause=Cause.FAILED, note="Traceback …\n\tKeyError: 'ß'")
    moves.append((ended, (Stop(why="it failed", trial=0),)))
    return number_steps(moves)


class StoreContract:
    """The contract of every Store. Subclass it, set `make`, run pytest."""

    def make(self, tmp_path: Path) -> Store:
        """Return a new, empty store, which may keep files in `tmp_path`."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        """A new store, closed after the test."""
        store = self.make(tmp_path)
        yield store
        store.close()

    def test_read_gives_what_append_took_in_order(self, store: Store) -> None:
        log = make_sample_log()
        store.append("study", log)
        assert list(store.read("study")) == log

    def test_many_small_appends_equal_one_large_append(self, store: Store) -> None:
        log = make_sample_log()
        for step in log:
            store.append("study", [step])
        assert list(store.read("study")) == log

    def test_a_long_log_is_read_completely(self, store: Store) -> None:
        log = make_sample_log(reports=5_000)
        store.append("study", log)
        assert list(store.read("study")) == log

    def test_a_reader_may_begin_after_any_entry(self, store: Store) -> None:
        log = make_sample_log()
        store.append("study", log)
        for after in range(-1, log[-1].after + 1):
            later = [step for step in log if step.number > after]
            assert list(store.read("study", after)) == later

    def test_a_reader_may_go_on_while_the_log_grows(self, store: Store) -> None:
        log = make_sample_log()
        store.append("study", log[:3])
        reader = store.read("study")
        seen = list(islice(reader, 2))
        store.append("study", log[3:])
        seen += reader
        assert seen == log[: len(seen)]
        assert len(seen) >= 3
        assert seen + list(store.read("study", seen[-1].number)) == log

    def test_appended_steps_cannot_be_changed(self, store: Store) -> None:
        config = {"lr": [0.1]}
        event = CapacityChanged(at=0.0, slots=(0,))
        step = Step(0, event, (Open(why="", trial=0, config=config, until=1),))
        store.append("study", [step])
        config["lr"].append(0.2)
        (read,) = store.read("study")
        assert read.decisions == (Open(why="", trial=0, config={"lr": [0.1]}, until=1),)

    def test_appending_nothing_creates_no_study(self, store: Store) -> None:
        store.append("study", [])
        assert list(store.studies()) == []

    def test_a_log_begins_with_entry_0(self, store: Store) -> None:
        with pytest.raises(LogError):
            store.append("study", make_sample_log()[1:])
        assert list(store.studies()) == []

    def test_a_gap_is_refused_and_the_log_goes_on(self, store: Store) -> None:
        log = make_sample_log()
        store.append("study", log[:2])
        with pytest.raises(LogError):
            store.append("study", log[3:])
        store.append("study", log[2:])
        assert list(store.read("study")) == log

    def test_an_overlap_is_refused_and_the_log_goes_on(self, store: Store) -> None:
        log = make_sample_log()
        store.append("study", log[:3])
        with pytest.raises(LogError):
            store.append("study", log[2:])
        store.append("study", log[3:])
        assert list(store.read("study")) == log

    @pytest.mark.parametrize("place", [0, 1, 2])
    def test_a_batch_with_a_gap_inside_writes_nothing(self, store: Store, place: int) -> None:
        log = make_sample_log()
        store.append("study", log[:2])
        batch = log[2:6]
        del batch[place]
        with pytest.raises(LogError):
            store.append("study", batch)
        assert list(store.read("study")) == log[:2]

    @pytest.mark.parametrize("value", [object(), "\ud800"], ids=["object", "half a character"])
    def test_a_batch_with_a_step_that_cannot_be_written_writes_nothing(
        self, store: Store, value: object
    ) -> None:
        log = make_sample_log()
        store.append("study", log[:2])
        number = log[2].after
        bad = Step(number, log[2].event, (Open(why="", trial=1, config={"a": value}, until=1),))
        with pytest.raises(PacelineError):
            store.append("study", [log[2], bad])
        assert list(store.read("study")) == log[:2]

    def test_a_step_that_could_not_be_read_again_is_refused(self, store: Store) -> None:
        log = make_sample_log()
        store.append("study", log)
        with pytest.raises(PacelineError):
            store.append("study", [Step(log[-1].after, CapacityChanged(at=float("inf"), slots=()))])
        assert list(store.read("study")) == log

    def test_a_writer_with_an_outdated_log_is_refused_and_nothing_is_lost(
        self, store: Store
    ) -> None:
        log = make_sample_log()
        store.append("study", log[:2])
        other = number_steps([(CapacityChanged(at=7.0, slots=()), ())] * 3, log[2].number)
        store.append("study", other)
        with pytest.raises(PacelineError):
            store.append("study", log[2:])
        assert list(store.read("study")) == [*log[:2], *other]

    def test_studies_are_listed_oldest_first(self, store: Store) -> None:
        names = ["m", "z", "a"]
        for name in names:
            store.append(name, make_sample_log(name)[:1])
        store.append("m", make_sample_log("m")[1:])
        assert list(store.studies()) == names

    def test_logs_of_two_studies_are_kept_apart(self, store: Store) -> None:
        ours, theirs = make_sample_log("ours"), make_sample_log("theirs", reports=9)
        for index in range(len(theirs)):
            store.append("ours", ours[index : index + 1])
            store.append("theirs", theirs[index : index + 1])
        assert list(store.read("ours")) == ours
        assert list(store.read("theirs")) == theirs

    @pytest.mark.parametrize(
        "name", ["a/b/../c", "Größe 名", "it's; --", " ", "x" * 3_000, "%s?:a"]
    )
    def test_any_text_is_a_valid_name(self, store: Store, name: str) -> None:
        log = make_sample_log(name)
        store.append(name, log)
        store.append("other", log)
        assert list(store.studies()) == [name, "other"]
        assert list(store.read(name)) == log

    def test_an_unknown_study_is_not_found(self, store: Store) -> None:
        store.append("study", make_sample_log())
        with pytest.raises(StudyNotFound, match="stady"):
            list(store.read("stady"))
        with pytest.raises(StudyNotFound, match="stady"):
            store.post("stady", StopStudy())

    def test_the_inbox_of_a_study_without_commands_is_empty(self, store: Store) -> None:
        assert list(store.inbox("not yet begun")) == []
        store.append("study", make_sample_log())
        assert list(store.inbox("study")) == []

    def test_commands_come_in_order_numbered_from_1(self, store: Store) -> None:
        store.append("study", make_sample_log())
        commands: list[Command] = [ChangeSlots(2), ChangeSlots(-1), StopStudy()]
        assert [store.post("study", command) for command in commands] == [1, 2, 3]
        posted = list(enumerate(commands, start=1))
        assert list(store.inbox("study")) == posted
        for after in range(4):
            assert list(store.inbox("study", after)) == posted[after:]

    def test_inboxes_of_two_studies_are_kept_apart(self, store: Store) -> None:
        for name in ("ours", "theirs"):
            store.append(name, make_sample_log(name))
        assert store.post("ours", ChangeSlots(1)) == 1
        assert store.post("theirs", StopStudy()) == 1
        assert list(store.inbox("ours")) == [(1, ChangeSlots(1))]
        assert list(store.inbox("theirs")) == [(1, StopStudy())]

    def test_a_command_leaves_the_log_alone(self, store: Store) -> None:
        log = make_sample_log()
        store.append("study", log[:2])
        store.post("study", StopStudy())
        store.append("study", log[2:])
        assert list(store.read("study")) == log

    def test_steps_of_one_kind_are_found_without_the_others(self, store: Store) -> None:
        log = make_sample_log()
        spec = log[0].event.spec if isinstance(log[0].event, Opened) else None
        assert spec is not None
        extended = Extended(at=101.0, spec=spec, to='a text with "event":{"type":"saved"')
        log += number_steps(
            [(extended, ()), (CapacityChanged(at=102.0, slots=()), ())], log[-1].after
        )
        store.append("study", log)
        store.append("other", make_sample_log())
        assert list(store.find_steps("study", "extended")) == log[-2:-1]
        assert [step.event.at for step in store.find_steps("study", "saved")] == [99.0]
        assert list(store.find_steps("other", "extended")) == []
        with pytest.raises(StudyNotFound, match="stady"):
            store.find_steps("stady", "extended")

    def test_a_deleted_study_is_gone_and_its_name_is_free(self, store: Store) -> None:
        log = make_sample_log()
        for name in ("ours", "theirs"):
            store.append(name, log)
            store.post(name, StopStudy())
        store.delete("ours")
        assert list(store.studies()) == ["theirs"]
        assert list(store.inbox("ours")) == []
        with pytest.raises(StudyNotFound):
            store.read("ours")
        assert list(store.read("theirs")) == log
        assert len(store.inbox("theirs")) == 1
        store.append("ours", log[:3])
        assert list(store.read("ours")) == log[:3]
        assert list(store.inbox("ours")) == []

    def test_an_unknown_study_cannot_be_deleted(self, store: Store) -> None:
        store.append("study", make_sample_log())
        with pytest.raises(StudyNotFound, match="stady"):
            store.delete("stady")
        assert list(store.studies()) == ["study"]

    def test_a_study_without_a_writer_has_no_holder(self, store: Store) -> None:
        assert store.holder("study") is None

    def test_closing_twice_does_no_harm(self, store: Store) -> None:
        store.append("study", make_sample_log())
        store.close()
        store.close()


class DurableStoreContract(StoreContract):
    """The contract of a Store that outlives its object and may be opened more than once."""

    def reopen(self, tmp_path: Path) -> Store:
        """Open the store of `make` once more; the others may still be open."""
        raise NotImplementedError

    @pytest.fixture
    def second(self, store: Store, tmp_path: Path) -> Iterator[Store]:
        """A second store object for the same data as `store`."""
        second = self.reopen(tmp_path)
        yield second
        second.close()

    def test_opening_again_gives_the_same(self, store: Store, tmp_path: Path) -> None:
        log = make_sample_log()
        for name in ("b", "a"):
            store.append(name, log)
        store.post("a", ChangeSlots(3))
        store.close()
        again = self.reopen(tmp_path)
        assert list(again.studies()) == ["b", "a"]
        assert list(again.read("a")) == log
        assert list(again.inbox("a")) == [(1, ChangeSlots(3))]
        again.close()

    @pytest.mark.parametrize("cut", [1, 2, 5])
    def test_a_log_goes_on_where_it_ended(self, store: Store, tmp_path: Path, cut: int) -> None:
        log = make_sample_log()
        store.append("study", log[:cut])
        store.close()
        again = self.reopen(tmp_path)
        for wrong in (log[cut - 1 :], log[cut + 1 :]):
            with pytest.raises(LogError):
                again.append("study", wrong)
        again.append("study", log[cut:])
        assert list(again.read("study")) == log
        again.close()

    def test_a_reader_sees_what_append_took(self, store: Store, second: Store) -> None:
        log = make_sample_log()
        for count, step in enumerate(log, start=1):
            store.append("study", [step])
            assert list(second.read("study")) == log[:count]
        assert list(second.studies()) == ["study"]

    def test_a_second_writer_is_refused_while_the_first_is_open(
        self, store: Store, second: Store
    ) -> None:
        log = make_sample_log()
        store.append("study", log[:2])
        with pytest.raises(StoreError, match="study"):
            second.append("study", log[2:])
        store.append("study", log[2:])
        assert list(second.read("study")) == log

    def test_the_second_writer_goes_on_when_the_first_has_closed(
        self, store: Store, second: Store
    ) -> None:
        log = make_sample_log()
        store.append("study", log[:2])
        with pytest.raises(StoreError):
            second.append("study", log[2:])
        store.append("study", log[2:4])
        store.close()
        with pytest.raises(LogError):
            second.append("study", log[2:])
        second.append("study", log[4:])
        assert list(second.read("study")) == log

    def test_every_store_can_name_the_holder_of_a_study(self, store: Store, second: Store) -> None:
        log = make_sample_log()
        store.append("study", log[:2])
        for asked in (second, store):
            holder = asked.holder("study")
            assert holder is not None
            assert str(os.getpid()) in holder
            assert asked.holder("other") is None
        store.append("study", log[2:])
        store.close()
        assert second.holder("study") is None

    def test_asking_for_the_holder_does_not_claim_the_study(
        self, store: Store, second: Store
    ) -> None:
        log = make_sample_log()
        store.append("study", log[:2])
        store.close()
        assert second.holder("study") is None
        assert second.holder("study") is None
        second.append("study", log[2:])
        assert list(second.read("study")) == log

    def test_a_study_that_is_being_written_cannot_be_deleted(
        self, store: Store, second: Store
    ) -> None:
        log = make_sample_log()
        store.append("study", log[:2])
        with pytest.raises(StudyRunning):
            second.delete("study")
        store.append("study", log[2:])
        store.close()
        second.delete("study")
        assert list(second.studies()) == []

    def test_two_writers_may_write_two_studies(self, store: Store, second: Store) -> None:
        ours, theirs = make_sample_log("ours"), make_sample_log("theirs")
        for mine, yours in zip(ours, theirs, strict=True):
            store.append("ours", [mine])
            second.append("theirs", [yours])
        assert list(second.read("ours")) == ours
        assert list(store.read("theirs")) == theirs

    def test_any_store_may_post_to_a_study_that_is_being_written(
        self, store: Store, second: Store
    ) -> None:
        log = make_sample_log()
        store.append("study", log[:2])
        assert second.post("study", ChangeSlots(1)) == 1
        assert store.post("study", ChangeSlots(2)) == 2
        assert second.post("study", StopStudy()) == 3
        assert [number for number, _ in store.inbox("study")] == [1, 2, 3]
        store.append("study", log[2:])
