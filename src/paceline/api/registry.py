"""Plug-ins by name: `asha:eta=3` on a command line, `Part("asha", {"eta": 3})` in Python.

Knows the built-in parts as a literal table, those of other packages by entry points
(`paceline.policies` and so on), and any class as `module:Class`. Nothing is imported before it is
asked for.
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

import msgspec

from paceline.core.errors import SpecError, unknown
from paceline.core.values import Part
from paceline.machine.machine import Brains

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paceline.core.values import Config, StudySpec, Value
    from paceline.machine.requirements import Asked, Told


Kind = Literal["policy", "generator", "allocator", "curve model"]

BUILT_IN: dict[Kind, dict[str, str]] = {
    "policy": {
        "asha": "paceline.policies.asha:Asha",
        "asha_stop": "paceline.policies.asha_stop:AshaStop",
        "bandit": "paceline.policies.bandit:Bandit",
        "barrier": "paceline.policies.barrier:Barrier",
        "early_term": "paceline.policies.early_term:EarlyTerm",
        "fifo": "paceline.policies.fifo:Fifo",
        "hyperband": "paceline.policies.successive_halving:Hyperband",
        "hypersched": "paceline.policies.hypersched:HyperSched",
        "kill_below": "paceline.policies.kill_below:KillBelow",
        "median": "paceline.policies.median:Median",
        "pasha": "paceline.policies.pasha:Pasha",
        "pbt": "paceline.policies.pbt:Pbt",
        "plateau": "paceline.policies.plateau:Plateau",
        "pop": "paceline.policies.pop:Pop",
        "sha": "paceline.policies.successive_halving:Sha",
    },
    "generator": {
        "branching": "paceline.generators.branching:Branching",
        "cmaes": "paceline.generators.optuna.sampler:Cmaes",
        "gp": "paceline.generators.optuna.sampler:Gp",
        "grid": "paceline.generators.grid:Grid",
        "optuna": "paceline.generators.optuna.sampler:Optuna",
        "qmc": "paceline.generators.optuna.sampler:Qmc",
        "queued": "paceline.generators.queued:Queued",
        "random": "paceline.generators.random:Random",
        "sobol": "paceline.generators.sobol:Sobol",
        "tpe": "paceline.generators.optuna.sampler:Tpe",
    },
    "allocator": {
        "confidence": "paceline.allocation.fluid:Confidence",
        "fixed": "paceline.allocation.fixed:Fixed",
        "fluid": "paceline.allocation.fluid:Fluid",
        "fluid_static": "paceline.allocation.fluid:FluidStatic",
        "softmax": "paceline.allocation.leaders:Softmax",
        "top": "paceline.allocation.leaders:Top",
        "uniform": "paceline.allocation.leaders:Uniform",
    },
    "curve model": {
        "ensemble": "paceline.curves.ensemble.model:Ensemble",
        "last": "paceline.curves.last_value:Last",
        "pfn": "paceline.curves.pfn.model:Pfn",
        "pfn_study": "paceline.curves.pfn.model:PfnStudy",
    },
}

_GROUPS: dict[Kind, str] = {
    "policy": "paceline.policies",
    "generator": "paceline.generators",
    "allocator": "paceline.allocators",
    "curve model": "paceline.curve_models",
}


# Between two policies; not in a number such as 1e+5.
_PLUS = re.compile(r"\+(?=[A-Za-z_])")


def names(kind: Kind) -> list[str]:
    """Return every name of this kind that can be asked for."""
    return sorted({*BUILT_IN[kind], *(point.name for point in entry_points(group=_GROUPS[kind]))})


def joined(text: str) -> list[str]:
    """Return what `a+b` joins; one text where it joins nothing.

    >>> joined("asha:eta=4+plateau:least=1e+0")
    ['asha:eta=4', 'plateau:least=1e+0']
    """
    return _PLUS.split(text.strip())


def parse_part(text: str) -> Part:
    """Return the part written as `name` or `name:key=value,key=value`; `a+b` is one by that name.

    >>> parse_part("asha:eta=4,drain=false")
    Part(name='asha', params={'eta': 4, 'drain': False})
    """
    if len(joined(text)) > 1:
        return Part(text.strip())
    name, _, rest = text.strip().partition(":")
    if rest[:1].isupper():
        # A class of the user's own: `package.module:Class`, parameters after a second colon.
        class_name, _, rest = rest.partition(":")
        name = f"{name}:{class_name}"
    params: dict[str, Value] = {}
    for pair in filter(None, rest.split(",")):
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise SpecError(
                f"{text!r} cannot be read at {pair!r}: write parameters as name:key=value,key=value"
            )
        params[key.strip()] = _scalar(value.strip())
    return Part(name, params)


def build(kind: Kind, part: Part) -> Any:  # noqa: ANN401 - the caller knows the port
    """Return the plug-in, made with its parameters; each wrong one is a SpecError."""
    several = joined(_as_written(part))
    if kind == "policy" and len(several) > 1:
        from paceline.policies.combined import AnyOf  # nothing is imported before it is asked for

        return AnyOf([build(kind, parse_part(each)) for each in several])
    made = _find(kind, part.name)
    hints = get_type_hints(made.__init__)
    known = {
        name: hints.get(name, Any)
        for name, parameter in inspect.signature(made).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    given = converted(f"{kind} {part.name!r}", part.params, known)
    missing = [
        name
        for name, parameter in inspect.signature(made).parameters.items()
        if parameter.default is inspect.Parameter.empty and name not in given
    ]
    if missing:
        raise SpecError(f"{kind} {part.name!r} needs a value for {', '.join(missing)}.")
    return made(**given)


def converted(whose: str, given: Mapping[str, Value], known: Mapping[str, Any]) -> Config:
    """Return parameters as what they are known to be; each wrong one is a SpecError."""
    found: Config = {}
    for name, value in given.items():
        if name not in known:
            raise unknown(f"parameter of {whose}:", name, known)
        try:
            found[name] = msgspec.convert(value, known[name])
        except msgspec.ValidationError as error:
            raise SpecError(f"{whose}: {name}={value!r}: {error}.") from None
    return found


def _as_written(part: Part) -> str:
    # The first logs have `a+b` as a part of this name, with a list of what was joined.
    if part.name == "any_of":
        return "+".join(map(str, part.params.get("policies", ())))
    return part.name


def _find(kind: Kind, name: str) -> Any:  # noqa: ANN401
    path = BUILT_IN[kind].get(name)
    if path is None:
        for point in entry_points(group=_GROUPS[kind]):
            if point.name == name:
                return point.load()
        path = name if ":" in name else None
    if path is None:
        raise unknown(kind, name, names(kind))
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


def brains_of(
    spec: StudySpec, generators: Sequence[Part] = (), needs: Asked | Told | None = None
) -> Brains:
    """Return the brains a spec names; generators may be given with more than a log can hold."""
    given = generators or [study.generator for study in spec.studies]
    (policy, generator), *others = [
        (build("policy", study.policy), build("generator", part))
        for study, part in zip(spec.studies, given, strict=True)
    ]
    return Brains(policy, generator, build("allocator", spec.allocator), tuple(others), needs)
