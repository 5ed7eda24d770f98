"""A log as numbered rows: how a step is encoded, and which number comes next.

Knows that entries are numbered without gaps and that every row must be readable. Does not know
where rows are kept. All stores use these rules, so all reject the same steps with the same errors.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from paceline.core.codec import decode_step, encode_step
from paceline.core.errors import LogError, PacelineError, StudyNotFound, StudyRunning

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from paceline.core.decisions import Step

Row: TypeAlias = tuple[int, bytes]


def encode_rows(study: str, following: int, steps: Sequence[Step]) -> list[Row]:
    """Return the rows for these steps, the first of which must have the number `following`.

    Raises LogError if a number is not the next one, or if a step cannot be encoded.
    """
    rows = []
    for step in steps:
        if step.number != following:
            raise LogError(
                f"step {step.number} does not follow the log of study {study!r}, whose next entry "
                f"is {following}: append the steps in order, without gaps or overlaps."
            )
        rows.append((following, _encode_body(study, step)))
        following = step.after
    return rows


def _encode_body(study: str, step: Step) -> bytes:
    try:
        body = encode_step(step)
        # JSON has no infinity: a step with one can be encoded but never decoded. An unreadable step
        # would make the rest of the log unreachable, so each one is decoded once before it is kept.
        decode_step(body)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError, PacelineError) as error:
        raise LogError(
            f"step {step.number} of study {study!r} cannot be stored: {error}; "
            "use finite numbers, texts, lists and dicts."
        ) from error
    return body


def make_event_mark(kind: str) -> str:
    """Return the text that every row with an event of this kind has in its body.

    >>> make_event_mark("extended")
    '"event":{"type":"extended"'
    """
    return f'"event":{{"type":"{kind}"'


def select_steps(bodies: Iterable[bytes | str], kind: str) -> list[Step]:
    """Return the steps among these rows whose event is of this kind; decode no others."""
    mark = make_event_mark(kind).encode()
    encoded = (body.encode() if isinstance(body, str) else body for body in bodies)
    marked = (body for body in encoded if mark in body)
    steps = map(decode_step, marked)
    # The mark may also be part of a text in a config.
    return [step for step in steps if type(step.event).__name__.lower() == kind]


def make_not_found_error(study: str, known: Sequence[str], where: str) -> StudyNotFound:
    """Return the error for a missing study, with the studies that exist as a hint."""
    near = get_close_matches(study, known, n=1)
    if near:
        hint = f"did you mean {near[0]!r}?"
    elif known:
        hint = f"it holds {len(known)}, the newest is {known[-1]!r}."
    else:
        hint = "it holds no study yet."
    return StudyNotFound(f"there is no study {study!r} in {where}: {hint}")


def make_running_error(study: str, where: str, holder: str) -> StudyRunning:
    """Return the error for a study that another process writes."""
    return StudyRunning(
        f"study {study!r} in {where} is being written by {holder}: "
        "wait for it to end or stop it, or choose another name for a new study.",
        holder,
    )
