"""Configs of results: the same dicts as ever, printed so that they can be pasted into a script."""

from __future__ import annotations

from typing import Any

from paceline.plan.config_code import format_code


class ReadableConfig(dict[str, Any]):
    """A config that prints its schedules as the calls that make them.

    >>> ReadableConfig({"lr": {"piecewise": [[0, 0.1], [9, 0.01]]}, "width": 64})
    {'lr': pl.piecewise([(0, 0.1), (9, 0.01)]), 'width': 64}
    """

    def __repr__(self) -> str:
        return format_code(dict(self))
