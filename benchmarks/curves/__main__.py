"""Judge curve models on recorded runs: `python -m benchmarks.curves`.

Prints and writes `benchmarks/results/curves.md` and `.json`. The published samplers' answers are
read from `curves-published.json`; `--rerun-published` computes them anew, which takes hours of one
core.
"""

from __future__ import annotations

import argparse
import sys
import time
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

from benchmarks.curves import far, pinned
from benchmarks.curves.asking import ask
from benchmarks.curves.pages import page, summaries
from benchmarks.curves.recorded import FAMILIES, RUNS, Question, questions
from benchmarks.curves.score import Score, score
from benchmarks.page import facts, publish
from paceline.api.registry import names

if TYPE_CHECKING:
    from collections.abc import Sequence

# The simulator's own model knows the future and is no rival.
NO_RIVALS = {"oracle"}
BATCH = 100


def read(name: str, asked: Sequence[Question]) -> list[Score]:
    """Score a published sampler's stored answers."""
    kept = pinned.Pinned(name)
    return [score(q, kept.forecast(q), kept.seconds(q), kept.log_density(q)) for q in asked]


def judge(chosen: Sequence[str], asked: Sequence[Question], jobs: int) -> dict[str, list[Score]]:
    """Return every model's scores on the same questions."""
    found: dict[str, list[Score]] = {}
    for name in chosen:
        if name in pinned.NAMES:
            found[name] = read(name, asked)
            continue
        size = max(1, min(BATCH, -(-len(asked) // jobs)))
        batches = [(name, asked[at : at + size]) for at in range(0, len(asked), size)]
        if jobs == 1:
            answers = list(map(ask, batches))
        else:
            with get_context("spawn").Pool(jobs) as pool:
                answers = pool.map(ask, batches, chunksize=1)
        found[name] = [one for answer in answers for one in answer]
        print(f"{name}: {len(found[name])} questions", file=sys.stderr)
    return found


def rerun(asked: Sequence[Question], jobs: int) -> None:
    """Compute the published samplers' answers anew and pin them."""
    started = time.perf_counter()
    wanted = [pinned.ask(q, chain) for q in asked for chain in far.CHAINS]
    with get_context("spawn").Pool(jobs) as pool:
        lines = pool.map(far.answer, wanted, chunksize=1)
    command = "python -m benchmarks.curves --rerun-published"
    pinned.write(lines, facts(command, time.perf_counter() - started))


def main(given: Sequence[str] | None = None) -> None:
    """Ask, score, print and write."""
    options = _options(given)
    started = time.perf_counter()
    families = [name for name in FAMILIES if not options.families or name in options.families]
    asked = questions(families, options.runs)
    if options.rerun_published:
        rerun(asked, options.jobs)
    for name in set(options.models) & set(pinned.NAMES):
        kept = pinned.Pinned(name)
        asked = [question for question in asked if kept.knows(question)]
    scores = judge(options.models, asked, options.jobs)
    command = " ".join(["python -m benchmarks.curves", *(sys.argv[1:] if given is None else given)])
    known: dict[str, Any] = facts(command, time.perf_counter() - started)
    text = page(scores, families, known)
    if options.dry:
        print(text)
    else:
        publish("curves", text, known, rows=summaries(scores, families))


def _options(given: Sequence[str] | None) -> argparse.Namespace:
    rivals = [*pinned.NAMES] if pinned.PATH.exists() else []
    ours = [name for name in names("curve model") if name not in NO_RIVALS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.curves", description=__doc__)
    parser.add_argument(
        "--models",
        type=lambda text: text.split(","),
        default=[*rivals, "power-law", *ours],
        help="names, separated by commas",
    )
    parser.add_argument("--families", type=lambda text: text.split(","), default=[])
    parser.add_argument("--runs", type=int, default=RUNS, help="runs a family")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--rerun-published", action="store_true")
    parser.add_argument("--dry", action="store_true", help="write no files")
    return parser.parse_args(given)


if __name__ == "__main__":
    main()
