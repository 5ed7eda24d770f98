"""MCMC for a curve's posterior: a normal approximation, chains that start from it, and R-hat.

Each family's posterior is first approximated by a normal distribution (importance sampling with
rising weight on the data). The chains run in coordinates in which all families look alike: one
number selects the family, and four are standard normal if the approximation is right. There,
chains mix in a few steps and move from family to family.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import gammaln, ndtr, ndtri
from scipy.stats import rankdata

from paceline.curves.emcee_chains import run_walkers
from paceline.curves.ensemble.posterior import SIZE
from paceline.curves.ensemble.priors import PRIORS

if TYPE_CHECKING:
    from paceline.curves.arrays import Array, IntArray
    from paceline.curves.ensemble.posterior import Posterior

COUNT = len(PRIORS)
_FIRST, _LATER, _ROUNDS = 600, 300, 8
# The share of effective draws of a round that tempered weights keep.
_KEPT = 0.12
_FREEDOM = 8.0
# The smallest share of a family in the first coordinate.
_LEAST_SHARE = 0.01
_INDEPENDENT, _DIFFERENCES, _STRETCHES = 0.75, 0.2, 0.05


class Approximation(NamedTuple):
    """A normal distribution for each family, and the families' weights."""

    means: Array
    roots: Array
    shares: Array

    def map_coordinates(self, coordinates: Array) -> tuple[IntArray, Array]:
        """Return the families and points of walkers' coordinates."""
        edges = np.cumsum(self.shares)[:-1]
        families = np.searchsorted(edges, ndtr(coordinates[:, 0]), side="right")
        roots = self.roots[families]
        points = self.means[families] + np.einsum("wij,wj->wi", roots, coordinates[:, 1:])
        return families, points


class Chains(NamedTuple):
    """Samples after burn-in, in the order (step, walker)."""

    coordinates: Array
    log_density: Array
    acceptance: float


def fit_approximation(posterior: Posterior, random: Any) -> Approximation:  # noqa: ANN401
    """Return the families' normal approximations after a few rounds of importance sampling."""
    means, roots = np.zeros((COUNT, SIZE)), np.broadcast_to(np.eye(SIZE), (COUNT, SIZE, SIZE))
    evidence = np.full(COUNT, -np.inf)
    for turn in range(_ROUNDS):
        size = _FIRST if turn == 0 else _LATER
        draws = random.standard_normal((COUNT, size, SIZE))
        if turn:
            # Heavier tails than a normal's, so that no weight explodes.
            draws /= np.sqrt(random.gamma(_FREEDOM / 2, 2 / _FREEDOM, (COUNT, size, 1)))
        points = means[:, None, :] + np.einsum("kij,ksj->ksi", roots, draws)
        families = np.repeat(np.arange(COUNT), size)
        logs = posterior.log_density(families, points.reshape(-1, SIZE)).reshape(COUNT, size)
        proposal = _student_log_density(draws) if turn else -0.5 * (draws**2).sum(axis=2)
        logs = logs - proposal + _log_determinants(roots)[:, None]
        means, roots, evidence = _refit(points, logs, means, roots)
    shares = np.exp(evidence - evidence.max())
    shares = _LEAST_SHARE + (1 - COUNT * _LEAST_SHARE) * shares / shares.sum()
    return Approximation(means, roots, shares)


def _log_determinants(roots: Array) -> Array:
    """Return the log determinants of triangular roots."""
    return np.asarray(np.log(np.diagonal(roots, axis1=1, axis2=2)).sum(axis=1))


def _student_log_density(draws: Array) -> Array:
    """Return the log density of standard Student draws, without a normal's constant."""
    squares = (draws**2).sum(axis=-1)
    constant = gammaln((_FREEDOM + SIZE) / 2) - gammaln(_FREEDOM / 2)
    constant += SIZE / 2 * np.log(2 / _FREEDOM)
    return np.asarray(constant - (_FREEDOM + SIZE) / 2 * np.log1p(squares / _FREEDOM))


def _refit(points: Array, logs: Array, means: Array, roots: Array) -> tuple[Array, Array, Array]:
    """Return each family's tempered mean and root of covariance, and its evidence."""
    new_means, new_roots = means.copy(), np.array(roots)
    evidence = np.full(COUNT, -np.inf)
    for number in range(COUNT):
        top = logs[number].max()
        if not np.isfinite(top):
            continue
        weights = np.exp(_temper(logs[number] - top))
        evidence[number] = top + np.log(np.exp(logs[number] - top).mean())
        weights /= weights.sum()
        new_means[number] = weights @ points[number]
        off = points[number] - new_means[number]
        covariance = 1.1 * (weights[:, None] * off).T @ off + 1e-10 * np.eye(SIZE)
        new_roots[number] = np.linalg.cholesky(covariance)
    return new_means, new_roots, evidence


def _temper(logs: Array) -> Array:
    """Return log weights to the largest power up to 1 that keeps enough effective draws."""
    enough = _KEPT * len(logs)

    def count_effective(power: float) -> float:
        weights = np.exp(power * logs)
        return float(weights.sum() ** 2 / (weights**2).sum())

    low, high = 0.0, 1.0
    if count_effective(1.0) >= enough:
        return logs
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if count_effective(middle) >= enough else (low, middle)
    # A weight of 0 to the power of 0 would be 1.
    return np.where(np.isfinite(logs), low * logs, -np.inf)


def run_chains(
    posterior: Posterior,
    start: Approximation,
    walkers: int,
    steps: int,
    random: Any,  # noqa: ANN401
) -> Chains:
    """Return chains of `steps` steps after a burn-in of a third as many."""
    volumes = _log_determinants(start.roots) - np.log(start.shares)

    def log_density(coordinates: Array) -> Array:
        families, points = start.map_coordinates(coordinates)
        found = posterior.log_density(families, points)
        return np.asarray(found + volumes[families] - 0.5 * coordinates[:, 0] ** 2)

    burn_in = steps // 3
    first = _draw_starts(log_density, walkers, random)
    walk = run_walkers(log_density, first, burn_in + steps, random, _choose_moves)
    return Chains(walk.chain[burn_in:], walk.log_density[burn_in:], walk.acceptance)


def _choose_moves(moves: Any) -> list[tuple[Any, float]]:  # noqa: ANN401
    return [
        (moves.MHMove(_propose_independent), _INDEPENDENT),
        (moves.DEMove(), _DIFFERENCES),
        (moves.StretchMove(), _STRETCHES),
    ]


def _draw_starts(log_density: Any, walkers: int, random: Any) -> Array:  # noqa: ANN401
    """Return start points with positive density, spread wider than the approximation."""
    draws = 1.5 * random.standard_normal((4 * walkers, SIZE + 1))
    valid = draws[np.isfinite(log_density(draws))]
    if not len(valid):
        raise ValueError("no curve family has a positive density near this curve")
    return np.asarray(valid[np.arange(walkers) % len(valid)])


def _propose_independent(coordinates: Array, random: Any) -> tuple[Array, Array]:  # noqa: ANN401
    """Propose from the approximation itself, with heavier tails."""
    size = coordinates.shape
    draws = random.standard_normal(size) / np.sqrt(
        random.gamma(_FREEDOM / 2, 2 / _FREEDOM, (size[0], 1))
    )
    power = (_FREEDOM + size[1]) / 2

    def log_proposal(points: Array) -> Array:
        return np.asarray(-power * np.log1p((points**2).sum(axis=1) / _FREEDOM))

    return draws, log_proposal(coordinates) - log_proposal(draws)


def compute_r_hat(chains: Array) -> float:
    """Return the split, rank-normalised R-hat of (step, walker) values: of bulk and tails.

    Vehtari et al., "Rank-normalization, folding, and localization", Bayesian Analysis 2021.
    """
    steps = len(chains) // 2 * 2
    halves = np.concatenate([chains[: steps // 2], chains[steps // 2 : steps]], axis=1)
    folded = np.abs(halves - np.median(halves))
    return max(_compute_r_hat(_normalise_ranks(halves)), _compute_r_hat(_normalise_ranks(folded)))


def _normalise_ranks(values: Array) -> Array:
    ranks = rankdata(values, axis=None).reshape(values.shape)
    return np.asarray(ndtri((ranks - 0.375) / (values.size + 0.25)))


def _compute_r_hat(values: Array) -> float:
    within = values.var(axis=0, ddof=1).mean()
    between = len(values) * values.mean(axis=0).var(ddof=1)
    if within <= 0:
        return 1.0
    return float(np.sqrt((len(values) - 1) / len(values) + between / within / len(values)))
