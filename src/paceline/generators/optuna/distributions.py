"""Optuna's distributions as domains, and domains as Optuna's distributions.

Knows both spellings. Does not know studies or samplers.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from paceline.core.domains import ChoiceDomain, Domain, FloatDomain, IntDomain, make_choices
from paceline.core.space import CHOICES, find_multiples

if TYPE_CHECKING:
    from paceline.core.space import Dimension
    from paceline.core.values import Value

# What Optuna's storages can hold as a choice.
_PLAIN = (type(None), bool, int, float, str)


def to_distribution(domain: Domain) -> BaseDistribution:
    """Return a domain as Optuna's distribution; choices that it cannot hold as JSON text."""
    if isinstance(domain, ChoiceDomain):
        return CategoricalDistribution([to_plain(choice) for choice in domain.choices])
    if isinstance(domain, IntDomain):
        high = domain.low + domain.step * ((domain.high - domain.low) // domain.step)
        return IntDistribution(domain.low, high, log=domain.log, step=domain.step)
    top = domain.high
    if domain.step is not None:  # Optuna warns if the last step misses the upper limit
        steps = math.floor((domain.high - domain.low) / domain.step + 1e-9)
        top = domain.low + domain.step * steps
    return FloatDistribution(domain.low, top, log=domain.log, step=domain.step)


def to_domain(distribution: BaseDistribution) -> Domain | None:
    """Return Optuna's distribution as a domain; None if it has no counterpart."""
    if isinstance(distribution, FloatDistribution):
        low, high = distribution.low, distribution.high
        return FloatDomain(low=low, high=high, step=distribution.step, log=distribution.log)
    if isinstance(distribution, IntDistribution):
        least, most = distribution.low, distribution.high
        return IntDomain(low=least, high=most, step=distribution.step, log=distribution.log)
    if isinstance(distribution, CategoricalDistribution):
        return make_choices(distribution.choices)
    return None


def describe_dimension(dimension: Dimension) -> Domain:
    """Return a dimension of a space as a domain."""
    kind, arguments = dimension.kind, dimension.arguments
    if kind in CHOICES:
        return ChoiceDomain(choices=arguments)
    low, high = arguments[:2]
    if kind in ("randint", "lograndint"):
        return IntDomain(low=low, high=high - 1, log=kind == "lograndint")
    if kind == "quniform":
        least, most = find_multiples(*arguments)
        step = float(arguments[2])
        return FloatDomain(low=least * step, high=most * step, step=step)
    return FloatDomain(low=float(low), high=float(high), log=kind == "loguniform")


def to_plain(value: Value) -> bool | int | float | str | None:
    """Return a value as Optuna's storages can hold it.

    >>> to_plain([64, 64]), to_plain("relu")
    ('[64, 64]', 'relu')
    """
    return value if isinstance(value, _PLAIN) else json.dumps(value)
