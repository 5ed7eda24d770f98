"""The benchmark of curve models: fair questions, working baselines, a page with every figure."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import pytest
from benchmarks.curves import __main__ as command
from benchmarks.curves import published_answers, question_set, run_published
from benchmarks.curves.baselines.naslib4 import NASLIB4
from benchmarks.curves.question_set import FAMILIES, HELD_OUT, load_questions
from benchmarks.curves.score import score

from paceline.core.forecast_quantiles import LEVELS, Forecast
from paceline.core.values import NO_LOSS
from paceline.curves.published.weighted_sum import PUBLISHED
from paceline.engines.sim.traces import VERSION, TraceHeader, TraceRun, write_trace

if TYPE_CHECKING:
    from pathlib import Path

FAMILY = "cifar10_cnn14"


@pytest.fixture
def small_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trace of four runs of twelve epochs, one of which ends with NaN."""
    header = TraceHeader(
        paceline_trace=VERSION, name=FAMILY, metric="accuracy", mode="max", max_epochs=12
    )
    runs = []
    for number in range(4):
        values = [0.9 - (0.5 + 0.1 * number) / (1 + epoch) for epoch in range(12)]
        if number == 3:
            values[-1] = float("nan")
        runs.append(TraceRun(number, {"n": number}, array("d", values), array("d", [1.0] * 12)))
    write_trace(tmp_path / f"{FAMILY}.jsonl.gz", header, runs)
    monkeypatch.setattr(question_set, "TRACES", tmp_path)
    monkeypatch.setattr(published_answers, "PATH", tmp_path / "pinned.json")
    return tmp_path


def test_two_families_are_held_out() -> None:
    assert set(HELD_OUT) == {"deepobs", "nasbench_nlp"} < set(FAMILIES)


@pytest.mark.usefixtures("small_trace")
def test_a_question_shows_the_beginning_and_asks_for_the_end() -> None:
    asked = load_questions([FAMILY])
    assert {len(question.losses) for question in asked} == {1, 3, 6, 9}
    assert len(asked) == 4 * 4
    for question in asked:
        assert question.epochs == 12
        assert all(-1 <= loss <= 0 for loss in question.losses)
    # A run that ended without a number counts as the worst there is.
    assert {question.final for question in asked if question.run == 3} == {0.0}
    assert load_questions([FAMILY]) == asked


@pytest.mark.usefixtures("small_trace")
def test_a_model_without_an_answer_is_scored_as_the_last_value() -> None:
    question = load_questions([FAMILY], runs=1)[2]
    silent = score(question, None, 0.0)
    assert not silent.answered
    middle = question.losses[-1]
    sure = score(question, Forecast((12,), ((middle,) * len(LEVELS),)), 0.0)
    assert sure.answered
    assert sure.crps != silent.crps


@pytest.mark.usefixtures("small_trace")
def test_the_page_has_every_model_and_family(capsys: pytest.CaptureFixture[str]) -> None:
    command.main(["--models", "last,power-law", "--families", FAMILY, "--runs", "1", "--dry"])
    text = capsys.readouterr().out
    for title in ("Overall", "Log score", "CRPS", "Coverage of 80 %", "AUC", "Milliseconds"):
        assert title in text
    assert "| power-law" in text
    assert FAMILY in text


@pytest.mark.usefixtures("small_trace")
def test_published_answers_are_stored_and_read_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    short = PUBLISHED._replace(burn_in=5), {"published-700": 15, "published-2500": 25}
    few_steps = NASLIB4._replace(burn_in=5), {"naslib4": 15}
    monkeypatch.setattr(run_published, "CHAINS", {"published": short, "naslib4": few_steps})
    asked = load_questions([FAMILY], runs=1)
    lines = [
        run_published.answer_question(published_answers.to_published_question(q, chain))
        for q in asked
        for chain in run_published.CHAINS
    ]
    assert lines == [
        {
            **run_published.answer_question(published_answers.to_published_question(q, chain)),
            "seconds": line["seconds"],
        }
        for line, (q, chain) in zip(
            lines, ((q, chain) for q in asked for chain in run_published.CHAINS), strict=True
        )
    ]
    published_answers.write_answers(lines, {"command": "here"})
    models = "published-700,published-2500,naslib4,last"
    command.main(["--models", models, "--families", FAMILY, "--runs", "1", "--dry"])
    text = capsys.readouterr().out
    assert "Against the published ensemble" in text
    assert "| published-2500" in text


@pytest.mark.usefixtures("small_trace")
def test_questions_become_accuracies_and_answers_become_losses() -> None:
    question = load_questions([FAMILY], runs=1)[1]
    asked = published_answers.to_published_question(question, "published")
    assert asked["y"] == pytest.approx([-loss for loss in question.losses])
    assert published_answers.to_losses([0.1, 0.2, 0.9], question) == pytest.approx(
        (-0.9, -0.2, -0.1)
    )
    gap = question._replace(losses=(NO_LOSS, *question.losses))
    assert published_answers.to_published_question(gap, "published")["y"][0] == 0.0
