"""What counts as a number, in reports and in return values."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch

from paceline.core.errors import TrialError
from paceline.worker.metrics import parse_report, parse_returned, read_number

NUMBERS = [
    0.25,
    Decimal("0.25"),
    np.float32(0.25),
    np.array(0.25),
    np.array([0.25]),
    torch.tensor(0.25, requires_grad=True),
    torch.tensor([0.25]),
]
OTHERS = [True, np.bool_(True), "0.25", b"1", None, [0.25], np.zeros(3), torch.zeros(2), object()]


@pytest.mark.parametrize("value", NUMBERS, ids=lambda value: type(value).__name__)
def test_scalars_of_every_library_are_numbers(value: Any) -> None:  # noqa: ANN401
    assert read_number(value) == 0.25
    assert parse_report(value, {}, "loss") == {"loss": 0.25}
    assert parse_report({"loss": value}, {}, "loss") == {"loss": 0.25}
    assert parse_returned(value, "loss") == {"loss": 0.25}


@pytest.mark.parametrize("value", OTHERS, ids=lambda value: type(value).__name__)
def test_texts_flags_and_arrays_are_not_numbers(value: Any) -> None:  # noqa: ANN401
    assert read_number(value) is None
    assert parse_returned(value, "loss") is None
    with pytest.raises(TrialError, match=r"'loss' was reported as .*: report a number"):
        parse_report({}, {"loss": value}, "loss")


def test_whole_numbers_and_flags_beside_the_metric_are_taken() -> None:
    given = {"loss": np.int64(3), "steps": 7, "done": True, "seen": np.bool_(False)}
    assert parse_report(given, {"more": 1}, "loss") == {
        "loss": 3.0,
        "steps": 7.0,
        "done": 1.0,
        "seen": 0.0,
        "more": 1.0,
    }


def test_numbers_that_are_not_finite_become_none() -> None:
    assert parse_report(math.nan, {"bound": math.inf}, "loss") == {"loss": None, "bound": None}
    assert parse_returned({"loss": math.nan, "bound": -math.inf}, "loss") == {
        "loss": None,
        "bound": None,
    }


def test_of_a_returned_dict_the_numbers_count() -> None:
    returned = {"loss": 0.5, "status": "ok", "model": object(), "epochs": 3}
    assert parse_returned(returned, "loss") == {"loss": 0.5, "epochs": 3.0}


def test_metrics_without_the_study_s_metric_say_what_to_write() -> None:
    with pytest.raises(TrialError, match=r"has acc, but not the study's metric 'loss': report it"):
        parse_report({"acc": 1.0}, {}, "loss")
    with pytest.raises(TrialError, match=r"has name, acc, but not .* or give metric='acc'\."):
        parse_returned({"name": "a", "acc": 1.0}, "loss")
    with pytest.raises(TrialError, match=r"which of them counts: give metric='acc' and mode="):
        parse_report({"acc": 1.0}, {}, "value")
    with pytest.raises(TrialError, match="report has nothing, but not"):
        parse_report(None, {}, "loss")
    with pytest.raises(TrialError, match="'loss' was returned as a list: return one number"):
        parse_returned({"loss": [0.3, 0.2]}, "loss")
    with pytest.raises(TrialError, match=r"an ndarray of shape \(3,\)"):
        parse_report({"loss": np.zeros(3)}, {}, "loss")
