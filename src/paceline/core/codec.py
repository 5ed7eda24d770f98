"""JSON encoding of steps and commands: one object per step, readable in a diff.

Refuses logs of a newer format version.
"""

from __future__ import annotations

import msgspec

from paceline.core.decisions import Step
from paceline.core.errors import LogError
from paceline.core.events import FORMAT, Command, Opened

# The longest step: a small one of a damaged store must not fill the memory.
MAX_BYTES = 64 << 20

_encoder = msgspec.json.Encoder()
_steps = msgspec.json.Decoder(Step)
_commands = msgspec.json.Decoder(Command)

encode_step = _encoder.encode


def decode_step(body: bytes | str) -> Step:
    """Decode a step. Raises LogError."""
    if len(body) > MAX_BYTES:
        raise LogError(f"a step of the log has more than {MAX_BYTES >> 20} MB and is not read.")
    try:
        step = _steps.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise LogError(_complaint(body, error)) from None
    if isinstance(step.event, Opened) and step.event.format > FORMAT:
        raise LogError(_newer(step.event.format))
    return step


def encode_command(command: Command) -> bytes:
    """Encode a command for an inbox."""
    return _encoder.encode(command)


def decode_command(body: bytes | str) -> Command:
    """Decode a command. Raises LogError."""
    try:
        command: Command = _commands.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise LogError(f"an inbox command cannot be read: {error}.") from None
    return command


def _complaint(body: bytes | str, error: Exception) -> str:
    # A newer version may write unknown entries: report the version, not the decoder's error.
    try:
        number = msgspec.json.decode(body)["event"].get("format", 0)
    except (msgspec.MsgspecError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        number = 0
    if isinstance(number, int) and number > FORMAT:
        return _newer(number)
    return f"a step of the log cannot be read: {error}."


def _newer(found: int) -> str:
    return (
        f"this log has format {found}, and this version of Paceline reads up to {FORMAT}: "
        "upgrade Paceline to open it."
    )
