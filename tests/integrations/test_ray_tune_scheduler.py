"""Trials that another tuner runs, under the policies of a study."""

from __future__ import annotations

from collections import deque

import pytest

from paceline.api.registry import build_part, parse_part
from paceline.core.values import Budget, Part, StudySpec, Target
from paceline.integrations.ray_tune_scheduler import ExternalGenerator, ExternalStudy
from paceline.machine.decider import Parts
from paceline.machine.machine import Machine

EPOCHS = 9


class Tuner:
    """Another tuner: it starts trials in order on its own slots, and passes on each report.

    Trial k's loss is k at every epoch. Trials that the study wants to resume go before new ones.
    """

    def __init__(self, policy: str, trials: int, slots: int, budget: Budget | None = None) -> None:
        part = parse_part(policy)
        allocator = build_part("allocator", Part("fixed"))
        parts = Parts(
            policy=build_part("policy", part), generator=ExternalGenerator(), allocator=allocator
        )
        self.clock = 0.0
        self.study = ExternalStudy(
            Machine(parts),
            StudySpec(
                name="tuner",
                metric="loss",
                mode="min",
                epochs=EPOCHS,
                policy=part,
                generator=Part("external"),
                budget=budget or Budget(),
                retries=0,
            ),
            build_part("curve model", Part("last")),
            lambda: self.clock,
        )
        self.pending = deque(str(trial) for trial in range(trials))
        self.running: list[str] = []
        self.paused: set[str] = set()
        self.stopped: set[str] = set()
        self.epochs = dict.fromkeys(self.pending, 0)
        for name in self.pending:
            self.study.add_trial(name, {"trial": int(name)})
        self._run(slots)

    def _run(self, slots: int) -> None:
        while self.study.end_reason is None:
            wanted = [name for name in self.study.list_wanted() if name in self.paused]
            while len(self.running) < slots and (wanted or self.pending):
                name = wanted.pop(0) if wanted else self.pending.popleft()
                self.paused.discard(name)
                self.running.append(name)
            if not self.running:
                self.study.end_proposals()
                if not set(self.study.list_wanted()) & self.paused:
                    return
                continue
            self._report(self.running[0])

    def _report(self, name: str) -> None:
        self.running.remove(name)
        self.epochs[name] += 1
        self.clock += 1.0
        action = self.study.report(name, self.epochs[name], {"loss": float(name)}, 1.0)
        if action == "continue":
            self.running.append(name)
        else:
            (self.paused if action == "pause" else self.stopped).add(name)
        for stopped in self.study.take_stopped():
            self.paused.discard(stopped)
            self.stopped.add(stopped)


def test_fifo_lets_all_trials_finish() -> None:
    tuner = Tuner("fifo", trials=5, slots=2)
    assert tuner.epochs == dict.fromkeys("01234", EPOCHS)
    assert tuner.stopped == set("01234")
    assert tuner.study.end_reason == "nothing is left to run: 5 trials were opened"


@pytest.mark.parametrize("slots", [1, 2, 9])
def test_halving_pauses_and_promotes_the_best(slots: int) -> None:
    tuner = Tuner("sha:eta=3,size=9", trials=9, slots=slots)
    assert sorted(tuner.epochs.values()) == [1] * 6 + [3] * 2 + [9]
    assert tuner.epochs["0"] == EPOCHS


def test_a_stopping_policy_stops_trials_worse_than_earlier_ones() -> None:
    tuner = Tuner("asha_stop:eta=3", trials=9, slots=1)
    assert tuner.epochs["0"] == EPOCHS
    assert sum(tuner.epochs.values()) < 9 * EPOCHS
    assert tuner.paused == set()


def test_the_target_stops_all_trials() -> None:
    tuner = Tuner("fifo", trials=9, slots=3, budget=Budget(target=Target(2.0)))
    assert tuner.study.end_reason is not None
    assert "the target is 2" in tuner.study.end_reason


def test_the_deadline_stops_all_trials_at_the_next_report() -> None:
    tuner = Tuner("fifo", trials=9, slots=3, budget=Budget(deadline_s=10.0))
    assert tuner.clock == 10.0
    assert tuner.study.end_reason == "the deadline of 10 s has come"


def test_a_trial_ends_as_failed_or_finished_and_frees_its_slot() -> None:
    tuner = Tuner("fifo", trials=0, slots=1)
    for name in "abc":
        tuner.study.add_trial(name, {})
    assert tuner.study.report("a", 1, {"loss": 1.0}, 1.0) == "continue"
    tuner.study.end_trial("a", failed=False)
    assert tuner.study.report("b", 1, {"loss": 0.5}, 1.0) == "continue"
    tuner.study.end_trial("b", failed=True)
    assert tuner.study.report("c", 1, {"loss": 0.1}, 1.0) == "continue"


def test_epochs_that_are_trained_again_after_a_restart_change_nothing() -> None:
    tuner = Tuner("median:grace=9", trials=0, slots=1)
    tuner.study.add_trial("a", {})
    for epoch in (1, 2, 1, 2, 3):
        assert tuner.study.report("a", epoch, {"loss": 1.0}, 1.0) == "continue"
