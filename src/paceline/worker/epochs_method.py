"""`trial.epochs`: called, it yields the epochs to train; used without a call, it says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from paceline.core.errors import TrialError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class EpochsMethod:
    """The method `epochs` of one trial."""

    def __init__(self, iterate: Callable[[], Iterator[int]]) -> None:
        self._iterate = iterate

    def __call__(self) -> Iterator[int]:
        """Yield the index of each epoch to train."""
        return self._iterate()

    def __iter__(self) -> NoReturn:
        raise _make_error()

    def __index__(self) -> NoReturn:
        raise _make_error()

    def __len__(self) -> NoReturn:
        raise _make_error()


def _make_error() -> TrialError:
    return TrialError(
        "trial.epochs is a method and was not called: write `for epoch in trial.epochs()`, with "
        "parentheses."
    )
