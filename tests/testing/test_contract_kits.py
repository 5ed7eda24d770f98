"""Every registered part passes its contract kit, and a broken part fails every clause."""

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

from paceline.api.registry import BUILT_IN, Kind, build_part, parse_part
from paceline.core.errors import SpecError
from paceline.core.rng import Stream
from paceline.core.space import loguniform, uniform
from paceline.core.values import Part
from paceline.engines.sim.cluster import Cluster
from paceline.engines.sim.engine import SimEngine
from paceline.testing import allocators, curves, engines, generators, policies
from paceline.testing.random_parts import (
    DeferredGenerator,
    EndingPolicy,
    RandomAllocator,
    RandomPolicy,
)
from paceline.testing.simulations import CALM, Scenario, SimulatedStudy
from paceline.testing.snapshots import dump_memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.core.ports import Generator, Policy
    from paceline.engines.sim.traces import Trace
    from paceline.machine.machine import Machine

CONFIGS = [{"lr": 0.1 / (1 + number), "width": number} for number in range(30)]

# For registered parts: arguments that they need, and the kit for parts that need another one than
# the usual kit of their kind.
ARGUMENTS: dict[tuple[Kind, str], dict[str, Any]] = {
    ("generator", "queued"): {"configs": CONFIGS},
    ("policy", "kill_below"): {"value": 0.5, "after": 4},
    # As many as the kit's tables have runs, so that each run is trained.
    ("policy", "pbt"): {"population": 13},
    # The runs of the kit's tables have different configs, and equal losses are to tie.
    ("policy", "planner"): {"configs": False},
    ("generator", "gp"): {"startup": 4},
    ("curve model", "ensemble"): {"steps": 30},
    ("curve model", "published"): {"steps": 100},
}
SPECIAL_KITS: dict[tuple[Kind, str], type] = {
    ("generator", "random"): generators.SeededGeneratorContract,
    # Its configs depend on results of trials.
    ("generator", "branching"): generators.BaseSeededGeneratorContract,
    ("generator", "sobol"): generators.SeededGeneratorContract,
    # It stops even a lone trial, and its threshold is not symmetric.
    ("policy", "kill_below"): policies.BasePolicyContract,
    **{
        ("generator", name): generators.SamplerContract
        for name in ("tpe", "cmaes", "qmc", "optuna")
    },
}
# Kits that only `make test-all` runs: chains of hundreds of steps.
SLOW_KITS = {("curve model", "published")}
KITS: dict[Kind, type] = {
    "policy": policies.PolicyContract,
    "generator": generators.GeneratorContract,
    "allocator": allocators.AllocatorContract,
    "curve model": curves.CurveModelContract,
}


class RandomWalks(curves.FamilyCurveContract):
    """Random walks, of which the last value is a calibrated forecast."""

    def sample(self, rng: Stream) -> list[float]:
        return list(accumulate([1.0, *(rng.gauss(0.0, 0.05) for _ in range(29))]))


class TwoNumbers(generators.SamplerContract):
    """Small studies in two dimensions, since a Gaussian process takes seconds."""

    trials = 8

    def generator(self) -> Generator:
        return self.make({"x": uniform(0.0, 1.0), "y": loguniform(0.1, 10.0)})


class Forking(policies.PolicyContract):
    """Studies with shared prefixes and a known space, as PBT needs."""

    def study(
        self, trace: Trace = policies.TABLE, scenario: Scenario = CALM, policy: Policy | None = None
    ) -> SimulatedStudy:
        runs = len(trace.runs)
        space = {name: uniform(-1.0, runs) for name in trace.runs[0].config}
        spec = {**scenario.spec, "share": True, "generator": Part("queued", {"space": space})}
        return super().study(trace, replace(scenario, spec=spec), policy)


SPECIAL_KITS["policy", "pbt"] = Forking
SPECIAL_KITS["curve model", "last"] = RandomWalks
SPECIAL_KITS["generator", "gp"] = TwoNumbers


def has_space(kind: Kind, name: str) -> bool:
    module, _, attribute = BUILT_IN[kind][name].partition(":")
    return "space" in inspect.signature(getattr(import_module(module), attribute)).parameters


def build_registered(kind: Kind, name: str, **given: Any) -> Any:  # noqa: ANN401
    """Return a registered part; fail with a hint if it needs arguments."""
    try:
        return build_part(kind, Part(name, {**ARGUMENTS.get((kind, name), {}), **given}))
    except SpecError as error:
        pytest.fail(f"{error} Give it in ARGUMENTS of {__file__}, so that its kit can run.")


def make_kit(kind: Kind, name: str) -> type:
    """Return the test class of a registered part."""
    space = has_space(kind, name)
    given = (
        (lambda space: build_registered(kind, name, space=space))
        if space
        else (lambda: build_registered(kind, name))
    )
    usual = generators.SpaceGeneratorContract if space else KITS[kind]
    title = "".join(word.title() for word in f"{name} {kind}".replace("_", " ").split())
    kit = SPECIAL_KITS.get((kind, name), usual)
    # Hundreds of simulations of code with tests of its own; the clauses are tested below.
    marks = [pytest.mark.unmeasured, *[pytest.mark.slow] * ((kind, name) in SLOW_KITS)]
    return type(f"Test{title}", (kit,), {"make": staticmethod(given), "pytestmark": marks})


for _kind in get_args(Kind):
    for _name in BUILT_IN[_kind]:
        _class = make_kit(_kind, _name)
        globals()[_class.__name__] = _class


def test_a_new_part_without_its_arguments_fails_with_a_hint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(BUILT_IN["generator"], "new", "paceline.generators.queued:Queued")
    with pytest.raises(pytest.fail.Exception, match=r"needs a value for configs.*ARGUMENTS"):
        make_kit("generator", "new")().test_every_config_can_be_written_to_a_log()


class TestCombinedPolicies(policies.PolicyContract):
    make = staticmethod(lambda: build_part("policy", parse_part("asha+plateau:patience=3")))


class TestRandomPolicy(policies.BasePolicyContract):
    make = RandomPolicy


class TestOddRandomPolicy(policies.BasePolicyContract):
    make = staticmethod(lambda: RandomPolicy(seed=3))


class TestForkingRandomPolicy(policies.BasePolicyContract):
    make = staticmethod(lambda: RandomPolicy(seed=1, forks=[{"run": 2}, {"run": 5}]))


class TestEndingPolicy(policies.BasePolicyContract):
    make = EndingPolicy


class TestRandomAllocator(allocators.BaseAllocatorContract):
    make = RandomAllocator


class TestDeferredGenerator(generators.BaseGeneratorContract):
    make = staticmethod(lambda: DeferredGenerator(configs=CONFIGS))


class TestSimulator(engines.EngineContract):
    make = staticmethod(lambda workload, advisor: SimEngine(workload, Cluster(slots=2), advisor))


class TestSimulatorWithCosts(engines.EngineContract):
    costs = Cluster(
        slots=2, setup_s=0.05, save_s=0.01, restore_s=0.01, forecast_s=0.03, proposal_s=0.02
    )
    make = staticmethod(
        lambda workload, advisor: SimEngine(workload, TestSimulatorWithCosts.costs, advisor)
    )


# The examples and tests of docs/writing-a-part.md are run as they are.

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


def test_the_examples_of_the_page_are_short() -> None:
    assert max(block.count("\n") for block in BLOCKS) <= 60


def test_a_part_of_the_page_can_be_built_by_name() -> None:
    part = build_part("policy", parse_part("written.page:BetterHalf:check=5"))
    assert type(part).__name__ == "BetterHalf"


def test_the_page_names_every_kit() -> None:
    for module in (policies, generators, allocators, curves, engines):
        for name, value in vars(module).items():
            if isinstance(value, type) and name.endswith("Contract"):
                assert f"`{name}`" in PAGE


# Every clause fails for a broken part


def list_clauses(kit: type) -> set[str]:
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
    machines.clear()  # a broken part may leave a state that breaks invariants


def test_every_clause_of_every_kit_has_a_broken_part() -> None:
    broken = {clause for _, breakers in BROKEN for clause in breakers}
    kits = [*(kit for kit, _ in BROKEN), *KITS.values(), *SPECIAL_KITS.values()]
    assert {clause for kit in kits for clause in list_clauses(kit)} - broken == set()


class EveryKindOfMemory:
    """An object with memory of every kind."""

    shared: list[int] = []  # noqa: RUF012 - shared by its objects on purpose

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
        lambda item: item.heap.append(item.heap[0]),
        lambda item: setattr(item.heap[0][1], "mark", 2),
        lambda item: setattr(item.heap[0][1], "none", None),
        lambda item: item.recent.append(2.0),
        lambda item: item.known[1].add(3),
        lambda item: item.known.setdefault(2, set()),
        lambda item: item.draws.random(),
        lambda item: item.column.append(2.0),
        lambda item: next(item.numbers),
        lambda item: setattr(item, "me", None),
        lambda item: setattr(item, "more", float("nan")),
        lambda item: item.shared.append(1),
    ],
)
def test_every_change_of_memory_is_detected(write: Callable[[EveryKindOfMemory], object]) -> None:
    item = EveryKindOfMemory()
    before = dump_memory(item)
    assert dump_memory(item) == before
    write(item)
    assert dump_memory(item) != before
