"""Measure the quality of decisions on recorded traces: `python -m benchmarks.quality [PART …]`.

Prints and writes `benchmarks/results/quality-PART.md` and `.json` for each part; all by default.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from benchmarks.page import collect_facts, format_provenance, publish
from benchmarks.quality import anchors, deadlines, pop, pop_fifo, traces
from benchmarks.quality.runs import TRACES

if TYPE_CHECKING:
    from types import ModuleType

COMMAND = "python -m benchmarks.quality"
PARTS: dict[str, ModuleType] = {
    "anchors": anchors,
    "pop": pop,
    "pop-fifo": pop_fifo,
    "hypersched": deadlines,
    "traces": traces,
}


def main() -> None:
    """Run the requested parts; print and write their pages."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}: all")
    parser.add_argument("--allocators", default="fixed,uniform", help="for hypersched")
    slots = ",".join(map(str, traces.SLOTS))
    parser.add_argument("--slots", help=f"for traces: {slots}; for pop-fifo: 4,8")
    parser.add_argument(
        "--orders",
        type=int,
        help=f"for traces: {traces.ORDERS}; for pop-fifo: {pop_fifo.ORDERS}",
    )
    options = parser.parse_args()
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"unknown part {', '.join(sorted(unknown))}: use {', '.join(PARTS)}")
    if not TRACES.is_dir():
        sys.exit(f"no recorded traces at {TRACES}: skipped. Set PACELINE_TRACES to their folder.")
    for name in options.parts or PARTS:
        started = time.perf_counter()
        asked: dict[str, Any] = {}
        words = [COMMAND, name]
        if name == "hypersched":
            asked["allocators"] = tuple(options.allocators.split(","))
            words += ["--allocators", options.allocators]
        part = PARTS[name]
        if name in ("traces", "pop-fifo"):
            counts = tuple(map(int, options.slots.split(","))) if options.slots else part.SLOTS
            asked |= {"slots": counts, "orders": options.orders or part.ORDERS}
            words += ["--slots", ",".join(map(str, counts)), "--orders", str(asked["orders"])]
        found = part.run(**asked)
        known = collect_facts(" ".join(words), time.perf_counter() - started)
        page = f"{part.make_page(found)}\n\n{format_provenance(known)}\n"
        publish(f"quality-{name}", page, known, found=part.to_json(found))


if __name__ == "__main__":
    main()
