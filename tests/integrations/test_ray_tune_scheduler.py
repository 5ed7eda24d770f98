"""Trials that somebody else runs, judged by our policies."""

from __future__ import annotations

from collections import deque

import pytest

from paceline.api.registry import build, parse_part
from paceline.core.values import Budget, Part, StudySpec, Target
from paceline.integrations.ray_tune_scheduler import Comers, Outside
from paceline.machine.machine import Brains, Machine

EPOCHS = 9


class Tuner:
    """Another tuner: it begins trials in their order on its own slots, and asks about each report.

    Trial k's loss is k at every epoch. It resumes whom the study wants, before it begins new ones.
    """

    def __init__(self, policy: str, trials: int, slots: int, budget: Budget | None = None) -> None:
        part = parse_part(policy)
        allocator = build("allocator", Part("fixed"))
        brains = Brains(policy=build("policy", part), generator=Comers(), allocator=allocator)
        self.clock = 0.0
        self.study = Outside(
            Machine(brains),
            StudySpec(
                name="tuner",
                metric="loss",
                mode="min",
                epochs=EPOCHS,
                policy=part,
                generator=Part("comers"),
                budget=budget or Budget(),
                retries=0,
            ),
            build("curve model", Part("last")),
            lambda: self.clock,
        )
        self.pending = deque(str(trial) for trial in range(trials))
        self.running: list[str] = []
        self.paused: set[str] = set()
        self.stopped: set[str] = set()
        self.epochs = dict.fromkeys(self.pending, 0)
        for name in self.pending:
            self.study.come(name, {"trial": int(name)})
        self._run(slots)

    def _run(self, slots: int) -> None:
        while self.study.why is None:
            wanted = [name for name in self.study.wanted() if name in self.paused]
            while len(self.running) < slots and (wanted or self.pending):
                name = wanted.pop(0) if wanted else self.pending.popleft()
                self.paused.discard(name)
                self.running.append(name)
            if not self.running:
                self.study.close()
                if not set(self.study.wanted()) & self.paused:
                    return
                continue
            self._report(self.running[0])

    def _report(self, name: str) -> None:
        self.running.remove(name)
        self.epochs[name] += 1
        self.clock += 1.0
        answer = self.study.reported(name, self.epochs[name], {"loss": float(name)}, 1.0)
        if answer == "go on":
            self.running.append(name)
        else:
            (self.paused if answer == "pause" else self.stopped).add(name)
        for gone in self.study.dismissed():
            self.paused.discard(gone)
            self.stopped.add(gone)


def test_whoever_judges_nothing_lets_all_trials_finish() -> None:
    tuner = Tuner("fifo", trials=5, slots=2)
    assert tuner.epochs == dict.fromkeys("01234", EPOCHS)
    assert tuner.stopped == set("01234")
    assert tuner.study.why == "nothing is left to run: 5 trials were opened"


@pytest.mark.parametrize("slots", [1, 2, 9])
def test_halving_pauses_and_promotes_the_best(slots: int) -> None:
    tuner = Tuner("sha:eta=3,size=9", trials=9, slots=slots)
    assert sorted(tuner.epochs.values()) == [1] * 6 + [3] * 2 + [9]
    assert tuner.epochs["0"] == EPOCHS


def test_a_stopping_policy_stops_what_is_worse_than_what_came_before() -> None:
    tuner = Tuner("asha_stop:eta=3", trials=9, slots=1)
    assert tuner.epochs["0"] == EPOCHS
    assert sum(tuner.epochs.values()) < 9 * EPOCHS
    assert tuner.paused == set()


def test_the_target_stops_everybody() -> None:
    tuner = Tuner("fifo", trials=9, slots=3, budget=Budget(target=Target(2.0)))
    assert tuner.study.why is not None
    assert "the target is 2" in tuner.study.why


def test_the_deadline_stops_everybody_at_the_next_report() -> None:
    tuner = Tuner("fifo", trials=9, slots=3, budget=Budget(deadline_s=10.0))
    assert tuner.clock == 10.0
    assert tuner.study.why == "the deadline of 10 s has come"


def test_a_trial_that_fails_is_given_up_and_one_that_returns_has_finished() -> None:
    tuner = Tuner("fifo", trials=0, slots=1)
    for name in "abc":
        tuner.study.come(name, {})
    assert tuner.study.reported("a", 1, {"loss": 1.0}, 1.0) == "go on"
    tuner.study.left("a", failed=False)
    assert tuner.study.reported("b", 1, {"loss": 0.5}, 1.0) == "go on"
    tuner.study.left("b", failed=True)
    assert tuner.study.reported("c", 1, {"loss": 0.1}, 1.0) == "go on"


def test_epochs_that_are_trained_again_after_a_restart_change_nothing() -> None:
    tuner = Tuner("median:grace=9", trials=0, slots=1)
    tuner.study.come("a", {})
    for epoch in (1, 2, 1, 2, 3):
        assert tuner.study.reported("a", epoch, {"loss": 1.0}, 1.0) == "go on"
