"""The public way to run a study: `tune`, `Study`, and `together` for several at once.

Knows what users call and get. Does not know how a study is run: that is the driver.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack, cast

from paceline.api.driver import Driver
from paceline.api.options import (
    AllocatorOption,
    Options,
    StudyOptions,
    generator_to_build,
    parse_needs,
    resolve_options,
    resolve_spec,
)
from paceline.api.registry import StudyParts, build_study_parts
from paceline.api.simulation import combine_studies, name_search
from paceline.core.errors import SpecError, make_unknown_error
from paceline.core.run_info import RunInfo
from paceline.core.values import GroupSpec
from paceline.machine.requirements import NeedsFunction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager
    from datetime import datetime, timedelta
    from pathlib import Path

    from paceline.api.driver import RunningStudy
    from paceline.api.results import Result, TrialResult
    from paceline.core.decisions import Step
    from paceline.core.values import Config, StudySpec
    from paceline.live.watcher import Watch


def tune(train: Callable[[Any], Any], **options: Unpack[Options]) -> Result:
    """Find the best config for a training function. `docs/api.md` lists the options."""
    return Study(train, **options).run()


def open_progress(
    progress: bool | None, watch: Watch | None
) -> AbstractContextManager[Watch | None]:
    """Return the watcher that was given, else the live view if progress is to be shown."""
    if watch is None and (progress or (progress is None and sys.stdout.isatty())):
        # Imported here: it imports rich, which most users of the API do not need.
        from paceline.live.watcher import show_progress

        return show_progress(sys.stdout)
    return nullcontext(watch)


class Study:
    """A training function, the space to search, and when the search has to end.

    `run` searches the space. If your own tuner chooses the configs, leave the space out and give
    them to `group`; end such a study by `close`, or with a `with` block.
    """

    def __init__(self, train: Callable[[Any], Any], **options: Unpack[Options]) -> None:
        if "store" in options and "name" not in options:
            raise SpecError("a study in a store needs a name: give name='…', to find it again.")
        self.train = train
        self.resolved = resolve_options(options)
        self.spec = resolve_spec(train, self.resolved)
        # Built here, so that a wrong option is an error here; the first run takes them.
        self._parts: StudyParts | None = self._build_parts()
        _check_warm_start(self.resolved, self._parts)
        self._options = options
        self._driver: Driver | None = None
        self._running: RunningStudy | None = None
        # Entries of the log that were read already; the driver reads those after them.
        self.known_log: Sequence[Step] = ()
        # Goes into the log, so that a later driver can resume the study.
        self.run_info = RunInfo()

    @property
    def options(self) -> Options:
        """The options the study was given."""
        return self._options.copy()

    def but(self, **options: Unpack[Options]) -> Study:
        """Return the same study with some options changed."""
        changed = self.options
        changed.update(options)
        return Study(self.train, **changed)

    def run(self, watch: Watch | None = None) -> Result:
        """Run to the end, or resume at the end of the log in the store; return the result."""
        if self.spec.standing:
            raise SpecError("this study has no space, so it has nothing to run: give space={…}.")
        with self._open_driver() as driver, self.open_progress(watch) as view:
            return driver.drive(view)

    def group(
        self, trials: Iterable[tuple[Config, int]], watch: Watch | None = None
    ) -> list[TrialResult]:
        """Train each config up to its epoch and return the results, in order.

        A config that was trained before goes on from there, or costs nothing.
        """
        return self.submit(trials).wait(watch)

    def submit(self, trials: Iterable[tuple[Config, int]]) -> StudyGroup:
        """Accept a group of configs, each to be trained up to its epoch, beside other groups.

        The group's `wait` runs all groups until this one is done.
        """
        if not self.spec.standing:
            raise SpecError("this study has a space and finds its own configs: leave space out.")
        if self._driver is None or self._running is None:
            self._driver = self._open_driver()
            self._running = self._driver.start()
        return StudyGroup(self, self._driver, self._running, self._running.submit(trials))

    def close(self) -> None:
        """End everything that a group started."""
        driver, self._driver, self._running = self._driver, None, None
        if driver is not None:
            driver.close()

    def open_progress(self, watch: Watch | None) -> AbstractContextManager[Watch | None]:
        """Return the watcher that was given, else the live view if progress is to be shown."""
        return open_progress(self.resolved.progress, watch)

    def _open_driver(self) -> Driver:
        # Parts remember what they saw: each run has its own.
        parts, self._parts = self._parts or self._build_parts(), None
        return Driver(self.train, self.spec, self.resolved, parts, self.run_info, self.known_log)

    def _build_parts(self) -> StudyParts:
        generators = [generator_to_build(self.spec, self.resolved)]
        return build_study_parts(self.spec, generators, _read_needs(self.resolved))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class StudyGroup:
    """Configs that an outside tuner submitted together: Fluid's TrialGroup."""

    def __init__(
        self, study: Study, driver: Driver, running: RunningStudy, trials: list[int]
    ) -> None:
        self._study = study
        self._driver = driver
        self._running = running
        self._trials = trials

    def wait(self, watch: Watch | None = None) -> list[TrialResult]:
        """Train until every config of the group is at its epoch; return the results."""
        with self._study.open_progress(watch) as view:
            self._running.finish(self._trials, view)
        return self._driver.result.some(self._trials)


class TogetherOptions(TypedDict, total=False):
    """The keyword arguments of `together`: options of all its studies, named as in `Options`."""

    allocator: AllocatorOption
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


# Fields of the spec that all studies must agree on: they share one tree, and losses are compared.
_EQUAL_FIELDS = ("metric", "mode", "epochs", "range", "seed", "share", "plan", "retries")
# Options that each study has for itself, beside its name.
_OWN_OPTIONS = ("space", "policy", "generator", "curves")


def together(*studies: Study, **options: Unpack[TogetherOptions]) -> list[Result]:
    """Run several studies at once on the same slots; return their results in order.

    Epochs that two studies have in common are trained once. A free slot goes to the study that has
    used the least slot time. Each study ends by itself, and all end at the deadline.
    """
    resolved, spec = _resolve(studies, options)
    generators = [generator_to_build(study.spec, study.resolved) for study in studies]
    parts = build_study_parts(spec, generators, _read_needs(resolved))
    run = RunInfo(together=True)
    with (
        Driver(studies[0].train, spec, resolved, parts, run) as driver,
        open_progress(resolved.progress, None) as view,
    ):
        driver.drive(view)
        return driver.results


def _resolve(studies: Sequence[Study], options: TogetherOptions) -> tuple[StudyOptions, StudySpec]:
    for name in options:
        if name not in TogetherOptions.__annotations__:
            raise make_unknown_error("option of together:", name, TogetherOptions.__annotations__)
    if "store" in options and "name" not in options:
        raise SpecError("studies in a store need a name: give name='…', to find them again.")
    if not studies:
        raise SpecError("together(…) got no study: give two or more.")
    _refuse_differences(studies)
    for at, study in enumerate(studies):
        _refuse_common_options(study, at)
    first = studies[0].options
    own = {k: value for k, value in first.items() if k in (*_EQUAL_FIELDS, *_OWN_OPTIONS)}
    resolved = resolve_options(cast("Options", {**own, **options}))
    spec = resolve_spec(studies[0].train, resolved)
    return resolved, combine_studies(spec, [_describe(each, at) for at, each in enumerate(studies)])


def _describe(study: Study, at: int) -> GroupSpec:
    spec = study.spec
    return GroupSpec(
        name=study.resolved.name or name_search(spec.policy, at),
        policy=spec.policy,
        generator=spec.generator,
        curves=spec.curves,
        target=spec.budget.target,
        trials=spec.budget.trials,
    )


def _refuse_differences(studies: Sequence[Study]) -> None:
    differ = []
    for name in _EQUAL_FIELDS:
        found = [getattr(study.spec, name) for study in studies]
        if any(value != found[0] for value in found):
            differ.append(f"{name} ({' and '.join(dict.fromkeys(map(repr, found)))})")
    if any(study.train is not studies[0].train for study in studies):
        differ.insert(0, "their training functions")
    if differ:
        raise SpecError(
            f"these studies differ in {', '.join(differ)}, so they cannot share their training: "
            "make these the same in all studies, or run the studies one by one."
        )


def _refuse_common_options(study: Study, at: int) -> None:
    if study.spec.standing:
        raise SpecError(f"study {at + 1} has no space, so it has nothing to run: give space={{…}}.")
    given = [
        name for name in study.options if name in TogetherOptions.__annotations__ and name != "name"
    ]
    if given:
        raise SpecError(
            f"study {at + 1} was given {', '.join(given)}, which is for all studies at once: give "
            "it to together(…) instead."
        )


def _read_needs(options: StudyOptions) -> NeedsFunction | None:
    return None if options.needs is None else NeedsFunction(parse_needs(options.needs))


def _check_warm_start(options: StudyOptions, parts: StudyParts) -> None:
    if options.warm_start is None:
        return
    if options.store is None:
        raise SpecError(
            f"warm_start={options.warm_start!r} needs a store: give store=…, the store of that "
            "study."
        )
    if parts.machine.generator.pure:
        raise SpecError(
            f"warm_start={options.warm_start!r} has no effect: this generator does not learn from "
            "results. Give a generator that does, such as tpe."
        )
