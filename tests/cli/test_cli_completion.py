"""Completion by tab: scripts for the shells, and names of policies, studies and sources."""

from __future__ import annotations

import pytest
from click.shell_completion import ShellComplete
from command_line import CommandLine, write_small_trace

from paceline.cli.main import commands
from paceline.engines.sim.synthetic import SYNTHETIC, build_synthetic


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_is_printed(paceline: CommandLine, shell: str) -> None:
    ran = paceline("completion", shell)
    assert ran.code == 0
    assert "_PACELINE_COMPLETE" in ran.out


def complete(*words: str) -> list[str]:
    """Return what is offered for the last word."""
    shell = ShellComplete(commands, {}, "paceline", "_PACELINE_COMPLETE")
    return [item.value for item in shell.get_completions(list(words[:-1]), words[-1])]


def test_names_of_policies_are_completed_alone_and_in_lists() -> None:
    assert "asha" in complete("simulate", "toy", "--policy", "as")
    assert "fifo,asha" in complete("compare", "toy", "--policies", "fifo,as")


def test_names_of_studies_are_completed_from_the_store(paceline: CommandLine) -> None:
    trace = write_small_trace(paceline.folder / "tiny.jsonl.gz")
    paceline("simulate", trace, "--store", "x.db", "--name", "mine")
    assert complete("show", "--store", "x.db", "m") == ["mine"]
    assert complete("show", "--store", "none.db", "m") == []
    assert not (paceline.folder / "none.db").exists()


def test_sources_are_files_or_synthetic_workloads(paceline: CommandLine) -> None:
    write_small_trace(paceline.folder / "families.jsonl.gz")
    shell = ShellComplete(commands, {}, "paceline", "_PACELINE_COMPLETE")
    kinds = {
        word: [(item.type, item.value) for item in shell.get_completions(["simulate"], word)]
        for word in ("", "to", "fam")
    }
    assert kinds == {"": [("file", "")], "to": [("plain", "toy")], "fam": [("file", "fam")]}
    assert all(build_synthetic(name, {}, 0) for name in SYNTHETIC)
