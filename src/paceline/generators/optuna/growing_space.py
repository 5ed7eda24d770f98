"""A space that grows: the hyperparameters that training functions have asked for so far.

Knows the domains of each hyperparameter, and how a sampler's parameters become a config and back.
Proposes a value for every known hyperparameter, also for those that only some trials use. Does not
know the sampler, or which trial asked for what.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from optuna.trial import FixedTrial

from paceline.core.domains import ChoiceDomain, FloatDomain, is_same_form

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from optuna.distributions import BaseDistribution
    from optuna.trial import BaseTrial

    from paceline.core.domains import Domain
    from paceline.core.values import Config, Value


class GrowingSpace:
    """The hyperparameters that are known so far.

    Limits may depend on other values, so that a hyperparameter has another domain in each trial: a
    value is proposed from the widest one. The training process draws another value where the limits
    exclude it. If a hyperparameter changes its form (other choices, or logarithmic instead of
    linear), the sampler learns the new form by itself, since Optuna compares only values of one.
    """

    def __init__(self) -> None:
        # For each hyperparameter every form it had, as the widest domain; and its latest form.
        self._forms: dict[str, list[Domain]] = {}
        self._latest: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._latest)

    def learn(self, domains: Mapping[str, Domain]) -> None:
        """Take in what one trial has asked for."""
        for name, domain in domains.items():
            forms = self._forms.setdefault(name, [])
            at = _find_form(forms, domain)
            if at == len(forms):
                forms.append(domain)
            else:
                forms[at] = forms[at].widen(domain)  # type: ignore[arg-type]
            self._latest[name] = at

    def fill(self, trial: BaseTrial) -> Config:
        """Return a config with a value for every hyperparameter, chosen by a sampler."""
        return {
            name: suggest_domain(trial, _name_form(name, at), self._forms[name][at])
            for name, at in self._latest.items()
        }

    def describe(
        self, config: Config, domains: Mapping[str, Domain] | None = None
    ) -> tuple[dict[str, Any], dict[str, BaseDistribution]]:
        """Return a config as Optuna stores it: parameters and their distributions.

        Without domains those that are known now hold; values outside of them are left out.
        """
        found = list(self._list_params(config, domains))
        trial = FixedTrial({name: _encode(domain, value) for name, domain, value in found})
        for name, domain, _ in found:
            suggest_domain(trial, name, domain)
        return trial.params, trial.distributions

    def _list_params(
        self, config: Config, domains: Mapping[str, Domain] | None
    ) -> Iterator[tuple[str, Domain, Value]]:
        for name, value in config.items():
            if domains is not None and name in domains:
                domain = domains[name]
                at = _find_form(self._forms[name], domain)
            elif domains is None and name in self._latest:
                at = self._latest[name]
                domain = self._forms[name][at]
            else:
                continue
            if isinstance(domain, ChoiceDomain):
                if domain.index(value) is not None:
                    yield _name_form(name, at), domain, value
            elif (held := domain.find(value)) is not None:
                yield _name_form(name, at), domain, held


def suggest_domain(trial: BaseTrial, name: str, domain: Domain) -> Value:
    """Let a sampler choose a value of a domain; a choice by its index."""
    if isinstance(domain, ChoiceDomain):
        indices = list(range(len(domain.choices)))
        return domain.choices[trial.suggest_categorical(name, indices)]
    if isinstance(domain, FloatDomain):
        low, high, step = domain.low, domain.high, domain.step
        if step is not None:  # Optuna warns if the last step misses the upper limit
            high = low + step * math.floor((high - low) / step + 1e-9)
        return float(trial.suggest_float(name, low, high, step=step, log=domain.log))
    least, most, every = domain.low, domain.high, domain.step
    most = least + every * ((most - least) // every)
    return int(trial.suggest_int(name, least, most, step=every, log=domain.log))


def _encode(domain: Domain, value: Value) -> Value:
    """Return the parameter for which `suggest_domain` gives this value."""
    return domain.index(value) if isinstance(domain, ChoiceDomain) else value


def _find_form(forms: list[Domain], domain: Domain) -> int:
    """Return the place of a domain's form, or the place after the last if it is new."""
    return next((at for at, each in enumerate(forms) if is_same_form(each, domain)), len(forms))


def _name_form(name: str, at: int) -> str:
    """Return the name of a form for the sampler: later forms are parameters of their own."""
    return f"{name}\x1f{at}" if at else name
