"""Synthetic workloads: training by formula, for tests, demonstrations and forks.

Contains HyperSched's toy curve, random draws from parametric families with noise, crashes and
divergence, and a noisy quadratic with a loss that depends on all learning rates so far. Unlike a
trace, a formula has a value for every setting at every epoch.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, Protocol

from paceline.core.errors import SpecError
from paceline.core.ports import Crash, Outcome
from paceline.core.rng import stream
from paceline.core.space import choice, loguniform, uniform
from paceline.plan.settings import config_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.core.values import Config, Mode


class Synthetic(Protocol):
    """A workload with a search space."""

    metric: str
    mode: Mode
    epochs: int
    space: Config

    def begin(self, config: Config) -> object: ...
    def setup_s(self, state: object) -> float | None: ...
    def advance(self, state: object, setting: Config) -> Outcome | Crash: ...


class _CurveState(NamedTuple):
    """The number of epochs done, and the value without noise."""

    done: int
    level: float


class Toy:
    """HyperSched's toy curve (Liaw et al., SoCC 2019): loss = 1/(b0·k/100 + b1/10 + 1/2) + b2/100.

    b0 is exponential with mean 0.1, b1 and b2 are uniform; noise is the absolute value of a normal
    with standard deviation 0.005; the metric is (2 - loss) / 2.
    """

    metric = "accuracy"
    mode: Mode = "max"

    def __init__(self, *, seed: int, epochs: int = 500, epoch_s: float = 0.1) -> None:
        _require(epochs >= 1 and 0 <= epoch_s < math.inf, "toy", epochs=epochs, epoch_s=epoch_s)
        self.epochs = epochs
        self.space = {"b0": uniform(0, 1), "b1": uniform(0, 1), "b2": uniform(0, 1)}
        self._seed = seed
        self._epoch_s = epoch_s

    def begin(self, config: Config) -> object:
        return _CurveState(0, 0.0)

    def setup_s(self, state: object) -> float | None:
        return None

    def advance(self, state: object, setting: Config) -> Outcome | Crash:
        assert isinstance(state, _CurveState)
        k = state.done + 1
        # The space draws b0 as its quantile, so that every dimension is uniform.
        b0 = -0.1 * math.log(1.0 - min(setting["b0"], 1 - 1e-12))
        loss = 1.0 / (b0 * k / 100 + 0.1 * setting["b1"] + 0.5) + 0.01 * setting["b2"]
        noise = abs(stream(self._seed, "noise", _encode(setting), k).gauss(0.0, 0.005))
        value = (2.0 - loss - noise) / 2.0
        return Outcome({self.metric: _round(value)}, self._epoch_s, _CurveState(k, value))


def _power(x: float, rate: float) -> float:
    return 1.0 - math.pow(1.0 + x, -rate)


def _exponential(x: float, rate: float) -> float:
    return 1.0 - math.exp(-rate * x)


def _hill(x: float, rate: float) -> float:
    return x / (x + 1.0 / rate)


def _logarithm(x: float, rate: float) -> float:
    return math.log(1.0 + rate * x) / math.log(1.0 + rate * 100.0)


_SHAPES: dict[str, Callable[[float, float], float]] = {
    "exponential": _exponential,
    "hill": _hill,
    "logarithm": _logarithm,
    "power": _power,
}


class Families:
    """Saturating curves of four shapes, some of which crash, diverge or never learn."""

    metric = "accuracy"
    mode: Mode = "max"

    def __init__(
        self,
        *,
        seed: int,
        epochs: int = 100,
        noise: float = 0.01,
        crash: float = 0.02,
        diverge: float = 0.08,
    ) -> None:
        good = epochs >= 1 and 0 <= noise < math.inf and min(crash, diverge) >= 0
        given = {"epochs": epochs, "noise": noise, "crash": crash, "diverge": diverge}
        _require(good and crash + diverge <= 1, "families", **given)
        self.epochs = epochs
        self.space = {
            "shape": choice(sorted(_SHAPES)),
            "start": uniform(0.05, 0.2),
            "end": uniform(0.1, 0.95),
            "rate": loguniform(0.05, 2.0),
            "epoch_s": loguniform(0.5, 4.0),
            # Below `crash` the trial fails at some epoch, below `crash + diverge` it diverges.
            "luck": uniform(0, 1),
        }
        self._seed = seed
        self._noise = noise
        self._crash = crash
        self._diverge = diverge

    def begin(self, config: Config) -> object:
        return _CurveState(0, config["start"] if not isinstance(config["start"], dict) else 0.1)

    def setup_s(self, state: object) -> float | None:
        return None

    def advance(self, state: object, setting: Config) -> Outcome | Crash:
        assert isinstance(state, _CurveState)
        k = state.done + 1
        rng = stream(self._seed, "families", _encode(setting), k)
        seconds = setting["epoch_s"] * (1.0 + 0.05 * rng.random())
        # The share of its epochs after which an unlucky trial crashes or diverges.
        fate = stream(self._seed, "fate", _encode({"luck": setting["luck"]})).random()
        doomed = k > fate * self.epochs
        if doomed and setting["luck"] < self._crash:
            return Crash(_round(seconds / 2), f"simulated crash in epoch {k}")
        shape, rate = _SHAPES[setting["shape"]], setting["rate"]
        gain = shape(float(k), rate) - shape(float(k - 1), rate)
        level = state.level + (setting["end"] - setting["start"]) * gain
        value = None if doomed and setting["luck"] < self._crash + self._diverge else level
        if value is not None:
            value = _round(value + self._noise * rng.gauss(0.0, 1.0))
        return Outcome({self.metric: value}, _round(seconds), _CurveState(k, level))


_CURVATURES = (1.0, 0.1, 0.01)
_STEPS = 20


class _QuadraticState(NamedTuple):
    """How many epochs are done, and the mean squared error in each direction."""

    done: int
    squares: tuple[float, ...]


class Quadratic:
    """A noisy quadratic, trained by gradient descent (after Wu et al., ICLR 2018).

    loss = 1/2 sum h·a over curvatures h, where a step turns a mean squared error a into
    (1 - lr·h)^2 a + lr^2 h. A high rate gets far in flat directions and ends in noise, a low one is
    exact in steep directions and never arrives: the best rate falls as training goes on. With
    `stages` the rate is drawn anew for each part of training, with `rates` from that many values.
    """

    metric = "loss"
    mode: Mode = "min"

    def __init__(
        self,
        *,
        seed: int,
        epochs: int = 60,
        noise: float = 0.02,
        stages: int = 1,
        rates: int | None = None,
    ) -> None:
        good = 1 <= stages <= epochs and 0 <= noise < math.inf and (rates is None or rates > 1)
        _require(good, "quadratic", epochs=epochs, noise=noise, stages=stages, rates=rates or 0)
        self.epochs = epochs
        rate = loguniform(0.001, 1.0)
        if rates is not None:
            rate = choice([_round(10.0 ** (-3 * at / (rates - 1))) for at in range(rates)])
        parts = [[epochs * part // stages, rate] for part in range(stages)]
        self.space = {"lr": rate if stages == 1 else {"piecewise": parts}}
        self._seed = seed
        self._noise = noise

    def begin(self, config: Config) -> object:
        # In flat directions there is further to go.
        return _QuadraticState(0, tuple(1.0 / h for h in _CURVATURES))

    def setup_s(self, state: object) -> float | None:
        return None

    def advance(self, state: object, setting: Config) -> Outcome | Crash:
        assert isinstance(state, _QuadraticState)
        lr, squares = setting["lr"], state.squares
        for _ in range(_STEPS):
            squares = tuple(
                (1.0 - lr * h) ** 2 * a + lr * lr * h
                for h, a in zip(_CURVATURES, squares, strict=True)
            )
        loss = 0.5 * sum(h * a for h, a in zip(_CURVATURES, squares, strict=True))
        # Rounded here too: a trial started from this state must train as one that came here.
        after = _QuadraticState(state.done + 1, tuple(_round(a) for a in squares))
        rng = stream(self._seed, "quadratic", _encode(setting), after.done)
        loss *= 1.0 + self._noise * rng.gauss(0.0, 1.0)
        return Outcome({self.metric: _round(loss)}, 1.0, after)


SYNTHETIC = {"families": Families, "quadratic": Quadratic, "toy": Toy}


def build_synthetic(name: str, params: Config, seed: int) -> Synthetic | None:
    """Return the synthetic workload of that name; None: there is no such workload."""
    kind = SYNTHETIC.get(name)
    if kind is None:
        return None
    try:
        workload: Synthetic = kind(seed=seed, **params)
    except TypeError as error:
        raise SpecError(f"synthetic workload {name!r}: {error}.") from None
    return workload


def _require(good: bool, name: str, **given: float) -> None:
    if not good:
        listed = ", ".join(f"{key}={value:g}" for key, value in given.items())
        raise SpecError(
            f"{name}: {listed} is invalid: give 1 epoch or more, seconds and noise of 0 or more, "
            "and "
            "shares of trials that add up to 1 at most."
        )


def _encode(setting: Config) -> str:
    return config_key(setting).decode()


def _round(value: float) -> float:
    # Libraries differ in the last digit of exp and log; the bytes of a simulation must not.
    return float(f"{value:.12g}")
