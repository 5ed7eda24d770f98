"""Studies on a Ray cluster: ours beside Ray Tune on the same nodes, and life beside the simulator.

`make bench-ray` starts a cluster of four nodes with two CPUs each on this machine and gives both
the same trials, which report without training anything, so that what is measured is what a report
and a trial cost. Then a study with POP, Fluid and sharing runs there, and in the simulator, which
is given the same trials; and clusters of up to 1,000 slots are simulated. Printed, and in
`benchmarks/results/ray.md` and `.json`; `--quick` is a run of everything with the least of work,
which writes nothing.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from array import array
from itertools import accumulate
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import paceline as pl
from benchmarks.local.work import Order, since_begun
from benchmarks.page import ROOT, facts, markdown, provenance, publish, spread
from benchmarks.table import numbers, trace
from paceline.api.stored import replayed
from paceline.core.decisions import AskForecast, Launch
from paceline.core.events import CapacityChanged, Forecasted
from paceline.engines.sim.traces import VERSION, Header, Run, Trace
from paceline.plan.settings import setting_at

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paceline.core.decisions import Step

COMMAND = "make bench-ray"
NODES, CPUS = 4, 2
OURS, TUNE, REUSE = "Paceline", "Ray Tune", "Ray Tune, reuse_actors"
# What is asked for: so many times Tune's reports, and trials, with actors reused.
FASTER_REPORTS, FASTER_TRIALS, NEAR = 5.0, 3.0, 0.10

# How long the trials of the study that is simulated too are.
EPOCHS = 12
# The simulated clusters: nodes, and what they are like.
GROWTH, NODE_SLOTS, FETCH_S, HOURS = (1, 8, 32, 125), 8, 20.0, 2.0


class Case(NamedTuple):
    """So many trials of so many reports, for one of them."""

    who: str
    trials: int
    epochs: int


# What each case found, round by round.
Found: TypeAlias = "dict[Case, list[dict[str, float]]]"
ROUNDS, LIVES = 3, 7
# Tune without reuse starts a process for each trial: a thousand would take an hour.
CASES = (
    Case(OURS, 64, 100),
    Case(TUNE, 64, 100),
    Case(REUSE, 64, 100),
    Case(OURS, 1000, 10),
    Case(TUNE, 100, 10),
    Case(REUSE, 1000, 10),
)


def ours(order: Order, address: str) -> Sequence[Step]:
    """Run the trials here; return the log, which was written, durable."""
    from benchmarks.local.ours import study

    return study(order, slots=pl.Ray(address=address)).run().log


def tune(order: Order, address: str) -> Sequence[Step]:
    """Run the trials with Ray Tune, which keeps no log of decisions."""
    from benchmarks.local.ray_tune import run

    run(order)
    return ()


def timed(who: str, order: Order, address: str) -> dict[str, float]:
    """Run the trials, connected to the cluster before and after: neither is charged for that."""
    import ray

    ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
    began = time.monotonic()
    log = (ours if who == OURS else tune)(order, address)
    ended = time.monotonic()
    assert not log or replayed(log).difference is None
    return {"seconds": since_begun(order.folder, ended), "call_s": ended - began}


def measured(case: Case, address: str) -> dict[str, float]:
    """Have a case run in a process of its own."""
    load = round(os.getloadavg()[0], 1)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        order = Order("reports", folder, 0.0, case.trials, case.epochs, reuse=case.who == REUSE)
        side = [sys.executable, "-m", "benchmarks.ray", "--side", case.who, address]
        paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
        done = subprocess.run(
            side,
            input=json.dumps(order._asdict()),
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": paths},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    found["load"] = load
    found["reports_per_s"] = case.trials * case.epochs / found["seconds"]
    found["trials_per_s"] = case.trials / found["seconds"]
    return found


def sleeps(trial: pl.Trial) -> None:
    """Sleep for as long as the setting says, and rise along a power law."""
    level = trial.keep(level=[0.0])
    for epoch in trial.epochs():
        time.sleep(epoch_s(trial))
        level[0] += rise(trial, epoch)
        trial.report(accuracy=min(1.0, level[0]))


def epoch_s(setting: Mapping[str, Any] | pl.Trial) -> float:
    """Return how long an epoch takes: no two trials alike.

    Else chance would say whose report is first, on which depends whom POP stops.
    """
    return float(setting["pace_s"] + 0.2 * setting["lr"])


def rise(setting: Mapping[str, Any] | pl.Trial, epoch: int) -> float:
    """Return by how much an epoch is better than the one before."""
    return float(setting["lr"] * 0.3 / (epoch + 1))


def lived(address: str, trials: int) -> dict[str, Any]:
    """Run a study with POP, Fluid and sharing on the cluster, and its trials in the simulator."""
    result = pl.tune(
        sleeps,
        space={
            "lr": pl.piecewise([(0, 1.0), (4, pl.uniform(0.01, 1.0))]),
            "pace_s": pl.choice([0.8, 1.0, 1.2]),
        },
        metric="accuracy",
        mode="max",
        range=(0, 1),
        epochs=EPOCHS,
        policy="pop",
        allocator="fluid",
        generator="random",
        trials=trials,
        slots=pl.Ray(address=address),
    )
    forecast_s = _forecast_s(result.log)
    simulated = pl.Simulation(
        source="life",
        policy="pop",
        allocator="fluid",
        slots=NODES * CPUS,
        order="file",
        share=True,
        range=(0, 1),
        forecast_s=forecast_s,
    ).run(trace=whole(result))
    began = next(s.event.at for s in result.log if isinstance(s.event, CapacityChanged))
    return {
        "trials": trials,
        "life_s": result.clock_s - began,
        "simulated_s": simulated.makespan_s,
        "forecast_s": forecast_s,
        "off": simulated.makespan_s / (result.clock_s - began) - 1.0,
        "epochs_shared": result.summary().epochs_shared,
        "identical": replayed(result.log).difference is None,
    }


def whole(result: pl.Result) -> Trace:
    """Return the study's trials as they would have gone on: their curves do not depend on life.

    What a trial that was stopped has left is cut short, and in the simulator it would end there.
    """
    epochs = range(EPOCHS)
    paths = [[setting_at(trial.config, epoch) for epoch in epochs] for trial in result.trials]
    over = median(
        second - epoch_s(setting)
        for trial, path in zip(result.trials, paths, strict=True)
        for second, setting in zip(trial.seconds, path, strict=False)
    )
    runs = []
    for trial, path in zip(result.trials, paths, strict=True):
        rises = (rise(setting, epoch) for epoch, setting in enumerate(path))
        values = array("d", (min(1.0, level) for level in accumulate(rises)))
        seconds = array("d", (epoch_s(setting) + over for setting in path))
        runs.append(Run(trial.id, trial.config, values, seconds))
    header = Header(
        paceline_trace=VERSION, name="life", metric="accuracy", mode="max", max_epochs=EPOCHS
    )
    return Trace(header, runs)


def _forecast_s(log: Sequence[Step]) -> float:
    """Return how long the study waited for a forecast on average, from asking to having it."""
    asked: dict[tuple[int, int], float] = {}
    waited = []
    for step in log:
        if isinstance(step.event, Forecasted):
            waited.append(step.event.at - asked[step.event.trial, step.event.epoch])
        for decision in step.decisions:
            if isinstance(decision, AskForecast):
                asked[decision.trial, decision.epoch] = step.event.at
    return fmean(waited)


def grown(nodes: int, table: Trace) -> dict[str, Any]:
    """Simulate a cluster of so many nodes on which trials pause and go on, for some hours."""
    steps: list[Step] = []
    began = time.process_time()
    result = pl.Simulation(
        source="table",
        policy="asha",
        slots=nodes * NODE_SLOTS,
        node_slots=NODE_SLOTS,
        fetch_s=FETCH_S,
        deadline_s=HOURS * 3600.0,
    ).run(trace=table, remember=steps.extend)
    cpu_s = time.process_time() - began
    launches = [one for step in steps for one in step.decisions if isinstance(one, Launch)]
    home = {launch.attempt: launch.slots[0] // NODE_SLOTS for launch in launches}
    again = [launch for launch in launches if launch.source is not None]
    near = sum(home[launch.source or 0] == home[launch.attempt] for launch in again)
    return {
        "nodes": nodes,
        "slots": nodes * NODE_SLOTS,
        "reports": result.reports,
        "reports_per_cpu_s": result.reports / cpu_s,
        "busy": result.busy_fraction,
        "resumed": len(again),
        "near": near,
    }


def page(found: Found, lives: Sequence[dict[str, Any]], growth: Sequence[dict[str, Any]]) -> str:
    """Return what was found, as a page."""
    lines = [
        ["trials x reports", "who", "reports/s", "trials/s", "ms a report", "ms a trial", "load"]
    ]
    for case, rounds in found.items():
        reports = [figures["reports_per_s"] for figures in rounds]
        trials = [figures["trials_per_s"] for figures in rounds]
        lines.append(
            [
                f"{case.trials} x {case.epochs}",
                case.who,
                f"{median(reports):,.0f} ({spread(reports)})",
                f"{median(trials):,.1f} ({spread(trials, 1)})",
                f"{1000 / median(reports):,.2f}",
                f"{1000 / median(trials):,.0f}",
                spread([figures["load"] for figures in rounds], 1),
            ]
        )
    return (
        "# On a Ray cluster\n\n"
        f"The same trials on the same cluster ({NODES} nodes with {CPUS} CPUs each, all on one "
        "machine), by turns: each reports as often as it says and trains nothing. Ours decides "
        "at every report and keeps a durable log; Tune runs its FIFO scheduler with one logger. "
        "Times count from the first line of the first trial to the return of the call, in a "
        "process that is connected to the cluster before and after. "
        f"Median (least to most) of {ROUNDS} rounds. The load is the machine's when a case "
        "began: others may work there too.\n\n"
        f"{markdown(lines)}\n\n{_ratios(found)}\n\n{_lives(lives)}"
        f"\n\n{_growth(growth)}"
    )


def _ratios(found: Found) -> str:
    """Return how many times faster ours is, where both did the same, round by round."""
    said = []
    for case, rounds in found.items():
        mine = found.get(case._replace(who=OURS))
        if case.who != OURS and mine is not None:
            times = [
                ours["reports_per_s"] / figures["reports_per_s"]
                for ours, figures in zip(mine, rounds, strict=True)
            ]
            said.append(
                f"* {case.trials} x {case.epochs}: {median(times):.1f} times {case.who} "
                f"({spread(times, 1)})"
            )
    asked = f"asked for: {FASTER_REPORTS:g} times the reports, {FASTER_TRIALS:g} times the trials"
    return "\n".join([*said, "", f"({asked} of Tune with reuse_actors)"])


def _lives(lives: Sequence[dict[str, Any]]) -> str:
    head = ["there", "in the simulator", "off", "a forecast took", "epochs shared", "replay"]
    lines = [
        [
            f"{life['life_s']:.1f} s",
            f"{life['simulated_s']:.1f} s",
            f"{life['off']:+.1%}",
            f"{life['forecast_s']:.2f} s",
            str(life["epochs_shared"]),
            "identical" if life["identical"] else "differs",
        ]
        for life in lives
    ]
    there, here = (median(life[name] for life in lives) for name in ("life_s", "simulated_s"))
    return (
        f"A study of {lives[0]['trials']} trials with POP, Fluid and sharing there, several times, "
        "and in the simulator, which was given the same trials and how long an epoch and, on "
        "average, a forecast took there. Epochs take about a second, and no two trials' alike: "
        "where they do, chance says which of two reports is first, and that whom POP stops."
        f"\n\n{markdown([head, *lines])}\n\nMedians: "
        f"{there:.1f} s there, {here:.1f} s in the simulator, {here / there - 1:+.1%} (asked for: "
        f"within {NEAR:.0%})."
    )


def _growth(growth: Sequence[dict[str, Any]]) -> str:
    head = ["nodes", "slots", "reports", "a CPU second handles", "slots busy", "resumed near"]
    lines = [
        [
            f"{row['nodes']:,}",
            f"{row['slots']:,}",
            f"{row['reports']:,}",
            f"{row['reports_per_cpu_s']:,.0f}",
            f"{row['busy']:.1%}",
            f"{row['near']:,} of {row['resumed']:,}",
        ]
        for row in growth
    ]
    return (
        f"Simulated: nodes of {NODE_SLOTS} slots for {HOURS:g} hours, epochs of about a minute, "
        f"`asha`, which pauses and resumes; a checkpoint from another node costs "
        f"{FETCH_S:g} s. How many reports a second of the driver's CPU handles, decisions "
        f"included, and how many attempts went on where their checkpoint was saved:\n\n"
        f"{markdown([head, *lines])}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, write; or be one side of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="the least of work; write nothing")
    parser.add_argument("--side", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.side:
        who, address = options.side
        print(json.dumps(timed(who, Order(**json.load(sys.stdin)), address)))
        return
    started = time.perf_counter()
    from ray.cluster_utils import Cluster

    head = {"num_cpus": CPUS, "object_store_memory": 80_000_000, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(NODES - 1):
        cluster.add_node(num_cpus=CPUS, object_store_memory=80_000_000)
    cases = [case._replace(trials=4, epochs=3) for case in CASES[:3]] if options.quick else CASES
    found: Found = {case: [] for case in cases}
    lives = []
    for _ in range(1 if options.quick else ROUNDS):
        for case in cases:
            found[case].append(measured(case, cluster.address))
            print(case, found[case][-1], file=sys.stderr, flush=True)
    for _ in range(1 if options.quick else LIVES):
        lives.append(lived(cluster.address, 8 if options.quick else 64))
        print(lives[-1], file=sys.stderr, flush=True)
    cluster.shutdown()
    table = trace(numbers(500) if options.quick else numbers())
    growth = [grown(nodes, table) for nodes in (GROWTH[:1] if options.quick else GROWTH)]
    known = facts(COMMAND, time.perf_counter() - started)
    text = f"{page(found, lives, growth)}\n\n{provenance(known)}\n"
    if options.quick:
        print(text)
        return
    rows = [{**case._asdict(), "rounds": rounds} for case, rounds in found.items()]
    publish("ray", text, known, rows=rows, lives=lives, growth=growth)


if __name__ == "__main__":
    main()
