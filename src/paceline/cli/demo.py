"""`paceline demo`: a real study on this machine, in about a minute.

Knows which study that is, where it is kept, and what to try next. What is trained is known by
`demo_training`, how a study is run and shown by `running`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.analysis.story import span
from paceline.api.options import seconds_of
from paceline.cli.flags import duration
from paceline.core.errors import SpecError, StoreError
from paceline.core.values import Status

if TYPE_CHECKING:
    from paceline.api.results import Result, TrialResult
    from paceline.api.study import Study

FOLDER = Path("paceline-demo")
STORE = FOLDER / "paceline.db"
DEADLINE = "45s"
GENERATOR = "tpe"
# More cores would train everything to its end, and show nothing of what stopping is worth.
CORES = 4
TRIALS_PER_CORE = 32


@click.command()
@click.option("--deadline", type=duration, help=f"End after this much time. [default: {DEADLINE}]")
@click.option(
    "--simulated", is_flag=True, help="Two simulated studies on a recorded trace instead."
)
def demo(deadline: float | None, simulated: bool) -> None:
    """Tune a small network on this machine, in a minute.

    A real study on at most four cores: a network in numpy learns pictures of clothes that come with
    the package. The folder paceline-demo gets the study, its checkpoints and its report. A demo
    that was interrupted goes on.

    With --simulated nothing is trained or written: a hundred recorded CIFAR-10 trainings are
    scheduled twice, by a policy that runs all to their end and by one that stops the hopeless.
    """
    if simulated:
        from paceline.cli.demo_simulated import show_simulated

        if deadline is not None:
            raise click.UsageError("--deadline is for the real demo: leave out --simulated.")
        show_simulated()
        return
    from paceline.cli import tables
    from paceline.cli.run import run_live

    study, cores = _study(seconds_of(DEADLINE) if deadline is None else deadline)
    tables.show(_question(study, cores), "")
    result = run_live(study, report=FOLDER / f"{study.spec.name}.html")
    tables.show(*_loaded_back(result.best), "")
    held = _held_back(result)
    if held is not None:
        tables.show(f"Every decision says why. Trial {held.id} was held back:")
        tables.show(tables.indented(result.story(held.id).splitlines()), "")
    click.echo("\n".join(["What to try next:", *_next(study.spec.name, result.best)]))


def _study(deadline: float) -> tuple[Study, int]:
    """Return the demo's study and on how many cores it runs."""
    from paceline.api.study import Study
    from paceline.cli.demo_training import EPOCHS, SPACE, train
    from paceline.engines.process.local.devices import find_devices

    try:
        FOLDER.mkdir(exist_ok=True)
    except OSError as error:
        raise SpecError(
            f"the folder {FOLDER} cannot be made here ({error.strerror}): go to a folder of yours."
        ) from None
    cores = min(find_devices("cpu").cores, CORES)
    number = _number(deadline)
    study = Study(
        train,
        space=SPACE,
        metric="accuracy",
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


def _number(deadline: float) -> int:
    """Return the number of the next demo, or of the last where that was interrupted."""
    from paceline.api.stored import folded, opened

    try:
        with opened(str(STORE)) as store:
            names = store.studies()
            last = folded(store.read(names[-1])) if names else None
    except StoreError:
        return 1  # there is none yet
    goes_on = last is not None and last.end is None and last.spec.budget.deadline_s == deadline
    return len(names) + (not goes_on)


def _question(study: Study, cores: int) -> str:
    budget = study.spec.budget
    return (
        "A small network in numpy learns ten kinds of clothes from 6,000 pictures of "
        "Fashion-MNIST. Which learning rates, width, momentum and dropout suit it best? "
        f"{budget.trials} configs of {study.spec.epochs} epochs, {cores} "
        f"{'core' if cores == 1 else 'cores'}, {span(budget.deadline_s or 0.0)}: asha lets only "
        "the best third of each rung go on, and trials that begin alike train their first epochs "
        "together."
    )


def _loaded_back(best: TrialResult | None) -> list[str]:
    """Say what the best checkpoint is worth, by loading it and looking at pictures again."""
    from paceline.cli.demo_training import accuracy, data

    if best is None or best.checkpoint is None:
        return ["Nothing was saved in this time: give it a longer --deadline."]
    weights = best.checkpoint.load()["weights"]
    again, unseen = (accuracy(weights, some) for some in data()[1:])
    return [
        f"Loaded back from the best checkpoint, epoch {best.checkpoint.epoch} of trial {best.id}: "
        f"accuracy {again:.4g} on the 2,000 pictures that trials are judged by, {unseen:.4g} on "
        "2,000 that no trial saw."
    ]


def _held_back(result: Result) -> TrialResult | None:
    """Return the trial that was held back at the latest epoch, if any but the best was."""
    best = result.best
    held = [
        trial
        for trial in result.trials
        if trial.status in (Status.WAITING, Status.STOPPED) and trial != best
    ]
    return max(held, key=lambda trial: (len(trial.values), trial.id), default=None)


def _next(name: str, best: TrialResult | None) -> list[str]:
    trace = FOLDER / f"{name}.jsonl.gz"
    number = 0 if best is None else best.id
    return [
        f"  paceline story {name} {number} --store {STORE}",
        f"  paceline best {name} --store {STORE}",
        f"  paceline replay {name} --store {STORE}",
        f"  paceline export {name} {trace} --store {STORE}",
        f"  paceline simulate {trace} --policy asha --slots 8",
    ]
