"""The sentences about a study: one for each entry of its log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from extreme_studies import (
    WHY,
    make_launch,
    make_log,
    make_open,
    make_report,
    make_spec,
    write_log_by_hand,
)

from paceline.analysis.story import (
    LiveStory,
    describe,
    explain,
    narrate_study,
    narrate_trial,
)
from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.errors import SpecError
from paceline.core.values import OPEN_ENDED
from paceline.machine.state import StudyState

if TYPE_CHECKING:
    from paceline.core.decisions import Entry

SPEC = make_spec()

ENTRIES: list[tuple[Entry, str]] = [
    (e.Opened(at=0.0, spec=SPEC), "study 'hand' starts: fifo minimizes loss"),
    (e.Resumed(at=0.0), "study 'hand' resumes"),
    (
        e.Reported(at=0.0, attempt=4, epoch=2, metrics={"loss": 0.5}, seconds=1.0),
        "attempt 4 reports epoch 2: loss=0.5",
    ),
    (e.Saved(at=0.0, attempt=4, epoch=2), "attempt 4 saves a checkpoint of epoch 2"),
    (
        e.Missed(at=0.0, attempt=4, epoch=2),
        "attempt 4 saves no checkpoint of epoch 2: the order came too late",
    ),
    (
        e.Missed(at=0.0, attempt=4, epoch=2, note="disk full"),
        "attempt 4 saves no checkpoint of epoch 2: disk full",
    ),
    (
        e.Spoiled(at=0.0, attempt=4, note="bad digest"),
        "the checkpoint that attempt 4 starts from is unusable: bad digest",
    ),
    (e.Ended(at=0.0, attempt=4, cause=e.Cause.GOAL), "attempt 4 ends at its goal"),
    (
        e.Ended(at=0.0, attempt=4, cause=e.Cause.FINISHED),
        "attempt 4 ends: the training function returned",
    ),
    (e.Ended(at=0.0, attempt=4, cause=e.Cause.HALTED), "attempt 4 ends as ordered"),
    (e.Ended(at=0.0, attempt=4, cause=e.Cause.FAILED, note="boom"), "attempt 4 fails: boom"),
    (e.Ended(at=0.0, attempt=4, cause=e.Cause.LOST), "attempt 4 is lost"),
    (
        e.Ended(at=0.0, attempt=4, cause=e.Cause.CROWDED),
        "attempt 4 runs out of memory on a shared slot",
    ),
    (
        e.Forecasted(at=0.0, trial=1, epoch=3, forecast=None, note="too short"),
        "there is no forecast of trial 1 at epoch 3: too short",
    ),
    (e.Proposed(at=0.0, number=0, config={"lr": 0.1}), "the generator proposes lr=0.1"),
    (e.Proposed(at=0.0, number=0, config=None), "the generator proposes no more configs"),
    (e.CapacityChanged(at=0.0, slots=(0,)), "1 slot is available"),
    (e.CapacityChanged(at=0.0, slots=(0, 1)), "2 slots are available"),
    (
        e.DeadlineChanged(at=0.0, deadline_s=9.75, kept_s=0.25, note="the machine was asleep"),
        "training ends at 9.75 s, 0.25 s before the call has to return: the machine was asleep",
    ),
    (e.Woke(at=0.0), "a requested wake-up arrives"),
    (e.Commanded(at=0.0, number=1, command=e.StopStudy()), "a command stops the study"),
    (
        e.Commanded(at=0.0, number=1, command=e.ChangeSlots(by=-2)),
        "a command changes the number of slots by -2",
    ),
    (
        e.Commanded(at=0.0, number=1, command=e.ExtendStudy({"trials": 9})),
        "a command extends the study by trials=9",
    ),
    (
        e.Extended(at=0.0, spec=SPEC, to="40 trials and 27 epochs"),
        f"study {SPEC.name!r} is extended to 40 trials and 27 epochs",
    ),
    (
        e.Suggested(at=0.0, attempt=4, trial=1, params={"lr": 0.1}, domains={}),
        "trial 1 asks for lr=0.1",
    ),
    (
        e.Annotated(at=0.0, attempt=4, trial=1, attrs={"size": 3}),
        "trial 1 notes size=3",
    ),
    (e.Submitted(at=0.0, config={}, until=3), "an outside tuner submits a trial up to epoch 3"),
    (
        e.Adopted(at=0.0, study="a", config={}, metrics=(), seconds=()),
        "results of 1 config of study 'a' are reused",
    ),
    (
        e.Recalled(at=0.0, study="a", config={}, values=()),
        "the generator learns from study 'a'",
    ),
    (
        d.Open(trial=1, config={"lr": 0.1}, until=3, why=WHY),
        f"trial 1 is opened with lr=0.1, up to epoch 3: {WHY}",
    ),
    (
        d.Open(trial=1, config={}, until=3, source=0, branch=2, why=WHY),
        "trial 1 is opened, forked from trial 0 at epoch 2, with no settings, up to epoch 3: "
        f"{WHY}",
    ),
    (
        d.Open(trial=1, config={"lr": 0.1}, until=OPEN_ENDED, why=WHY),
        f"trial 1 is opened with lr=0.1: {WHY}",
    ),
    (d.Go(trial=1, until=9, why=WHY), f"trial 1 may continue to epoch 9: {WHY}"),
    (d.Go(trial=1, until=OPEN_ENDED, why=WHY), f"trial 1 may continue: {WHY}"),
    (d.Pause(trial=1, why=WHY), f"trial 1 is paused: {WHY}"),
    (d.Cut(trial=1, why=WHY), f"trial 1 is paused after its current epoch: {WHY}"),
    (d.Stop(trial=1, why=WHY), f"trial 1 is stopped: {WHY}"),
    (d.Fail(trial=1, why=WHY), f"trial 1 is given up: {WHY}"),
    (
        d.Credit(trial=1, epoch=2, why=WHY),
        f"trial 1 gets epoch 2, which is already trained: {WHY}",
    ),
    (d.Close(why=WHY), f"no more trials are opened: {WHY}"),
    (
        d.Launch(
            attempt=4,
            trial=1,
            start=0,
            source=None,
            goal=3,
            save_at=(),
            slots=(0, 1, 2),
            width=3.0,
            why=WHY,
        ),
        f"attempt 4 of trial 1 starts from scratch on slots 0-2, up to epoch 3: {WHY}",
    ),
    (
        d.Amend(attempt=4, version=2, trial=1, goal=9, save_at=(), why=WHY),
        f"attempt 4 trains trial 1 up to epoch 9: {WHY}",
    ),
    (d.Halt(attempt=4, why=WHY), f"attempt 4 is halted: {WHY}"),
    (
        d.Resize(attempt=4, width=0.5, why=WHY),
        f"attempt 4 moves to width 0.5 after its current epoch: {WHY}",
    ),
    (d.Drop(checkpoints=((4, 2),), why=WHY), f"1 checkpoint is deleted: {WHY}"),
    (
        d.AskForecast(trial=1, epoch=3, horizons=(9,), why=WHY),
        f"a forecast of trial 1 is requested at epoch 3: {WHY}",
    ),
    (d.AskProposal(number=0, why=WHY), f"a config is requested from the generator: {WHY}"),
    (d.WakeAt(at=75.0, why=WHY), f"a wake-up is requested at 1m15s: {WHY}"),
    (d.Provide(slots=2, why=WHY), f"2 more slots are requested: {WHY}"),
    (d.Retire(slots=(1, 2), why=WHY), f"slots 1-2 are released: {WHY}"),
    (d.End(cause=d.EndCause.POLICY, why=WHY), f"the study ends: {WHY}"),
]


@pytest.mark.parametrize(("entry", "sentence"), ENTRIES)
def test_an_entry_is_worded_with_its_reason(entry: Entry, sentence: str) -> None:
    assert explain(entry, SPEC) == sentence
    reason = getattr(entry, "why", "") or getattr(entry, "note", "")
    assert describe(entry, SPEC) == sentence.removesuffix(f": {reason}")


def test_every_kind_of_entry_has_a_sentence() -> None:
    kinds = {*d.AnyDecision.__args__, *e.AnyEvent.__args__}
    # Only a study of several groups has `Leave`: see the tests of groups.
    assert {type(entry) for entry, _ in ENTRIES} == kinds - {d.Leave}


def test_the_event_of_an_attempt_names_its_trial() -> None:
    event = e.Ended(at=0.0, attempt=4, cause=e.Cause.FAILED, note="boom")
    assert explain(event, SPEC, trial=2) == "attempt 4 of trial 2 fails: boom"


def test_a_log_that_ends_before_its_study_says_so() -> None:
    assert list(narrate_study(write_log_by_hand()[:3]))[-1].endswith(
        "the log ends here; the study has not ended."
    )
    assert list(narrate_study([])) == []


def test_the_story_of_an_unknown_trial_is_an_error() -> None:
    with pytest.raises(SpecError, match=r"trial 9 does not exist: the study has 2 trials\."):
        list(narrate_trial(write_log_by_hand(), 9))


def test_the_story_of_a_trial_ends_with_its_status() -> None:
    good, bad = (list(narrate_trial(write_log_by_hand(), trial)) for trial in (0, 1))
    assert good[-1] == "Trial 0 has finished at epoch 3; best loss 0.25 at epoch 3."
    assert bad[-1] == "Trial 1 has failed at epoch 1."


def test_a_trial_that_its_study_left_unfinished_is_not_said_to_be_running() -> None:
    end = d.End(cause=d.EndCause.DEADLINE, why="the deadline of 3 s has come")
    steps = make_log(
        (e.Opened(at=0.0, spec=make_spec()), []),
        (
            e.CapacityChanged(at=0.0, slots=(0, 1)),
            [*make_open(0, 1), make_launch(0, 0, (0,)), make_launch(1, 1, (1,))],
        ),
        (make_report(2.0, 0, 1, 0.5), []),
        (e.Woke(at=3.0), [end]),
    )
    begun, silent = (list(narrate_trial(steps, trial))[-1] for trial in (0, 1))
    assert (
        begun == "Trial 0 is unfinished at the deadline, after epoch 1; best loss 0.5 at epoch 1."
    )
    assert silent == "Trial 1 is unfinished at the deadline, before its first report."
    running = list(narrate_trial(steps[:-1], 1))[-1]
    assert running == "Trial 1 is running before its first report."


def test_a_trial_whose_report_came_after_the_end_is_not_said_to_finish() -> None:
    steps = make_log(
        (e.Opened(at=0.0, spec=make_spec(epochs=1)), []),
        (e.CapacityChanged(at=0.0, slots=(0,)), [*make_open(0), make_launch(0, 0, (0,))]),
        (e.Woke(at=3.0), [d.End(cause=d.EndCause.DEADLINE, why=WHY)]),
        (make_report(3.0, 0, 1, 0.5), []),
        (e.Ended(at=3.0, attempt=0, cause=e.Cause.FINISHED), []),
    )
    state = StudyState()
    for step in steps:
        for entry in step.entries:
            state.apply(entry)
    told = [sentence.text for sentence in LiveStory().take(state, steps)]
    assert not [text for text in told if "finishes" in text]
    assert list(narrate_trial(steps, 0))[-1] == (
        "Trial 0 is unfinished at the deadline, before its first report."
    )
