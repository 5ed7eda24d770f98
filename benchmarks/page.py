"""Helpers of all result pages: tables, and the machine and commit of a measurement."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def collect_facts(command: str, took_s: float) -> dict[str, Any]:
    """Return command, date, commit, machine and versions of a measurement."""
    return {
        "command": command,
        "date": datetime.now(UTC).date().isoformat(),
        "took_s": round(took_s),
        "commit": _commit(),
        "machine": {
            "cpu": _cpu(),
            "cores": os.cpu_count(),
            "system": f"{platform.system()} {platform.machine()}",
            "python": platform.python_version(),
        },
        "versions": {name: version(name) for name in ("paceline", "numpy", "msgspec")},
    }


def format_provenance(known: dict[str, Any]) -> str:
    """Return the facts as the lines under a table."""
    machine = known["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in known["versions"].items())
    return (
        f"* Command: `{known['command']}`, which took {known['took_s']} s, on {known['date']}, at "
        f"commit {known['commit']}\n"
        f"* Machine: {machine['cpu']}, {machine['cores']} cores, {machine['system']}, "
        f"Python {machine['python']}\n"
        f"* Versions: {versions}"
    )


def publish(name: str, page: str, known: dict[str, Any], **found: object) -> None:
    """Print a page and write it, with its figures as JSON."""
    print("\n" + page, flush=True)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.md").write_text(page, encoding="utf-8")
    figures = json.dumps({**known, **found}, indent=1)
    (RESULTS / f"{name}.json").write_text(figures + "\n", encoding="utf-8")


def format_table(lines: Sequence[Sequence[str]]) -> str:
    """Return rows, the header first, as an aligned Markdown table."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    ruled = [lines[0], ["-" * width for width in widths], *lines[1:]]
    return "\n".join(
        "| "
        + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True))
        + " |"
        for line in ruled
    )


def format_range(numbers: Sequence[float], digits: int = 0) -> str:
    """Return the smallest and the largest of some numbers as text."""
    low, high = min(numbers), max(numbers)
    if low == high:
        return f"{low:,.{digits}f}"
    return f"{low:,.{digits}f} to {high:,.{digits}f}"


def _commit() -> str:
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    done = subprocess.run(git, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "none"


def _cpu() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"
