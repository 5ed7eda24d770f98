"""Named schedules: their values, their domains, and what they share."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import paceline as pl
from paceline.core.errors import SpecError
from paceline.core.space import Space
from paceline.core.text import format_config
from paceline.plan.settings import (
    canonicalize,
    config_key,
    is_changing,
    is_constant,
    list_stretches,
    setting_at,
    splice,
    value_at,
)
from paceline.plan.tree import Tree, last_shared_epoch

EPOCHS = 24
# Numbers as people write them: a product of two of them has no more than twelve digits.
rates = st.integers(1, 999).map(lambda n: n / 1000)
factors = st.integers(1, 99).map(lambda n: n / 100)
spans = st.integers(1, EPOCHS)


def values(schedule: Any, epochs: int = EPOCHS) -> list[Any]:  # noqa: ANN401
    """Return what a schedule puts in force in each epoch."""
    config = canonicalize({"lr": schedule})
    return [setting_at(config, epoch)["lr"] for epoch in range(epochs)]


def shares(*schedules: Any) -> bool:  # noqa: ANN401
    """Say whether trials with these schedules are one path of the tree."""
    paths = [list_stretches(canonicalize({"lr": each}), EPOCHS) for each in schedules]
    return all(path == paths[0] for path in paths)


def test_each_schedule_has_the_values_its_name_says() -> None:
    assert values(pl.step_decay(1.0, drops=[1, 3], factor=0.1), 5) == [1.0, 0.1, 0.1, 0.01, 0.01]
    assert values(pl.step_decay(32, every=2, factor=2), 5) == [32, 32, 64, 64, 128]
    assert values(pl.exponential(1.0, 0.5), 4) == [1.0, 0.5, 0.25, 0.125]
    assert values(pl.linear(0.0, 1.0, 4), 6) == [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]
    assert values(pl.cosine(1.0, 4), 6) == [1.0, 0.853553390593, 0.5, 0.146446609407, 0.0, 0.0]
    assert values(pl.cosine(1.0, 2, floor=0.2, restarts=True), 4) == [1.0, 0.6, 1.0, 0.6]
    assert values(pl.cyclic(0.0, 1.0, 4), 6) == [0.0, 0.5, 1.0, 0.5, 0.0, 0.5]
    assert values(pl.warmup(2.0, 4, factor=0.5), 6) == [1.0, 1.25, 1.5, 1.75, 2.0, 2.0]
    assert values(pl.each_epoch([3, 3, 1]), 4) == [3, 3, 1, 1]


def test_whole_numbers_stay_whole_under_whole_factors() -> None:
    assert all(type(size) is int for size in values(pl.step_decay(32, drops=[5], factor=2)))


@given(rates, factors, st.lists(st.integers(1, EPOCHS), max_size=3, unique=True))
def test_a_step_decay_shares_with_its_pieces_and_its_list(
    start: float, factor: float, drops: list[int]
) -> None:
    drops.sort()
    table = [start * factor ** sum(drop <= epoch for drop in drops) for epoch in range(EPOCHS)]
    pieces = pl.piecewise(
        [(0, start), *((drop, start * factor**n) for n, drop in enumerate(drops, 1))]
    )
    assert shares(
        pl.step_decay(start, drops=drops, factor=factor),
        pieces,
        pl.each_epoch(table),
        pl.each_epoch(lambda epoch: table[epoch], EPOCHS),
    )


@given(rates, factors, spans)
def test_drops_at_equal_distances_share_with_every(start: float, factor: float, every: int) -> None:
    drops = list(range(every, EPOCHS, every))
    assert shares(
        pl.step_decay(start, every=every, factor=factor),
        pl.step_decay(start, drops=drops, factor=factor),
    )


@given(rates, factors)
def test_an_exponential_shares_with_a_drop_after_every_epoch(start: float, factor: float) -> None:
    assert shares(pl.exponential(start, factor), pl.step_decay(start, every=1, factor=factor))


@given(rates, factors, spans)
def test_a_warm_constant_shares_with_a_line_that_ends_in_it(
    rate: float, factor: float, epochs: int
) -> None:
    assert shares(
        pl.warmup(rate, epochs, factor=factor),
        pl.linear(rate * factor, rate, epochs),
        pl.each_epoch(values(pl.linear(rate * factor, rate, epochs))),
    )


@given(rates, spans, spans)
def test_a_warm_schedule_is_the_cold_one_once_it_is_warm(
    rate: float, epochs: int, fall: int
) -> None:
    cold = pl.cosine(rate, fall, floor=0.5)
    assert values(pl.warmup(cold, epochs))[epochs:] == values(cold)[epochs:]


@given(st.integers(0, EPOCHS))
def test_schedules_share_up_to_the_epoch_at_which_they_part(at: int) -> None:
    one = pl.cosine(0.3, EPOCHS)
    other = [value if epoch < at else 1.0 for epoch, value in enumerate(values(one))]
    tree: Tree[Any, Any] = Tree(EPOCHS)
    leaves = [
        tree.insert(list_stretches(canonicalize({"lr": each}), EPOCHS))
        for each in (one, pl.each_epoch(other))
    ]
    assert last_shared_epoch(*leaves) == at


def test_every_argument_may_be_a_dimension_at_any_depth() -> None:
    space = Space(
        {
            "lr": pl.warmup(
                pl.step_decay(
                    pl.loguniform(1e-3, 1.0),
                    drops=[pl.randint(2, 5), 9],
                    factor=pl.choice([0.1, 0.3]),
                ),
                pl.randint(1, 4),
                factor=0.5,
            ),
            "optimizer": {"kind": "sgd", "momentum": pl.linear(pl.uniform(0.5, 0.8), 0.9, 5)},
            "batch": pl.choice([pl.step_decay(32, every=pl.randint(2, 4), factor=2), 64]),
        }
    )
    assert len(space.dimensions) == 7
    drawn = random.Random(3)
    for _ in range(20):
        config = canonicalize(space.fill(lambda dimension: dimension.at(drawn.random())))
        assert not is_constant(config)
        setting = setting_at(config, 20)
        assert setting["optimizer"] == {"kind": "sgd", "momentum": 0.9}
        assert is_constant(setting)
        assert canonicalize(config) == config


def test_an_epoch_of_a_smooth_schedule_goes_straight_to_the_next_value() -> None:
    lr = canonicalize({"lr": pl.smooth(pl.linear(0.0, 1.0, 2))})["lr"]
    assert [value_at(lr, 0, progress) for progress in (0.0, 0.5, 1.0)] == [0.0, 0.25, 0.5]
    assert [value_at(lr, epoch) for epoch in range(4)] == [0.0, 0.5, 1.0, 1.0]
    assert [value_at(lr, 5, progress) for progress in (0.0, 1.0)] == [1.0, 1.0]


def test_schedules_equal_only_at_the_beginnings_of_epochs_share_nothing() -> None:
    line = pl.linear(0.1, 1.0, 8)
    assert not shares(pl.smooth(line), line)
    # Smooth or not, it is the same once it does not change any more; and a constant never does.
    ends = [
        list_stretches(canonicalize({"lr": each}), EPOCHS)[-1] for each in (pl.smooth(line), line)
    ]
    assert ends[0] == ends[1]
    assert shares(pl.smooth(0.1), 0.1)
    assert shares(pl.smooth(pl.warmup(1.0, 8, factor=0.1)), pl.smooth(line))


def test_a_fork_goes_on_from_a_schedule_with_another() -> None:
    base = canonicalize({"lr": pl.smooth(pl.cosine(1.0, 8)), "wd": 1})
    forked = splice(base, 3, {"lr": pl.exponential(0.5, 0.5)}, 8)
    before = [setting_at(base, epoch)["lr"] for epoch in range(3)]
    after = values(pl.exponential(0.5, 0.5), 8)[3:]
    assert [setting_at(forked, epoch)["lr"] for epoch in range(8)] == before + after
    assert forked == canonicalize(forked)


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (lambda: pl.step_decay(0.1), "give one of them"),
        (lambda: pl.step_decay(0.1, drops=[3], every=2), "give one of them"),
        (lambda: pl.step_decay(0.1, drops=[0.5]), "a list of whole epochs"),
        (lambda: pl.step_decay(0.1, every=0), "1 or more"),
        (lambda: pl.exponential("fast", 0.5), "a finite number"),
        (lambda: pl.linear(0.1, math.inf, 5), "a finite number"),
        (lambda: pl.cosine(0.1, 2.5), "a whole number of epochs"),
        (lambda: pl.cosine(0.1, 5, restarts=3), "true or false"),
        (lambda: pl.warmup(pl.piecewise([(0, "sgd"), (3, "adam")]), 5), "a schedule of numbers"),
        (lambda: pl.warmup(pl.smooth(pl.cosine(0.1, 5)), 5), "a schedule of numbers"),
        (lambda: pl.piecewise([(0, pl.cosine(0.1, 5)), (5, 0.1)]), "a piece holds a value"),
        (lambda: canonicalize({"lr": {"each_epoch": "cosinus"}}), "cosine"),
        (lambda: canonicalize({"lr": {"each_epoch": ["cosine"]}}), "schedule"),
        (lambda: canonicalize({"lr": {"each_epoch": "linear", "start": 1}}), "needs start, end"),
        (lambda: values(pl.exponential(10.0, 10.0), 400), "another schedule"),
        (lambda: values(pl.exponential(1e300, 1e300), 2), "another schedule"),
    ],
)
def test_a_schedule_that_cannot_be_followed_is_refused(write: Any, says: str) -> None:  # noqa: ANN401
    with pytest.raises(SpecError, match=says):
        write()


def test_a_drawn_argument_is_checked_when_it_is_known() -> None:
    space = Space({"lr": pl.cosine(0.1, pl.uniform(1, 5))})
    with pytest.raises(SpecError, match="a whole number of epochs"):
        canonicalize(space.fill(lambda dimension: dimension.at(0.3)))


def test_a_rule_is_shown_as_it_was_written_and_stays_small_in_the_log() -> None:
    config = canonicalize({"lr": pl.warmup(pl.cosine(0.1, 90), 5)})
    assert is_changing(config["lr"])
    cosine = "cosine(epochs=90, floor=0, restarts=False, start=0.1)"
    assert format_config(config) == f"lr=warmup(epochs=5, factor=0.1, schedule={cosine})"
    assert len(config_key(config)) < 200


def test_nested_and_smooth_schedules_are_described_in_words() -> None:
    config = canonicalize(
        {"lr": pl.smooth(pl.linear(0.0, 1.0, 4)), "opt": {"beta": 0.9, "name": "a"}}
    )
    assert format_config(setting_at(config, 1)) == "lr=0.25 to 0.5, opt={beta=0.9, name=a}"


def test_a_hyperparameter_may_be_named_like_a_schedule() -> None:
    assert is_constant(canonicalize({"each_epoch": 3, "piecewise": "no"}))
