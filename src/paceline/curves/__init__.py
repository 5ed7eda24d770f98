"""Curve models: where a learning curve may go, as a distribution."""
