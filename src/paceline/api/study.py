"""A study on this machine: a training function, what may vary, and when it has to be done.

Knows what users see: `tune` and `Study`. How a study is driven is the driver's.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Self, Unpack

from paceline.api.driving import Driver
from paceline.api.options import Options, spec_of
from paceline.core.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from paceline.api.driving import Watch
    from paceline.api.results import Result, TrialResult
    from paceline.core.values import Config, Value


def tune(train: Callable[[Any], Any], **options: Unpack[Options]) -> Result:
    """Find the best config for a training function; `Options` lists what can be given."""
    return Study(train, **options).run()


def shown(progress: bool | None, watch: Watch | None) -> AbstractContextManager[Watch | None]:
    """Return who watches: whoever was given, else the view where progress is wanted."""
    if watch is None and (progress or (progress is None and sys.stdout.isatty())):
        # Imported here, because it draws, and most of what uses the API does not.
        from paceline.view.showing import progress_on

        return progress_on(sys.stdout)
    return nullcontext(watch)


class Study:
    """One question: which config trains best before the time is up?

    `run` answers it. Where a tuner of one's own asks the questions, `group` trains what it wants;
    such a study is given no space, and is closed by `close` or at the end of a `with` block.
    """

    def __init__(self, train: Callable[[Any], Any], **options: Unpack[Options]) -> None:
        if "store" in options and "name" not in options:
            raise SpecError("a study in a store needs a name: give name='…', to find it again.")
        self.spec = spec_of(train, options)
        self.train = train
        self._options = options
        self._driver: Driver | None = None
        # Goes into the log, for whoever takes the study up again.
        self.told: dict[str, Value] = {}

    @property
    def options(self) -> Options:
        """What the study was given."""
        return self._options.copy()

    def but(self, **options: Unpack[Options]) -> Study:
        """Return the same study with some options given anew."""
        changed = self.options
        changed.update(options)
        return Study(self.train, **changed)

    def run(self, watch: Watch | None = None) -> Result:
        """Run to the end, or go on where the log in the store ends; return what was found."""
        if self.spec.standing:
            raise SpecError("this study has no space, so it has nothing to run: give space={…}.")
        with (
            Driver(self.train, self.spec, self._options, self.told) as driver,
            self.shown(watch) as shown,
        ):
            return driver.drive(shown)

    def group(
        self, trials: Iterable[tuple[Config, int]], watch: Watch | None = None
    ) -> list[TrialResult]:
        """Train each config up to its epoch, and return how they did, in order.

        A config that was trained before goes on from where it was, or costs nothing.
        """
        return self.submit(trials).wait(watch)

    def submit(self, trials: Iterable[tuple[Config, int]]) -> Group:
        """Take a group of configs in, each to be trained up to its epoch, beside others.

        Their `wait` drives all groups on until this one is done.
        """
        if not self.spec.standing:
            raise SpecError("this study has a space and finds its own configs: leave space out.")
        if self._driver is None:
            self._driver = Driver(self.train, self.spec, self._options)
            self._driver.begin()
        return Group(self, self._driver, self._driver.submit(trials))

    def close(self) -> None:
        """End everything that a group started."""
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.close()

    def shown(self, watch: Watch | None) -> AbstractContextManager[Watch | None]:
        """Return who watches: whoever was given, else the view where progress is wanted."""
        return shown(self._options.get("progress"), watch)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Group:
    """Configs that a tuner of one's own had taken in together: Fluid's TrialGroup."""

    def __init__(self, study: Study, driver: Driver, trials: list[int]) -> None:
        self._study = study
        self._driver = driver
        self._trials = trials

    def wait(self, watch: Watch | None = None) -> list[TrialResult]:
        """Train until every config of the group is where it should be; return how they did."""
        with self._study.shown(watch) as shown:
            self._driver.finish(self._trials, shown)
        return self._driver.result.some(self._trials)
