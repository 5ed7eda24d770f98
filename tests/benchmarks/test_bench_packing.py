"""The benchmark of packing: its mechanics on a core with minimal work."""

from __future__ import annotations

import pytest
from benchmarks.packing import Target, make_page, make_table, measure, measure_out_of_memory


@pytest.mark.slow
def test_packed_trials_are_counted_and_survive_a_lack_of_memory() -> None:
    row = measure(2, False, Target(cpu=True))
    assert (row["pack"], row["mps"], row["finished"], row["trouble"]) == (2, "off", 4, [])
    assert row["per_minute"] > 0
    oom = measure_out_of_memory(Target(cpu=True))
    assert oom["crowded"] >= 1
    assert oom["finished"] == oom["trials"] == 4
    assert "can't allocate memory" in oom["note"]


def test_the_table_has_ratios_to_one_trial_at_a_time_and_the_way_of_sharing() -> None:
    row = {"finished": 24, "epoch_s": 0.0213, "trouble": []}
    rows = [
        {**row, "pack": 1, "mps": "off", "per_minute": 20.0},
        {**row, "pack": 2, "mps": "off", "per_minute": 30.0},
        {**row, "pack": 2, "mps": "up", "per_minute": 40.0},
        {**row, "pack": 4, "mps": "it is not installed", "per_minute": 35.0, "epoch_s": None},
    ]
    cells = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in make_table(rows).splitlines()
    ]
    assert cells[2:] == [
        ["1", "alone", "24", "20.0", "1.00", "21 ms"],
        ["2", "turns", "24", "30.0", "1.50", "21 ms"],
        ["2", "MPS", "24", "40.0", "2.00", "21 ms"],
        ["4", "turns: it is not installed", "24", "35.0", "1.75", ""],
    ]
    known = {
        "gpu": "GPU of the test",
        "title": "",
        "command": "python -m benchmarks.packing",
        "took_s": 1,
        "date": "2026-11-15",
        "commit": "none",
        "machine": {"cpu": "a", "cores": 1, "system": "b", "python": "3"},
        "versions": {"paceline": "0"},
    }
    oom = {"trials": 4, "crowded": 1, "finished": 4, "note": "CUDA out of memory."}
    assert "1 ran out of memory (`CUDA out of memory.`)" in make_page(rows, oom, known)
