"""Settings and fixtures of all tests; each test ends with a check of its machines' invariants."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from command_line import CommandLine
from coverage import Coverage
from hypothesis import HealthCheck, settings
from postgres_server import start_postgres
from ray_clusters import ray_cluster, settled_cluster

from paceline.machine.invariants import find_violations
from paceline.machine.machine import Machine

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from benchmarks.postgres import PostgresServer

    from paceline.machine.decider import Parts

# Fixtures of the session: all tests on Ray share one cluster.
__all__ = ["ray_cluster", "settled_cluster"]

# Tests run in several processes at once: with a BLAS in each that spins on every core, small fits
# would take ten times as long.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Only the processes that run tests are traced, not those that tests start: an interrupt inside the
# tracer leaves its lock held forever, and a killed process leaves a broken data file.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.pop("COVERAGE_PROCESS_CONFIG", None)

# A shell starts background commands with interrupts ignored, and processes inherit that: tests that
# interrupt a process would wait in vain.
signal.signal(signal.SIGINT, signal.default_int_handler)

# `make test` uses "quick", `make test-all` uses "all": both run the same examples each time, so
# that a change passes or fails for what it changes. `make search` looks for new examples.
settings.register_profile("quick", max_examples=50, deadline=None, derandomize=True)
settings.register_profile(
    "all",
    max_examples=200,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("search", settings.get_profile("all"), derandomize=False)
settings.register_profile("night", settings.get_profile("search"), max_examples=20_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run grouped and slow tests first, so that none of them runs alone at the end."""
    items.sort(
        key=lambda item: (
            item.get_closest_marker("xdist_group") is None,
            item.get_closest_marker("slow") is None,
        )
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Pause the coverage tracer in property tests and in tests marked `unmeasured`.

    The tracer makes simulations four times as slow, and the lines that a property test reaches
    depend on chance.
    """
    is_property = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    tracer = Coverage.current()
    if tracer is None or not (is_property or item.get_closest_marker("unmeasured")):
        return (yield)
    tracer.stop()
    try:
        return (yield)
    finally:
        tracer.start()


TRACES = Path(os.environ.get("PACELINE_TRACES", Path(__file__).parents[2] / "shared" / "traces"))


@pytest.fixture(autouse=True)
def machines(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Machine]]:
    """Every machine the test makes; all invariants must hold for each when it ends."""
    made: list[Machine] = []
    begin = Machine.__init__

    def remember(machine: Machine, parts: Parts) -> None:
        begin(machine, parts)
        made.append(machine)

    monkeypatch.setattr(Machine, "__init__", remember)
    yield made
    for machine in made:
        if machine.state.number:
            assert find_violations(machine.state) == []


@pytest.fixture(autouse=True)
def unchanged_process() -> Iterator[None]:
    """Undo what libraries change in the process of a test: its debugger, interrupts, tracing."""
    os.environ.pop("COVERAGE_PROCESS_CONFIG", None)
    yield
    os.environ.pop("PYTHONBREAKPOINT", None)
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def traces() -> Path:
    """The folder of recorded traces; without it, the test is skipped."""
    if not TRACES.is_dir():
        pytest.skip(f"no recorded traces at {TRACES}: set PACELINE_TRACES to their folder")
    return TRACES


@pytest.fixture
def paceline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    """The command line, in an empty folder."""
    return CommandLine(tmp_path, capsys, monkeypatch)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server for tests; without PostgreSQL, the test is skipped."""
    postgres = start_postgres()
    yield postgres
    postgres.close()
