"""A time limit for every phase of a test on a cluster, and the smoke tests of a contract."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import pytest
from waiting import LIMIT_S

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

# A test waits for several events, each of which may take LIMIT_S.
_PHASE_S = 3 * LIMIT_S


@contextmanager
def limit_time(item: pytest.Item, phase: str) -> Iterator[None]:
    """Fail a phase of a test that takes longer than any machine needs."""

    def fail(*_: object) -> NoReturn:
        raise TimeoutError(f"{phase} of {item.name} has not ended after {_PHASE_S:g} s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, _PHASE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    with limit_time(item, "setup"):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    with limit_time(item, "call"):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    with limit_time(item, "teardown"):
        return (yield)


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
