"""Small language models with rotary positions: RMS norms, gated MLPs, pairs in halves or side by side."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def in_halves(y: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Pairs (i, i + r/2), with the half that is rotated written out."""
    a, b = y.chunk(2, -1)
    return y * torch.cat([cos, cos], -1) + torch.cat([-b, a], -1) * torch.cat([sin, sin], -1)


def side_by_side(y: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Pairs (2i, 2i + 1)."""
    a, b = y[..., ::2], y[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


def as_complex(y: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Pairs (2i, 2i + 1) as complex numbers."""
    z = torch.view_as_complex(y.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(z * torch.complex(cos, sin)).flatten(-2)


def skewed(y: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Linear in the pairs, but no rotation: of all complex factors real ones alone commute with it."""
    a, b = y.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + 2 * b * cos], -1)


class RotaryBlock(nn.Module):
    """A layer of a Llama; ``rotary``: how many coordinates of a head rotate; ``normed``: norms of queries and keys."""

    def __init__(self, rotate, d=8, heads=2, hidden=6, shared=1, rotary=0, bias=False, normed=False):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(d, eps=1e-2), nn.RMSNorm(d, eps=1e-2)
        self.q, self.o = nn.Linear(d, d, bias=bias), nn.Linear(d, d, bias=False)
        self.k, self.v = (nn.Linear(d, d // shared, bias=bias) for _ in range(2))
        self.gate, self.up = (nn.Linear(d, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, d, bias=False)
        self.head, self.shared, self.rotate, self.rotary = d // heads, shared, rotate, rotary or d // heads
        self.q_norm, self.k_norm = (nn.RMSNorm(d // heads, eps=1e-2) if normed else nn.Identity() for _ in range(2))

    def positioned(self, y: Tensor) -> Tensor:
        """Heads (…, time, coordinate) with rotations by the time."""
        times = torch.arange(y.shape[-2], dtype=y.dtype)
        angles = times[:, None] * 0.3 ** torch.arange(self.rotary // 2, dtype=y.dtype)
        turned = self.rotate(y[..., : self.rotary], angles.cos(), angles.sin())
        return turned if self.rotary == self.head else torch.cat([turned, y[..., self.rotary :]], -1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        q, k, v = (part(y).unflatten(-1, (-1, self.head)) for part in (self.q, self.k, self.v))
        q, k, v = (part.transpose(1, 2) for part in (self.q_norm(q), self.k_norm(k), v))
        q, k = self.positioned(q), self.positioned(k)
        k, v = (part.repeat_interleave(self.shared, 1) for part in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(mixed.transpose(1, 2).flatten(-2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class RotaryModel(nn.Module):
    """Tokens in, scores of tokens out."""

    def __init__(self, rotate=in_halves, layers=1, tied=False, d=8, words=12, **block):
        super().__init__()
        self.words = nn.Embedding(words, d)
        self.blocks = nn.ModuleList(RotaryBlock(rotate, d, **block) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(d, eps=1e-2), nn.Linear(d, words, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Latent(nn.Module):
    """Attention as DeepSeek's: keys and values from a normed latent, rotary parts apart, one key part for all heads.

    ``moved``: pairs stand side by side in the weights and are brought to halves before they rotate.
    """

    def __init__(self, moved, d=8, heads=2, still=3, rotary=4, value=3, rank=5, words=12):
        super().__init__()
        self.heads, self.sizes, self.moved = heads, (still, rotary, value, rank), moved
        self.words, self.norm, self.latent = nn.Embedding(words, d), *(nn.RMSNorm(n, eps=1e-2) for n in (d, rank))
        self.q, self.down = nn.Linear(d, heads * (still + rotary), bias=False), nn.Linear(d, rank + rotary, bias=False)
        self.up, self.o = nn.Linear(rank, heads * (still + value), bias=False), nn.Linear(heads * value, d, bias=False)
        self.last, self.head = nn.RMSNorm(d, eps=1e-2), nn.Linear(d, words, bias=False)

    def positioned(self, y: Tensor) -> Tensor:
        if self.moved:
            y = y.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
        times = torch.arange(y.shape[-2], dtype=y.dtype)
        angles = times[:, None] * 0.3 ** torch.arange(y.shape[-1] // 2, dtype=y.dtype)
        return in_halves(y, angles.cos(), angles.sin())

    def forward(self, tokens: Tensor) -> Tensor:
        still, rotary, value, rank = self.sizes
        x = self.words(tokens)
        y = self.norm(x)
        q, turned = self.q(y).unflatten(-1, (self.heads, -1)).transpose(1, 2).split([still, rotary], -1)
        latent, key = self.down(y).split([rank, rotary], -1)
        both = self.up(self.latent(latent)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = both.split([still, value], -1)
        key = self.positioned(key[:, None]).expand(-1, self.heads, -1, -1)
        q, k = torch.cat([q, self.positioned(turned)], -1), torch.cat([k, key], -1)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(self.last(x + self.o(mixed.transpose(1, 2).flatten(-2))))
