"""Figures and the HTML report of a study, made of its log. Imported on use, for plotly is large."""
