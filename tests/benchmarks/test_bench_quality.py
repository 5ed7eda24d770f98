"""The benchmark of decisions: fair times, regret, anchors that are all there, and a clear skip."""

from __future__ import annotations

import os
import subprocess
import sys
from array import array
from typing import TYPE_CHECKING

import pytest
from benchmarks.page import ROOT
from benchmarks.quality import anchors, deadlines, pop, runs, traces
from benchmarks.quality.anchors import POLICIES, Anchor, Found
from benchmarks.quality.runs import Past, follow
from benchmarks.quality.scale import Scale, fastest, scale_of

from paceline.analysis.profiles import Course
from paceline.api.simulation import Simulation
from paceline.engines.sim.traces import VERSION, Header, Run, write_trace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAST = Past(Course([(2.0, 0.5), (5.0, 0.8)], {}, [5.0], 6.0), 6.0, 1.0)


def test_what_is_not_reached_in_time_counts_as_the_limit() -> None:
    assert PAST.time_to(0.7, sign=-1.0, limit=10.0) == 5.0
    assert PAST.time_to(0.7, sign=-1.0, limit=4.0) == 4.0
    assert PAST.time_to(0.9, sign=-1.0, limit=10.0) == 10.0


def test_regret_is_nothing_at_the_best_and_one_at_a_median_run() -> None:
    scale = Scale(sign=-1.0, best=-0.9, final=-0.5, first=-0.1)
    assert [scale.regret(value) for value in (0.9, 0.5, None)] == pytest.approx([0.0, 1.0, 2.0])


def test_every_anchor_has_every_policy() -> None:
    found = anchors.anchors()
    assert len(found) == 26
    assert all(set(POLICIES) <= set(row.median_s) for row in found)
    assert {row.slots for row in found} == {4, 8}


def beside(theirs: float) -> Found:
    anchor = Anchor("t", 0.5, 4, 100.0, 1.0, {"fifo": theirs}, {})
    return Found(anchor, "fifo", 100.0, [float(time) for time in range(1, 101)])


def test_an_anchor_near_our_median_is_inside_and_a_far_one_is_no_chance() -> None:
    assert beside(50.0).inside
    assert beside(50.0).chance() > 0.5
    assert not beside(90.0).inside
    assert beside(90.0).chance() == 0.0
    # Further than 15 %, and still what another hundred orders give now and then.
    assert not beside(43.0).inside
    assert 0.05 < beside(43.0).chance() < 0.5


@pytest.fixture
def few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A trace of six runs of twenty epochs, in the place of the recorded ones."""
    header = Header(
        paceline_trace=VERSION, name="few", metric="acc", mode="max", max_epochs=20, target=0.7
    )
    made = []
    for number in range(6):
        values = [0.1 * (number + 3) * (1 - 0.9 ** (epoch + 1)) for epoch in range(20)]
        made.append(Run(number, {"n": number}, array("d", values), array("d", [1.0] * 20)))
    write_trace(tmp_path / "few.jsonl.gz", header, made)
    monkeypatch.setattr(runs, "TRACES", tmp_path)
    # Here, so that the other place is seen; on all cores, it would not be.
    for part in (runs, deadlines, traces):
        monkeypatch.setattr(part, "pasts", lambda asked, what: [follow(each) for each in asked])
    for known in (runs.trace_of, scale_of, fastest):
        known.cache_clear()
    yield "few"
    for known in (runs.trace_of, scale_of, fastest):
        known.cache_clear()


def test_the_fastest_single_run_is_a_bound(few: str) -> None:
    bound = fastest(few, 0.7)
    for policy in ("fifo", "asha", "pop"):
        simulation = Simulation(source=runs.source_of(few), policy=policy, slots=6, target=0.7)
        past = follow(simulation)
        assert past.time_to(0.7, -1.0, 1000.0) >= bound


def test_every_policy_has_a_row_for_every_trace_and_number_of_slots(few: str) -> None:
    rows = traces.run(slots=(2,), orders=2)
    assert [row.who for row in rows] == list(traces.WHO)
    assert all(len(row.times) == 2 for row in rows)
    # Later deadlines leave no more to regret.
    plain = [row for row in rows if row.who.policy not in traces.FAR_SIGHTED]
    assert all(row.regrets == sorted(row.regrets, reverse=True) for row in plain)
    page = traces.page(rows)
    assert all(f"| {who}" in page for who in traces.WHO)
    assert len(traces.plain(rows)) == len(rows)


def test_the_deadline_is_kept_by_those_who_do_not_know_it(few: str) -> None:
    case = deadlines.Case(few, "half", 10.0, "fixed")
    told, untold = (
        deadlines._simulation(case, side, 0) for side in ("hypersched", "without admission")
    )
    assert told.deadline_s == 10.0
    assert untold.deadline_s is None
    assert untold.slot_seconds == 10.0 * deadlines.SLOTS


def test_a_case_that_is_lost_to_asha_is_counted() -> None:
    case = deadlines.Case("toy", "10 s", 10.0, "fixed")
    losses = {"hypersched": 0.5, "without admission": 0.4, "asha": 0.4, "asha, draining": 0.4}
    sides = {name: deadlines.Side(loss, 10.0, 1.0) for name, loss in losses.items()}
    page = " ".join(deadlines.page([deadlines.Found(case, sides)]).split())
    assert "of the 1 cases that HyperSched loses to `asha`, that one loses 0." in page
    assert "| -10.00 " in page


def test_the_share_of_the_gain_is_of_the_perfect_forecaster_s() -> None:
    means = {pop.BANDIT: 100.0, pop.POP: 70.0, pop.POP_ORACLE: 60.0}
    races = {who: pop.Times(who, 0.7, 4, [mean]) for who, mean in means.items()}
    assert pop._share(races, pop.BANDIT) == pytest.approx(0.75)


def told(*words: str, traces_at: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.quality", *words]
    environment = {**os.environ, "PACELINE_TRACES": traces_at}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_without_traces_it_says_so(tmp_path: Path) -> None:
    done = told(traces_at=str(tmp_path / "none"))
    assert done.returncode == 1
    assert "no recorded traces" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_part_that_is_not_there_is_refused(tmp_path: Path) -> None:
    done = told("ancors", traces_at=str(tmp_path))
    assert done.returncode == 2
    assert "there is no part ancors: give anchors, pop" in done.stderr
