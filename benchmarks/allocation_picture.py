"""Draw slots in use, and slots per trial, over time, as SVG.

Reads logs. The colours are readable on light and on dark backgrounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.decisions import Launch
from paceline.core.events import Ended

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from paceline.core.decisions import Step

WIDTH, LEFT, RIGHT = 760, 62, 744
PANEL, GAP, TOP = 120, 34, 34
COLOURS = ("#1c7ed6", "#f08c00", "#2f9e44", "#ae3ec9", "#e03131", "#0c8599", "#868e96")
STYLE = """
text{font:12px system-ui,-apple-system,'Segoe UI',sans-serif;fill:#57606a}
.grid{stroke:#868e96;stroke-opacity:.3}
@media(prefers-color-scheme:dark){text{fill:#b1bac4}}
"""


class WidthHistory:
    """Width of each trial, between two moments at which any width changed."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.spans: list[tuple[float, float, list[tuple[int, float]]]] = []
        held: dict[int, tuple[int, float]] = {}
        since = 0.0
        for step in steps:
            at = step.event.at
            ends = isinstance(step.event, Ended)
            launches = [each for each in step.decisions if isinstance(each, Launch)]
            if (ends or launches) and at > since:
                self.spans.append((since, at, sorted(held.values())))
                since = at
            if isinstance(step.event, Ended):
                held.pop(step.event.attempt, None)
            for launch in launches:
                held[launch.attempt] = (launch.trial, launch.width)

    @property
    def end(self) -> float:
        return self.spans[-1][1]


def draw_widths(pasts: Mapping[str, WidthHistory], slots: int) -> str:
    """Return one panel per history: the slots, stacked by trial."""
    end = max(past.end for past in pasts.values())
    height = TOP + len(pasts) * (PANEL + GAP) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>slots per trial over time: {', '.join(pasts)}</title>",
        f"<style>{STYLE}</style>",
    ]
    for number, (name, past) in enumerate(pasts.items()):
        top = TOP + number * (PANEL + GAP)
        parts += _panel(name, past, slots, (top, end))
    middle = (LEFT + RIGHT) / 2
    parts.append(
        f'<text x="{middle:g}" y="{height - 8}" text-anchor="middle">study time (hours)</text>'
    )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(name: str, past: WidthHistory, slots: int, place: tuple[int, float]) -> Iterator[str]:
    top, end = place
    used = sum((to - since) * sum(width for _, width in held) for since, to, held in past.spans)
    title = f"{name}: {past.end / 3600:.2f} h, {used / (slots * past.end):.0%} of the slots in use"
    yield f'<text x="{LEFT}" y="{top - 8}">{title}</text>'
    for tick in range(0, slots + 1, 2):
        y = top + PANEL * (1 - tick / slots)
        yield f'<path class="grid" d="M{LEFT} {y:g}H{RIGHT}"/>'
        yield f'<text x="{LEFT - 8}" y="{y:g}" dy="4" text-anchor="end">{tick}</text>'
    shapes: dict[str, list[str]] = {}
    for since, to, held in past.spans:
        base = 0.0
        for trial, width in held:
            x, y = _x(since, end), top + PANEL * (1 - (base + width) / slots)
            wide, high = _x(to, end) - x, PANEL * width / slots
            bar = f"M{x:.1f} {y:.1f}h{wide:.1f}v{high:.1f}h-{wide:.1f}z"
            shapes.setdefault(COLOURS[trial % len(COLOURS)], []).append(bar)
            base += width
    for colour, bars in shapes.items():
        yield f'<path fill="{colour}" fill-opacity=".75" d="{"".join(bars)}"/>'
    for tick in range(5):
        x = LEFT + (RIGHT - LEFT) * tick / 4
        hours = end * tick / 4 / 3600
        y = top + PANEL + 14
        yield f'<text x="{x:g}" y="{y}" text-anchor="middle">{hours:.2f}</text>'


def _x(at: float, end: float) -> float:
    return LEFT + (RIGHT - LEFT) * at / end
