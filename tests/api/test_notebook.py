"""Studies in notebooks: progress and results as HTML, and the stop button keeps the results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import nbformat
import pytest
from jupyter_client.manager import start_new_kernel
from waiting import LIMIT_S

import paceline as pl
from paceline.live.notebook import is_in_notebook
from paceline.plots.notebook_figure import NotebookFigure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from jupyter_client.blocking.client import BlockingKernelClient
    from jupyter_client.manager import KernelManager

# Kernels write their files and warnings where they like.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

TRAIN = """
import time
from pathlib import Path

import paceline as pl

def train(trial):
    for epoch in trial.epochs():
        while epoch == 2 and Path("hold").exists():
            time.sleep(0.01)
        if trial["kind"] == "<broken>":
            raise KeyError("<missing>")
        trial.report(loss=trial["lr"] / (epoch + 1))

space = {
    "lr": pl.piecewise([(0, pl.loguniform(0.01, 1.0)), (1, 0.001)]),
    "kind": pl.choice(["plain"]),
}
options = dict(metric="loss", mode="min", epochs=3, generator="random", slots=2, policy="fifo")
"""
RUN = """
first = [{"lr": 0.5, "kind": "<broken>"}, {"lr": 0.5, "kind": "plain"}]
space["kind"] = pl.choice(["plain", "<broken>"])
space["lr"] = pl.loguniform(0.01, 1.0)
result = pl.tune(train, space=space, trials=2, first=first, **options)
"""


def make_environment(folder: Path) -> dict[str, str]:
    """Return an environment in which Jupyter keeps its files in a folder."""
    names = ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR")
    return {**os.environ, **{name: str(folder / name.lower()) for name in names}}


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], str]:
    """The cells of an executed notebook, and the page that nbconvert makes of it."""
    folder = tmp_path_factory.mktemp("notebook")
    cells = (TRAIN, RUN, "result", "result.best", "print(repr(result.best))", 'result.plot("best")')
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbformat.write(book, folder / "book.ipynb")
    convert = (sys.executable, "-m", "nbconvert", "--log-level", "ERROR")
    environ = make_environment(folder)
    for options in (
        ("--execute", "--to", "notebook", "--inplace", "book.ipynb"),
        ("--to", "html", "book.ipynb"),
    ):
        ran = subprocess.run(
            [*convert, *options], cwd=folder, env=environ, capture_output=True, text=True
        )
        assert ran.returncode == 0, ran.stderr
    executed = nbformat.read(folder / "book.ipynb", 4)
    return executed.cells, (folder / "book.html").read_text(encoding="utf-8")


def read_html(cell: Any) -> list[str]:  # noqa: ANN401
    """Return the HTML outputs of a cell."""
    return [output.data["text/html"] for output in cell.outputs if "data" in output]


once = pytest.mark.xdist_group("notebook")


@once
def test_a_cell_shows_one_output_that_ends_as_the_summary(
    notebook: tuple[list[Any], str],
) -> None:
    cells, _ = notebook
    (shown,) = read_html(cells[1])
    assert "has ended: " in shown
    assert "2: 1 finished, 1 failed" in shown
    assert ">best<" in shown
    assert "result.dataframe()" in shown


@once
def test_failures_are_red_and_escaped(notebook: tuple[list[Any], str]) -> None:
    cells, _ = notebook
    (shown,) = read_html(cells[1])
    failures = shown[shown.index("color:#e03131") :]
    assert "KeyError: &#x27;&lt;missing&gt;&#x27;" in failures
    assert "<missing>" not in shown
    assert "<script" not in shown


@once
def test_results_and_trials_are_tables(notebook: tuple[list[Any], str]) -> None:
    cells, _ = notebook
    (result,), (best,) = read_html(cells[2]), read_html(cells[3])
    assert result.count("<tr>") > 5
    assert "<th" in result
    assert ">lr</th>" in result
    assert "loss 0.166667 at epoch 3" in best
    (line,) = cells[4].outputs
    assert line.text == (
        "<TrialResult 1: loss=0.166667 at epoch 3, finished, kind=plain, lr=0.5>\n"
    )


@once
def test_figures_and_tables_are_in_the_page_that_nbconvert_writes(
    notebook: tuple[list[Any], str],
) -> None:
    cells, page = notebook
    (figure,) = cells[5].outputs
    assert "application/vnd.plotly.v1+json" in figure.data
    assert "Plotly.newPlot" in page
    assert "plotly.js v" in page  # the script itself, not an address
    assert "2: 1 finished, 1 failed" in page


def test_only_the_first_figure_brings_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.plots.notebook_figure._has_script", False)
    first, second = (NotebookFigure()._repr_mimebundle_()["text/html"] for _ in range(2))
    assert len(second) < 100_000 < len(first)
    with pytest.raises(NotImplementedError):
        NotebookFigure()._ipython_display_()
    assert not is_in_notebook()


@pytest.fixture
def kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[KernelManager, BlockingKernelClient]]:
    """A running kernel in a folder of its own."""
    for name, value in make_environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    manager, client = start_new_kernel(cwd=str(tmp_path))
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def read_until(client: BlockingKernelClient, ends: Callable[[dict[str, Any]], bool]) -> list[Any]:
    """Return the messages of a running cell up to one that ends the wait."""
    messages: list[Any] = []
    while not messages or not ends(messages[-1]):
        messages.append(client.get_iopub_msg(timeout=LIMIT_S))
    return messages


def is_idle(message: dict[str, Any]) -> bool:
    """Whether a cell has ended."""
    return bool(message["content"].get("execution_state") == "idle")


def shows(words: str) -> Callable[[dict[str, Any]], bool]:
    """Return whether a message shows these words as HTML."""
    return lambda message: words in message["content"].get("data", {}).get("text/html", "")


def test_the_stop_button_keeps_the_results(
    tmp_path: Path, kernel: tuple[KernelManager, BlockingKernelClient]
) -> None:
    manager, client = kernel
    (tmp_path / "hold").touch()
    client.execute(TRAIN)
    read_until(client, is_idle)
    client.execute("result = pl.tune(train, space=space, trials=9, **options)")
    # The same output is replaced again and again: a table of the best trials.
    messages = read_until(client, shows("best"))
    messages += read_until(client, shows("2 running now"))
    messages += read_until(client, lambda m: shows("loss")(m) and shows("<th")(m))
    manager.interrupt_kernel()
    messages += read_until(client, is_idle)
    kinds = [message["header"]["msg_type"] for message in messages]
    assert kinds.count("display_data") == 1
    assert "update_display_data" in kinds
    assert "error" not in kinds
    last = [m["content"]["data"]["text/html"] for m in messages if shows("<table")(m)][-1]
    assert "was interrupted" in last
    told = "print(json.dumps([result.interrupted, result.best.epoch, result.trials[0].status]))"
    client.execute(f"import json; {told}")
    (stream,) = [
        message["content"]["text"]
        for message in read_until(client, is_idle)
        if message["header"]["msg_type"] == "stream"
    ]
    assert json.loads(stream) == [True, 2, "unfinished"]


def test_a_study_is_one_line_and_a_table() -> None:
    def train(trial: pl.Trial) -> None:
        for _ in trial.epochs():
            trial.report(loss=1.0)

    study = pl.Study(
        train,
        space={"lr": pl.uniform(0, 1)},
        metric="loss",
        mode="min",
        epochs=3,
        trials=7,
        policy="fifo",
        name="<mine>",
        store="memory:",
    )
    line = repr(study)
    assert line.startswith("<Study '<mine>': minimize loss, function train, space lr, policy fifo")
    assert "trials 7" in line
    assert len(line) < 200
    page = study._repr_html_()
    assert "&lt;mine&gt;" in page
    assert ">minimize loss<" in page
