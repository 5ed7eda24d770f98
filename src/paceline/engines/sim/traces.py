"""Trace files: recorded curves and epoch times of many configs, read strictly and written back.

Knows the format (`docs/trace-format.md`) and its errors. An error names the file, the line and the
field.
"""

from __future__ import annotations

import gzip
import math
import zlib
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from paceline.core.errors import SpecError, TraceError
from paceline.core.speedup import WidthSpeed
from paceline.core.values import OPEN_ENDED, Config, Mode
from paceline.plan.settings import canonicalize, config_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

VERSION = 1
# The longest trace and the longest run: a small file may unpack to any size.
MAX_BYTES = 256 << 20
MAX_LINE_BYTES = 32 << 20
_MIN_LINE_BYTES = 32


class TraceHeader(Struct, frozen=True, kw_only=True):
    """The first line of a trace."""

    paceline_trace: int
    name: str
    metric: str
    mode: Mode
    max_epochs: int
    unit: str = "epoch"
    source: str = ""
    license: str = ""
    # A value that few runs reach: a good target for comparisons.
    target: float | None = None
    # The measured durations of saving and restoring a checkpoint.
    save_s: float | None = None
    restore_s: float | None = None
    # The measured time from a request for a forecast to its answer.
    forecast_s: float | None = None
    # The lowest and the highest value that the metric can have, if known.
    range: tuple[float, float] | None = None
    # Whether worker processes trained the runs, or a simulator did.
    live: bool = False
    # Whether the seconds were measured at other widths and are as on one slot alone; and the speed
    # at each of these widths.
    normalised: bool = False
    speeds: tuple[WidthSpeed, ...] = ()
    # The number of runs that a policy, a failure or the end of the study cut short. They could have
    # trained up to `max_epochs`. Traces without the field are complete.
    cut: int = 0


class _Line(Struct, frozen=True):
    """A line after the first, as it is in the file."""

    id: int
    config: dict[str, Any]
    values: list[float | None]
    seconds: list[float] | float
    setup_s: float | None = None
    seed: int | None = None
    cut: bool = False


class TraceRun(Struct, frozen=True):
    """One recorded training run."""

    id: int
    # Canonical; with the seed as one of its values if the trace has one.
    config: Config
    # The metric after each epoch; NaN if missing. Arrays: a trace may have millions of values.
    values: array[float]
    # The duration of each epoch.
    seconds: array[float]
    setup_s: float | None = None
    # Whether it was cut short: training would have gone on after its last value.
    cut: bool = False


class Trace(Struct, frozen=True):
    """A header and its runs."""

    header: TraceHeader
    runs: Sequence[TraceRun]


def read_trace(path: str | Path) -> Trace:
    """Return the trace in this file; raise TraceError if the file is invalid."""
    lines = enumerate(_lines(Path(path)), 1)
    header = _header(path, *next(lines, (1, b"")))
    runs: list[TraceRun] = []
    seen: dict[bytes, int] = {}
    for number, body in lines:
        if not body.strip():
            continue
        run = _run(path, number, body, header)
        first = seen.setdefault(config_key(run.config), number)
        if first != number:
            raise TraceError(f"{path}:{number}: config and seed are the same as in line {first}.")
        runs.append(run)
    if not runs:
        raise TraceError(f"{path}: the trace has a header but no runs: add a line for each run.")
    if all(math.isnan(value) for run in runs for value in run.values):
        raise TraceError(
            f"{path}: every value in `values` is null: a trace needs at least one number."
        )
    return Trace(header, runs)


def write_trace(path: str | Path, header: TraceHeader, runs: Iterable[TraceRun]) -> None:
    """Write a trace; the same runs always give the same bytes."""
    encoder = msgspec.json.Encoder()
    lines = [encoder.encode(header)]
    for run in runs:
        line = {
            "id": run.id,
            "config": run.config,
            "values": [None if math.isnan(value) else value for value in run.values],
            "seconds": list(run.seconds),
        }
        if run.setup_s is not None:
            line["setup_s"] = run.setup_s
        if run.cut:
            line["cut"] = True
        lines.append(encoder.encode(line))
    # No file name and no time in the gzip header: both would change the bytes.
    body = gzip.compress(b"\n".join(lines) + b"\n", mtime=0)
    Path(path).write_bytes(body)


def _lines(path: Path) -> Iterator[bytes]:
    left = MAX_BYTES
    try:
        with path.open("rb") as raw:
            is_packed = raw.peek(2)[:2] == b"\x1f\x8b"
            with gzip.open(raw) if is_packed else raw as file:
                while line := file.readline(min(left, MAX_LINE_BYTES) + 1):
                    # Empty lines take time too, so they count.
                    left -= max(len(line), _MIN_LINE_BYTES)
                    if left < 0 or len(line) > MAX_LINE_BYTES:
                        raise TraceError(
                            f"{path}: more than {MAX_BYTES >> 20} MB, or {MAX_LINE_BYTES >> 20} MB "
                            "in one line, are not read: split the trace."
                        )
                    yield line
    except FileNotFoundError:
        raise TraceError(f"{path}: the file does not exist: give the path of a trace.") from None
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}.") from None
    except (EOFError, zlib.error):
        raise TraceError(f"{path}: the gzip data ends early or is damaged.") from None


def _decode(path: str | Path, number: int, body: bytes, kind: type) -> Any:  # noqa: ANN401
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at ")
        field = where.strip("`").removeprefix("$.")
        place = f"field {field}: " if field else ""
        raise TraceError(f"{path}:{number}: {place}{what[:1].lower()}{what[1:]}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"{path}:{number}: not a JSON object: {error}.") from None


def _header(path: str | Path, number: int, body: bytes) -> TraceHeader:
    if not body.strip():
        raise TraceError(f"{path}: the file is empty: a trace starts with a header line.")
    header: TraceHeader = _decode(path, number, body, TraceHeader)
    if header.paceline_trace > VERSION:
        raise TraceError(
            f"{path}:{number}: field paceline_trace: format {header.paceline_trace} is newer than "
            f"{VERSION}, which this version reads: upgrade Paceline."
        )
    if not 1 <= header.max_epochs <= OPEN_ENDED:
        raise TraceError(
            f"{path}:{number}: field max_epochs: {header.max_epochs} is invalid: "
            f"must be from 1 to {OPEN_ENDED:,}."
        )
    for field in ("save_s", "restore_s", "forecast_s"):
        cost = getattr(header, field)
        if cost is not None and not (cost >= 0 and math.isfinite(cost)):
            raise TraceError(f"{path}:{number}: field {field}: {cost} is not a duration.")
    for at, each in enumerate(header.speeds):
        if not (0 < each.width < math.inf and 0 < each.speed < math.inf):
            raise TraceError(
                f"{path}:{number}: field speeds[{at}]: {each.speed} at width {each.width} is not a "
                "speed."
            )
    if header.range is not None and not header.range[0] < header.range[1]:
        raise TraceError(f"{path}:{number}: field range: must be two rising numbers.")
    return header


def _run(path: str | Path, number: int, body: bytes, header: TraceHeader) -> TraceRun:
    line: _Line = _decode(path, number, body, _Line)

    def bad(field: str, what: str) -> TraceError:
        return TraceError(f"{path}:{number}: field {field}: {what}.")

    count = len(line.values)
    if count == 0:
        raise bad("values", "it is empty: a run has at least one epoch")
    if count > header.max_epochs:
        raise bad("values", f"{count} epochs are more than max_epochs={header.max_epochs}")
    seconds = line.seconds if isinstance(line.seconds, list) else [line.seconds] * count
    if len(seconds) != count:
        raise bad("seconds", f"{len(seconds)} durations for {count} values")
    if any(not (s >= 0 and math.isfinite(s)) for s in seconds):
        raise bad("seconds", "a duration is negative or not finite")
    if line.setup_s is not None and not (line.setup_s >= 0 and math.isfinite(line.setup_s)):
        raise bad("setup_s", f"{line.setup_s} is not a duration")
    config = dict(line.config)
    if line.seed is not None and config.setdefault("seed", line.seed) != line.seed:
        raise bad("seed", f"{line.seed} is not the config's own seed {config['seed']}")
    try:
        settled = canonicalize(config)
    except SpecError as error:
        raise bad("config", str(error).rstrip(".")) from None
    values = array("d", [math.nan if value is None else value for value in line.values])
    cut = line.cut and count < header.max_epochs
    return TraceRun(line.id, settled, values, array("d", seconds), line.setup_s, cut)
