"""Several searches as one study: their parts side by side, and what they have in common.

Knows how the spec of the whole comes of the members'. Drives nothing: live studies are joined by
`api.joining`, simulated ones by `api.simulation`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from paceline.api.parts import parse_part
from paceline.core.errors import SpecError
from paceline.core.values import Config, GroupSpec, Part, StudySpec, Target

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Search(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of several searches that are simulated as one study, on one tree."""

    policy: str = "asha"
    # Where its configs come from: these; or a generator, of a synthetic workload, in this space. By
    # default all configs of the source.
    configs: list[Config] | None = None
    generator: str | None = None
    space: Config | None = None
    curves: str = "pfn"
    target: float | None = None
    over: int = 1
    trials: int | None = None
    # None: made of its policy and its place.
    name: str | None = None


def as_one(spec: StudySpec, groups: Sequence[GroupSpec]) -> StudySpec:
    """Return the spec of several studies that are driven as one."""
    if len(groups) < 2:
        raise SpecError(f"{len(groups)} is not several: give two or more, or run it by itself.")
    return replace(
        spec,
        policy=_named(group.policy for group in groups),
        generator=_named(Part(group.generator.name) for group in groups),
        curves=_named(group.curves for group in groups),
        budget=replace(spec.budget, target=None, trials=None),
        groups=tuple(groups),
    )


def default_name(policy: Part, at: int) -> str:
    """Return what a study is called that has no name: its policy, and its place from 1."""
    return f"{policy.name}-{at + 1}"


def group_of(search: Search, at: int, own: Part) -> GroupSpec:
    """Return a search as a group; `own` is the generator of all configs of the source."""
    policy = parse_part(search.policy)
    return GroupSpec(
        name=search.name or default_name(policy, at),
        policy=policy,
        generator=_generator(search, own),
        curves=parse_part(search.curves),
        target=None if search.target is None else Target(search.target, search.over),
        trials=search.trials,
    )


def _generator(search: Search, own: Part) -> Part:
    if search.configs is not None:
        return Part("queued", {"configs": search.configs})
    if search.generator is None and search.space is None:
        return own
    if "space" not in own.params:
        raise SpecError(
            "a search on a trace has no generator or space, since its configs were recorded: give "
            "configs=[…] of the trace, or leave all out."
        )
    part = parse_part(search.generator or own.name)
    return Part(part.name, {"space": search.space or own.params["space"], **part.params})


def _named(parts: Iterable[Part]) -> Part:
    """Return a part that names several to a reader; it is never built."""
    return Part(" | ".join(dict.fromkeys(map(str, parts))))
