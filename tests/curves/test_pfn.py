"""The pre-trained curve model: its forecasts, and its errors."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from hashlib import sha256
from importlib.resources import files
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest

from paceline.api.options import StudyOptions, resolve_spec
from paceline.core.curve_requests import forecast_curves
from paceline.core.decisions import AskForecast
from paceline.core.errors import ModelError, SpecError
from paceline.core.forecast_quantiles import LEVELS, Forecast
from paceline.core.ports import History, Other
from paceline.core.values import NO_LOSS
from paceline.curves.last_value import Last
from paceline.curves.pfn import encoding
from paceline.curves.pfn import inference as network
from paceline.curves.pfn.model import Pfn, PfnStudy
from paceline.engines.advisor import StudyAdvisor
from paceline.engines.sim.cluster import Cluster
from paceline.testing.simulations import (
    Scenario,
    SimulatedStudy,
    make_parts,
    make_study,
    make_table,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from paceline.core.ports import CurveModel

LOW, HIGH = LEVELS.index(0.1), LEVELS.index(0.9)


def falling(count: int, start: float = 2.3, end: float = 0.4) -> list[float]:
    return [end + (start - end) * math.exp(-k / 15) for k in range(count)]


def asked(
    losses: Sequence[float],
    *horizons: int,
    model: CurveModel | None = None,
    bounds: tuple[float, float] | None = None,
    others: Sequence[Other] = (),
) -> Forecast:
    history = History(losses, horizons, max(horizons), {}, bounds, others)
    (answer,) = forecast_curves(model or Pfn(), [history])
    assert answer is not None
    return answer


@pytest.fixture
def fresh() -> Iterator[None]:
    """Reload the weights before and after the test."""
    network._open_session.cache_clear()
    yield
    network._open_session.cache_clear()


# Forecasts


def test_a_falling_loss_is_forecast_to_fall_a_little_further() -> None:
    forecast = asked(falling(20), 30, 60)
    assert forecast.median(60) < forecast.median(30) < falling(20)[-1]
    assert forecast.chance(60, 0.0) < 0.2, "a loss seldom falls below what is left to learn"


def test_a_rising_accuracy_is_forecast_to_rise_further() -> None:
    accuracy = [-(0.9 - 0.8 * math.exp(-k / 8)) for k in range(12)]
    forecast = asked(accuracy, 60)
    assert -1.0 < forecast.median(60) < accuracy[-1]


def test_a_single_accuracy_gives_a_wide_but_informative_forecast() -> None:
    forecast = asked([-0.35], 100)
    (row,) = forecast.quantiles
    assert row[HIGH] - row[LOW] > 0.1
    assert row[LEVELS.index(0.05)] > -1.2
    assert forecast.median(100) < -0.35


def test_the_unit_of_the_metric_does_not_matter() -> None:
    curve = falling(20, 3.0, 1.2)
    metres = asked([1e4 * loss for loss in curve], 60).median(60)
    assert metres / 1e4 == pytest.approx(asked(curve, 60).median(60), rel=0.1)


def test_ten_thousand_points_are_thinned_and_forecast() -> None:
    curve = [0.5 + 1 / (1 + k / 500) for k in range(10_000)]
    forecast = asked(curve, 10_001, 20_000)
    assert forecast.median(10_001) == pytest.approx(curve[-1], rel=0.01)
    assert 0.4 < forecast.median(20_000) < curve[-1]


@pytest.mark.parametrize("count", [1, 47, 48, 49, 50, 100, 1000])
def test_every_point_is_in_exactly_one_token(count: int) -> None:
    starts = encoding.compute_bins(count)
    assert starts[0] == 0
    assert len(starts) == min(count, encoding.POINTS)
    assert all(later > sooner for sooner, later in pairwise(starts))
    points = encoding.Points(np.arange(count, dtype=float))
    assert points.sizes.sum() == count
    assert (points.means * points.sizes).sum() == pytest.approx(np.arange(count).sum())


def test_a_curve_that_ends_in_nan_still_has_a_forecast() -> None:
    forecast = asked([*falling(10), NO_LOSS, math.nan], 30)
    assert all(map(math.isfinite, forecast.quantiles[0]))


@pytest.mark.parametrize("model", [Pfn(), PfnStudy()])
def test_a_curve_without_any_number_has_no_forecast(model: CurveModel) -> None:
    nothing = [History([NO_LOSS] * 5, (9,), 9, {}), History([], (9,), 9, {})]
    assert list(model.forecast(nothing)) == [None, None]


def test_the_quantiles_of_any_curve_rise() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        curve = np.cumsum(rng.standard_normal(1 + 7 * seed)) * 10.0 ** rng.integers(-6, 6)
        forecast = asked(curve.tolist(), len(curve) + 1, len(curve) + 100)
        assert all(low <= high for row in forecast.quantiles for low, high in pairwise(row))


def test_batches_larger_than_one_pass_equal_single_forecasts() -> None:
    lengths = [1, 3, 8, 9, 30, 48, 60] * 12
    batch = [
        History(falling(n, 2 + k / 10), (n + 1, *range(90, 91 + k % 3)), 100, {})
        for k, n in enumerate(lengths)
    ]
    for history, answer in zip(batch, Pfn().forecast(batch), strict=True):
        (alone,) = Pfn().forecast([history])
        assert alone is not None
        assert answer is not None
        np.testing.assert_allclose(answer.quantiles, alone.quantiles, rtol=1e-6)


# A declared range


def trained(trial: object) -> None:
    """Stand for a training function."""


def test_forecasts_stay_inside_the_declared_range() -> None:
    curve = [-0.98, -0.985, -0.99, -0.992]
    (free,) = asked(curve, 50).quantiles
    (bound,) = asked(curve, 50, bounds=(-1.0, 0.0)).quantiles
    assert -1.0 <= bound[0] <= bound[-1] <= 0.0
    assert bound != free


def test_values_outside_the_declared_range_are_forecast_inside_it() -> None:
    (row,) = asked([-1.5, -1.4, -1.6], 10, bounds=(-1.0, 0.0)).quantiles
    assert -1.0 <= row[0] <= row[-1] <= 0.0


def test_a_range_of_accuracies_is_turned_into_losses() -> None:
    spec = resolve_spec(trained, StudyOptions(metric="acc", mode="max", epochs=5, range=(0, 1)))
    assert spec.range == (0.0, 1.0)
    assert spec.bounds == (-1.0, 0.0)
    spec = resolve_spec(trained, StudyOptions(metric="err", mode="min", epochs=5, range=(0, 100)))
    assert spec.bounds == (0.0, 100.0)
    spec = resolve_spec(trained, StudyOptions(metric="err", mode="min", epochs=5))
    assert spec.bounds is None


@pytest.mark.parametrize("wrong", [(1, 0), (0, math.inf), (0, 0), (0,), "0-1", 3])
def test_an_invalid_range_is_refused(wrong: object) -> None:
    with pytest.raises(SpecError, match=r"range=.*\(0, 1\)"):
        resolve_spec(trained, StudyOptions(metric="acc", mode="max", epochs=5, range=wrong))  # type: ignore[arg-type]


# Other trials of the study


def test_other_trials_inform_the_forecast_of_a_young_one() -> None:
    young = falling(3)
    good = [Other(falling(60, 2.3, 0.40 + k / 100), {}) for k in range(8)]
    poor = [Other(falling(60, 2.3, 1.40 + k / 100), {}) for k in range(8)]
    hopeful, doubtful = (
        asked(young, 60, model=PfnStudy(), others=others) for others in (good, poor)
    )
    assert hopeful.median(60) < doubtful.median(60)
    (alone,), (told,) = asked(young, 60).quantiles, hopeful.quantiles
    assert told[HIGH] - told[LOW] < alone[HIGH] - alone[LOW]


def test_the_single_curve_model_ignores_other_trials() -> None:
    others = [Other(falling(60), {}), Other([NO_LOSS], {})]
    assert asked(falling(5), 60, others=others) == asked(falling(5), 60)


def test_without_usable_others_the_study_model_equals_the_single_curve_model() -> None:
    nothing = [Other([NO_LOSS, math.nan], {})]
    assert asked(falling(5), 60, model=PfnStudy(), others=nothing) == asked(falling(5), 60)


class Noting(Last):
    """Records the histories it gets."""

    others = 2

    def __init__(self) -> None:
        self.seen: list[History] = []

    def forecast(self, histories: Sequence[History]) -> Sequence[Forecast | None]:
        self.seen.extend(histories)
        return super().forecast(histories)


def study() -> SimulatedStudy:
    trace = make_table([falling(9, 2.3, 0.1 * k) for k in range(6)])
    scene = Scenario("the metric's range is known", Cluster(slots=3), {"range": (0.0, 3.0)})
    return make_study(trace, make_parts(trace), scene).run()


def test_a_model_gets_the_furthest_trials_and_the_declared_bounds() -> None:
    done = study()
    model = Noting()
    ask = AskForecast(trial=2, epoch=4, horizons=(9,), why="a test")
    answer = StudyAdvisor([model], [done.parts.generator], done.state).answer(ask)()
    (history,) = model.seen
    assert answer.forecast is not None  # type: ignore[union-attr]
    assert history.losses == list(done.state.trials[2].losses[:4])
    assert history.bounds == (0.0, 3.0)
    assert [len(other.losses) for other in history.others] == [9, 9]
    assert [other.config for other in history.others] == [
        done.state.trials[0].config,
        done.state.trials[1].config,
    ]


def test_a_model_that_wants_no_other_trials_gets_none() -> None:
    done = study()
    model = Noting()
    model.others = 0
    ask = AskForecast(trial=2, epoch=4, horizons=(9,), why="a test")
    StudyAdvisor([model], [done.parts.generator], done.state).answer(ask)()
    assert list(model.seen[0].others) == []


# Weights that cannot be used


@pytest.mark.usefixtures("fresh")
def test_a_study_continues_without_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "FILE", "nowhere.onnx")
    done = study()
    ask = AskForecast(trial=2, epoch=4, horizons=(9,), why="a test")
    answer = StudyAdvisor([PfnStudy()], [done.parts.generator], done.state).answer(ask)()
    assert answer.forecast is None  # type: ignore[union-attr]
    assert "cannot be read" in answer.note


def test_the_weights_match_their_checksum_and_are_small() -> None:
    body = files("paceline.curves.pfn").joinpath(network.FILE).read_bytes()
    assert sha256(body).hexdigest() == network.SHA256
    assert len(body) < 12_000_000


@pytest.mark.usefixtures("fresh")
def test_missing_weights_are_reported_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "FILE", "nowhere.onnx")
    with pytest.raises(ModelError, match=r"nowhere\.onnx .* cannot be read .*install Paceline"):
        asked([0.5], 9)


@pytest.mark.usefixtures("fresh")
def test_damaged_weights_are_reported_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    body = bytearray(files("paceline.curves.pfn").joinpath(network.FILE).read_bytes())
    body[len(body) // 2] ^= 1
    (tmp_path / network.FILE).write_bytes(body)
    monkeypatch.setattr(network, "files", lambda _: tmp_path)
    with pytest.raises(ModelError, match="damaged"):
        asked([0.5], 9)


@pytest.mark.usefixtures("fresh")
def test_a_missing_runtime_is_reported_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ModelError, match="onnxruntime"):
        asked([0.5], 9)


def test_the_runtime_writes_no_file_even_if_the_process_is_killed_after_its_import(
    tmp_path: Path,
) -> None:
    killed = (
        "import os, pathlib, signal\n"
        "from paceline.curves.pfn.runtime import import_runtime\n"
        "def kill(*_, **__):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "pathlib.Path.unlink = kill\n"
        "import_runtime()\n"
        "kill()\n"
    )
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    environ.pop("ORT_DISABLE_TELEMETRY", None)
    run = subprocess.run([sys.executable, "-c", killed], env=environ, check=False)
    assert run.returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []
