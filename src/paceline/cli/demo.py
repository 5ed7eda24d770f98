"""`paceline demo`: run a small real study on this machine, in about a minute.

Knows the study, its store, and which commands to suggest next. Does not know the network:
`demo_training` trains it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.api.options import parse_duration
from paceline.cli.flags import duration
from paceline.core.errors import SpecError, StoreError
from paceline.core.text import format_count, format_duration
from paceline.core.values import Status

if TYPE_CHECKING:
    from paceline.api.results import Result, TrialResult
    from paceline.api.study import Study

FOLDER = Path("paceline-demo")
STORE = FOLDER / "paceline.db"
DEADLINE = "45s"
GENERATOR = "tpe"
# With more cores every trial would train to its end, and the policy would have nothing to do.
CORES = 4
TRIALS_PER_CORE = 32


@click.command()
@click.option("--deadline", type=duration, help=f"End after this much time. [default: {DEADLINE}]")
@click.option(
    "--simulated", is_flag=True, help="Run two simulated studies on a recorded trace instead."
)
def demo(deadline: float | None, simulated: bool) -> None:
    """Tune a small network on this machine, in a minute.

    Runs a real study on at most four cores: a network in numpy learns pictures of clothes, which
    are part of the package. The study, its checkpoints and its report go to the folder
    paceline-demo. After Ctrl-C, run the demo again to resume it.

    With --simulated, nothing is trained or written: a hundred recorded CIFAR-10 trainings are
    scheduled twice, by a policy that runs all of them to the end and by one that stops early.
    """
    if simulated:
        from paceline.cli.demo_simulated import show_simulated

        if deadline is not None:
            raise click.UsageError("--deadline works only without --simulated.")
        show_simulated()
        return
    from paceline.cli import tables
    from paceline.cli.report import has_plotly
    from paceline.cli.run import run_live

    study, cores = _make_study(parse_duration(DEADLINE) if deadline is None else deadline)
    tables.show(_introduce(study, cores), "")
    report = FOLDER / f"{study.spec.name}.html" if has_plotly() else None
    result = run_live(study, report=report)
    tables.show(_test_checkpoint(result.best_or_none), "")
    held = _find_held_back(result)
    if held is not None:
        tables.show(f"Every decision has a reason. Trial {held.id} was held back:")
        tables.show(tables.indent(result.story(held.id).splitlines()), "")
    suggested = _suggest_commands(study.spec.name, result.best_or_none)
    click.echo("\n".join(["What to try next:", *suggested]))


def _make_study(deadline: float) -> tuple[Study, int]:
    """Return the demo's study and the number of its cores."""
    from paceline.api.study import Study
    from paceline.cli.demo_training import EPOCHS, SPACE, train
    from paceline.engines.process.local.devices import find_devices

    try:
        FOLDER.mkdir(exist_ok=True)
    except OSError as error:
        raise SpecError(
            f"the folder {FOLDER} cannot be created here ({error.strerror}): change to a folder "
            "where you can write."
        ) from None
    cores = min(find_devices("cpu").cores, CORES)
    number = _choose_number(deadline)
    study = Study(
        train,
        space=SPACE,
        metric="accuracy",
        range=(0.0, 1.0),
        mode="max",
        epochs=EPOCHS,
        policy="asha",
        generator=GENERATOR,
        trials=cores * TRIALS_PER_CORE,
        deadline=deadline,
        slots=f"cpu:{cores}",
        seed=number - 1,
        name="demo" if number == 1 else f"demo-{number}",
        store=f"sqlite:///{STORE}",
    )
    return study, cores


def _choose_number(deadline: float) -> int:
    """Return the number of the last demo if it was interrupted, else of a new one."""
    from paceline.api.stored import fold_log, open_existing, read_log

    try:
        with open_existing(str(STORE)) as store:
            names = store.studies()
            last = fold_log(read_log(store, names[-1])) if names else None
    except StoreError:
        return 1  # the first demo
    is_unfinished = (
        last is not None and last.end is None and last.spec.budget.deadline_s == deadline
    )
    return len(names) + (not is_unfinished)


def _introduce(study: Study, cores: int) -> str:
    budget = study.spec.budget
    return (
        "A small network in numpy learns ten kinds of clothes from 6,000 pictures of "
        "Fashion-MNIST. Which learning rates, width, momentum and dropout suit it best? "
        f"{budget.trials} configs of {study.spec.epochs} epochs, "
        f"{format_count(cores, 'core')}, {format_duration(budget.deadline_s or 0.0)}: asha lets "
        "only the best third of each rung go on, and trials with the same first settings share "
        "their first epochs."
    )


def _test_checkpoint(best: TrialResult | None) -> str:
    """Load the best checkpoint, measure its accuracy again, and describe the result."""
    from paceline.cli.demo_training import accuracy, data

    if best is None or best.checkpoint is None:
        return "No checkpoint was saved in this time: try a longer --deadline."
    weights = best.checkpoint.load()["weights"]
    again, unseen = (accuracy(weights, some) for some in data()[1:])
    return (
        f"The best checkpoint, epoch {best.checkpoint.epoch} of trial {best.id}, loaded again: "
        f"accuracy {again:.4g} on the 2,000 pictures that judge the trials, {unseen:.4g} on 2,000 "
        "pictures that no trial saw."
    )


def _find_held_back(result: Result) -> TrialResult | None:
    """Return the trial, other than the best, that was paused or stopped at the latest epoch."""
    best = result.best_or_none
    held = [
        trial
        for trial in result.trials
        if trial.status in (Status.PAUSED, Status.STOPPED) and trial != best
    ]
    return max(held, key=lambda trial: (len(trial.values), trial.id), default=None)


def _suggest_commands(name: str, best: TrialResult | None) -> list[str]:
    trace = FOLDER / f"{name}.jsonl.gz"
    number = 0 if best is None else best.id
    return [
        f"  paceline story {name} {number} --store {STORE}",
        f"  paceline best {name} --store {STORE}",
        f"  paceline replay {name} --store {STORE}",
        f"  paceline export {name} {trace} --store {STORE}",
        f"  paceline simulate {trace} --policy fifo --slots 8 --complete",
    ]
