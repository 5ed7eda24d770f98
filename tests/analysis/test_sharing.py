"""What trials have in common, as `paceline tree` tells it: who shares what, and what it saved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from build import Played, table
from cli_kit import Here, golden, log_of

import paceline as pl
from paceline.analysis.sharing import Sharing, sharing_of
from paceline.engines.sim.cluster import Faults
from paceline.engines.sim.traces import write_trace
from paceline.testing.random_parts import ProbeAllocator

if TYPE_CHECKING:
    from pathlib import Path

EPOCHS = 6
SCHEDULES = [
    0.1,
    pl.step_decay(0.1, drops=[2], factor=0.1),
    pl.step_decay(0.1, drops=[4], factor=0.5),
    pl.step_decay(0.1, drops=[2, 4], factor=0.1),
    pl.piecewise([(0, 0.1), (2, 0.01)]),
    0.3,
]


def study(**options: Any) -> Played:  # noqa: ANN401
    """Return a study of six schedules, of which one is another one written otherwise."""
    configs = [{"lr": lr, "width": 8} for lr in SCHEDULES]
    curve = [1.0 - 0.1 * epoch for epoch in range(EPOCHS)]
    given = {"share": True, "slots": 2, **options}
    return Played(table([curve] * 6, configs=configs, seconds=10.0), **given)


def test_each_node_says_what_is_new_in_it_and_who_shares_it() -> None:
    found = sharing_of(study().run().steps)
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


def test_what_was_saved_is_what_was_asked_for_without_what_was_trained() -> None:
    played = study().run()
    found = sharing_of(played.steps)
    assert (found.epochs_asked, found.epochs_needed, found.epochs_trained) == (36, 20, 20)
    assert found.epochs_saved == 16
    assert found.seconds_saved == found.slot_seconds_saved == pytest.approx(160.0)
    assert found.merge_rate == found.merge_rate_whole == pytest.approx(1.8)
    alone = sharing_of(study(share=False).run().steps)
    assert (alone.epochs_asked, alone.epochs_needed, alone.epochs_trained) == (36, 36, 36)
    assert (alone.seconds_saved, alone.merge_rate) == (0.0, 1.0)
    assert [row.trials for row in alone.nodes] == [[number] for number in range(6)]


def test_time_on_wide_slots_counts_for_each_of_them() -> None:
    played = study(slots=4, span=2, allocator=ProbeAllocator(seed=1)).run()
    found = sharing_of(played.steps)
    assert found.slot_seconds_saved > found.seconds_saved > 0.0


def test_epochs_that_were_lost_and_trained_again_are_not_saved() -> None:
    played = study(cluster={"faults": Faults(mean_life_s=60.0, seed=1)}, retries=99).run()
    found = sharing_of(played.steps)
    assert played.state.repeats > 0, "nothing was lost, so nothing is shown"
    assert found.epochs_trained == 20 + played.state.repeats
    assert found.epochs_saved == 16 - played.state.repeats
    assert found.merge_rate == pytest.approx(1.8)


def test_a_study_that_has_just_begun_has_nothing_to_tell() -> None:
    found = sharing_of(study().run().steps[:1])
    assert (found.epochs_asked, found.epochs_saved, found.merge_rate) == (0, 0, None)


@pytest.fixture
def kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Here:
    """The command line, in a folder with one study that shares and one that does not."""
    here = Here(tmp_path, capsys, monkeypatch)
    configs = [{"lr": lr, "width": 8} for lr in SCHEDULES]
    curve = [1.0 - 0.1 * epoch for epoch in range(EPOCHS)]
    trace = table([curve] * 6, configs=configs, seconds=10.0)
    write_trace(here.folder / "steps.jsonl.gz", trace.header, trace.runs)
    order = ("--order", "file", "--policy", "fifo")
    here("simulate", "steps.jsonl.gz", *order, "--share", "--slots", "2", "--name", "together")
    here("simulate", "steps.jsonl.gz", *order, "--name", "apart")
    return here


def test_tree_draws_what_trials_share(kept: Here) -> None:
    golden("tree.txt", kept("tree", "together").out)


def test_tree_says_so_where_nothing_is_shared(kept: Here) -> None:
    golden("tree_apart.txt", kept("tree", "apart", "--limit", "2").out)


def test_tree_as_json_has_every_node_unless_limited(kept: Here) -> None:
    found = msgspec.json.decode(kept("tree", "together", "--json").out, type=Sharing)
    assert found == sharing_of(log_of("paceline.db", "together"))
    few = kept("tree", "together", "--limit", "3", "--json").out
    assert msgspec.json.decode(few, type=Sharing).nodes == found.nodes[:3]


def test_tree_of_a_study_that_is_not_there_is_one_sentence(kept: Here) -> None:
    ran = kept("tree", "nobody")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
