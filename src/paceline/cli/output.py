"""What commands print as plain lines and as JSON; control characters are shown, not sent.

Names, reasons and errors come from logs, which may come from elsewhere. Tables and panels are in
`tables`.
"""

from __future__ import annotations

import click
import msgspec

from paceline.core.text import show_controls


def echo(text: str, *, err: bool = False) -> None:
    """Print a line, or several; a terminal obeys no control character in it."""
    click.echo(show_controls(text), err=err)


def echo_json(value: object) -> None:
    """Print a value as one JSON object."""
    text = msgspec.json.encode(value).decode()
    # JSON has no raw control characters but these, and its own way to write them.
    click.echo(show_controls(text, write=lambda character: f"\\u{ord(character):04x}"))
