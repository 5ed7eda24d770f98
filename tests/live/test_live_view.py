"""The live view: what it shows of a state, how it draws, and how seldom."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

import pytest
from cli_kit import SCRIPT, environment, golden, tiny
from live_kit import STUDY, TRAIN, study_file
from terminal_kit import Glass, OnTerminal

from paceline.analysis.live_lines import Teller
from paceline.api.simulation import Simulation
from paceline.core.events import Reported
from paceline.live.render import Size, picture, sparkline
from paceline.live.terminal import Screen
from paceline.live.watcher import EVERY_S, Lines, Live
from paceline.machine.state import StudyState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from paceline.core.decisions import Step

SIZES = [(200, 60), (100, 24), (60, 14), (30, 8), (10, 3)]


def log(tmp_path: Path, **options: Any) -> list[Step]:  # noqa: ANN401
    """Return the log of a simulated study."""
    trace = tiny(tmp_path / "tiny.jsonl", runs=12, epochs=9)
    steps: list[Step] = []
    given: dict[str, Any] = {"slots": 3, "deadline_s": 600.0, "target": 2.0, **options}
    Simulation(source=str(trace), **given).run(name="tiny", remember=steps.extend)
    return steps


def lived(steps: Sequence[Step]) -> Iterator[tuple[StudyState, Step]]:
    """Yield the state after each step, as a watcher sees it."""
    state = StudyState()
    for step in steps:
        for entry in step.entries:
            state.apply(entry)
        yield state, step


def drawn(steps: Sequence[Step], size: Size) -> str:
    """Return the picture after these steps."""
    teller = Teller()
    said = [text for state, step in lived(steps) for text in teller.hear(state, [step])]
    for state, _ in lived(steps):  # noqa: B007 - the last one is wanted
        pass
    return "\n".join(line.plain for line in picture(state, said, state.now + 1.5, size))


def test_the_picture_of_a_study_on_its_way(tmp_path: Path) -> None:
    steps = log(tmp_path)
    golden("view.txt", drawn(steps[: len(steps) // 2], Size(100, 24)))
    golden("view-narrow.txt", drawn(steps[: len(steps) // 2], Size(60, 12)))


def test_the_picture_before_anything_was_reported(tmp_path: Path) -> None:
    assert "nothing runs" in drawn(log(tmp_path)[:1], Size(100, 24))
    text = drawn(log(tmp_path)[:2], Size(100, 24))
    assert "no accuracy yet, target 2" in text
    assert "3/3 slots busy" in text


@pytest.mark.parametrize("size", SIZES)
def test_the_picture_fits_wherever_it_is_drawn(tmp_path: Path, size: tuple[int, int]) -> None:
    steps = log(tmp_path, slots=12)
    for count in range(1, len(steps), 7):
        lines = drawn(steps[:count], Size(*size)).splitlines()
        assert len(lines) <= max(size[1], 1)
        assert max(map(len, lines)) <= size[0]


def test_a_picture_without_room_for_all_says_how_many_it_leaves_out(tmp_path: Path) -> None:
    steps = log(tmp_path, slots=12, policy="fifo")
    assert "more" in drawn(steps[:30], Size(80, 12))


def test_a_curve_of_no_numbers_is_blank_and_a_level_one_is_low() -> None:
    assert sparkline([float("inf")] * 3, 1.0) == "   "
    assert sparkline([2.0, 2.0], -1.0) == "▁▁"
    assert sparkline([], 1.0) == ""


def test_lines_tell_what_matters_and_never_each_report(tmp_path: Path) -> None:
    steps = log(tmp_path)
    out = io.StringIO()
    lines = Lines(out)
    for state, step in lived(steps):
        lines(state, [step])
        lines(state, ())
    told = out.getvalue().splitlines()
    reports = sum(isinstance(step.event, Reported) for step in steps)
    for words in (
        "trial 0 starts",
        "waits:",
        "finishes at epoch 9",
        "new best",
        "3 slots",
        "ends:",
    ):
        assert any(words in line for line in told), words
    assert sum("new best" in line for line in told) < reports / 2
    assert len(set(told)) == len(told)


def test_failures_are_told() -> None:
    out = io.StringIO()
    lines = Lines(out)
    steps: list[Step] = []
    Simulation(source="toy:epochs=9", trials=6, mean_life_s=0.3, retries=0, slots=2).run(
        remember=steps.extend
    )
    for state, step in lived(steps):
        lines(state, [step])
    assert " fails" in out.getvalue()
    assert "is given up" in out.getvalue()


class Ticking:
    """A clock that is told the time."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Wire(io.StringIO):
    """A stream that keeps each write apart."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []

    def write(self, text: str) -> int:
        if text:
            self.writes.append(text)
        return super().write(text)


def screen_on(wire: Wire, columns: int = 80, rows: int = 24) -> Screen:
    """Return a screen of this size that writes there."""
    return Screen(wire, lambda: Size(columns, rows))


def test_it_draws_four_times_a_second_at_most_however_much_is_reported(tmp_path: Path) -> None:
    clock, wire = Ticking(), Wire()
    with screen_on(wire) as screen:
        live = Live(screen, clock)
        steps = log(tmp_path)
        for number, (state, step) in enumerate(lived(steps)):
            clock.now = number * 0.001
            live(state, [step])
    # The first, one for each interval, the last, and the clearing at the end.
    assert len(wire.writes) <= len(steps) * 0.001 / EVERY_S + 4


def test_time_goes_on_in_the_picture_while_nothing_is_reported(tmp_path: Path) -> None:
    clock, wire = Ticking(), Wire()
    state, step = list(lived(log(tmp_path)[:2]))[-1]
    with screen_on(wire) as screen:
        live = Live(screen, clock)
        live(state, [step])
        clock.now = 90.0
        live(state, ())
        assert "1m30s of 10m00s" in wire.writes[-1]


def test_a_drawing_is_one_write_that_clears_nothing_it_does_not_replace(tmp_path: Path) -> None:
    wire, glass = Wire(), Glass()
    with redirect_stdout(wire), screen_on(wire) as screen:
        for state, _ in lived(log(tmp_path)[:20]):
            before = len(wire.writes)
            screen.draw(picture(state, (), 0.0, screen.size))
            assert len(wire.writes) == before + 1
            assert "\x1b[2" not in wire.writes[-1]
            glass.feed(wire.writes[-1])
            assert glass.text.startswith("tiny  asha")
            assert glass.text.count("best    ") == 1
        sys.stdout.write("somebody")
        sys.stdout.write(" prints\n")
        glass.feed(wire.writes[-1])
        assert glass.text.startswith("somebody prints\ntiny  asha")
    glass.feed(wire.writes[-1])
    assert glass.text == "somebody prints\n"


def test_on_a_terminal_the_view_is_live_and_leaves_the_summary_alone(tmp_path: Path) -> None:
    study_file(tmp_path)
    command = (SCRIPT, "run", "study.py", "--deadline", "1h", "--no-report")
    terminal = OnTerminal(command, tmp_path, environment(tmp_path), (90, 20))
    assert terminal.close() == 0
    written = terminal.output.replace("\r\n", "\n")
    assert "slots busy" in written
    assert "last decisions" in written
    glass = Glass(90, 20)
    glass.feed(written)
    assert glass.text.startswith("╭─ study-1: asha ─")
    assert "4: 4 finished" in glass.text
    assert "last decisions" not in glass.text


def test_tune_shows_the_view_where_somebody_looks(tmp_path: Path) -> None:
    tune = STUDY.replace("study = pl.Study(", "pl.tune(") + 'print("after")\n'
    study_file(tmp_path, "script.py", TRAIN + tune)
    terminal = OnTerminal((sys.executable, "script.py"), tmp_path, environment(tmp_path))
    assert terminal.close() == 0
    assert "slots busy" in terminal.output
    glass = Glass(100, 30)
    glass.feed(terminal.output.replace("\r\n", "\n"))
    assert glass.text == "after\n"
    quiet = study_file(
        tmp_path, "quiet.py", TRAIN + tune.replace("slots=2", "slots=2, progress=False")
    )
    terminal = OnTerminal((sys.executable, quiet), tmp_path, environment(tmp_path))
    assert terminal.close() == 0
    assert terminal.output == "after\r\n"
