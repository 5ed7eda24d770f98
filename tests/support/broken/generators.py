"""Generators that break one promise each."""

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


class ChangesItsMind(Random):
    """Says that there are no more, and then there are."""

    def propose(self, number: int, study: StudyView) -> Config | None:
        return None if number == 5 else super().propose(number, study)


class ShockedByFailure(Random):
    """Looks up what a failed attempt never had."""

    def see(self, entry: Entry, study: StudyView) -> None:
        if isinstance(entry, Ended) and entry.cause is Cause.FAILED:
            raise KeyError(entry.attempt)


class CountsCalls(Random):
    """Proposes the next config, whatever number is asked for."""

    def propose(self, number: int, study: StudyView) -> Config | None:
        return super().propose(next(_calls), study)


class LearnsFromFailures(Random):
    """Is a function of the log, and says that it is one of the number."""

    def propose(self, number: int, study: StudyView) -> Config | None:
        return super().propose(number + 1000 * sum(t.failures for t in study.trials), study)


class Bent(Random):
    """A generator that bends the shares of its dimensions."""

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


class BeyondTheEnds(Bent):
    def propose(self, number: int, study: StudyView) -> Config | None:
        config = super().propose(number, study)
        return config and {**config, "randint": 3}


class FillsTheTopAlone(Bent):
    """Leaves domains inside schedules and lists as they are."""

    def __init__(self, *, space: dict[str, Any]) -> None:
        super().__init__(space=space)
        self.template = space

    def propose(self, number: int, study: StudyView) -> Config | None:
        config = super().propose(number, study)
        tops = {dimension.path[0] for dimension in self.space.dimensions if not dimension.path[1:]}
        return config and {
            name: config[name] if name in tops else value for name, value in self.template.items()
        }


class NeedsDimensions(Bent):
    least = 1

    def propose(self, number: int, study: StudyView) -> Config | None:
        enough = len(self.space.dimensions) >= self.least
        return super().propose(number, study) if enough else None


class NeedsTwoDimensions(NeedsDimensions):
    least = 2


class OneDrawForAll(Bent):
    def shares(self, number: int, seed: int) -> list[float]:
        return super().shares(number, seed)[:1] * len(self.space.dimensions)


class LeavesOptionsOpen(Bent):
    """Takes an option as it stands, with the domains in it."""

    def propose(self, number: int, study: StudyView) -> Config | None:
        config = super().propose(number, study)
        tops = [each for each in self.space.dimensions if each.under is None and not each.path[1:]]
        return config and {**config, **{str(each.path[0]): each.at(0.4) for each in tops}}


class IgnoresTheSeed(Bent):
    def shares(self, number: int, seed: int) -> list[float]:
        return super().shares(number, 0)


class RepeatsItself(Bent):
    def shares(self, number: int, seed: int) -> list[float]:
        return super().shares(number % 7, seed)


class AskedCountsCalls(CountsCalls):
    """Is asked beside the loop, and draws anew whoever asks."""

    pure = False


class RemembersCalls(Random):
    """Goes on from the last question it was asked, which a fresh one was not."""

    pure = False
    calls = 0

    def propose(self, number: int, study: StudyView) -> Config | None:
        self.calls += 1
        return super().propose(self.calls, study)


class LooksAtTheClock(Random):
    """Reads the live study, instead of what it was when the question was put."""

    pure = False

    def propose(self, number: int, study: StudyView) -> Config | None:
        return super().propose(int(1000 * study.now), study)


def over(made: Callable[..., Any]) -> Callable[..., Any]:
    """Return the maker of a generator for the kit's space, or for one dimension."""
    return lambda space=None: made(space=space or {"x": {"uniform": [0, 1]}})


BREAKERS: dict[str, tuple[Callable[..., Any], type[Exception]]] = {
    "test_every_config_can_be_written_to_a_log": (over(NoNumber), SpecError),
    "test_who_says_no_more_says_so_for_ever": (over(ChangesItsMind), AssertionError),
    "test_failed_trials_do_not_hold_it_up": (over(ShockedByFailure), KeyError),
    "test_a_study_with_it_replays": (over(CountsCalls), AssertionError),
    "test_the_same_number_is_the_same_config": (over(CountsCalls), AssertionError),
    "test_a_fresh_one_proposes_the_same_in_any_order": (over(CountsCalls), AssertionError),
    "test_what_becomes_of_trials_does_not_change_its_configs": (
        over(LearnsFromFailures),
        AssertionError,
    ),
}

SPACE_BREAKERS: dict[str, tuple[Callable[..., Any], type[Exception]]] = {
    "test_it_stays_inside_every_kind_of_domain": (over(BeyondTheEnds), AssertionError),
    "test_domains_inside_schedules_and_lists_are_filled": (
        over(FillsTheTopAlone),
        AssertionError,
    ),
    "test_domains_inside_options_are_filled_where_those_are_chosen": (
        over(LeavesOptionsOpen),
        SpecError,
    ),
    "test_it_works_without_a_free_dimension": (over(NeedsDimensions), AssertionError),
    "test_it_works_with_one_free_dimension": (over(NeedsTwoDimensions), AssertionError),
    "test_one_dimension_does_not_follow_another": (over(OneDrawForAll), AssertionError),
    "test_different_seeds_give_different_configs": (over(IgnoresTheSeed), AssertionError),
    "test_a_seed_gives_many_different_configs": (over(RepeatsItself), AssertionError),
}

SAMPLER_BREAKERS: dict[str, tuple[Callable[..., Any], type[Exception]]] = {
    "test_the_same_log_gives_the_same_proposals": (over(AskedCountsCalls), AssertionError),
    "test_a_study_that_was_cut_gets_the_same_proposals": (over(RemembersCalls), AssertionError),
    "test_what_comes_in_while_it_thinks_changes_nothing": (over(LooksAtTheClock), AssertionError),
}
