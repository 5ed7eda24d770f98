"""Synthetic studies: the prior of the curve model, and families whose curves cross.

Knows what makes early order misleading: a fast trial with a bad end, a rate that is lowered late, a
late start, restarts. No recorded curve is used.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from training.pfn.prior import HIDDEN, draw_studies
from training.planner.fast_sim import Study


def draw_from_prior(rng: np.random.Generator, trials: int, length: int) -> Study:
    """Draw a study from the prior of the curve model."""
    seed = int(rng.integers(2**62))
    drawn = draw_studies(1, trials, length, torch.Generator().manual_seed(seed))
    # The hidden configs are what the prior draws first.
    hidden = torch.randn(1, trials, HIDDEN, generator=torch.Generator().manual_seed(seed))[0]
    losses = drawn.values[0].double().numpy()
    lengths = drawn.epochs[0].numpy().astype(np.int64)
    epochs = int(lengths.max())
    losses = losses[:, :epochs].copy()
    past = np.arange(epochs)[None, :] >= lengths[:, None]
    losses[past | ~np.isfinite(losses)] = np.inf
    return _add_times(rng, losses, lengths, "prior", hidden.numpy())


def draw_crossing(rng: np.random.Generator, trials: int, length: int) -> Study:
    """Draw a study in which the order of early values says little, or the wrong thing."""
    t = np.arange(1, length + 1)[None, :]
    x = t / length
    like = rng.uniform(-0.95, 0.7)
    late = rng.standard_normal((trials, 1))
    early = like * late + math.sqrt(1 - like**2) * rng.standard_normal((trials, 1))
    spread, own = 10 ** rng.uniform(-1.7, -0.5), rng.uniform(0.3, 1.0)
    floor = 0.3 + spread * late
    kind = rng.integers(5)
    power = np.exp(rng.normal(-0.3, 0.4, (trials, 1)))
    pace = length * 10 ** (rng.uniform(-2.5, -0.5) + own * 0.5 * early)
    base = (1 + t / pace) ** -power
    if kind == 0:  # a fast start against a good end
        losses = floor + (1 - floor) * base
    elif kind == 1:  # the rate holds a part of the excess until it is lowered
        held = np.clip(10 ** (rng.uniform(-1.2, -0.4) + 0.3 * own * early), 0.01, 0.8)
        if rng.random() < 0.5:
            rate = 0.5 * (1 + np.cos(math.pi * np.minimum(1, x / rng.uniform(0.7, 1.0))))
        else:
            falls = np.sort(rng.uniform(0.3, 0.95, rng.integers(1, 4)))
            sharp = 10 ** rng.uniform(-3, -1.5)
            rate = np.ones_like(x)
            for at in falls:
                rate = rate * (0.1 + 0.9 * np.exp(-np.maximum(0, x - at) / sharp))
        losses = floor + (1 - floor) * ((1 - held) * base + held * rate)
    elif kind == 2:  # a late start
        begin = length * np.clip(10 ** (rng.uniform(-1.5, -0.4) + 0.4 * own * early), 0, 0.9)
        base = (1 + np.maximum(0, t - begin) / pace) ** -power
        losses = floor + (1 - floor) * base
    elif kind == 3:  # restarts
        cycles = rng.integers(2, 6)
        phase = (x * cycles) % 1.0
        held = np.clip(10 ** (rng.uniform(-1.2, -0.4) + 0.3 * own * early), 0.01, 0.6)
        losses = floor + (1 - floor) * (
            (1 - held) * base + held * 0.5 * (1 + np.cos(math.pi * phase))
        )
    else:  # two populations, of which the slow one wins
        slow = rng.random((trials, 1)) < rng.uniform(0.1, 0.5)
        better = spread * rng.uniform(0.5, 2.0)
        pace = np.where(slow, pace * rng.uniform(3, 20), pace)
        losses = floor + 0.1 - better * slow + (0.9 - floor) * (1 + t / pace) ** -power
    noise = 10 ** rng.uniform(-4, -1.7) * np.exp(rng.normal(0, 0.4, (trials, 1)))
    wobble = rng.standard_normal((trials, length))
    if rng.random() < 0.5:
        wobble = wobble * (0.2 + base)
    losses = losses + noise * wobble
    dead = rng.random((trials, 1)) < rng.uniform(0, 0.5) * (rng.random() < 0.5)
    losses = np.where(dead, 1.0 + noise * wobble, losses)
    if rng.random() < 0.3:
        grain = 10.0 ** -int(rng.integers(2, 5))
        losses = np.round(losses / grain) * grain
    lengths = np.full(trials, length)
    hidden = np.concatenate([late, early, pace if pace.shape == late.shape else late], axis=1)
    hidden = hidden + rng.choice([0.1, 0.5, 1.5]) * rng.standard_normal(hidden.shape)
    return _add_times(rng, losses, lengths, "crossing", hidden)


def _add_times(
    rng: np.random.Generator,
    losses: np.ndarray,
    lengths: np.ndarray,
    family: str,
    hidden: np.ndarray,
) -> Study:
    trials, epochs = losses.shape
    configs = None
    if rng.random() < 0.8:
        # Some hyperparameters do not matter, and some that matter are not known.
        noise = rng.standard_normal((trials, rng.integers(0, 5)))
        known = np.concatenate([hidden[:, : rng.integers(1, hidden.shape[1] + 1)], noise], axis=1)
        configs = [{f"x{i}": float(v) for i, v in enumerate(row)} for row in known]
    pace = np.exp(rng.choice([0.0, 0.3, 0.8, 1.2]) * rng.standard_normal((trials, 1)))
    if rng.random() < 0.3:  # larger models are slower and better
        final = losses[np.arange(trials), lengths - 1]
        rank = np.argsort(np.argsort(final)) / trials
        pace = pace * np.exp(rng.uniform(0, 1.5) * (0.5 - rank[:, None]))
    seconds = np.broadcast_to(pace, losses.shape).copy()
    setup = np.full(trials, rng.choice([0.0, 0.0, 0.1, 0.5, 2.0]) * float(np.median(pace)))
    return Study(losses, lengths, seconds, setup, epochs, family, configs)


def draw_study(rng: np.random.Generator) -> Study:
    """Draw a synthetic study."""
    trials = int(np.exp(rng.uniform(math.log(15), math.log(250))))
    length = int(rng.choice([4, 9, 16, 27, 50, 50, 81, 100, 200, 300]))
    if rng.random() < 0.6:
        return draw_from_prior(rng, trials, max(length, 6))
    return draw_crossing(rng, trials, length)
