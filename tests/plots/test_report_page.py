"""The report in a real browser: figures, clicks, and hostile text."""

from __future__ import annotations

import math
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from extreme_studies import degenerate_logs, make_hostile_log, write_log_by_hand
from playwright.sync_api import sync_playwright
from small_studies import SmallStudy, make_table
from waiting import LIMIT_S

from paceline.api.simulation import Simulation
from paceline.plots.figures import FIGURES
from paceline.plots.report.page import write_report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from paceline.core.decisions import Step

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SCREENS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1400, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1400, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True},
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """The Chromium that is installed on this machine."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"no browser is installed: none of {', '.join(BROWSERS)} is on the path")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox"], timeout=1000 * LIMIT_S
        )
        yield chromium
        chromium.close()


@pytest.fixture
def shown(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:  # noqa: ANN401
    """A function that opens the report of a log; an error on the page fails the test."""
    contexts, heard = [], []

    def show(steps: list[Step], screen: str = "light", **options: Any) -> Any:  # noqa: ANN401
        path = write_report(steps, tmp_path / "report.html", **options)
        contexts.append(browser.new_context(**SCREENS[screen]))
        contexts[-1].set_default_timeout(1000 * LIMIT_S)
        page = contexts[-1].new_page()
        page.on("console", lambda message: heard.append(message.text))
        page.on("pageerror", lambda error: heard.append(str(error)))
        page.on(
            "request",
            lambda request: heard.append(request.url) if is_network_request(request) else None,
        )
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-drawn=yes]", state="attached")
        return page

    yield show
    for context in contexts:
        context.close()
    assert heard == []


def is_network_request(request: Any) -> bool:  # noqa: ANN401
    return not request.url.startswith(("file:", "data:", "blob:"))


def simulate_log(**options: Any) -> list[Step]:  # noqa: ANN401
    steps: list[Step] = []
    Simulation(source="families:epochs=12", trials=30, **options).run(remember=steps.extend)
    return steps


def first_cells(page: Any, count: int = 4) -> list[str]:  # noqa: ANN401
    cells = page.locator("tr.trial td:first-child").all_inner_texts()
    return [cell.strip() for cell in cells[:count]]


@pytest.mark.parametrize("screen", SCREENS)
def test_every_figure_is_drawn_and_fits_the_screen(shown: Callable[..., Any], screen: str) -> None:
    page = shown(simulate_log(), screen)
    assert page.locator(".plot .main-svg").count() >= len(FIGURES)
    drawn = page.evaluate(
        "[...document.querySelectorAll('.plot')].map(plot =>"
        " [plot.dataset.figure, plot.querySelectorAll('path.js-line, .point path, .fills path,"
        " .bars path').length])"
    )
    # In this study nothing is shared: that figure says so.
    assert {name for name, marks in drawn if marks} == set(FIGURES) - {"tree"}
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_click_copies_the_best_config_as_code(shown: Callable[..., Any]) -> None:
    curves = [[0.5, 0.2], [0.4, 0.3]]
    configs: list[dict[str, Any]] = [
        {"lr": {"piecewise": [[0, 0.1], [1, 0.01]]}, "opt": "<b>'x'"},
        {"lr": 0.2},
    ]
    steps = SmallStudy(make_table(curves, configs=configs)).run().steps
    page = shown(steps, saved="runs/0-2.ckpt")
    assert "checkpoint: attempt 0, epoch 2, in runs/0-2.ckpt" in page.locator(".best").inner_text()
    button = page.locator(".best button")
    button.click()
    page.locator(".best button", has_text="Copied").wait_for()
    assert button.get_attribute("data-copy") == (
        """{'lr': pl.piecewise([(0, 0.1), (1, 0.01)]), 'opt': "<b>'x'"}"""
    )


# One in each run, the others in `make test-all`; `test_figures` draws all of them in each run.
SMALL_STUDIES = [
    pytest.param(name, marks=() if name == "all failed" else pytest.mark.slow)
    for name in sorted(degenerate_logs())
]


@pytest.mark.parametrize("name", SMALL_STUDIES)
def test_the_page_of_a_small_study_is_complete(shown: Callable[..., Any], name: str) -> None:
    page = shown(degenerate_logs()[name])
    assert page.locator(".plot").count() == len(FIGURES)
    assert page.locator("h1").inner_text()


def test_a_click_on_a_heading_sorts_and_a_second_one_reverses(
    shown: Callable[..., Any],
) -> None:
    losses = [[3.0], [1.0], [math.nan], [2.0]]
    page = shown(SmallStudy(make_table(losses), epochs=1).run().steps)
    assert first_cells(page) == ["1", "3", "0", "2"], "best first, without a number last"
    page.locator("#trials th button").first.click()
    assert first_cells(page) == ["0", "1", "2", "3"]
    page.locator("#trials th button").first.click()
    assert first_cells(page) == ["3", "2", "1", "0"]
    assert page.locator("th[aria-sort=descending]").inner_text() == "trial"


def test_a_click_on_a_row_shows_its_story(shown: Callable[..., Any]) -> None:
    page = shown(write_log_by_hand())
    assert page.locator("tr.story").count() == 0
    page.locator("tr.trial", has_text="failed").click()
    assert "out of memory" in page.locator("tr.story").inner_text()
    page.locator("tr.trial", has_text="failed").click()
    assert page.locator("tr.story").count() == 0


def test_a_filter_keeps_the_rows_that_have_all_words(shown: Callable[..., Any]) -> None:
    page = shown(write_log_by_hand())
    page.fill("#filter", "failed lr=0.1")
    assert first_cells(page) == ["1"]
    assert page.locator("#count").inner_text() == "1 of 2"


@pytest.mark.slow
def test_a_long_table_is_shown_in_pieces(shown: Callable[..., Any]) -> None:
    page = shown(simulate_log())
    assert page.locator("tr.trial").count() == 25
    page.get_by_role("button", name="Show 5 more of 5").click()
    assert page.locator("tr.trial").count() == 30
    assert page.locator("#more").is_hidden()


def test_a_click_on_a_curve_opens_that_trial(shown: Callable[..., Any]) -> None:
    page = shown(write_log_by_hand())
    page.evaluate(
        "document.querySelector('[data-figure=curves]')"
        ".emit('plotly_click', {points: [{customdata: 0}]})"
    )
    assert page.locator("tr.trial.open").get_attribute("data-trial") == "0"


def test_text_of_a_study_is_shown_and_never_run(shown: Callable[..., Any]) -> None:
    page = shown(
        make_hostile_log(), store="</script><script>hacked=1</script>", again="<b>again</b>"
    )
    page.locator("tr.trial").first.click()
    assert page.evaluate("typeof hacked") == "undefined"
    assert page.locator("img").count() == page.locator("b b, pre b, td b").count() == 0
    assert "</script>" in page.locator("h1").inner_text()
    assert "</script>" in page.locator("pre").last.inner_text()


def test_the_page_follows_the_light_or_dark_scheme(shown: Callable[..., Any]) -> None:
    page = shown(write_log_by_hand(), "dark")
    ink = "document.querySelector('[data-figure=curves]').layout.font.color"
    dark = page.evaluate(ink)
    page.emulate_media(color_scheme="light")
    # The page forbids what `wait_for_function` does: text that becomes a program.
    page.evaluate(
        "before => new Promise(done => {"
        f" const look = () => {ink} !== before ? done() : setTimeout(look, 20); look(); }})",
        dark,
    )
    assert page.evaluate(ink) == "#1b1f24" != dark
