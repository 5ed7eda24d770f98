"""`help(paceline.tune)` tells what every option means."""

from __future__ import annotations

import inspect

import paceline as pl
from paceline.api.option_help import OPTION_HELP
from paceline.api.options import Options


def test_every_option_is_in_the_help_once() -> None:
    listed = [name for options in OPTION_HELP.values() for name in options]
    assert sorted(listed) == sorted(Options.__annotations__)


def test_the_help_of_tune_lists_every_option_with_its_meaning() -> None:
    text = inspect.getdoc(pl.tune) or ""
    for options in OPTION_HELP.values():
        for name, meaning in options.items():
            assert f"  {name}: {meaning.split()[0]}" in text


def test_the_signature_of_tune_names_every_option() -> None:
    signature = inspect.signature(pl.tune)
    assert set(signature.parameters) == {"train", *Options.__annotations__}
    assert signature.parameters["retries"].default == 3
