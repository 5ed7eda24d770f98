"""Policy and generator of a study that was not given any: what is chosen, and why.

Knows what the choice depends on: the function's code, the space and the epochs. The spec in the log
has the choice as if the user had made it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from paceline.api.define_by_run import OPEN_ENDED_POLICY
from paceline.api.kept_state import keeps_state
from paceline.core.space import Space
from paceline.core.values import OPEN_ENDED, Part
from paceline.generators.grid import list_grids

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from paceline.core.values import Config, StudySpec

# The generator of a study whose space has no grid, or that has no space.
DEFAULT_GENERATOR = Part("tpe")


class Choice(NamedTuple):
    """A part that was chosen, and the reason."""

    part: Part
    why: str

    def __str__(self) -> str:
        return f"{self.part}: {self.why}"


def choose_policy(train: Callable[..., Any], epochs: int | None, *, standing: bool) -> Choice:
    """Return the policy of a study that names none; `standing`: an outside tuner gives configs."""
    if standing:
        return Choice(Part("fifo"), "an outside tuner chooses the configs and how far they train")
    if epochs == 1:
        return Choice(Part("fifo"), "trials have one epoch, so none can be stopped early")
    if epochs is not None and epochs >= OPEN_ENDED:
        why = "only the function knows its last epoch, so trials are stopped, never paused"
        return Choice(OPEN_ENDED_POLICY, why)
    if not keeps_state(train):
        why = "the function keeps no state, so trials are stopped, never paused"
        return Choice(Part("asha_stop"), why)
    why = "the function keeps state, so trials can be paused and resumed"
    return Choice(Part("planner"), why)


def explain_policy(train: Callable[..., Any], spec: StudySpec) -> str:
    """Return why the spec has the policy it has, if the user gave none; empty: not the default."""
    if spec.groups:
        return ""
    choice = choose_policy(train, spec.epochs, standing=spec.standing)
    # A study that was resumed keeps the policy it has.
    return choice.why if choice.part == spec.policy else ""


def choose_generator(space: Config) -> Choice:
    """Return the generator of a study that names none, without its space."""
    found = Space(space)
    grids = list_grids(found)
    if not grids:
        return Choice(DEFAULT_GENERATOR, "it learns from the trials so far")
    if len(grids) == len(found.dimensions):
        return Choice(Part("grid"), "all domains of the space are grids")
    why = "the space has grids: all their combinations are tried, and the other domains are drawn"
    return Choice(Part("grid", {"others": "drawn"}), why)
