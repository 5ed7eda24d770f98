"""A figure that every notebook can show: as plotly's own format, and as HTML.

Plotly alone shows nothing in pages that nbconvert writes. The HTML needs no network: the first
figure of a process brings plotly's script, later ones use it.
"""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
import plotly.io

from paceline.plots.style import CONFIG

# Whether the script is in the notebook already.
_has_script = False


class NotebookFigure(go.Figure):  # type: ignore[misc] # plotly has no types
    """A plotly figure with an HTML form for notebooks."""

    def _ipython_display_(self) -> None:
        # IPython asks for `_repr_mimebundle_` next.
        raise NotImplementedError

    def _repr_mimebundle_(self, *_: object, **__: object) -> dict[str, Any]:
        global _has_script
        text = plotly.io.to_html(
            self, config=CONFIG, include_plotlyjs=not _has_script, full_html=False
        )
        _has_script = True
        return {
            "application/vnd.plotly.v1+json": {**self.to_plotly_json(), "config": CONFIG},
            "text/html": text,
            "text/plain": repr(self.layout.title.text or "figure"),
        }
