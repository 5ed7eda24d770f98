"""Configs, schedules and the tree: what is shared, and what is equal however it was written."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.errors import SpecError
from paceline.plan.settings import (
    canonicalize,
    config_key,
    each_epoch,
    is_constant,
    list_stretches,
    piecewise,
    setting_at,
    splice,
)
from paceline.plan.tree import Node, Tree, find_node, last_shared_epoch, path_to_root

EPOCHS = 8
values = st.sampled_from([0.1, 0.2, 0.3])
tables = st.lists(values, min_size=EPOCHS, max_size=EPOCHS)


def test_values_are_rounded_to_twelve_digits() -> None:
    assert canonicalize({"lr": 0.1 + 0.2}) == {"lr": 0.3}
    assert canonicalize({"b": 1, "a": (1.0, [2])}) == {"a": [1.0, [2]], "b": 1}
    assert list(canonicalize({"b": 1, "a": 2})) == ["a", "b"]


def test_numbers_of_other_libraries_become_plain_ones() -> None:
    class Scalar:
        def item(self) -> float:
            return 0.25

    assert canonicalize({"lr": Scalar()}) == {"lr": 0.25}


@pytest.mark.parametrize(
    "config",
    [
        {"lr": math.nan},
        {"lr": math.inf},
        {"": 1},
        {"f": object()},
        {"f": {1, 2}},
        {"lr": {"piecewise": []}},
        {"lr": {"piecewise": [[1, 0.1]]}},
        {"lr": {"piecewise": [[0, 0.1], [5, 0.2], [5, 0.3]]}},
        {"lr": {"piecewise": [[0, 0.1], [5, 0.1], [3, 0.3]]}},
        {"lr": {"piecewise": [[0, 0.1]], "more": 1}},
        {"lr": {"piecewise": "abc"}},
        {"lr": {"piecewise": [[0.5, 1]]}},
    ],
)
def test_values_that_cannot_be_trained_with_or_logged_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        canonicalize(config)


def test_a_schedule_is_its_shortest_list_of_pieces() -> None:
    assert piecewise([(0, 1), (3, 1), (5, 2)]) == {"piecewise": [[0, 1], [5, 2]]}
    assert piecewise([(0, 0.1)]) == 0.1
    # 1, 1.0 and True are different settings to a training function.
    assert piecewise([(0, 1), (3, 1.0), (5, True)]) == {"piecewise": [[0, 1], [3, 1.0], [5, True]]}
    with pytest.raises(SpecError, match="empty"):
        each_epoch(lambda epoch: epoch, 0)


@given(tables)
def test_schedules_that_agree_epoch_by_epoch_are_equal_however_written(table: list[float]) -> None:
    by_function = each_epoch(lambda epoch: table[epoch], EPOCHS)
    by_pieces = canonicalize({"lr": {"piecewise": [[at, lr] for at, lr in enumerate(table)]}})["lr"]
    assert by_function == by_pieces
    config = canonicalize({"lr": by_function})
    assert [setting_at(config, epoch)["lr"] for epoch in range(EPOCHS)] == table
    assert is_constant(config) == (len(set(table)) == 1)
    ends = [until for until, _ in list_stretches(config, EPOCHS)]
    changes = [e for e in range(1, EPOCHS) if table[e] != table[e - 1]]
    assert ends == [*changes, EPOCHS]


@given(tables, tables, st.integers(0, EPOCHS))
def test_a_spliced_config_is_the_old_one_up_to_there_and_then_the_new(
    old: list[float], new: list[float], at: int
) -> None:
    base = canonicalize({"lr": each_epoch(lambda e: old[e], EPOCHS), "wd": 1})
    changed = splice(base, at, {"lr": each_epoch(lambda e: new[e], EPOCHS)}, EPOCHS)
    seen = [setting_at(changed, epoch)["lr"] for epoch in range(EPOCHS)]
    assert seen == [*old[:at], *new[at:]]
    assert changed["wd"] == 1
    assert changed == canonicalize(changed)


def test_a_value_the_source_does_not_have_holds_from_the_start() -> None:
    assert splice({"lr": 1}, 3, {"wd": 2}, EPOCHS) == {"lr": 1, "wd": 2}


class Walk:
    """A trial, as far as the tree cares."""

    epoch = 0
    goal = EPOCHS


class Run:
    """An attempt, as far as the tree cares."""

    epoch = 0
    saves_here = False


@given(st.lists(st.tuples(tables, tables), min_size=1, max_size=7))
def test_two_trials_share_exactly_the_epochs_over_which_all_settings_agree(
    drawn: list[tuple[list[float], list[float]]],
) -> None:
    tree: Tree[Walk, Run] = Tree(EPOCHS)
    leaves: list[Node[Walk, Run]] = []
    for lr, wd in drawn:
        config = canonicalize(
            {
                "lr": each_epoch(lambda e, lr=lr: lr[e], EPOCHS),  # type: ignore[misc]
                "wd": each_epoch(lambda e, wd=wd: wd[e], EPOCHS),  # type: ignore[misc]
            }
        )
        leaves.append(tree.insert(list_stretches(config, EPOCHS)))
    paths = [list(zip(lr, wd, strict=True)) for lr, wd in drawn]
    for one, a in zip(leaves, paths, strict=True):
        for other, b in zip(leaves, paths, strict=True):
            agree = next((e for e in range(EPOCHS) if a[e] != b[e]), EPOCHS)
            assert last_shared_epoch(one, other) == agree
            for epoch in range(1, EPOCHS + 1):
                same = find_node(one, epoch).origin == find_node(other, epoch).origin
                assert same == (epoch <= agree)
    # The tree holds each distinct epoch once.
    distinct = {tuple(path[: epoch + 1]) for path in paths for epoch in range(EPOCHS)}
    assert sum(node.end - node.start for node in tree.nodes()) == len(distinct)
    for leaf in leaves:
        assert path_to_root(leaf)[0].end == EPOCHS
        assert path_to_root(leaf)[-1].start == 0


def test_keys_are_equal_exactly_if_settings_are() -> None:
    assert config_key(canonicalize({"a": 1, "b": 0.3})) == config_key(
        canonicalize({"b": 0.1 + 0.2, "a": 1})
    )
    assert config_key({"a": 1}) != config_key({"a": 1.0}) != config_key({"a": True})


def test_two_equal_domains_of_a_schedule_are_two_dimensions() -> None:
    domain = {"uniform": [0.0, 1.0]}
    assert piecewise([(0, domain), (30, domain)]) == {"piecewise": [[0, domain], [30, domain]]}
