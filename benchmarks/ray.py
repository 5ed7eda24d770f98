"""Studies on a Ray cluster: Paceline and Ray Tune on the same nodes, and the simulator beside them.

`make bench-ray` starts a cluster of four nodes with two CPUs each on this machine and runs the same
trials with both. The trials report without training, so the costs of a report and of a trial are
measured. Then a study with POP, Fluid and sharing runs on the cluster and, with the same trials, in
the simulator; and clusters of up to 1,000 slots are simulated. Prints the results and writes
`benchmarks/results/ray.md` and `.json`; `--quick` runs everything with little work and writes
nothing.
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
from collections import Counter
from itertools import accumulate
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import paceline as pl
from benchmarks.local.workload import TaskSpec, seconds_since_start
from benchmarks.page import (
    ROOT,
    collect_facts,
    format_provenance,
    format_range,
    format_table,
    publish,
)
from benchmarks.table import make_table, make_trace
from paceline.api.stored import replay_log
from paceline.core.decisions import AskForecast, Launch, Resize
from paceline.core.events import CapacityChanged, Forecasted
from paceline.engines.sim.traces import VERSION, Trace, TraceHeader, TraceRun
from paceline.plan.settings import setting_at

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paceline.core.decisions import Step

COMMAND = "make bench-ray"
NODES, CPUS = 4, 2
OURS, TUNE, REUSE = "Paceline", "Ray Tune", "Ray Tune, reuse_actors"
# The targets: times the reports and trials of Tune with reused actors, and the simulator's error.
FASTER_REPORTS, FASTER_TRIALS, NEAR = 5.0, 3.0, 0.10

# Epochs of the trials in the study that is simulated, too.
EPOCHS = 12
# The simulated clusters: numbers of nodes, slots of a node, cost of a fetch, duration.
GROWTH, NODE_SLOTS, FETCH_S, HOURS = (1, 8, 32, 125), 8, 20.0, 2.0


class Case(NamedTuple):
    """A number of trials and of their reports, for one tuner."""

    tuner: str
    trials: int
    epochs: int


# The figures of each case, round by round.
Found: TypeAlias = "dict[Case, list[dict[str, float]]]"
ROUNDS, STUDIES = 3, 7
# Tune without reuse starts a process for each trial: a thousand would take an hour.
CASES = (
    Case(OURS, 64, 100),
    Case(TUNE, 64, 100),
    Case(REUSE, 64, 100),
    Case(OURS, 1000, 10),
    Case(TUNE, 100, 10),
    Case(REUSE, 1000, 10),
)


def run_paceline(order: TaskSpec, address: str) -> Sequence[Step]:
    """Run the trials with Paceline, which writes a durable log; return it."""
    from benchmarks.local.paceline_local import make_study

    return make_study(order, slots=pl.Ray(address=address)).run().log


def run_tune(order: TaskSpec, address: str) -> Sequence[Step]:
    """Run the trials with Ray Tune, which writes no log of decisions."""
    from benchmarks.local.ray_tune import run

    run(order)
    return ()


def time_run(tuner: str, order: TaskSpec, address: str) -> dict[str, float]:
    """Run the trials and time them, without the time to connect to the cluster."""
    import ray

    ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
    began = time.monotonic()
    log = (run_paceline if tuner == OURS else run_tune)(order, address)
    ended = time.monotonic()
    assert not log or replay_log(log).difference is None
    return {"seconds": seconds_since_start(order.folder, ended), "call_s": ended - began}


def measure(case: Case, address: str) -> dict[str, float]:
    """Run a case in a process of its own."""
    load = round(os.getloadavg()[0], 1)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        order = TaskSpec(
            "reports", folder, 0.0, case.trials, case.epochs, reuse=case.tuner == REUSE
        )
        side = [sys.executable, "-m", "benchmarks.ray", "--side", case.tuner, address]
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


def train(trial: pl.Trial) -> None:
    """Sleep for the seconds of the setting, and improve along a power law."""
    level = trial.keep(level=[0.0])
    for epoch in trial.epochs():
        time.sleep(get_epoch_s(trial) / (WIDE_SPEED if trial.width > 1 else 1.0))
        level[0] += get_rise(trial, epoch)
        trial.report(accuracy=min(1.0, level[0]))


# Two slots train this much faster than one. Trials that share a slot only sleep, and so do not slow
# each other down.
WIDE_SPEED = 1.8


def get_epoch_s(setting: Mapping[str, Any] | pl.Trial) -> float:
    """Return the duration of an epoch, different for each trial.

    With equal durations chance would decide which report is first, and so which trial POP stops.
    """
    return float(setting["pace_s"] + 0.2 * setting["lr"])


def get_rise(setting: Mapping[str, Any] | pl.Trial, epoch: int) -> float:
    """Return the improvement of an epoch over the one before."""
    return float(setting["lr"] * 0.3 / (epoch + 1))


def run_study(address: str, trials: int) -> dict[str, Any]:
    """Run a study with POP, Fluid and sharing on the cluster, and its trials in the simulator."""
    result = pl.tune(
        train,
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
        span=2,
        pack=2,
        generator="random",
        trials=trials,
        slots=pl.Ray(address=address),
    )
    forecast_s = _measure_forecast_s(result.log)
    simulated = pl.Simulation(
        source="cluster",
        policy="pop",
        allocator="fluid",
        span=2,
        pack=2,
        speedup=f"table:1=1,2={WIDE_SPEED}",
        slots=NODES * CPUS,
        order="file",
        share=True,
        range=(0, 1),
        forecast_s=forecast_s,
    ).run(trace=make_whole_trace(result))
    began = next(s.event.at for s in result.log if isinstance(s.event, CapacityChanged))
    return {
        "trials": trials,
        "cluster_s": result.clock_s - began,
        "simulated_s": simulated.makespan_s,
        "forecast_s": forecast_s,
        "off": simulated.makespan_s / (result.clock_s - began) - 1.0,
        "epochs_shared": result.summary().epochs_shared,
        "widths": count_widths(result.log),
        "resizes": count_resizes(result.log),
        "identical": replay_log(result.log).difference is None,
    }


def count_widths(log: Sequence[Step]) -> dict[str, int]:
    """Return how many attempts had each width."""
    widths = [one.width for step in log for one in step.decisions if isinstance(one, Launch)]
    return {f"{width:g}": count for width, count in sorted(Counter(widths).items())}


def count_resizes(log: Sequence[Step]) -> int:
    """Return how often a running trial was given another width."""
    return sum(isinstance(one, Resize) for step in log for one in step.decisions)


def make_whole_trace(result: pl.Result) -> Trace:
    """Return the study's trials as a trace, also the epochs that a stopped trial did not reach.

    The curves depend on the settings alone, so the missing epochs are known.
    """
    epochs = range(EPOCHS)
    paths = [[setting_at(trial.config, epoch) for epoch in epochs] for trial in result.trials]
    over = median(
        second - get_epoch_s(setting)
        for trial, path in zip(result.trials, paths, strict=True)
        for second, setting in zip(trial.seconds, path, strict=False)
    )
    runs = []
    for trial, path in zip(result.trials, paths, strict=True):
        rises = (get_rise(setting, epoch) for epoch, setting in enumerate(path))
        values = array("d", (min(1.0, level) for level in accumulate(rises)))
        seconds = array("d", (get_epoch_s(setting) + over for setting in path))
        runs.append(TraceRun(trial.id, trial.config, values, seconds))
    header = TraceHeader(
        paceline_trace=VERSION, name="cluster", metric="accuracy", mode="max", max_epochs=EPOCHS
    )
    return Trace(header, runs)


def _measure_forecast_s(log: Sequence[Step]) -> float:
    """Return the mean time from a forecast request to its answer."""
    asked: dict[tuple[int, int], float] = {}
    waited = []
    for step in log:
        if isinstance(step.event, Forecasted):
            waited.append(step.event.at - asked[step.event.trial, step.event.epoch])
        for decision in step.decisions:
            if isinstance(decision, AskForecast):
                asked[decision.trial, decision.epoch] = step.event.at
    return fmean(waited)


def simulate_cluster(nodes: int, table: Trace) -> dict[str, Any]:
    """Simulate a cluster on which trials pause and resume, for some hours."""
    steps: list[Step] = []
    began = time.process_time()
    result = pl.Simulation(
        source="table",
        policy="asha:drain=true",
        slots=nodes * NODE_SLOTS,
        node_slots=NODE_SLOTS,
        fetch_s=FETCH_S,
        deadline_s=HOURS * 3600.0,
    ).run(trace=table, remember=steps.extend)
    cpu_s = time.process_time() - began
    launches = [one for step in steps for one in step.decisions if isinstance(one, Launch)]
    node_of = {launch.attempt: launch.slots[0] // NODE_SLOTS for launch in launches}
    again = [launch for launch in launches if launch.source is not None]
    near = sum(node_of[launch.source or 0] == node_of[launch.attempt] for launch in again)
    return {
        "nodes": nodes,
        "slots": nodes * NODE_SLOTS,
        "reports": result.reports,
        "reports_per_cpu_s": result.reports / cpu_s,
        "busy": result.busy_fraction,
        "resumed": len(again),
        "near": near,
    }


def format_page(
    found: Found, studies: Sequence[dict[str, Any]], growth: Sequence[dict[str, Any]]
) -> str:
    """Return the page of results."""
    lines = [
        ["trials x reports", "tuner", "reports/s", "trials/s", "ms a report", "ms a trial", "load"]
    ]
    for case, rounds in found.items():
        reports = [figures["reports_per_s"] for figures in rounds]
        trials = [figures["trials_per_s"] for figures in rounds]
        lines.append(
            [
                f"{case.trials} x {case.epochs}",
                case.tuner,
                f"{median(reports):,.0f} ({format_range(reports)})",
                f"{median(trials):,.1f} ({format_range(trials, 1)})",
                f"{1000 / median(reports):,.2f}",
                f"{1000 / median(trials):,.0f}",
                format_range([figures["load"] for figures in rounds], 1),
            ]
        )
    return (
        "# On a Ray cluster\n\n"
        f"The same trials on the same cluster ({NODES} nodes with {CPUS} CPUs each, all on one "
        "machine), by turns. Trials report without training. Paceline decides at every report and "
        "writes a durable log; Tune runs its FIFO scheduler with one logger. "
        "Times are from the first line of the first trial to the return of the call, without the "
        f"time to connect. Median (least to most) of {ROUNDS} rounds. The load is that of the "
        "machine when a case started.\n\n"
        f"{format_table(lines)}\n\n{_format_ratios(found)}\n\n{_format_studies(studies)}"
        f"\n\n{_format_growth(growth)}"
    )


def _format_ratios(found: Found) -> str:
    """Return the ratios of equal cases, round by round."""
    lines = []
    for case, rounds in found.items():
        mine = found.get(case._replace(tuner=OURS))
        if case.tuner != OURS and mine is not None:
            times = [
                ours["reports_per_s"] / figures["reports_per_s"]
                for ours, figures in zip(mine, rounds, strict=True)
            ]
            lines.append(
                f"* {case.trials} x {case.epochs}: {median(times):.1f} times {case.tuner} "
                f"({format_range(times, 1)})"
            )
    targets = f"target: {FASTER_REPORTS:g} times the reports, {FASTER_TRIALS:g} times the trials"
    return "\n".join([*lines, "", f"({targets} of Tune with reuse_actors)"])


def _format_studies(studies: Sequence[dict[str, Any]]) -> str:
    head = ["cluster", "simulator", "difference", "forecast", "epochs shared", "attempts by width"]
    head += ["resizes", "replay"]
    lines = [
        [
            f"{study['cluster_s']:.1f} s",
            f"{study['simulated_s']:.1f} s",
            f"{study['off']:+.1%}",
            f"{study['forecast_s']:.2f} s",
            str(study["epochs_shared"]),
            ", ".join(f"{count} of {width}" for width, count in study["widths"].items()),
            str(study["resizes"]),
            "identical" if study["identical"] else "differs",
        ]
        for study in studies
    ]
    cluster = median(study["cluster_s"] for study in studies)
    simulator = median(study["simulated_s"] for study in studies)
    return (
        f"A study of {studies[0]['trials']} trials with POP, Fluid (half a slot to two) and "
        "sharing, several times on the cluster and in the simulator. The simulator has the same "
        "trials, their epoch times and the mean time of a forecast. Epochs take about a second, "
        "different for each trial: with equal times chance decides which report is first, and so "
        "which trial POP stops."
        f"\n\n{format_table([head, *lines])}\n\nMedians: "
        f"{cluster:.1f} s on the cluster, {simulator:.1f} s in the simulator, "
        f"{simulator / cluster - 1:+.1%} (target: within {NEAR:.0%})."
    )


def _format_growth(growth: Sequence[dict[str, Any]]) -> str:
    head = ["nodes", "slots", "reports", "reports per CPU second", "slots busy", "resumed near"]
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
        f"{FETCH_S:g} s. Reports per second of the driver's CPU, decisions included, and resumed "
        f"attempts on the node that saved their checkpoint:\n\n"
        f"{format_table([head, *lines])}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and write; with --side, run one case."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="little work; write nothing")
    parser.add_argument("--side", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.side:
        tuner, address = options.side
        print(json.dumps(time_run(tuner, TaskSpec(**json.load(sys.stdin)), address)))
        return
    started = time.perf_counter()
    from ray.cluster_utils import Cluster

    head = {"num_cpus": CPUS, "object_store_memory": 80_000_000, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(NODES - 1):
        cluster.add_node(num_cpus=CPUS, object_store_memory=80_000_000)
    cases = [case._replace(trials=4, epochs=3) for case in CASES[:3]] if options.quick else CASES
    found: Found = {case: [] for case in cases}
    studies = []
    for _ in range(1 if options.quick else ROUNDS):
        for case in cases:
            found[case].append(measure(case, cluster.address))
            print(case, found[case][-1], file=sys.stderr, flush=True)
    for _ in range(1 if options.quick else STUDIES):
        studies.append(run_study(cluster.address, 8 if options.quick else 64))
        print(studies[-1], file=sys.stderr, flush=True)
    cluster.shutdown()
    table = make_trace(make_table(500) if options.quick else make_table())
    growth = [simulate_cluster(nodes, table) for nodes in (GROWTH[:1] if options.quick else GROWTH)]
    known = collect_facts(COMMAND, time.perf_counter() - started)
    text = f"{format_page(found, studies, growth)}\n\n{format_provenance(known)}\n"
    if options.quick:
        print(text)
        return
    rows = [{**case._asdict(), "rounds": rounds} for case, rounds in found.items()]
    publish("ray", text, known, rows=rows, studies=studies, growth=growth)


if __name__ == "__main__":
    main()
