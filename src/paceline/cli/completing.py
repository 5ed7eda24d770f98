"""Completion by tab: the scripts for the shells, and what may stand where.

Knows names of parts, studies and files. Never complains and never makes a store: whoever presses
tab wants names or nothing.
"""

from __future__ import annotations

from glob import escape, glob
from typing import TYPE_CHECKING

import click
from click.shell_completion import BashComplete, CompletionItem, FishComplete, ZshComplete

from paceline.cli.environment import STORE
from paceline.core.errors import PacelineError

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.api.parts import Kind

    Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

SHELLS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}
SYNTHETIC = ("families", "quadratic", "toy")


def complete_study(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the studies of the store that the command would use."""
    from paceline.api.studies import opened

    try:
        with opened(ctx.params.get("store") or STORE.read()) as store:
            names = store.studies()
    except PacelineError:
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def complete_source(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return what comes with the package and begins so, or let the shell look for files."""
    from paceline.api.shipped import shipped

    known = [*SYNTHETIC, *shipped()]
    names = [name for name in known if incomplete and name.startswith(incomplete)]
    # One or the other: bash offers files only where it is offered nothing else.
    if names and not glob(f"{escape(incomplete)}*"):
        return [CompletionItem(name) for name in names]
    return [CompletionItem(incomplete, type="file")]


def complete_part(kind: Kind, *, several: bool = False) -> Complete:
    """Return what completes a part's name; with `several`, the last one of a list."""

    def complete(
        ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from paceline.api.parts import names

        at = max(incomplete.rfind(","), incomplete.rfind(";")) + 1 if several else 0
        before, begun = incomplete[:at], incomplete[at:]
        return [CompletionItem(before + name) for name in names(kind) if name.startswith(begun)]

    return complete


@click.command()
@click.argument("shell", type=click.Choice(list(SHELLS)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script for completion by tab.

    Add it to your shell's start-up file, for example:

    \b
      echo 'eval "$(paceline completion bash)"' >> ~/.bashrc
      echo 'eval "$(paceline completion zsh)"' >> ~/.zshrc
      paceline completion fish > ~/.config/fish/completions/paceline.fish
    """
    made = SHELLS[shell](ctx.find_root().command, {}, "paceline", "_PACELINE_COMPLETE")
    click.echo(made.source())
