"""Extended studies: how their logs are read.

Knows one rule. The log of an extended study means the log of a study that was opened with the
newest spec: every entry is folded under that spec, and an end before the extension is undone. So
the parts need no second set of rules: they see all reports under the new rungs and limits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from paceline.core.events import Extended, Opened

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from paceline.core.decisions import Step
    from paceline.core.values import StudySpec


def list_extensions(steps: Iterable[Step]) -> list[Extended]:
    """Return the extensions among these steps, oldest first."""
    return [step.event for step in steps if isinstance(step.event, Extended)]


def apply_newest_spec(step: Step, extensions: Sequence[Extended]) -> Step:
    """Return a step of a log as a reader takes it: with the spec of the last extension."""
    event = step.event
    if not extensions or not isinstance(event, Opened | Extended):
        return step
    newest = extensions[-1]
    if isinstance(event, Extended):
        return replace(step, event=replace(event, spec=newest.spec))
    if event.earlier:
        return step  # done before
    earlier = (event.spec, *(each.spec for each in extensions[:-1]))
    opened = replace(event, spec=newest.spec, earlier=earlier, engine=newest.engine)
    return replace(step, event=opened)


def resolve_log(log: Sequence[Step]) -> Sequence[Step]:
    """Return a log as a reader takes it; doing so twice changes nothing."""
    extensions = list_extensions(log)
    if not extensions:
        return log
    return [apply_newest_spec(step, extensions) for step in log]


def split_log(log: Sequence[Step]) -> list[tuple[StudySpec, Sequence[Step], Sequence[Step]]]:
    """Return for each spec that a study has had: the spec, the log before it as it was read when
    the study was extended to it, and the steps decided under it.

    The log may have been resolved or not.
    """
    opened = log[0].event if log else None
    if not isinstance(opened, Opened):
        return []
    cuts = [at for at, step in enumerate(log) if isinstance(step.event, Extended)]
    specs = [opened.spec, *(each.spec for each in list_extensions(log))]
    if opened.earlier:
        specs = [*opened.earlier, opened.spec]
    raw = list(log)
    raw[0] = replace(log[0], event=replace(opened, spec=specs[0], earlier=()))
    for at, spec in zip(cuts, specs[1:], strict=True):
        event = raw[at].event
        assert isinstance(event, Extended)
        raw[at] = replace(raw[at], event=replace(event, spec=spec))
    parts: list[tuple[StudySpec, Sequence[Step], Sequence[Step]]] = []
    for spec, start, end in zip(specs, [0, *cuts], [*cuts, len(raw)], strict=True):
        known = list_extensions(raw[: start + 1])
        before = [apply_newest_spec(step, known) for step in raw[:start]]
        parts.append((spec, before, raw[start:end]))
    return parts
