"""Live compositions: studies of real processes, compared with each config trained alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from command_line import read_log
from compositions import find_wrong_values

import paceline as pl
from paceline.api.registry import build_parts
from paceline.core.events import Opened
from paceline.core.ports import Outcome
from paceline.machine.invariants import find_violations
from paceline.machine.replay import replay
from paceline.machine.state import StudyState

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from paceline.core.values import Config

EPOCHS = 6
RATES = pl.choice([0.1, 0.2, 0.4])
SPACE = {"lr": pl.piecewise([(0, RATES), (2, RATES), (4, RATES)])}
# Each with forecasts or pauses in the middle of shared stages, and most with other widths.
COMPOSITIONS: dict[str, dict[str, Any]] = {
    "pop": {"policy": "pop:boundary=1", "curves": "last"},
    "hypersched": {
        "policy": "hypersched:eta=2",
        "span": 2,
        "allocator": "uniform",
        "target": -1.0,
    },
    "asha": {"policy": "asha:eta=2,drain=true", "pack": 2, "allocator": "fluid"},
    "planner": {"policy": "planner", "span": 2, "allocator": "fluid"},
    "pbt": {
        "policy": "pbt:population=4,interval=2,quantile=0.4",
        "space": {"lr": pl.uniform(0, 1)},
    },
}


class DecayingSum:
    """What the training function computes: a sum that depends on every setting so far."""

    metric = "loss"

    def begin(self, config: Config) -> object:
        return 0.0

    def setup_s(self, state: object) -> float | None:
        return None

    def advance(self, state: object, setting: Config) -> Outcome:
        assert isinstance(state, float)
        total = round(0.9 * state + setting["lr"], 9)
        return Outcome({self.metric: total}, 0.0, total)


def make_training(folder: Path) -> Callable[[Any], None]:
    """Return a function that fails once in its third epoch with a high rate."""
    path = str(folder)

    def train(trial: Any) -> None:  # noqa: ANN401
        from pathlib import Path

        state = trial.keep(state={"total": 0.0})
        for epoch in trial.epochs():
            mark = Path(path) / f"failed-{trial['lr']:g}"
            if epoch == 3 and trial["lr"] > 0.3 and not mark.exists():
                mark.touch()
                raise RuntimeError("it fails once")
            state["total"] = round(0.9 * state["total"] + trial["lr"], 9)
            trial.report(loss=state["total"])

    return train


def check_study(folder: Path, composition: dict[str, Any], slots: Any) -> None:  # noqa: ANN401
    """Run a study; compare every value with its config trained alone, and check the log."""
    store = f"sqlite:///{folder / 'studies.db'}"
    options: dict[str, Any] = {
        "space": SPACE,
        "metric": "loss",
        "mode": "min",
        "epochs": EPOCHS,
        "generator": "random",
        "trials": 8,
        "share": True,
        "slots": slots,
        "retries": 3,
        "progress": False,
        "files": folder / "files",
        **composition,
    }
    pl.tune(make_training(folder), name="composed", store=store, **options)
    steps = read_log(store, "composed")
    state = StudyState()
    for step in steps:
        for entry in step.entries:
            state.apply(entry)
    assert find_wrong_values(state, DecayingSum()) == []
    assert find_violations(state) == []
    assert state.reports >= EPOCHS
    opened = steps[0].event
    assert isinstance(opened, Opened)
    assert replay(steps, build_parts(opened.spec)) is None
