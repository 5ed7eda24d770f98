"""The tables of the curve benchmark: overall, by family, by family and cut, and wins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.curves.question_set import CUTS, HELD_OUT, RIVALS
from benchmarks.curves.score import Summary, average_families, summarize
from benchmarks.page import format_provenance, format_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.curves.score import Score

_RULES = f"""\
Recorded runs, cut at 10, 25, 50 and 75 % of their length; models forecast the last recorded value.
A run that is NaN at the cut is skipped; one that ends with NaN counts as the worst value of its
trace's range. Units are the standard deviation of a trace's final values. Log score: higher is
better. CRPS: lower is better. AUC: of the probability of beating the best of {RIVALS} other runs.
Overall means weight every family equally. The families marked * were held out of every design
choice. A model without an answer is scored as `last`. The published samplers have two log scores,
from their mixture of normals and from its quantiles; the better one counts, by row."""


def make_page(scores: Mapping[str, Sequence[Score]], families: Sequence[str], known: Any) -> str:  # noqa: ANN401
    """Return the whole page."""
    by_family = {
        name: {
            family: summarize(one for one in given if one.family == family)
            for family in families
            if any(one.family == family for one in given)
        }
        for name, given in scores.items()
    }
    parts = [
        "# Curve models on recorded runs",
        _RULES,
        "## Overall",
        _overall_table(by_family),
        *_wins_table(by_family),
    ]
    for title, figure in _FIGURES.items():
        parts += [f"## {title}, by family", _family_table(by_family, figure)]
    for title in ("Log score", "CRPS"):
        parts += [f"## {title}, by family and cut", _cut_table(scores, families, _FIGURES[title])]
    return "\n\n".join([*parts, format_provenance(known)]) + "\n"


def summarize_scores(
    scores: Mapping[str, Sequence[Score]], families: Sequence[str]
) -> list[dict[str, Any]]:
    """Return every figure by model, family and cut; a cut of null means all cuts."""
    rows = []
    for name, given in scores.items():
        for family in families:
            for cut in (None, *CUTS):
                kept = [one for one in given if one.family == family and cut in (None, one.cut)]
                if kept:
                    figures = {
                        key: value if value is None else round(value, 4)
                        for key, value in summarize(kept)._asdict().items()
                    }
                    rows.append({"model": name, "family": family, "cut": cut, **figures})
    return rows


_FIGURES: dict[str, Callable[[Summary], str]] = {
    "Log score": lambda found: f"{found.log:.2f}",
    "CRPS": lambda found: f"{found.crps:.3f}",
    "Coverage of 80 % intervals": lambda found: f"{found.in80:.0%}",
    "Coverage of 95 % intervals": lambda found: f"{found.in95:.0%}",
    "AUC": lambda found: "" if found.auc is None else f"{found.auc:.2f}",
    "Milliseconds per curve": lambda found: f"{found.ms:,.1f}",
}


def _mark_held_out(family: str) -> str:
    return f"{family} *" if family in HELD_OUT else family


def _overall_table(by_family: Mapping[str, Mapping[str, Summary]]) -> str:
    lines = [["model", "questions", "answered", *_FIGURES]]
    for name, given in by_family.items():
        found = average_families(list(given.values()))
        figures = [figure(found) for figure in _FIGURES.values()]
        lines.append([name, str(found.questions), f"{found.answered:.0%}", *figures])
    return format_table(lines)


def _family_table(
    by_family: Mapping[str, Mapping[str, Summary]], figure: Callable[[Summary], str]
) -> str:
    lines = [["family", "questions", *by_family]]
    for family, first in next(iter(by_family.values())).items():
        figures = [figure(given[family]) for given in by_family.values()]
        lines.append([_mark_held_out(family), str(first.questions), *figures])
    return format_table(lines)


def _cut_table(
    scores: Mapping[str, Sequence[Score]],
    families: Sequence[str],
    figure: Callable[[Summary], str],
) -> str:
    lines = [["family", "cut", *scores]]
    for family in families:
        for cut in CUTS:
            cells = [
                [one for one in given if one.family == family and one.cut == cut]
                for given in scores.values()
            ]
            if all(cells):
                figures = [figure(summarize(cell)) for cell in cells]
                lines.append([_mark_held_out(family), f"{cut:.0%}", *figures])
    return format_table(lines)


def _wins_table(by_family: Mapping[str, Mapping[str, Summary]]) -> list[str]:
    """Return the families in which each model beats the published samplers."""
    published = [name for name in by_family if name.startswith("published")]
    if not published:
        return []
    lines = [["model", "against", "log score won", "CRPS won", "both won", "lost in"]]
    for name, given in by_family.items():
        for rival in published:
            if name in published:
                continue
            other = by_family[rival]
            log = {family for family in given if given[family].log > other[family].log}
            rank = {family for family in given if given[family].crps < other[family].crps}
            lost = ", ".join(_mark_held_out(family) for family in given if family not in log & rank)
            count = len(given)
            cells = [f"{len(won)} of {count}" for won in (log, rank, log & rank)]
            lines.append([name, rival, *cells, lost or "none"])
    return ["## Against the published ensemble, by family", format_table(lines)]
