"""All figures of a study, by name.

Knows the list and nothing else. Each figure is a function of a chronicle, and each exists for every
study: where there is nothing to see, it says so in a sentence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.analysis.timeline import chronicle_of
from paceline.core.errors import unknown
from paceline.plots.config_figures import epochs_per_trial, parallel_configs, time_per_trial
from paceline.plots.curve_figures import best_over_time, learning_curves
from paceline.plots.slot_figures import attempts_gantt, slots_over_time
from paceline.plots.tree_figure import shared_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import plotly.graph_objects as go

    from paceline.analysis.timeline import Chronicle
    from paceline.core.decisions import Step

# In the order in which a report shows them.
FIGURES: dict[str, Callable[[Chronicle], go.Figure]] = {
    "curves": learning_curves,
    "best": best_over_time,
    "slots": slots_over_time,
    "attempts": attempts_gantt,
    "tree": shared_tree,
    "configs": parallel_configs,
    "epochs": epochs_per_trial,
    "times": time_per_trial,
}


def figure_of(steps: Iterable[Step], name: str) -> go.Figure:
    """Return one figure of the study that a log tells."""
    draw = FIGURES.get(name)
    if draw is None:
        raise unknown("figure", name, FIGURES)
    return draw(chronicle_of(steps))
