"""What a log may name: parts of other modules, folders, files and addresses.

A store may come from elsewhere, so nothing that its logs name is imported, opened, written or
contacted by itself: only built-in parts, and places inside the folder of the store. Everything
else must be named by the caller. Knows the rule and its sentences. Opens and imports nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from paceline.api.options import names_function
from paceline.api.registry import BUILT_IN, describe_part, join_policies, parse_part, split_policies
from paceline.core.base_part import BasePart
from paceline.core.errors import SpecError
from paceline.store import find_store_file, find_study_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from paceline.api.options import SearchOptions
    from paceline.api.registry import Kind
    from paceline.api.simulation import Simulation
    from paceline.core.values import Part, StudySpec

# How a caller allows a part or a place, where no other way is given.
_ALLOW_PART = "add --allow {name}, or in Python give the class in parts=[…]"


class Allowed(Struct, frozen=True):
    """What the caller allows a log to name, beside built-in parts and the store's own folder."""

    # Names of parts, as logs have them.
    parts: frozenset[str] = frozenset()
    # Folders and files, with everything below them.
    paths: tuple[Path, ...] = ()
    # Addresses such as s3://bucket/prefix, with everything below them.
    addresses: tuple[str, ...] = ()


NOTHING = Allowed()


def allow(*given: object) -> Allowed:
    """Return what these parts and places allow: classes, objects, names, paths, addresses.

    >>> allow("mine:Policy", "s3://bucket/runs/").addresses
    ('s3://bucket/runs',)
    """
    parts, paths, addresses = set(), [], []
    for each in given:
        if isinstance(each, BasePart):
            parts.add(_name_class(type(each)))
        elif isinstance(each, type):
            parts.add(_name_class(each))
        elif isinstance(each, str) and "://" in each:
            addresses.append(each.rstrip("/"))
        elif isinstance(each, str | Path):
            parts.add(str(each))
            paths.append(_resolve(each))
        elif each is not None:
            raise SpecError(
                f"{each!r} cannot be allowed: give a class, its name, a path or an address."
            )
    return Allowed(frozenset(parts), tuple(paths), tuple(addresses))


def allow_parts_of(spec: StudySpec) -> Allowed:
    """Return what a spec allows that the caller has given: the parts it names."""
    return Allowed(frozenset(name for _, name in _list_foreign(_list_spec_parts(spec))))


def check_parts(spec: StudySpec, allowed: Allowed = NOTHING, instead: str = _ALLOW_PART) -> None:
    """Raise SpecError if a spec of a log names a part that is neither built in nor allowed."""
    _check(spec.name, _list_spec_parts(spec), allowed, instead)


def check_part_options(study: str, options: dict[str, Any], allowed: Allowed) -> None:
    """Raise SpecError if options in a log name a part that is neither built in nor allowed."""
    kinds: dict[str, Kind] = {
        "policy": "policy",
        "generator": "generator",
        "allocator": "allocator",
        "curves": "curve model",
    }
    parts = [(kind, _read_part(kind, options.get(name))) for name, kind in kinds.items()]
    _check(study, parts, allowed, _ALLOW_PART)
    needs = options.get("needs")
    if names_function(needs) and needs not in allowed.parts:
        raise _make_code_error(study, f"needs {needs!r}", _ALLOW_PART.format(name=needs))


def check_simulation(study: str, simulation: Simulation, url: str, allowed: Allowed) -> None:
    """Raise SpecError if a simulation in a log names a part or a trace that is not allowed."""
    from paceline.api.sources import list_bundled_traces, make_synthetic

    options: list[SearchOptions] = [simulation, *(simulation.searches or ())]
    for each in options:
        check_part_options(study, _list_part_options(each), allowed)
    source = simulation.source
    if make_synthetic(source, 0) is None and source not in list_bundled_traces():
        check_path(study, "trace", Path(source), url, allowed)


def check_path(study: str, what: str, path: Path, url: str, allowed: Allowed = NOTHING) -> Path:
    """Return the real path of a file or folder in a log; raise SpecError if it is not allowed.

    It is allowed inside the folder of the store, or of the server's studies, after links are
    followed.
    """
    real = _resolve(path)
    own = find_own_folder(url)
    roots = (*allowed.paths, *(() if own is None else (own,)))
    if not any(real.is_relative_to(root) for root in roots):
        raise make_place_error(study, what, str(path), url)
    return real


def check_address(study: str, address: str, url: str, allowed: Allowed = NOTHING) -> None:
    """Raise SpecError if an address of checkpoints in a log is not allowed; a path is one too."""
    scheme, separator, rest = address.partition("://")
    if not separator or scheme == "file":
        check_path(study, "checkpoints", Path(rest if separator else address), url, allowed)
        return
    plain = ".." not in address.split("/") and "::" not in address
    if not plain or not any(_is_below(address, base) for base in allowed.addresses):
        raise make_place_error(study, "checkpoints", address, url)


def make_place_error(study: str, what: str, place: str, url: str) -> SpecError:
    """Return the error for a place outside the study's own folder."""
    own = find_own_folder(url)
    outside = "its store" if own is None else f"the folder of its store, {own}"
    return SpecError(
        f"the log of study {study!r} has its {what} in {place}, outside {outside}: a store may "
        f"come from elsewhere, so this place is used only if you name it; add --allow {place}, or "
        f"in Python allow=[{place!r}]."
    )


def find_own_folder(url: str) -> Path | None:
    """Return the folder in which logs of a store may name places; None: a store in memory."""
    file = find_store_file(url) if not url.startswith("memory:") else None
    if file is not None:
        return _resolve(file).parent
    folder = find_study_folder(url, "")
    return None if folder is None else _resolve(folder.parent)


def _is_below(address: str, base: str) -> bool:
    return address == base or address.startswith(f"{base}/")


def _resolve(path: str | Path) -> Path:
    try:
        return Path(path).expanduser().resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise SpecError(f"{str(path)!r} is not a path that can be used: {error}.") from None


def _name_class(made: type) -> str:
    return f"{made.__module__}:{made.__qualname__}"


def _list_part_options(options: SearchOptions) -> dict[str, Any]:
    names = ("policy", "generator", "allocator", "curves", "needs")
    return {name: getattr(options, name, None) for name in names}


def _read_part(kind: Kind, given: object) -> Part | None:
    if isinstance(given, dict):
        # A Part, as JSON has it.
        from msgspec import convert

        from paceline.core.values import Part

        return convert(given, Part)
    return None if given is None else describe_part(kind, given)


def _list_spec_parts(spec: StudySpec) -> Iterator[tuple[Kind, Part]]:
    yield "allocator", spec.allocator
    for study in spec.studies:
        yield "policy", study.policy
        yield "generator", study.generator
        yield "curve model", study.curves


def _list_foreign(parts: Iterable[tuple[Kind, Part | None]]) -> Iterator[tuple[str, str]]:
    """Yield the kind and name of each part, and of each sampler, that is not built in."""
    for kind, part in parts:
        if part is None:
            continue
        names = [part.name]
        if kind == "policy" and (part.name == "any_of" or len(split_policies(part.name)) > 1):
            names = [parse_part(each).name for each in split_policies(join_policies(part))]
        yield from ((kind, name) for name in names if not _is_built_in(kind, name))
        sampler = part.params.get("sampler")
        # Of a sampler that was given as an object, the log has the name alone: nothing is imported.
        if kind == "generator" and isinstance(sampler, str) and not part.params.get("given"):
            yield from [("sampler", sampler)] if ":" in sampler else []


def _is_built_in(kind: Kind, name: str) -> bool:
    return name in BUILT_IN[kind] or (kind == "curve model" and name == "oracle")


def _check(
    study: str, parts: Iterable[tuple[Kind, Part | None]], allowed: Allowed, instead: str
) -> None:
    for kind, name in _list_foreign(parts):
        if name not in allowed.parts:
            raise _make_code_error(study, f"{kind} {name!r}", instead.format(name=name))


def _make_code_error(study: str, what: str, instead: str) -> SpecError:
    return SpecError(
        f"the log of study {study!r} names the {what}, which is not built in: a store may come "
        f"from elsewhere, so no other code is run unless you name it; {instead}."
    )
