"""The figure of the prefix tree: a bar for each node, as high as the leaves below it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from command_line import CommandLine
from shared_schedules import make_sharing_study

from paceline.analysis.sharing import measure_sharing
from paceline.analysis.timeline import build_timeline
from paceline.plots import tree_figure

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pytest

    from paceline.core.decisions import Step


def read_bars(figure: Any) -> set[tuple[float, float, float, float]]:  # noqa: ANN401
    """Return (first epoch, epochs, middle, height) of every bar."""
    return {
        bar
        for trace in figure.data
        for bar in zip(trace.base, trace.x, trace.y, trace.width, strict=True)
    }


def draw(steps: Sequence[Step]) -> Any:  # noqa: ANN401
    return tree_figure.draw_tree(build_timeline(steps))


def read_subtitle(figure: Any) -> str:  # noqa: ANN401
    return str(figure.layout.title.subtitle.text)


def test_nodes_span_their_epochs_and_their_children() -> None:
    figure = draw(make_sharing_study().run().steps)
    # Five leaves: trials 0, 2, 1 with 4, 3, and 5 by itself.
    assert read_bars(figure) == {
        (0, 2, 2.0, 4),
        (2, 2, 1.0, 2),
        (4, 2, 0.5, 1),
        (4, 2, 1.5, 1),
        (2, 2, 3.0, 2),
        (4, 2, 2.5, 1),
        (4, 2, 3.5, 1),
        (0, 6, 4.5, 1),
    }
    assert figure.layout.yaxis.range == (5, 0)


def test_the_subtitle_has_the_savings_and_each_bar_its_trials() -> None:
    figure = draw(make_sharing_study().run().steps)
    assert read_subtitle(figure).startswith(
        "0.0444 slot-hours and 2m40s of training saved: 16 of 36"
    )
    told = {text for trace in figure.data for text in trace.hovertext}
    assert (
        "epochs 1-2: lr=0.1, width=8<br>trials 0-4<br>2 trained, 10 seen: 8 saved<br>best loss 0.9"
        in told
    )
    # A click opens the story of one that passes there.
    assert {each[0] for trace in figure.data for each in trace.customdata} == {0, 1, 2, 3, 5}


def test_untrained_epochs_are_pale() -> None:
    steps = make_sharing_study(slots=1).run().steps
    pale = 0
    for cut in range(3, len(steps), 7):
        figure, rows = draw(steps[:cut]), measure_sharing(steps[:cut]).nodes
        if any(len(row.trials) > 1 for row in rows):
            pale += len(figure.data) == 3
            assert (
                sum(bar[1] * bar[3] for bar in read_bars(figure))
                == 6 * figure.layout.yaxis.range[0]
            )
    assert pale, "nobody was seen on the way"
    assert len(draw(steps).data) == 2, "all is trained at the end"


def test_of_many_nodes_the_most_shared_are_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tree_figure, "MOST_NODES", 3)
    figure = draw(make_sharing_study().run().steps)
    assert read_bars(figure) == {(0, 2, 2.0, 4), (2, 2, 1.0, 2), (2, 2, 3.0, 2)}
    assert read_subtitle(figure).endswith("the 3 most shared of 8 nodes")


def test_without_sharing_the_figure_has_a_sentence() -> None:
    steps = make_sharing_study(share=False).run().steps
    for some, said in (
        (steps, "every trial trains alone"),
        (steps[:1], "No trial has been opened"),
    ):
        figure = draw(some)
        assert not figure.data
        assert said in figure.layout.annotations[0].text
        json.loads(figure.to_json())


def test_the_command_draws_a_page_that_needs_no_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = CommandLine(tmp_path, capsys, monkeypatch)
    here("simulate", "fashion_stages", "--share", "--policy", "fifo", "--name", "stages")
    ran = here("tree", "stages", "--limit", "0", "--plot", "tree.html")
    assert (ran.code, ran.out.splitlines()[-1]) == (0, "tree.html")
    page = (tmp_path / "tree.html").read_text(encoding="utf-8")
    assert "stages: what trials share" in page
    assert "<script src" not in page
    missing = here("tree", "stages", "--plot", "nowhere/tree.html")
    assert (missing.code, missing.err.count("\n")) == (2, 1)
    assert "nowhere/tree.html cannot be written" in missing.err
