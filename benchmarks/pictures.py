"""A picture of each policy at work, for its page: `make pictures` writes docs/policies/pictures.

All show the same study: the recorded runs that come with Paceline, in the same order, on four slots
for ten minutes. A policy that forks trials is shown on a synthetic workload, because a trace has no
forked runs. The colours of the SVG are readable on light and on dark backgrounds.

One order shows how a policy works, not how good it is. For that, use `paceline compare`.
"""

from __future__ import annotations

import math
import sys
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.page import ROOT
from paceline.analysis.timeline import build_timeline
from paceline.api.registry import BUILT_IN
from paceline.api.simulation import Simulation
from paceline.plots.style import SHADES, find_shade_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paceline.analysis.timeline import AttemptTimeline, Timeline
    from paceline.core.decisions import Step

FOLDER = ROOT / "docs" / "policies" / "pictures"
TRACE = ROOT / "src" / "paceline" / "data" / "cifar10_cnn14.jsonl.gz"
SLOTS, MINUTES = 4, 10
# The first order in which the best run is in the middle: the 55th of 100.
SEED = 1
# Pages that show more than the policy with its defaults.
SHOWN = {
    "any_of": "asha+plateau:patience=5",
    "barrier": "barrier+bandit",
    "kill_below": "kill_below:value=0.15,after=10",
}


class PictureSource(NamedTuple):
    """The source of a picture, and the range of its value axis."""

    source: str
    low: float
    high: float
    share: bool = False


RECORDED = PictureSource(str(TRACE), 0.4, 0.8)
SEEN = {"pbt": PictureSource("quadratic:epochs=300", 0.0, 0.4, share=True)}
NAMES = (*BUILT_IN["policy"], *(name for name in SHOWN if name not in BUILT_IN["policy"]))

# The size of the picture, and the frames of its two panels.
WIDTH, HEIGHT = 760, 316
LEFT, RIGHT = 62, 744
BEST_TOP, BEST_BOTTOM = 40, 150
SLOTS_TOP, ROW, BAR = 168, 24, 18
SLOTS_BOTTOM = SLOTS_TOP + SLOTS * ROW

STYLE = """
text{font:12px system-ui,-apple-system,'Segoe UI',sans-serif;fill:#57606a}
.grid{stroke:#868e96;stroke-opacity:.3}
.lead{stroke:#1c7ed6;stroke-width:2;fill:none}
@media(prefers-color-scheme:dark){text{fill:#b1bac4}}
"""


def draw(name: str) -> str:
    """Return the picture of a policy's page."""
    policy, seen = SHOWN.get(name, name), SEEN.get(name, RECORDED)
    steps: list[Step] = []
    simulation = Simulation(
        source=seen.source,
        policy=policy,
        slots=SLOTS,
        seed=SEED,
        deadline_s=60.0 * MINUTES,
        share=seen.share,
    )
    simulation.run(name=name, remember=steps.extend)
    past = build_timeline(steps)
    what = Path(seen.source).name.partition(".")[0].partition(":")[0]
    title = f"{policy}: {len(past.trials)} trials of {what} on {SLOTS} slots"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{title}</title>",
        f"<style>{STYLE}</style>",
        *_draw_axes(past.spec.metric, seen),
        *_draw_bars(past),
        f'<path class="lead" d="{_draw_best(past, seen)}"/>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _x(seconds: float) -> float:
    return LEFT + (RIGHT - LEFT) * seconds / (60.0 * MINUTES)


def _y(value: float, seen: PictureSource) -> float:
    inside = min(max(value, seen.low), seen.high)
    height = BEST_BOTTOM - BEST_TOP
    return BEST_BOTTOM - height * (inside - seen.low) / (seen.high - seen.low)


def _draw_axes(metric: str, seen: PictureSource) -> Iterator[str]:
    middle = (BEST_TOP + BEST_BOTTOM) / 2
    yield (
        f'<text transform="rotate(-90 16 {middle:g})" x="16" y="{middle:g}" '
        f'text-anchor="middle">best {metric}</text>'
    )
    for fifth in range(5):
        value = seen.low + (seen.high - seen.low) * fifth / 4
        y = _format_number(_y(value, seen))
        yield f'<path class="grid" d="M{LEFT} {y}H{RIGHT}"/>'
        yield f'<text x="{LEFT - 8}" y="{y}" dy="4" text-anchor="end">{value:.1f}</text>'
    for slot in range(SLOTS):
        y = _format_number(SLOTS_TOP + slot * ROW + BAR / 2)
        yield f'<text x="{LEFT - 8}" y="{y}" dy="4" text-anchor="end">slot {slot}</text>'
    for minute in range(0, MINUTES + 1, 2):
        x = _format_number(_x(60.0 * minute))
        yield f'<path class="grid" d="M{x} {BEST_TOP}V{SLOTS_BOTTOM}"/>'
        yield f'<text x="{x}" y="{SLOTS_BOTTOM + 18}" text-anchor="middle">{minute}</text>'
    x = _format_number((LEFT + RIGHT) / 2)
    yield f'<text x="{x}" y="{HEIGHT - 10}" text-anchor="middle">study time (minutes)</text>'


def _draw_bars(past: Timeline) -> Iterator[str]:
    """Draw each attempt on its slot, in the colour of its trial's final state, with a legend."""
    found: dict[str, list[AttemptTimeline]] = {}
    for attempt in past.attempts:
        key = find_shade_key(past.trials[attempt.trials[-1]], past)
        found.setdefault(key, []).append(attempt)
    x = float(LEFT)
    for shade in SHADES:
        if shade.key not in found:
            continue
        bars = "".join(_draw_bar(*span) for span in _merge_spans(found[shade.key], past.now))
        alive = shade.key in ("ready", "paused", "running")
        label = f"{shade.label} at the end" if alive else shade.label
        yield f'<path fill="{shade.colour}" d="{bars}"/>'
        yield f'<rect x="{x:g}" y="12" width="12" height="12" fill="{shade.colour}"/>'
        yield f'<text x="{x + 17:g}" y="22">{label}</text>'
        x += 32 + 6.6 * len(label)


def _merge_spans(attempts: list[AttemptTimeline], now: float) -> Iterator[tuple[int, float, float]]:
    """Yield (slot, begin, end); attempts of one trial without a gap between them are one span."""
    held = sorted(
        (
            slot,
            attempt.trials[-1],
            attempt.started_at,
            now if (end := attempt.ended_at) is None else end,
        )
        for attempt in attempts
        for slot in attempt.slots
    )
    for (slot, _), group in groupby(held, key=lambda each: each[:2]):
        began, ended = math.nan, math.nan
        for _, _, begin, end in group:
            if begin == ended:
                ended = end
                continue
            if not math.isnan(began):
                yield slot, began, ended
            began, ended = begin, end
        yield slot, began, ended


def _draw_bar(slot: int, began: float, ended: float) -> str:
    left, y = _x(began), SLOTS_TOP + slot * ROW
    # Leave a gap between neighbours, and keep the shortest bars visible.
    width = _format_number(max(_x(ended) - left - 0.5, 0.4))
    return f"M{_format_number(left)} {y}h{width}v{BAR}h-{width}z"


def _draw_best(past: Timeline, seen: PictureSource) -> str:
    leads = past.best_changes
    path = f"M{_format_number(_x(leads[0].at))} {_format_number(_y(leads[0].value, seen))}"
    for lead in leads[1:]:
        path += f"H{_format_number(_x(lead.at))}V{_format_number(_y(lead.value, seen))}"
    return f"{path}H{_format_number(_x(past.now))}"


def _format_number(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


def main() -> None:
    """Write all pictures, or the named ones."""
    FOLDER.mkdir(exist_ok=True)
    for name in sys.argv[1:] or NAMES:
        path = FOLDER / f"{name}.svg"
        path.write_text(draw(name), encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
