"""All figures of a study, by name.

Knows the list and nothing else. Each figure is a function of a chronicle, and each exists for every
study: where there is nothing to see, it says so in a sentence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.plots.configs import epochs_per_trial, parallel_configs, time_per_trial
from paceline.plots.curves import best_over_time, learning_curves
from paceline.plots.places import attempts_gantt, slots_over_time

if TYPE_CHECKING:
    from collections.abc import Callable

    import plotly.graph_objects as go

    from paceline.plots.chronicle import Chronicle

__all__ = [
    "FIGURES",
    "attempts_gantt",
    "best_over_time",
    "epochs_per_trial",
    "learning_curves",
    "parallel_configs",
    "slots_over_time",
    "time_per_trial",
]

# In the order in which a report shows them.
FIGURES: dict[str, Callable[[Chronicle], go.Figure]] = {
    "curves": learning_curves,
    "best": best_over_time,
    "slots": slots_over_time,
    "attempts": attempts_gantt,
    "configs": parallel_configs,
    "epochs": epochs_per_trial,
    "times": time_per_trial,
}
