"""Spaces and the generators that draw from them."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.errors import SpecError
from paceline.core.space import (
    Space,
    choice,
    grid,
    lograndint,
    loguniform,
    quniform,
    randint,
    uniform,
)

shares = st.floats(0, 1)


@given(shares)
def test_every_share_gives_a_value_inside_its_domain(share: float) -> None:
    space = Space(
        {
            "a": uniform(-1, 2),
            "b": loguniform(1e-4, 1),
            "c": quniform(0.1, 1.05, 0.25),
            "d": randint(-3, 4),
            "e": lograndint(1, 1000),
            "f": choice(["x", None, {"y": 1}]),
            "g": grid([1, 2]),
        }
    )
    a, b, c, d, e, f, g = (dimension.at(share) for dimension in space.dimensions)
    assert -1 <= a <= 2
    assert 1e-4 <= b <= 1
    assert c in (0.25, 0.5, 0.75, 1.0)
    assert d in range(-3, 4)
    assert isinstance(e, int)
    assert 1 <= e < 1000
    assert f in ("x", None, {"y": 1})
    assert g in (1, 2)


def test_the_ends_are_where_they_should_be() -> None:
    (log,) = Space({"x": loguniform(0.01, 100)}).dimensions
    assert math.isclose(log.at(0.0), 0.01)
    assert math.isclose(log.at(0.5), 1.0)
    assert math.isclose(log.at(1.0), 100.0)
    (whole,) = Space({"x": randint(0, 3)}).dimensions
    assert [whole.at(share) for share in (0.0, 0.34, 0.99, 1.0)] == [0, 1, 2, 2]


def test_a_domain_may_stand_anywhere_in_a_config() -> None:
    template = {
        "lr": {"piecewise": [[0, loguniform(0.1, 1)], [30, 0.01]]},
        "net": {"width": choice([32, 64]), "depth": 3},
        "fixed": [1, uniform(0, 1)],
    }
    space = Space(template)
    assert [each.name for each in space.dimensions] == ["fixed.1", "lr.piecewise.0.1", "net.width"]
    config = space.config([0.5, 0.2, 64])
    assert config == {
        "lr": {"piecewise": [[0, 0.2], [30, 0.01]]},
        "net": {"width": 64, "depth": 3},
        "fixed": [1, 0.5],
    }
    assert template["net"] == {"width": choice([32, 64]), "depth": 3}  # untouched


@pytest.mark.parametrize(
    ("domain", "complaint"),
    [
        (uniform(1, 1), "the low end must be below"),
        (uniform(0, math.inf), "needs finite numbers"),
        ({"uniform": [1]}, "needs a low and a high end"),
        ({"uniform": ["a", "b"]}, "needs finite numbers"),
        (loguniform(0, 1), "no logarithm"),
        (randint(5, 2), "the low end must be below"),
        ({"randint": [0.5, 2]}, "needs whole numbers"),
        (quniform(0, 1, 0), "needs a positive step"),
        ({"quniform": [0, 1]}, "and a step"),
        (quniform(0.4, 0.45, 0.3), "holds no multiple"),
        (choice([]), "nothing to choose from"),
        ({"grid_search": [1, 2]}, "did you mean 'grid'"),
    ],
)
def test_an_invalid_domain_is_refused(domain: Any, complaint: str) -> None:  # noqa: ANN401
    with pytest.raises(SpecError, match=complaint):
        Space({"x": domain})


def test_an_empty_space_is_refused() -> None:
    with pytest.raises(SpecError, match="empty"):
        Space({})


def test_options_are_listed_if_there_are_finitely_many() -> None:
    space = Space({"a": choice([1, 2]), "b": randint(0, 3), "c": uniform(0, 1)})
    assert [each.options for each in space.dimensions] == [(1, 2), (0, 1, 2), None]


@given(st.integers(1, 50), st.integers(1, 60))
def test_multiples_are_spaced_by_the_step(steps: int, width: int) -> None:
    (dimension,) = Space({"x": quniform(0, width, width / steps)}).dimensions
    found = sorted({dimension.at(share / 500) for share in range(501)})
    assert all(math.isclose(b - a, width / steps) for a, b in pairwise(found))
