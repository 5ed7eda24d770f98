"""The trial of a training function, in this process: the driver's messages are the test's."""

from __future__ import annotations

import math
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from trials import TrialUnderTest, make_start

import paceline as pl
from paceline.core.errors import CheckpointError, TrialError
from paceline.worker import checkpoint_file
from paceline.worker.protocol import (
    BestLoss,
    Channel,
    CheckpointFetched,
    CheckpointSkipped,
    CheckpointWritten,
    EpochReport,
    PeerLost,
    Release,
    UpdateOrder,
)
from paceline.worker.stop_request import Unwind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from paceline.worker.trial import Trial


@pytest.fixture
def make_trial(tmp_path: Path) -> Iterator[Callable[..., TrialUnderTest]]:
    made: list[TrialUnderTest] = []

    def make(*sent: Any, links: Any = (), **changes: Any) -> TrialUnderTest:  # noqa: ANN401
        made.append(TrialUnderTest(make_start(tmp_path, **changes), links, *sent))
        return made[-1]

    yield make
    for each in made:
        each.close()


def train(trial: Trial, losses: list[float]) -> None:
    """Report these losses, one an epoch."""
    for epoch in trial.epochs():
        trial.report(loss=losses[epoch])


def list_reports(messages: list[Any]) -> list[tuple[int, float | None]]:
    reports = (message for message in messages if isinstance(message, EpochReport))
    return [(report.epoch, report.metrics["loss"]) for report in reports]


def list_saved(messages: list[Any]) -> list[int]:
    """Return the epochs of all checkpoints, those inside of reports included."""
    saved = [m.saved if isinstance(m, EpochReport) else m for m in messages]
    return [each.epoch for each in saved if isinstance(each, CheckpointWritten)]


# Reports and orders


def test_every_epoch_is_reported_in_order(make_trial: Callable[..., TrialUnderTest]) -> None:
    made = make_trial(epochs=3, goal=3)
    train(made.trial, [0.5, 0.4, math.nan])
    assert list_reports(made.read()) == [(1, 0.5), (2, 0.4), (3, None)]
    assert made.trial.has_reports


def test_a_trial_at_its_goal_waits_for_an_order_and_trains_on_with_it(
    make_trial: Callable[..., TrialUnderTest],
) -> None:
    order = UpdateOrder(version=1, config={"lr": 0.2}, goal=4, save_at=(3,))
    made = make_trial(goal=2)
    seen = []

    messages: list[Any] = []

    def read_until_saved(epoch: int) -> None:
        while epoch not in list_saved(messages):
            messages.append(made.driver.receive(wait=True))

    def answer() -> None:
        read_until_saved(2)
        made.driver.send(order)
        read_until_saved(4)
        made.driver.send(Release())

    def train_with_rates() -> None:
        for _ in made.trial.epochs():
            seen.append(made.trial["lr"])
            made.trial.report(loss=1.0)

    driver = threading.Thread(target=answer)
    driver.start()
    made.trial.keep(state=[1])
    with pytest.raises(Unwind):
        train_with_rates()
    driver.join()
    assert seen == [0.1, 0.1, 0.2, 0.2]
    versions = [m.version for m in messages if isinstance(m, EpochReport)]
    assert versions == [0, 0, 1, 1]
    assert list_saved([*messages, *made.read()]) == [1, 2, 3, 4]


def test_an_older_order_is_ignored(make_trial: Callable[..., TrialUnderTest]) -> None:
    new = UpdateOrder(version=2, config={"lr": 0.2}, goal=9, save_at=())
    old = UpdateOrder(version=1, config={"lr": 0.3}, goal=1, save_at=())
    made = make_trial(new, old, epochs=2)
    train(made.trial, [1.0, 1.0])
    assert made.trial.config == {"lr": 0.2}


def test_a_checkpoint_ordered_too_late_is_reported_as_skipped(
    make_trial: Callable[..., TrialUnderTest],
) -> None:
    made = make_trial(epochs=3)
    for epoch in made.trial.epochs():
        if epoch == 2:
            order = UpdateOrder(version=1, config={"lr": 0.1}, goal=9, save_at=(1,))
            made.driver.send(order)
        made.trial.report(loss=1.0)
    skipped = [m for m in made.read() if isinstance(m, CheckpointSkipped)]
    assert skipped == [CheckpointSkipped(epoch=1, note="the order came too late")]


def test_a_trial_unwinds_when_the_driver_is_gone(
    make_trial: Callable[..., TrialUnderTest],
) -> None:
    for goal in (9, 1):  # on the way, and at the goal
        made = make_trial(goal=goal)
        made.driver.close()
        with pytest.raises(Unwind):
            train(made.trial, [1.0] * 9)


def test_a_stop_request_unwinds_at_once_and_again_at_the_next_report(
    make_trial: Callable[..., TrialUnderTest],
) -> None:
    made = make_trial()
    with pytest.raises(Unwind):
        made.stop.handle_signal(15, None)
    with pytest.raises(Unwind):
        train(made.trial, [1.0])
    assert made.read() == []


# Checkpoints


@pytest.mark.parametrize(("goal", "saved"), [(1, [1, 2]), (2, [1]), (9, [1])])
def test_a_signal_right_after_a_report_waits_for_a_save_past_a_goal_that_was_moved_back(
    make_trial: Callable[..., TrialUnderTest],
    monkeypatch: pytest.MonkeyPatch,
    goal: int,
    saved: list[int],
) -> None:
    made = make_trial()
    send = made.channel.send

    def send_and_signal(message: Any) -> None:  # noqa: ANN401
        send(message)
        if isinstance(message, EpochReport) and message.epoch == 2:
            made.stop.handle_signal()

    def train_past_the_goal() -> None:
        for epoch in made.trial.epochs():
            if epoch == 1:
                order = UpdateOrder(version=1, config={"lr": 0.1}, goal=goal, save_at=())
                made.driver.send(order)
            made.trial.report(loss=1.0)

    monkeypatch.setattr(made.channel, "send", send_and_signal)
    made.trial.keep(state=[1])
    with pytest.raises(Unwind):
        train_past_the_goal()
    messages = made.read()
    assert list_reports(messages) == [(1, 1.0), (2, 1.0)]
    assert list_saved(messages) == saved


def test_the_best_epoch_is_saved_before_it_is_reported(
    make_trial: Callable[..., TrialUnderTest],
) -> None:
    made = make_trial(BestLoss(loss=0.4), epochs=5, goal=9, best=0.6)
    made.trial.keep(state=[0])
    train(made.trial, [0.5, 0.3, 0.35, 0.2, 0.9])
    reports = [message for message in made.read() if isinstance(message, EpochReport)]
    saved = [report.epoch for report in reports if isinstance(report.saved, CheckpointWritten)]
    # 0.5 does not beat the best loss of the study; the last epoch is saved in any case.
    assert saved == [2, 4, 5]


def test_a_trial_continues_from_its_checkpoint(
    make_trial: Callable[..., TrialUnderTest], tmp_path: Path
) -> None:
    first = make_trial(epochs=9, save_at=(2,), best=0.0)
    counted = first.trial.keep(counted=[0])
    for epoch in first.trial.epochs():
        counted[0] += 1
        first.trial.report(loss=1.0)
        if epoch == 1:
            break
    (saved,) = [m for m in first.read() if isinstance(m, CheckpointWritten)]
    assert (saved.epoch, saved.bytes) == (2, (tmp_path / "7-2.ckpt").stat().st_size)
    source = {"checkpoint": "7-2.ckpt", "digest": saved.digest}
    second = make_trial(attempt=8, start=2, epochs=4, **source)
    counted, other = second.trial.keep(counted=[0], other="new")
    assert (counted, other) == ([2], "new")
    assert next(iter(second.trial.epochs())) == 2


def test_a_damaged_checkpoint_is_refused(
    make_trial: Callable[..., TrialUnderTest], tmp_path: Path
) -> None:
    checkpoint_file.write(tmp_path / "7-2.ckpt", {"kept": {}, "random": {}})
    with pytest.raises(CheckpointError, match="its digest does not match"):
        make_trial(start=2, checkpoint="7-2.ckpt", digest="0" * 32)


def test_a_trial_waits_until_its_checkpoint_is_downloaded(
    make_trial: Callable[..., TrialUnderTest], tmp_path: Path
) -> None:
    checkpoint_file.write(tmp_path / "1-1.ckpt", {"kept": {"a": 4}, "random": {}})
    made = make_trial(
        BestLoss(loss=1.0), CheckpointFetched(), start=1, checkpoint="1-1.ckpt", awaits=True
    )
    assert made.trial.keep(a=0) == 4
    with pytest.raises(CheckpointError, match="the bucket is gone"):
        make_trial(CheckpointFetched(note="the bucket is gone"), awaits=True)


def test_a_trial_without_kept_objects_skips_its_checkpoint(
    make_trial: Callable[..., TrialUnderTest],
) -> None:
    made = make_trial(Release(), goal=1)
    with pytest.raises(Unwind):
        train(made.trial, [1.0])
    made = make_trial(goal=1, epochs=1)
    train(made.trial, [1.0])
    (report,) = made.read()
    assert isinstance(report, EpochReport)
    note = "it keeps nothing, so that it starts over when it is paused"
    assert report.saved == CheckpointSkipped(epoch=1, note=note)


def test_a_full_disk_skips_the_checkpoint(
    make_trial: Callable[..., TrialUnderTest], tmp_path: Path
) -> None:
    made = make_trial(epochs=1, folder=str(tmp_path / "missing"))
    made.trial.keep(state=[1])
    train(made.trial, [1.0])
    (report,) = made.read()
    assert isinstance(report, EpochReport)
    assert isinstance(report.saved, CheckpointSkipped)
    assert report.saved.note == "its checkpoint cannot be written: No such file or directory"


def test_a_checkpoint_is_due_when_saving_has_become_cheap(
    make_trial: Callable[..., TrialUnderTest],
) -> None:
    made = make_trial(epochs=3, save_share=0.0, best=0.0)
    made.trial.keep(state=[1])
    train(made.trial, [1.0, 1.0, 1.0])
    assert list_saved(made.read()) == [1, 2, 3]


def test_a_function_that_returns_early_saves_its_end(
    make_trial: Callable[..., TrialUnderTest],
) -> None:
    made = make_trial(best=0.0)
    made.trial.keep(state=[1])
    for _ in made.trial.epochs():
        made.trial.report(loss=1.0)
        break
    made.trial.finish()
    assert list_saved(made.read()) == [1]
    made.trial.finish()
    assert made.read() == []


# Hyperparameters


def test_hyperparameters_are_read_by_name(make_trial: Callable[..., TrialUnderTest]) -> None:
    rate = pl.piecewise([(0, 0.1), (2, 0.01)])
    made = make_trial(config={"depth": 3, "lr": rate}, epochs=4, seed=11, device="cuda")
    trial = made.trial
    assert (trial.id, trial.seed, trial.width, trial.rank, trial.size) == (3, 11, 1.0, 0, 1)
    assert (trial.device, trial["depth"], trial.get("depth"), trial.get("none", 1)) == (
        "cuda",
        3,
        3,
        1,
    )
    assert "lr" in trial
    assert "none" not in trial
    with pytest.raises(TrialError, match="no value before the first epoch"):
        trial["lr"]
    with pytest.raises(TrialError, match="has no 'none': its config has depth, lr"):
        trial["none"]
    read = []
    for _ in trial.epochs():
        read.append((trial["lr"], trial.changed("lr")))
        with pytest.raises(TrialError, match="progress=2 is invalid"):
            trial.value("lr", 2)
        trial.report({"loss": 1.0})
    assert read == [(0.1, False), (0.1, False), (0.01, True), (0.01, False)]


def test_a_report_must_have_the_metric_as_a_number(
    make_trial: Callable[..., TrialUnderTest],
) -> None:
    made = make_trial()
    for _ in made.trial.epochs():
        with pytest.raises(TrialError, match="report has accuracy, but not the study's metric"):
            made.trial.report(accuracy=1.0)
        with pytest.raises(TrialError, match=r"'loss' was reported as the text '0\.3'"):
            made.trial.report({"loss": "0.3"})  # type: ignore[dict-item]
        made.trial.report(loss=1.0)
        with pytest.raises(TrialError, match="epoch 1 was reported twice: report once per epoch"):
            made.trial.report(loss=1.0)
        break


def test_each_report_of_a_function_s_own_loop_closes_an_epoch(
    make_trial: Callable[..., TrialUnderTest],
) -> None:
    made = make_trial(epochs=9)
    trial = made.trial
    trial.report(0.9, 10)
    trial.report({"loss": 0.8}, step=20)
    trial.report(0.1, 20)  # the same step again is ignored, as Optuna does
    trial.report(loss=0.7)
    with pytest.raises(TrialError, match="step 19 was reported after step 20: steps must rise"):
        trial.report(0.6, 19)
    with pytest.raises(TrialError, match="step='a' is not a whole number"):
        trial.report(0.6, "a")  # type: ignore[arg-type]
    reports = [message for message in made.read() if isinstance(message, EpochReport)]
    assert list_reports(reports) == [(1, 0.9), (2, 0.8), (3, 0.7)]
    assert sum(report.seconds for report in reports) < time.monotonic() - made.began


def test_a_function_with_its_own_loop_ends_after_the_last_epoch(
    make_trial: Callable[..., TrialUnderTest], capfd: pytest.CaptureFixture[str]
) -> None:
    made = make_trial(epochs=2)
    made.trial.report(0.9)
    made.trial.report(0.8)
    with pytest.raises(Unwind):
        made.trial.report(0.7)
    assert made.trial.is_over
    assert list_reports(made.read()) == [(1, 0.9), (2, 0.8)]
    assert "epoch 2 was the last of this trial" in capfd.readouterr().err


def test_the_only_report_of_a_trial_is_sent_when_its_function_returns(
    make_trial: Callable[..., TrialUnderTest],
) -> None:
    made = make_trial(epochs=1)
    made.trial.report(0.9, 3)
    made.trial.report(0.9, 3)
    assert made.trial.has_reports
    assert made.read() == []
    made.trial.finish({"loss": 0.5})
    (report,) = made.read()
    assert isinstance(report, EpochReport)
    assert (report.metrics, report.last) == ({"loss": 0.9}, True)


def test_a_loop_of_its_own_that_starts_over_with_restored_objects_is_an_error(
    make_trial: Callable[..., TrialUnderTest], tmp_path: Path
) -> None:
    checkpoint_file.write(tmp_path / "7-4.ckpt", {"kept": {"a": 4}, "random": {}})
    made = make_trial(start=4, checkpoint="7-4.ckpt")
    made.trial.keep(a=0)
    with pytest.raises(TrialError, match="continues after epoch 4 and reports step 0: loop by"):
        made.trial.report(0.5, 0)
    made.trial.report(0.5, 4)
    assert list_reports(made.read()) == [(5, 0.5)]


def test_a_report_after_the_loop_is_an_error(make_trial: Callable[..., TrialUnderTest]) -> None:
    made = make_trial(epochs=2)
    train(made.trial, [1.0, 1.0])
    with pytest.raises(TrialError, match="outside of an epoch: call it inside `for epoch in"):
        made.trial.report(loss=1.0)


def test_an_epoch_without_a_report_is_an_error(make_trial: Callable[..., TrialUnderTest]) -> None:
    with pytest.raises(TrialError, match="epoch 1 ended without a report"):
        list(make_trial().trial.epochs())


def test_the_share_of_memory_is_reported_once(make_trial: Callable[..., TrialUnderTest]) -> None:
    made = make_trial(epochs=2, slot_bytes=1 << 40)
    train(made.trial, [1.0, 1.0])
    first, second = (m.memory for m in made.read() if isinstance(m, EpochReport))
    assert 0.0 < first < 1.0
    assert second == 0.0


# Wide trials


def make_links() -> tuple[Channel, Channel]:
    near, far = socket.socketpair()
    return Channel(near), Channel(far)


def test_the_processes_of_a_wide_trial_train_the_same_epochs(
    make_trial: Callable[..., TrialUnderTest],
) -> None:
    lead, follow = make_links()
    order = UpdateOrder(version=1, config={"lr": 0.2}, goal=9, save_at=())
    leader = make_trial(order, links=[lead], epochs=3, width=2.0)
    follower = make_trial(links=[follow], epochs=3, width=2.0, rank=1)
    addresses, read = [], []

    def run(made: TrialUnderTest) -> None:
        addresses.append(made.trial.meeting())
        for _ in made.trial.epochs():
            read.append((made.trial.rank, made.trial["lr"]))
            made.trial.report(loss=1.0)

    other = threading.Thread(target=run, args=(follower,))
    other.start()
    run(leader)
    other.join()
    assert addresses[0] == addresses[1]
    assert sorted(read) == [(0, 0.1), (0, 0.2), (0, 0.2), (1, 0.1), (1, 0.2), (1, 0.2)]
    assert list_reports(leader.read()) == [(1, 1.0), (2, 1.0), (3, 1.0)]
    assert follower.read() == []
    lead.close()
    follow.close()


def test_a_leader_without_its_follower_reports_the_lost_peer(
    make_trial: Callable[..., TrialUnderTest],
) -> None:
    lead, follow = make_links()
    leader = make_trial(links=[lead], width=2.0)
    follow.close()
    with pytest.raises(Unwind):
        train(leader.trial, [1.0])
    assert leader.read() == [PeerLost(rank=1)]
    lead.close()


def test_a_follower_without_its_leader_unwinds(
    make_trial: Callable[..., TrialUnderTest],
) -> None:
    lead, follow = make_links()
    follower = make_trial(links=[follow], width=2.0, rank=1)
    lead.close()
    with pytest.raises(Unwind):
        follower.trial.meeting()
    with pytest.raises(Unwind):
        train(follower.trial, [1.0])
    assert follower.read() == []
    follow.close()


def test_a_released_leader_releases_its_followers(
    make_trial: Callable[..., TrialUnderTest],
) -> None:
    lead, follow = make_links()
    leader = make_trial(Release(), links=[lead], width=2.0)
    follower = make_trial(links=[follow], width=2.0, rank=1)

    def run() -> None:
        with pytest.raises(Unwind):
            train(follower.trial, [1.0])

    other = threading.Thread(target=run)
    other.start()
    with pytest.raises(Unwind):
        train(leader.trial, [1.0])
    other.join()
    lead.close()
    follow.close()


def test_processes_at_different_points_are_an_error(
    make_trial: Callable[..., TrialUnderTest],
) -> None:
    lead, follow = make_links()
    leader = make_trial(links=[lead], width=2.0)
    follower = make_trial(links=[follow], width=2.0, rank=1)

    def meet() -> None:
        with pytest.raises(Unwind):
            follower.trial.meeting()

    other = threading.Thread(target=meet)
    other.start()
    with pytest.raises(TrialError, match="processes 0 and 1 are not at the same point"):
        train(leader.trial, [1.0])
    lead.close()
    other.join()
    follow.close()
