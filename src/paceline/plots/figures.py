"""All figures of a study, by name.

Each figure is a function of a timeline, and exists for every study: if there is nothing to draw, it
has a sentence that says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.analysis.timeline import build_timeline
from paceline.core.errors import make_unknown_error
from paceline.plots.config_figures import draw_configs, draw_epochs_per_trial, draw_time_per_trial
from paceline.plots.curve_figures import draw_best_over_time, draw_learning_curves
from paceline.plots.notebook_figure import NotebookFigure
from paceline.plots.slot_figures import draw_attempts, draw_slots
from paceline.plots.tree_figure import draw_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import plotly.graph_objects as go

    from paceline.analysis.timeline import Timeline
    from paceline.core.decisions import Step

# In the order of the report.
FIGURES: dict[str, Callable[[Timeline], go.Figure]] = {
    "curves": draw_learning_curves,
    "best": draw_best_over_time,
    "slots": draw_slots,
    "attempts": draw_attempts,
    "tree": draw_tree,
    "configs": draw_configs,
    "epochs": draw_epochs_per_trial,
    "times": draw_time_per_trial,
}


def draw_figure(steps: Iterable[Step], name: str) -> go.Figure:
    """Draw one figure of a study from its log."""
    draw = FIGURES.get(name)
    if draw is None:
        raise make_unknown_error("figure", name, FIGURES)
    return NotebookFigure(draw(build_timeline(steps)))
