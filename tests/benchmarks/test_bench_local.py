"""The benchmark of the local engine: its mechanics on our own side, with the least of work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from benchmarks.local.cases import EVERYONE, OURS, TUNERS, Case, Row, cases
from benchmarks.local.page import page, table, targets
from benchmarks.local.work import Mark, Marks, Memory, Order, handovers, kept_to
from benchmarks.peers_local import Session

if TYPE_CHECKING:
    from pathlib import Path


def done(task: str, **work: Any) -> dict[str, Any]:  # noqa: ANN401
    with Session(OURS) as session:
        return session.do(Case(task, OURS, task, work))


def test_every_case_is_an_order_that_its_tuner_understands() -> None:
    for case in (*cases(), *cases(quick=True)):
        Order(case.task, "folder", 0.0, **case.work)
        assert case.who in EVERYONE
        assert case.tuner in TUNERS


def test_a_session_does_one_task_after_the_other() -> None:
    with Session(OURS) as session:
        first = session.do(Case("startup", OURS, "startup", {}))
        reports = session.do(Case("reports", OURS, "reports", {"trials": 2, "epochs": 3}))
        trials = session.do(Case("trials", OURS, "trials", {"trials": 5}))
    assert first["seconds"] > 0
    assert reports["per_s"] > 0
    assert trials["per_s"] > 0
    assert isinstance(trials["bytes_per_trial"], float)
    assert set(first["versions"]) == {"paceline"}


def test_trials_that_take_turns_hand_the_slot_over_at_each_report_but_the_last() -> None:
    found = done("pauses", trials=2, epochs=4, epoch_s=0.01)
    # Each of the two resumes three times; once after a trial that had ended rather than paused.
    assert len(found["handovers_s"]) == 2 * 3 - 1
    assert len(found["saves_s"]) >= 2 * 4 - 2
    assert all(gap > 0 for gap in found["handovers_s"])


def test_a_study_that_is_done_before_its_deadline_holds_the_best_checkpoint() -> None:
    found = done("deadline", trials=2, epochs=2, epoch_s=0.01, deadline_s=600.0)
    assert found["checkpoint"] is True


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_deadline_ends_trials_that_would_never_report(stubborn: bool) -> None:
    found = done("deadline", trials=2, epochs=1, epoch_s=600.0, deadline_s=1.0, stubborn=stubborn)
    assert found["seconds"] >= 1.0
    assert found["checkpoint"] is False


def test_a_task_that_fails_says_what_its_tuner_said() -> None:
    with (
        Session(OURS) as session,
        pytest.raises(SystemExit, match=r"failed at reports:(.|\n)*epochs"),
    ):
        session.do(Case("reports", OURS, "reports", {"epochs": -1}))


def test_marks_come_back_in_the_order_of_time(tmp_path: Path) -> None:
    marks = Marks(str(tmp_path))
    marks.begun("a", 0)
    marks.reported("a", 1, 3.0)
    marks.reported(7, 2, 2.0)
    read = marks.read()
    assert [(mark.trial, mark.epoch) for mark in read] == [("a", 0), ("a", 1), ("7", 2)]


def test_only_what_was_reported_before_the_deadline_has_to_be_held(tmp_path: Path) -> None:
    marks = Marks(str(tmp_path))
    marks.reported("a", 1, 3.0)
    marks.reported("a", 2, 2.0)
    first, second = (mark.at for mark in marks.read())
    order = Order("deadline", str(tmp_path), 0.0, deadline_s=second - first + 1.0)
    assert kept_to(order, (first, second), {"loss": 3.0})["checkpoint"] is False
    assert kept_to(order, (first, second), {"loss": 2.0})["checkpoint"] is True
    assert kept_to(order, (first, second), None) == {
        "seconds": second - first,
        "reported": 2,
        "checkpoint": False,
    }
    early = (first - 2.0 - order.deadline_s, second)
    assert kept_to(order, early, {"loss": 2.0})["reported"] == 0


def test_only_a_resumption_after_a_pause_is_a_handover() -> None:
    marks = [
        Mark("begun", 0.0, "a", 0, 0.0),
        Mark("reported", 1.0, "a", 1, 1.0),  # paused
        Mark("begun", 1.5, "b", 0, 0.0),  # new, not resumed
        Mark("reported", 2.0, "b", 1, 1.0),  # paused
        Mark("begun", 2.25, "a", 1, 0.0),
        Mark("reported", 3.0, "a", 2, 0.5),  # done
        Mark("begun", 3.5, "b", 1, 0.0),
    ]
    assert handovers(marks, epochs=2) == [0.25]


def test_memory_is_looked_at_twice() -> None:
    memory = Memory(10)
    for trials in range(1, 11):
        memory.finished(trials)
    assert memory.per_trial() is not None
    alone = Memory(1)
    alone.finished(1)
    assert alone.per_trial() is None


FOUND: dict[str, dict[str, Any]] = {
    "startup": {"seconds": 0.5},
    "reports": {"per_s": 4_000.0},
    "trials": {"per_s": 100.0, "bytes_per_trial": 2_000.0},
    "pauses": {"handovers_s": [0.030, 0.040], "saves_s": [0.010]},
    "deadline": {"seconds": 10.1, "checkpoint": True},
}
KNOWN: dict[str, Any] = {
    "command": "c",
    "took_s": 1,
    "date": "d",
    "commit": "e",
    "machine": {"cpu": "x", "cores": 2, "system": "y", "python": "z"},
    "versions": {},
    "peer_versions": {},
    "load_before": 0.0,
    "fsync_ms": 1.0,
}


def rows(**changes: dict[str, Any]) -> list[Row]:
    """Return a row for each case; a peer's are half as good."""
    found = {**FOUND, **changes}
    made = [Row(case, [found[case.task]] * 2) for case in cases()]
    for row in made:
        if row.case.who != OURS and row.case.task == "reports":
            row.found = [{"per_s": 2_000.0}] * 2
    return made


def test_the_page_divides_ours_by_theirs_and_says_what_was_reached() -> None:
    shown = page(rows(), KNOWN)
    (line,) = [
        each for each in shown.splitlines() if "reports a second" in each and "Optuna" in each
    ]
    assert "| 2,000 (2,000)" in line
    assert "| 2.0 (2.0 to 2.0)" in line
    assert "| 25.0 ms" in targets(rows())
    assert "| no " not in targets(rows())


@pytest.mark.parametrize(
    "changes",
    [
        {"reports": {"per_s": 1_999.0}},
        {"trials": {"per_s": 49.0, "bytes_per_trial": None}},
        {"pauses": {"handovers_s": [0.05], "saves_s": [0.01]}},
        {"deadline": {"seconds": 10.4, "checkpoint": True}},
        {"deadline": {"seconds": 10.1, "checkpoint": False}},
    ],
)
def test_a_figure_that_misses_its_target_is_told(changes: dict[str, Any]) -> None:
    assert "| no " in targets(rows(**changes))
    assert table(rows(**changes))
