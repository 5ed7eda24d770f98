"""A mixture of the eleven published families of learning curves, each with a proper prior.

Knows the formulas and the priors of their parameters, for accuracies that rise with the epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from training.pfn.prior import Draws


def draw_published(draw: Draws, t: Tensor, epochs: Tensor) -> Tensor:
    """Return accuracies (studies, trials, length) of a mixture; NaN where it leaves [0, 1]."""
    # The priors are for a hundred epochs.
    x = torch.where(draw.study() < 0.5, 100.0 * t / epochs, t.expand(*draw.shape, -1)).clamp(min=1)
    ln = x.log()

    def pow3() -> Tensor:
        return draw.uniform(0, 1.25) - draw.uniform(-0.6, 0.6) * x ** -draw.lognormal(0, 2)

    def pow4() -> Tensor:
        inner = draw.lognormal(-3, 2) * x + draw.uniform().exp()
        return 1 - draw.uniform(-5, 0).exp() - inner ** -draw.lognormal(0, 1)

    def log_power() -> Tensor:
        return draw.normal(0.8, 0.1) / (1 + (x / draw.normal(1, 1).exp()) ** draw.uniform(-3, 0))

    def weibull() -> Tensor:
        top, low = draw.uniform(0, 1.5), draw.uniform()
        gone = (draw.lognormal(-2, 1) * x) ** draw.lognormal(0, 0.5)
        return top - (top - low) * torch.exp(-gone)

    def mmf() -> Tensor:
        top, low = draw.normal(0.8, 0.1), draw.normal(0.2, 0.1)
        return top - (top - low) / (1 + (draw.lognormal(0, 2) * x) ** draw.lognormal(0, 1))

    def janoschek() -> Tensor:
        top, low = draw.uniform(), draw.uniform(0, 2)
        return top - (top - low) * torch.exp(-draw.lognormal(-2, 1) * x ** draw.lognormal(0, 0.5))

    def vapour() -> Tensor:
        return torch.exp(
            draw.uniform(-2, 0) + draw.uniform(-4, 0) / x + draw.uniform(-8, 0).exp() * ln
        )

    def log_log() -> Tensor:
        return torch.log(draw.lognormal(-2, 1) * ln + draw.uniform().exp())

    def exp4() -> Tensor:
        rise = draw.lognormal(-2, 1) * x ** draw.lognormal(0, 1)
        return draw.normal(0.8, 0.1) - torch.exp(-rise + draw.lognormal(0, 0.5))

    def ilog2() -> Tensor:
        return draw.uniform() - draw.uniform(-0.5, 0.5) / torch.log(x + 1)

    def hill3() -> Tensor:
        eta = draw.lognormal(1, 1)
        return draw.normal(0.8, 0.1) / (1 + (draw.lognormal(1, 2) / x) ** eta)

    families = (pow3, pow4, log_power, weibull, mmf, janoschek, vapour, log_log, exp4, ilog2, hill3)
    total = torch.zeros_like(x)
    weights = torch.zeros_like(epochs)
    for family in families:
        weight = draw.uniform().clamp(min=1e-6).log().abs() ** 4
        curve = family()
        good = ((curve >= -0.2) & (curve <= 1.2)).all(2, keepdim=True)
        weight = torch.where(good, weight, 0.0)
        total = total + weight * torch.where(good, curve, 0.0)
        weights = weights + weight
    mixed = total / weights
    fits = (mixed[..., -1:] > mixed[..., :1]) & (mixed >= 0).all(2, keepdim=True)
    return torch.where(fits & (mixed <= 1).all(2, keepdim=True), mixed, torch.nan)
