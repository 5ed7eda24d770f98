"""HyperSched where trials may be wide: which paused trials continue, and in how many attempts."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from small_studies import SmallStudy, make_table

from paceline.allocation.fixed import Fixed
from paceline.allocation.leaders import Softmax, Top, Uniform
from paceline.core.decisions import Cut
from paceline.core.values import Budget, Status, Target
from paceline.policies.hypersched import HyperSched

if TYPE_CHECKING:
    from paceline.core.ports import Allocator
    from paceline.testing.simulations import SimulatedStudy


def count_starts(played: SimulatedStudy) -> dict[int, int]:
    """Return the number of launches for each trial."""
    return dict(Counter(launch.trial for launch in played.launches))


def test_hypersched_does_not_cut_a_trial_that_it_would_continue_at_once() -> None:
    # At epoch 4, trial 3 is worse than the best half of those before it, and is of the best half
    # with it.
    curves = [[loss] * 8 for loss in (5.0, 4.0, 1.0, 3.0, 6.0, 6.0)]
    played = SmallStudy(make_table(curves), HyperSched(eta=2, drain=True), slots=2).run()
    assert 3 not in [cut.trial for cut in played.list_entries(Cut)]
    assert count_starts(played)[3] == 1


@pytest.mark.parametrize("allocator", [Fixed(), Uniform(), Top(), Softmax()])
def test_hypersched_continues_a_lone_paused_trial_in_one_attempt(allocator: Allocator) -> None:
    curves = [[loss] * 12 for loss in (1.0, 2.0, 3.0)]
    played = SmallStudy(
        make_table(curves),
        HyperSched(eta=2, first=1),
        allocator=allocator,
        slots=1,
        span=4,
        cluster={"setup_s": 0.3, "capacity": ((2.0, 4),)},
        budget=Budget(target=Target(0.0)),
    ).run()
    assert all(trial.status is Status.FINISHED for trial in played.state.trials)
    # Cut at its first rung, continued once; a resize may come to that.
    assert max(count_starts(played).values()) <= 3


def test_paused_trials_that_hypersched_continues_share_the_slots() -> None:
    """They do not run one after the other, each on all slots."""
    curves = [[float(number)] * 12 for number in range(9)]
    played = SmallStudy(
        make_table(curves),
        HyperSched(eta=2, first=1),
        allocator=Uniform(),
        slots=4,
        span=4,
        cluster={"setup_s": 0.5},
        budget=Budget(target=Target(-1.0)),
    ).run()
    assert all(trial.status is Status.FINISHED for trial in played.state.trials)
    continued = [launch for launch in played.launches if "no new trials come" in launch.why]
    assert [launch.width for launch in continued[:4]] == [1.0] * 4
