"""A study on this machine: a training function, what may vary, and when it has to be done.

Knows what users see: `tune` and `Study`. How a study is driven is the driver's.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack, cast

from paceline.api.driver import Driver
from paceline.api.options import Options, generator_of, spec_of
from paceline.api.simulation import as_one, default_name
from paceline.core.errors import SpecError, unknown
from paceline.core.values import GroupSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager
    from datetime import datetime, timedelta
    from pathlib import Path

    from paceline.api.results import Result, TrialResult
    from paceline.core.values import Config, Part, StudySpec, Value
    from paceline.live.watcher import Watch


def tune(train: Callable[[Any], Any], **options: Unpack[Options]) -> Result:
    """Find the best config for a training function; `Options` lists what can be given."""
    return Study(train, **options).run()


def shown(progress: bool | None, watch: Watch | None) -> AbstractContextManager[Watch | None]:
    """Return who watches: whoever was given, else the view where progress is wanted."""
    if watch is None and (progress or (progress is None and sys.stdout.isatty())):
        # Imported here, because it draws, and most of what uses the API does not.
        from paceline.live.watcher import progress_on

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


class Shared(TypedDict, total=False):
    """What belongs to all studies together; the same words as in `Options`."""

    allocator: str | Part
    deadline: float | str | timedelta | datetime
    slot_hours: float
    slots: int | str
    span: int
    pack: int
    mps: bool
    name: str
    store: str
    hang: float | str | timedelta
    checkpoint_bytes: int
    files: str | Path
    progress: bool


# What all studies must have in common: a tree is of one training, and losses are compared.
_ALIKE = ("metric", "mode", "epochs", "range", "seed", "share", "plan", "retries")
# What one of them is, beside the name.
_OWN = ("space", "policy", "generator", "curves")


def together(*studies: Study, **options: Unpack[Shared]) -> list[Result]:
    """Run several studies at once, on the same slots; return what each found, in their order.

    What two of them would train alike is trained once. A free slot goes to the one that has used
    the least slot time. Each ends by itself, and all end at the deadline.
    """
    spec = _spec(studies, options)
    generators = [generator_of(study.spec, study.options) for study in studies]
    whole = cast("Options", options)
    with (
        Driver(studies[0].train, spec, whole, {"together": True}, generators) as driver,
        shown(options.get("progress"), None) as watch,
    ):
        driver.drive(watch)
        return driver.results


def _spec(studies: Sequence[Study], options: Shared) -> StudySpec:
    for name in options:
        if name not in Shared.__annotations__:
            raise unknown("option of together:", name, Shared.__annotations__)
    if "store" in options and "name" not in options:
        raise SpecError("studies in a store need a name: give name='…', to find them again.")
    if not studies:
        raise SpecError("there is no study: give together(…) two or more.")
    _refuse_differences(studies)
    for at, study in enumerate(studies):
        _refuse_shared(study, at)
    first = studies[0].options
    common = {name: value for name, value in first.items() if name in (*_ALIKE, *_OWN)}
    whole = spec_of(studies[0].train, cast("Options", {**common, **options}))
    return as_one(whole, [_group(study, at) for at, study in enumerate(studies)])


def _group(study: Study, at: int) -> GroupSpec:
    spec = study.spec
    return GroupSpec(
        name=study.options.get("name") or default_name(spec.policy, at),
        policy=spec.policy,
        generator=spec.generator,
        curves=spec.curves,
        target=spec.budget.target,
        trials=spec.budget.trials,
    )


def _refuse_differences(studies: Sequence[Study]) -> None:
    differ = [
        f"{name} ({' and '.join(dict.fromkeys(repr(_of(study, name)) for study in studies))})"
        for name in _ALIKE
        if any(_of(study, name) != _of(studies[0], name) for study in studies)
    ]
    if any(study.train is not studies[0].train for study in studies):
        differ.insert(0, "their training functions")
    if differ:
        raise SpecError(
            f"these studies differ in {', '.join(differ)}, and so have nothing to share: make that "
            "the same in all, or run them one by one."
        )


def _of(study: Study, name: str) -> Any:  # noqa: ANN401 - whatever the field holds
    return getattr(study.spec, name)


def _refuse_shared(study: Study, at: int) -> None:
    if study.spec.standing:
        raise SpecError(f"study {at + 1} has no space, so it has nothing to run: give space={{…}}.")
    given = [name for name in study.options if name in Shared.__annotations__ and name != "name"]
    if given:
        raise SpecError(
            f"study {at + 1} was given {', '.join(given)}, which belongs to all of them: give it "
            "to together(…) instead."
        )
