"""Steps as bytes and back: one JSON object a step, readable in a diff.

Knows the format's version. A log written by a newer version is refused, never guessed at.
"""

from __future__ import annotations

import msgspec

from paceline.core.decisions import Step
from paceline.core.errors import LogError
from paceline.core.events import FORMAT, Command, Opened

_encoder = msgspec.json.Encoder()
_steps = msgspec.json.Decoder(Step)
_commands = msgspec.json.Decoder(Command)

encode_step = _encoder.encode


def decode_step(body: bytes | str) -> Step:
    """Return the step, or say what is wrong with it."""
    try:
        step = _steps.decode(body)
    except msgspec.MsgspecError as error:
        raise LogError(_complaint(body, error)) from None
    if isinstance(step.event, Opened) and step.event.format > FORMAT:
        raise LogError(_newer(step.event.format))
    return step


def encode_command(command: Command) -> bytes:
    """Return the command as it lies in an inbox."""
    return _encoder.encode(command)


def decode_command(body: bytes | str) -> Command:
    """Return the command, or say what is wrong with it."""
    try:
        command: Command = _commands.decode(body)
    except msgspec.MsgspecError as error:
        raise LogError(f"an inbox command cannot be read: {error}.") from None
    return command


def _complaint(body: bytes | str, error: Exception) -> str:
    # A newer writer may have entries we do not know: say that, rather than what the decoder saw.
    try:
        number = msgspec.json.decode(body)["event"].get("format", 0)
    except (msgspec.MsgspecError, TypeError, KeyError, AttributeError):
        number = 0
    if isinstance(number, int) and number > FORMAT:
        return _newer(number)
    return f"a step of the log cannot be read: {error}."


def _newer(found: int) -> str:
    return (
        f"this log has format {found}, and this version of Paceline reads up to {FORMAT}: "
        "upgrade Paceline to open it."
    )
