"""Durations: how they are written."""

from __future__ import annotations

from datetime import timedelta

import pytest

from paceline.api.options import parse_duration
from paceline.core.errors import SpecError


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (90, 90.0),
        (0, 0.0),
        (1.5, 1.5),
        ("90", 90.0),
        ("1e3", 1000.0),
        ("90s", 90.0),
        ("10m", 600.0),
        ("1h30m", 5400.0),
        ("1h 30m", 5400.0),
        ("1H30M", 5400.0),
        (" 2d ", 172800.0),
        ("1d2h3m4.5s", 93784.5),
        ("0.5h", 1800.0),
        (".5m", 30.0),
        (timedelta(hours=1, seconds=1), 3601.0),
    ],
)
def test_a_duration_is_converted_to_seconds(
    written: float | str | timedelta, seconds: float
) -> None:
    assert parse_duration(written) == seconds


@pytest.mark.parametrize(
    "written",
    [
        *("", " ", "soon", "-5", "-1h", "1x", "30m1h", "1h30", "h", "nan", "inf", "1..5s", "٣s"),
        *(-1, float("nan"), float("inf"), True, timedelta(seconds=-1)),
    ],
)
def test_an_invalid_duration_is_refused_with_the_format(
    written: float | str | timedelta,
) -> None:
    with pytest.raises(SpecError, match="is not a duration: write seconds"):
        parse_duration(written)
