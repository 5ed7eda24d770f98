"""Curve model: an ensemble of parametric families, fitted by MCMC."""
