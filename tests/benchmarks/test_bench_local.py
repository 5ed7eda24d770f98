"""The benchmark of the local engine: its mechanics with Paceline alone and minimal work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from benchmarks.local.cases import OURS, TUNER_NAMES, TUNERS, Case, Row, list_cases
from benchmarks.local.page import make_page, make_table, make_targets_table
from benchmarks.local.workload import (
    MemoryGrowth,
    TaskSpec,
    TrialEvent,
    TrialEventLog,
    check_deadline,
    measure_handovers,
)
from benchmarks.peers_local import Session

if TYPE_CHECKING:
    from pathlib import Path


def run_task(task: str, **work: Any) -> dict[str, Any]:  # noqa: ANN401
    with Session(OURS) as session:
        return session.run(Case(task, OURS, task, work))


def test_every_case_is_a_task_of_its_tuner() -> None:
    for case in (*list_cases(), *list_cases(quick=True)):
        TaskSpec(case.task, "folder", 0.0, **case.work)
        assert case.label in TUNER_NAMES
        assert case.tuner in TUNERS


def test_a_session_runs_one_task_after_the_other() -> None:
    with Session(OURS) as session:
        first = session.run(Case("startup", OURS, "startup", {}))
        reports = session.run(Case("reports", OURS, "reports", {"trials": 2, "epochs": 3}))
        trials = session.run(Case("trials", OURS, "trials", {"trials": 5}))
    assert first["seconds"] > 0
    assert reports["per_s"] > 0
    assert trials["per_s"] > 0
    assert isinstance(trials["bytes_per_trial"], float)
    assert set(first["versions"]) == {"paceline"}


def test_trials_that_take_turns_hand_the_slot_over_at_each_report_but_the_last() -> None:
    found = run_task("pauses", trials=2, epochs=4, epoch_s=0.01)
    # Each of the two resumes three times; once after a trial that had ended rather than paused.
    assert len(found["handovers_s"]) == 2 * 3 - 1
    assert len(found["saves_s"]) >= 2 * 4 - 2
    assert all(gap > 0 for gap in found["handovers_s"])


def test_a_study_that_is_done_before_its_deadline_holds_the_best_checkpoint() -> None:
    found = run_task("deadline", trials=2, epochs=2, epoch_s=0.01, deadline_s=600.0)
    assert found["checkpoint"] is True


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_deadline_ends_trials_that_would_never_report(stubborn: bool) -> None:
    found = run_task(
        "deadline", trials=2, epochs=1, epoch_s=600.0, deadline_s=1.0, stubborn=stubborn
    )
    # It does not wait for the epoch. A study keeps back the time that its end takes, so it may
    # return a little before its deadline.
    assert 0.0 < found["seconds"] < 600.0
    assert found["checkpoint"] is False


def test_a_failed_task_shows_the_output_of_its_tuner() -> None:
    with (
        Session(OURS) as session,
        pytest.raises(SystemExit, match=r"failed at reports:(.|\n)*epochs"),
    ):
        session.run(Case("reports", OURS, "reports", {"epochs": -1}))


def test_events_are_read_in_order_of_time(tmp_path: Path) -> None:
    events = TrialEventLog(str(tmp_path))
    events.log_start("a", 0)
    events.log_report("a", 1, 3.0)
    events.log_report(7, 2, 2.0)
    read = events.read()
    assert [(mark.trial, mark.epoch) for mark in read] == [("a", 0), ("a", 1), ("7", 2)]


def test_only_reports_before_the_deadline_count_for_the_best_state(tmp_path: Path) -> None:
    events = TrialEventLog(str(tmp_path))
    events.log_report("a", 1, 3.0)
    events.log_report("a", 2, 2.0)
    first, second = (mark.at for mark in events.read())
    order = TaskSpec("deadline", str(tmp_path), 0.0, deadline_s=second - first + 1.0)
    assert check_deadline(order, (first, second), {"loss": 3.0})["checkpoint"] is False
    assert check_deadline(order, (first, second), {"loss": 2.0})["checkpoint"] is True
    assert check_deadline(order, (first, second), None) == {
        "seconds": second - first,
        "reported": 2,
        "checkpoint": False,
    }
    early = (first - 2.0 - order.deadline_s, second)
    assert check_deadline(order, early, {"loss": 2.0})["reported"] == 0


def test_only_a_resumption_after_a_pause_is_a_handover() -> None:
    events = [
        TrialEvent("begun", 0.0, "a", 0, 0.0),
        TrialEvent("reported", 1.0, "a", 1, 1.0),  # paused
        TrialEvent("begun", 1.5, "b", 0, 0.0),  # new, not resumed
        TrialEvent("reported", 2.0, "b", 1, 1.0),  # paused
        TrialEvent("begun", 2.25, "a", 1, 0.0),
        TrialEvent("reported", 3.0, "a", 2, 0.5),  # done
        TrialEvent("begun", 3.5, "b", 1, 0.0),
    ]
    assert measure_handovers(events, epochs=2) == [0.25]


def test_memory_growth_needs_two_measurements() -> None:
    memory = MemoryGrowth(10)
    for trials in range(1, 11):
        memory.update(trials)
    assert memory.bytes_per_trial() is not None
    alone = MemoryGrowth(1)
    alone.update(1)
    assert alone.bytes_per_trial() is None


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
    made = [Row(case, [found[case.task]] * 2) for case in list_cases()]
    for row in made:
        if row.case.label != OURS and row.case.task == "reports":
            row.found = [{"per_s": 2_000.0}] * 2
    return made


def test_the_page_shows_ratios_and_reached_targets() -> None:
    shown = make_page(rows(), KNOWN)
    (line,) = [
        each for each in shown.splitlines() if "reports a second" in each and "Optuna" in each
    ]
    assert "| 2,000 (2,000)" in line
    assert "| 2.0 (2.0 to 2.0)" in line
    assert "| 25.0 ms" in make_targets_table(rows())
    assert "| no " not in make_targets_table(rows())


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
def test_the_page_shows_a_missed_target(changes: dict[str, Any]) -> None:
    assert "| no " in make_targets_table(rows(**changes))
    assert make_table(rows(**changes))
