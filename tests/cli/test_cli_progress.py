"""The progress bar: when it appears, and how far it says a study is."""

from __future__ import annotations

import io
from itertools import count
from typing import TYPE_CHECKING

from command_line import write_small_trace
from rich.console import Console

from paceline.analysis.study_progress import measure_progress
from paceline.api.simulation import Simulation
from paceline.cli.progress import DELAY_S, ProgressBar

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from paceline.machine.state import StudyState


def draw_bar(*, terminal: bool, after_s: float) -> str:
    """Return what a bar writes if it is updated this long after its start."""
    stream = io.StringIO()
    times = iter([0.0, after_s, after_s])
    with ProgressBar(
        "simulating",
        console=Console(file=stream, force_terminal=terminal, width=80),
        clock=lambda: next(times),
    ) as bar:
        bar.update(0.5, "3 of 6 runs")
    return stream.getvalue()


def test_a_quick_command_shows_no_bar() -> None:
    assert draw_bar(terminal=True, after_s=DELAY_S / 2) == ""


def test_a_command_longer_than_a_second_shows_a_bar() -> None:
    assert "3 of 6 runs" in draw_bar(terminal=True, after_s=DELAY_S * 2)


def test_no_bar_is_shown_outside_a_terminal() -> None:
    assert draw_bar(terminal=False, after_s=DELAY_S * 2) == ""


def make_ticking_clock() -> Callable[[], float]:
    """Return a clock that advances by a second whenever it is read."""
    seconds = count()
    return lambda: float(next(seconds))


def test_the_bar_shows_how_far_a_simulation_and_a_log_are() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=80)
    with ProgressBar("simulating", console=console, clock=make_ticking_clock()) as bar:
        Simulation(source="toy:epochs=3", trials=2, policy="fifo").run(watch=bar.make_watcher())
    with ProgressBar("reading", console=console, clock=make_ticking_clock()) as bar:
        assert list(bar.track(range(7))) == list(range(7))
    assert "2 trials, 6 reports" in stream.getvalue()
    assert "7 steps" in stream.getvalue()


def test_without_a_terminal_a_simulation_has_no_watcher() -> None:
    with ProgressBar(
        "simulating", console=Console(file=io.StringIO(), force_terminal=False)
    ) as bar:
        assert bar.make_watcher() is None
        assert list(bar.track(range(7))) == list(range(7))


def test_the_progress_is_that_of_the_nearest_limit(tmp_path: Path) -> None:
    trace = write_small_trace(tmp_path / "tiny.jsonl.gz")
    shares: list[float] = []

    def watch(state: StudyState) -> None:
        shares.append(measure_progress(state).share)

    Simulation(source=str(trace), policy="fifo", slots=1).run(watch=watch)
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    shares.clear()
    Simulation(source=str(trace), policy="fifo", slots=1, deadline_s=40.0).run(watch=watch)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
