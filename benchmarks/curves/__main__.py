"""Compare curve models on recorded runs: `python -m benchmarks.curves`.

Prints and writes `benchmarks/results/curves.md` and `.json`. The answers of the published samplers
are read from `curves-published.json`; `--rerun-published` computes them again, which takes hours of
one core.
"""

from __future__ import annotations

import argparse
import sys
import time
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

from benchmarks.curves import published_answers, run_published
from benchmarks.curves.forecast_batch import score_batch
from benchmarks.curves.question_set import FAMILIES, RUNS, Question, load_questions
from benchmarks.curves.results_page import make_page, summarize_scores
from benchmarks.curves.score import Score, score
from benchmarks.page import collect_facts, publish
from paceline.api.registry import list_parts

if TYPE_CHECKING:
    from collections.abc import Sequence

# The simulator's oracle knows the future, and the stored answers are those of `published`.
NO_RIVALS = {"oracle", "published"}
BATCH = 100


def read(name: str, asked: Sequence[Question]) -> list[Score]:
    """Score the stored answers of a published sampler."""
    kept = published_answers.PublishedSampler(name)
    return [score(q, kept.forecast(q), kept.seconds(q), kept.log_density(q)) for q in asked]


def judge(chosen: Sequence[str], asked: Sequence[Question], jobs: int) -> dict[str, list[Score]]:
    """Return the scores of every model on the same questions."""
    found: dict[str, list[Score]] = {}
    for name in chosen:
        if name in published_answers.NAMES:
            found[name] = read(name, asked)
            continue
        size = max(1, min(BATCH, -(-len(asked) // jobs)))
        batches = [(name, asked[at : at + size]) for at in range(0, len(asked), size)]
        if jobs == 1:
            answers = list(map(score_batch, batches))
        else:
            with get_context("spawn").Pool(jobs) as pool:
                answers = pool.map(score_batch, batches, chunksize=1)
        found[name] = [one for answer in answers for one in answer]
        print(f"{name}: {len(found[name])} questions", file=sys.stderr)
    return found


def rerun(asked: Sequence[Question], jobs: int) -> None:
    """Compute the answers of the published samplers again and store them."""
    started = time.perf_counter()
    wanted = [
        published_answers.to_published_question(q, chain)
        for q in asked
        for chain in run_published.CHAINS
    ]
    with get_context("spawn").Pool(jobs) as pool:
        lines = pool.map(run_published.answer_question, wanted, chunksize=1)
    command = "python -m benchmarks.curves --rerun-published"
    published_answers.write_answers(lines, collect_facts(command, time.perf_counter() - started))


def main(given: Sequence[str] | None = None) -> None:
    """Score all models, print and write the page."""
    options = _options(given)
    started = time.perf_counter()
    families = [name for name in FAMILIES if not options.families or name in options.families]
    asked = load_questions(families, options.runs)
    if options.rerun_published:
        rerun(asked, options.jobs)
    for name in set(options.models) & set(published_answers.NAMES):
        kept = published_answers.PublishedSampler(name)
        asked = [question for question in asked if kept.has_answer(question)]
    scores = judge(options.models, asked, options.jobs)
    command = " ".join(["python -m benchmarks.curves", *(sys.argv[1:] if given is None else given)])
    known: dict[str, Any] = collect_facts(command, time.perf_counter() - started)
    text = make_page(scores, families, known)
    if options.dry:
        print(text)
    else:
        publish("curves", text, known, rows=summarize_scores(scores, families))


def _options(given: Sequence[str] | None) -> argparse.Namespace:
    rivals = [*published_answers.NAMES] if published_answers.PATH.exists() else []
    ours = [name for name in list_parts("curve model") if name not in NO_RIVALS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.curves", description=__doc__)
    parser.add_argument(
        "--models",
        type=lambda text: text.split(","),
        default=[*rivals, "power-law", *ours],
        help="names, comma-separated",
    )
    parser.add_argument("--families", type=lambda text: text.split(","), default=[])
    parser.add_argument("--runs", type=int, default=RUNS, help="runs per family")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--rerun-published", action="store_true")
    parser.add_argument("--dry", action="store_true", help="write no files")
    return parser.parse_args(given)


if __name__ == "__main__":
    main()
