"""Broken parts: for every clause of every kit, a part that fails it, and the error raised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broken import allocators, curves, engines, generators, policies
from paceline.testing.allocators import AllocatorContract
from paceline.testing.curves import CurveModelContract
from paceline.testing.engines import EngineContract
from paceline.testing.generators import (
    GeneratorContract,
    SamplerContract,
    SeededGeneratorContract,
)
from paceline.testing.policies import PolicyContract

if TYPE_CHECKING:
    from collections.abc import Callable

BROKEN: list[tuple[type, dict[str, tuple[Callable[..., Any], type[Exception]]]]] = [
    (PolicyContract, policies.BREAKERS),
    (GeneratorContract, generators.BREAKERS),
    (SeededGeneratorContract, generators.SPACE_BREAKERS),
    (SamplerContract, generators.SAMPLER_BREAKERS),
    (AllocatorContract, allocators.BREAKERS),
    (CurveModelContract, curves.BREAKERS),
    (curves.BrokenFamily, curves.FAMILY_BREAKERS),
    (EngineContract, {name: (made, AssertionError) for name, made in engines.BREAKERS.items()}),
]
