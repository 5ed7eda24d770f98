"""The lines of a running study: few, each with something new."""

from __future__ import annotations

import io
import logging
import shlex
import sys
from typing import TYPE_CHECKING

from extreme_studies import make_spec
from running_command import STUDY, TRAIN, RunningCommand, write_study_file
from watched_studies import ManualClock, replay_states, simulate_failures, simulate_log

from paceline.core.events import Ended, Reported
from paceline.core.values import OPEN_ENDED, Budget
from paceline.live.lines import EVERY_S, SAME_FAILURES, LineWriter, describe_start
from paceline.live.startup import show_wait

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pytest

    from paceline.core.decisions import Step


def write_lines(steps: Sequence[Step]) -> list[str]:
    """Return the lines of a log whose time passes as it did."""
    out, clock = io.StringIO(), ManualClock()
    write = LineWriter(out, clock)
    for state, step in replay_states(steps):
        clock.now = state.now
        write(state, [step])
        write(state, ())
    return out.getvalue().splitlines()


def test_lines_have_what_matters_and_not_every_decision(tmp_path: Path) -> None:
    steps = simulate_log(tmp_path)
    lines = write_lines(steps)
    assert lines[0] == (
        "0s: study 'tiny' starts: asha with queued maximizes accuracy, trials of at most 9 epochs, "
        "deadline 10m00s, target 2."
    )
    for text in ("new best: accuracy ", "with lr=", "3 slots are available", "the study ends:"):
        assert any(text in line for line in lines), text
    for text in ("is opened with", "is paused:", "may continue", "finishes at epoch"):
        assert not any(text in line for line in lines), text
    assert sum("new best" in line for line in lines) < sum(
        isinstance(step.event, Reported) for step in steps
    )
    assert len(set(lines)) == len(lines)


def test_the_first_line_names_only_the_limits_that_there_are() -> None:
    assert describe_start(make_spec(epochs=1)) == (
        "study 'hand' starts: fifo with random minimizes loss"
    )
    assert describe_start(make_spec(epochs=OPEN_ENDED, budget=Budget(deadline_s=2.0))) == (
        "study 'hand' starts: fifo with random minimizes loss, deadline 2s"
    )
    assert describe_start(make_spec(epochs=1, budget=Budget(trials=4))) == (
        "study 'hand' starts: fifo with random minimizes loss, 4 trials"
    )


def test_a_best_value_that_comes_with_the_end_is_written_before_it(tmp_path: Path) -> None:
    *_, (state, _) = replay_states(steps := simulate_log(tmp_path))
    out = io.StringIO()
    LineWriter(out, ManualClock())(state, steps)
    best, end = out.getvalue().splitlines()[-2:]
    assert "new best: " in best
    assert "the study ends: " in end


def test_now_and_then_a_line_says_how_far_the_study_is(tmp_path: Path) -> None:
    steps = simulate_log(tmp_path)
    lines = write_lines(steps)
    status = [line for line in lines if " of 12 trials: " in line]
    whole = next(line for line in status if "best accuracy" in line)
    for text in ("running now", "paused", " epochs; ", " left."):
        assert text in whole
    # At most one in each interval of the study's time.
    *_, (state, _) = replay_states(steps)
    assert 1 < len(status) <= state.now / EVERY_S


def test_the_status_goes_on_while_nothing_is_reported(tmp_path: Path) -> None:
    out, clock = io.StringIO(), ManualClock()
    write = LineWriter(out, clock)
    for state, step in replay_states(simulate_log(tmp_path)[:4]):
        write(state, [step])
    before = len(out.getvalue().splitlines())
    for _ in range(1000):
        clock.now += 0.1
        write(state, ())
    more = out.getvalue().splitlines()[before:]
    assert 5 <= len(more) <= 100 / EVERY_S
    assert all("trials: " in line for line in more)


def test_every_failure_is_written_once_with_its_error_until_it_repeats_itself() -> None:
    steps = simulate_failures()
    failures = sum(isinstance(step.event, Ended) and bool(step.event.note) for step in steps)
    assert failures > SAME_FAILURES
    lines = [line for line in write_lines(steps) if " fails: " in line]
    assert len(lines) == SAME_FAILURES
    assert "fails: simulated failure; it is given up" in lines[0]
    assert lines[-1].endswith("; more failures like this are only counted.")


def test_what_the_program_logs_on_the_same_stream_is_not_written_twice(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    handler = logging.StreamHandler(sys.stderr)
    logger = logging.getLogger("paceline")
    monkeypatch.setattr(logger, "handlers", [handler])
    before = logger.level
    logger.setLevel(logging.INFO)
    request.addfinalizer(lambda: logger.setLevel(before))
    lines = write_lines(simulate_failures())
    assert lines
    assert not any(" fails: " in line or "the study ends" in line for line in lines)


class Notes:
    """A view that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def note(self, text: str, seconds: float) -> None:
        """Keep the words."""
        self.told.append(text)


def test_a_wait_is_told_at_once_and_its_words_change() -> None:
    notes = Notes()
    with show_wait(notes, "loading train in a worker") as say:
        say("importing torch in a worker")
    assert notes.told[0] in ("loading train in a worker", "importing torch in a worker")
    with show_wait(lambda state, steps: None, "unseen") as say:
        say("unseen too")


def test_a_long_start_gets_lines_further_and_further_apart() -> None:
    out = io.StringIO()
    write = LineWriter(out)
    for tenth in range(300):
        write.note("importing torch in a worker", tenth / 10)
    assert out.getvalue().splitlines() == [
        f"importing torch in a worker: {seconds} s" for seconds in (2, 4, 8, 16)
    ]
    for tenth in range(25):
        write.note("importing jax in a worker", tenth / 10)
    assert out.getvalue().endswith("importing jax in a worker: 2 s\n")


# Takes long to import while a file `hold_import` is there.
SLOW = """
import time
from pathlib import Path

while Path("hold_import").exists():
    time.sleep(0.01)
"""


def test_through_a_pipe_a_script_gets_lines_on_stderr_and_a_summary(tmp_path: Path) -> None:
    (tmp_path / "slow_to_import.py").write_text(SLOW)
    train = TRAIN.replace(
        "import paceline as pl\n", "import paceline as pl\nimport slow_to_import\n"
    )
    train = train.replace("    weight = trial", "    slow_to_import.SLOW = 1\n    weight = trial")
    tune = STUDY.replace("study = pl.Study(", "result = pl.tune(")
    begin, end = 'Path("hold_import").touch()\n', 'print("printed", result.best_value)\n'
    write_study_file(tmp_path, "script.py", train + begin + tune + end)
    command = f"{shlex.quote(sys.executable)} script.py 2>&1 >printed"
    with RunningCommand(tmp_path, "sh", "-c", command) as running:
        running.until("importing slow_to_import in a worker: 2 s\n")
        (tmp_path / "hold_import").unlink()
        ran = running.end()
    assert ran.code == 0, ran.out
    # Standard output has what the program prints, and nothing else.
    assert (tmp_path / "printed").read_text().split()[:1] == ["printed"]
    lines = ran.out.splitlines()
    for words in ("4 trials of at most 9 epochs.", "2 slots are available", "new best: loss"):
        assert any(words in line for line in lines), words
    at = next(number for number, line in enumerate(lines) if line.endswith(" has ended:"))
    assert [line.split()[0] for line in lines[at + 1 :]] == [
        *("best", "config", "checkpoint", "trials", "epochs", "time", "next")
    ]


def test_without_progress_nothing_is_written(tmp_path: Path) -> None:
    tune = STUDY.replace("study = pl.Study(", "pl.tune(").replace(
        "slots=2", "slots=2, progress=False"
    )
    write_study_file(tmp_path, "script.py", TRAIN + tune.replace("trials=4", "trials=1"))
    with RunningCommand(tmp_path, sys.executable, "script.py") as running:
        ran = running.end()
    assert ran == (0, "", "")
