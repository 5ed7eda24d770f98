"""Score networks on the recorded rows in the fast simulator, many orders in a minute.

`python -m training.planner.evaluate --traces FOLDER --networks FOLDER`. The networks of each
row are those that have not seen its family; `make bench-planner` measures in the real simulator.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import statistics
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from paceline.policies.planner.candidates import CandidateSettings
from paceline.policies.planner.ranking import RankingSettings
from paceline.policies.planner.weights import LoadedNetworks, check_networks
from training.planner.fast_sim import FastSimulation, Study, prepare
from training.planner.traces import read_study

SHARES = ("5", "10", "25")


class RowJob(NamedTuple):
    """One study: a trace, its order, slots, and a target or a deadline."""

    trace: str
    slots: int
    seed: int
    target: float | None
    deadline: float
    traces: str
    networks: str
    settings: RankingSettings
    candidates: CandidateSettings


@cache
def _read(path: Path) -> Study:
    return read_study(path)


@cache
def load_fold(folder: str, family: str) -> LoadedNetworks:
    """Return the networks that have not seen a family; without such, those that have seen all."""
    path = Path(folder) / f"{family}.npz"
    if not path.exists():
        path = Path(folder) / "all.npz"
    return check_networks(dict(np.load(path, allow_pickle=False)))


def simulate(job: RowJob) -> tuple[RowJob, float, float]:
    """Return the time to the target and the best loss of a study."""
    study = _read(Path(job.traces) / f"{job.trace}.jsonl.gz")
    order = np.random.default_rng(job.seed).permutation(len(study.lengths))
    networks = load_fold(job.networks, study.family)
    outcome = FastSimulation(
        prepare(study, order),
        networks.usable,
        job.settings,
        target=job.target,
        deadline=job.deadline,
        opening=networks.opening,
        candidates=job.candidates,
    ).run(job.slots)
    return job, outcome.time, outcome.best


def list_jobs(
    rows: list[dict[str, Any]], orders: int, base: RowJob, *, regret: bool
) -> list[RowJob]:
    """Return the studies of all rows."""
    jobs = []
    for row in rows:
        trace, slots = row["trace"], row["slots"]
        sign = -1.0 if row["best"] >= row["median_final"] else 1.0
        for seed in range(orders):
            own = base._replace(trace=trace, slots=slots, seed=seed)
            jobs += [own._replace(target=sign * float(each)) for each in row["targets"]]
            if regret and slots == 4:
                jobs += [own._replace(deadline=row["deadline_s"][each]) for each in SHARES]
    return jobs


def print_scores(rows: list[dict[str, Any]], found: dict[tuple[Any, ...], list[float]]) -> None:
    """Print the ratios to the oracle and to the best known policy, and the mean regrets."""
    for slots in (4, 8):
        ratios, beside, never, cells = [], [], 0, []
        for row in (each for each in rows if each["slots"] == slots):
            sign = -1.0 if row["best"] >= row["median_final"] else 1.0
            limit = row["fifo_makespan_s"]
            for target, known in row["targets"].items():
                times = found[row["trace"], slots, sign * float(target), math.inf]
                never += sum(each > limit for each in times)
                median = statistics.median(min(each, limit) for each in times)
                best = min(
                    each["median"]
                    for name, each in known["policies"].items()
                    if not name.startswith("peek")
                )
                ratios.append(median / known["oracle_s"])
                beside.append(median / best)
                cells.append(f"{row['trace'][:14]} {ratios[-1]:.2f} ({beside[-1]:.2f})")
        if ratios:
            mean = math.exp(statistics.mean(map(math.log, ratios)))
            print(f"{slots} slots: {mean:.3f}, worst {max(beside):.2f}, never {never}")
            print("  " + ", ".join(cells))
    for share in SHARES:
        regrets = []
        for row in rows:
            sign = -1.0 if row["best"] >= row["median_final"] else 1.0
            values = found.get((row["trace"], row["slots"], None, row["deadline_s"][share]))
            if values:
                best, usual = row["best"], row["median_final"]
                each = [
                    (best - (sign * v if math.isfinite(v) else usual)) / (best - usual)
                    for v in values
                ]
                regrets.append(statistics.median(each))
        if regrets:
            print(f"regret at {share} %: {statistics.mean(regrets):.4f}", end="  ")
            print(" ".join(f"{each:.3f}" for each in regrets))


def _replace(settings: Any, given: dict[str, str]) -> Any:  # noqa: ANN401
    """Return settings with those that were given, which are removed from there."""
    found = {name: given.pop(name) for name in settings._fields if name in given}
    return settings._replace(
        **{name: type(getattr(settings, name))(value) for name, value in found.items()}
    )


def main() -> None:
    """Simulate all rows and print their scores."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", required=True)
    parser.add_argument("--networks", required=True)
    parser.add_argument("--orders", type=int, default=20)
    parser.add_argument("--slots", type=int, nargs="*", default=[4, 8])
    parser.add_argument("--regret", action="store_true")
    parser.add_argument("--set", default="dev")
    parser.add_argument("--settings", default="", help="name=value, separated by commas")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    options = parser.parse_args()
    given = dict(each.split("=") for each in options.settings.split(",") if each)
    settings, candidates = (
        _replace(each, given) for each in (RankingSettings(), CandidateSettings())
    )
    if given:
        parser.error(f"unknown settings: {', '.join(given)}")
    anchors = Path(options.traces).parent / "anchors.json"
    rows = [
        row
        for row in json.loads(anchors.read_text(encoding="utf-8"))["rows"]
        if row["set"] == options.set and row["slots"] in options.slots
    ]
    base = RowJob("", 0, 0, None, math.inf, options.traces, options.networks, settings, candidates)
    found: dict[tuple[Any, ...], list[float]] = {}
    with multiprocessing.get_context("fork").Pool(options.jobs) as pool:
        jobs = list_jobs(rows, options.orders, base, regret=options.regret)
        for job, time, best in pool.imap_unordered(simulate, jobs, chunksize=4):
            key = job.trace, job.slots, job.target, job.deadline
            found.setdefault(key, []).append(time if job.target is not None else best)
    print_scores(rows, found)


if __name__ == "__main__":
    main()
