"""Every registered part keeps its contract, and every clause of a contract can be broken."""

from __future__ import annotations

import inspect
import re
import sys
from array import array
from collections import deque
from importlib import import_module
from itertools import accumulate, count
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, get_args

import pytest
from broken import BROKEN
from msgspec.structs import replace

from paceline.api.registry import BUILT_IN, Kind, build, parse_part
from paceline.core.errors import SpecError
from paceline.core.rng import Stream
from paceline.core.space import loguniform, uniform
from paceline.core.values import Part
from paceline.engines.sim.cluster import Cluster
from paceline.engines.sim.engine import SimEngine
from paceline.testing import allocators, curves, engines, generators, policies
from paceline.testing.random_parts import AskedGenerator, EndingPolicy, ProbeAllocator, ProbePolicy
from paceline.testing.simulations import CALM, Rehearsal, Scene
from paceline.testing.snapshots import memory_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.core.ports import Generator, Policy
    from paceline.engines.sim.traces import Trace
    from paceline.machine.machine import Machine

CONFIGS = [{"lr": 0.1 / (1 + number), "width": number} for number in range(30)]

# Registered parts: what they are made with where they need something, and the kit they keep where
# it is a narrower one than every part of their kind keeps.
ARGUMENTS: dict[tuple[Kind, str], dict[str, Any]] = {
    ("generator", "queued"): {"configs": CONFIGS},
    ("policy", "kill_below"): {"value": 0.5, "after": 4},
    # As many as the kit's tables have runs, so that each of them is trained.
    ("policy", "pbt"): {"population": 13},
    ("generator", "gp"): {"startup": 4},
    ("curve model", "ensemble"): {"steps": 30},
}
NARROWER: dict[tuple[Kind, str], type] = {
    ("generator", "random"): generators.SeededGeneratorContract,
    # What becomes of trials is what it goes by.
    ("generator", "branching"): generators.SeededGeneratorLaws,
    ("generator", "sobol"): generators.SeededGeneratorContract,
    # It stops even a lone trial, and its threshold is no mirror image of itself.
    ("policy", "kill_below"): policies.PolicyLaws,
    **{
        ("generator", name): generators.SamplerContract
        for name in ("tpe", "cmaes", "qmc", "optuna")
    },
}
KITS: dict[Kind, type] = {
    "policy": policies.PolicyContract,
    "generator": generators.GeneratorContract,
    "allocator": allocators.AllocatorContract,
    "curve model": curves.CurveModelContract,
}


class RandomWalks(curves.FamilyCurveContract):
    """The curves that the last value is an honest forecast of."""

    def sample(self, rng: Stream) -> list[float]:
        return list(accumulate([1.0, *(rng.gauss(0.0, 0.05) for _ in range(29))]))


class TwoNumbers(generators.SamplerContract):
    """Small studies in two dimensions: a Gaussian process thinks for seconds."""

    trials = 8

    def generator(self) -> Generator:
        return self.make({"x": uniform(0.0, 1.0), "y": loguniform(0.1, 10.0)})


class Forking(policies.PolicyContract):
    """Studies whose trials may go on from each other: they share, and their space is known."""

    def study(
        self, trace: Trace = policies.TABLE, scene: Scene = CALM, policy: Policy | None = None
    ) -> Rehearsal:
        runs = len(trace.runs)
        space = {name: uniform(-1.0, runs) for name in trace.runs[0].config}
        told = {**scene.spec, "share": True, "generator": Part("queued", {"space": space})}
        return super().study(trace, replace(scene, spec=told), policy)


NARROWER["policy", "pbt"] = Forking
NARROWER["curve model", "last"] = RandomWalks
NARROWER["generator", "gp"] = TwoNumbers


def takes_a_space(kind: Kind, name: str) -> bool:
    module, _, attribute = BUILT_IN[kind][name].partition(":")
    return "space" in inspect.signature(getattr(import_module(module), attribute)).parameters


def made(kind: Kind, name: str, **given: Any) -> Any:  # noqa: ANN401
    """Return a registered part, with a clear word if this file does not know how to make it."""
    try:
        return build(kind, Part(name, {**ARGUMENTS.get((kind, name), {}), **given}))
    except SpecError as error:
        pytest.fail(f"{error} Give it in ARGUMENTS of {__file__}, so that its kit can run.")


def kit_of(kind: Kind, name: str) -> type:
    """Return the test class of a registered part."""
    space = takes_a_space(kind, name)
    given = (lambda space: made(kind, name, space=space)) if space else (lambda: made(kind, name))
    usual = generators.SpaceGeneratorContract if space else KITS[kind]
    title = "".join(word.title() for word in f"{name} {kind}".replace("_", " ").split())
    kit = NARROWER.get((kind, name), usual)
    # Hundreds of simulations; what they run has tests of its own, and the clauses break below.
    marks = [pytest.mark.unmeasured]
    return type(f"Test{title}", (kit,), {"make": staticmethod(given), "pytestmark": marks})


for _kind in get_args(Kind):
    for _name in BUILT_IN[_kind]:
        _class = kit_of(_kind, _name)
        globals()[_class.__name__] = _class


def test_a_new_part_that_needs_arguments_asks_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUILT_IN["generator"], "new", "paceline.generators.queued:Queued")
    with pytest.raises(pytest.fail.Exception, match=r"needs a value for configs.*ARGUMENTS"):
        kit_of("generator", "new")().test_every_config_can_be_written_to_a_log()


class TestJoinedPolicies(policies.PolicyContract):
    make = staticmethod(lambda: build("policy", parse_part("asha+plateau:patience=3")))


class TestProbePolicy(policies.PolicyLaws):
    make = ProbePolicy


class TestOddProbePolicy(policies.PolicyLaws):
    make = staticmethod(lambda: ProbePolicy(seed=3))


class TestForkingProbePolicy(policies.PolicyLaws):
    make = staticmethod(lambda: ProbePolicy(seed=1, forks=[{"run": 2}, {"run": 5}]))


class TestEndingPolicy(policies.PolicyLaws):
    make = EndingPolicy


class TestProbeAllocator(allocators.AllocatorLaws):
    make = ProbeAllocator


class TestAskedGenerator(generators.GeneratorLaws):
    make = staticmethod(lambda: AskedGenerator(configs=CONFIGS))


class TestSimulator(engines.EngineContract):
    make = staticmethod(lambda workload, adviser: SimEngine(workload, Cluster(slots=2), adviser))


class TestSimulatorWithCosts(engines.EngineContract):
    costs = Cluster(
        slots=2, setup_s=0.05, save_s=0.01, restore_s=0.01, forecast_s=0.03, proposal_s=0.02
    )
    make = staticmethod(
        lambda workload, adviser: SimEngine(workload, TestSimulatorWithCosts.costs, adviser)
    )


# The page on writing parts: its examples are run as they stand there, tests and all.

PAGE = (Path(__file__).parents[2] / "docs" / "writing-a-part.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.S | re.M)
sys.modules["written"] = ModuleType("written")
sys.modules["written.page"] = written = ModuleType("written.page")
for _block in BLOCKS:
    exec(compile(_block, "docs/writing-a-part.md", "exec", dont_inherit=True), vars(written))
for _name in [name for name in vars(written) if name.startswith(("Test", "test_"))]:
    globals()[_name] = getattr(written, _name)


def test_the_page_has_an_example_and_a_kit_for_each_kind_of_part() -> None:
    kits = [value for name, value in vars(written).items() if name.startswith("Test")]
    assert {kit.__mro__[1] for kit in kits} == set(KITS.values())


def test_the_examples_of_the_page_can_be_read_in_one_sitting() -> None:
    assert max(block.count("\n") for block in BLOCKS) <= 60


def test_a_part_of_the_page_can_be_named_with_its_parameters() -> None:
    part = build("policy", parse_part("written.page:BetterHalf:check=5"))
    assert type(part).__name__ == "BetterHalf"


def test_the_page_names_every_kit() -> None:
    for room in (policies, generators, allocators, curves, engines):
        for name, value in vars(room).items():
            if isinstance(value, type) and name.endswith(("Contract", "Laws")):
                assert f"`{name}`" in PAGE


# Kits that can fail


def clauses_of(kit: type) -> set[str]:
    return {name for name in dir(kit) if name.startswith("test_")}


@pytest.mark.parametrize(
    ("kit", "clause", "make", "error"),
    [
        pytest.param(kit, clause, make, error, id=f"{kit.__name__}-{clause.removeprefix('test_')}")
        for kit, breakers in BROKEN
        for clause, (make, error) in breakers.items()
    ],
)
def test_a_broken_part_breaks_the_clause(
    kit: type,
    clause: str,
    make: Callable[..., Any],
    error: type[Exception],
    machines: list[Machine],
) -> None:
    broken = type("Broken", (kit,), {"make": staticmethod(make)})()
    with pytest.raises(error):
        getattr(broken, clause)()
    machines.clear()  # nobody promises that a broken part leaves a good state


def test_every_clause_of_every_kit_is_broken_by_somebody() -> None:
    broken = {clause for _, breakers in BROKEN for clause in breakers}
    kits = [*(kit for kit, _ in BROKEN), *KITS.values(), *NARROWER.values()]
    assert {clause for kit in kits for clause in clauses_of(kit)} - broken == set()


class Keeps:
    """Something with memory of every kind."""

    everybody: list[int] = []  # noqa: RUF012 - shared by its objects: that is the point

    def __init__(self) -> None:
        self.heap = [(0.5, Slotted())]
        self.recent = deque([1.0])
        self.known: dict[int, set[int]] = {1: {2}}
        self.draws = Stream(1)
        self.column = array("d", [1.0])
        self.numbers = count()
        self.me = self


class Slotted:
    __slots__ = ("mark", "none")

    def __init__(self) -> None:
        self.mark = 1


@pytest.mark.parametrize(
    "write",
    [
        lambda brain: brain.heap.append(brain.heap[0]),
        lambda brain: setattr(brain.heap[0][1], "mark", 2),
        lambda brain: setattr(brain.heap[0][1], "none", None),
        lambda brain: brain.recent.append(2.0),
        lambda brain: brain.known[1].add(3),
        lambda brain: brain.known.setdefault(2, set()),
        lambda brain: brain.draws.random(),
        lambda brain: brain.column.append(2.0),
        lambda brain: next(brain.numbers),
        lambda brain: setattr(brain, "me", None),
        lambda brain: setattr(brain, "more", float("nan")),
        lambda brain: brain.everybody.append(1),
    ],
)
def test_writing_is_seen_wherever_it_happens(write: Callable[[Keeps], object]) -> None:
    brain = Keeps()
    before = memory_of(brain)
    assert memory_of(brain) == before
    write(brain)
    assert memory_of(brain) != before
