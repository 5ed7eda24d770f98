"""A study whose trials share the beginnings of their schedules."""

from __future__ import annotations

from typing import Any

from small_studies import SmallStudy, make_table

import paceline as pl

EPOCHS = 6


SCHEDULES = [
    0.1,
    pl.step_decay(0.1, drops=[2], factor=0.1),
    pl.step_decay(0.1, drops=[4], factor=0.5),
    pl.step_decay(0.1, drops=[2, 4], factor=0.1),
    pl.piecewise([(0, 0.1), (2, 0.01)]),
    0.3,
]


def make_sharing_study(**options: Any) -> SmallStudy:  # noqa: ANN401
    """Return a study of six schedules, two of which are the same in different notation."""
    configs = [{"lr": lr, "width": 8} for lr in SCHEDULES]
    curve = [1.0 - 0.1 * epoch for epoch in range(EPOCHS)]
    given = {"share": True, "slots": 2, **options}
    return SmallStudy(make_table([curve] * 6, configs=configs, seconds=10.0), **given)
