"""The page of the Ray benchmark says what was found, and by how much."""

from __future__ import annotations

from benchmarks.ray import OURS, REUSE, Case, page


def test_the_page_compares_what_did_the_same() -> None:
    found = [
        (Case(OURS, 64, 100), {"reports_per_s": 4000.0, "trials_per_s": 40.0, "load": 1.0}),
        (Case(REUSE, 64, 100), {"reports_per_s": 200.0, "trials_per_s": 2.0, "load": 1.0}),
        (Case(REUSE, 10, 1), {"reports_per_s": 1.0, "trials_per_s": 1.0, "load": 1.0}),
    ]
    life = {
        "trials": 64,
        "life_s": 10.0,
        "simulated_s": 9.5,
        "forecast_s": 0.25,
        "off": -0.05,
        "epochs_shared": 200,
        "identical": True,
    }
    text = page(found, life)
    assert "* 64 x 100: 20.0 times Ray Tune, reuse_actors\n" in text
    assert "* 10 x 1" not in text
    assert "took 10.0 s there, and 9.5 s in the simulator" in text
    assert "-5.0% (asked for: within 10%)" in text
    assert "replays as identical" in text
