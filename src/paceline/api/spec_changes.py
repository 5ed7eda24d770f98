"""Extending a study: which options may differ from those it was opened with, and in what words.

Knows every field of a spec. Changes nothing: the driver writes the extension to the log.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from paceline.api.option_checks import check_options
from paceline.core.errors import SpecError, make_unknown_error
from paceline.core.text import format_bytes, format_count, format_duration, format_number
from paceline.core.values import StudySpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from paceline.api.options import Options, StudyOptions
    from paceline.core.events import Opened
    from paceline.core.values import Part, Target

# Fields that decide what the trials so far mean; with other values they would be another study.
_FIXED = {
    "metric": "metric",
    "mode": "mode",
    "seed": "seed",
    "share": "share",
    "standing": "space",
    "define_by_run": "space",
    "fit": "needs",
}
# Other fields, by the name of their option.
_FREE = ("range", "policy", "allocator", "curves", "retries", "pack", "span")
# Fields that are compared in more detail.
_COMPARED = frozenset({*_FREE, "epochs", "budget", "saves", "generator", "groups", "plan"})


def reconcile(opened: Opened, spec: StudySpec, options: StudyOptions) -> StudySpec:
    """Return the spec of this call, with what a call cannot change as it was.

    A deadline that is a time of day is another duration at every call. The plan stays that of the
    trials so far. A policy that was chosen by default stays, although another one may be the
    default for the options of this call.
    """
    before = opened.spec
    deadline = options.deadline
    if isinstance(deadline, datetime) and deadline.isoformat() == opened.run.deadline:
        budget = replace(spec.budget, deadline_s=before.budget.deadline_s)
        spec = replace(spec, budget=budget)
    # With one epoch there was nothing to choose.
    if options.policy is None and before.epochs > 1 and not before.groups:
        spec = replace(spec, policy=before.policy)
    return replace(spec, plan=before.plan)


# The options that a command may change while a study runs.
COMMANDABLE = (
    *("trials", "epochs", "deadline", "target", "over", "slot_hours"),
    *("policy", "retries", "keep_best", "checkpoint_bytes"),
)


def convert_options(options: StudyOptions, wanted: dict[str, Any]) -> StudyOptions:
    """Return the options of a study with those that a command asks for."""
    for name in wanted:
        if name not in COMMANDABLE:
            raise make_unknown_error("option to extend a study by:", name, COMMANDABLE)
    given = dict(wanted)
    if "T" in str(given.get("deadline", "")):
        given["deadline"] = datetime.fromisoformat(given["deadline"])
    return replace(options, **check_options(cast("Options", given)))


def describe_extension(before: StudySpec, now: StudySpec) -> str:
    """Return what a study is extended to, in words; empty if nothing is different.

    Raises SpecError if a field differs that must not.
    """
    differs = list(_list_refused(before, now))
    if differs:
        raise SpecError(_explain_refusal(before, differs))
    if now.epochs < before.epochs:
        raise SpecError(
            f"study {now.name!r} trains {before.epochs} epochs, and epochs={now.epochs} is less: "
            f"give epochs={before.epochs} or more, or give another name."
        )
    changes = [*_describe_limits(before, now)]
    for group, other in zip(now.studies, before.studies, strict=True) if now.groups else ():
        own = _describe_limits(replace(other, epochs=group.epochs), group)
        changes += [f"{change} for {group.name!r}" for change in own]
    changes += [
        f"{name} {_format(getattr(now, name))}"
        for name in _FREE
        if getattr(now, name) != getattr(before, name) and not (now.groups and name in _PARTS)
    ]
    return _join(dict.fromkeys(changes))


_PARTS = ("policy", "curves")


def check_trials(spec: StudySpec, opened: Sequence[int]) -> None:
    """Raise SpecError if a limit of trials is below the number that a study has opened."""
    for study, count in zip(spec.studies, opened, strict=True):
        limit = study.budget.trials
        if limit is not None and limit < count:
            raise SpecError(
                f"study {study.name!r} has opened {format_count(count, 'trial')}, and "
                f"trials={limit} is less: give trials={count} or more, or give another name."
            )


def _list_refused(before: StudySpec, now: StudySpec) -> Iterator[str]:
    """Yield the options that differ and must not."""
    for field in StudySpec.__struct_fields__:
        if field not in _COMPARED and getattr(before, field) != getattr(now, field):
            yield _FIXED.get(field, field)
    if [group.name for group in before.groups] != [group.name for group in now.groups]:
        yield "list of studies"
    elif before.standing == now.standing:
        for old, new in zip(before.studies, now.studies, strict=True):
            yield from _compare_generators(old.generator, new.generator)


def _compare_generators(before: Part, now: Part) -> Iterator[str]:
    if before == now:
        return
    old, new = dict(before.params), dict(now.params)
    space, other = old.pop("space", None), new.pop("space", None)
    if space != other:
        yield f"space{_name_differences(space, other)}"
    if old.pop("first", None) != new.pop("first", None):
        yield "list of first configs"
    if (before.name, old) != (now.name, new):
        yield f"generator ({before.name})" if before.name != now.name else "generator"


def _name_differences(before: Any, now: Any) -> str:  # noqa: ANN401 - spaces are any JSON
    if not (isinstance(before, dict) and isinstance(now, dict)):
        return ""
    names = [name for name in {**before, **now} if before.get(name, before) != now.get(name, now)]
    return f" ({', '.join(names)})" if names else ""


def _explain_refusal(before: StudySpec, differs: Sequence[str]) -> str:
    knows = ""
    if before.share and before.plan is not None and "seed" not in differs:
        knows = ", which takes over what this study has trained of the same configs"
    return (
        f"study {before.name!r} was opened with another {_join(dict.fromkeys(differs))}: give the "
        f"same as before to go on with it, or give another name{knows}."
    )


def _describe_limits(before: StudySpec, now: StudySpec) -> Iterator[str]:
    """Yield the limits that differ."""
    limits: list[tuple[Any, Any, Callable[[Any], str], str]] = [
        (before.budget.trials, now.budget.trials, _count_trials, "any number of trials"),
        (before.epochs, now.epochs, _count_epochs, ""),
        (before.budget.deadline_s, now.budget.deadline_s, _describe_deadline, "no deadline"),
        (before.budget.target, now.budget.target, _describe_target, "no target"),
        (before.budget.slot_seconds, now.budget.slot_seconds, _count_hours, "any slot time"),
        (before.saves.best, now.saves.best, "keep_best {}".format, "keep_best for all"),
        (before.saves.bytes, now.saves.bytes, _describe_bytes, "checkpoints of any size"),
    ]
    for old, new, describe, none in limits:
        if old != new:
            yield none if new is None else describe(new)


def _count_trials(count: int) -> str:
    return format_count(count, "trial")


def _count_epochs(count: int) -> str:
    return format_count(count, "epoch")


def _describe_deadline(seconds: float) -> str:
    return f"a deadline of {format_duration(seconds)}"


def _describe_target(target: Target) -> str:
    over = f" over {target.over} reports" if target.over > 1 else ""
    return f"the target {format_number(target.value)}{over}"


def _count_hours(seconds: float) -> str:
    return f"{seconds / 3600:.6g} slot-hours"


def _describe_bytes(limit: int) -> str:
    return f"checkpoints of {format_bytes(limit)}"


def _format(value: object) -> str:
    return "none" if value is None else str(value)


def _join(items: Any) -> str:  # noqa: ANN401 - an ordered collection of texts
    *first, last = list(items) or [""]
    return f"{', '.join(first)} and {last}" if first else last
