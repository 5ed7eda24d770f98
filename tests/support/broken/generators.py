"""Generators that break one clause each."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from paceline.core.errors import SpecError
from paceline.core.events import Cause, Ended
from paceline.core.rng import stream
from paceline.core.space import Space
from paceline.generators.random import Random

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.core.decisions import Entry
    from paceline.core.values import Config
    from paceline.core.views import StudyView

_calls = count()


class NoNumber(Random):
    def propose(self, number: int, study: StudyView) -> Config | None:
        return {"x": float("nan")}


class EndsAndContinues(Random):
    """Ends once, and then proposes configs again."""

    def propose(self, number: int, study: StudyView) -> Config | None:
        return None if number == 5 else super().propose(number, study)


class FailsAtFailures(Random):
    """Raises at the first failed attempt."""

    def see(self, entry: Entry, study: StudyView) -> None:
        if isinstance(entry, Ended) and entry.cause is Cause.FAILED:
            raise KeyError(entry.attempt)


class CountsCalls(Random):
    """Proposes the next config, whatever number is requested."""

    def propose(self, number: int, study: StudyView) -> Config | None:
        return super().propose(next(_calls), study)


class LearnsFromFailures(Random):
    """Depends on the log although it claims to be pure."""

    def propose(self, number: int, study: StudyView) -> Config | None:
        return super().propose(number + 1000 * sum(t.failures for t in study.trials), study)


class ChangedDraws(Random):
    """A generator whose draws subclasses change."""

    def __init__(self, *, space: dict[str, Any]) -> None:
        super().__init__(space=space)
        self.space = Space(space)

    def shares(self, number: int, seed: int) -> list[float]:
        rng = stream(seed, "config", number)
        return [rng.random() for _ in self.space.dimensions]

    def propose(self, number: int, study: StudyView) -> Config | None:
        shares = self.shares(number, study.spec.seed)
        pairs = zip(self.space.dimensions, shares, strict=True)
        return self.space.config([dimension.at(share) for dimension, share in pairs])


class BeyondTheEnds(ChangedDraws):
    def propose(self, number: int, study: StudyView) -> Config | None:
        config = super().propose(number, study)
        return config and {**config, "randint": 3}


class FillsTheTopAlone(ChangedDraws):
    """Fills only the top level, not domains inside schedules and lists."""

    def __init__(self, *, space: dict[str, Any]) -> None:
        super().__init__(space=space)
        self.template = space

    def propose(self, number: int, study: StudyView) -> Config | None:
        config = super().propose(number, study)
        tops = {dimension.path[0] for dimension in self.space.dimensions if not dimension.path[1:]}
        return config and {
            name: config[name] if name in tops else value for name, value in self.template.items()
        }


class NeedsDimensions(ChangedDraws):
    least = 1

    def propose(self, number: int, study: StudyView) -> Config | None:
        enough = len(self.space.dimensions) >= self.least
        return super().propose(number, study) if enough else None


class NeedsTwoDimensions(NeedsDimensions):
    least = 2


class OneDrawForAll(ChangedDraws):
    def shares(self, number: int, seed: int) -> list[float]:
        return super().shares(number, seed)[:1] * len(self.space.dimensions)


class LeavesOptionsOpen(ChangedDraws):
    """Copies an option without filling its domains."""

    def propose(self, number: int, study: StudyView) -> Config | None:
        config = super().propose(number, study)
        tops = [each for each in self.space.dimensions if each.under is None and not each.path[1:]]
        return config and {**config, **{str(each.path[0]): each.at(0.4) for each in tops}}


class IgnoresTheSeed(ChangedDraws):
    def shares(self, number: int, seed: int) -> list[float]:
        return super().shares(number, 0)


class RepeatsItself(ChangedDraws):
    def shares(self, number: int, seed: int) -> list[float]:
        return super().shares(number % 7, seed)


class AskedCountsCalls(CountsCalls):
    """Is not pure, and draws anew at every call."""

    pure = False


class RemembersCalls(Random):
    """Depends on its number of calls, which is not in the log."""

    pure = False
    calls = 0

    def propose(self, number: int, study: StudyView) -> Config | None:
        self.calls += 1
        return super().propose(self.calls, study)


class LooksAtTheClock(Random):
    """Reads the live study instead of its state at the request."""

    pure = False

    def propose(self, number: int, study: StudyView) -> Config | None:
        return super().propose(int(1000 * study.now), study)


def with_space(made: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that makes the generator for the kit's space, or for one dimension."""
    return lambda space=None: made(space=space or {"x": {"uniform": [0, 1]}})


BREAKERS: dict[str, tuple[Callable[..., Any], type[Exception]]] = {
    "test_every_config_can_be_written_to_a_log": (with_space(NoNumber), SpecError),
    "test_a_generator_that_ended_stays_ended": (with_space(EndsAndContinues), AssertionError),
    "test_failed_trials_do_not_stall_the_study": (with_space(FailsAtFailures), KeyError),
    "test_a_study_with_it_replays": (with_space(CountsCalls), AssertionError),
    "test_the_same_number_gives_the_same_config": (with_space(CountsCalls), AssertionError),
    "test_a_fresh_generator_proposes_the_same_in_any_order": (
        with_space(CountsCalls),
        AssertionError,
    ),
    "test_results_of_trials_do_not_change_its_configs": (
        with_space(LearnsFromFailures),
        AssertionError,
    ),
}

SPACE_BREAKERS: dict[str, tuple[Callable[..., Any], type[Exception]]] = {
    "test_it_stays_inside_every_kind_of_domain": (with_space(BeyondTheEnds), AssertionError),
    "test_domains_inside_schedules_and_lists_are_filled": (
        with_space(FillsTheTopAlone),
        AssertionError,
    ),
    "test_domains_inside_options_are_filled_when_the_option_is_chosen": (
        with_space(LeavesOptionsOpen),
        SpecError,
    ),
    "test_it_works_without_a_free_dimension": (with_space(NeedsDimensions), AssertionError),
    "test_it_works_with_one_free_dimension": (with_space(NeedsTwoDimensions), AssertionError),
    "test_dimensions_vary_independently": (with_space(OneDrawForAll), AssertionError),
    "test_different_seeds_give_different_configs": (with_space(IgnoresTheSeed), AssertionError),
    "test_a_seed_gives_many_different_configs": (with_space(RepeatsItself), AssertionError),
}

SAMPLER_BREAKERS: dict[str, tuple[Callable[..., Any], type[Exception]]] = {
    "test_the_same_log_gives_the_same_proposals": (with_space(AskedCountsCalls), AssertionError),
    "test_a_resumed_study_gets_the_same_proposals": (with_space(RemembersCalls), AssertionError),
    "test_events_after_the_request_do_not_change_the_proposal": (
        with_space(LooksAtTheClock),
        AssertionError,
    ),
}
