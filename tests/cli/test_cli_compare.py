"""`paceline compare`: combinations, targets, sums over seeds, and several processes."""

from __future__ import annotations

import multiprocessing
from typing import TYPE_CHECKING

import msgspec
import pytest
from command_line import CommandLine, compare_golden, write_small_trace
from hypothesis import given
from hypothesis import strategies as st

from paceline.api.comparison import CompareResult, CompareRow, Comparison, compare, quantile
from paceline.api.simulation import Simulation
from paceline.cli.flags import split_parts
from paceline.core.decisions import Open, Step
from paceline.core.errors import SpecError

if TYPE_CHECKING:
    from pathlib import Path


def compare_rows(paceline: CommandLine, *command: str | Path) -> list[CompareRow]:
    """Return the rows of a comparison."""
    ran = paceline("compare", *command, "--json")
    assert ran.code == 0, ran.err
    return msgspec.json.decode(ran.out, type=CompareResult).rows


def test_each_trace_has_a_table(paceline: CommandLine) -> None:
    one, two = (write_small_trace(paceline.folder / f"{name}.jsonl.gz") for name in ("one", "two"))
    options = ("--policies", "fifo,asha:eta=2,drain=false", "--slots", "1,2", "--seeds", "3")
    ran = paceline("compare", one, two, *options, "--deadline", "1m")
    assert ran.code == 0
    compare_golden("compare.txt", ran.out)


def test_several_allocators_have_a_column(paceline: CommandLine) -> None:
    trace = write_small_trace(paceline.folder / "t.jsonl.gz")
    command = ("compare", trace, "--policies", "fifo", "--seeds", "1")
    assert "allocator" not in paceline(*command).out
    assert (
        "allocator"
        in paceline(*command, "--allocators", "fixed,paceline.allocation.fixed:Fixed").out
    )


def test_there_is_a_row_for_every_combination(paceline: CommandLine) -> None:
    traces = [write_small_trace(paceline.folder / f"{name}.jsonl.gz") for name in ("one", "two")]
    options = (
        "--policies",
        "fifo;asha",
        "--policy",
        "asha:eta=2",
        "--slots",
        "1,2",
        "--seeds",
        "2",
    )
    found = compare_rows(paceline, *traces, *options)
    assert [(row.trace, row.slots, row.policy, row.seeds) for row in found] == [
        (trace, slots, policy, 2)
        for trace in ("one", "two")
        for slots in (1, 2)
        for policy in ("fifo", "asha", "asha:eta=2")
    ]


def test_the_target_is_that_of_the_trace_by_default(paceline: CommandLine) -> None:
    trace = write_small_trace(paceline.folder / "t.jsonl.gz")
    for options, target in (
        ((), 0.5),
        (("--target", "trace"), 0.5),
        (("--target", "0.7"), 0.7),
        (("--target", "none"), None),
    ):
        (row,) = compare_rows(paceline, trace, "--policies", "fifo", "--seeds", "1", *options)
        assert row.target == target
        assert (row.reached is None) == (target is None)


def test_a_synthetic_workload_has_no_target_of_its_own(paceline: CommandLine) -> None:
    (row,) = compare_rows(
        paceline, "toy:epochs=3", "--policies", "fifo", "--trials", "3", "--seeds", "1"
    )
    assert (row.trace, row.target, row.time_median_s) == ("toy:epochs=3", None, None)


def test_a_run_that_does_not_reach_the_target_counts_with_its_end(
    paceline: CommandLine,
) -> None:
    trace = write_small_trace(paceline.folder / "t.jsonl.gz")
    options = ("--policies", "fifo", "--slots", "1", "--seeds", "4", "--deadline", "1m")
    (row,) = compare_rows(paceline, trace, *options)
    times = sorted(
        Simulation(
            source=str(trace), policy="fifo", slots=1, seed=seed, target=0.5, deadline_s=60.0
        )
        .run()
        .makespan_s
        for seed in range(4)
    )
    never = times.count(60.0)
    assert 0 < never < 4
    assert (row.reached, row.never) == (4 - never, never)
    assert row.time_p10_s == quantile(times, 0.1)
    assert row.time_median_s == quantile(times, 0.5)
    assert row.time_p90_s == quantile(times, 0.9)
    assert row.time_mean_s == pytest.approx(sum(times) / 4)


def test_a_row_without_reported_numbers_has_no_best(paceline: CommandLine) -> None:
    options = ("--policies", "fifo", "--deadline", "1", "--seeds", "3", "--trials", "2")
    (row,) = compare_rows(paceline, "toy:epoch_s=9", *options)
    assert row.best_median is None


def test_a_seed_gives_every_policy_the_same_order(tmp_path: Path) -> None:
    trace = write_small_trace(tmp_path / "t.jsonl.gz")

    def order(policy: str, slots: int) -> list[object]:
        log: list[Step] = []
        Simulation(source=str(trace), policy=policy, slots=slots, seed=5).run(remember=log.extend)
        return [d.config for step in log for d in step.decisions if isinstance(d, Open)]

    assert order("fifo", 1) == order("asha", 3)


def test_several_processes_find_the_same_as_one(tmp_path: Path) -> None:
    trace = write_small_trace(tmp_path / "t.jsonl.gz")
    comparison = Comparison(sources=(str(trace),), policies=("fifo", "asha"), slots=(1, 2), seeds=3)
    seen: list[tuple[int, int]] = []
    together = compare(comparison, jobs=2, watch=lambda done, runs: seen.append((done, runs)))
    alone = compare(comparison, jobs=1)
    assert together.rows == alone.rows
    assert together.runs == alone.runs == 12
    assert seen[-1] == (12, 12)


REFUSING = """
from paceline.core.errors import SpecError
from paceline.policies import Fifo


class Refusing(Fifo):
    def admit(self, study):
        raise SpecError("this policy always refuses.")
"""


def test_an_error_in_another_process_is_raised_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "refusing.py").write_text(REFUSING, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    trace = write_small_trace(tmp_path / "t.jsonl.gz")
    comparison = Comparison(sources=(str(trace),), policies=("mine.refusing:Refusing",), seeds=9)
    with pytest.raises(SpecError, match="always refuses"):
        compare(comparison, jobs=2)
    assert multiprocessing.active_children() == []


def test_invalid_options_are_refused_before_the_first_run(tmp_path: Path) -> None:
    trace = write_small_trace(tmp_path / "t.jsonl.gz")
    base = Simulation(source="", retries=-1)
    comparison = Comparison(sources=(str(trace),), policies=("fifo",), base=base)
    with pytest.raises(SpecError, match="retries=-1"):
        compare(comparison, jobs=2)


def test_an_empty_list_is_refused() -> None:
    with pytest.raises(SpecError, match="policies is empty"):
        Comparison(sources=("toy",), policies=())


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("fifo", ["fifo"]),
        ("fifo,asha", ["fifo", "asha"]),
        ("asha:eta=3,drain=false,fifo", ["asha:eta=3,drain=false", "fifo"]),
        ("asha:eta=3,drain=false;asha:eta=4", ["asha:eta=3,drain=false", "asha:eta=4"]),
        ("my.module:Policy,fifo", ["my.module:Policy", "fifo"]),
        (" fifo , asha ", ["fifo", "asha"]),
    ],
)
def test_a_comma_separates_parts_and_parameters(text: str, parts: list[str]) -> None:
    assert split_parts(text) == parts


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20), st.floats(0, 1))
def test_a_quantile_is_between_its_neighbours(values: list[float], share: float) -> None:
    ordered = sorted(values)
    assert ordered[0] <= quantile(ordered, share) <= ordered[-1]
    assert quantile(ordered, 0.0) == ordered[0]
    assert quantile(ordered, 1.0) == ordered[-1]
