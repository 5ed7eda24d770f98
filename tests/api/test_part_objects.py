"""Parts as objects: what the log holds of them, and what cannot be written to it."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from command_line import read_log

import paceline as pl
from paceline.allocation import Fixed
from paceline.api.options import Options, StudyOptions
from paceline.api.registry import BUILT_IN, build_part, describe_part
from paceline.api.stored import replay_log
from paceline.core.events import Opened
from paceline.core.run_info import RunInfo
from paceline.core.values import Part
from paceline.parts import BasePart
from paceline.policies import Fifo

if TYPE_CHECKING:
    from pathlib import Path


def train(trial: Any) -> None:  # noqa: ANN401
    trial.keep(state=[0])
    for epoch in trial.epochs():
        trial.report(loss=trial["lr"] / (epoch + 1))


def options(**changes: Any) -> Any:  # noqa: ANN401
    given: dict[str, Any] = {
        "space": {"lr": pl.uniform(0.1, 1.0)},
        "metric": "loss",
        "mode": "min",
        "epochs": 4,
        "trials": 4,
        "slots": 1,
    }
    return {**given, **changes}


class Patient(Fifo):
    """A policy of a module that other processes can import."""

    def __init__(self, *, weeks: int = 1) -> None:
        self.weeks = weeks


class Positional(Fifo):
    def __init__(self, first: int, second: int = 2) -> None:
        super().__init__()
        self.sum = first + second


class Counted(Fifo):
    """Counts its objects."""

    built = 0

    def __init__(self) -> None:
        Counted.built += 1


class Plain:
    """A policy that does not keep its arguments."""


OBJECTS: dict[str, Any] = {
    "policy": pl.policies.Asha(eta=4, drain=False),
    "generator": pl.generators.Random(order="subtrees"),
    "allocator": pl.allocators.Top(),
    "span": 2,
    "curves": pl.curves.Last(),
}


def test_objects_are_written_as_names_and_arguments() -> None:
    spec = pl.Study(train, **options(**OBJECTS)).spec
    assert spec.policy == Part("asha", {"eta": 4, "drain": False})
    assert spec.generator.name == "random"
    assert spec.generator.params["order"] == "subtrees"
    assert (spec.allocator, spec.curves) == (Part("top"), Part("last"))


def test_a_study_of_objects_equals_a_study_of_names_and_can_be_replayed(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    objects = pl.tune(train, **options(**OBJECTS, store=store, name="objects"))
    names = pl.tune(
        train,
        **options(
            policy="asha:eta=4,drain=false",
            generator="random:order=subtrees",
            allocator="top",
            span=2,
            curves="last",
        ),
    )
    assert [trial.config for trial in objects.trials] == [trial.config for trial in names.trials]
    log = read_log(store, "objects")
    assert replay_log(log).difference is None
    with pytest.warns(pl.PacelineWarning, match="ended before"):
        again = pl.tune(train, **options(**OBJECTS, store=store, name="objects"))
    assert again.end == "quiet"
    assert read_log(store, "objects") == log


def test_an_object_can_be_given_to_several_studies() -> None:
    policy = pl.policies.Asha(eta=2)
    first, second = (pl.tune(train, **options(policy=policy, seed=3)) for _ in range(2))
    assert [trial.values for trial in first.trials] == [trial.values for trial in second.trials]


def test_a_class_of_another_module_is_written_as_module_and_class() -> None:
    part = describe_part("policy", Patient(weeks=3))
    assert part == Part(f"{__name__}:Patient", {"weeks": 3})
    assert build_part("policy", part).weeks == 3
    assert describe_part("policy", Positional(1)).params == {"first": 1}


def test_an_object_that_cannot_be_written_to_the_log_is_refused() -> None:
    class Local(Fifo):
        pass

    for given, message in (
        (Local(), "no other process can import it"),
        (Plain(), "derives from pl.parts.BasePart"),
        (Patient, "Patient is a class: pass an object, Patient(…)"),
        (Patient(weeks=lambda: 3), "weeks=.* cannot be written to the log"),  # type: ignore[arg-type]
        (Fixed(), "Fixed is for allocator=…, not for policy=…"),
    ):
        with pytest.raises(pl.SpecError, match=message.replace("(", r"\(").replace(")", r"\)")):
            pl.Study(train, **options(policy=given))


class WithoutMemory(BasePart):
    """A policy that lacks one method."""

    def judge(self, trial: Any, study: Any) -> tuple[()]:  # noqa: ANN401
        return ()

    def next(self, study: Any) -> None:  # noqa: ANN401
        return None

    def admit(self, study: Any) -> None:  # noqa: ANN401
        return None


class WithoutMethods(BasePart):
    """An allocator that lacks all methods."""


def test_a_part_that_lacks_a_method_is_refused_with_its_name() -> None:
    with pytest.raises(pl.SpecError, match=r"WithoutMemory' has no see: if it needs no memory, wr"):
        pl.tune(train, **options(policy=WithoutMemory()))
    with pytest.raises(pl.SpecError, match=r"WithoutMethods' has no see and no place: write them"):
        pl.tune(train, **options(allocator=WithoutMethods(), span=2))


def test_a_class_of_the_main_script_is_refused_with_the_way_out() -> None:
    code = (
        "import paceline as pl\n"
        "class Mine(pl.policies.Fifo): pass\n"
        "pl.Study(lambda trial: None, space={'x': pl.uniform(0, 1)}, metric='loss', mode='min',"
        " epochs=1, policy=Mine())"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "from __main__. Define the class at the top level of a module" in ran.stderr


def test_every_built_in_class_is_public_and_keeps_its_arguments() -> None:
    namespaces = {
        "policy": pl.policies,
        "generator": pl.generators,
        "allocator": pl.allocators,
        "curve model": pl.curves,
    }
    for kind, table in BUILT_IN.items():
        found = {place.partition(":")[2] for place in table.values()}
        assert found == set(namespaces[kind].__all__)
        for name in found:
            assert issubclass(getattr(namespaces[kind], name), BasePart)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = pl.policies.nonsense


def test_a_simulation_takes_objects_and_its_log_resumes() -> None:
    log: list[Any] = []
    simulation = pl.Simulation(source="toy:epochs=3", trials=4, policy=pl.policies.Asha(eta=2))
    found = simulation.run(remember=log.extend)
    assert found.policy == "asha:eta=2"
    assert simulation.resume(log[:5]).best_value == found.best_value


def test_a_run_builds_each_part_once() -> None:
    Counted.built = 0
    study = pl.Study(train, **options(policy=f"{__name__}:Counted"))
    study.run()
    assert Counted.built == 1
    study.run()
    assert Counted.built == 2, "each run has its own policy"


def test_the_keyword_arguments_are_the_fields_of_study_options() -> None:
    assert set(Options.__annotations__) == set(StudyOptions.__struct_fields__)


@pytest.mark.parametrize(
    "written",
    [
        {},
        {"local": True, "files": "/a", "checkpoints": "s3://b/c", "mps": "up"},
        {"ray": True, "file": "study.py", "given": {}, "deadline": "2026-01-01T00:00:00+00:00"},
        {"local": True, "together": True},
        {"source": "toy", "policy": "asha", "generator": None},
    ],
)
def test_the_run_info_of_a_log_is_written_as_it_was_read(written: dict[str, Any]) -> None:
    opened = Opened(at=0.0, spec=pl.Study(train, **options()).spec, engine=written)
    assert opened.run.to_log() == written
    assert RunInfo.from_log({**written, "later": 1}).kind == opened.run.kind
