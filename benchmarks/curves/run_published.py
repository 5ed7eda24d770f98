"""Run the published samplers on a list of questions, on all cores.

Does not know traces: questions are JSON with accuracies in [0, 1]. Answers are written line by line
as JSON, so an interrupted run keeps its answers. Stops at a time limit.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from multiprocessing import Pool
from typing import Any

import numpy as np

from benchmarks.curves.baselines.naslib4 import NASLIB4
from paceline.curves.published.weighted_sum import PUBLISHED, WeightedSum, run_published_chain

# Name -> settings, and the lengths at which a chain is read.
CHAINS: dict[str, tuple[Any, dict[str, int]]] = {
    "naslib4": (NASLIB4, {"naslib4": 800}),
    "published": (PUBLISHED, {"published-700": 700, "published-2500": 2500}),
}


def answer_question(question: dict[str, Any]) -> dict[str, Any]:
    """Return each sampler's answer to one question, in accuracies, and its time."""
    settings, lengths = CHAINS[question["chain"]]
    found: dict[str, Any] = {"key": question["key"], "chain": question["chain"]}
    started = time.perf_counter()
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            y = np.asarray(question["y"], dtype=float)
            x = np.arange(1, len(y) + 1, dtype=float)
            model = WeightedSum(x, y, question["limit"], settings)
            given = run_published_chain(model, max(lengths.values()), question["seed"])
        except (ValueError, FloatingPointError, np.linalg.LinAlgError) as error:
            given, found["error"] = None, str(error)[:100]
        for name, length in lengths.items():
            mixture = given and given.mix(question["limit"], length)
            found[name] = mixture and {
                "quantiles": [float(f"{value:.6g}") for value in mixture.quantiles()],
                "log_density": round(mixture.log_density(question["truth"], question["width"]), 4),
            }
    if given is not None:
        found |= {"acceptance": round(given.acceptance, 4), "families": len(given.model.families)}
    found["seconds"] = round(time.perf_counter() - started, 3)
    return found


def main(source: str, out: str, jobs: str, limit_s: str) -> None:
    """Answer questions in order, until all are answered or the time is up."""
    ends = time.monotonic() + float(limit_s)
    with open(source, encoding="utf-8") as file:
        asked = json.load(file)
    with Pool(int(jobs)) as pool, open(out, "w", encoding="utf-8") as file:
        answers = pool.imap_unordered(answer_question, asked, chunksize=1)
        for number in range(len(asked)):
            try:
                given = answers.next(timeout=max(0.1, ends - time.monotonic()))
            except Exception as error:
                print(f"stopped after {number} of {len(asked)}: {type(error).__name__}")
                break
            file.write(json.dumps(given) + "\n")
            file.flush()
        pool.terminate()


if __name__ == "__main__":
    main(*sys.argv[1:])
