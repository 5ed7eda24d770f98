"""The ensemble: formulas, the posterior's arithmetic, mixing of chains, unusual curves."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest

from paceline.api.registry import build_part
from paceline.core.errors import SpecError
from paceline.core.ports import History
from paceline.core.rng import stream
from paceline.core.values import NO_LOSS, Part
from paceline.curves.ensemble.families import FAMILIES, Family
from paceline.curves.ensemble.mcmc import COUNT, compute_r_hat, fit_approximation, run_chains
from paceline.curves.ensemble.model import Ensemble, Fit
from paceline.curves.ensemble.posterior import SIZE, Posterior
from paceline.curves.ensemble.priors import PRIORS, drift_variance, early_noise, noise_variance

X = np.arange(1.0, 13.0)


def falling(epochs: int, noise: float = 0.01, floor: float = 0.3) -> list[float]:
    rng = stream(7, "falling", epochs)
    return [floor + 0.6 * n**-0.7 + rng.gauss(0, noise) for n in range(1, epochs + 1)]


def fit(losses: list[float], horizon: int = 60, **given: int) -> Fit:
    found = Ensemble(**given).fit(History(losses, (horizon,), horizon, {}))
    assert found is not None
    return found


def posterior(y: np.ndarray) -> Posterior:
    return Posterior(X[: len(y)], X[: len(y)] / 60, y)


def test_without_emcee_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "emcee", None)  # as if it were not installed
    with pytest.raises(SpecError, match=r"emcee is not installed: pip install 'paceline\[ensemble"):
        build_part("curve model", Part("ensemble"))


def test_there_are_eleven_families_with_36_parameters() -> None:
    assert len(FAMILIES) == COUNT == 11
    assert sum(len(family.start) for family in FAMILIES) == 36
    assert [prior.family for prior in PRIORS] == list(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_family_rises_from_its_start_values_and_takes_many_vectors(family: Family) -> None:
    vectors = np.array([family.start, family.start])
    rows = family.curve(X, vectors)
    assert rows.shape == (2, len(X))
    assert np.all(np.diff(rows[0]) > 0)
    assert np.array_equal(rows[0], rows[1])


def joint(number: int, point: np.ndarray, seen: int, ahead: int) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and covariance of a curve's first points, by dense algebra."""
    x = X[: seen + ahead]
    since = (x - x[0]) / 60
    prior = PRIORS[number]
    h0, h1 = (column[0] for column in prior.columns(x, point))
    noises = np.append(early_noise(seen), np.ones(ahead)) ** 2
    walk = drift_variance(point[0, 3]) * np.minimum(since[:, None], since[None, :])
    covariance = noise_variance(point[0, 2]) * (np.diag(noises) + walk)
    mean = prior.gain.mean * h1
    covariance = covariance + prior.gain.sd**2 * np.outer(h1, h1)
    if prior.level is not None:
        mean = mean + prior.level.mean * h0
        covariance = covariance + prior.level.sd**2 * np.outer(h0, h0)
    return mean, covariance


Y = np.array([0.2, 0.35, 0.41, 0.44, 0.47])
POINT = np.array([[0.3, -0.2, 0.4, 0.1]])


@pytest.mark.parametrize("number", range(COUNT), ids=lambda number: FAMILIES[number].name)
def test_integrating_level_and_gain_out_gives_the_normal_density(number: int) -> None:
    mean, covariance = joint(number, POINT, 5, 0)
    off = Y - mean
    wanted = -0.5 * (off @ np.linalg.solve(covariance, off) + np.linalg.slogdet(covariance)[1])
    found = posterior(Y).log_density(np.array([number]), POINT)[0]
    # Up to a constant: the factor of the early noise.
    settled = np.log(early_noise(5)).sum()
    assert found - settled == pytest.approx(wanted - 0.5 * (POINT**2).sum(), rel=1e-6)


@pytest.mark.parametrize("number", range(COUNT), ids=lambda number: FAMILIES[number].name)
def test_a_forecast_is_the_joint_distribution_given_what_was_seen(number: int) -> None:
    mean, covariance = joint(number, POINT, 5, 2)
    gain = np.linalg.solve(covariance[:5, :5], covariance[:5, 5:])
    wanted = mean[5:] + gain.T @ (Y - mean[:5])
    spread = np.diag(covariance[5:, 5:] - covariance[5:, :5] @ gain)
    found = posterior(Y).forecast(np.array([number]), POINT, X[5:7], X[5:7] / 60)
    assert found[0][0] == pytest.approx(wanted, rel=1e-6)
    assert found[1][0] == pytest.approx(spread, rel=1e-6)


def test_little_noise_is_numerically_stable() -> None:
    points = np.array([[0.0, 0.0, -6.0, -3.0]] * COUNT)
    found = posterior(np.array([0.8])).log_density(np.arange(COUNT), points)
    assert np.all(np.isfinite(found))
    assert np.all(found < 100)


def test_chains_mix_and_r_hat_shows_it() -> None:
    found = fit(falling(20))
    assert 0.2 < found.acceptance < 0.8
    assert found.r_hat < 1.1
    assert sum(found.weights.values()) == pytest.approx(1)


def test_chains_that_stay_apart_have_a_large_r_hat() -> None:
    draws = np.random.default_rng(1).standard_normal((100, 20))
    assert compute_r_hat(draws) == pytest.approx(1, abs=0.03)
    assert compute_r_hat(draws + np.arange(20)) > 2
    assert compute_r_hat(draws * np.linspace(0.1, 5, 20)) > 1.2  # the same middle, other tails
    assert compute_r_hat(np.zeros((10, 4))) == 1.0


def test_a_wrong_approximation_does_not_change_the_samples() -> None:
    # A wrong approximation must not change the samples: the families' shares are reversed.
    y = np.array([0.1, 0.3, 0.38, 0.43, 0.46, 0.49, 0.5, 0.52])
    random = np.random.RandomState(3)
    start = fit_approximation(posterior(y), random)
    wrong = start._replace(shares=np.full(COUNT, 1 / COUNT))
    shares = []
    for begin in (start, wrong):
        chains = run_chains(posterior(y), begin, 48, 400, random)
        families, _ = begin.map_coordinates(chains.coordinates.reshape(-1, SIZE + 1))
        shares.append(np.bincount(families, minlength=COUNT) / len(families))
    assert np.abs(shares[0] - shares[1]).max() < 0.06
    assert np.abs(shares[0] - 1 / COUNT).max() > 0.06


def test_the_forecast_of_a_clear_curve_covers_its_end() -> None:
    curve = falling(60, noise=0.003)
    found = fit(curve[:30])
    (row,) = found.forecast.quantiles
    assert row[1] < curve[-1] < row[-2]
    assert row[-2] - row[1] < 0.2
    assert found.means[0] == pytest.approx(curve[-1], abs=0.05)
    assert 0 < found.sds[0] < 0.1


def test_an_accuracy_is_forecast_like_the_loss_it_mirrors() -> None:
    rising = fit([loss - 1 for loss in falling(15)], steps=60)
    (row,) = rising.forecast.quantiles
    assert -0.9 < row[7] < -0.4


def test_one_point_is_forecast_from_the_prior() -> None:
    (row,) = fit([-0.3], steps=60).forecast.quantiles
    assert row[0] < -0.9  # it may still become very good
    assert row[-1] > -0.3  # or worse


def test_ten_thousand_points_are_thinned_and_keep_their_trend() -> None:
    losses = [1 / (1 + n / 500) for n in range(10_000)]
    found = fit(losses, 20_000, steps=60)
    (row,) = found.forecast.quantiles
    assert 0 < row[7] < losses[-1] * 1.5


def test_gaps_are_skipped_and_a_curve_that_ends_in_nan_has_no_forecast() -> None:
    curve = falling(20)
    curve[5] = NO_LOSS
    assert fit(curve, steps=30)
    assert Ensemble().fit(History([*curve, NO_LOSS], (60,), 60, {})) is None


def test_an_explosion_does_not_hide_the_curve_before_it() -> None:
    found = fit([*falling(20), 1e9], steps=30)
    assert all(map(math.isfinite, found.forecast.quantiles[0]))


@pytest.mark.parametrize("given", [{"steps": 2}, {"walkers": 9}])
def test_too_few_steps_or_walkers_are_refused(given: dict[str, int]) -> None:
    with pytest.raises(SpecError, match="at least 8 steps and 10 walkers"):
        Ensemble(**given)


def test_draws_depend_only_on_the_curve() -> None:
    first, again = fit(falling(10), steps=30), fit(falling(10), steps=30)
    assert first == again
    other = fit([loss + 1e-9 for loss in falling(10)], steps=30)
    assert other.forecast != first.forecast
