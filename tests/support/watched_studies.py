"""Simulated studies as a watcher sees them: a log, and the state after each step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from command_line import write_small_trace

from paceline.api.simulation import Simulation
from paceline.machine.state import StudyState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from paceline.core.decisions import Step


def simulate_log(folder: Path, **options: Any) -> list[Step]:  # noqa: ANN401
    """Return the log of a simulated study."""
    trace = write_small_trace(folder / "tiny.jsonl", runs=12, epochs=9)
    steps: list[Step] = []
    given: dict[str, Any] = {"slots": 3, "deadline_s": 600.0, "target": 2.0, **options}
    Simulation(source=str(trace), **given).run(name="tiny", remember=steps.extend)
    return steps


def simulate_failures() -> list[Step]:
    """Return the log of a simulated study in which attempts fail and trials are given up."""
    steps: list[Step] = []
    Simulation(source="toy:epochs=9", trials=6, mean_life_s=0.3, retries=0, slots=2).run(
        remember=steps.extend
    )
    return steps


def replay_states(steps: Sequence[Step]) -> Iterator[tuple[StudyState, Step]]:
    """Yield the state after each step, as a watcher sees it."""
    state = StudyState()
    for step in steps:
        for entry in step.entries:
            state.apply(entry)
        yield state, step


def fold_states(steps: Sequence[Step]) -> StudyState:
    """Return the state after all steps."""
    *_, (state, _) = replay_states(steps)
    return state


class ManualClock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now
