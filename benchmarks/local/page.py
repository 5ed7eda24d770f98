"""The page of `benchmarks.peers_local`: its tables, and what stands beside them."""

from __future__ import annotations

from statistics import mean, median
from typing import TYPE_CHECKING, Any

from benchmarks.local.cases import OURS
from benchmarks.page import markdown, provenance, spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.local.cases import Row


def table(rows: Sequence[Row]) -> str:
    """Return all figures, those of one kind together."""
    lines: list[tuple[str, ...]] = [("what", "tuner", "work", "figure", "Paceline's is better by")]
    lines += [_rate(row, rows, "reports a second") for row in _of(rows, "reports")]
    lines += [_rate(row, rows, "trials a second") for row in _of(rows, "trials")]
    lines += [_pause(row, rows) for row in _of(rows, "pauses")]
    lines += [_deadline(row, "deadline") for row in _of(rows, "deadline")]
    lines += [_deadline(row, "deadline, SIGTERM ignored") for row in _of(rows, "stubborn")]
    lines += [_startup(row, rows) for row in _of(rows, "startup")]
    lines += [_memory(row, rows) for row in _of(rows, "trials")]
    return markdown(lines)


def targets(rows: Sequence[Row]) -> str:
    """Return what was to be reached and whether it was."""
    lines: list[tuple[str, ...]] = [("to reach", "found", "reached")]

    def add(target: str, found: str, reached: bool) -> None:
        lines.append((target, found, "yes" if reached else "no"))

    for row in _of(rows, "reports", OURS):
        rate = median(row.numbers("per_s"))
        work = f"{row.case.work['trials']} of {row.case.work['epochs']:,}"
        add(f"2,000 durable reports a second ({work})", f"{rate:,.0f}", rate >= 2_000)
    for row in _of(rows, "trials", OURS):
        rate = median(row.numbers("per_s"))
        add("50 trivial trials a second", f"{rate:,.0f}", rate >= 50)
    for row in _of(rows, "pauses", OURS):
        cost = 1e3 * (mean(_pool(row, "handovers_s")) - mean(_pool(row, "saves_s")))
        add("pause and resume in 30 ms beyond saving, mean", f"{cost:.1f} ms", cost <= 30)
    for figure, name in (("deadline", "10 s"), ("stubborn", "10 s, SIGTERM ignored")):
        for row in _of(rows, figure, OURS):
            late = max(row.numbers("seconds"))
            held = all(each["checkpoint"] for each in row.found)
            told = f"{late:.2f} s at the latest, {'with' if held else 'without'} it"
            add(
                f"deadline {name}: back in 10.3 s with the best checkpoint",
                told,
                late <= 10.3 and held,
            )
    return markdown(lines)


def _of(rows: Sequence[Row], figure: str, who: str | None = None) -> list[Row]:
    return [
        row for row in rows if row.case.figure == figure and (who is None or row.case.who == who)
    ]


def _pool(row: Row, name: str) -> list[float]:
    return [number for each in row.found for number in each[name]]


def _peer(row: Row, rows: Sequence[Row]) -> Row | None:
    """Return our row that a peer's is to be seen beside: the first of its kind."""
    ours = _of(rows, row.case.figure, OURS)
    return ours[0] if ours and row.case.who != OURS else None


def _better(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Return how many times as large theirs are: the medians, the least, the most."""
    if min(*ours, *theirs) <= 0:
        return ""
    ratios = (median(theirs) / median(ours), min(theirs) / max(ours), max(theirs) / min(ours))
    return "{} ({} to {})".format(*(f"{ratio:,.{1 if ratio < 100 else 0}f}" for ratio in ratios))


def _rate(row: Row, rows: Sequence[Row], what: str) -> tuple[str, ...]:
    work, rates, ours = row.case.work, row.numbers("per_s"), _peer(row, rows)
    told = f"{work['trials']:,} trials"
    if row.case.figure == "reports":
        told += f" of {work['epochs']:,} reports"
    digits = 0 if median(rates) >= 20 else 1
    figure = f"{median(rates):,.{digits}f} ({spread(rates, digits)})"
    # Rates: the more the better, so that ours are divided by theirs.
    ratio = "" if ours is None else _better(rates, ours.numbers("per_s"))
    return what, row.case.who, told, figure, ratio


def _pause(row: Row, rows: Sequence[Row]) -> tuple[str, ...]:
    times, ours = _pool(row, "handovers_s"), _peer(row, rows)
    shown = [1e3 * each for each in times]
    figure = f"{mean(shown):,.1f} ms mean ({spread(shown, 1)})"
    if "saves_s" in row.found[0]:
        figure += f", of it {1e3 * mean(_pool(row, 'saves_s')):.1f} ms saving"
    ratio = "" if ours is None else f"{mean(times) / mean(_pool(ours, 'handovers_s')):,.1f}"
    return "pause and resume", row.case.who, f"{len(times)} times", figure, ratio


def _deadline(row: Row, what: str) -> tuple[str, ...]:
    work, times = row.case.work, row.numbers("seconds")
    said = {True: "with the best checkpoint", False: "without it", None: "it has no checkpoints"}
    held = {each["checkpoint"] for each in row.found}
    if not any(each.get("reported", True) for each in row.found):
        said[False] = "nothing was reported before it"
    told = f"{work['deadline_s']:g} s, reports {work['epoch_s']:g} s apart"
    figure = f"{median(times):.2f} s ({spread(times, 2)}), {said[min(held, key=bool)]}"
    return what, row.case.who, told, figure, ""


def _startup(row: Row, rows: Sequence[Row]) -> tuple[str, ...]:
    times, ours = row.numbers("seconds"), _peer(row, rows)
    figure = f"{median(times):.2f} s ({spread(times, 2)})"
    ratio = "" if ours is None else _better(ours.numbers("seconds"), times)
    return "start to first report", row.case.who, "1 trial", figure, ratio


def _memory(row: Row, rows: Sequence[Row]) -> tuple[str, ...]:
    trials, sizes = row.case.work["trials"], row.numbers("bytes_per_trial")
    told = f"trials {max(1, trials // 5):,} to {trials:,}"
    if not sizes:
        return "driver's bytes a trial", row.case.who, told, "too few to tell", ""
    figure = f"{median(sizes):,.0f} ({spread(sizes)})"
    ours = _peer(row, rows)
    ratio = "" if ours is None else _better(ours.numbers("bytes_per_trial"), sizes)
    return "driver's bytes a trial", row.case.who, told, figure, ratio


def page(rows: Sequence[Row], known: dict[str, Any]) -> str:
    """Return the whole page."""
    theirs = ", ".join(f"{name} {number}" for name, number in known["peer_versions"].items())
    return PAGE.format(
        table=table(rows),
        targets=targets(rows),
        provenance=provenance(known),
        theirs=theirs,
        load=known["load_before"],
        fsync=known["fsync_ms"],
    )


PAGE = """\
# Tuning on one machine: Paceline and its peers

Median (least to most) over the repeats; the last column divides the medians, in brackets the least
and the most that any two repeats give. Absolute figures belong to the machine; the ratios are
the result.

{table}

{targets}

{provenance}; in the peers' environments {theirs}
* The machine before the run: load {load}; a durable write of 4 kB takes {fsync} ms

## What was run

* **The same work for all**: trials that train nothing, random search over one number, two trials at
  a time. Where a peer would take minutes it gets fewer trials, as the table says; rates hardly
  depend on their number. Within each repeat the tuners take turns.
* **Reports and trials a second**: from the first line of the first training function until the call
  returns, so without starting and with everything that has to be on the disk in the end.
* **Pause and resume**: two trials take turns on one slot, and each is paused at each report. From
  the report of the one, with its state saved at the peers, to the first epoch of the other, with
  its state loaded. Epochs take 0.1 s, which is no part of it. The state is a number: what remains
  is the tuner's own. Paceline saves inside `report`, durably (`fsync`), and this is told apart.
* **Deadline**: from the call to its return. Trials of three epochs, 8 s each. The best checkpoint
  is held if the call's result leads to a file with the best value that any trial has reported
  before the deadline; a tuner that starts slowly may have none by then.
* **Start**: from the start of the Python process until the driver has the first report.
* **Memory**: growth of the driver's resident memory from a fifth of the trials to the last,
  by trial; Ray's servers and the trials themselves are not in it. With few trials it is mostly
  noise.

What they do differently:

* **Paceline**: a process for each attempt, forked from a warm one; reports in a SQLite log, durable
  (`synchronous=FULL`) in groups. `policy="fifo"`, `generator="random"`; for the pauses a policy
  that pauses at each report.
* **Ray Tune**: an actor for each trial, or with `reuse_actors` for several, one after another in
  the same process. Of its loggers the JSON one alone; its experiment state as by default
  (every 10 s or more, no `fsync`); nothing printed, no dashboard, two cores. For the pauses
  a scheduler that returns `PAUSE`. Training functions run in a thread, so that they cannot ignore
  SIGTERM. One session runs all tasks of a repeat, and the start is that of its first.
* **Optuna**: trials are threads of the driver (`n_jobs=2`): nothing has to be started, and one that
  crashes takes the driver along. Every report is a durable SQLite transaction of its own.
  It can neither pause a trial nor end one from outside: a timeout is looked at between trials.
* **Syne Tune**: a new Python process for each trial and each resumption; reports are lines in a
  file that the driver reads again each 0.02 s (its default is 5 s), stored in a table each 10 s, no
  `fsync`. None of its schedulers pauses; a small one of ours does, through its interface.
"""
