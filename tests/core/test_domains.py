"""Domains that training functions ask for: which values they hold, and how they are drawn."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.codec import decode_step, encode_step
from paceline.core.decisions import Step
from paceline.core.domains import (
    ChoiceDomain,
    Domain,
    FloatDomain,
    IntDomain,
    is_same_form,
    make_choices,
)
from paceline.core.errors import LogError
from paceline.core.events import Suggested

DOMAINS: list[Domain] = [
    FloatDomain(low=-1.0, high=2.0),
    FloatDomain(low=1e-9, high=1e3, log=True),
    FloatDomain(low=0.1, high=1.05, step=0.3),
    FloatDomain(low=0.5, high=0.5),
    IntDomain(low=-3, high=4),
    IntDomain(low=1, high=1000, log=True),
    IntDomain(low=8, high=63, step=8),
    ChoiceDomain(choices=("a", None, 1, True, 1.0, [64, 64])),
]


@pytest.mark.parametrize("domain", DOMAINS, ids=str)
@given(share=st.floats(0.0, 1.0, exclude_max=True))
def test_a_drawn_value_is_in_its_domain(domain: Domain, share: float) -> None:
    value = domain.at(share)
    assert value is None or domain.find(value) == value
    if not isinstance(domain, ChoiceDomain):
        assert domain.low <= domain.at(share) <= domain.high


def test_steps_count_from_the_lower_limit() -> None:
    domain = FloatDomain(low=0.1, high=1.05, step=0.3)
    drawn = {domain.at(share / 100) for share in range(100)}
    assert drawn == {0.1, 0.4, 0.7, 1.0}
    assert domain.find(0.5) is None
    assert {IntDomain(low=8, high=31, step=8).at(share / 100) for share in range(100)} == {
        *(8, 16, 24)
    }


def test_both_ends_of_a_logarithmic_range_of_whole_numbers_are_drawn() -> None:
    domain = IntDomain(low=1, high=8, log=True)
    assert {domain.at(share / 1000) for share in range(1000)} == set(range(1, 9))


def test_a_value_at_a_limit_is_in_the_domain_although_configs_are_rounded() -> None:
    domain = FloatDomain(low=0.0, high=0.1234567890123456)
    assert domain.find(0.123456789013) == domain.high
    assert domain.find(0.1234568) is None


def test_choices_are_told_apart_by_their_type() -> None:
    domain = make_choices((1, True, 1.0, None, (64, 64)))
    assert [domain.index(value) for value in (1, True, 1.0, None, [64, 64])] == [0, 1, 2, 3, 4]
    assert domain.index("1") is None


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        (FloatDomain, {"low": 1.0, "high": 0.0}, "low=1.0 is above high=0.0"),
        (FloatDomain, {"low": 0.0, "high": 1.0, "log": True}, "low=0.0 has no logarithm"),
        (FloatDomain, {"low": 1.0, "high": 2.0, "step": 0.0}, "step=0.0 is invalid"),
        (FloatDomain, {"low": 1.0, "high": 2.0, "step": 0.5, "log": True}, "cannot be combined"),
        (FloatDomain, {"low": 0.0, "high": float("inf")}, "must be finite"),
        (IntDomain, {"low": 0, "high": 4, "step": 0}, "step=0 is invalid"),
        (ChoiceDomain, {"choices": ()}, "nothing to choose from"),
    ],
)
def test_a_domain_without_values_is_refused(
    kind: type[Domain],
    arguments: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**arguments)


def test_choices_that_no_log_can_hold_are_refused() -> None:
    with pytest.raises(ValueError, match="choice 1 is of class type, which cannot be written"):
        make_choices(("relu", int))


def test_domains_in_a_log_are_checked_when_they_are_read() -> None:
    domains: dict[str, Domain] = dict(zip("abcdefgh", DOMAINS, strict=True))
    step = Step(3, Suggested(at=1.0, attempt=0, trial=2, params={"a": 0.5}, domains=domains))
    body = encode_step(step)
    assert decode_step(body) == step
    broken = body.replace(b'"low":-1.0', b'"low":9.0')
    with pytest.raises(LogError, match=r"low=9.0 is above high=2.0"):
        decode_step(broken)


def test_domains_of_one_form_differ_in_their_limits_alone() -> None:
    wide = IntDomain(low=1, high=3).widen(IntDomain(low=2, high=9))
    assert (wide.low, wide.high) == (1, 9)
    assert is_same_form(IntDomain(low=1, high=3), IntDomain(low=2, high=9))
    assert not is_same_form(IntDomain(low=1, high=3), IntDomain(low=1, high=3, log=True))
    assert not is_same_form(IntDomain(low=1, high=3), FloatDomain(low=1.0, high=3.0))
    assert not is_same_form(make_choices("ab"), make_choices("abc"))
    plain = {"kind": "int", "low": 1, "high": 9, "step": 1, "log": False}
    assert msgspec.to_builtins(wide) == plain
