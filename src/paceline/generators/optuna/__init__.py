"""Generators built on Optuna's samplers."""
