"""Curve model: the published weighted sum of families, fitted by MCMC."""
