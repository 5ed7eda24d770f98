"""Several studies on this machine, driven as one: they share slots, a tree and a log.

Knows what must be the same in all of them and what belongs to all. How they are driven is the
driver's, and how each fares inside is the machine's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast

from paceline.api.driving import Driver
from paceline.api.options import Options, generator_of, spec_of
from paceline.api.searching import as_one, default_name
from paceline.api.study import shown
from paceline.core.errors import SpecError, unknown
from paceline.core.values import GroupSpec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime, timedelta
    from pathlib import Path

    from paceline.api.results import Result
    from paceline.api.study import Study
    from paceline.core.values import Part, StudySpec


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
