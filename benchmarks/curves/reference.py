"""Compare the ensemble's short chains with long ones: `python -m benchmarks.curves.reference`.

On 50 recorded curves, compares predictive mean and standard deviation of the last epoch with those
of a chain twenty times as long, whose burn-in alone is longer than the short chain. Prints and
writes `benchmarks/results/curves-ensemble.md` and `.json`; with `--others`, on 50 curves that were
not used to choose any setting, `curves-ensemble-others.md`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from multiprocessing import get_context
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.curves.question_set import FAMILIES, HELD_OUT, load_questions
from benchmarks.curves.score import make_history
from benchmarks.page import collect_facts, format_provenance, format_table, publish
from paceline.curves.ensemble.model import STEPS, Ensemble

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.curves.question_set import Question

LONGER = 20
# Time of 700 steps of the published sampler on one core, walker by walker.
PUBLISHED_S = 13.0


def compare(question: Question) -> dict[str, Any]:
    """Return the difference between the short and the long chain, and the time of both."""
    asked = make_history(question)
    started = time.process_time()
    short = Ensemble().fit(asked)
    middle = time.process_time()
    long = Ensemble(steps=LONGER * STEPS).fit(asked)
    if short is None or long is None:
        raise ValueError(f"{question.key} has no forecast")
    found: dict[str, Any] = {
        "key": question.key,
        "points": len(question.losses),
        # In units of the long chain's standard deviation, which is stricter than of its mean.
        "mean_off": abs(short.means[0] - long.means[0]) / long.sds[0],
        "sd_off": abs(short.sds[0] / long.sds[0] - 1),
        "acceptance": short.acceptance,
        "r_hat": short.r_hat,
        "long_r_hat": long.r_hat,
        "seconds": middle - started,
        "long_seconds": time.process_time() - middle,
    }
    return {
        key: value if isinstance(value, str) else round(value, 4) for key, value in found.items()
    }


def main(given: Sequence[str] | None = None) -> None:
    """Compare all curves, print and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.curves.reference")
    parser.add_argument("--curves", type=int, default=50)
    parser.add_argument("--others", action="store_true", help="the next 50 curves instead")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args(given)
    started = time.perf_counter()
    shown = [family for family in FAMILIES if family not in HELD_OUT]
    first = options.curves if options.others else 0
    asked = _select_curves(load_questions(shown))[first : first + options.curves]
    rows = []
    with get_context("spawn").Pool(options.jobs) as pool:
        for row in pool.imap(compare, asked):
            rows.append(row)
            print(json.dumps(row), file=sys.stderr)
    command = "python -m benchmarks.curves.reference" + " --others" * options.others
    known = collect_facts(command, time.perf_counter() - started)
    publish(
        "curves-ensemble" + "-others" * options.others, make_page(rows, known), known, rows=rows
    )


def _select_curves(asked: Sequence[Question]) -> list[Question]:
    """Return curves of different runs, alternating between families and cuts."""
    runs: dict[tuple[str, int], list[Question]] = {}
    for question in asked:
        runs.setdefault((question.trace, question.run), []).append(question)
    # Alternate families, and the cuts of their runs.
    return [cuts[(at // 8) % len(cuts)] for at, cuts in enumerate(runs.values())]


def make_page(rows: Sequence[dict[str, Any]], known: dict[str, Any]) -> str:
    """Return the page."""

    def within(limit: float) -> str:
        good = [row for row in rows if row["mean_off"] <= limit and row["sd_off"] <= limit]
        return f"{len(good)} of {len(rows)}"

    seconds = median(row["seconds"] for row in rows)
    lines = [
        ["what", "found", "wanted"],
        ["mean and sd within 10 % of the long chain", within(0.1), "90 %"],
        ["mean and sd within 5 %", within(0.05), ""],
        ["seconds per curve, median", f"{seconds:.2f}", f"≤ {PUBLISHED_S / 20:.2f}"],
        ["seconds per curve, mean", f"{sum(row['seconds'] for row in rows) / len(rows):.2f}", ""],
        ["seconds per curve, most", f"{max(row['seconds'] for row in rows):.2f}", ""],
        ["times faster than 13 s, median", f"{PUBLISHED_S / seconds:.0f}", "≥ 20"],
        ["R-hat, median", f"{median(row['r_hat'] for row in rows):.3f}", ""],
        ["R-hat, most", f"{max(row['r_hat'] for row in rows):.3f}", ""],
        ["R-hat of the long chain, most", f"{max(row['long_r_hat'] for row in rows):.3f}", ""],
        ["acceptance, least", f"{min(row['acceptance'] for row in rows):.2f}", ""],
        ["acceptance, median", f"{median(row['acceptance'] for row in rows):.2f}", ""],
    ]
    title = "# The ensemble's chains beside chains twenty times as long"
    note = (
        "The mean's error is in units of the long chain's standard deviation. Seconds are of one "
        "core. No held-out family is among the curves."
    )
    return f"{title}\n\n{note}\n\n{format_table(lines)}\n\n{format_provenance(known)}\n"


if __name__ == "__main__":
    main()
