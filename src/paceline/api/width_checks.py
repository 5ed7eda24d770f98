"""Which allocators can act with which `span` and `pack`; the others are refused.

Knows the rules of the built-in allocators in one sentence each. Does not choose widths.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.api.registry import parse_part, split_policies
from paceline.core.errors import SpecError

if TYPE_CHECKING:
    from paceline.core.values import Part

# Allocators that choose widths by themselves, and those of them that give whole slots only.
_CHOOSING = frozenset(("confidence", "fluid", "fluid_static", "softmax", "top", "uniform"))
_WHOLE = frozenset(("softmax", "top", "uniform"))


def check_widths(allocator: Part, span: int, pack: int) -> None:
    """Raise SpecError if the allocator, `span` and `pack` cannot all act together."""
    trouble = find_inert_width(allocator, span, pack)
    if trouble:
        raise SpecError(trouble)


def check_pool_width(policy: Part, span: int) -> None:
    """Raise SpecError if a policy dedicates more slots to a trial than a trial may hold."""
    # Several policies are one part, whose name lists them.
    for text in split_policies(policy.name):
        part = policy if text == policy.name else parse_part(text)
        k = part.params.get("k", 1)
        if part.name == "pop" and isinstance(k, int) and k > span:
            raise SpecError(
                f"policy={str(part)!r} dedicates {k} slots to each promising trial, but "
                f"span={span} allows a trial {span}: give span={k} or more, or leave k out."
            )


def find_inert_width(allocator: Part, span: int, pack: int) -> str:
    """Return which option cannot act, and what to do; empty: all of them can."""
    name, width = allocator.name, allocator.params.get("width")
    if name in _CHOOSING and span == pack == 1:
        shares = "" if name in _WHOLE else ", or pack=2 or more to let several trials share one"
        return (
            f"allocator={name!r} cannot act with span=1 and pack=1, where every trial has one "
            f"slot: give span=2 or more to let a trial have several{shares}; or leave the "
            "allocator out."
        )
    if pack > 1 and name in _WHOLE:
        return (
            f"pack={pack} cannot act with allocator={name!r}, which gives whole slots: leave pack "
            "out, or give allocator='fluid', which shares slots too."
        )
    if pack > 1 and span > 1 and name == "fixed":
        return (
            f"pack={pack} cannot act with span={span} and allocator='fixed', which gives every "
            "trial the same width: leave one of them out, or give allocator='fluid'."
        )
    if name == "confidence" and isinstance(width, int) and (pack > 1 or width > span):
        option = f"width={width}" if width > span else f"pack={pack}"
        return (
            f"{option} cannot act with allocator='confidence:width={width}', span={span} and "
            f"pack={pack}: every trial gets that many slots, so give span={width} and pack=1."
        )
    return ""
