"""The page of the Ray benchmark has the figures and their ratios."""

from __future__ import annotations

from benchmarks.ray import OURS, REUSE, Case, format_page


def test_the_page_compares_equal_cases() -> None:
    found = {
        Case(OURS, 64, 100): [rates(4000.0, 40.0), rates(3000.0, 30.0)],
        Case(REUSE, 64, 100): [rates(200.0, 2.0), rates(200.0, 2.0)],
        Case(REUSE, 10, 1): [rates(1.0, 1.0), rates(1.0, 1.0)],
    }
    study = {
        "trials": 64,
        "cluster_s": 10.0,
        "simulated_s": 9.5,
        "forecast_s": 0.25,
        "off": -0.05,
        "epochs_shared": 200,
        "widths": {"0.5": 30, "1": 34, "2": 3},
        "resizes": 4,
        "identical": True,
    }
    row = {"reports_per_cpu_s": 30_000.0, "busy": 0.5, "resumed": 10, "near": 9}
    growth = [{**row, "nodes": 125, "slots": 1000, "reports": 1_000_000}]
    text = format_page(found, [study, {**study, "identical": False}], growth)
    assert "| 125   | 1,000 | 1,000,000 | 30,000                 | 50.0%      | 9 of 10 " in text
    assert "* 64 x 100: 17.5 times Ray Tune, reuse_actors (15.0 to 20.0)\n" in text
    assert "* 10 x 1" not in text
    assert "| 10.0 s  | 9.5 s     | -5.0%      | 0.25 s   | 200           | 30 of 0.5, " in text
    assert "34 of 1, 3 of 2 | 4       | identical |" in text
    assert "| differs   |" in text
    assert "10.0 s on the cluster, 9.5 s in the simulator, -5.0% (target: within 10%)" in text


def rates(reports: float, trials: float) -> dict[str, float]:
    return {"reports_per_s": reports, "trials_per_s": trials, "load": 1.0}
