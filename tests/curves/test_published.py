"""The published curve model: chosen by name, normalised by the range, refused without its extra."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from small_studies import SmallStudy, make_table

from paceline.api.registry import build_part, parse_part
from paceline.core.curve_requests import forecast_curves
from paceline.core.errors import SpecError
from paceline.core.events import Forecasted
from paceline.core.ports import History
from paceline.core.values import NO_LOSS
from paceline.curves import emcee_chains
from paceline.curves.published.model import Published
from paceline.policies.early_term import EarlyTerm

if TYPE_CHECKING:
    from paceline.core.forecast_quantiles import Forecast

# Fractions of 64, so that other scales hold exactly the same numbers.
ACCURACIES = [round(64 * (0.9 - 0.6 / (1 + 0.5 * epoch))) / 64 for epoch in range(12)]


def forecast_one(losses: list[float], bounds: tuple[float, float] | None = None) -> Forecast | None:
    history = History(losses, (13, 30), 30, {}, bounds)
    (found,) = forecast_curves(Published(steps=20, walkers=1), [history])
    return found


def test_it_is_chosen_by_its_name() -> None:
    assert isinstance(build_part("curve model", parse_part("published:steps=2500")), Published)


def test_a_study_forecasts_with_it() -> None:
    study = SmallStudy(
        make_table([ACCURACIES, [0.5 * value for value in ACCURACIES]], mode="max"),
        EarlyTerm(boundary=6),
        curves=Published(steps=20, walkers=1),
        range=(0.0, 1.0),
    )
    study.run()
    assert any(entry.forecast is not None for entry in study.list_entries(Forecasted))


def test_values_are_normalised_by_the_declared_range() -> None:
    plain = forecast_one([-value for value in ACCURACIES], (-1.0, 0.0))
    # The same curve as rewards from -512 to 512.
    reward = forecast_one([512.0 - 1024.0 * value for value in ACCURACIES], (-512.0, 512.0))
    assert plain is not None
    assert reward is not None
    for row, other in zip(plain.quantiles, reward.quantiles, strict=True):
        assert [512.0 + 1024.0 * loss for loss in row] == pytest.approx(other, abs=1e-6)


def test_a_curve_without_a_number_at_its_end_has_no_forecast() -> None:
    assert forecast_one([-0.5, -0.6, NO_LOSS]) is None
    assert forecast_one([-0.5, NO_LOSS, -0.6]) is not None


def test_too_short_a_chain_is_refused() -> None:
    with pytest.raises(SpecError, match="at least 20 steps and 1 walker"):
        Published(steps=5)


def test_without_its_extra_a_study_fails_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emcee_chains, "find_spec", lambda name: None)
    with pytest.raises(
        SpecError, match=r"emcee is not installed: pip install 'paceline\[ensemble\]'"
    ):
        Published()
