"""A study on this machine: a training function, what may vary, and when it has to be done.

Knows what users see: `tune` and `Study`. How a study is driven is the driver's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from paceline.api.driving import Driver
from paceline.api.options import Options, spec_of
from paceline.core.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.api.driving import Watch
    from paceline.api.results import Result


def tune(train: Callable[[Any], Any], **options: Unpack[Options]) -> Result:
    """Find the best config for a training function; `Options` lists what can be given."""
    return Study(train, **options).run()


class Study:
    """One question: which config trains best before the time is up?"""

    def __init__(self, train: Callable[[Any], Any], **options: Unpack[Options]) -> None:
        if "store" in options and "name" not in options:
            raise SpecError("a study in a store needs a name: give name='…', to find it again.")
        self.spec = spec_of(train, options)
        self._train = train
        self._options = options

    def run(self, watch: Watch | None = None) -> Result:
        """Run to the end, or go on where the log in the store ends; return what was found."""
        with Driver(self._train, self.spec, self._options) as driver:
            return driver.drive(watch)
