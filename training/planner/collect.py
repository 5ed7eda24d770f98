"""Simulate studies and collect what the network is trained on."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from paceline.policies.planner.ranking import RankingSettings
from training.planner.fast_sim import FastSimulation, OrderedStudy, Study, prepare
from training.planner.synthetic import draw_study
from training.planner.traces import read_study
from training.planner.workloads import load_study

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from paceline.policies.planner.network import Networks
    from paceline.policies.planner.record import StudyRecord

    Halves = NDArray[np.float16]
    Bools = NDArray[np.bool_]

# The most rows that one study gives, and the most trials of one question that are kept.
ROWS, KEPT = 120, 6
# The shares of the best runs at which targets are.
SHARES = (0.005, 0.02, 0.05, 0.1, 0.1, 0.2)
SLOTS = (1, 2, 4, 4, 4, 8, 8, 8, 16, 32)


class Rows(NamedTuple):
    """Inputs of the networks, and whether the loss was reached by each horizon."""

    x: Halves
    y: Halves
    label: Bools
    # Whether the horizon is not a repeat of the one before.
    valid: Bools


class StudyJob(NamedTuple):
    """What a process needs to simulate one study."""

    seed: int
    networks: Networks
    folder: str
    # The folder of the studies that `training.planner.workloads` has written.
    trained: str
    # Half of the studies of the first round decide at random.
    is_first_round: bool


@cache
def load_traces(folder: str) -> dict[str, list[Study]]:
    """Return all recorded studies by family."""
    studies: dict[str, list[Study]] = {}
    for path in sorted(Path(folder).glob("*.jsonl.gz")):
        study = read_study(path)
        studies.setdefault(study.family, []).append(study)
    return studies


def vary(study: Study, rng: np.random.Generator) -> Study:
    """Return a recorded study in other units, cut, thinned out or noisier: no run twice alike."""
    losses, lengths, seconds = study.losses.copy(), study.lengths, study.seconds
    epochs = study.epochs
    if rng.random() < 0.4 and epochs >= 8:
        step = int(rng.integers(2, 5))
        if epochs // step >= 4 and lengths.min() >= step:
            losses = losses[:, step - 1 :: step]
            lengths = lengths // step
            seconds = seconds[:, : losses.shape[1] * step]
            seconds = seconds.reshape(len(lengths), -1, step).sum(axis=2)
            epochs = losses.shape[1]
    if rng.random() < 0.5 and epochs >= 6:
        epochs = int(rng.integers(max(3, epochs // 4), epochs + 1))
        losses, seconds = losses[:, :epochs], seconds[:, :epochs]
        lengths = np.minimum(lengths, epochs)
    finite = np.isfinite(losses)
    if rng.random() < 0.6 and finite.any():
        low = losses[finite].min()
        firsts = losses[:, 0][np.isfinite(losses[:, 0])]
        high = np.median(firsts) if len(firsts) else losses[finite].max()
        if high > low:
            scaled = (losses[finite] - low) / (high - low) + 10 ** rng.uniform(-2.5, -0.5)
            if rng.random() < 0.3:
                losses[finite] = np.log(scaled)
            else:
                losses[finite] = scaled ** np.exp(rng.normal(0, 0.5))
    if rng.random() < 0.2 and finite.any():
        spread = np.subtract(*np.percentile(losses[finite], [75, 25]))
        noise = 10 ** rng.uniform(-3, -1.3) * spread
        losses[finite] += noise * rng.standard_normal(int(finite.sum()))
    if rng.random() < 0.5:
        seconds = seconds * np.exp(rng.uniform(0, 0.8) * rng.standard_normal((len(lengths), 1)))
    setup = study.setup
    if rng.random() < 0.3:
        setup = np.full(len(lengths), rng.choice([0.0, 0.3, 2.0]) * float(np.median(seconds[:, 0])))
    configs = study.configs if rng.random() < 0.85 else None
    return Study(losses, lengths, seconds, setup, epochs, study.family, configs)


def find_target(study: OrderedStudy, share: float) -> float:
    """Return the final loss that this share of the runs reaches; NaN: too few have a number."""
    finals = np.sort(study.best[np.arange(len(study.lengths)), study.lengths - 1])
    finals = finals[np.isfinite(finals)]
    if len(finals) < 3:
        return math.nan
    return float(finals[min(len(finals) - 1, int(share * len(finals)))])


class RowCollector:
    """Keeps some of the questions to the networks, with their answers."""

    def __init__(self, study: OrderedStudy, rng: np.random.Generator) -> None:
        self._study = study
        self._rng = rng
        self._keep = rng.uniform(0.1, 0.6)
        self._parts: list[Rows] = []
        # By trial, the run of the study.
        self.runs: Sequence[int] = ()

    def take(self, record: StudyRecord, trials: list[int], levels: list[int], goal: float) -> None:
        """Keep a question, or not."""
        if self._rng.random() > self._keep or not math.isfinite(goal):
            return
        if len(trials) > KEPT:
            chosen = self._rng.choice(len(trials), KEPT, replace=False)
            trials, levels = [trials[at] for at in chosen], [levels[at] for at in chosen]
        level = np.array(levels)
        x, y = record.make_inputs(np.array(trials), level, goal)
        at = np.array([self.runs[trial] for trial in trials])
        horizons = record.horizons[level]
        epochs = np.minimum(np.array(record.looks)[horizons], self._study.lengths[at][:, None])
        valid = np.ones(epochs.shape, dtype=bool)
        valid[:, 1:] = horizons[:, 1:] > horizons[:, :-1]
        label = self._study.best[at[:, None], epochs - 1] <= goal
        self._parts.append(Rows(x.astype(np.float16), y.astype(np.float16), label, valid))

    def stack(self) -> Rows | None:
        """Return at most `ROWS` rows."""
        if not self._parts:
            return None
        rows = Rows(*(np.concatenate(each) for each in zip(*self._parts, strict=True)))
        count = len(rows.x)
        chosen = self._rng.choice(count, min(count, ROWS), replace=False)
        return Rows(*(each[chosen] for each in rows))


def collect_rows(job: StudyJob) -> tuple[str, Rows] | None:
    """Simulate one study; return its family and its rows, or None if it has none."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(job.seed)
    study = choose_study(rng, job)
    total = len(study.lengths)
    count = total if rng.random() < 0.4 else int(rng.integers(max(5, total // 4), total + 1))
    ordered = prepare(study, rng.permutation(total)[: min(count, 250)])
    slots, share = int(rng.choice(SLOTS)), float(rng.choice(SHARES))
    target: float | None = find_target(ordered, share)
    if target is None or math.isnan(target):
        return None
    fifo_s = float(ordered.ends[np.arange(len(ordered.lengths)), ordered.lengths - 1].sum()) / slots
    deadline = math.inf
    if rng.random() < 0.4:
        target, deadline = None, fifo_s * 10 ** rng.uniform(-1.7, -0.3)
    settings = RankingSettings(
        new_share=float(np.exp(rng.uniform(math.log(0.3), math.log(1.2)))),
        margin=float(rng.uniform(1.0, 1.5)),
    )
    behaviour = rng.random()
    at_random = 1.0 if job.is_first_round and behaviour < 0.5 else 0.25 * (behaviour < 0.25)

    def explore(goes_on: bool, record: StudyRecord, trial: int, level: int) -> bool:
        if at_random and rng.random() < at_random:
            rank = float(record.rank_at[level, trial])
            return bool(rng.random() < 1 / (1 + math.exp(1.5 * rank + 0.3)))
        return goes_on

    collector = RowCollector(ordered, rng)
    simulation = FastSimulation(ordered, job.networks, settings, target=target, deadline=deadline)
    collector.runs = simulation.runs
    simulation.run(slots, explore=explore, spy=collector.take, limit=fifo_s)
    rows = collector.stack()
    return None if rows is None else (study.family, rows)


def choose_study(rng: np.random.Generator, job: StudyJob) -> Study:
    """Draw a synthetic, trained or recorded study."""
    kind = rng.random()
    if kind < 0.4:
        return draw_study(rng)
    trained = sorted(Path(job.trained).glob("*.npz")) if kind < 0.65 else []
    if trained:
        study = load_study(trained[rng.integers(len(trained))])
    else:
        families = load_traces(job.folder)
        studies = families[sorted(families)[rng.integers(len(families))]]
        study = studies[rng.integers(len(studies))]
    return vary(study, rng) if rng.random() < 0.75 else study
