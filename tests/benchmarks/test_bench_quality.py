"""The benchmark of decisions: fair times, regret, complete anchors, and a clear skip."""

from __future__ import annotations

import os
import subprocess
import sys
from array import array
from typing import TYPE_CHECKING

import pytest
from benchmarks.page import ROOT
from benchmarks.quality import anchors, deadlines, pop, runs, traces
from benchmarks.quality.anchors import POLICIES, Anchor, AnchorResult
from benchmarks.quality.runs import SimulatedRun, simulate_run
from benchmarks.quality.scale import Scale, fastest_run_time, load_scale

from paceline.analysis.profiles import RunProfile
from paceline.api.simulation import Simulation
from paceline.engines.sim.traces import VERSION, TraceHeader, TraceRun, write_trace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAST = SimulatedRun(RunProfile([(2.0, 0.5), (5.0, 0.8)], {}, [5.0], 6.0), 6.0, 1.0)


def test_a_target_not_reached_in_time_counts_as_the_limit() -> None:
    assert PAST.time_to(0.7, sign=-1.0, limit=10.0) == 5.0
    assert PAST.time_to(0.7, sign=-1.0, limit=4.0) == 4.0
    assert PAST.time_to(0.9, sign=-1.0, limit=10.0) == 10.0


def test_regret_is_0_at_the_best_value_and_1_at_a_median_run() -> None:
    scale = Scale(sign=-1.0, best=-0.9, final=-0.5, first=-0.1)
    assert [scale.regret(value) for value in (0.9, 0.5, None)] == pytest.approx([0.0, 1.0, 2.0])


def test_every_anchor_has_every_policy() -> None:
    found = anchors.load_anchors()
    assert len(found) == 26
    assert all(set(POLICIES) <= set(row.median_s) for row in found)
    assert {row.slots for row in found} == {4, 8}


def beside(theirs: float) -> AnchorResult:
    anchor = Anchor("t", 0.5, 4, 100.0, 1.0, {"fifo": theirs}, {})
    return AnchorResult(anchor, "fifo", 100.0, [float(time) for time in range(1, 101)])


def test_an_anchor_near_our_median_is_inside_and_a_far_one_is_not_chance() -> None:
    assert beside(50.0).is_inside
    assert beside(50.0).chance_probability() > 0.5
    assert not beside(90.0).is_inside
    assert beside(90.0).chance_probability() == 0.0
    # Further than 15 %, and still what another hundred orders give now and then.
    assert not beside(43.0).is_inside
    assert 0.05 < beside(43.0).chance_probability() < 0.5


@pytest.fixture
def small_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A trace of six runs of twenty epochs, instead of the recorded traces."""
    header = TraceHeader(
        paceline_trace=VERSION, name="few", metric="acc", mode="max", max_epochs=20, target=0.7
    )
    made = []
    for number in range(6):
        values = [0.1 * (number + 3) * (1 - 0.9 ** (epoch + 1)) for epoch in range(20)]
        made.append(TraceRun(number, {"n": number}, array("d", values), array("d", [1.0] * 20)))
    write_trace(tmp_path / "few.jsonl.gz", header, made)
    monkeypatch.setattr(runs, "TRACES", tmp_path)
    # In this process: worker processes would not see the patched folder.
    for part in (runs, deadlines, traces):
        monkeypatch.setattr(
            part, "simulate_runs", lambda asked, what: [simulate_run(each) for each in asked]
        )
    for known in (runs.load_trace, load_scale, fastest_run_time):
        known.cache_clear()
    yield "few"
    for known in (runs.load_trace, load_scale, fastest_run_time):
        known.cache_clear()


def test_the_fastest_single_run_is_a_bound(small_trace: str) -> None:
    bound = fastest_run_time(small_trace, 0.7)
    for policy in ("fifo", "asha", "pop"):
        simulation = Simulation(
            source=runs.find_source(small_trace), policy=policy, slots=6, target=0.7
        )
        run = simulate_run(simulation)
        assert run.time_to(0.7, -1.0, 1000.0) >= bound


def test_every_policy_has_a_row_for_every_trace_and_number_of_slots(small_trace: str) -> None:
    rows = traces.run(slots=(2,), orders=2)
    assert [row.contender for row in rows] == list(traces.CONTENDERS)
    assert all(len(row.times) == 2 for row in rows)
    # Later deadlines leave no more to regret.
    plain = [row for row in rows if row.contender.policy not in traces.DEADLINE_POLICIES]
    assert all(row.regrets == sorted(row.regrets, reverse=True) for row in plain)
    page = traces.make_page(rows)
    assert all(f"| {contender}" in page for contender in traces.CONTENDERS)
    assert len(traces.to_json(rows)) == len(rows)


def test_a_policy_without_the_deadline_gets_the_same_slot_time(small_trace: str) -> None:
    case = deadlines.Case(small_trace, "half", 10.0, "fixed")
    with_deadline, without_deadline = (
        deadlines._make_simulation(case, side, 0) for side in ("hypersched", "without admission")
    )
    assert with_deadline.deadline_s == 10.0
    assert without_deadline.deadline_s is None
    assert without_deadline.slot_seconds == 10.0 * deadlines.SLOTS


def test_cases_lost_to_asha_are_counted() -> None:
    case = deadlines.Case("toy", "10 s", 10.0, "fixed")
    losses = {"hypersched": 0.5, "without admission": 0.4, "asha": 0.4, "asha, draining": 0.4}
    sides = {name: deadlines.PolicyOutcome(loss, 10.0, 1.0) for name, loss in losses.items()}
    page = " ".join(deadlines.make_page([deadlines.CaseResult(case, sides)]).split())
    assert "of the 1 cases that HyperSched loses to `asha`, it loses 0." in page
    assert "| -10.00 " in page


def test_the_share_of_gain_is_relative_to_the_perfect_forecast() -> None:
    means = {pop.BANDIT: 100.0, pop.POP: 70.0, pop.POP_ORACLE: 60.0}
    races = {
        contender: pop.TargetTimes(contender, 0.7, 4, [mean]) for contender, mean in means.items()
    }
    assert pop._share_of_gain(races, pop.BANDIT) == pytest.approx(0.75)


def run_benchmark(*words: str, traces_at: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.quality", *words]
    environment = {**os.environ, "PACELINE_TRACES": traces_at}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_without_traces_the_benchmark_says_so_and_ends(tmp_path: Path) -> None:
    done = run_benchmark(traces_at=str(tmp_path / "none"))
    assert done.returncode == 1
    assert "no recorded traces" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_part_is_refused(tmp_path: Path) -> None:
    done = run_benchmark("ancors", traces_at=str(tmp_path))
    assert done.returncode == 2
    assert "unknown part ancors: use anchors, pop" in done.stderr
