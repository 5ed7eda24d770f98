"""The tokens of `paceline.curves.pfn.encoding`, computed in torch for a whole batch.

Knows the same as that module; `tests/curves/test_pfn_training.py` compares the two.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.curves.pfn.encoding import (
    ASKED,
    BUCKETS,
    CLASSES,
    FIRST,
    GRAIN,
    LATEST,
    MARKS,
    OTHER,
    OTHERS,
    POINT,
    POINTS,
    REACH,
    WHOLE,
)

AVERAGED = POINTS - FIRST - LATEST
LONG = 7.0


class Frame(NamedTuple):
    """The origin and unit of each curve's values."""

    last: Tensor
    scale: Tensor
    best: Tensor
    worst: Tensor

    def encode(self, values: Tensor) -> Tensor:
        """Return values (curves, any) as the network sees them."""
        return self.encode_change(values - self.last[:, None])

    def encode_change(self, change: Tensor) -> Tensor:
        """Return differences (curves, any) as the network sees them."""
        return (torch.asinh(change / (0.05 * self.scale[:, None])) / 5).clamp(-4, 4)


class Batch(NamedTuple):
    """The input of the network."""

    points: Tensor  # (curves, POINTS, POINT)
    there: Tensor  # (curves, POINTS): which of them exist
    whole: Tensor  # (curves, WHOLE)
    others: Tensor  # (curves, OTHERS, OTHER)
    met: Tensor  # (curves, OTHERS)
    asked: Tensor  # (curves, questions, ASKED)


class Points(NamedTuple):
    """Curves in pieces; all (curves, POINTS)."""

    means: Tensor
    least: Tensor
    most: Tensor
    seen: Tensor
    sizes: Tensor
    ends: Tensor


def split_into_points(values: Tensor, count: Tensor) -> Points:
    """Split the first `count` values of each row into pieces."""
    length = values.shape[1]
    at = torch.arange(length, device=values.device)[None]
    n = count[:, None]
    # The inverse of start(k) = FIRST + (n - FIRST - LATEST) * k // AVERAGED.
    middle = (n - FIRST - LATEST).clamp(min=1)
    inner = ((at - FIRST + 1) * AVERAGED - 1).div(middle, rounding_mode="floor")
    long = torch.where(
        at < FIRST, at, torch.where(at >= n - LATEST, POINTS - (n - at), FIRST + inner)
    )
    place = torch.where(n <= POINTS, at.expand_as(long), long)
    inside = at < n
    place = torch.where(inside, place, POINTS).clamp(0, POINTS)
    good = inside & values.isfinite()
    shape = (values.shape[0], POINTS + 1)

    def add(what: Tensor) -> Tensor:
        return torch.zeros(shape, device=values.device).scatter_add_(1, place, what)[:, :POINTS]

    def least(what: Tensor) -> Tensor:
        filled = torch.where(good, what, torch.inf)
        start = torch.full(shape, torch.inf, device=values.device)
        return start.scatter_reduce_(1, place, filled, "amin")[:, :POINTS]

    seen = add(good.float())
    sizes = add(inside.float())
    means = add(torch.where(good, values, 0.0)) / seen.clamp(min=1)
    return Points(means, least(values), -least(-values), seen, sizes, sizes.cumsum(1))


def compute_frame(p: Points) -> Frame:
    """Return the frames; that of a curve without numbers is meaningless."""
    there = p.seen > 0
    number = there.sum(1)
    index = torch.arange(POINTS, device=p.means.device)
    last = p.means.gather(1, (there * (index + 1)).argmax(1, keepdim=True)).squeeze(1)
    size = torch.where(there, p.means.abs(), torch.inf).sort(1).values
    middle = (number // 2).clamp(max=POINTS - 1)[:, None]
    base = size.gather(1, middle).squeeze(1)
    greatest = torch.where(there, p.means.abs(), 0.0).amax(1)
    base = torch.where(base > 0, base, torch.where(greatest > 0, greatest, 1.0))
    off = torch.where(there, (p.means - last[:, None]).abs(), torch.inf).sort(1).values
    spread = off.gather(1, middle).squeeze(1)
    more = (number - 1).clamp(min=0)
    scale = (more * spread + 0.1 * base) / (more + 1)
    scale = torch.where(scale.isfinite(), scale, 1.0).clamp(1e-30, 1e30)
    best = p.least.amin(1)
    worst = p.most.amax(1)
    return Frame(last, scale, best, worst)


def encode_points(p: Points, frame: Frame, count: Tensor, epochs: Tensor) -> Tensor:
    """Return (curves, POINTS, POINT)."""
    there = p.seen > 0
    last = frame.last[:, None]
    means = torch.where(there, p.means, last)
    n, e = count[:, None].float(), epochs[:, None].float()
    off = (means - last) / frame.scale[:, None]
    step = torch.zeros_like(means)
    step[:, 1:] = frame.encode_change(means.diff(dim=1))
    share = means / torch.where(last == 0, torch.inf, last)
    rise = torch.where(share > 0, share.clamp(min=1e-9).log().clamp(-5, 5) / 2, 0.0)
    ends = p.ends.clamp(min=1)
    gone = (n - ends).clamp(min=0)
    sizes = p.sizes.clamp(min=1)
    tokens = torch.stack(
        [
            frame.encode(means),
            frame.encode(torch.where(there, p.least, last)),
            frame.encode(torch.where(there, p.most, last)),
            off.clamp(-4, 4) / 2,
            off.clamp(-40, 40) / 20,
            step,
            ends / e,
            ends.log() / LONG,
            gone.log1p() / LONG,
            gone / n,
            sizes.log() / LONG,
            1 - p.seen / sizes,
            rise,
        ],
        dim=2,
    )
    assert tokens.shape[2] == POINT
    keep = torch.ones(POINT, device=tokens.device)
    keep[[0, 1, 2, 3, 4, 5, 12]] = 0
    return torch.where(there[:, :, None], tokens, tokens * keep)


def encode_others(
    values: Tensor, lengths: Tensor, frame: Frame, count: Tensor, epochs: Tensor
) -> Tensor:
    """Return (curves, k, OTHER) for other trials' values (curves, k, length)."""
    curves, k, length = values.shape
    e = epochs.float()
    marks = torch.tensor([0, *MARKS], device=values.device)
    at = -((-marks * epochs[:, None]).div(100, rounding_mode="floor"))
    at[:, 0] = count
    at = at[:, None].expand(curves, k, 6)
    found = values.gather(2, at.clamp(1, length) - 1)
    has = (at <= lengths[:, :, None]) & found.isfinite()
    index = torch.arange(length, device=values.device)
    good = values.isfinite() & (index < lengths[:, :, None])
    final = (good * (index + 1)).argmax(2, keepdim=True)
    last = values.gather(2, final).squeeze(2)
    best = torch.where(good, values, torch.inf).amin(2)
    any_good = good.any(2)
    last, best = torch.where(any_good, last, 0.0), torch.where(any_good, best, 0.0)
    tokens = torch.zeros(curves, k, OTHER, device=values.device)
    flat = torch.where(has, found, frame.last[:, None, None]).reshape(curves, -1)
    tokens[:, :, 0:12:2] = torch.where(has, frame.encode(flat).view(curves, k, 6), 0.0)
    tokens[:, :, 1:12:2] = has.float()
    tokens[:, :, 12] = frame.encode(last)
    tokens[:, :, 13] = frame.encode(best)
    tokens[:, :, 14] = (lengths / e[:, None]).clamp(max=2)
    tokens[:, :, 15] = lengths.clamp(min=1).log() / LONG
    tokens[:, :, 16] = (final.squeeze(2) + 1 < lengths).float()
    change = torch.where(has[:, :, 0], last - torch.where(has, found, 0.0)[:, :, 0], 0.0)
    tokens[:, :, 17] = frame.encode_change(change)
    return tokens * any_good[:, :, None]


def encode_curves(
    p: Points,
    frame: Frame,
    count: Tensor,
    epochs: Tensor,
    bounds: Tensor,
    others: Tensor,
    met: Tensor,
) -> Tensor:
    """Return (curves, WHOLE); bounds (curves, 2) are infinite if undeclared."""
    there = p.seen > 0
    number = there.sum(1)
    n, e = count.float(), epochs.float()
    last = frame.last
    index = torch.arange(POINTS, device=last.device)
    first = p.means.gather(1, there.float().argmax(1, keepdim=True)).squeeze(1)
    # Indices among the pieces with numbers.
    rank = there.cumsum(1) - 1
    lowest = rank.gather(1, p.least.argmin(1, keepdim=True)).squeeze(1)
    highest = rank.gather(1, p.most.argmax(1, keepdim=True)).squeeze(1)
    best, worst = frame.best, frame.worst
    rate = (best >= -1) & (worst <= 0)
    positive = best >= 0
    rates = torch.tensor([-1.0 / k for k in CLASSES], device=last.device)
    losses = torch.tensor([math.log(k) for k in CLASSES], device=last.device)
    zero = torch.zeros_like(last)

    def seen(value: Tensor) -> Tensor:
        return frame.encode(value[:, None]).squeeze(1)

    def only(where: Tensor, value: Tensor) -> Tensor:
        return torch.where(where, value, 0.0)

    # Steps between neighbouring pieces with numbers, after removing gaps.
    order = torch.where(there, index, POINTS).sort(1).values.clamp(max=POINTS - 1)
    dense = p.means.gather(1, order)
    pair = index[None, 1:] < number[:, None]
    steps = dense.diff(dim=1)
    pairs = pair.sum(1).clamp(min=1)
    recent = pair & (index[None, 1:] >= (number - LATEST)[:, None])
    square = (steps / frame.scale[:, None]).clamp(-1e6, 1e6).square()
    root = (only(recent, square).sum(1) / recent.sum(1).clamp(min=1)).sqrt()
    bound = bounds.isfinite().all(1)
    edges = frame.encode(torch.where(bound[:, None], bounds, last[:, None]))
    sets = met.sum(1)
    same = (others[:, :, 1] > 0) & met
    below = ((others[:, :, 0] < 0) & same).sum(1) / same.sum(1).clamp(min=1) - 0.5
    least = torch.where(met, others[:, :, 13], torch.inf).amin(1)
    columns = [
        n.log() / LONG,
        n / e,
        e.log() / LONG,
        (e - n).clamp(min=0).log1p() / LONG,
        last.sign(),
        _scale_log(last),
        (frame.scale / last.abs().clamp(min=1e-30)).clamp(1e-6, 1e6).log10() / 3,
        seen(first),
        seen(best),
        seen(worst),
        _scale_log(first),
        (number - 1 - lowest) / POINTS,
        (number - 1 - highest) / POINTS,
        rate.float(),
        (positive & (worst <= 1)).float(),
        positive.float(),
        ((best >= -100) & (best < -1) & (worst <= 0)).float(),
        only(rate, last),
        only(rate, (1 + last + 1e-4).clamp(min=1e-9).log10() / 4),
        only(rate, (1e-4 - last).clamp(min=1e-9).log10() / 4),
        only(rate, first),
        only(rate, seen(zero - 1)),
        only(rate, _measure_nearness(last, rates)),
        only(rate, _measure_nearness(first, rates)),
        only(positive, seen(zero)),
        only(positive, _measure_nearness(last, losses)),
        only(positive, _measure_nearness(first, losses)),
        only(number > 1, ((steps.abs() <= 1e-6 * last.abs()[:, None]) & pair).sum(1) / pairs),
        only(number > 1, (root + 1e-4).log10() / 3),
        1 - p.seen.sum(1) / n,
        bound.float(),
        only(bound, edges[:, 0]),
        only(bound, edges[:, 1]),
        sets / OTHERS,
        only(sets > 0, below),
        only(sets > 0, least),
    ]
    assert len(columns) == WHOLE
    return torch.stack([column.float() for column in columns], dim=1)


def encode_questions(horizons: Tensor, count: Tensor, epochs: Tensor) -> Tensor:
    """Return (curves, questions, ASKED)."""
    h, n, e = horizons.float(), count[:, None].float(), epochs[:, None].float()
    columns = [
        (h - n).clamp(min=1).log() / LONG,
        h / e,
        h.log() / LONG,
        (h / n).log() / 5,
        (h - n) / e,
        (h >= e).float(),
        (e.log() / LONG).expand_as(h),
    ]
    assert len(columns) == ASKED
    return torch.stack(columns, dim=2)


def find_buckets(values: Tensor, frame: Frame) -> Tensor:
    """Return the bucket of each value (curves, questions); BUCKETS where it is not a number."""
    change = (values - frame.last[:, None]) / frame.scale[:, None]
    place = (torch.asinh(change / GRAIN) + REACH) * (BUCKETS / (2 * REACH))
    bucket = place.nan_to_num(0.0, 0.0, 0.0).floor().clamp(0, BUCKETS - 1).long()
    return torch.where(values.isfinite(), bucket, BUCKETS)


def _scale_log(value: Tensor) -> Tensor:
    return value.abs().clamp(1e-9, 1e9).log10() / 3


def _measure_nearness(value: Tensor, levels: Tensor) -> Tensor:
    off = ((value[:, None] - levels) / levels).abs().amin(1)
    return -off.clamp(1e-5, 1.0).log10() / 4
