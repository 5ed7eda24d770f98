"""A log as numbered rows: what is written for a step, and what may follow what.

Knows that entries are numbered without a gap and that a row must be readable again. Does not know
where rows are kept; every store uses these rules, so that all refuse the same.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from paceline.core.codec import decode_step, encode_step
from paceline.core.errors import LogError, PacelineError, StudyNotFound, StudyRunning

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.decisions import Step

Row: TypeAlias = tuple[int, bytes]


def rows_of(study: str, following: int, steps: Sequence[Step]) -> list[Row]:
    """Return the rows for these steps, the first of which must have the number `following`.

    Raises LogError where a number is not the next one, or where a step cannot be written.
    """
    rows = []
    for step in steps:
        if step.number != following:
            raise LogError(
                f"study {study!r} goes on with entry {following}, and was given a step numbered "
                f"{step.number}: append its steps in order, without a gap or an overlap."
            )
        rows.append((following, _body(study, step)))
        following = step.after
    return rows


def _body(study: str, step: Step) -> bytes:
    try:
        body = encode_step(step)
        # JSON has no infinity: a step with one can be written and never read. As nothing behind an
        # unreadable step can be reached again, the price of reading it once now is worth paying.
        decode_step(body)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError, PacelineError) as error:
        raise LogError(
            f"step {step.number} of study {study!r} cannot be kept: {error}; "
            "use finite numbers, texts, lists and dicts."
        ) from error
    return body


def no_study(study: str, known: Sequence[str], where: str) -> StudyNotFound:
    """Return the error for a study that is not there, with what is."""
    near = get_close_matches(study, known, n=1)
    if near:
        hint = f"did you mean {near[0]!r}?"
    elif known:
        hint = f"it holds {len(known)}, the newest is {known[-1]!r}."
    else:
        hint = "it holds no study yet."
    return StudyNotFound(f"there is no study {study!r} in {where}: {hint}")


def being_written(study: str, where: str, holder: str) -> StudyRunning:
    """Return the error for a study that somebody else writes."""
    return StudyRunning(
        f"study {study!r} in {where} is being written by {holder}: "
        "wait until that ends or stop it, or choose another name for a new study.",
        holder,
    )
