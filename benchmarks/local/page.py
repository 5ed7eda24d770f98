"""The page of `benchmarks.peers_local`: its tables and its text."""

from __future__ import annotations

from statistics import mean, median
from typing import TYPE_CHECKING, Any

from benchmarks.local.cases import OURS
from benchmarks.page import format_provenance, format_range, format_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.local.cases import Row


def make_table(rows: Sequence[Row]) -> str:
    """Return all figures, grouped by kind."""
    lines: list[tuple[str, ...]] = [("what", "tuner", "work", "figure", "Paceline's is better by")]
    lines += [_rate_row(row, rows, "reports a second") for row in _select_rows(rows, "reports")]
    lines += [_rate_row(row, rows, "trials a second") for row in _select_rows(rows, "trials")]
    lines += [_pause_row(row, rows) for row in _select_rows(rows, "pauses")]
    lines += [_deadline_row(row, "deadline") for row in _select_rows(rows, "deadline")]
    lines += [
        _deadline_row(row, "deadline, SIGTERM ignored") for row in _select_rows(rows, "stubborn")
    ]
    lines += [_startup_row(row, rows) for row in _select_rows(rows, "startup")]
    lines += [_memory_row(row, rows) for row in _select_rows(rows, "trials")]
    return format_table(lines)


def make_targets_table(rows: Sequence[Row]) -> str:
    """Return the targets and whether they were reached."""
    lines: list[tuple[str, ...]] = [("to reach", "found", "reached")]

    def add(target: str, found: str, reached: bool) -> None:
        lines.append((target, found, "yes" if reached else "no"))

    for row in _select_rows(rows, "reports", OURS):
        rate = median(row.numbers("per_s"))
        work = f"{row.case.work['trials']} of {row.case.work['epochs']:,}"
        add(f"2,000 durable reports a second ({work})", f"{rate:,.0f}", rate >= 2_000)
    for row in _select_rows(rows, "trials", OURS):
        rate = median(row.numbers("per_s"))
        add("50 trivial trials a second", f"{rate:,.0f}", rate >= 50)
    for row in _select_rows(rows, "pauses", OURS):
        cost = 1e3 * (mean(_pool_samples(row, "handovers_s")) - mean(_pool_samples(row, "saves_s")))
        add("pause and resume in 30 ms beyond saving, mean", f"{cost:.1f} ms", cost <= 30)
    for figure, name in (("deadline", "10 s"), ("stubborn", "10 s, SIGTERM ignored")):
        for row in _select_rows(rows, figure, OURS):
            late = max(row.numbers("seconds"))
            held = all(each["checkpoint"] for each in row.found)
            detail = f"{late:.2f} s at the latest, {'with' if held else 'without'} it"
            add(
                f"deadline {name}: back in 10.3 s with the best checkpoint",
                detail,
                late <= 10.3 and held,
            )
    return format_table(lines)


def _select_rows(rows: Sequence[Row], figure: str, label: str | None = None) -> list[Row]:
    return [
        row
        for row in rows
        if row.case.figure == figure and (label is None or row.case.label == label)
    ]


def _pool_samples(row: Row, name: str) -> list[float]:
    return [number for each in row.found for number in each[name]]


def _find_our_row(row: Row, rows: Sequence[Row]) -> Row | None:
    """Return our row to compare a peer's row with: the first of its kind."""
    ours = _select_rows(rows, row.case.figure, OURS)
    return ours[0] if ours and row.case.label != OURS else None


def _format_ratios(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Return their figures divided by ours: of the medians, smallest, largest."""
    if min(*ours, *theirs) <= 0:
        return ""
    ratios = (median(theirs) / median(ours), min(theirs) / max(ours), max(theirs) / min(ours))
    return "{} ({} to {})".format(*(f"{ratio:,.{1 if ratio < 100 else 0}f}" for ratio in ratios))


def _rate_row(row: Row, rows: Sequence[Row], what: str) -> tuple[str, ...]:
    work, rates, ours = row.case.work, row.numbers("per_s"), _find_our_row(row, rows)
    detail = f"{work['trials']:,} trials"
    if row.case.figure == "reports":
        detail += f" of {work['epochs']:,} reports"
    digits = 0 if median(rates) >= 20 else 1
    figure = f"{median(rates):,.{digits}f} ({format_range(rates, digits)})"
    # A higher rate is better, so ours is divided by theirs.
    ratio = "" if ours is None else _format_ratios(rates, ours.numbers("per_s"))
    return what, row.case.label, detail, figure, ratio


def _pause_row(row: Row, rows: Sequence[Row]) -> tuple[str, ...]:
    times, ours = _pool_samples(row, "handovers_s"), _find_our_row(row, rows)
    shown = [1e3 * each for each in times]
    figure = f"{mean(shown):,.1f} ms mean ({format_range(shown, 1)})"
    if "saves_s" in row.found[0]:
        figure += f", of it {1e3 * mean(_pool_samples(row, 'saves_s')):.1f} ms saving"
    ratio = "" if ours is None else f"{mean(times) / mean(_pool_samples(ours, 'handovers_s')):,.1f}"
    return "pause and resume", row.case.label, f"{len(times)} times", figure, ratio


def _deadline_row(row: Row, what: str) -> tuple[str, ...]:
    work, times = row.case.work, row.numbers("seconds")
    texts = {True: "with the best checkpoint", False: "without it", None: "it has no checkpoints"}
    held = {each["checkpoint"] for each in row.found}
    if not any(each.get("reported", True) for each in row.found):
        texts[False] = "nothing was reported before it"
    detail = f"{work['deadline_s']:g} s, reports {work['epoch_s']:g} s apart"
    figure = f"{median(times):.2f} s ({format_range(times, 2)}), {texts[min(held, key=bool)]}"
    return what, row.case.label, detail, figure, ""


def _startup_row(row: Row, rows: Sequence[Row]) -> tuple[str, ...]:
    times, ours = row.numbers("seconds"), _find_our_row(row, rows)
    figure = f"{median(times):.2f} s ({format_range(times, 2)})"
    ratio = "" if ours is None else _format_ratios(ours.numbers("seconds"), times)
    return "start to first report", row.case.label, "1 trial", figure, ratio


def _memory_row(row: Row, rows: Sequence[Row]) -> tuple[str, ...]:
    trials, sizes = row.case.work["trials"], row.numbers("bytes_per_trial")
    detail = f"trials {max(1, trials // 5):,} to {trials:,}"
    if not sizes:
        return "driver's bytes a trial", row.case.label, detail, "too few to tell", ""
    figure = f"{median(sizes):,.0f} ({format_range(sizes)})"
    ours = _find_our_row(row, rows)
    ratio = "" if ours is None else _format_ratios(ours.numbers("bytes_per_trial"), sizes)
    return "driver's bytes a trial", row.case.label, detail, figure, ratio


def make_page(rows: Sequence[Row], known: dict[str, Any]) -> str:
    """Return the whole page."""
    theirs = ", ".join(f"{name} {number}" for name, number in known["peer_versions"].items())
    return PAGE.format(
        table=make_table(rows),
        targets=make_targets_table(rows),
        provenance=format_provenance(known),
        theirs=theirs,
        load=known["load_before"],
        fsync=known["fsync_ms"],
    )


PAGE = """\
# Tuning on one machine: Paceline and its peers

Median (least to most) over the repeats; the last column divides the medians, in brackets the least
and the most that any two repeats give. Absolute figures depend on the machine; the ratios are
the result.

{table}

{targets}

{provenance}; in the peers' environments {theirs}
* The machine before the run: load {load}; a durable write of 4 kB takes {fsync} ms

## What was run

* **The same work for all**: trials that train nothing, random search over one number, two trials at
  a time. A peer that would take minutes gets fewer trials, as the table says; rates hardly
  depend on their number. Within each repeat the tuners take turns.
* **Reports and trials a second**: from the first line of the first training function until the call
  returns. Starting is excluded; writing everything to disk is included.
* **Pause and resume**: two trials take turns on one slot; each is paused at each report. The time
  runs from the report of one trial (the peers have saved its state before) to the first epoch of
  the other, with its state loaded. Epochs take 0.1 s, which does not count. The state is one
  number, so the time is the tuner's own. Paceline saves inside `report`, durably (`fsync`); that
  part is shown separately.
* **Deadline**: from the call to its return. Trials of three epochs, 8 s each. The best checkpoint
  is held if the result of the call contains the state with the best value reported before the
  deadline; a tuner that starts slowly may have none by then.
* **Start**: from the start of the Python process until the driver has the first report.
* **Memory**: growth of the driver's resident memory from a fifth of the trials to the last,
  per trial, without Ray's servers and the trials themselves. With few trials it is mostly
  noise.

What they do differently:

* **Paceline**: a process for each attempt, forked from a warm one; reports in a SQLite log, durable
  (`synchronous=FULL`) in groups. `policy="fifo"`, `generator="random"`; for the pauses a policy
  that pauses at each report.
* **Ray Tune**: an actor for each trial, or with `reuse_actors` for several, one after another in
  the same process. Only the JSON logger; experiment state as by default
  (every 10 s or more, no `fsync`); nothing printed, no dashboard, two cores. For the pauses
  a scheduler that returns `PAUSE`. Training functions run in a thread, so they cannot ignore
  SIGTERM. One session runs all tasks of a repeat; the start is that of its first task.
* **Optuna**: trials are threads of the driver (`n_jobs=2`): no process is started, and a crash
  ends the driver too. Every report is its own durable SQLite transaction. Optuna can neither pause
  a trial nor end one from outside: it checks a timeout between trials.
* **Syne Tune**: a new Python process for each trial and each resumption; reports are lines in a
  file that the driver reads again each 0.02 s (its default is 5 s), stored in a table each 10 s, no
  `fsync`. None of its schedulers pauses; a small one of ours does, through its public interface.
"""
