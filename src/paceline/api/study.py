"""A study on this machine: a training function, what may vary, and when it has to be done.

Knows what users see: `tune` and `Study`. How a study is driven is the driver's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, Unpack

from paceline.api.driving import Driver
from paceline.api.options import Options, spec_of
from paceline.core.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from paceline.api.driving import Watch
    from paceline.api.results import Result, TrialResult
    from paceline.core.values import Config


def tune(train: Callable[[Any], Any], **options: Unpack[Options]) -> Result:
    """Find the best config for a training function; `Options` lists what can be given."""
    return Study(train, **options).run()


class Study:
    """One question: which config trains best before the time is up?

    `run` answers it. Where a tuner of one's own asks the questions, `group` trains what it wants;
    such a study is given no space, and is closed by `close` or at the end of a `with` block.
    """

    def __init__(self, train: Callable[[Any], Any], **options: Unpack[Options]) -> None:
        if "store" in options and "name" not in options:
            raise SpecError("a study in a store needs a name: give name='…', to find it again.")
        self.spec = spec_of(train, options)
        self._train = train
        self._options = options
        self._driver: Driver | None = None

    def run(self, watch: Watch | None = None) -> Result:
        """Run to the end, or go on where the log in the store ends; return what was found."""
        if self.spec.standing:
            raise SpecError("this study has no space, so it has nothing to run: give space={…}.")
        with Driver(self._train, self.spec, self._options) as driver:
            return driver.drive(watch)

    def group(
        self, trials: Iterable[tuple[Config, int]], watch: Watch | None = None
    ) -> list[TrialResult]:
        """Train each config up to its epoch, and return how they did, in order.

        A config that was trained before goes on from where it was, or costs nothing.
        """
        if not self.spec.standing:
            raise SpecError("this study has a space and finds its own configs: leave space out.")
        if self._driver is None:
            self._driver = Driver(self._train, self.spec, self._options)
            self._driver.begin()
        numbers = self._driver.submit(trials, watch)
        return self._driver.result.some(numbers)

    def close(self) -> None:
        """End everything that a group started."""
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
