"""Syne Tune's simulator with its ASHA on the benchmark's table: one study, one JSON line.

Started by `benchmarks.peers` with the Python of Syne Tune's own environment: nothing of Paceline
is imported here. It uses the fastest setup that Syne Tune's public interfaces allow: a table
behind a dictionary, a searcher that learns nothing, no delays, and nothing printed, logged, stored
or saved while the loop runs.
"""

# mypy: disable-error-code="import-not-found, import-untyped, misc"

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import time
from importlib.metadata import version

import numpy as np
from syne_tune import StoppingCriterion, Tuner
from syne_tune.backend.simulator_backend.simulator_backend import SimulatorConfig
from syne_tune.backend.simulator_backend.simulator_callback import SimulatorCallback
from syne_tune.blackbox_repository import UserBlackboxBackend
from syne_tune.blackbox_repository.blackbox import Blackbox
from syne_tune.config_space import loguniform, randint
from syne_tune.optimizer.schedulers.asha import AsynchronousSuccessiveHalving
from syne_tune.optimizer.schedulers.searchers.single_objective_searcher import (
    SingleObjectiveBaseSearcher,
)
from syne_tune.tuner_logger import TunerLogger

METRIC, EPOCH, ELAPSED = "loss", "epoch", "elapsed"
# The table's columns. The bounds are wide enough for every row; nothing is sampled from them.
SPACE = {
    "decay": loguniform(1e-7, 1.0),
    "lr": loguniform(1e-6, 1.0),
    "width": randint(1, 4096),
}
Config = dict[str, float]


class TableBlackbox(Blackbox):
    """The table behind a dictionary: faster than `BlackboxTabular`, which uses pandas."""

    def __init__(self, path: str) -> None:
        with np.load(path) as table:
            loss, seconds = table["loss"], table["seconds"]
            rows = list(zip(*(table[name].tolist() for name in SPACE), strict=True))
        super().__init__(
            configuration_space=SPACE,
            fidelity_space={EPOCH: randint(1, loss.shape[1])},
            objectives_names=[METRIC, ELAPSED],
        )
        self.configs: list[Config] = [dict(zip(SPACE, row, strict=True)) for row in rows]
        self._row = {row: number for number, row in enumerate(rows)}
        self._curves = np.stack([loss, np.cumsum(seconds, axis=1)], axis=2)
        # Python numbers: faster to handle one by one than numpy's.
        self._epochs = list(range(1, loss.shape[1] + 1))

    @property
    def fidelity_values(self) -> list[int]:
        return self._epochs

    def _objective_function(
        self, configuration: Config, fidelity: object = None, seed: object = None
    ) -> list[list[float]]:
        row = self._row[tuple(configuration[name] for name in SPACE)]
        curve: list[list[float]] = self._curves[row].tolist()
        return curve


class QueuedSearcher(SingleObjectiveBaseSearcher):
    """Proposes the table's configs in order, then none, which ends the study."""

    def __init__(self, configs: list[Config]) -> None:
        super().__init__(SPACE, random_seed=0)
        self._left = iter(configs)

    def suggest(self, **_: object) -> Config | None:
        return next(self._left, None)

    def on_trial_result(self, *_: object, **__: object) -> None:
        """Learn nothing."""

    on_trial_complete = on_trial_result


class CountingCallback(SimulatorCallback):
    """Drives the simulated clock; counts results and stores none."""

    reports = 0

    def on_trial_result(self, *_: object, **__: object) -> None:
        self.reports += 1

    def store_results(self) -> None:
        """Write no file."""


class SilentLogger(TunerLogger):
    """Prints nothing; reads the CPU clock at the start and the end of the loop."""

    cpu_s = 0.0

    def print_tuning_start(self) -> None:
        self.cpu_s = -time.process_time()

    def print_tuning_complete(self) -> None:
        self.cpu_s += time.process_time()

    def print_experiment_header(self, *_: object, **__: object) -> None:
        """Print nothing."""

    print_tuning_status = print_trial_started = print_trial_completed = print_experiment_header
    print_searcher_out_of_candidates = print_config_space_exhausted = print_experiment_header
    print_stopping_trials = print_tuning_finished = print_experiment_header


def run_study(options: argparse.Namespace) -> dict[str, object]:
    """Run one study to its end and return its figures."""
    table = TableBlackbox(options.table)
    scheduler = AsynchronousSuccessiveHalving(
        SPACE,
        metric=METRIC,
        do_minimize=True,
        searcher=QueuedSearcher(table.configs[: options.trials]),
        time_attr=EPOCH,
        max_t=options.epochs,
        grace_period=options.first,
        reduction_factor=options.eta,
        random_seed=0,
    )
    backend = UserBlackboxBackend(
        table,
        elapsed_time_attr=ELAPSED,
        simulator_config=SimulatorConfig(0.0, 0.0, 0.0, 0.0, 0.0),
        tuner_sleep_time=options.poll,
    )
    count, silent = CountingCallback(), SilentLogger()
    tuner = Tuner(
        trial_backend=backend,
        scheduler=scheduler,
        stop_criterion=StoppingCriterion(),
        n_workers=options.slots,
        sleep_time=0,
        results_update_interval=1e9,
        print_update_interval=1e9,
        callbacks=[count],
        save_tuner=False,
        output_logger=silent,
    )
    tuner.run()
    seen = tuner.tuning_status.overall_metric_statistics
    return {
        "trials": tuner.tuning_status.num_trials_started,
        "reports": count.reports,
        "cpu_s": silent.cpu_s,
        "best": float(seen.min_metrics[METRIC]),
        "versions": {name: version(name) for name in ("syne-tune", "numpy", "pandas")},
    }


def main() -> None:
    """Read the options, run the study, print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", required=True)
    parser.add_argument("--poll", type=float, required=True)
    for name in ("slots", "trials", "epochs", "first", "eta"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    # The loop's closing table of all trials cannot be switched off. It is not measured.
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        found = run_study(options)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
