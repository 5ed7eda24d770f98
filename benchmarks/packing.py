"""Pack small trials onto one GPU: one, two, four or eight at a time, time-sliced and with MPS.

`python -m benchmarks.packing` trains small convolutional networks on random pictures by `pl.tune`
and the local engine, and counts the trials that finish per minute. It writes
`benchmarks/results/packing.md` and `.json`. Then it packs trials that together need more memory
than the GPU has, and reports how they end. Needs torch and one GPU, and takes about five minutes.
`--ray` does the same on a Ray cluster of one node, into `packing-ray.md`. `--cpu` is a dry run on a
core, with fewer and smaller trials, and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
import warnings
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import paceline as pl
from benchmarks.page import collect_facts, format_provenance, format_table, publish
from paceline.core.events import CapacityChanged, Cause, Ended, Opened

COMMAND = "python -m benchmarks.packing"
PACKS = (1, 2, 4, 8)
# Pictures of 3 x 32 x 32 in ten classes: one trial leaves most of a GPU idle.
PICTURES, BATCH, EPOCHS, TRIALS = 4096, 64, 20, 24
FEW: dict[str, int] = {"pictures": 256, "epochs": 2, "trials": 4}
# Time limit of one setting; trials that have finished by then count.
DEADLINE_S = 45.0
# Share of a GPU's memory; on a core, bytes beyond those of the process.
GREED, GREED_BYTES = 0.6, 256 << 20


def make_network(width: int) -> nn.Module:
    """Return three convolutions and a classifier."""
    layers: list[nn.Module] = []
    channels = 3
    for more in (width, 2 * width, 4 * width):
        layers += [nn.Conv2d(channels, more, 3, padding=1), nn.BatchNorm2d(more), nn.ReLU()]
        layers.append(nn.MaxPool2d(2))
        channels = more
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * 16, 10))


def train(trial: Any) -> None:  # noqa: ANN401
    """Train a small network on pictures in device memory."""
    generator = torch.Generator().manual_seed(11)
    count = trial["pictures"]
    inputs = torch.randn(count, 3, 32, 32, generator=generator).to(trial.device)
    truth = torch.randint(0, 10, (count,), generator=generator).to(trial.device)
    model = make_network(16).to(trial.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=trial["lr"], momentum=0.9)
    trial.keep(model=model, optimizer=optimizer)
    for _ in trial.epochs():
        order = torch.randperm(count).to(trial.device)
        for start in range(0, count, BATCH):
            rows = order[start : start + BATCH]
            optimizer.zero_grad()
            loss: Any = cross_entropy(model(inputs[rows]), truth[rows])
            loss.backward()
            optimizer.step()
        trial.report(loss=loss.item())


def train_greedy(trial: Any) -> None:  # noqa: ANN401
    """Allocate more than half of the memory, and train a little."""
    if trial.device == "cuda":
        total = torch.cuda.get_device_properties(0).total_memory
        block = torch.empty(int(GREED * total), dtype=torch.uint8, device="cuda")
    else:
        if trial.width < 1:  # a core has no memory limit
            limit = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        block = torch.empty(GREED_BYTES, dtype=torch.uint8)
    for epoch in trial.epochs():
        block.fill_(epoch)
        time.sleep(0.2)
        trial.report(loss=1.0 / (1 + epoch))


class Target(NamedTuple):
    """The device and the engine of a study."""

    cpu: bool = False
    ray: bool = False

    @property
    def slots(self) -> str:
        """The `slots` option of the study."""
        return ("ray:" if self.ray else "") + ("cpu:1" if self.cpu else "gpu:1")


def run_study(function: Any, where: Target, **options: Any) -> pl.Result:  # noqa: ANN401
    """Run a study of equal trials on one device."""
    defaults = {
        "metric": "loss",
        "mode": "min",
        "policy": "fifo",
        "generator": "random",
        "curves": "last",
        "slots": where.slots,
        "deadline": DEADLINE_S,
        "progress": False,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the log says whether MPS runs
        return pl.tune(function, **{**defaults, **options})


def measure(pack: int, mps: bool, where: Target) -> dict[str, Any]:
    """Run trials, `pack` at a time, and count those that finished."""
    size = {"pictures": PICTURES, "epochs": EPOCHS, "trials": TRIALS, **(FEW if where.cpu else {})}
    result = run_study(
        train,
        where,
        space={"lr": pl.loguniform(0.001, 0.1), "pictures": pl.choice([size["pictures"]])},
        epochs=size["epochs"],
        trials=size["trials"],
        pack=pack,
        mps=mps,
    )
    events = [step.event for step in result.log]
    begun = next(event.at for event in events if isinstance(event, CapacityChanged))
    ends = [event for event in events if isinstance(event, Ended)]
    finished = [event.at for event in ends if event.cause is Cause.FINISHED]
    opened = events[0]
    assert isinstance(opened, Opened)
    took = max(finished, default=begun) - begun
    seconds = sorted(second for trial in result.trials for second in trial.seconds)
    return {
        "pack": pack,
        "mps": opened.run.mps or "off",
        "finished": len(finished),
        "seconds": took,
        "per_minute": 60.0 * len(finished) / took if took else 0.0,
        "epoch_s": seconds[len(seconds) // 2] if seconds else None,
        "trouble": sorted({event.note.splitlines()[-1] for event in ends if event.note}),
    }


def measure_out_of_memory(where: Target) -> dict[str, Any]:
    """Run four trials that each need most of the memory, two at a time on one device."""
    result = run_study(
        train_greedy,
        where,
        space={"x": pl.uniform(0.0, 1.0)},
        epochs=3,
        trials=4,
        pack=2,
        retries=0,
        mps=False,
    )
    ends = [step.event for step in result.log if isinstance(step.event, Ended)]
    # The first sentence of the error, without the advice that follows.
    notes = [
        ". ".join(event.note.splitlines()[-1].split(". ")[:2])
        for event in ends
        if event.cause is Cause.CROWDED
    ]
    return {
        "trials": len(result.trials),
        "crowded": len(notes),
        "finished": sum(trial.status == "finished" for trial in result.trials),
        "note": notes[0] if notes else "",
    }


def make_table(rows: list[dict[str, Any]]) -> str:
    """Return the figures as a table; ratios are to one trial at a time."""
    alone = next(row["per_minute"] for row in rows if row["pack"] == 1)
    lines = [["trials at a time", "shared by", "finished", "per minute", "ratio", "an epoch takes"]]
    for row in rows:
        ways = {"up": "MPS", "off": "alone" if row["pack"] == 1 else "turns"}
        epoch = row["epoch_s"]
        lines.append(
            [
                str(row["pack"]),
                ways.get(row["mps"], f"turns: {row['mps']}"),
                str(row["finished"]),
                f"{row['per_minute']:.1f}",
                f"{row['per_minute'] / alone:.2f}" if alone else "",
                "" if epoch is None else f"{1000 * epoch:.0f} ms",
            ]
        )
    return format_table(lines)


def make_page(rows: list[dict[str, Any]], oom: dict[str, Any], known: dict[str, Any]) -> str:
    """Return the whole page."""
    return (
        f"# Packing small trials onto one GPU{known['title']}\n\n{make_table(rows)}\n\n"
        f"{TRIALS} trials of {EPOCHS} epochs each, a network of three small convolutions on "
        f"{PICTURES} random pictures in batches of {BATCH}, on one {known['gpu']}. Times run from "
        f"the moment the slot exists to the end of the last trial, with starts and saves.\n\n"
        f"Out of memory: {oom['trials']} trials that each take {GREED:.0%} of the GPU, two at a "
        f"time: {oom['crowded']} ran out of memory (`{oom['note']}`) and then got the GPU alone. "
        f"{oom['finished']} of {oom['trials']} finished, with no retries allowed.\n\n"
        f"{format_provenance(known)}\n"
    )


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="dry run on a core")
    parser.add_argument("--ray", action="store_true", help="on a Ray cluster of one node")
    where = Target(**vars(parser.parse_args()))
    if where.ray:
        import ray

        ray.init("local", include_dashboard=False, log_to_driver=False)
    started = time.perf_counter()
    rows = []
    for pack in PACKS:
        for mps in (False,) if pack == 1 or where.cpu else (False, True):
            rows.append(measure(pack, mps, where))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    oom = measure_out_of_memory(where)
    print(json.dumps(oom), file=sys.stderr, flush=True)
    command = f"{COMMAND} --ray" if where.ray else COMMAND
    known = collect_facts(command, time.perf_counter() - started)
    known["versions"]["torch"] = torch.__version__
    if where.cpu:
        print(f"{make_table(rows)}\n\n{json.dumps(oom)}")
        return
    known["gpu"] = torch.cuda.get_device_name(0)
    known["title"] = ", by Ray" if where.ray else ""
    name = "packing-ray" if where.ray else "packing"
    publish(name, make_page(rows, oom, known), known, rows=rows, out_of_memory=oom)


if __name__ == "__main__":
    main()
