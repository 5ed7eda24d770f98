"""Parts by name: `asha:eta=3` on a command line; a name, a Part or an object in Python.

Knows the built-in parts as a literal table, parts of other packages by their entry points
(`paceline.policies` and so on), and any class as `module:Class`. Imports a part on first use.
"""

from __future__ import annotations

import inspect
import re
import sys
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_type_hints

import msgspec

from paceline.core.base_part import BasePart
from paceline.core.errors import SpecError, make_unknown_error
from paceline.core.values import Part
from paceline.machine.decider import Parts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paceline.core.ports import CurveModel
    from paceline.core.values import Config, StudySpec, Value
    from paceline.machine.requirements import NeedsFunction, RecordedNeeds


Kind = Literal["policy", "generator", "allocator", "curve model"]

BUILT_IN: dict[Kind, dict[str, str]] = {
    "policy": {
        "asha": "paceline.policies:Asha",
        "asha_stop": "paceline.policies:AshaStop",
        "bandit": "paceline.policies:Bandit",
        "barrier": "paceline.policies:Barrier",
        "early_term": "paceline.policies:EarlyTerm",
        "fifo": "paceline.policies:Fifo",
        "hyperband": "paceline.policies:Hyperband",
        "hypersched": "paceline.policies:HyperSched",
        "kill_below": "paceline.policies:KillBelow",
        "median": "paceline.policies:Median",
        "pasha": "paceline.policies:Pasha",
        "pbt": "paceline.policies:Pbt",
        "planner": "paceline.policies:Planner",
        "plateau": "paceline.policies:Plateau",
        "pop": "paceline.policies:Pop",
        "sha": "paceline.policies:Sha",
    },
    "generator": {
        "branching": "paceline.generators:Branching",
        "cmaes": "paceline.generators:Cmaes",
        "gp": "paceline.generators:Gp",
        "grid": "paceline.generators:Grid",
        "optuna": "paceline.generators:Optuna",
        "qmc": "paceline.generators:Qmc",
        "queued": "paceline.generators:Queued",
        "random": "paceline.generators:Random",
        "sobol": "paceline.generators:Sobol",
        "tpe": "paceline.generators:Tpe",
    },
    "allocator": {
        "confidence": "paceline.allocation:Confidence",
        "fixed": "paceline.allocation:Fixed",
        "fluid": "paceline.allocation:Fluid",
        "fluid_static": "paceline.allocation:FluidStatic",
        "softmax": "paceline.allocation:Softmax",
        "top": "paceline.allocation:Top",
        "uniform": "paceline.allocation:Uniform",
    },
    "curve model": {
        "ensemble": "paceline.curves:Ensemble",
        "last": "paceline.curves:Last",
        "pfn": "paceline.curves:Pfn",
        "pfn_study": "paceline.curves:PfnStudy",
        "published": "paceline.curves:Published",
    },
}

# The option of a study that takes such a part.
_OPTIONS: dict[Kind, str] = {
    "policy": "policy",
    "generator": "generator",
    "allocator": "allocator",
    "curve model": "curves",
}

# What a study calls or reads of such a part.
_METHODS: dict[Kind, tuple[str, ...]] = {
    "policy": ("see", "judge", "next", "admit"),
    "generator": ("see", "propose", "pure"),
    "allocator": ("see", "place"),
    "curve model": ("forecast", "others"),
}

# The group of entry points by which other packages add parts.
_GROUPS: dict[Kind, str] = {
    "policy": "paceline.policies",
    "generator": "paceline.generators",
    "allocator": "paceline.allocators",
    "curve model": "paceline.curve_models",
}


# Names of other tuners, and what to write here.
OTHER_PART_NAMES = {
    "bohb": "policy='hyperband' with generator='tpe'",
    "hb": "policy='hyperband'",
    "successive_halving": "policy='sha', or policy='asha' without barriers",
    "median_stopping": "policy='median'",
    "population_based_training": "policy='pbt'",
    "none": "policy='fifo', which stops no trial",
    "grid_search": "generator='grid'",
    "random_search": "generator='random'",
    "bayesian": "generator='gp' or generator='tpe'",
    "bayes": "generator='gp' or generator='tpe'",
    "bo": "generator='gp' or generator='tpe'",
    "hyperopt": "generator='tpe'",
    "cma": "generator='cmaes'",
    "cma-es": "generator='cmaes'",
}

# The plus between two policies; not the one in a number such as 1e+5.
_PLUS = re.compile(r"\+(?=[A-Za-z_])")


def list_parts(kind: Kind) -> list[str]:
    """Return the names of all parts of this kind."""
    return sorted({*BUILT_IN[kind], *(point.name for point in entry_points(group=_GROUPS[kind]))})


def split_policies(text: str) -> list[str]:
    """Return the policies that `a+b` joins.

    >>> split_policies("asha:eta=4+plateau:least=1e+0")
    ['asha:eta=4', 'plateau:least=1e+0']
    """
    return _PLUS.split(text.strip())


def parse_part(text: str) -> Part:
    """Return the part written as `name` or `name:key=value,key=value`; `a+b` is one such name.

    >>> parse_part("asha:eta=4,drain=false")
    Part(name='asha', params={'eta': 4, 'drain': False})
    """
    if len(split_policies(text)) > 1:
        return Part(text.strip())
    name, _, rest = text.strip().partition(":")
    if rest[:1].isupper():
        # A user's class: `package.module:Class`, with its parameters after a second colon.
        class_name, _, rest = rest.partition(":")
        name = f"{name}:{class_name}"
    params: dict[str, Value] = {}
    for pair in filter(None, rest.split(",")):
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise SpecError(
                f"{text!r} is invalid at {pair!r}: write parameters as name:key=value,key=value."
            )
        params[key.strip()] = _scalar(value.strip())
    return Part(name, params)


def describe_part(kind: Kind, given: object) -> Part:
    """Return a part's name and arguments, as the log holds them."""
    if isinstance(given, str):
        return parse_part(given)
    if isinstance(given, Part):
        return given
    if isinstance(given, type):
        raise SpecError(f"{kind} {given.__name__} is a class: pass an object, {given.__name__}(…).")
    if not isinstance(given, BasePart):
        raise SpecError(
            f"{given!r} cannot be used as {kind}: pass a name, a Part, or an object of a class "
            "that derives from paceline.parts.BasePart."
        )
    for name, value in given.arguments.items():
        try:
            msgspec.json.encode(value)
        except (TypeError, ValueError) as error:
            raise SpecError(
                f"{kind} {type(given).__name__}: {name}={value!r} cannot be written to the log "
                f"({error}): pass numbers, strings, lists and dicts."
            ) from None
    return Part(_name_class(kind, type(given)), msgspec.to_builtins(given.arguments))


def _name_class(kind: Kind, made: type) -> str:
    """Return the name by which a later process finds a class."""
    for each, table in BUILT_IN.items():
        for name, place in table.items():
            package, _, class_name = place.partition(":")
            if made.__qualname__ == class_name and made.__module__.startswith(f"{package}."):
                if each == kind:
                    return name
                raise SpecError(
                    f"{class_name} is for {_OPTIONS[each]}=…, not for {_OPTIONS[kind]}=…."
                )
    path = f"{made.__module__}:{made.__qualname__}"
    for point in entry_points(group=_GROUPS[kind]):
        if point.value == path:
            return point.name
    module = sys.modules.get(made.__module__)
    if made.__module__ == "__main__" or getattr(module, made.__qualname__, None) is not made:
        raise SpecError(
            f"{kind} {made.__qualname__} cannot be written to the log: no other process can import "
            f"it from {made.__module__}. Define the class at the top level of a module of its own."
        )
    return path


def build_part(kind: Kind, part: Part) -> Any:  # noqa: ANN401 - the caller knows the port
    """Return the part as an object, built with its parameters."""
    several = split_policies(join_policies(part))
    if kind == "policy" and len(several) > 1:
        from paceline.policies.combined import AnyOf  # imported on first use

        return AnyOf([build_part(kind, parse_part(each)) for each in several])
    made = find_class(kind, part.name)
    from_study = getattr(made, "from_study", ())
    hints = get_type_hints(made.__init__)
    known = {
        name: hints.get(name, Any)
        for name, parameter in inspect.signature(made).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    given = convert_parameters(f"{kind} {part.name!r}", part.params, known)
    missing = [
        name
        for name, parameter in inspect.signature(made).parameters.items()
        if name not in given
        and (parameter.default is inspect.Parameter.empty or name in from_study)
    ]
    if missing:
        raise SpecError(f"{kind} {part.name!r} needs a value for {', '.join(missing)}.")
    built = made(**given)
    _check_methods(kind, part.name, built)
    return built


def _check_methods(kind: Kind, name: str, built: object) -> None:
    """Raise SpecError if a part lacks what a study calls."""
    missing = [method for method in _METHODS[kind] if not hasattr(built, method)]
    if missing:
        way_out = f"write {'it' if len(missing) == 1 else 'them'} as docs/writing-a-part.md says"
        if missing == ["see"]:
            way_out = "if it needs no memory, write `see = staticmethod(see_nothing)`"
        raise SpecError(f"{kind} {name!r} has no {' and no '.join(missing)}: {way_out}.")


def convert_parameters(owner: str, given: Mapping[str, Value], known: Mapping[str, Any]) -> Config:
    """Return the parameters, converted to their types; raise SpecError at the first wrong one."""
    found: Config = {}
    for name, value in given.items():
        if name not in known:
            raise make_unknown_error(f"parameter of {owner}:", name, known)
        try:
            found[name] = msgspec.convert(value, known[name])
        except msgspec.ValidationError as error:
            rule = _explain_type(str(error))
            raise SpecError(f"{owner}: {name}={value!r} is invalid: {rule}.") from None
    return found


# What a value must be, by the decoder's names of types.
_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a dict",
    "null": "left out",
}


def _explain_type(error: str) -> str:
    """Return the rule that a value broke, from the decoder's message.

    >>> _explain_type("Expected `int | null`, got `str` - at `$[0]`")
    'must be a whole number or left out'
    """
    found = re.match(r"Expected `([a-z |]+)`", error)
    if found is None:
        return error[:1].lower() + error[1:].partition(" - at `")[0]
    return "must be " + " or ".join(_TYPES.get(each, each) for each in found[1].split(" | "))


def join_policies(part: Part) -> str:
    """Return the name of a policy, or of several as `a+b`."""
    # The first logs wrote `a+b` as a part named any_of, with a list of the policies.
    if part.name == "any_of":
        return "+".join(map(str, part.params.get("policies", ())))
    return part.name


def find_class(kind: Kind, name: str) -> Any:  # noqa: ANN401
    """Return the class of a part by its name; it is imported."""
    path = BUILT_IN[kind].get(name)
    if path is None:
        for point in entry_points(group=_GROUPS[kind]):
            if point.name == name:
                return point.load()
        path = name if ":" in name else None
    if path is None:
        instead = OTHER_PART_NAMES.get(name.lower(), "")
        if f"{_OPTIONS[kind]}=" not in instead:
            instead = ""
        raise make_unknown_error(kind, name, list_parts(kind), instead)
    module, _, attribute = path.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name is not None and not module.startswith(error.name):
            raise SpecError(
                f"{kind} {name!r} needs the package {error.name!r}, which is not installed."
            ) from None
        raise SpecError(f"{kind} {name!r}: there is no module {module!r}.") from None
    except AttributeError:
        raise SpecError(f"{kind} {name!r}: {module!r} has no {attribute!r}.") from None


def _scalar(text: str) -> Value:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return {"True": True, "False": False, "None": None}.get(text, text)


def build_parts(
    spec: StudySpec,
    generators: Sequence[Part] = (),
    needs: NeedsFunction | RecordedNeeds | None = None,
) -> Parts:
    """Build a spec's parts. A generator may be given with what a log cannot hold of it."""
    given = generators or [study.generator for study in spec.studies]
    (policy, generator), *others = [
        (build_part("policy", study.policy), build_part("generator", part))
        for study, part in zip(spec.studies, given, strict=True)
    ]
    return Parts(policy, generator, build_part("allocator", spec.allocator), tuple(others), needs)


class StudyParts(NamedTuple):
    """All parts of a study: those of its machine, and each search's curve model."""

    machine: Parts
    curve_models: tuple[CurveModel, ...]


def build_study_parts(
    spec: StudySpec,
    generators: Sequence[Part] = (),
    needs: NeedsFunction | RecordedNeeds | None = None,
) -> StudyParts:
    """Build all parts of a study that trains."""
    models = tuple(build_part("curve model", study.curves) for study in spec.studies)
    return StudyParts(build_parts(spec, generators, needs), models)
