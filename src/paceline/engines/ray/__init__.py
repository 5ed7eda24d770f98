"""Attempts as processes on the nodes of a Ray cluster. Uses Ray's public API alone, and no Tune."""
