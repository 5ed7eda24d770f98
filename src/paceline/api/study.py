"""The public way to run a study: `tune`, `Study`, and `together` for several at once.

Knows what users call and get. Does not know how a study is run: that is the driver.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack, cast

from paceline.api.defaults import choose_policy
from paceline.api.define_by_run import can_define_by_run, refuse_without_space, warn_of_no_params
from paceline.api.driver import Driver
from paceline.api.extend_running import extend_running
from paceline.api.option_help import describe_options
from paceline.api.options import (
    AllocatorOption,
    Options,
    StudyOptions,
    generator_to_build,
    parse_needs,
    resolve_options,
    resolve_spec,
)
from paceline.api.progress_option import Progress, show_summaries
from paceline.api.registry import StudyParts, build_study_parts
from paceline.api.result_text import describe_spec
from paceline.api.simulation import combine_studies, name_search
from paceline.core.errors import SpecError, StudyRunning, make_unknown_error
from paceline.core.run_info import RunInfo
from paceline.core.values import GroupSpec
from paceline.live.html_tables import render_page, render_pairs
from paceline.machine.requirements import NeedsFunction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager
    from datetime import datetime, timedelta
    from pathlib import Path

    from paceline.api.results import Result, TrialResult
    from paceline.api.running_study import RunningStudy
    from paceline.core.decisions import Step
    from paceline.core.values import Config, StudySpec
    from paceline.live.watcher import Watch


@describe_options
def tune(train: Callable[..., Any], **options: Unpack[Options]) -> Result:
    """Find the best hyperparameters for a function, and the best model it trains.

    `train` returns a score, or reports one after each epoch. It takes the hyperparameters by name
    (`def train(lr, width)`), as a dict (`def train(config)`), or the trial (`def train(trial)`).

    >>> import paceline as pl
    >>> def objective(x):
    ...     return (x - 2) ** 2
    >>> result = pl.tune(objective, space={"x": pl.uniform(-5, 5)}, trials=8, progress=False)
    >>> sorted(result.best_params)
    ['x']

    Returns a `Result`. Raises `SpecError` for invalid options, `StudyFailed` if every trial failed.
    """
    return Study(train, **options).run()


class Study:
    """A training function, the space to search, and when the search has to end.

    `run` searches the space. If your own tuner chooses the configs, leave the space out and give
    them to `group`; end such a study by `close`, or with a `with` block.
    """

    def __init__(self, train: Callable[..., Any], **options: Unpack[Options]) -> None:
        if "store" in options and "name" not in options:
            raise SpecError("a study in a store needs a name: give name='…', to find it again.")
        self.train = train
        # Without a space the function asks for its hyperparameters, if it is given the trial; but
        # if `group` is called first, an outside tuner gives them.
        standing = options.get("space") is None and not _asks_for_params(train, options)
        self.resolved = resolve_options(options, standing=standing)
        self.spec = resolve_spec(train, self.resolved, standing=standing)
        # Built here, so that a wrong option is an error here; the first run takes them.
        self._parts: StudyParts | None = self._build_parts()
        _check_warm_start(self.resolved, self._parts)
        self._options = options
        self._progress = Progress(self.resolved.progress, self.resolved.slots)
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
            refuse_without_space(self.resolved.share, has_needs=self.resolved.needs is not None)
            raise SpecError(
                "this study has no space, so it has nothing to run: give space={…}, or let the "
                "function take the trial and call trial.suggest_float(…)."
            )
        try:
            opened = self.open_driver()
        except StudyRunning as running:
            # Its driver extends it, if this call asks for more.
            with self._progress.open(watch) as view:
                return extend_running(self.spec, self.resolved, running, view)
        with opened as driver, self._progress.open(watch) as view:
            is_old = driver.is_over
            result = driver.drive(view)
            if self.spec.define_by_run:
                warn_of_no_params(result)
            if watch is None:  # a watcher that was given is the caller's own
                show_summaries(view, [result], is_old=is_old)
        if watch is None and result.interrupted:
            sys.stderr.write(f"{self._explain_interrupt()}\n")
        return result

    def _explain_interrupt(self) -> str:
        name = self.spec.name
        if self.resolved.store is None:
            return (
                f"study {name!r} was interrupted: what it found is in its result. With name=… and "
                "store=… it could be resumed."
            )
        return f"study {name!r} was interrupted: run the same call again to resume it."

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
        if self.spec.define_by_run and self._driver is None:
            self._take_configs()
        if not self.spec.standing:
            raise SpecError("this study has a space and finds its own configs: leave space out.")
        if self._driver is None or self._running is None:
            self._driver = self.open_driver()
            with self._progress.open() as view:
                self._running = self._driver.start(view)
        return StudyGroup(self, self._driver, self._running, self._running.submit(trials))

    def _take_configs(self) -> None:
        """Become a study whose configs an outside tuner gives."""
        self.resolved = resolve_options(self._options, standing=True)
        self.spec = resolve_spec(self.train, self.resolved, standing=True)
        self._parts = None

    def close(self) -> None:
        """End everything that a group started."""
        driver, self._driver, self._running = self._driver, None, None
        if driver is not None:
            driver.close()

    def open_progress(self, watch: Watch | None) -> AbstractContextManager[Watch | None]:
        """Return the watcher that was given, else a view if progress is to be shown."""
        return self._progress.open(watch)

    def __repr__(self) -> str:
        rows = self._describe()
        listed = ", ".join(f"{name} {value}" for name, value in rows.items() if name != "goal")
        return f"<Study {self.spec.name!r}: {rows['goal']}, {listed}>"

    def _repr_html_(self) -> str:
        return render_page(f"study {self.spec.name}", render_pairs(self._describe()))

    def _describe(self) -> dict[str, str]:
        name = getattr(self.train, "__name__", type(self.train).__name__)
        return describe_spec(self.spec, name, self._options.get("space"))

    def open_driver(self) -> Driver:
        """Return a driver of this study, which has opened its store and read its log."""
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
_EQUAL_FIELDS = (
    *("metric", "mode", "epochs", "range", "seed", "share", "plan", "retries"),
    "define_by_run",
)
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
        Progress(resolved.progress, resolved.slots).open() as view,
    ):
        is_old = driver.is_over
        driver.drive(view)
        results = driver.results
        show_summaries(view, results, is_old=is_old)
        return results


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
    groups = [_describe(each, at, resolved) for at, each in enumerate(studies)]
    return resolved, combine_studies(spec, groups)


def _describe(study: Study, at: int, common: StudyOptions) -> GroupSpec:
    spec, policy = study.spec, study.spec.policy
    if study.resolved.policy is None and common.deadline is not None:
        # The deadline is for all studies at once, so none of them knows it.
        policy = choose_policy(study.train, spec.epochs, standing=False, deadline=True).part
    return GroupSpec(
        name=study.resolved.name or name_search(policy, at),
        policy=policy,
        generator=spec.generator,
        curves=spec.curves,
        target=spec.budget.target,
        trials=spec.budget.trials,
    )


def _refuse_differences(studies: Sequence[Study]) -> None:
    differ = []
    without_space = [
        at for at, study in enumerate(studies, 1) if study.options.get("space") is None
    ]
    if without_space and len(without_space) < len(studies):
        raise SpecError(
            f"study {without_space[0]} has no space, and others have one: give space={{…}} to "
            "every study, or to none."
        )
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


def _asks_for_params(train: Callable[..., Any], options: Options) -> bool:
    """Say whether a study without a space is one whose function asks for its hyperparameters.

    Shared epochs and needs depend on configs that are known before a trial starts.
    """
    has_needs = options.get("needs") is not None
    return can_define_by_run(train) and not options.get("share") and not has_needs


def _read_needs(options: StudyOptions) -> NeedsFunction | None:
    return None if options.needs is None else NeedsFunction(parse_needs(options.needs))


def _check_warm_start(options: StudyOptions, parts: StudyParts) -> None:
    if options.warm_start is None:
        return
    if options.store is None and isinstance(options.warm_start, str):
        raise SpecError(
            f"warm_start={options.warm_start!r} needs a store: give store=…, the store of that "
            "study."
        )
    if parts.machine.generator.pure:
        raise SpecError(
            f"warm_start={options.warm_start!r} has no effect: this generator does not learn from "
            "results. Give a generator that does, such as tpe."
        )
