"""What a user is told about failed trials: the error of a failed study, warnings, missing results.

Reads a state and the output files of attempts. Words only: whether a study has failed was decided
by its machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.errors import NoResult, warn_user
from paceline.core.text import format_count, format_numbers
from paceline.machine.failed_trials import find_commonest, list_failed

if TYPE_CHECKING:
    from pathlib import Path

    from paceline.engines.process.checkpoint_files import CheckpointFiles
    from paceline.machine.failures import Failure
    from paceline.machine.groups import GroupState

# Trials are many if they are at least this share of all, and more than one.
_MANY = 1 / 3
# How much of an attempt's output, before its traceback, is shown.
_TAIL_BYTES, _TAIL_LINES = 16384, 8
_TRACEBACK = "Traceback (most recent call last)"
# How many trials are listed by their numbers.
_LISTED = 20


def describe_failed_study(group: GroupState, files: CheckpointFiles) -> str:
    """Return the message for a failed study: why, the commonest traceback, and the output."""
    end = group.end
    assert end is not None
    text = f"study {group.spec.name!r} failed: {end.why}."
    found = find_commonest(group.trials)
    if found is None:
        return text
    failure, trials = found
    path = find_output(failure, files)
    lines = [text]
    # Without a frame of the user's, the sentence above has all of it.
    if failure.error and "\n" in failure.note:
        listed = format_numbers("trial", trials[:_LISTED]) + ", …" * (len(trials) > _LISTED)
        same = f" (the same error in {listed})" if len(trials) > 1 else ""
        lines += [f"The traceback of trial {failure.trial}{same}:", failure.note]
    if path is not None:
        lines += [f"The output of trial {failure.trial} is in {path}"]
        tail = read_output_tail(path) if failure.error else ""
        if tail:
            lines[-1] += ", and ends before the traceback with:"
            lines += [tail]
        else:
            lines[-1] += "."
    return "\n".join(lines)


def warn_of_failures(group: GroupState) -> None:
    """Warn if many trials of a study failed; name the commonest error."""
    failed, opened = list_failed(group), len(group.trials)
    if len(failed) < 2 or len(failed) < _MANY * opened:
        return
    found = find_commonest(failed)
    assert found is not None
    failure, trials = found
    counted = format_count(len(trials), "trial")
    warn_user(
        f"{len(failed)} of {opened} trials of study {group.spec.name!r} failed; the commonest "
        f"error, in {counted}, is {failure.headline}. result.trials[{failure.trial}].error has "
        "more about it."
    )


def warn_of_ended_study(group: GroupState) -> None:
    """Say that a study which is run again had ended before."""
    end = group.end
    assert end is not None
    warn_user(
        f"study {group.spec.name!r} ended before ({end.why}): nothing was trained now. Give a "
        "larger trials=…, epochs=… or deadline=… to extend it, or another name to start over."
    )


def make_no_result_error(group: GroupState) -> NoResult:
    """Return the error for the best trial of a study in which no trial has reported a number."""
    name, metric, opened = group.spec.name, group.spec.metric, len(group.trials)
    failed = list_failed(group)
    found = find_commonest(failed)
    if not opened:
        why = "no trial was opened. Give it more time, or look at result.why"
    elif found is not None:
        share = "all" if len(failed) == opened else f"{len(failed)} of"
        why = (
            f"{share} {format_count(opened, 'trial')} failed, most often with "
            f"{found[0].headline}. Look at result.trials[{found[0].trial}].error"
        )
    elif group.reports:
        why = (
            f"every reported {metric} is NaN or infinite. Look at what the training function "
            "computes, or narrow the space"
        )
    else:
        why = (
            f"none of its {format_count(opened, 'trial')} finished an epoch. Give it more time, or "
            "make the epochs shorter"
        )
    return NoResult(f"study {name!r} has no best trial: {why}.")


def find_output(failure: Failure, files: CheckpointFiles) -> Path | None:
    """Return the file with a failed attempt's output; None: it is not on this machine."""
    if failure.attempt is None:
        return None
    path = files.log(failure.attempt)
    return path if path.exists() else None


def read_output_tail(path: Path) -> str:
    """Return the last lines of an attempt's output before its traceback; empty: none."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    before = text.rpartition(_TRACEBACK)[0] if _TRACEBACK in text else text
    return "\n".join(before.rstrip().splitlines()[-_TAIL_LINES:])
