"""Every command with a store from elsewhere: no code of it runs, nothing outside it is touched."""

from __future__ import annotations

import json
import re
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hostile_stores import (
    ESCAPE,
    MODULE,
    SECRET,
    STUDY,
    Scene,
    link_outside,
    make_scene,
    remove_store,
    watch_interpreter,
    write_store,
)

import paceline as pl
from paceline.api import stored
from paceline.cli.main import COMMANDS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from command_line import CommandLine

PART = f"{MODULE}:Policy"
ADDRESS = "http://127.0.0.1:9/runs"
# What no terminal may get: control characters, but ends of lines, tabs and colours.
CONTROLS = re.compile("[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u202e]|\x1b(?!\\[[0-9;]*m)")


class Attack(NamedTuple):
    """What a log names, and where."""

    name: str
    edit: Callable[[dict[str, Any], Scene], None]
    is_cut: bool = False
    is_trained: bool = True
    prepare: Callable[[Scene], None] = lambda scene: None


def name_part(kind: str, part: object, opened: dict[str, Any], scene: Scene) -> None:
    """Name a part of another module in the spec."""
    opened["spec"][kind] = part


def name_place(field: str, form: str, opened: dict[str, Any], scene: Scene) -> None:
    """Name a place in the user's folder, or an address."""
    place = form.format(outside=scene.outside, address=ADDRESS)
    opened["engine"][field] = place


def give_option(field: str, value: str, opened: dict[str, Any], scene: Scene) -> None:
    """Name an option of `paceline run`, beside a study file in the store's folder."""
    (scene.store.parent / "study.py").write_text(f"import {MODULE}", encoding="utf-8")
    opened["engine"] |= {"file": "study.py", "given": {field: value}}


def name_simulation(field: str, form: str, opened: dict[str, Any], scene: Scene) -> None:
    """Name an option of the simulation."""
    opened["engine"][field] = form.format(outside=scene.outside)


def rename(opened: dict[str, Any], scene: Scene) -> None:
    """Give the log the name of another study."""
    opened["spec"]["name"] = "another"


def add_escapes(opened: dict[str, Any], scene: Scene) -> None:
    """Put escape sequences and markup into every name."""
    opened["spec"]["metric"] = f"loss{ESCAPE}"
    opened["spec"]["policy"]["name"] = f"fifo{ESCAPE}"
    opened["engine"]["policy_why"] = ESCAPE


def grow(opened: dict[str, Any], scene: Scene) -> None:
    """Ask for a trillion epochs, trials and slots."""
    opened["spec"] |= {"epochs": 10**12, "span": 10**12, "pack": 10**12}
    opened["spec"]["budget"] = {"trials": 10**12, "deadline_s": 1e300}


SAMPLER = {"name": "optuna", "params": {"space": {"x": {"uniform": [0, 1]}}, "sampler": PART}}
ATTACKS = [
    Attack("a policy", partial(name_part, "policy", {"name": PART})),
    Attack("two policies", partial(name_part, "policy", {"name": f"fifo+{PART}"})),
    Attack(
        "policies of an old log",
        partial(name_part, "policy", {"name": "any_of", "params": {"policies": ["fifo", PART]}}),
    ),
    Attack("a generator", partial(name_part, "generator", {"name": PART})),
    Attack("a sampler", partial(name_part, "generator", SAMPLER)),
    Attack("an allocator", partial(name_part, "allocator", {"name": PART})),
    Attack("a curve model", partial(name_part, "curves", {"name": PART})),
    Attack("files", partial(name_place, "files", "{outside}")),
    Attack("files above", partial(name_place, "files", "../home")),
    Attack("files by a link", lambda opened, scene: None, prepare=link_outside),
    Attack("checkpoints", partial(name_place, "checkpoints", "{outside}/checkpoints")),
    Attack("checkpoints as a URL", partial(name_place, "checkpoints", "file://{outside}")),
    Attack("checkpoints of a server", partial(name_place, "checkpoints", "{address}")),
    Attack("checkpoints in a chain", partial(name_place, "checkpoints", "zip://x::{address}")),
    Attack("a study file", partial(name_place, "file", "{outside}/study.py"), is_cut=True),
    Attack("an option's policy", partial(give_option, "policy", PART), is_cut=True),
    Attack("an option's place", partial(give_option, "checkpoints", ADDRESS), is_cut=True),
    Attack("an option's cluster", partial(give_option, "slots", "ray@10.0.0.1:1"), is_cut=True),
    Attack("an option's files", partial(give_option, "files", "/"), is_cut=True),
    Attack(
        "a simulated policy",
        partial(name_simulation, "policy", PART),
        is_cut=True,
        is_trained=False,
    ),
    Attack(
        "a trace",
        partial(name_simulation, "source", "{outside}/logs/attempt-0.log"),
        is_cut=True,
        is_trained=False,
    ),
    Attack("another name", rename),
    Attack("escape sequences", add_escapes),
    Attack("large numbers", grow),
]
LINES: dict[str, list[str]] = {
    "ls": ["ls"],
    "show": ["show", STUDY],
    "best": ["best", STUDY],
    "story": ["story", STUDY],
    "story of a trial": ["story", STUDY, "0"],
    "logs": ["logs", STUDY, "0"],
    "tree": ["tree", STUDY],
    "checkpoints": ["checkpoints", STUDY],
    "replay": ["replay", STUDY],
    "export a table": ["export", STUDY, "out.csv", "--force"],
    "export a trace": ["export", STUDY, "out.jsonl", "--force"],
    "rm": ["rm", STUDY, "--yes"],
    "resume": ["resume", STUDY, "--no-report", "--quiet"],
    "extend": ["extend", STUDY, "--trials", "4", "--no-report", "--quiet"],
    "watch": ["watch", STUDY],
    "stop": ["stop", STUDY],
    "slots": ["slots", STUDY, "+1"],
    "forecast": ["forecast", STUDY, "0", "--at", "1", "--curves", "last"],
    "report": ["report", STUDY],
}
# Commands that open no store of others: they take what the caller names.
WITHOUT = {"demo", "run", "submit", "simulate", "compare", "completion"}
# `make test` has those that build parts, and those that use the places of a study.
QUICK = {"checkpoints", "replay", "resume", "rm", "show"}


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A store from elsewhere beside the user's folder, from which modules can be imported."""
    made = make_scene(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    return made


def test_every_command_is_in_the_table() -> None:
    assert {line[0] for line in LINES.values()} == COMMANDS.keys() - WITHOUT


@pytest.mark.parametrize(
    "command",
    [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in LINES],
)
def test_a_store_from_elsewhere_runs_no_code_and_reaches_nothing_outside(
    command: str, scene: Scene, paceline: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "QUIET_S", 0.0)
    before = scene.read_outside()
    for attack in ATTACKS:
        remove_store(scene)
        attack.prepare(scene)
        write_store(scene, attack.edit, is_cut=attack.is_cut, is_trained=attack.is_trained)
        with watch_interpreter(scene.outside) as seen:
            done = paceline(*LINES[command], "--store", scene.url)
        assert (attack.name, seen) == (attack.name, [])
        assert MODULE not in sys.modules
        assert (attack.name, scene.read_outside()) == (attack.name, before)
        shown = done.out + done.err
        assert (attack.name, CONTROLS.findall(shown)) == (attack.name, [])
        assert SECRET not in shown
        assert "Traceback" not in shown, (attack.name, shown)
        assert done.code in (0, 1, 2)


def test_every_attack_is_refused_by_the_command_it_is_meant_for(
    scene: Scene, paceline: CommandLine
) -> None:
    meant = {
        "replay": ATTACKS[:7],
        "rm": ATTACKS[7:14],
        "checkpoints": ATTACKS[7:14],
        "resume": ATTACKS[14:21],
    }
    for command, attacks in meant.items():
        for attack in attacks:
            remove_store(scene)
            attack.prepare(scene)
            write_store(scene, attack.edit, is_cut=attack.is_cut, is_trained=attack.is_trained)
            done = paceline(*LINES[command], "--store", scene.url)
            assert (command, attack.name, done.code) == (command, attack.name, 2)
            words = "paceline: the log of study"
            assert done.err.startswith(words), (command, attack.name, done.err)


def test_a_part_is_built_once_it_is_named(
    scene: Scene, paceline: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_part.py").write_text(
        "from paceline.policies import Fifo\nclass Policy(Fifo): pass\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    write_store(scene, partial(name_part, "policy", {"name": "own_part:Policy"}))
    refused = paceline("replay", STUDY, "--store", scene.url)
    assert refused.err == (
        "paceline: the log of study 'runs' names the policy 'own_part:Policy', which is not built "
        "in: a store may come from elsewhere, so no other code is run unless you name it; add "
        "--allow own_part:Policy, or in Python give the class in parts=[…].\n"
    )
    allowed = paceline("replay", STUDY, "--store", scene.url, "--allow", "own_part:Policy")
    assert (allowed.code, allowed.out[:9]) == (0, "identical")


def test_a_folder_outside_is_emptied_of_the_studys_own_files_once_it_is_named(
    scene: Scene, paceline: CommandLine
) -> None:
    write_store(scene, partial(name_place, "files", "{outside}"))
    outside = str(scene.outside)
    done = paceline("rm", STUDY, "--yes", "--store", scene.url, "--allow", outside)
    assert done.code == 0
    left = {path.removeprefix(outside) for path in scene.read_outside()}
    assert left == {"/checkpoints/thesis.txt", "/study.py"}


def test_a_log_can_be_deleted_without_the_files_that_it_names(
    scene: Scene, paceline: CommandLine
) -> None:
    before = scene.read_outside()
    write_store(scene, partial(name_place, "files", "/"))
    assert paceline("rm", STUDY, "--yes", "--store", scene.url).code == 2
    assert paceline("rm", STUDY, "--yes", "--keep-files", "--store", scene.url).code == 0
    assert (pl.studies(scene.url), scene.read_outside()) == ([], before)


def test_loading_a_study_reads_checkpoints_from_allowed_places_only(scene: Scene) -> None:
    write_store(scene, partial(name_place, "files", "{outside}"))
    with watch_interpreter(scene.outside) as seen:
        trials = pl.load(STUDY, scene.url).trials
    assert (seen, [trial.output for trial in trials]) == ([], [None] * 3)
    named = pl.load(STUDY, scene.url, allow=[scene.outside]).trials[0]
    assert named.output == scene.outside / "logs" / "attempt-0.log"


def test_a_call_goes_on_in_a_place_of_the_log_only_if_it_names_it(scene: Scene) -> None:
    before = scene.read_outside()
    files = scene.outside / "elsewhere"
    options: dict[str, Any] = {
        "space": {"x": pl.uniform(0, 1)},
        "trials": 2,
        "slots": "inline",
        "name": STUDY,
        "store": scene.url,
        "progress": False,
    }
    pl.tune(score, files=files, **options)
    with pytest.raises(pl.SpecError, match=r"outside the folder of its store: give files=") as one:
        pl.tune(score, **{**options, "trials": 3})
    assert str(files) in str(one.value)
    assert len(pl.tune(score, files=files, **{**options, "trials": 3}).trials) == 3
    assert before.items() <= scene.read_outside().items()


def score(x: float) -> float:
    """Return a value to be minimised."""
    return x


def test_json_of_a_command_has_no_control_characters(scene: Scene, paceline: CommandLine) -> None:
    write_store(scene, add_escapes)
    done = paceline("show", STUDY, "--json", "--store", scene.url)
    assert not CONTROLS.search(done.out)
    assert json.loads(done.out)["study"]["metric"] == f"loss{ESCAPE}"
