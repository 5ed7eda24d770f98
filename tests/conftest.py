"""What every test gets: invariants checked after it, strict randomness; what some ask for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cli_kit import Here
from coverage import Coverage
from hypothesis import HealthCheck, settings
from postgres_kit import tests_cluster

from paceline.machine.invariants import complaints
from paceline.machine.machine import Machine

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from benchmarks.postgres import Cluster

    from paceline.machine.machine import Brains

# Several processes run tests beside each other: a BLAS in each that spins on every core makes small
# fits ten times as slow.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Only who runs tests is traced, not the processes that tests start: an interrupt that meets the
# tracer in one of them leaves its lock held for ever, and who is killed leaves half a file of data.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.pop("COVERAGE_PROCESS_CONFIG", None)

settings.register_profile("dev", max_examples=50, deadline=None)
settings.register_profile(
    "ci", max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("night", max_examples=20_000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let the tracer rest where it would cost most and tell least.

    It makes simulations four times as slow, and what properties reach is chance: neither counts.
    """
    chance = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    tracer = Coverage.current()
    if tracer is None or not (chance or item.get_closest_marker("unmeasured")):
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

    def remember(machine: Machine, brains: Brains) -> None:
        begin(machine, brains)
        made.append(machine)

    monkeypatch.setattr(Machine, "__init__", remember)
    yield made
    for machine in made:
        if machine.state.number:
            assert complaints(machine.state) == []


@pytest.fixture
def traces() -> Path:
    """The folder of recorded traces; the test is skipped where there are none."""
    if not TRACES.is_dir():
        pytest.skip(f"no recorded traces at {TRACES}: set PACELINE_TRACES to their folder")
    return TRACES


@pytest.fixture
def paceline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Here:
    """The command line, in an empty folder."""
    return Here(tmp_path, capsys, monkeypatch)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A PostgreSQL server of the tests' own; they are skipped where there is none."""
    cluster = tests_cluster()
    yield cluster
    cluster.close()
