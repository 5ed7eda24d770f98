"""The planner: each slot goes where its next second brings most.

Rule: at looks, epochs 1, 2, 3, 4, 5, 7, 9, 12, …, small networks estimate P(t), the chance that a
trial reaches the loss to reach within t more seconds, from the whole study: ranks among the trials
that got as far, own gains, gains of deeper trials, trials with similar configs. The index of a
trial is max over t of P(t) / C(t), with C(t) the integral of 1 - P over 0 to t, and with the cost
of a start if it is paused. A new trial's index is that at which the option to train it on after
its first look pays for that look. A trial trains on while its index is the largest; a free slot
goes to the largest of all. Nothing is stopped, so nothing that can win is lost.

The loss to reach is the target. Without one it is the best so far, improved by as much as a trial
is likely to gain in the time left. With a deadline, all chances end there.

The index is that of a bandit whose first success ends it (J. C. Gittins, "Bandit Processes and
Dynamic Allocation Indices", 1979), with the chances of HyperDrive's POP (Rasley et al., Middleware
2017) for the study as a whole. A trial that is sure to win gets further slots as long as they bring
more than any other trial would.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.core.base_part import BasePart
from paceline.core.decisions import Cut, Go, Launch, Open, Pause
from paceline.core.errors import SpecError
from paceline.core.events import Ended, Opened, Reported, Suggested
from paceline.core.ports import WIDEST_WINDOW, Pick
from paceline.core.speedup import SpeedUp
from paceline.core.text import format_duration, format_metric
from paceline.core.values import Status
from paceline.policies.planner.candidates import Candidates, CandidateSettings
from paceline.policies.planner.looks import Look
from paceline.policies.planner.ranking import Ranking, RankingSettings
from paceline.policies.planner.record import StudyRecord
from paceline.policies.planner.shared_stages import SharedStages
from paceline.policies.planner.weights import load_networks
from paceline.policies.target_chances import EpochPace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from paceline.core.decisions import Entry
    from paceline.core.ports import Verdict
    from paceline.core.values import AttemptId, Config, TrialId
    from paceline.core.views import StudyView, TrialView

# What is assumed of wide trials: that 94 % of the work is done in parallel.
_WIDE = SpeedUp(parallel=0.94)
# Without a budget that uses all slots, a chance below this is not worth a slot.
_LEAST = 0.05


class IndexComparison(NamedTuple):
    """The index of a trial at its look, beside the best other uses of its slot."""

    own: float
    paused: float
    paused_trial: TrialId
    new: float
    # Whether the trial's own index is at most this, and was not computed.
    is_bound: bool = False

    @property
    def other(self) -> float:
        """The index of the best other use."""
        return max(self.paused, self.new)


class Planner(BasePart):
    """Trains the trial, or opens the one, whose next slot-second is most likely to win."""

    def __init__(
        self, *, new: float = 0.8, margin: float = 1.3, configs: bool = True, window: int = 64
    ) -> None:
        if not 0.0 < new <= 10.0:
            raise SpecError(f"planner: new={new:g} is invalid: must be above 0 and at most 10.")
        if not 1.0 <= margin <= 100.0:
            raise SpecError(f"planner: margin={margin:g} is invalid: must be from 1 to 100.")
        if not 1 <= window <= WIDEST_WINDOW:
            raise SpecError(
                f"planner: window={window} is invalid: must be from 1 to {WIDEST_WINDOW}."
            )
        # The share by which the chances of a new trial count, and how much larger the index of
        # another use must be to pause a trial.
        self._settings = RankingSettings(new_share=new, margin=margin)
        # Whether trials with similar configs tell about each other.
        self._configs = configs
        # Among how many of the generator's next configs a new trial is chosen.
        self.window = window if configs else 1
        self._candidate_settings = CandidateSettings(window=self.window)
        self._networks = load_networks()
        self._begin(1, 0)
        self._pace = EpochPace()
        # What each live trial has reported.
        self._seen: dict[TrialId, Look] = {}
        # When each attempt was launched that has not reported yet.
        self._launched: dict[AttemptId, float] = {}
        # The trials that were compared at their last look and have not trained on since.
        self._compared: dict[TrialId, IndexComparison] = {}

    def _begin(self, epochs: int, seed: int) -> None:
        loaded = self._networks
        self._record = StudyRecord(epochs)
        self._ranking = Ranking(self._record, loaded.usable, self._settings, loaded.opening)
        self._candidates = Candidates(self._record, self._ranking, self._candidate_settings, seed)
        # None: no two trials can share epochs.
        self._shared: SharedStages | None = None

    # What happens

    def see(self, entry: Entry, study: StudyView) -> None:
        self._pace.see(entry, study)
        note = _NOTES.get(type(entry))
        if note is not None:
            note(self, entry, study)
        for trial in study.delivered:
            self._take_report(trial, study)
        for trial in study.departed:
            self._drop(trial, study)

    def _opened(self, entry: Opened, study: StudyView) -> None:
        spec = study.spec
        self._begin(spec.epochs, spec.seed)
        if spec.share:
            self._shared = SharedStages()
        target = spec.budget.target
        lowest = -math.inf if spec.range is None else min(spec.sign * end for end in spec.range)
        self._ranking.set_target(None if target is None else spec.sign * target.value, lowest)

    def _reported(self, entry: Reported, study: StudyView) -> None:
        launched = self._launched.pop(entry.attempt, None)
        if launched is not None:
            self._ranking.note_setup(max(0.0, entry.at - launched - entry.seconds))

    def _open(self, entry: Open, study: StudyView) -> None:
        self._record.open(entry.trial, entry.config if self._configs else {})
        self._ranking.open(entry.trial)

    def _suggested(self, entry: Suggested, study: StudyView) -> None:
        if self._configs:
            self._record.rename(entry.trial, entry.params)

    def _launch(self, entry: Launch, study: StudyView) -> None:
        self._launched[entry.attempt] = study.now

    def _ended(self, entry: Ended, study: StudyView) -> None:
        self._launched.pop(entry.attempt, None)

    def _paused(self, entry: Pause | Cut, study: StudyView) -> None:
        found = self._compared.pop(entry.trial, None)
        bound = found.own if found is not None and found.is_bound else None
        self._ranking.pause(entry.trial, bound)
        self._ranking.refresh()

    def _go(self, entry: Go, study: StudyView) -> None:
        self._compared.pop(entry.trial, None)
        self._ranking.resume(entry.trial)
        self._ranking.refresh()

    def _drop(self, trial: TrialView, study: StudyView) -> None:
        self._compared.pop(trial.id, None)
        self._seen.pop(trial.id, None)
        self._record.finish(trial.epoch)
        self._ranking.end(trial.id)
        self._pace.drop(trial.id)
        if self._shared is not None:
            self._record.share(self._shared.drop(trial.id))
        self._update(study)

    def _take_report(self, trial: TrialView, study: StudyView) -> None:
        """Note an epoch; at a look, compare the trial with all other uses of its slot."""
        record, ranking = self._record, self._ranking
        seen = self._seen.get(trial.id)
        if seen is None:
            seen = self._seen[trial.id] = Look()
        seen.add(trial.epoch, trial.loss)
        record.note_best(trial.epoch, trial.loss)
        level = record.level_of.get(trial.epoch)
        if level is None or level != record.level(trial.id) + 1:
            return
        record.pace[trial.id] = self._pace.get(trial.id)
        record.look(trial.id, seen)
        ranking.guard.score(trial.id, seen.best)
        if level == 0:
            ranking.note_first_look(trial.id)
        is_last = trial.epoch >= study.spec.epochs
        if self._shared is not None and trial.alive and not is_last:
            until = self._find_next_look(trial.epoch)
            record.share(self._shared.drop(trial.id))
            record.share(self._shared.move(trial.id, trial.origin(until), until))
        self._update(study)
        if trial.alive and not is_last:
            self._compared[trial.id] = self._compare(trial.id, seen.best)

    def _compare(self, trial: TrialId, best: float) -> IndexComparison:
        """Return the index of a running trial beside the others."""
        ranking = self._ranking
        paused, paused_trial = ranking.best_paused
        bound = ranking.screen(trial, best)
        if bound is not None:
            return IndexComparison(bound, paused, paused_trial, ranking.new_index, is_bound=True)
        own = ranking.rank_running(trial)
        found = IndexComparison(own, paused, paused_trial, ranking.new_index)
        ranking.note_index(trial, best, own, found.other)
        return found

    def _update(self, study: StudyView) -> None:
        left = math.inf if study.deadline_s is None else max(0.0, study.deadline_s - study.now)
        self._ranking.update(left)
        self._ranking.refresh()

    # Verdicts

    def judge(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        if not trial.alive or trial.epoch < trial.goal or trial.epoch >= study.spec.epochs:
            return ()
        found = self._compared.get(trial.id)
        until = self._find_next_look(trial.epoch)
        if found is None:
            return (Go(trial=trial.id, until=until, why=f"its next look is at epoch {until}"),)
        new = found.new if not study.closed else 0.0
        why = self._explain(found, study)
        if self._ranking.should_pause(found.own, max(found.paused, new)):
            return (Pause(trial=trial.id, why=why),)
        width = self._choose_width(found, study)
        return (Go(trial=trial.id, until=until, width=width, why=why),)

    def readmit(self, trial: TrialView, study: StudyView) -> Sequence[Verdict]:
        if trial.goal in self._record.level_of:
            return ()
        until = self._find_next_look(trial.goal)
        why = f"the study was extended: the look after epoch {trial.goal} is at epoch {until}"
        return (Go(trial=trial.id, until=until, why=why),)

    def next(self, study: StudyView) -> Pick | None:
        for ready in study.ready:
            return Pick(ready, 0, "it was interrupted before its look")
        ranking = self._ranking
        index, trial = ranking.best_paused
        has_paused = index > -math.inf
        if not study.closed and (not has_paused or ranking.new_index > index):
            if not study.new:
                return None  # its config is on its way
            return Pick(None, self._record.looks[0], self._explain_new(index, trial, study))
        chosen = self._choose_paused(study)
        if chosen is None:
            return None
        until = self._find_next_look(study.trials[chosen].epoch)
        if chosen != trial:
            return Pick(chosen, until, "it is the best so far, and trains to its last epoch")
        others = "no new trials come"
        if not study.closed:
            others = f"a new trial in {_format_slot_time(ranking.new_index)}"
        why = f"{self._describe(index, study)} of slot time; {others}"
        found = IndexComparison(index, 0.0, -1, 0.0 if study.closed else ranking.new_index)
        return Pick(trial, until, why, width=self._choose_width(found, study))

    def choose(self, configs: Mapping[int, Config], study: StudyView) -> int:
        """Return the number of the config that a new trial gets."""
        return self._candidates.choose(configs)

    def admit(self, study: StudyView) -> int | None:
        return None

    def count_waiting(self, study: StudyView, new: float) -> float:
        """Return how many more trials would start if slots were free, `new` of them new."""
        if not new and self._choose_paused(study) is None:
            return new
        return new + self._ranking.count_paused()

    def _choose_paused(self, study: StudyView) -> TrialId | None:
        """Return the paused trial for a slot that no new trial gets; None: none is worth it.

        A deadline, a target or the slot time use all slots to the end. Where only the trials end
        the study, trials train on that are likely to improve its best, and at last the best one.
        """
        index, trial = self._ranking.best_paused
        if index == -math.inf:
            return None
        budget = study.spec.budget
        if study.deadline_s is not None or budget.target or budget.slot_seconds is not None:
            return trial
        if not study.closed or self._ranking.find_chance(trial) >= _LEAST:
            return trial
        best = study.best
        return best.id if best is not None and best.status is Status.PAUSED else None

    def _find_next_look(self, epoch: int) -> int:
        looks = self._record.looks
        return next((look for look in looks if look > epoch), looks[-1])

    def _choose_width(self, found: IndexComparison, study: StudyView) -> float:
        """Return the slots for a trial: one more while it brings more than any other trial.

        0: the allocator decides alone, whether the trial has a slot or shares one.
        """
        span = min(study.spec.span, study.capacity)
        if span <= 1:
            return 0
        width, other = 1, max(found.other, 1e-300)
        while width < span and found.own * (_WIDE.of(width + 1) - _WIDE.of(width)) > other:
            width += 1
        return float(width) if width > 1 else 0

    # Reasons

    def _describe(self, index: float, study: StudyView) -> str:
        """Return an index as the slot time in which one success is expected."""
        value = format_metric(self._ranking.target, study.spec)
        fault = f" ({self._networks.fault})" if self._networks.fault else ""
        return f"reaches {study.spec.metric} {value} once in {_format_slot_time(index)}{fault}"

    def _explain(self, found: IndexComparison, study: StudyView) -> str:
        others = []
        if found.is_bound:
            return f"{self._describe(found.own, study)} of slot time or more: worse than others"
        if found.paused > -math.inf:
            others.append(f"trial {found.paused_trial} in {_format_slot_time(found.paused)}")
        if not study.closed:
            others.append(f"a new trial in {_format_slot_time(found.new)}")
        beside = ", ".join(others) or "nothing else is left to train"
        return f"{self._describe(found.own, study)} of slot time; {beside}"

    def _explain_new(self, index: float, trial: TrialId, study: StudyView) -> str:
        new = self._ranking.new_index
        if math.isinf(new):
            return "a slot is free, and too little is known to compare trials"
        beside = f"; trial {trial} in {_format_slot_time(index)}" if index > -math.inf else ""
        return f"a new trial {self._describe(new, study)} of slot time{beside}"


def _format_slot_time(index: float) -> str:
    """Return the slot time in which one success is expected at this index."""
    return format_duration(1.0 / index) if index > 0.0 else "no time"


# What each kind of entry tells; reports are taken by trial, in `see`.
_NOTES: dict[type, Callable[[Planner, Any, StudyView], None]] = {
    Opened: Planner._opened,
    Reported: Planner._reported,
    Open: Planner._open,
    Suggested: Planner._suggested,
    Launch: Planner._launch,
    Ended: Planner._ended,
    Pause: Planner._paused,
    Cut: Planner._paused,
    Go: Planner._go,
}
