"""The network: tokens of curves and of requested epochs in, logits of buckets out.

Knows only layers. Tokens of requested epochs attend to the curve and to other trials, never to each
other, so a forecast does not depend on what else is requested.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from paceline.curves.pfn.encoding import ASKED, BUCKETS, OTHER, POINT, WHOLE

if TYPE_CHECKING:
    from training.pfn.tokens import Batch

WIDTH, LAYERS, HEADS, INNER = 160, 6, 5, 320


class Layer(nn.Module):
    """Attention to the known tokens, then a small network for each token, on normalised inputs."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.before = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.between = nn.LayerNorm(width)
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)

    def forward(self, x: Tensor, known: int, mask: Tensor) -> Tensor:
        """Return the tokens after this layer; all attend to the first `known` where `mask`."""
        size, length, width = x.shape
        normal = self.before(x)
        shape = (size, -1, self.heads, width // self.heads)
        query = self.query(normal).view(shape).transpose(1, 2)
        key, value = self.key_value(normal[:, :known]).chunk(2, dim=-1)
        key, value = key.reshape(shape).transpose(1, 2), value.reshape(shape).transpose(1, 2)
        seen = fn.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = x + self.out(seen.transpose(1, 2).reshape(size, length, width))
        return x + self.down(fn.gelu(self.up(self.between(x)), approximate="tanh"))


class Network(nn.Module):
    """Tokens of four kinds, a few layers, and a distribution for each requested epoch."""

    def __init__(
        self, width: int = WIDTH, layers: int = LAYERS, heads: int = HEADS, inner: int = INNER
    ) -> None:
        super().__init__()
        self.point = nn.Linear(POINT, width)
        self.whole = nn.Linear(WHOLE, width)
        self.other = nn.Linear(OTHER, width)
        self.asked = nn.Linear(ASKED, width)
        self.context = nn.Linear(WHOLE, width)
        self.layers = nn.ModuleList(Layer(width, heads, inner) for _ in range(layers))
        self.after = nn.LayerNorm(width)
        self.head = nn.Linear(width, BUCKETS + 1)

    def forward(self, batch: Batch) -> Tensor:
        """Return the logits (curves, questions, BUCKETS + 1)."""
        whole = self.whole(batch.whole)[:, None]
        known = torch.cat([whole, self.other(batch.others), self.point(batch.points)], dim=1)
        asked = self.asked(batch.asked) + self.context(batch.whole)[:, None]
        always = torch.ones_like(batch.there[:, :1])
        mask = torch.cat([always, batch.met, batch.there], dim=1)[:, None, None]
        x = torch.cat([known, asked], dim=1)
        for layer in self.layers:
            x = layer(x, known.shape[1], mask)
        return self.head(self.after(x[:, known.shape[1] :]))
