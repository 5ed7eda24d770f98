"""The trial program that Syne Tune's local backend starts."""

# mypy: disable-error-code="import-not-found, import-untyped, misc"

from __future__ import annotations

import argparse
import os
import signal
import time

from syne_tune import Reporter

from benchmarks.local.workload import METRIC, TrialEventLog, compute_loss, load, save


def main() -> None:
    """Train one config, from its checkpoint if there is one."""
    parser = argparse.ArgumentParser()
    for name, kind in (("x", float), ("epochs", int), ("epoch_s", float), ("stubborn", int)):
        parser.add_argument(f"--{name}", type=kind)
    parser.add_argument("--folder")
    parser.add_argument("--st_checkpoint_dir")
    options, _ = parser.parse_known_args()
    if options.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    report, events = Reporter(), TrialEventLog(options.folder)
    name = os.path.basename(os.path.dirname(options.st_checkpoint_dir))
    start = (load(options.st_checkpoint_dir) or {"epoch": 0})["epoch"]
    events.log_start(name, start)
    for epoch in range(start + 1, options.epochs + 1):
        loss = compute_loss(options.x, epoch)
        if options.epoch_s:
            time.sleep(options.epoch_s)
            save(options.st_checkpoint_dir, epoch, loss)
            events.log_report(name, epoch, loss)
        report(**{METRIC: loss, "epoch": epoch})


if __name__ == "__main__":
    main()
