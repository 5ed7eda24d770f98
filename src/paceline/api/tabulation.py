"""The trials of a study as a table: rows for CSV, parquet and pandas, and JSON with all curves.

Knows the columns and the files. Values are as reported.
"""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Any

import msgspec

from paceline.api.results import make_trial_rows
from paceline.core.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from paceline.api.results import Result


def write_table(result: Result, path: Path) -> int:
    """Write the trials to a file whose suffix says how; return their number."""
    try:
        WRITERS[path.suffix](result, path)
    except OSError as error:
        raise SpecError(f"{path} cannot be written: {error.strerror or error}.") from None
    return len(result.trials)


def _write_csv(result: Result, path: Path) -> None:
    rows = [_flatten(row) for row in make_trial_rows(result.trials)]
    columns = list(dict.fromkeys(name for row in rows for name in row)) or ["trial"]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def _write_parquet(result: Result, path: Path) -> None:
    try:
        import pandas
        import pyarrow  # noqa: F401 - pandas writes with it
    except ImportError as error:
        raise SpecError(
            f"a parquet file needs {error.name}: pip install pandas pyarrow, or give a name that "
            "ends in .csv."
        ) from None
    frame = pandas.DataFrame([_flatten(row) for row in make_trial_rows(result.trials)])
    # A column of texts and numbers has no type in parquet.
    for name in frame.columns[frame.map(type).nunique() > 1]:
        if frame[name].dtype == object:
            frame[name] = frame[name].map(lambda value: None if value is None else str(value))
    frame.to_parquet(path)


def _write_json(result: Result, path: Path) -> None:
    trials = [
        {
            "trial": trial.id,
            "status": trial.status,
            "value": trial.value,
            "epoch": trial.epoch,
            "config": trial.config,
            "metrics": trial.metrics,
            "seconds": trial.seconds,
            "failures": trial.failures,
            "error": trial.error,
        }
        for trial in result.trials
    ]
    summary = result.summary()
    whole = {
        "study": summary.study,
        "metric": summary.metric,
        "mode": summary.mode,
        "end": summary.end,
        "trials": trials,
    }
    path.write_bytes(msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n")


def _flatten(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row with nested values, such as schedules, as JSON."""
    return {
        name: msgspec.json.encode(value).decode() if isinstance(value, dict | list) else value
        for name, value in row.items()
    }


# How a file with this suffix is written.
WRITERS: dict[str, Callable[[Result, Path], None]] = {
    ".csv": _write_csv,
    ".json": _write_json,
    ".parquet": _write_parquet,
}
