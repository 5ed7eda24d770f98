"""The bar on standard error: when it appears, and how far it says a study is."""

from __future__ import annotations

import io
from itertools import count
from typing import TYPE_CHECKING

from cli_kit import tiny
from rich.console import Console

from paceline.api.simulation import Simulation
from paceline.cli.progress import PATIENCE_S, Bar, share_done

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from paceline.machine.state import StudyState


def told(*, terminal: bool, after_s: float) -> str:
    """Return what a bar writes that is asked to show itself so long after it began."""
    screen = io.StringIO()
    times = iter([0.0, after_s, after_s])
    with Bar(
        "simulating",
        console=Console(file=screen, force_terminal=terminal, width=80),
        clock=lambda: next(times),
    ) as bar:
        bar.show(0.5, "3 of 6 runs")
    return screen.getvalue()


def test_what_is_quick_shows_no_bar() -> None:
    assert told(terminal=True, after_s=PATIENCE_S / 2) == ""


def test_what_takes_longer_than_a_second_shows_a_bar() -> None:
    assert "3 of 6 runs" in told(terminal=True, after_s=PATIENCE_S * 2)


def test_no_bar_is_shown_where_nobody_looks() -> None:
    assert told(terminal=False, after_s=PATIENCE_S * 2) == ""


def ticking() -> Callable[[], float]:
    """Return a clock that goes on by a second whenever it is read."""
    seconds = count()
    return lambda: float(next(seconds))


def test_a_simulation_and_a_log_say_how_far_they_are() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80)
    with Bar("simulating", console=console, clock=ticking()) as bar:
        Simulation(source="toy:epochs=3", trials=2).run(watch=bar.watch())
    with Bar("reading", console=console, clock=ticking()) as bar:
        assert list(bar.counted(range(7))) == list(range(7))
    assert "2 trials, 6 reports" in screen.getvalue()
    assert "7 steps" in screen.getvalue()


def test_a_simulation_that_nobody_watches_is_not_asked_how_far_it_is() -> None:
    with Bar("simulating", console=Console(file=io.StringIO(), force_terminal=False)) as bar:
        assert bar.watch() is None
        assert list(bar.counted(range(7))) == list(range(7))


def test_the_bar_goes_as_far_as_the_limit_that_is_nearest(tmp_path: Path) -> None:
    trace = tiny(tmp_path / "tiny.jsonl.gz")
    shares: list[float] = []

    def watch(state: StudyState) -> None:
        shares.append(share_done(state))

    Simulation(source=str(trace), policy="fifo", slots=1).run(watch=watch)
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    shares.clear()
    Simulation(source=str(trace), policy="fifo", slots=1, deadline_s=40.0).run(watch=watch)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
