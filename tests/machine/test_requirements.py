"""Just-fit: a stage gets what its setting needs, no less, and the next stage what that needs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from command_line import CommandLine
from small_studies import SmallStudy, make_table

import paceline as pl
from paceline.allocation.fluid import Fluid
from paceline.api.options import parse_needs
from paceline.api.stored import replay_log
from paceline.core.decisions import EndCause, Fail, Launch, Open
from paceline.core.events import CapacityChanged, Cause, ChangeSlots, Ended, Opened, Reported
from paceline.core.values import Status
from paceline.machine.decider import Parts
from paceline.machine.replay import replay
from paceline.machine.requirements import RecordedNeeds
from paceline.policies.asha import Asha

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from paceline.core.decisions import Step

GROWING = {"batch": pl.piecewise([(0, 64), (3, 512)])}
SHRINKING = {"batch": pl.piecewise([(0, 512), (2, 64)])}


def by_batch(setting: dict[str, Any]) -> int:
    return 2 if setting["batch"] > 256 else 1


def share_by_batch(setting: dict[str, Any]) -> float:
    return setting["batch"] / 256  # type: ignore[no-any-return]


def played(configs: Sequence[dict[str, Any]], epochs: int = 6, **options: Any) -> SmallStudy:  # noqa: ANN401
    """Return a study of these configs that has come to its end."""
    trace = make_table([[1.0] * epochs] * len(configs), configs=configs)
    study = SmallStudy(trace, **{"needs": by_batch, **options})
    study.run()
    return study


def stages(steps: Sequence[Step], trial: int = 0) -> list[tuple[int, int, float]]:
    """Return (start, goal, width) of each attempt of a trial."""
    return [
        (launch.start, launch.goal, launch.width)
        for step in steps
        for launch in step.decisions
        if isinstance(launch, Launch) and launch.trial == trial
    ]


def starts(study: SmallStudy) -> list[tuple[float, int, float]]:
    """Return when each attempt was launched, for which trial, how wide."""
    return [
        (step.event.at, launch.trial, launch.width)
        for step in study.steps
        for launch in step.decisions
        if isinstance(launch, Launch)
    ]


def test_a_trial_is_trained_in_stages_of_the_widths_that_its_settings_need() -> None:
    study = played([{**GROWING, "run": 0}], slots=2)
    assert stages(study.steps) == [(0, 3, 1.0), (3, 6, 2.0)]
    # Three epochs on one slot, then three in half the time.
    assert study.state.now == 4.5
    assert study.state.trials[0].ended is Status.FINISHED


def test_what_a_stage_no_longer_needs_is_free_for_others() -> None:
    study = played([{**SHRINKING, "run": 0}, {"batch": 64, "run": 1}], slots=2)
    assert starts(study) == [(0.0, 0, 2.0), (1.0, 0, 1.0), (1.0, 1, 1.0)]


def test_the_next_stage_begins_without_asking_the_policy() -> None:
    # Asha's first rung is at epoch 4: the move at epoch 3 does not concern it.
    curves = [[1.0 / (run + 1)] * 8 for run in range(3)]
    configs = [{**GROWING, "run": run} for run in range(3)]
    policy = Asha(eta=2, first=4)
    study = SmallStudy(make_table(curves, configs=configs), policy, slots=2, needs=by_batch)
    study.run()
    assert stages(study.steps)[:2] == [(0, 3, 1.0), (3, 4, 2.0)]
    moved = [each for each in study.decisions if isinstance(each, Launch) and each.start == 3]
    assert {launch.why for launch in moved} == {"its next epochs need another width"}


def test_a_trial_that_grows_is_not_overtaken_by_narrow_ones() -> None:
    # Trial 0 needs both slots from epoch 3 on, at 3 s. Trial 1 holds one until 6 s, and there are
    # always others who would take the other.
    narrow = [{"batch": 64, "run": run} for run in range(1, 9)]
    study = played([{**GROWING, "run": 0}, *narrow], slots=2)
    assert starts(study)[:4] == [(0.0, 0, 1.0), (0.0, 1, 1.0), (6.0, 0, 2.0), (7.5, 2, 1.0)]
    assert study.state.live == 0


def test_the_head_of_the_queue_is_not_overtaken_either() -> None:
    narrow = [{"batch": 64, "run": run} for run in range(1, 9)]
    study = played([narrow[0], {"batch": 512, "run": 0}, *narrow[1:]], slots=2)
    assert starts(study)[:3] == [(0.0, 0, 1.0), (6.0, 1, 2.0), (9.0, 2, 1.0)]
    assert study.state.live == 0


def test_a_share_of_a_slot_is_packed_by_what_is_declared() -> None:
    configs = [{"batch": batch, "run": run} for run, batch in enumerate((128, 128, 32, 200, 32))]
    study = played(configs, slots=2, pack=4, needs=share_by_batch)
    # Halves and an eighth, which is a quarter where four may share; 200 / 256 is a slot.
    assert [width for _, _, width in starts(study)] == [0.5, 0.5, 0.25, 1.0, 0.25]
    launches = [each for each in study.decisions if isinstance(each, Launch)]
    assert [launch.slots for launch in launches] == [(0,), (0,), (1,), (0,), (1,)]


def test_declared_needs_are_not_measured_but_a_trial_out_of_memory_gets_a_slot() -> None:
    configs = [{"batch": 32, "run": run} for run in range(4)]
    study = SmallStudy(
        make_table([[1.0] * 3] * 4, configs=configs), slots=2, pack=4, needs=share_by_batch
    )
    study.machine.handle(Opened(at=0.0, spec=study.spec))
    study.machine.handle(CapacityChanged(at=0.0, slots=(0, 1)))
    told: dict[str, Any] = {"epoch": 1, "metrics": {"loss": 1.0}, "seconds": 1.0}
    study.machine.handle(Reported(at=1.0, attempt=0, memory=0.9, **told))
    assert study.state.trials[0].least_width == study.state.least_width == 0.0
    step = study.machine.handle(Ended(at=1.5, attempt=1, cause=Cause.CROWDED))
    assert [launch.width for launch in step.decisions if isinstance(launch, Launch)] == [1.0]


def test_shared_prefixes_are_trained_once_at_the_width_they_need() -> None:
    rest = [{"batch": pl.piecewise([(0, 64), (3, late)])} for late in (128, 512, 1024)]
    study = played(rest, slots=4, share=True, cluster={"save_every_s": 0.0})
    assert study.state.epochs_trained == 3 + 3 * 3
    assert sorted(each[2] for each in starts(study)) == [1.0, 2.0, 2.0]
    assert {trial.ended for trial in study.state.trials} == {Status.FINISHED}


def test_an_allocator_may_give_more_than_is_needed() -> None:
    study = played([{**GROWING, "run": 0}], slots=4, span=3, allocator=Fluid())
    # Wide enough for the next stage, too: it trains on in its process.
    assert stages(study.steps) == [(0, 3, 3.0)]
    assert study.state.trials[0].ended is Status.FINISHED


def test_speeds_are_not_learned_from_epochs_of_different_needs() -> None:
    study = played([{**GROWING, "run": 0}], slots=2, span=2)
    assert study.state.epoch_times.list_measured() == {}


def test_a_trial_that_needs_too_many_slots_fails_at_once_and_the_others_go_on() -> None:
    study = played([{**GROWING, "run": 0}, {"batch": 64, "run": 1}], slots=1)
    failed, fine = study.state.trials
    assert (failed.ended, failed.epoch) == (Status.FAILED, 0)
    assert fine.ended is Status.FINISHED
    (fail,) = [each for each in study.decisions if isinstance(each, Fail)]
    assert fail.why == (
        "it needs 2 slots from epoch 4 on, and there is 1: give the study more, or needs that ask "
        "for fewer"
    )


def test_a_study_none_of_whose_trials_fit_ends_and_says_why() -> None:
    study = played([{"batch": 512, "run": run} for run in range(9)], slots=1)
    assert study.state.end is not None
    assert study.state.end.cause is EndCause.FAILED
    assert "needs 2 slots" in study.state.end.why
    assert len(study.state.trials) == 3


def test_lost_slots_are_awaited_as_long_as_an_attempt_runs() -> None:
    configs = [{"batch": 64, "run": 0}, {**GROWING, "run": 1}]
    back = played(configs, slots=2, cluster={"capacity": ((2.5, 1), (5.5, 2))})
    assert {trial.ended for trial in back.state.trials} == {Status.FINISHED}
    gone = played(configs, slots=2, commands={4: ChangeSlots(-1)})
    assert [trial.ended for trial in gone.state.trials] == [Status.FINISHED, Status.FAILED]


def test_the_log_says_what_was_needed_so_that_a_replay_has_no_use_for_the_function() -> None:
    study = played([{**GROWING, "run": 0}, {**SHRINKING, "run": 1}], slots=2)
    opens = [each for each in study.decisions if isinstance(each, Open)]
    assert [each.needs for each in opens] == [((3, 1.0), (6, 2.0)), ((2, 2.0), (6, 1.0))]
    parts = study.parts
    for needs in (parts.needs, RecordedNeeds(study.steps)):
        assert replay(study.steps, Parts(*parts_of(study), needs=needs)) is None
    assert replay(study.steps, Parts(*parts_of(study))) is not None


def parts_of(study: SmallStudy) -> tuple[Any, Any, Any]:
    """Return new parts with the declared needs."""
    fresh = SmallStudy(
        make_table([[1.0] * 6] * 2, configs=[t.config for t in study.state.trials])
    ).parts
    return fresh.policy, fresh.generator, fresh.allocator


@pytest.mark.parametrize(
    ("needs", "said"),
    [
        (lambda setting: 0, "needs returned 0 for the setting {'batch': 64"),
        (lambda setting: 1.5, "must be a whole number of slots, or a share of one"),
        (lambda setting: "two", "needs returned 'two'"),
        (lambda setting: float("nan"), "needs returned nan"),
        (lambda setting: float("inf"), "needs returned inf"),
        (lambda setting: setting["size"], "needs failed for the setting .*KeyError: 'size'"),
    ],
)
def test_an_invalid_need_is_refused(needs: Callable[[dict[str, Any]], float], said: str) -> None:
    with pytest.raises(pl.SpecError, match=said):
        played([{"batch": 64}], slots=2, needs=needs)


def test_needs_may_be_written_as_a_table() -> None:
    needs = parse_needs("batch: 0=0.25, 129=1, 513=4")
    assert [needs({"batch": size}) for size in (1, 128, 129, 512, 4096)] == [0.25, 0.25, 1, 1, 4]
    assert parse_needs("batch:257=2")({"batch": 8}) == 1.0
    for text in ("batch", "batch:", "batch:a=2", ":3=2", "batch:3"):
        with pytest.raises(pl.SpecError, match="is invalid"):
            parse_needs(text)
    with pytest.raises(pl.SpecError, match="'batch'"):
        needs({"lr": 0.1})
    with pytest.raises(pl.SpecError, match="not a number"):
        needs({"batch": "all"})


def test_needs_may_be_the_name_of_a_function() -> None:
    assert parse_needs("math:floor")(2.5) == 2  # type: ignore[arg-type]
    for name, words in (("math:nothing", "has no 'nothing'"), ("no.such:f", "No module named")):
        with pytest.raises(pl.SpecError, match=words):
            parse_needs(name)
    with pytest.raises(pl.SpecError, match="is a float: give a function"):
        parse_needs("math:pi")


@pytest.fixture
def here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    return CommandLine(tmp_path, capsys, monkeypatch)


def test_the_simulator_takes_needs_on_the_command_line(here: CommandLine, tmp_path: Path) -> None:
    trace = tmp_path / "growing.jsonl"
    header = {
        "paceline_trace": 1,
        "name": "growing",
        "metric": "loss",
        "mode": "min",
        "max_epochs": 4,
    }
    batch = {"piecewise": [[0, 64], [2, 512]]}
    run = {"id": 0, "config": {"batch": batch}, "values": [4, 3, 2, 1], "seconds": 10}
    trace.write_text("\n".join(map(json.dumps, (header, run))), encoding="utf-8")
    flags = ["--slots", "2", "--needs", "batch:257=2", "--name", "fit"]
    found = json.loads(here("simulate", trace, *flags, "--json").out)
    assert (found["makespan_s"], found["slot_seconds"]) == (30.0, 40.0)
    assert here("replay", "fit").out.startswith("identical")
    wrong = here("simulate", trace, "--needs", "size:257=2")
    assert (wrong.code, "'size'" in wrong.err, "batch" in wrong.err) == (2, True, True)


def test_a_live_trial_grows_where_its_batches_do() -> None:
    def train(trial: pl.Trial) -> None:
        seen = trial.keep(seen=[])
        for _ in trial.epochs():
            seen.append([trial["batch"], trial.size])
            trial.report(loss=1.0, size=trial.size)

    result = pl.tune(
        train,
        space={"batch": pl.piecewise([(0, 64), (2, 512)]), "lr": pl.choice([0.1])},
        metric="loss",
        mode="min",
        epochs=4,
        policy="fifo",
        generator="random",
        curves="last",
        trials=1,
        slots="cpu:2",
        needs=by_batch,
    )
    assert stages(result.log) == [(0, 2, 1.0), (2, 4, 2.0)]
    assert result.trials[0].metrics["size"] == [1.0, 1.0, 2.0, 2.0]
    assert result.trials[0].status == "finished"
    assert replay_log(result.log).difference is None
