"""How good the decisions are, on recorded traces: `python -m benchmarks.quality [PART …]`.

Prints and writes `benchmarks/results/quality-PART.md` and `.json` for each part, or for all.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from benchmarks.page import facts, provenance, publish
from benchmarks.quality import anchors, deadlines, pop, traces
from benchmarks.quality.runs import TRACES

if TYPE_CHECKING:
    from types import ModuleType

COMMAND = "python -m benchmarks.quality"
PARTS: dict[str, ModuleType] = {
    "anchors": anchors,
    "pop": pop,
    "hypersched": deadlines,
    "traces": traces,
}


def main() -> None:
    """Run, print and write what is asked for."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}: all")
    parser.add_argument("--allocators", default="fixed", help="for hypersched: fixed,uniform")
    slots = ",".join(map(str, traces.SLOTS))
    parser.add_argument("--slots", default=slots, help="for traces")
    parser.add_argument("--orders", type=int, default=traces.ORDERS, help="for traces")
    options = parser.parse_args()
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"there is no part {', '.join(sorted(unknown))}: give {', '.join(PARTS)}")
    if not TRACES.is_dir():
        sys.exit(f"no recorded traces at {TRACES}: skipped. PACELINE_TRACES says where they are.")
    for name in options.parts or PARTS:
        started = time.perf_counter()
        asked: dict[str, Any] = {}
        words = [COMMAND, name]
        if name == "hypersched":
            asked["allocators"] = tuple(options.allocators.split(","))
            words += ["--allocators", options.allocators]
        elif name == "traces":
            asked["slots"] = tuple(map(int, options.slots.split(",")))
            asked["orders"] = options.orders
            words += ["--slots", options.slots, "--orders", str(options.orders)]
        part = PARTS[name]
        found = part.run(**asked)
        known = facts(" ".join(words), time.perf_counter() - started)
        page = f"{part.page(found)}\n\n{provenance(known)}\n"
        publish(f"quality-{name}", page, known, found=part.plain(found))


if __name__ == "__main__":
    main()
