"""Proposals: which of a generator's next configs becomes a trial.

Most studies take them in order. A policy may choose among the next few if the generator leaves the
order free. Asks both; opens nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from paceline.core.errors import SpecError
from paceline.core.ports import WIDEST_WINDOW

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.ports import ChoosingPolicy, Generator, Policy
    from paceline.core.values import Config
    from paceline.machine.groups import GroupState
    from paceline.machine.pending import PendingRequests


class Proposals:
    """The next configs of each study's generator, for its policy to choose from."""

    def __init__(self, parts: Sequence[tuple[Policy, Generator]]) -> None:
        self._parts = parts
        # By group and number: a cache of what the generators propose.
        self._known: dict[int, dict[int, Config]] = {}

    def choose(
        self, group: GroupState, pending: PendingRequests
    ) -> tuple[Config | None, int | None]:
        """Return a config for a new trial, and its number if it is not the next one.

        None: the generator has no more configs.
        """
        offer = pending.next_offer(group.index)  # removed by the Open that follows
        if offer is not None:
            return offer, None
        policy, generator = self._parts[group.index]
        first = group.taken.first
        # Both are optional: a policy that does not choose, and a generator whose order counts.
        most: int = getattr(policy, "window", 1)
        ordered: int | None = getattr(generator, "ordered", None)
        if most <= 1 or ordered is None or first < ordered:
            return generator.propose(first, group), None
        configs = self._list_next(group, generator, min(most, WIDEST_WINDOW))
        if not configs:
            return None, None
        chosen = cast("ChoosingPolicy", policy).choose(configs, group)
        if chosen not in configs:
            raise SpecError(
                f"policy {group.spec.policy} chose config {chosen!r}: must be one of the "
                f"{len(configs)} that it was given, from {min(configs)} to {max(configs)}."
            )
        return configs[chosen], None if chosen == first else chosen

    def _list_next(self, group: GroupState, generator: Generator, most: int) -> dict[int, Config]:
        """Return the next configs by number."""
        before = self._known.get(group.index, {})
        configs: dict[int, Config] = {}
        for number in group.taken.list_next(most):
            config = before.get(number)
            if config is None:
                config = generator.propose(number, group)
            if config is None:
                break
            configs[number] = config
        self._known[group.index] = configs
        return configs
