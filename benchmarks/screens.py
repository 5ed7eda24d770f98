"""Pictures of the live view and of a notebook: `make pictures` writes them to docs/images.

The terminal shows a simulated study of the trace that comes with Paceline, two thirds through, with
some simulated failures. The notebook is examples/notebook.ipynb, executed by nbconvert and seen
with a browser; without a browser its picture stays as it is.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI

from benchmarks.page import ROOT
from paceline.analysis.story import LiveStory
from paceline.api.simulation import Simulation
from paceline.live.render import Size, render_study
from paceline.machine.state import StudyState

if TYPE_CHECKING:
    from pathlib import Path

    from paceline.analysis.story import Sentence
    from paceline.core.decisions import Step

FOLDER = ROOT / "docs" / "images"
NOTEBOOK = ROOT / "examples" / "notebook.ipynb"
SIZES = {"terminal": Size(80, 24), "terminal-wide": Size(180, 40)}
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def draw_terminal(size: Size) -> str:
    """Return the live view as an SVG."""
    steps: list[Step] = []
    Simulation(
        source="fashion_stages",
        policy="asha",
        slots=4,
        deadline_s=45.0,
        mean_life_s=12.0,
        retries=0,
        order="shuffled",
    ).run(name="fashion", remember=steps.extend)
    state, story = StudyState(), LiveStory()
    sentences: list[Sentence] = []
    for step in steps[: 2 * len(steps) // 3]:
        for entry in step.entries:
            state.apply(entry)
        sentences += story.take(state, [step])
    console = Console(
        record=True, file=io.StringIO(), width=size.columns, height=size.rows, force_terminal=True
    )
    view = Size(size.columns - 1, size.rows - 1)
    console.print(render_study(state, sentences[-20:], state.now + 1.5, view))
    svg = console.export_svg(
        title="paceline run study.py", theme=DIMMED_MONOKAI, unique_id="paceline"
    )
    # Fonts of the reader's own: the picture loads nothing.
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.S)


def shoot_notebook(path: Path) -> bool:
    """Execute the notebook and write a picture of it; False: there is no browser."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        return False
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder:
        command = (sys.executable, "-m", "nbconvert", "--execute", "--to", "html", NOTEBOOK)
        options = ("--output-dir", folder, "--output", "notebook.html", "--log-level", "ERROR")
        subprocess.run([*command, *options], check=True)
        with sync_playwright() as playwright:
            launched = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
            page = launched.new_page(viewport={"width": 900, "height": 600})
            # Nothing is loaded from the network: the notebook holds all that it shows.
            page.context.set_offline(True)
            page.goto(f"file://{folder}/notebook.html")
            page.wait_for_selector(".main-svg", timeout=60_000)
            page.screenshot(path=path, full_page=True)
            launched.close()
    return True


def main() -> None:
    """Write all pictures."""
    FOLDER.mkdir(exist_ok=True)
    written = []
    for name, size in SIZES.items():
        path = FOLDER / f"{name}.svg"
        path.write_text(draw_terminal(size), encoding="utf-8")
        written.append(path)
    notebook = FOLDER / "notebook.png"
    if shoot_notebook(notebook):
        written.append(notebook)
    else:
        print("no browser: the notebook's picture stays as it is")
    for path in written:
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
