"""Specs, forecasts, parts and the codec: what is accepted, and what is refused with which words."""

from __future__ import annotations

import math
from typing import Any

import pytest

from paceline.allocation.fixed import Fixed
from paceline.api.registry import build_part, list_parts, parse_part
from paceline.core.codec import decode_command, decode_step, encode_command, encode_step
from paceline.core.decisions import Go, Step
from paceline.core.errors import LogError, SpecError
from paceline.core.events import ChangeSlots, Opened, Reported, StopStudy
from paceline.core.forecast_quantiles import LEVELS, Forecast
from paceline.core.values import Budget, Part, Saves, StudySpec, Target, finite_or_none, to_loss
from paceline.policies.asha import Asha


def spec(**changes: Any) -> StudySpec:  # noqa: ANN401
    fields: dict[str, Any] = {
        "name": "s",
        "metric": "loss",
        "mode": "min",
        "epochs": 3,
        "policy": Part("fifo"),
        "generator": Part("queued", {"configs": []}),
    }
    return StudySpec(**{**fields, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"name": ""},
        {"mode": "up"},
        {"epochs": 0},
        {"retries": -1},
        {"pack": 0},
        {"span": 0},
        {"budget": Budget(deadline_s=0)},
        {"budget": Budget(deadline_s=-5.0)},
        {"budget": Budget(slot_seconds=float("nan"))},
        {"budget": Budget(trials=0)},
        {"budget": Budget(target=Target(float("inf")))},
        {"budget": Budget(target=Target(0.5, over=0))},
        {"saves": Saves(every_s=-1.0)},
    ],
)
def test_an_invalid_spec_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="is invalid: "):
        spec(**changes)


def test_metrics_are_turned_and_settled_once() -> None:
    assert (spec(mode="min").sign, spec(mode="max").sign) == (1.0, -1.0)
    assert to_loss(0.5, -1.0) == -0.5
    nothing = float("inf")
    assert [to_loss(x, 1.0) for x in (None, float("nan"), nothing, -nothing)] == [nothing] * 4
    assert [finite_or_none(x) for x in (1.0, None, float("nan"), nothing)] == [
        1.0,
        None,
        None,
        None,
    ]


def test_a_forecast_answers_with_probabilities() -> None:
    row = tuple(float(at) for at in range(len(LEVELS)))
    forecast = Forecast((5, 9), (row, row))
    assert forecast.median(5) == 7.0
    assert forecast.chance(5, 7.0) == pytest.approx(0.5)
    assert forecast.chance(5, 7.5) == pytest.approx(0.55)
    # Beyond the outermost quantiles it fades, and nothing is impossible.
    assert forecast.chance(9, -1.0) == pytest.approx(0.005 * math.exp(-4))
    assert forecast.chance(9, 99.0) == 1.0
    assert forecast.chance(5, 0.0) == pytest.approx(LEVELS[0])
    assert forecast.chance(5, row[-1]) == LEVELS[-1]
    with pytest.raises(SpecError, match="says nothing about epoch 6"):
        forecast.median(6)


@pytest.mark.parametrize(
    ("epochs", "rows"),
    [
        ((), ()),
        ((5,), ()),
        ((5, 5), (tuple(range(len(LEVELS))),) * 2),
        ((5,), ((1.0,),)),
        ((5,), (tuple(reversed(range(len(LEVELS)))),)),
        ((5,), ((float("nan"),) * len(LEVELS),)),
        ((5,), ((float("inf"),) * len(LEVELS),)),
    ],
)
def test_a_forecast_that_is_not_a_distribution_is_refused(epochs: Any, rows: Any) -> None:  # noqa: ANN401
    with pytest.raises(SpecError, match="a forecast"):
        Forecast(epochs, rows)


def test_parts_are_written_as_name_and_parameters() -> None:
    assert parse_part("asha") == Part("asha")
    written = parse_part(" asha:eta=4, drain=False,first=None ")
    assert written == Part("asha", {"eta": 4, "drain": False, "first": None})
    assert str(Part("asha", {"eta": 4})) == "asha:eta=4"
    assert parse_part("my.module:Mine:a=x").name == "my.module:Mine"
    with pytest.raises(SpecError, match="at 'eta'"):
        parse_part("asha:eta")


def test_parts_are_found_by_name_or_by_class() -> None:
    assert {"asha", "fifo", "pop"} <= set(list_parts("policy"))
    assert isinstance(build_part("allocator", Part("fixed")), Fixed)
    assert isinstance(build_part("policy", Part("paceline.policies.asha:Asha", {"eta": 2})), Asha)


@pytest.mark.parametrize(
    ("part", "complaint"),
    [
        (Part("ahsa"), "unknown policy 'ahsa': did you mean 'asha'"),
        (Part("asha", {"etta": 3}), "did you mean 'eta'"),
        (Part("asha", {"eta": "three"}), "eta='three' is invalid: must be a whole number"),
        (Part("asha", {"eta": 1}), "eta=1 is invalid"),
        (Part("no.such:Thing"), "there is no module 'no.such'"),
        (Part("paceline.policies.asha:Nobody"), "has no 'Nobody'"),
    ],
)
def test_a_part_that_cannot_be_built_is_refused(part: Part, complaint: str) -> None:
    with pytest.raises(SpecError) as error:
        build_part("policy", part)
    assert complaint in str(error.value)


def test_a_part_that_needs_something_says_what() -> None:
    with pytest.raises(SpecError, match="needs a value for space"):
        build_part("generator", Part("random"))


def test_steps_survive_the_codec() -> None:
    step = Step(
        3,
        Reported(at=1.5, attempt=2, epoch=1, metrics={"loss": None, "é": 1.0}, seconds=0.1),
        (Go(trial=1, until=9, why="“because”"),),
    )
    assert decode_step(encode_step(step)) == step
    assert (step.after, len(step.entries)) == (5, 2)
    for command in (StopStudy(), ChangeSlots(-2)):
        assert decode_command(encode_command(command)) == command


def test_a_log_of_a_newer_format_is_refused() -> None:
    step = Step(0, Opened(at=0.0, spec=spec(), format=2))
    with pytest.raises(LogError, match="format 2, and this version of Paceline reads up to 1"):
        decode_step(encode_step(step))
    strange = encode_step(step).replace(b'"retries"', b'"revolts"')
    with pytest.raises(LogError, match="upgrade Paceline"):
        decode_step(strange)


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b'{"number": 1, "event": {"type": "odd"}}'])
def test_an_invalid_step_is_refused(body: bytes) -> None:
    with pytest.raises(LogError, match="cannot be read"):
        decode_step(body)


def test_a_stored_value_that_breaks_a_rule_is_refused() -> None:
    broken = encode_step(Step(0, Opened(at=0.0, spec=spec()))).replace(b'"epochs":3', b'"epochs":0')
    with pytest.raises(LogError, match="epochs=0 is invalid"):
        decode_step(broken)


def test_an_invalid_command_is_refused() -> None:
    with pytest.raises(LogError, match="inbox command"):
        decode_command(b'{"type": "dance"}')
