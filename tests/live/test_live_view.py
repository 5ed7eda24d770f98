"""The live view: what it shows of a state, and when it draws."""

from __future__ import annotations

import io
import sys
import time
from contextlib import redirect_stdout, suppress
from typing import TYPE_CHECKING

import pytest
from command_line import SCRIPT, compare_golden, make_environment
from rich.console import Console
from running_command import STUDY, TRAIN, write_study_file
from terminal import Screen, TerminalCommand
from watched_studies import ManualClock, replay_states, simulate_failures, simulate_log

from paceline.analysis.story import LiveStory
from paceline.live.render import Size, draw_sparkline, render_study
from paceline.live.watcher import EVERY_S, LiveView

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from paceline.core.decisions import Step

SIZES = [(200, 60), (100, 24), (60, 14), (30, 8), (10, 3)]


def render(steps: Sequence[Step], size: Size) -> str:
    """Return the view after these steps."""
    story = LiveStory()
    sentences = [
        sentence for state, step in replay_states(steps) for sentence in story.take(state, [step])
    ]
    for state, _ in replay_states(steps):  # noqa: B007 - the last one is wanted
        pass
    return render_study(state, sentences, state.now + 1.5, size).plain


def test_the_view_of_a_study_that_is_half_done(tmp_path: Path) -> None:
    steps = simulate_log(tmp_path)
    compare_golden("view.txt", render(steps[: len(steps) // 2], Size(100, 24)))
    compare_golden("view-narrow.txt", render(steps[: len(steps) // 2], Size(60, 12)))


def test_the_view_before_the_first_report(tmp_path: Path) -> None:
    assert "no trial is running now" in render(simulate_log(tmp_path)[:1], Size(100, 24))
    text = render(simulate_log(tmp_path)[:2], Size(100, 24))
    assert "no accuracy yet, target 2" in text
    assert "3/3 slots busy" in text


@pytest.mark.parametrize("size", SIZES)
def test_the_view_fits_into_every_terminal(tmp_path: Path, size: tuple[int, int]) -> None:
    steps = simulate_log(tmp_path, slots=12)
    for count in range(1, len(steps), 7):
        lines = render(steps[:count], Size(*size)).splitlines()
        assert len(lines) <= max(size[1], 1)
        assert max(map(len, lines)) <= size[0]


def test_a_view_without_room_for_all_attempts_counts_the_rest(tmp_path: Path) -> None:
    steps = simulate_log(tmp_path, slots=12, policy="fifo")
    assert "more" in render(steps[:30], Size(80, 12))


def test_the_best_trials_are_listed_with_their_status_and_config(tmp_path: Path) -> None:
    steps = simulate_log(tmp_path, policy="asha")
    view = render(steps[: len(steps) // 2], Size(120, 40))
    leaders = view[view.index("best trials") : view.index("last decisions")].splitlines()[1:]
    values = [float(line.split()[2]) for line in leaders if line]
    assert len(values) == 12
    assert values == sorted(values, reverse=True)
    assert any("finished" in line and "lr=" in line for line in leaders)
    assert any("paused" in line for line in leaders)
    assert any("running now" in line for line in leaders)


def test_on_a_wide_terminal_the_best_trials_are_beside_the_running_ones(tmp_path: Path) -> None:
    steps = simulate_log(tmp_path)
    heads = render(steps[: len(steps) // 2], Size(199, 49)).splitlines()
    assert any("best trials" in line and "running now   epoch" in line for line in heads)
    narrow = render(steps[: len(steps) // 2], Size(79, 23)).splitlines()
    assert not any("best trials" in line and "running now" in line for line in narrow)
    assert any(line.startswith("best trials") for line in narrow)


def test_the_bar_shows_how_much_of_the_nearest_limit_is_used(tmp_path: Path) -> None:
    steps = simulate_log(tmp_path, deadline_s=300.0)
    half = next(n for n, (state, _) in enumerate(replay_states(steps)) if state.now >= 148.5)
    bar = render(steps[: half + 1], Size(100, 24)).splitlines()[1]
    assert "of the deadline" in bar
    assert 15 <= bar.count("━") <= 25
    assert "of 12 trials" in render(
        simulate_log(tmp_path, deadline_s=None, target=None)[:9], Size(100, 24)
    )


def test_failures_are_counted_in_red_with_the_last_error() -> None:
    steps = simulate_failures()
    story = LiveStory()
    for state, step in replay_states(steps):
        sentences = story.take(state, [step])
    text = render_study(state, sentences, state.now, Size(100, 24))
    line = next(line for line in text.split("\n") if line.plain.startswith("failed"))
    given_up = sum(trial.status == "failed" for trial in state.trials)
    assert given_up
    assert f"{given_up} trial" in line.plain
    assert "simulated failure" in line.plain
    assert "red" in str(line.style) + str(line.spans)


def test_a_sparkline_without_numbers_is_blank_and_a_constant_one_is_low() -> None:
    assert draw_sparkline([float("inf")] * 3, 1.0) == "   "
    assert draw_sparkline([2.0, 2.0], -1.0) == "▁▁"
    assert draw_sparkline([], 1.0) == ""


class RecordingStream(io.StringIO):
    """A stream that keeps each write apart."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []

    def write(self, text: str) -> int:
        if text:
            self.writes.append(text)
        return super().write(text)

    @property
    def drawings(self) -> list[str]:
        """The writes that hold the view."""
        return [text for text in self.writes if "slots busy" in text]


def open_view(stream: RecordingStream, clock: Callable[[], float] = time.monotonic) -> LiveView:
    """Return a live view on a terminal of 80 columns that writes to this stream."""
    console = Console(file=stream, force_terminal=True, width=80, height=24, color_system=None)
    return LiveView(console, clock)


def test_it_draws_four_times_a_second_at_most_however_much_is_reported(tmp_path: Path) -> None:
    clock, stream = ManualClock(), RecordingStream()
    steps = simulate_log(tmp_path)
    with open_view(stream, clock) as view:
        for number, (state, step) in enumerate(replay_states(steps)):
            clock.now = number * 0.001
            view(state, [step])
    # The first, one for each interval, the last, and the clearing at the end.
    assert 2 < len(stream.drawings) <= len(steps) * 0.001 / EVERY_S + 3


def test_time_goes_on_in_the_view_while_nothing_is_reported(tmp_path: Path) -> None:
    clock, stream = ManualClock(), RecordingStream()
    state, step = list(replay_states(simulate_log(tmp_path)[:2]))[-1]
    with open_view(stream, clock) as view:
        view(state, [step])
        clock.now = 90.0
        view(state, ())
        assert "1m30s of 10m00s" in stream.writes[-1]


def test_a_drawing_is_one_write_and_prints_appear_above_it(tmp_path: Path) -> None:
    clock, stream, screen = ManualClock(), RecordingStream(), Screen()
    with redirect_stdout(stream), open_view(stream, clock) as view:
        for state, step in replay_states(simulate_log(tmp_path)[:20]):
            clock.now += 1.0
            before = len(stream.writes)
            view(state, [step])
            assert len(stream.writes) == before + 1
            screen.feed(stream.writes[-1])
            assert screen.text.startswith("tiny  asha")
            assert screen.text.count("\nbest    ") == 1
        sys.stdout.write("a [bold]line[/bold]")
        sys.stdout.write(" of the program\n")
        screen.feed(stream.writes[-1])
        assert screen.text.startswith("a [bold]line[/bold] of the program\ntiny  asha")
    screen.feed(stream.writes[-1])
    assert screen.text == "a [bold]line[/bold] of the program\n"


def test_a_stream_that_goes_to_a_file_keeps_going_there(tmp_path: Path) -> None:
    stream, file = RecordingStream(), io.StringIO()
    state, step = list(replay_states(simulate_log(tmp_path)[:2]))[-1]
    with redirect_stdout(file), open_view(stream) as view:
        view(state, [step])
        sys.stdout.write("for the file\n")
    assert file.getvalue() == "for the file\n"
    assert "for the file" not in stream.getvalue()


class LostStream(RecordingStream):
    """A stream whose reader is gone."""

    def write(self, text: str) -> int:
        raise OSError(5, "Input/output error")


def test_a_terminal_that_is_gone_does_not_stop_the_study(tmp_path: Path) -> None:
    with open_view(LostStream()) as view:
        for state, step in replay_states(simulate_log(tmp_path)[:3]):
            with suppress(OSError):  # `show_progress` catches it
                view(state, [step])


def test_on_a_terminal_the_view_is_live_and_leaves_the_summary_alone(tmp_path: Path) -> None:
    write_study_file(tmp_path)
    command = (SCRIPT, "run", "study.py", "--deadline", "1h", "--no-report")
    terminal = TerminalCommand(command, tmp_path, make_environment(tmp_path), (90, 20))
    assert terminal.close() == 0
    written = terminal.output.replace("\r\n", "\n")
    assert "slots busy" in written
    assert "last decisions" in written
    screen = Screen(90, 20)
    screen.feed(written)
    assert screen.text.startswith("╭─ study-1: ")
    assert "4: 4 finished" in screen.text
    assert "last decisions" not in screen.text


def test_tune_shows_the_view_on_a_terminal_unless_progress_is_off(tmp_path: Path) -> None:
    tune = STUDY.replace("study = pl.Study(", "pl.tune(") + 'print("after")\n'
    write_study_file(tmp_path, "script.py", TRAIN + tune)
    terminal = TerminalCommand((sys.executable, "script.py"), tmp_path, make_environment(tmp_path))
    assert terminal.close() == 0
    assert "slots busy" in terminal.output
    screen = Screen(100, 30)
    screen.feed(terminal.output.replace("\r\n", "\n"))
    shown = screen.text.splitlines()
    assert shown[0].startswith("study 'train-")
    assert "has ended: nothing is left " in " ".join(shown[:2])
    for words in ("best        loss ", "config      lr=", "trials      4: ", "next        result."):
        assert any(words in line for line in shown), words
    assert shown[-1] == "after"
    assert "slots busy" not in screen.text
    quiet = write_study_file(
        tmp_path, "quiet.py", TRAIN + tune.replace("slots=2", "slots=2, progress=False")
    )
    terminal = TerminalCommand((sys.executable, quiet), tmp_path, make_environment(tmp_path))
    assert terminal.close() == 0
    assert terminal.output == "after\r\n"
