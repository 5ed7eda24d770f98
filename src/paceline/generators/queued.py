"""Configs given beforehand, in their order: a trace's runs, or what a user wants tried first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.core.ports import sees_nothing

if TYPE_CHECKING:
    from paceline.core.values import Config
    from paceline.core.views import StudyView


class Queued:
    """The n-th config is the n-th one given."""

    pure = True
    see = staticmethod(sees_nothing)

    def __init__(self, *, configs: list[dict[str, Any]]) -> None:
        self._configs = configs

    def propose(self, number: int, study: StudyView) -> Config | None:
        return self._configs[number] if number < len(self._configs) else None
