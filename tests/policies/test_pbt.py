"""PBT against a naive re-implementation, case by case, and live, with bit-exact forks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_networks import is_equal, make_images, make_network

import paceline as pl
from paceline.analysis.sharing import measure_sharing
from paceline.analysis.story import narrate_trial
from paceline.api.simulation import Simulation
from paceline.core.decisions import Amend, Go, Launch, Open, Pause, Stop
from paceline.core.errors import SpecError
from paceline.core.events import Reported, Saved
from paceline.core.ports import Outcome
from paceline.core.rng import stream
from paceline.core.values import Part, StudySpec
from paceline.engines.sim.synthetic import Quadratic
from paceline.plan.settings import setting_at
from paceline.policies.pbt import Explorer, Pbt

if TYPE_CHECKING:
    from pathlib import Path

    from paceline.core.decisions import Step
    from paceline.core.values import Config, Value


def simulated(policy: str = "pbt", source: str = "quadratic", **options: Any) -> list[Step]:  # noqa: ANN401
    """Return the log of a simulated population."""
    steps: list[Step] = []
    defaults: dict[str, Any] = {"slots": 4, "share": True, "curves": "last", **options}
    Simulation(source=source, policy=policy, **defaults).run(remember=steps.extend)
    return steps


def opened(steps: list[Step]) -> list[Open]:
    return [entry for step in steps for entry in step.entries if isinstance(entry, Open)]


def forks(steps: list[Step]) -> list[Open]:
    return [each for each in opened(steps) if each.source is not None]


# Against a naive implementation


class Naive:
    """Exploit and explore from a log's events, looking through every curve at every report."""

    def __init__(self, steps: list[Step], quantile: float, resample: float, seed: int) -> None:
        self.steps, self.quantile, self.resample, self.seed = steps, quantile, resample, seed
        self.configs: dict[int, Config] = {}
        self.curves: dict[int, list[float]] = {}
        # By live trial: the goal, and the end of its last interval, at first its source's.
        self.goals: dict[int, int] = {}
        self.ends: dict[int, int] = {}
        self.copies: set[int] = set()
        self.leaders: dict[int, int] = {}
        # The values of every copy of a trial at an epoch.
        self.rates: dict[tuple[int, int], list[float]] = {}

    def check(self, epochs: int) -> int:
        """Compare every step; return how many forks there were."""
        found = 0
        for step in self.steps:
            event = step.event
            if isinstance(event, Reported):
                trial = self.leaders[event.attempt]
                loss = event.metrics["loss"]
                assert loss is not None
                self.curves[trial].append(loss)
                if event.epoch == epochs:
                    self.ends.pop(trial, None)
                    self.goals.pop(trial)
                elif event.epoch == self.goals[trial]:
                    self.ends[trial] = event.epoch
                    self.copies.discard(trial)
                    found += self.compare(step)
            self.take(step)
        return found

    def compare(self, step: Step) -> int:
        stopped = [each for each in step.decisions if isinstance(each, Stop)]
        made = [
            each for each in step.decisions if isinstance(each, Open) and each.source is not None
        ]
        assert isinstance(step.event, Reported)
        epoch = step.event.epoch
        scores = {
            other: self.curves[other][min(end, epoch) - 1] for other, end in self.ends.items()
        }
        ranked = sorted(scores, key=lambda other: (scores[other], other))
        size = min(math.ceil(len(self.goals) * self.quantile), len(self.goals) // 2)
        best = [other for other in ranked if other not in self.copies][:size]
        worst = ranked[len(self.goals) - size :]
        ends = [other for other in worst if self.ends[other] == epoch and other not in self.copies]
        wanted = [(trial, *self.fork(trial, best)) for trial in ends]
        assert [each.trial for each in stopped] == [trial for trial, _, _ in wanted]
        for child, (_, source, lr) in zip(made, wanted, strict=True):
            branch = self.ends[source]
            assert (child.source, child.branch) == (source, branch)
            for epoch in range(branch):
                assert setting_at(child.config, epoch) == setting_at(self.configs[source], epoch)
            assert setting_at(child.config, branch)["lr"] == pytest.approx(lr, rel=1e-9)
        return len(made)

    def fork(self, trial: int, best: list[int]) -> tuple[int, float]:
        epoch = self.ends[trial]
        rng = stream(self.seed, "pbt", trial, epoch)
        source = best[int(rng.random() * len(best))]
        old = setting_at(self.configs[source], self.ends[source])["lr"]
        taken = self.rates.setdefault((source, self.ends[source]), [old])
        lr, turn = old, 0
        while any(math.isclose(lr, other, rel_tol=1e-9) for other in taken):
            anew, draw = rng.random() < (self.resample if turn < 4 else 1.0), rng.random()
            lr = 10.0 ** (-3 + 3 * draw) if anew else old * (0.8 if draw < 0.5 else 1.2)
            lr = min(max(lr, 0.001), 1.0)
            turn += 1
        taken.append(lr)
        return source, lr

    def take(self, step: Step) -> None:
        for each in step.decisions:
            if isinstance(each, Open):
                self.configs[each.trial], self.goals[each.trial] = each.config, each.until
                self.curves[each.trial] = []
                if each.source is not None and each.branch is not None:
                    self.curves[each.trial] = self.curves[each.source][: each.branch]
                    self.ends[each.trial] = each.branch
                    self.copies.add(each.trial)
            elif isinstance(each, Go):
                self.goals[each.trial] = each.until
            elif isinstance(each, Stop):
                self.goals.pop(each.trial)
                self.ends.pop(each.trial)
            elif isinstance(each, Launch | Amend):
                self.leaders[each.attempt] = each.trial


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    slots=st.integers(1, 7),
    population=st.integers(1, 7),
    quantile=st.sampled_from([0.2, 0.25, 0.5]),
    resample=st.sampled_from([0.0, 0.25, 1.0]),
)
def test_it_forks_like_a_naive_implementation(
    seed: int, slots: int, population: int, quantile: float, resample: float
) -> None:
    policy = f"pbt:population={population},interval=3,quantile={quantile},resample={resample}"
    steps = simulated(policy, "quadratic:epochs=15", slots=slots, seed=seed)
    Naive(steps, quantile, resample, seed).check(15)


def test_the_naive_implementation_makes_forks() -> None:
    steps = simulated("pbt:interval=3", "quadratic:epochs=15")
    assert Naive(steps, 0.25, 0.25, 0).check(15) == len(forks(steps)) > 5


# Case by case


def test_the_population_has_the_given_size_and_finishes() -> None:
    steps = simulated("pbt:population=5")
    assert sum(each.source is None for each in opened(steps)) == 5
    stopped = sum(isinstance(entry, Stop) for step in steps for entry in step.entries)
    assert stopped == len(forks(steps)) > 0


def test_a_failed_member_makes_room_for_a_new_one() -> None:
    steps = simulated("pbt:population=3", mean_life_s=40.0, retries=0, seed=2)
    assert sum(each.source is None for each in opened(steps)) > 3


@pytest.mark.parametrize("slots", [3, 8])
def test_a_fork_starts_from_the_checkpoint_its_source_left_and_retrains_nothing(slots: int) -> None:
    # Periodic checkpoints are rarer than ends of intervals: the policy requests these.
    steps = simulated("pbt:interval=6", slots=slots, save_s=0.1, save_every_s=1000.0)
    branch = {each.trial: each.branch or 0 for each in forks(steps)}
    launches = [each for step in steps for each in step.decisions if isinstance(each, Launch)]
    assert {each.trial for each in launches} & set(branch)
    assert all(each.start >= branch.get(each.trial, 0) for each in launches)
    sharing = measure_sharing(steps)
    assert sharing.epochs_trained == sharing.epochs_needed < sharing.epochs_asked


def test_a_member_that_trains_on_at_the_end_of_an_interval_saves_without_a_restart() -> None:
    steps = simulated("pbt:interval=6,population=4", slots=4, save_s=0.1, save_every_s=1000.0)
    going = {each.trial for step in steps for each in step.decisions if isinstance(each, Go)}
    assert going
    saved = {step.event.epoch for step in steps if isinstance(step.event, Saved)}
    assert saved == {6 * turn for turn in range(1, 11)}
    waited = sum(isinstance(each, Pause) for step in steps for each in step.decisions)
    starts = sum(isinstance(each, Launch) for step in steps for each in step.decisions)
    assert starts <= len(opened(steps)) + waited


def best(source: str, **options: Any) -> float:  # noqa: ANN401
    value = Simulation(source=source, curves="last", slots=8, **options).run().best_value
    assert value is not None
    return value


def test_it_finds_a_schedule_that_beats_every_constant_rate() -> None:
    constant = best("quadratic:noise=0,rates=31", policy="fifo", generator="grid")
    found = [best("quadratic:noise=0", policy="pbt", share=True, seed=seed) for seed in range(5)]
    assert sorted(found)[2] < constant


def test_copies_of_one_member_at_one_epoch_always_differ() -> None:
    # Nothing is drawn anew at first, and there are only two factors.
    steps = simulated("pbt:resample=0,quantile=0.5,population=9", slots=3)
    rates = [
        (each.source, each.branch, each.config["lr"]["piecewise"][-1]) for each in forks(steps)
    ]
    assert len({(source, branch) for source, branch, _ in rates}) < len(rates)
    assert all(rates.count(rate) == 1 for rate in rates)


def test_a_fork_is_in_the_stories_of_both_trials() -> None:
    steps = simulated()
    child = forks(steps)[0]
    (stop,) = [
        each
        for step in steps
        if child in step.decisions
        for each in step.decisions
        if isinstance(each, Stop) and each.why == child.why
    ]
    story = "\n".join(narrate_trial(steps, child.trial))
    assert f"forked from trial {child.source} at epoch {child.branch}" in story
    assert child.branch is not None
    assert f"from epoch {child.branch + 1}" in story, "epochs are counted from 1"
    assert f"is stopped: trial {stop.trial} with loss" in "\n".join(
        narrate_trial(steps, stop.trial)
    )


@pytest.mark.parametrize(
    ("policy", "options", "message"),
    [
        ("pbt", {"share": False}, "needs share=True"),
        ("pbt:explore=lrr", {}, "did you mean 'lr'"),
        ("pbt:population=0", {}, "population=0 is invalid"),
        ("pbt:interval=0", {}, "interval=0 is invalid"),
        ("pbt:quantile=0.6", {}, "at most 0.5"),
        ("pbt:resample=2", {}, "from 0 to 1"),
        ("pbt", {"source": "quadratic:rates=3"}, "nothing to explore.*explore=…: lr"),
        ("pbt", {"source": "quadratic:stages=3"}, "this space has no others"),
        ("pbt:explore=lr.piecewise.0.1", {"source": "quadratic:stages=3"}, "schedule of its own"),
    ],
)
def test_invalid_parameters_are_refused(policy: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        simulated(policy, **options)


def test_a_trace_is_refused_because_it_has_no_space() -> None:
    with pytest.raises(SpecError, match="'queued' has none"):
        Pbt()._set_up(spec_with(None))


# What may be explored, and how


def spec_with(space: Config | None) -> StudySpec:
    given = Part("queued") if space is None else Part("random", {"space": space})
    return StudySpec(
        name="s",
        metric="loss",
        mode="min",
        epochs=9,
        policy=Part("pbt"),
        generator=given,
        share=True,
    )


class FixedDraws:
    """A random stream with fixed draws."""

    def __init__(self, *draws: float) -> None:
        self._draws = list(draws)

    def random(self) -> float:
        return self._draws.pop(0)


def explored(space: Config, config: Config, *draws: float, named: tuple[str, ...] = ()) -> Config:
    explorer = Explorer(spec_with(space), named)
    return explorer.perturb(explorer.get_values(config), 0.25, FixedDraws(*draws))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("domain", "old", "draw", "new"),
    [
        (pl.uniform(0, 1), 0.5, 0.4, 0.4),
        (pl.uniform(0, 1), 0.5, 0.6, 0.6),
        (pl.uniform(0, 1), 0.9, 0.6, 1.0),
        (pl.loguniform(0.1, 10), 0.11, 0.4, 0.1),
        (pl.quniform(0, 10, 0.5), 2.0, 0.6, 2.5),
        (pl.quniform(0, 10, 0.5), 0.5, 0.4, 0.0),
        (pl.randint(1, 9), 5, 0.6, 6),
        (pl.randint(1, 9), 2, 0.6, 3),
        (pl.randint(1, 9), 8, 0.6, 8),
        (pl.lograndint(1, 9), 1, 0.4, 1),
        (pl.choice(["a", "b", "c"]), "b", 0.4, "a"),
        (pl.choice(["a", "b", "c"]), "b", 0.6, "c"),
        (pl.choice(["a", "b", "c"]), "c", 0.6, "c"),
    ],
)
def test_a_value_is_perturbed_within_its_domain(
    domain: Value, old: Value, draw: float, new: Value
) -> None:
    changed = explored({"x": domain}, {"x": old}, 0.9, draw, named=("x",))
    assert changed == {"x": pytest.approx(new) if isinstance(new, float) else new}


def test_a_value_is_drawn_anew_with_the_given_probability() -> None:
    assert explored({"x": pl.uniform(0, 10)}, {"x": 1.0}, 0.2, 0.7) == {"x": 7.0}


def test_only_continuous_numbers_are_explored_unless_others_are_named() -> None:
    space = {
        "lr": pl.loguniform(0.1, 10),
        "width": pl.choice([32, 64]),
        "layers": pl.randint(1, 9),
        "drop": pl.linear(pl.uniform(0, 1), 0.0, 9),
    }
    config = {"lr": 1.0, "width": 32, "layers": 3, "drop": pl.linear(0.5, 0.0, 9)}
    assert set(explored(space, config, 0.9, 0.9)) == {"lr"}
    assert explored(space, config, 0.9, 0.9, named=("width",)) == {"width": 64}


def test_a_fork_of_a_fork_starts_from_the_last_values() -> None:
    config = {"lr": {"piecewise": [[0, 8.0], [3, 1.0]]}, "seed": 1}
    assert explored({"lr": pl.uniform(0, 10), "seed": 1}, config, 0.9, 0.9) == {"lr": 1.2}


def test_a_nested_dimension_is_explored_and_its_neighbours_stay() -> None:
    space = {"opt": {"kind": "sgd", "rates": [pl.uniform(0, 10), pl.uniform(0, 10)]}}
    config = {"opt": {"kind": "sgd", "rates": [1.0, 2.0]}}
    changed = explored(space, config, 0.9, 0.9, 0.9, 0.1)
    assert changed == {"opt": {"kind": "sgd", "rates": [1.2, 1.6]}}
    assert config == {"opt": {"kind": "sgd", "rates": [1.0, 2.0]}}


@pytest.mark.parametrize(
    ("name", "message"),
    [("opt", "options have dimensions"), ("opt[0].momentum", "belongs to an option of opt")],
)
def test_a_dimension_under_a_choice_cannot_be_explored(name: str, message: str) -> None:
    space = {"opt": pl.choice([{"momentum": pl.uniform(0, 1)}, {}]), "lr": pl.uniform(0, 1)}
    with pytest.raises(SpecError, match=message):
        Explorer(spec_with(space), (name,))


# The workload


def test_on_the_quadratic_a_rate_that_falls_beats_every_constant_one() -> None:
    def end(*rates: float) -> float:
        work = Quadratic(seed=0, noise=0.0)
        state = work.begin({})
        for epoch in range(60):
            outcome = work.advance(state, {"lr": rates[epoch * len(rates) // 60]})
            assert isinstance(outcome, Outcome)
            state, loss = outcome.state, outcome.metrics["loss"]
        assert loss is not None
        return loss

    constant = min(end(10.0 ** (-at / 20)) for at in range(61))
    assert end(1.0, 0.1, 0.01) < constant / 2


# Live

EPOCHS = 6


def trained(trial: Any) -> None:  # noqa: ANN401
    """Train a small network whose score rises with the epochs."""
    pixels, labels = (torch.from_numpy(array) for array in make_images())
    model, opt = make_network()
    _, _, losses = trial.keep(model=model, opt=opt, losses=[])
    for epoch in trial.epochs():
        for rows in torch.randperm(48).split(16):
            opt.param_groups[0].update(lr=trial["lr"], momentum=trial["momentum"])
            opt.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(pixels[rows]), labels[rows])
            loss.backward()
            opt.step()
        losses.append(loss.item())
        trial.report(score=epoch - 0.5 * math.tanh(loss.item()))


@pytest.mark.slow
def test_a_fork_ends_bit_for_bit_like_its_schedule_trained_from_scratch(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "metric": "score",
        "mode": "max",
        "epochs": EPOCHS,
        "progress": False,
    }
    found = pl.tune(
        trained,
        space={"lr": pl.loguniform(0.01, 2.0), "momentum": pl.uniform(0.0, 0.9)},
        policy="pbt:population=6,interval=1,quantile=0.5",
        generator="random",
        slots=2,
        files=tmp_path / "forked",
        **options,
    )
    ended = [each for each in found.trials if each.status == "finished"]
    assert len(ended) == 6
    forked = [each for each in ended if each.source is not None]
    assert forked, "no trial was forked"
    with pl.Study(trained, share=False, slots=2, files=tmp_path / "alone", **options) as study:
        alone = study.group([(each.config, EPOCHS) for each in forked])
    for fork, single in zip(forked, alone, strict=True):
        assert fork.values == single.values
        assert fork.checkpoint is not None
        assert single.checkpoint is not None
        assert fork.checkpoint.epoch == single.checkpoint.epoch == EPOCHS
        assert is_equal(fork.checkpoint.load(), single.checkpoint.load())
    sharing = measure_sharing(found.log)
    # Epochs without a trial were requested by members that were then replaced.
    known = sum(node.epochs_known for node in sharing.nodes)
    assert sharing.epochs_trained == known, "something was trained twice"
