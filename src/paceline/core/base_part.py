"""The base class of parts that can be passed as objects: `policy=Pop(boundary=10)`.

Knows how to keep the arguments of a constructor, since the log holds a part's name and arguments.
Does not know the names.
"""

from __future__ import annotations

from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable


class BasePart:
    """Base of policies, generators, allocators and curve models that users pass as objects.

    It keeps the arguments an object was made with. A study builds its own object from them, so one
    object can be given to any number of studies.
    """

    # Arguments that the study adds. An object made without them only describes a part: its
    # constructor does not run.
    from_study: ClassVar[tuple[str, ...]] = ()
    _arguments: dict[str, Any]

    def __init_subclass__(cls, **options: Any) -> None:  # noqa: ANN401 - passed on as they are
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            cls.__init__ = _keep_arguments(cls.__init__)  # type: ignore[method-assign]

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments the object was made with, by name."""
        kept: dict[str, Any] = getattr(self, "_arguments", {})
        return kept


def _keep_arguments(init: Callable[..., None]) -> Callable[..., None]:
    takes = signature(init)

    @wraps(init)
    def keep_arguments(self: BasePart, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        # The outermost constructor is the user's; it may call that of its base class.
        # Not by `vars(self)`: Python finds the attributes of an object faster without its dict.
        if not hasattr(self, "_arguments"):
            _, *given = takes.bind(self, *args, **kwargs).arguments.items()
            self._arguments = dict(given)
            if any(name not in dict(given) for name in self.from_study):
                return
        init(self, *args, **kwargs)

    return keep_arguments
