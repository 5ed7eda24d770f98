"""Compare curve models for `early_term`: time to target on recorded traces.

`python -m benchmarks.early_term`, `make bench-early-term`. The ensemble takes half a second per
forecast, so it runs only on the traces that `--ensemble` names.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.page import ROOT, collect_facts, format_provenance, format_table, publish
from paceline.api.comparison import Comparison, compare

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.api.comparison import CompareRow

TRACES = Path(os.environ.get("PACELINE_TRACES", ROOT.parent / "shared" / "traces"))
COMMAND = "python -m benchmarks.early_term"
SLOTS, ORDERS = 4, 50
MODELS = ("last", "pfn", "pfn_study", "oracle")


class TraceTarget(NamedTuple):
    """A recorded trace and a target value in it."""

    trace: str
    target: float


RACES = (
    TraceTarget("cifar10_cnn14", 0.74),
    TraceTarget("cifar10_cnn14", 0.72),
    TraceTarget("nasbench_nlp_wikitext2", 5.0221),
    TraceTarget("mnist_cnn_tfhpo", 0.9932),
    TraceTarget("algoperf_ogbg_jax", 0.28911),
    TraceTarget("algoperf_fastmri_pytorch", 0.72414),
    TraceTarget("taskset_imdb_patch128_LSTM128_avg_bs64", 0.62333),
    TraceTarget("taskset_imdb_patch32_IRNN64_relu_avg_bs128", 0.68426),
    TraceTarget("deepobs_fmnist_2c2d", 0.92417),
    TraceTarget("deepobs_tolstoi_char_rnn", 0.61726),
)


def run_models(race: TraceTarget, models: Sequence[str], orders: int) -> dict[str, CompareRow]:
    """Run fifo, and early_term with each model, over the same orders."""
    source = str(TRACES / f"{race.trace}.jsonl.gz")
    settings: dict[str, Any] = {
        "sources": (source,),
        "slots": (SLOTS,),
        "seeds": orders,
        "target": race.target,
    }
    plain = compare(Comparison(policies=("fifo",), **settings))
    forecasting = compare(Comparison(policies=("early_term",), curves=tuple(models), **settings))
    return {"fifo": plain.rows[0], **{row.curves: row for row in forecasting.rows}}


def main() -> None:
    """Run all traces, print and write the page."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--ensemble", default="", help="traces on which the ensemble runs too")
    parser.add_argument("--orders", type=int, default=ORDERS)
    options = parser.parse_args()
    asked = set(filter(None, options.ensemble.split(",")))
    started = time.perf_counter()
    columns = ["fifo", *MODELS, *(["ensemble"] if asked else [])]
    lines = [["trace, target", *columns]]
    rows = []
    for race in RACES:
        models = [*MODELS, *(["ensemble"] if race.trace in asked else [])]
        found = run_models(race, models, options.orders)
        rows += [
            {
                "trace": race.trace,
                "target": race.target,
                "model": name,
                "median_s": row.time_median_s,
                "mean_s": row.time_mean_s,
                "never": row.never,
            }
            for name, row in found.items()
        ]
        lines.append(
            [f"{race.trace} {race.target:g}", *(_format_cell(found.get(n)) for n in columns)]
        )
        print(" ".join(lines[-1]), file=sys.stderr)
    means = [_format_mean_ratio(rows, name) if name != "ensemble" else "" for name in columns]
    lines.append(["times the oracle's, geometric mean", *means])
    command = " ".join([COMMAND, *sys.argv[1:]])
    known = collect_facts(command, time.perf_counter() - started)
    page = (
        f"# early_term with each curve model\n\n{format_table(lines)}\n\n"
        f"Median (mean) time to target in simulated seconds on {SLOTS} slots, over "
        f"{options.orders} orders of configs, the same for all. n✗: orders that never reached the "
        "target; they count with the time at which the study ended. `fifo` trains every trial to "
        f"its end; `oracle` knows the future.\n\n{format_provenance(known)}\n"
    )
    publish("early-term", page, known, rows=rows)


def _format_cell(row: CompareRow | None) -> str:
    if row is None or row.time_median_s is None or row.time_mean_s is None:
        return ""
    never = f" {row.never}✗" if row.never else ""
    return f"{row.time_median_s:.4g} ({row.time_mean_s:.4g}){never}"


def _format_mean_ratio(rows: list[dict[str, Any]], name: str) -> str:
    """Return the mean ratio of times to those with the oracle, over all traces."""

    def medians(model: str) -> dict[TraceTarget, float]:
        return {
            TraceTarget(row["trace"], row["target"]): row["median_s"]
            for row in rows
            if row["model"] == model
        }

    own, best = medians(name), medians("oracle")
    return f"{math.exp(fmean(math.log(own[race] / best[race]) for race in best)):.2f}"


if __name__ == "__main__":
    main()
