"""Optuna's pruners as policies: the same names and arguments, and the rule each stands for.

Optuna's own pruner objects do not show their arguments, so that these classes stand in for them in
`paceline.integrations.optuna.pruners`. A pruner without a counterpart is refused.
"""

from __future__ import annotations

from paceline.core.errors import SpecError
from paceline.core.values import Part


class Pruner:
    """A pruner, as the policy that does the same."""

    def __init__(self, policy: Part) -> None:
        self.policy = policy

    def __repr__(self) -> str:
        return f"{type(self).__name__}: {self.policy}"


class NopPruner(Pruner):
    """Prunes nothing: policy `fifo`."""

    def __init__(self) -> None:
        super().__init__(Part("fifo"))


class PercentilePruner(Pruner):
    """Prunes trials that are worse than the median of the others: policy `median`.

    Only the 50th percentile has a counterpart.
    """

    def __init__(
        self,
        percentile: float,
        n_startup_trials: int = 5,
        n_warmup_steps: int = 0,
        interval_steps: int = 1,
        *,
        n_min_trials: int = 1,
    ) -> None:
        if percentile != 50.0:
            raise SpecError(
                f"PercentilePruner({percentile:g}) has no counterpart: use MedianPruner, or "
                "SuccessiveHalvingPruner, which keeps the best 1/reduction_factor."
            )
        if interval_steps != 1:
            raise SpecError(
                f"interval_steps={interval_steps} has no counterpart: trials are compared after "
                "every report. Leave it out, or report less often."
            )
        least = max(n_startup_trials, n_min_trials, 1)
        super().__init__(Part("median", {"grace": n_warmup_steps, "least": least}))


class MedianPruner(PercentilePruner):
    """Prunes trials that are worse than the median of the others: policy `median`."""

    def __init__(
        self,
        n_startup_trials: int = 5,
        n_warmup_steps: int = 0,
        interval_steps: int = 1,
        *,
        n_min_trials: int = 1,
    ) -> None:
        super().__init__(
            50.0, n_startup_trials, n_warmup_steps, interval_steps, n_min_trials=n_min_trials
        )


class SuccessiveHalvingPruner(Pruner):
    """Prunes trials that are not among the best 1/reduction_factor: policy `asha_stop`."""

    def __init__(
        self,
        min_resource: str | int = "auto",
        reduction_factor: int = 4,
        min_early_stopping_rate: int = 0,
        bootstrap_count: int = 0,
    ) -> None:
        _refuse_bootstrap(bootstrap_count)
        first = 1 if isinstance(min_resource, str) else min_resource
        first *= reduction_factor**min_early_stopping_rate
        super().__init__(Part("asha_stop", {"eta": reduction_factor, "first": first}))


class HyperbandPruner(Pruner):
    """Prunes trials that are not among the best 1/reduction_factor: `asha_stop`, one bracket."""

    def __init__(
        self,
        min_resource: int = 1,
        max_resource: str | int = "auto",
        reduction_factor: int = 3,
        bootstrap_count: int = 0,
    ) -> None:
        _refuse_bootstrap(bootstrap_count)
        super().__init__(Part("asha_stop", {"eta": reduction_factor, "first": min_resource}))


class PatientPruner(Pruner):
    """Prunes trials that no longer improve: policy `plateau`."""

    def __init__(
        self, wrapped_pruner: Pruner | None, patience: int, min_delta: float = 0.0
    ) -> None:
        if wrapped_pruner is not None:
            raise SpecError(
                "PatientPruner around another pruner has no counterpart: give "
                "PatientPruner(None, patience=…), or that pruner alone."
            )
        super().__init__(Part("plateau", {"patience": patience, "least": min_delta}))


def find_policy(pruner: object) -> Part:
    """Return the policy for a pruner. Raises SpecError if there is none."""
    if isinstance(pruner, Pruner):
        return pruner.policy
    name = type(pruner).__name__
    if name == "NopPruner":
        return NopPruner().policy
    if name in globals():
        raise SpecError(
            f"pruner={name}(…) of Optuna does not show its arguments: write "
            f"pl.optuna.pruners.{name}(…) with the same arguments."
        )
    known = ", ".join(sorted(PRUNERS))
    raise SpecError(
        f"pruner={name} has no counterpart: give one of {known}, or a policy such as "
        "policy='asha_stop'."
    )


def _refuse_bootstrap(count: int) -> None:
    if count:
        raise SpecError(f"bootstrap_count={count} has no counterpart: leave it out.")


PRUNERS = (
    "HyperbandPruner",
    "MedianPruner",
    "NopPruner",
    "PatientPruner",
    "PercentilePruner",
    "SuccessiveHalvingPruner",
)


def __getattr__(name: str) -> object:
    if name.endswith("Pruner"):
        known = ", ".join(PRUNERS)
        raise AttributeError(
            f"{name} has no counterpart: choose one of {known}, or give policy=… instead."
        )
    raise AttributeError(name)
