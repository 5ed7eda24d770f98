"""The smoke tests of a contract on a cluster."""

from __future__ import annotations

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the inherited tests of a class as slow unless its `smoke` lists them."""
    for item in items:
        tests = getattr(item, "cls", None)
        smoke = getattr(tests, "smoke", None)
        if smoke is not None:
            assert all(hasattr(tests, each) for each in smoke), f"unknown test in {smoke}"
            if item.name.partition("[")[0] not in smoke:
                item.add_marker(pytest.mark.slow)
