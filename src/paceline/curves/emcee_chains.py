"""Chains of emcee's ensemble sampler, for the curve models that fit by MCMC.

The only module that imports emcee, from the extra `ensemble`, and only when chains run.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from paceline.core.errors import make_missing_extra_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.curves.arrays import Array


class Walk(NamedTuple):
    """All samples of the walkers, in the order (step, walker)."""

    chain: Array
    log_density: Array
    acceptance: float


def require_emcee() -> None:
    """Raise SpecError if emcee is not installed, so that a study fails before it starts."""
    if find_spec("emcee") is None:
        raise make_missing_extra_error("emcee", "ensemble")


def run_walkers(
    log_density: Callable[[Array], Array],
    start: Array,
    steps: int,
    random: Any,  # noqa: ANN401
    choose_moves: Callable[[Any], Any] | None = None,
) -> Walk:
    """Run walkers from their start points; `choose_moves` picks other moves of emcee's."""
    import emcee

    moves = None if choose_moves is None else choose_moves(emcee.moves)
    sampler = emcee.EnsembleSampler(*start.shape, log_density, moves=moves, vectorize=True)
    state = emcee.State(start, random_state=random.get_state())
    sampler.run_mcmc(state, steps, skip_initial_state_check=True)
    acceptance = float(np.mean(sampler.acceptance_fraction))
    return Walk(sampler.get_chain(), sampler.get_log_prob(), acceptance)
