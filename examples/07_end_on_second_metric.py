"""Your own policy, which ends the whole study on a second metric, combined with ASHA.

The goal here is not the most accurate model but a good one that is small enough to be used. As soon
as a trial has reached it, the study ends: HyperDrive calls this global termination. Run it with
`python examples/07_end_on_second_metric.py`.
"""

import math

import paceline as pl
from paceline.parts import End, EndCause
from paceline.policies import Fifo


class GoodAndSmall(Fifo):
    """Rule: end the study once a report has accuracy >= `accuracy` and size_mb <= `size_mb`."""

    def __init__(self, *, accuracy: float, size_mb: float) -> None:
        self._accuracy = accuracy
        self._size_mb = size_mb

    def judge(self, trial, study):
        accuracy, size_mb = trial.metric("accuracy")[-1], trial.metric("size_mb")[-1]
        if accuracy is None or size_mb is None:
            return ()  # a report without numbers
        if accuracy < self._accuracy or size_mb > self._size_mb:
            return ()
        why = f"trial {trial.id} has accuracy {accuracy:.3f} and {size_mb:g} MB"
        return (End(cause=EndCause.POLICY, why=why),)


def train(trial):
    state = trial.keep(accuracy=[0.0])
    size_mb = trial["width"] / 16
    off = abs(math.log10(trial["lr"] / 0.1)) + 0.2 * abs(math.log2(trial["width"] / 32))
    best = 1.0 - 0.1 * off
    for _ in trial.epochs():
        state[0] += 0.3 * (best - state[0])
        trial.report(accuracy=state[0], size_mb=size_mb)


if __name__ == "__main__":
    result = pl.tune(
        train,
        space={"lr": pl.loguniform(0.001, 1.0), "width": pl.choice([4, 16, 64, 256])},
        metric="accuracy",
        mode="max",
        epochs=27,
        # From your own module: `package.module:GoodAndSmall`.
        policy="asha+__main__:GoodAndSmall:accuracy=0.9,size_mb=2",
        trials=100,
        slots=2,
        progress=False,
    )
    print(f"{len(result.trials)} of 100 trials: {result.summary().end_why}")
