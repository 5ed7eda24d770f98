"""Trace files: read strictly, written back, and every recorded one simulated."""

from __future__ import annotations

import gzip
import json
import math
from typing import TYPE_CHECKING, Any

import pytest

from paceline.api.simulation import Simulation
from paceline.core.errors import TraceError
from paceline.engines.sim.traces import TraceHeader, read_trace, write_trace

if TYPE_CHECKING:
    from pathlib import Path

HEADER = {"paceline_trace": 1, "name": "t", "metric": "acc", "mode": "max", "max_epochs": 3}
RUN = {"id": 0, "config": {"lr": 0.1}, "values": [0.1, None, 0.3], "seconds": [1, 2, 3]}

# The recorded ones are tried side by side.
PARTS = 8


def file_of(tmp_path: Path, *lines: object) -> Path:
    path = tmp_path / "t.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts), encoding="utf-8")
    return path


def test_a_trace_is_read_as_it_was_recorded(tmp_path: Path) -> None:
    second = {**RUN, "id": 1, "seconds": 0.5, "seed": 7, "setup_s": 4.0, "extra": {"any": "thing"}}
    trace = read_trace(file_of(tmp_path, HEADER, RUN, "", second))
    assert (trace.header.metric, trace.header.mode, trace.header.max_epochs) == ("acc", "max", 3)
    first, other = trace.runs
    assert first.config == {"lr": 0.1}
    assert first.values[0] == 0.1
    assert math.isnan(first.values[1])
    assert list(first.seconds) == [1.0, 2.0, 3.0]
    assert (other.config, list(other.seconds)) == ({"lr": 0.1, "seed": 7}, [0.5] * 3)
    assert other.setup_s == 4.0


def test_what_was_written_is_read_back_and_gives_the_same_bytes(tmp_path: Path) -> None:
    header = TraceHeader(paceline_trace=1, name="t", metric="acc", mode="max", max_epochs=3)
    runs = read_trace(file_of(tmp_path, HEADER, RUN)).runs
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        write_trace(tmp_path / name, header, runs)
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()
    again = read_trace(tmp_path / "a.jsonl.gz")
    assert again.header == header
    assert again.runs[0].config == runs[0].config
    assert str(again.runs[0].values) == str(runs[0].values)


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ([], "is empty"),
        ([HEADER], "no runs"),
        (["{", RUN], ":1: not a JSON object"),
        ([{**HEADER, "mode": "up"}, RUN], ":1: field mode: "),
        ([{**HEADER, "max_epochs": 0}, RUN], ":1: field max_epochs: "),
        ([{**HEADER, "paceline_trace": 2}, RUN], ":1: field paceline_trace: format 2 is newer"),
        ([HEADER, RUN, "not json"], ":3: not a JSON object"),
        ([HEADER, {**RUN, "values": [1, "x"]}], ":2: field values[1]: expected `float | null`"),
        ([HEADER, {"id": 0, "config": {}, "seconds": 1}], ":2: object missing required field"),
        ([HEADER, {**RUN, "values": []}], ":2: field values: it is empty"),
        ([HEADER, {**RUN, "values": [1] * 4}], ":2: field values: 4 epochs are more than"),
        ([HEADER, {**RUN, "seconds": [1]}], ":2: field seconds: 1 durations for 3 values"),
        ([HEADER, {**RUN, "seconds": -1}], ":2: field seconds: a duration is negative"),
        ([HEADER, {**RUN, "setup_s": -1}], ":2: field setup_s: "),
        ([HEADER, RUN, {**RUN, "id": 1}], ":3: config and seed are the same as in line 2"),
        ([HEADER, {**RUN, "seed": 1, "config": {"seed": 2}}], ":2: field seed: 1 is not"),
        ([HEADER, {**RUN, "config": {"lr": {"piecewise": [[5, 1]]}}}], ":2: field config: lr: "),
        ([HEADER, {**RUN, "values": [None] * 3}], "every value in `values` is null"),
    ],
)
def test_a_trace_that_cannot_be_read_is_refused_with_line_and_field(
    tmp_path: Path, lines: list[Any], complaint: str
) -> None:
    with pytest.raises(TraceError) as error:
        read_trace(file_of(tmp_path, *lines))
    assert complaint in str(error.value)
    assert str(error.value).count("\n") == 0


def test_files_that_are_not_traces_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="does not exist"):
        read_trace(tmp_path / "absent.jsonl.gz")
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path)
    torn = tmp_path / "torn.jsonl.gz"
    torn.write_bytes(gzip.compress(b"x" * 100)[:-6])
    with pytest.raises(TraceError, match="damaged"):
        read_trace(torn)


@pytest.mark.unmeasured
@pytest.mark.parametrize(
    "part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, PARTS))]
)
def test_every_recorded_trace_runs_under_fifo_and_asha(traces: Path, part: int) -> None:
    files = sorted(traces.glob("*.jsonl.gz"))
    assert len(files) >= 51
    for path in files[part::PARTS]:
        trace = read_trace(path)
        values = [v for run in trace.runs for v in run.values if math.isfinite(v)]
        best = max(values) if trace.header.mode == "max" else min(values)
        for policy in ("fifo", "asha:drain=true"):
            result = Simulation(source=path.name, policy=policy, slots=8).run(trace=trace)
            # Both train every run to its end, so both find the best value there is.
            assert result.best_value == best, (path.name, policy)
            assert result.trials_finished == len(trace.runs)
            assert result.reports == sum(len(run.values) for run in trace.runs)


def test_a_recorded_schedule_is_shared_up_to_where_it_parts(traces: Path) -> None:
    path = str(traces / "gluoncv_cifar10.jsonl.gz")
    alone = Simulation(source=path, policy="fifo", slots=4).run()
    shared = Simulation(source=path, policy="fifo", slots=4, share=True).run()
    assert shared.reports == alone.reports
    assert shared.epochs_trained <= alone.epochs_trained
