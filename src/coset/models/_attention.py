"""Self-attention and stochastic depth, the parts of a transformer encoder that torch.nn lacks in a plain form."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class SelfAttention(nn.Module):
    """Multi-head self-attention, softmax(q kᵀ / √d) v per head, then a projection; (N, T, dim) to the same.

    ``qkv`` is one linear map without bias whose 3·dim rows are the queries, then the keys, then the values, each with
    the ``heads`` one after another and d = dim / heads rows per head. ``projection`` has a bias.
    """

    def __init__(self, dim: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.projection = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (self._split(part) for part in self.qkv(x).chunk(3, dim=-1))
        scores = (query @ key.transpose(-2, -1)) * self.scale
        mixed = self.dropout(scores.softmax(dim=-1)) @ value
        output: Tensor = self.projection(mixed.transpose(-3, -2).flatten(-2))
        return output

    def extra_repr(self) -> str:
        return f"heads={self.heads}"

    def _split(self, x: Tensor) -> Tensor:
        """(N, T, dim) to (N, heads, T, d)."""
        return x.view(*x.shape[:-1], self.heads, x.shape[-1] // self.heads).transpose(-3, -2)


class StochasticDepth(nn.Module):
    """In training drop the whole update of a sample with probability ``rate``, else divide it by 1 - rate.

    Huang et al., "Deep Networks with Stochastic Depth", 2016. (N, T, dim) to the same; the identity in eval mode.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        kept = torch.ones_like(x[:, :1, :1])
        return x * F.dropout(kept, self.rate)

    def extra_repr(self) -> str:
        return f"rate={self.rate}"
