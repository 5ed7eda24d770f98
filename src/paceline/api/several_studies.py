"""`together`: run several studies at once, on the same slots and on one tree.

Knows which option belongs to each study, which all studies must agree on, which is for all of them
at once, and which only a study that runs alone can have. Does not know how studies are run as one:
that is the machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast

from paceline.api.deadline import Caller, count_from_call
from paceline.api.driver import Driver
from paceline.api.interrupts import hold_interrupt
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
from paceline.api.registry import build_study_parts
from paceline.api.simulation import combine_studies, name_search
from paceline.api.study import read_needs
from paceline.core.errors import SpecError, make_unknown_error
from paceline.core.run_info import RunInfo
from paceline.core.values import GroupSpec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime, timedelta
    from pathlib import Path

    from paceline.api.results import Result
    from paceline.api.study import Study
    from paceline.core.ports import Needs
    from paceline.core.values import StudySpec
    from paceline.engines.process.ray.config import Ray


class TogetherOptions(TypedDict, total=False):
    """The keyword arguments of `together`: options of all its studies, named as in `Options`."""

    allocator: AllocatorOption
    deadline: float | str | timedelta | datetime
    slot_hours: float
    slots: int | str | Ray
    span: int
    pack: int
    needs: Needs | str
    mps: bool
    name: str
    store: str
    hang: float | str | timedelta
    keep_best: int
    checkpoint_bytes: int
    files: str | Path
    checkpoints: str | Path
    cache_bytes: int
    progress: bool


# Options that each study has for itself.
OWN_OPTIONS = (
    *("space", "generator", "first", "policy", "curves", "target", "over", "trials", "name"),
)
# Options that all studies must agree on: they share one tree, and losses are compared. The needs of
# a setting are those of the training function, which is the same in all studies.
EQUAL_OPTIONS = (
    *("metric", "mode", "epochs", "range", "seed", "share", "plan", "retries", "needs"),
)
# Options of a study that runs alone, and why.
ALONE_OPTIONS = {"warm_start": "the results of an earlier study are learned by one generator"}
# Those of the first study that make up the spec of all; each has its own in its group.
_PARTS = ("space", "policy", "generator", "curves")
# Fields of the spec that must be equal; needs are not in the spec.
_EQUAL_FIELDS = (*(name for name in EQUAL_OPTIONS if name != "needs"), "define_by_run")


def together(*studies: Study, **options: Unpack[TogetherOptions]) -> list[Result]:
    """Run several studies at once on the same slots; return their results in order.

    Epochs that two studies have in common are trained once. A free slot goes to the study that has
    used the least slot time. Each study ends by itself, and all end at the deadline.
    """
    caller = Caller.note(with_import=True)
    with hold_interrupt():
        return _run(studies, options, caller)


def _run(studies: Sequence[Study], options: TogetherOptions, caller: Caller) -> list[Result]:
    resolved, spec = resolve_together(studies, options)
    spec = count_from_call(spec, resolved.deadline, caller)
    generators = [generator_to_build(study.spec, study.resolved) for study in studies]
    parts = build_study_parts(spec, generators, read_needs(resolved))
    run = RunInfo(together=True)
    with (
        Driver(studies[0].train, spec, resolved, parts, run) as driver,
        Progress(resolved.progress, resolved.slots).open() as view,
    ):
        driver.caller = caller
        is_old = driver.is_over
        driver.drive(view)
        results = driver.results
        show_summaries(view, results, is_old=is_old)
        return results


def resolve_together(
    studies: Sequence[Study], options: TogetherOptions
) -> tuple[StudyOptions, StudySpec]:
    """Return the options of all studies, and their spec. Raises SpecError if they do not fit."""
    for name in options:
        if name not in TogetherOptions.__annotations__:
            raise make_unknown_error("option of together:", name, TogetherOptions.__annotations__)
    if "store" in options and "name" not in options:
        raise SpecError("studies in a store need a name: give name='…', to find them again.")
    if not studies:
        raise SpecError("together(…) got no study: give two or more.")
    _refuse_differences(studies)
    for number, study in enumerate(studies, 1):
        _refuse_misplaced(study, number, options)
    first = studies[0].options
    own = {name: value for name, value in first.items() if name in (*EQUAL_OPTIONS, *_PARTS)}
    resolved = resolve_options(cast("Options", {**own, **options}))
    spec = resolve_spec(studies[0].train, resolved)
    groups = [_describe(each, at, resolved) for at, each in enumerate(studies)]
    return resolved, combine_studies(spec, groups)


def _describe(study: Study, at: int, common: StudyOptions) -> GroupSpec:
    spec, policy = study.spec, study.spec.policy
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
    if any(_read_needs(study) != _read_needs(studies[0]) for study in studies):
        differ.append("needs")
    if any(study.train is not studies[0].train for study in studies):
        differ.insert(0, "their training functions")
    if differ:
        raise SpecError(
            f"these studies differ in {', '.join(differ)}, so they cannot share their training: "
            "make these the same in all studies, or run the studies one by one."
        )


def _read_needs(study: Study) -> Any:  # noqa: ANN401 - a function, a table, or None
    needs = study.options.get("needs")
    return None if needs is None else parse_needs(needs)


def _refuse_misplaced(study: Study, number: int, options: TogetherOptions) -> None:
    """Raise SpecError for options of a study that are for all at once, or for one alone."""
    if study.spec.standing:
        raise SpecError(f"study {number} has no space, so it has nothing to run: give space={{…}}.")
    given = [name for name, value in study.options.items() if value is not None]
    for name in given:
        if name in ALONE_OPTIONS:
            raise SpecError(
                f"study {number} was given {name}, which is for a study that runs alone, since "
                f"{ALONE_OPTIONS[name]}: leave it out, or run that study by itself."
            )
    allowed = (*OWN_OPTIONS, *(name for name in EQUAL_OPTIONS if name not in options))
    common = [name for name in study.options if name not in (*allowed, *ALONE_OPTIONS)]
    if common:
        raise SpecError(
            f"study {number} was given {', '.join(common)}, which is for all studies at once: give "
            "it to together(…) instead."
        )
