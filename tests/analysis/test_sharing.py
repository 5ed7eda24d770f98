"""What trials share, as `paceline tree` shows it, and what that saved."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from command_line import CommandLine, compare_golden, read_log
from shared_schedules import EPOCHS, SCHEDULES, make_sharing_study
from small_studies import make_table

from paceline.analysis.sharing import Sharing, measure_sharing
from paceline.engines.sim.cluster import Faults
from paceline.engines.sim.traces import write_trace
from paceline.testing.random_parts import RandomAllocator

if TYPE_CHECKING:
    from pathlib import Path


def test_each_node_has_its_changes_and_its_trials() -> None:
    found = measure_sharing(make_sharing_study().run().steps)
    rows = [
        (row.parent, row.first, row.last, [(c.epoch, c.values) for c in row.changes], row.trials)
        for row in found.nodes
    ]
    assert rows == [
        (None, 1, 2, [(1, {"lr": 0.1, "width": 8})], [0, 1, 2, 3, 4]),
        (0, 3, 4, [], [0, 2]),
        (1, 5, 6, [], [0]),
        (1, 5, 6, [(5, {"lr": 0.05})], [2]),
        (0, 3, 4, [(3, {"lr": 0.01})], [1, 3, 4]),
        (4, 5, 6, [], [1, 4]),
        (4, 5, 6, [(5, {"lr": 0.001})], [3]),
        (None, 1, 6, [(1, {"lr": 0.3, "width": 8})], [5]),
    ]
    assert [row.node for row in found.nodes] == list(range(8))


def test_epochs_saved_are_those_asked_minus_those_trained() -> None:
    played = make_sharing_study().run()
    found = measure_sharing(played.steps)
    assert (found.epochs_asked, found.epochs_needed, found.epochs_trained) == (36, 20, 20)
    assert found.epochs_saved == 16
    assert found.seconds_saved == found.slot_seconds_saved == pytest.approx(160.0)
    assert found.merge_rate == found.merge_rate_whole == pytest.approx(1.8)
    alone = measure_sharing(make_sharing_study(share=False).run().steps)
    assert (alone.epochs_asked, alone.epochs_needed, alone.epochs_trained) == (36, 36, 36)
    assert (alone.seconds_saved, alone.merge_rate) == (0.0, 1.0)
    assert [row.trials for row in alone.nodes] == [[number] for number in range(6)]


def test_slot_time_counts_every_slot_of_a_wide_trial() -> None:
    played = make_sharing_study(slots=4, span=2, allocator=RandomAllocator(seed=1)).run()
    found = measure_sharing(played.steps)
    assert found.slot_seconds_saved > found.seconds_saved > 0.0


def test_epochs_trained_again_after_a_loss_are_not_saved() -> None:
    played = make_sharing_study(
        cluster={"faults": Faults(mean_life_s=60.0, seed=1)}, retries=99
    ).run()
    found = measure_sharing(played.steps)
    assert played.state.repeats > 0, "nothing was lost, so nothing is shown"
    assert found.epochs_trained == 20 + played.state.repeats
    assert found.epochs_saved == 16 - played.state.repeats
    assert found.merge_rate == pytest.approx(1.8)


def test_a_study_that_has_just_started_shares_nothing() -> None:
    found = measure_sharing(make_sharing_study().run().steps[:1])
    assert (found.epochs_asked, found.epochs_saved, found.merge_rate) == (0, 0, None)


@pytest.fixture
def kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    """The command line, in a folder with one study that shares and one that does not."""
    here = CommandLine(tmp_path, capsys, monkeypatch)
    configs = [{"lr": lr, "width": 8} for lr in SCHEDULES]
    curve = [1.0 - 0.1 * epoch for epoch in range(EPOCHS)]
    trace = make_table([curve] * 6, configs=configs, seconds=10.0)
    write_trace(here.folder / "steps.jsonl.gz", trace.header, trace.runs)
    order = ("--order", "file", "--policy", "fifo")
    here("simulate", "steps.jsonl.gz", *order, "--share", "--slots", "2", "--name", "together")
    here("simulate", "steps.jsonl.gz", *order, "--name", "apart")
    return here


def test_tree_draws_what_trials_share(kept: CommandLine) -> None:
    compare_golden("tree.txt", kept("tree", "together").out)


def test_tree_says_that_nothing_is_shared(kept: CommandLine) -> None:
    compare_golden("tree_apart.txt", kept("tree", "apart", "--limit", "2").out)


def test_tree_as_json_has_every_node_unless_limited(kept: CommandLine) -> None:
    found = msgspec.json.decode(kept("tree", "together", "--json").out, type=Sharing)
    assert found == measure_sharing(read_log("paceline.db", "together"))
    few = kept("tree", "together", "--limit", "3", "--json").out
    assert msgspec.json.decode(few, type=Sharing).nodes == found.nodes[:3]


def test_tree_of_an_unknown_study_is_an_error_of_one_line(kept: CommandLine) -> None:
    ran = kept("tree", "nobody")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
