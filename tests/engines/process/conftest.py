"""Fixtures of the tests of the process engine."""

from __future__ import annotations

from process_engines import driven

__all__ = ["driven"]
