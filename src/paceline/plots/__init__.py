"""Figures and the HTML report of a study, drawn with plotly.

Plotly is optional: importing any module of this package raises an error that names the extra.
"""

from paceline.core.errors import make_missing_extra_error

try:
    import plotly  # noqa: F401
except ImportError:
    raise make_missing_extra_error("plotly", "report") from None
