"""Random parts: a policy, an allocator and a generator that use the whole port, at random.

For tests of the machine and the engines. Their answers depend only on a seed and on the study's
log, so a study with them replays like any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.core.decisions import (
    AskForecast,
    Close,
    Cut,
    End,
    EndCause,
    Go,
    Launch,
    Open,
    Pause,
    Stop,
    WakeAt,
)
from paceline.core.events import (
    CapacityChanged,
    Commanded,
    Extended,
    Forecasted,
    Proposed,
    Resumed,
    Woke,
)
from paceline.core.ports import Fork, Pick, see_nothing
from paceline.core.rng import stream
from paceline.core.values import Status, TrialId

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paceline.core.decisions import Entry
    from paceline.core.ports import Demand, Demands, Verdict
    from paceline.core.values import Config
    from paceline.core.views import StudyView, TrialView


# After these, other trials may have become better or worse than a paused one.
_CHANGES = (CapacityChanged, Commanded, Extended, Forecasted, Launch, Open, Proposed, Resumed, Woke)


class RandomPolicy:
    """Returns every kind of verdict, chosen by a hash.

    It does not continue a trial that it has just paused before anything else happens: the restart
    would be for nothing.
    """

    def __init__(self, *, seed: int = 0, forks: list[dict[str, Any]] | None = None) -> None:
        self._seed = seed
        # Changes that forks choose from; without any, it never forks.
        self._forks: list[Config] = [dict(changes) for changes in forks or ()]
        # The trials that were paused, if nothing has happened since.
        self._resting: frozenset[TrialId] = frozenset()

    def see(self, entry: Entry, study: StudyView) -> None:
        if isinstance(entry, Cut | Pause):
            self._resting |= {entry.trial}
        elif study.delivered or isinstance(entry, _CHANGES):
            self._resting = frozenset()

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        if not trial.alive:
            return ()
        rng = stream(self._seed, "judge", trial.id, trial.epoch, _instant(study))
        number, last, draw = trial.id, study.spec.epochs, rng.random()
        verdicts: list[Verdict] = []
        if draw < 0.06:
            return (Stop(trial=number, why="the probe stops it"),)
        if draw < 0.10 and self._forks:
            return (self._fork(trial, study, rng.random()),)
        if rng.random() < 0.15 and trial.epoch < last and trial.forecast is None:
            horizons = (trial.epoch + 1, last) if trial.epoch + 1 < last else (last,)
            verdicts.append(
                AskForecast(
                    trial=number, epoch=trial.epoch, horizons=horizons, why="the probe is curious"
                )
            )
        if rng.random() < 0.05:
            at = study.now + 3 * rng.random()
            verdicts.append(WakeAt(at=at, trial=number, why="the probe looks again"))
        if trial.epoch < trial.goal:
            if draw > 0.9:
                verdicts.append(Cut(trial=number, why="the probe cuts it"))
        elif draw < 0.5:
            until = min(last, trial.epoch + 1 + int(3 * rng.random()))
            verdicts.append(Go(trial=number, until=until, why="the probe lets it go on"))
        else:
            verdicts.append(Pause(trial=number, why="the probe lets it wait"))
        return verdicts

    def next(self, study: StudyView) -> Pick | None:
        rng = stream(self._seed, "next", len(study.trials), study.running, _instant(study))
        ready = list(study.ready)
        waiting = [
            trial
            for trial in study.trials
            if trial.status is Status.PAUSED and trial.id not in self._resting
        ]
        draw = rng.random()
        if study.new and (draw < 0.4 or not (ready or waiting)):
            return Pick(None, 1 + int(3 * rng.random()), "the probe wants a new one")
        if ready and (draw < 0.8 or not waiting):
            return Pick(ready[int(rng.random() * len(ready))], 0, "the probe takes a ready one")
        if waiting:
            trial = waiting[int(rng.random() * len(waiting))]
            return Pick(trial.id, trial.epoch + 2, "the probe takes a waiting one")
        return None

    def admit(self, study: StudyView) -> int | None:
        return None if self._seed % 2 else 6

    def _fork(self, trial: TrialView, study: StudyView, draw: float) -> Fork:
        donors = [other for other in study.trials if other.epoch > 0] or [trial]
        source = donors[int(draw * len(donors))]
        changes = self._forks[int(draw * 97) % len(self._forks)]
        return Fork(
            trial=trial.id,
            source=source.id,
            epoch=source.epoch,
            changes=changes,
            until=min(study.spec.epochs, source.epoch + 2),
            why="the probe forks",
        )


class EndingPolicy(RandomPolicy):
    """A random policy that closes the study after half of `reports`, and ends it after all."""

    def __init__(self, *, seed: int = 0, reports: int = 10) -> None:
        super().__init__(seed=seed)
        self._reports = reports

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        seen = sum(other.epoch for other in study.trials)
        if seen >= self._reports:
            return (End(cause=EndCause.POLICY, why=f"{seen} reports are enough"),)
        if seen >= self._reports / 2:
            return (Close(why="half of it is enough to start"), *super().judge(trial, study))
        return super().judge(trial, study)


class RandomAllocator:
    """Gives random widths from 1/pack to span, and now and then resizes running trials."""

    see = staticmethod(see_nothing)

    def __init__(self, *, seed: int = 0) -> None:
        self._seed = seed

    def place(self, demands: Demands, study: StudyView) -> Mapping[TrialId, float]:
        widths = {}
        if demands.asking is not None:
            widths[demands.asking.trial] = self._width(demands.asking, study)
        for demand in demands.running():
            rng = stream(self._seed, "move", demand.trial, f"{demand.work:g}", _instant(study))
            if rng.random() < 0.1:
                widths[demand.trial] = self._width(demand, study)
        return widths

    def _width(self, demand: Demand, study: StudyView) -> float:
        rng = stream(self._seed, "width", demand.trial, _instant(study))
        span, pack = study.spec.span, study.spec.pack
        choice = int(rng.random() * (span + pack - 1))
        return max(float(choice + 1) if choice < span else 1.0 / (choice - span + 2), demand.least)


class DeferredGenerator:
    """A list of configs that is not pure: configs are requested and answered, like a sampler's."""

    pure = False
    see = staticmethod(see_nothing)

    def __init__(self, *, configs: list[dict[str, Any]]) -> None:
        self._configs: list[Config] = [dict(config) for config in configs]

    def propose(self, number: int, study: StudyView) -> Config | None:
        return self._configs[number] if number < len(self._configs) else None


def _instant(study: StudyView) -> str:
    return f"{study.now:.6f}"
