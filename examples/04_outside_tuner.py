"""Your own tuner, here successive halving, that uses Paceline only to train.

Run it with `python examples/04_outside_tuner.py`.
"""

import random

import paceline as pl


def train(trial):
    weights = trial.keep(weights=[0.0])
    for _ in trial.epochs():
        weights[0] += trial["lr"] * (1.0 - weights[0])
        trial.report(loss=(1.0 - weights[0]) ** 2 + 0.1 * (trial["lr"] - 0.4) ** 2)


rng = random.Random(0)
configs = [{"lr": round(rng.uniform(0.01, 1.0), 3)} for _ in range(9)]
with pl.Study(train, metric="loss", mode="min", epochs=9) as study:
    for epochs in (1, 3, 9):
        ran = study.group([(config, epochs) for config in configs])
        ranked = sorted(ran, key=lambda trial: trial.values[-1])
        configs = [trial.config for trial in ranked[: max(1, len(ranked) // 3)]]
        print(f"after {epochs} epochs {ranked[0].config} leads with {ranked[0].values[-1]:.4f}")
