"""Kill a study in the middle and run it again: it resumes, and nothing that was saved is lost.

This script starts itself as a second process that runs the study, kills that process with SIGKILL,
and runs the same study to its end. Each trained epoch writes a line to a file, so that you can
count them. Run it with `python examples/06_resume_after_crash.py`.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import paceline as pl

FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="resume-"))
LINES = FOLDER / "epochs.txt"


def train(trial):
    weight = trial.keep(weight=[0.0])
    for epoch in trial.epochs():
        time.sleep(0.03)  # slow enough to be killed in the middle
        weight[0] += trial["lr"] * (1.0 - weight[0])
        with LINES.open("a") as file:
            file.write(f"trial {trial.id}, epoch {epoch}\n")
        trial.report(loss=(1.0 - weight[0]) ** 2)


study = pl.Study(
    train,
    space={"lr": pl.loguniform(0.01, 1.0)},
    metric="loss",
    mode="min",
    epochs=9,
    trials=12,
    slots="cpu:2",
    # The name and the store let the second run find the study again.
    name="crash",
    store=f"sqlite:///{FOLDER}/paceline.db",
)


def read_trained():
    return LINES.read_text().splitlines() if LINES.exists() else []


if len(sys.argv) > 1:
    study.run()
else:
    process = subprocess.Popen([sys.executable, __file__, str(FOLDER)])
    while len(read_trained()) < 20 and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    print(f"killed with signal {-process.wait()} after {len(read_trained())} epochs")

    result = study.run()
    lines = Counter(read_trained())
    again = sum(times - 1 for times in lines.values())
    print(f"ended: {result.why}")
    print(f"{len(result.trials)} trials, {len(lines)} epochs, of which {again} were trained twice")
    print(f"loss {result.best.value:.2g} with {result.best.config}")
    shutil.rmtree(FOLDER)
