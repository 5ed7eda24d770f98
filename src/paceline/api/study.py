"""The public way to run a study: `tune` and `Study`.

Knows what users call and get. Does not know how a study is run: that is the driver.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Never, Self, Unpack

from paceline.api.deadline import Caller, count_from_call
from paceline.api.define_by_run import can_define_by_run, refuse_without_space, warn_of_no_params
from paceline.api.driver import Driver
from paceline.api.extend_running import extend_running
from paceline.api.interrupts import hold_interrupt
from paceline.api.option_help import describe_options
from paceline.api.options import (
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
from paceline.core.errors import SpecError, StudyRunning
from paceline.core.run_info import RunInfo
from paceline.core.text import format_count
from paceline.live.html_tables import render_page, render_pairs
from paceline.machine.requirements import NeedsFunction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from paceline.api.results import Result, TrialResult
    from paceline.api.running_study import RunningStudy
    from paceline.core.decisions import Step
    from paceline.core.values import Config
    from paceline.live.watcher import Watch


@describe_options
def tune(train: Callable[..., Any], *unnamed: Never, **options: Unpack[Options]) -> Result:
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
    caller = Caller.note(with_import=True)
    with hold_interrupt():
        study = Study(train, *unnamed, **options)
        study.caller = caller
        return study.run()


class Study:
    """A training function, the space to search, and when the search has to end.

    `run` searches the space. If your own tuner chooses the configs, leave the space out and give
    them to `group`; end such a study by `close`, or with a `with` block.
    """

    def __init__(
        self, train: Callable[..., Any], *unnamed: Never, **options: Unpack[Options]
    ) -> None:
        if unnamed:
            raise SpecError(
                f"{format_count(len(unnamed), 'option has', 'options have')} no name: give the "
                "function first, and everything else by name: pl.tune(train, space={…})."
            )
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
        # The call that the deadline counts from; None: that of the next `run`.
        self.caller: Caller | None = None

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
        self.caller = self.caller or Caller.note()
        with hold_interrupt():
            return self._run(watch)

    def _run(self, watch: Watch | None) -> Result:
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
        caller, self.caller = self.caller or Caller.note(), None
        spec = count_from_call(self.spec, self.resolved.deadline, caller)
        driver = Driver(self.train, spec, self.resolved, parts, self.run_info, self.known_log)
        driver.caller = caller
        return driver

    def _build_parts(self) -> StudyParts:
        generators = [generator_to_build(self.spec, self.resolved)]
        return build_study_parts(self.spec, generators, read_needs(self.resolved))

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


def _asks_for_params(train: Callable[..., Any], options: Options) -> bool:
    """Say whether a study without a space is one whose function asks for its hyperparameters.

    Shared epochs and needs depend on configs that are known before a trial starts.
    """
    has_needs = options.get("needs") is not None
    return can_define_by_run(train) and not options.get("share") and not has_needs


def read_needs(options: StudyOptions) -> NeedsFunction | None:
    """Return the function of a study's needs; None if it has none."""
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
