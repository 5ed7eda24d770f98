"""Random compositions of parts and conditions, and the oracle that checks what their trials see."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from paceline.api.options import parse_needs
from paceline.api.registry import build_part, build_parts, describe_part, list_parts, parse_part
from paceline.api.simulation import Search, Simulation
from paceline.api.sources import make_synthetic
from paceline.api.width_checks import find_inert_width
from paceline.core.events import ChangeSlots, Command
from paceline.core.ports import Crash, Outcome
from paceline.core.rng import stream
from paceline.core.speedup import parse_speedup
from paceline.engines.sim.cluster import Cluster, Faults
from paceline.engines.sim.oracle import Oracle
from paceline.machine.requirements import NeedsFunction
from paceline.plan.settings import config_key, setting_at
from paceline.testing.simulations import SimulatedStudy

if TYPE_CHECKING:
    from paceline.core.ports import CurveModel, Generator, Workload
    from paceline.core.values import Config, StudySpec
    from paceline.machine.decider import Parts
    from paceline.machine.state import StudyState

# Every policy, with parameters that matter in a study of a few epochs.
POLICIES: dict[str, list[str]] = {
    "asha": ["asha", "asha:eta=2,drain=true", "asha:eta=2,drain=false"],
    "asha_stop": ["asha_stop:eta=2"],
    "bandit": ["bandit", "bandit:boundary=1"],
    "barrier": ["barrier", "barrier:every=2,size=3"],
    "early_term": ["early_term", "early_term:boundary=2"],
    "fifo": ["fifo"],
    "hyperband": ["hyperband", "hyperband:eta=2"],
    "hypersched": [
        "hypersched",
        "hypersched:eta=2",
        "hypersched:eta=2,drain=true",
        "hypersched:eta=2,drain=false",
        "hypersched:eta=2,chance=0.1",
    ],
    "kill_below": ["kill_below:value=0.7,after=2"],
    "median": ["median", "median:grace=1,least=2"],
    "pasha": ["pasha:eta=2"],
    "pbt": ["pbt:population=3", "pbt:population=4,interval=2,quantile=0.4"],
    "plateau": ["plateau:patience=2"],
    "planner": ["planner", "planner:configs=false"],
    "pop": ["pop", "pop:boundary=1", "pop:boundary=3", "pop:boundary=1,k=2"],
    "sha": ["sha", "sha:eta=2,size=4"],
    "both": ["asha:eta=2+plateau:patience=2", "median+bandit:boundary=2", "pop:boundary=2+median"],
}
ALLOCATORS: list[str] = [*list_parts("allocator"), "confidence:width=2"]
# Settings by value: with `needs`, some stages of a schedule take two slots, or half of one.
NEEDS = [None, None, None, "lr:0.02=2", "lr:0.02=0.5,0.5=2"]
COMMANDS: list[dict[int, Command]] = [
    {},
    {},
    {12: ChangeSlots(2), 30: ChangeSlots(-2)},
    {9: ChangeSlots(-1), 25: ChangeSlots(1)},
]


class Composition(Struct, frozen=True, kw_only=True):
    """A simulated study: its options, and what they cannot say."""

    options: dict[str, Any]
    proposal_s: float = 0.0
    lost_saves: float = 0.0
    # The share of epochs, by setting, in which the training code crashes.
    crash: float = 0.0
    commands: dict[int, Command] = {}


def choose(*options: Any) -> st.SearchStrategy[Any]:  # noqa: ANN401
    """Draw one of these."""
    return st.sampled_from(options)


_COSTS = {
    "setup_s": choose(0.0, 0.0, 0.3, 1.3),
    "save_s": choose(0.0, 0.0, 0.2),
    "restore_s": choose(0.0, 0.1),
    "forecast_s": choose(0.0, 0.4, 2.5),
    "save_every_s": choose(None, 0.0, 1.5),
    "speedup": choose("linear", "linear", "amdahl:0.8"),
    "interference": choose(0.0, 0.1, 0.5, 1.5),
}
_ENDS = {
    "deadline_s": choose(None, None, 6.0, 15.0),
    "target": choose(None, None, None, 0.5),
    "slot_seconds": choose(None, None, None, 12.0),
}
_FAULTS = {
    "mean_life_s": choose(None, None, 3.0, 20.0),
    "retries": choose(0, 1, 3),
    "capacity": choose((), (), ((2.2, 1), (4.0, 3)), ((1.0, 0), (3.0, 2)), ((3.0, 4),)),
}


ANY_WIDTHS = st.fixed_dictionaries(
    {"allocator": st.sampled_from(ALLOCATORS), "span": choose(1, 2, 4), "pack": choose(1, 2, 3)}
)
# Allocators with the widths that they can give; other combinations are refused.
WIDTHS = ANY_WIDTHS.filter(
    lambda each: (
        not find_inert_width(
            describe_part("allocator", each["allocator"]), each["span"], each["pack"]
        )
    )
)


@st.composite
def compositions(draw: st.DrawFn, policy: str) -> Composition:
    """Draw a composition of a policy with everything else that a study can have."""
    epochs = draw(st.integers(2, 9))
    stages = draw(choose(1, 2, 3, epochs))
    if policy == "pbt":
        stages = 1  # it explores values without a schedule
    rates = "" if policy == "pbt" else draw(choose("", ",rates=2", ",rates=2", ",rates=3"))
    options: dict[str, Any] = {
        "source": f"quadratic:epochs={epochs},stages={min(stages, epochs)}{rates}",
        "policy": draw(st.sampled_from(POLICIES[policy])),
        "curves": draw(choose("last", "last", "oracle")),
        "share": policy == "pbt" or draw(choose(False, True, True)),
        "slots": draw(st.integers(1, 4)),
        # A few are refused.
        **draw(ANY_WIDTHS if draw(st.integers(0, 19)) == 19 else WIDTHS),
        "needs": draw(st.sampled_from(NEEDS)),
        "seed": draw(st.integers(0, 1000)),
        "generator": draw(choose("random", "random", "sobol")),
    }
    for table in (_COSTS, _ENDS, _FAULTS):
        options.update({name: draw(each) for name, each in table.items()})
    if draw(st.booleans()):
        options["node_slots"], options["fetch_s"] = draw(choose((1, 0.0), (2, 0.2)))
    if policy != "pbt" and draw(choose(False, False, False, False, True)):
        return _draw_together(draw, options)
    # An open generator has more configs than the study has time for.
    is_open = options["deadline_s"] is not None and draw(st.booleans())
    options["trials"] = 60 if is_open else draw(st.integers(1, 8))
    return Composition(options=options, **_draw_rest(draw))


def _draw_together(draw: st.DrawFn, options: dict[str, Any]) -> Composition:
    """Draw several searches that are run as one study."""
    others = [policy for name, each in POLICIES.items() if name != "pbt" for policy in each]
    policies = (options.pop("policy"), draw(st.sampled_from(others)))
    target = options.pop("target")
    generator = options.pop("generator")
    searches = tuple(
        Search(
            policy=policy,
            curves=options["curves"],
            generator=generator,
            target=target,
            trials=draw(st.integers(1, 4)),
        )
        for policy in policies
    )
    return Composition(options={**options, "searches": searches}, **_draw_rest(draw))


def _draw_rest(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "proposal_s": draw(choose(0.0, 0.0, 0.7)),
        "lost_saves": draw(choose(0.0, 0.0, 0.2)),
        "crash": draw(choose(0.0, 0.0, 0.1)),
        "commands": draw(st.sampled_from(COMMANDS)),
    }


class UnevenWorkload:
    """A synthetic workload whose epochs take different times, and some of which crash."""

    def __init__(self, workload: Workload, seed: int, crash: float) -> None:
        self.metric = workload.metric
        self._workload = workload
        self._seed = seed
        self._crash = crash

    def begin(self, config: Config) -> object:
        return self._workload.begin(config)

    def setup_s(self, state: object) -> float | None:
        return self._workload.setup_s(state)

    def advance(self, state: object, setting: Config) -> Outcome | Crash:
        outcome = self._workload.advance(state, setting)
        rng = stream(self._seed, "uneven", config_key(setting).decode(), str(state))
        seconds = (0.5, 1.0, 1.7)[int(3 * rng.random())]
        if rng.random() < self._crash:
            return Crash(seconds / 2, "it crashes here")
        return replace(outcome, seconds=seconds)


class ComposedStudy(SimulatedStudy):
    """A composition, ready to run."""

    def __init__(self, composition: Composition) -> None:
        simulation = Simulation(**composition.options)
        self.composition = composition
        self.workload = _make_workload(composition, simulation)
        super().__init__(
            simulation.check(),
            make_composed_parts(simulation.check(), composition),
            self.workload,
            _make_cluster(composition, simulation),
            composition.commands,
            _make_curves(simulation, self.workload),
        )


def _make_workload(composition: Composition, simulation: Simulation) -> UnevenWorkload:
    workload = make_synthetic(simulation.source, simulation.seed)
    assert workload is not None
    return UnevenWorkload(workload, simulation.seed, composition.crash)


def make_composed_parts(spec: StudySpec, composition: Composition) -> Parts:
    """Return fresh parts; the same composition gives the same decisions."""
    needs = composition.options["needs"]
    asked = None if needs is None else NeedsFunction(parse_needs(needs))
    parts = build_parts(spec, needs=asked)
    if composition.proposal_s:
        parts = replace(parts, generator=DelayedGenerator(parts.generator))
    return parts


class DelayedGenerator:
    """A generator whose proposals are requested and answered, as those of a sampler are."""

    pure = False

    def __init__(self, generator: Generator) -> None:
        self.see = generator.see
        self.propose = generator.propose


def _make_cluster(composition: Composition, simulation: Simulation) -> Cluster:
    names = ("setup_s", "save_s", "restore_s", "node_slots", "fetch_s", "forecast_s", "capacity")
    return Cluster(
        slots=simulation.slots,
        proposal_s=composition.proposal_s,
        save_every_s=simulation.save_every_s,
        speed=parse_speedup(simulation.speedup, simulation.interference),
        faults=Faults(
            mean_life_s=simulation.mean_life_s,
            saves=composition.lost_saves,
            seed=simulation.seed,
        ),
        **{name: getattr(simulation, name) for name in names},
    )


def _make_curves(simulation: Simulation, workload: Workload) -> CurveModel:
    if simulation.curves == "oracle":
        return Oracle(workload, 1.0)
    model: CurveModel = build_part("curve model", parse_part(str(simulation.curves)))
    return model


def train_alone(workload: Workload, config: Config, epochs: int) -> list[float | None]:
    """Return the values of a config that is trained alone, epoch by epoch."""
    values: list[float | None] = []
    state = workload.begin(config)
    for epoch in range(epochs):
        outcome = workload.advance(state, setting_at(config, epoch))
        if isinstance(outcome, Crash):
            break
        values.append(outcome.metrics[workload.metric])
        state = outcome.state
    return values


def find_wrong_values(state: StudyState, workload: Workload) -> list[str]:
    """Return the values that trials have seen and that are not those of their configs alone.

    The config of a forked trial is its lineage: the settings of its source up to the fork, then its
    own.
    """
    wrong = [
        f"trial {trial.id} saw {seen} at epoch {epoch}, and its config alone has {alone}"
        for trial in state.trials
        for epoch, seen, alone in zip_longest(
            range(1, trial.epoch + 1),
            trial.metric(workload.metric),
            train_alone(workload, trial.config, trial.epoch),
        )
        if seen != alone
    ]
    if state.mismatches:
        wrong.append(f"{state.mismatches} epochs had another value when they were trained again")
    return wrong
