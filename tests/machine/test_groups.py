"""Several studies driven as one: what they share, whose turn it is, and how each ends alone."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_studies import SmallStudy, make_table

import paceline as pl
from paceline.analysis.sharing import measure_sharing
from paceline.api.registry import build_parts, list_parts, parse_part
from paceline.api.simulation import Search, Simulation, combine_studies, read_simulation
from paceline.api.stored import NewStudyLog, StudyPage, fold_log, replay_log
from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.ports import Pick, see_nothing
from paceline.core.values import Budget, GroupSpec, Part, Status, StudySpec, Target
from paceline.engines.sim.cluster import Cluster
from paceline.engines.sim.synthetic import Families
from paceline.generators.queued import Queued
from paceline.policies.fifo import Fifo
from paceline.testing.simulations import SimulatedStudy

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from command_line import CommandLine

    from paceline.core.decisions import Entry, Step
    from paceline.core.ports import Policy, Verdict
    from paceline.core.values import Config
    from paceline.core.views import StudyView, TrialView

EPOCHS = 5
# Saved after every epoch, at no cost.
FREE = {"save_every_s": 0.0}
rates = st.lists(st.sampled_from([0.1, 0.2, 0.3]), min_size=EPOCHS, max_size=EPOCHS)
searches = st.lists(rates, min_size=1, max_size=5, unique_by=str)


def curve(path: Sequence[float]) -> list[float]:
    """Return losses that tell all settings so far."""
    found, loss = [], 0.0
    for rate in path:
        loss = round(loss / 3.0 + rate, 9)
        found.append(loss)
    return found


def schedule(path: Sequence[float]) -> Config:
    return {"lr": pl.each_epoch(list(path))}


def played(
    *studies: tuple[Policy, Sequence[Sequence[float]]],
    targets: dict[int, float] | None = None,
    **options: Any,  # noqa: ANN401
) -> SimulatedStudy:
    """Return studies of these schedules, driven as one, that have come to their end."""
    paths = list({str(path): path for _, told in studies for path in told}.values())
    trace = make_table([curve(path) for path in paths], configs=[schedule(path) for path in paths])
    groups = [
        GroupSpec(
            name=f"study {at}",
            policy=Part("given"),
            generator=Part("queued"),
            target=Target(targets[at]) if targets and at in targets else None,
        )
        for at in range(len(studies))
    ]
    (policy, generator), *others = [
        (policy, Queued(configs=[schedule(path) for path in told])) for policy, told in studies
    ]
    return SmallStudy(
        trace,
        policy,
        generator=generator,
        others=tuple(others),
        groups=tuple(groups),
        cluster=FREE,
        **{"share": True, **options},
    ).run()


@given(st.lists(searches, min_size=2, max_size=4), st.integers(1, 4))
def test_epochs_that_several_studies_request_are_trained_once_for_all(
    wanted: list[list[list[float]]], slots: int
) -> None:
    done = played(*[(Fifo(), told) for told in wanted], slots=slots)
    state = done.state
    distinct = {tuple(path[: k + 1]) for told in wanted for path in told for k in range(EPOCHS)}
    assert (state.epochs_trained, state.repeats) == (len(distinct), 0)
    assert measure_sharing(done.steps).epochs_needed == len(distinct)
    for group, told in zip(state.groups, wanted, strict=True):
        assert [list(trial.losses) for trial in group.trials] == [curve(path) for path in told]
        assert {trial.ended for trial in group.trials} == {Status.FINISHED}
    assert sum(group.epochs_trained for group in state.groups) == len(distinct)


POLICIES = ("fifo", "asha", "asha_stop", "sha", "hyperband", "median", "bandit:boundary=3", "pasha")


def fate(done: SimulatedStudy, group: int = 0) -> list[tuple[Any, ...]]:
    """Return what was decided about a study's trials, which are numbered as if it were alone."""
    numbers: dict[int, int] = {}
    told: list[tuple[Any, ...]] = []
    for decision in done.decisions:
        match decision:
            case d.Open(group=whose, trial=trial, config=config, until=until, why=why):
                if whose == group:
                    numbers[trial] = len(numbers)
                    told.append(("open", numbers[trial], config, until, why))
            case d.Go(trial=trial, why=why) | d.Pause(trial=trial, why=why):
                if trial in numbers:
                    further = getattr(decision, "until", None)
                    told.append((type(decision).__name__, numbers[trial], further, why))
            case d.Cut(trial=trial, why=why) | d.Stop(trial=trial, why=why):
                if trial in numbers:
                    told.append((type(decision).__name__, numbers[trial], why))
            case d.Close(group=whose, why=why) if whose == group:
                told.append(("close", why))
            case d.Leave(group=whose, cause=cause, why=why) if whose == group:
                return [*told, (cause, why)]
            case d.End(cause=cause, why=why):
                return [*told, (cause, why)]
    return told


def logged(simulation: Simulation) -> list[Step]:
    log: list[Step] = []
    simulation.run(remember=log.extend)
    return log


def on_families(*studies: tuple[str, str, int], slots: int = 1) -> SimulatedStudy:
    """Return studies with a policy, a space and a number of trials each, driven to their end."""
    workload = Families(seed=3, epochs=27, crash=0.0)
    parts = [
        GroupSpec(
            name=name,
            policy=parse_part(policy),
            generator=Part("random", {"space": {**workload.space, "whose": pl.choice([name])}}),
            trials=trials,
        )
        for policy, name, trials in studies
    ]
    alone = StudySpec(
        name="families",
        metric=workload.metric,
        mode=workload.mode,
        epochs=workload.epochs,
        policy=parts[0].policy,
        generator=parts[0].generator,
        budget=Budget(trials=parts[0].trials),
        share=True,
    )
    spec = combine_studies(alone, parts) if len(parts) > 1 else alone
    return SimulatedStudy(spec, build_parts(spec), workload, Cluster(slots=slots)).run()


@pytest.mark.parametrize("policy", POLICIES)
def test_on_one_slot_each_study_decides_as_it_would_alone(policy: str) -> None:
    # Of the others it sees nothing, and its own reports come in the same order. So it is with every
    # policy that does not look at the time.
    told = [(policy, "a", 12), ("asha", "b", 9)]
    both = on_families(*told)
    for at, study in enumerate(told):
        alone = fate(on_families(study))
        assert len(alone) > study[2]
        assert fate(both, at) == alone


# What cannot be built without a parameter.
NEEDS = {"kill_below": "kill_below:value=0.1"}


@pytest.mark.parametrize("policy", list_parts("policy"))
def test_every_policy_can_be_one_of_several(policy: str) -> None:
    # Its trials are not 0, 1, 2 then, and others' reports come between its own.
    told = Simulation(
        source="families:epochs=12,crash=0.0",
        slots=3,
        share=True,
        deadline_s=600.0,
        forecast_s=0.5,
        searches=(
            Search(policy="fifo", trials=4),
            Search(policy=NEEDS.get(policy, policy), trials=8, generator="sobol", curves="last"),
            Search(policy="asha", trials=6, generator="tpe"),
        ),
    )
    log = logged(told)
    state = fold_log(log)
    assert state.end is not None
    first, second, third = (len(group.trials) for group in state.groups)
    assert (first, third) == (4, 6)
    assert second >= 8  # some open further ones that begin like these
    assert {trial.ended for trial in state.groups[0].trials} == {Status.FINISHED}
    assert replay_log(log).difference is None
    again = log[: len(log) // 2]
    told.resume(log[: len(log) // 2], remember=again.extend)
    assert again == log


@pytest.mark.parametrize("slots", [1, 2, 5])
def test_a_free_slot_goes_to_the_study_with_the_least_slot_time(slots: int) -> None:
    done = on_families(("fifo", "a", 30), ("asha", "b", 300), ("fifo", "c", 30), slots=slots)
    used, running = [0.0] * 3, dict[int, tuple[int, float]]()
    whose: dict[int, int] = {}
    now = 0.0
    launches = 0
    for step in done.steps:
        now = max(now, step.event.at)
        if isinstance(step.event, e.Ended):
            group, since = running.pop(step.event.attempt)
            used[group] += now - since
        for decision in step.decisions:
            if isinstance(decision, d.Close):  # this one does not always want a slot any more
                assert launches > 20
                return
            if isinstance(decision, d.Open):
                whose[decision.trial] = decision.group
            if isinstance(decision, d.Launch):
                until_now = list(used)
                for group, since in running.values():
                    until_now[group] += now - since
                group = whose[decision.trial]
                assert until_now[group] <= min(until_now) + 1e-6
                running[decision.attempt] = group, now
                launches += 1


def test_before_any_use_slots_are_dealt_out_in_turn() -> None:
    done = on_families(("fifo", "a", 9), ("asha", "b", 9), ("median", "c", 9), slots=7)
    first = [trial.group for trial in done.state.trials[:7]]
    assert first == [0, 1, 2, 0, 1, 2, 0]


def test_a_study_that_reaches_its_target_ends_alone_and_others_go_on() -> None:
    low, high = [0.1] * EPOCHS, [0.1, 0.1, 0.3, 0.3, 0.3]
    # The second trains the first's path too, and goes on with it when the first is gone.
    done = played((Fifo(), [low, high]), (Fifo(), [low, high]), targets={0: 0.1334}, slots=2)
    one, other = done.state.groups
    assert one.end is not None
    assert other.end is not None
    assert (one.end.cause, other.end.cause) == (d.EndCause.TARGET, d.EndCause.QUIET)
    assert [trial.status for trial in one.trials] == [Status.STOPPED] * len(one.trials)
    assert [trial.status for trial in other.trials] == [Status.FINISHED] * 2
    assert [list(trial.losses) for trial in other.trials] == [curve(low), curve(high)]
    assert one.now < other.now == done.state.now
    assert done.state.repeats == 0
    assert done.state.end == d.End(cause=d.EndCause.QUIET, why="all 2 studies have ended")


def test_a_study_s_best_is_that_of_its_own_trials() -> None:
    low, high = [0.1] * EPOCHS, [0.3] * EPOCHS
    done = played((Fifo(), [low]), (Fifo(), [high]))
    assert [group.best_loss for group in done.state.groups] == [min(curve(low)), min(curve(high))]
    assert done.state.best_loss == min(curve(low))


class Watching:
    """Runs everything to its end, and writes down whatever it is shown."""

    def __init__(self) -> None:
        self.trials: set[int] = set()
        self.seen: list[str] = []
        self.specs: list[StudySpec] = []

    def see(self, entry: Entry, study: StudyView) -> None:
        self.seen.append(type(entry).__name__)
        self.trials.update(trial.id for trial in (*study.delivered, *study.departed))
        self.trials.update(trial.id for trial in study.trials)
        self.trials.update(study.ready)
        number = getattr(entry, "trial", None)
        if number is not None:
            self.trials.add(number)
        if isinstance(entry, e.Opened):
            self.specs.append(entry.spec)
        assert study.best is None or study.best.id in self.trials

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        self.trials.add(trial.id)
        if trial.epoch == 2 and study.best is not None and trial.id > study.best.id:
            return (d.End(cause=d.EndCause.POLICY, why="it has seen enough"),)
        return ()

    def next(self, study: StudyView) -> Pick | None:
        return Fifo().next(study)

    def admit(self, study: StudyView) -> int | None:
        return None


def test_a_policy_sees_only_its_own_trials_and_may_end_its_own_study() -> None:
    policies = Watching(), Watching()
    rising = [[0.1, *[rate] * 4] for rate in (0.1, 0.2, 0.3)]
    done = played((policies[0], rising), (policies[1], rising[::-1]), slots=3)
    for policy, group in zip(policies, done.state.groups, strict=True):
        assert policy.trials == {trial.id for trial in group.trials}
        assert [spec.name for spec in policy.specs] == [group.spec.name]
        assert isinstance(group.end, d.Leave)
        assert group.end.cause is d.EndCause.POLICY
        assert {"Open", "Reported", "CapacityChanged"} <= set(policy.seen)


class Planned:
    """Asks for each of its trials to stop at its second epoch."""

    see = staticmethod(see_nothing)

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        return [d.Stop(trial=trial.id, why="as planned")] if trial.epoch == 2 else []

    def next(self, study: StudyView) -> Pick | None:
        return Fifo().next(study)

    def admit(self, study: StudyView) -> int | None:
        return 1


def test_a_stopped_trial_withdraws_only_its_own_requests() -> None:
    path = [0.1] * EPOCHS
    done = played((Planned(), [path]), (Fifo(), [path]), slots=2)
    assert [trial.epoch for trial in done.state.trials] == [2, EPOCHS]
    assert done.state.epochs_trained == EPOCHS


def test_a_deadline_ends_all_of_them() -> None:
    done = played(
        (Fifo(), [[0.1] * EPOCHS]), (Fifo(), [[0.2] * EPOCHS]), budget=Budget(deadline_s=3.5)
    )
    assert {group.end.cause for group in done.state.groups if group.end} == {d.EndCause.DEADLINE}
    assert done.state.now == 3.5


# Simulated by the API, and shown

SEARCHES = (
    Search(policy="asha:eta=3", trials=9, curves="last"),
    Search(policy="fifo", generator="sobol", trials=3, target=0.72, name="sure"),
    Search(policy="pop", generator="tpe", trials=5, curves="last"),
)
SIMULATED = Simulation(source="toy:epochs=27", slots=3, share=True, searches=SEARCHES)


def test_searches_that_are_simulated_as_one_replay_and_resume_anywhere() -> None:
    log = logged(SIMULATED)
    assert replay_log(log).difference is None
    for cut in (1, len(log) // 4, len(log) // 2, len(log) - 1):
        again = log[:cut]
        read_simulation(again).resume(log[:cut], remember=again.extend)
        assert again == log


def test_searches_on_a_trace_cost_what_their_different_configs_cost() -> None:
    paths = list(product([0.1, 0.2], repeat=3))
    configs = [schedule(path) for path in paths]
    trace = make_table([curve(path) for path in paths], configs=configs)
    told = Simulation(source="table", share=True, slots=2, save_every_s=0.0)
    halves = (
        Search(policy="fifo", configs=configs[:5]),
        Search(policy="fifo", configs=configs[3:]),
    )
    both = msgspec.structs.replace(told, searches=halves).run(trace=trace)
    once = msgspec.structs.replace(told, policy="fifo").run(trace=trace)
    assert both.trials_finished == 10
    assert both.epochs_trained == once.epochs_trained == 2 + 4 + 8


def test_a_study_shows_the_studies_in_it(paceline: CommandLine, folder_of_three: str) -> None:
    page = msgspec.json.decode(
        paceline("show", "three", "--store", folder_of_three, "--json").out, type=StudyPage
    )
    assert [group.name for group in page.groups] == ["asha-1", "sure", "pop-3"]
    assert sum(group.trials for group in page.groups) == page.study.trials == len(page.trials)
    assert {trial.group for trial in page.trials} == {"asha-1", "sure", "pop-3"}
    best = max(page.groups, key=lambda group: group.best_value or 0.0)
    assert best.best_trial == page.study.best_trial
    said = paceline("show", "three", "--store", folder_of_three).out
    assert "asha:eta=3 | fifo | pop" in said
    assert "sure" in said
    told = paceline("story", "three", "--store", folder_of_three).out
    assert "no more trials of 'asha-1' are opened" in told
    assert "study 'pop-3' ends after 5 trials" in told
    assert "opened for 'asha-1'" in paceline("story", "three", "0", "--store", folder_of_three).out
    assert "identical" in paceline("replay", "three", "--store", folder_of_three).out


@pytest.fixture
def folder_of_three(tmp_path: Path) -> str:
    """Return a store with the three simulated searches in it."""
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    keeper = NewStudyLog(url)
    SIMULATED.run(name="three", remember=keeper.remember)
    keeper.close()
    return url


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"searches": SEARCHES[:1]}, "only one study was given"),
        ({"searches": (SEARCHES[1], SEARCHES[1])}, "need different names"),
        ({"target": 0.5}, "each search has its own target"),
    ],
)
def test_invalid_searches_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(pl.SpecError, match=words):
        msgspec.structs.replace(SIMULATED, **changes).run()


def test_a_search_on_a_trace_takes_configs_and_no_generator() -> None:
    trace = make_table([[1.0], [2.0]])
    told = Simulation(source="table", searches=(Search(), Search(generator="random")))
    with pytest.raises(pl.SpecError, match="its configs are recorded"):
        told.run(trace=trace)
