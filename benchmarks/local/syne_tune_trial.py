"""What Syne Tune's local backend starts for each trial."""

# mypy: disable-error-code="import-not-found, import-untyped, misc"

from __future__ import annotations

import argparse
import os
import signal
import time

from syne_tune import Reporter

from benchmarks.local.work import METRIC, Marks, load, loss_of, save


def main() -> None:
    """Train one config, from its checkpoint where it has one."""
    parser = argparse.ArgumentParser()
    for name, kind in (("x", float), ("epochs", int), ("epoch_s", float), ("stubborn", int)):
        parser.add_argument(f"--{name}", type=kind)
    parser.add_argument("--folder")
    parser.add_argument("--st_checkpoint_dir")
    options, _ = parser.parse_known_args()
    if options.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    report, marks = Reporter(), Marks(options.folder)
    name = os.path.basename(os.path.dirname(options.st_checkpoint_dir))
    start = (load(options.st_checkpoint_dir) or {"epoch": 0})["epoch"]
    marks.begun(name, start)
    for epoch in range(start + 1, options.epochs + 1):
        loss = loss_of(options.x, epoch)
        if options.epoch_s:
            time.sleep(options.epoch_s)
            save(options.st_checkpoint_dir, epoch, loss)
            marks.reported(name, epoch, loss)
        report(**{METRIC: loss, "epoch": epoch})


if __name__ == "__main__":
    main()
