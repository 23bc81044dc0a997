"""A transformer whose tokens are the units of a network."""

import copy
import math
from collections.abc import Callable, Mapping
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from coset._checks import check_count
from coset.errors import InputError
from coset.flow._unit_baseline import UnitBaseline, part_name
from coset.flow._units import Key, joined, split


class UnitTransformer(nn.Module):
    """Attention between the units of a network, which moves with their permutations (N, k) → (N, k).

    Each unit of a class is a token of all that it carries alone: a network 784-10-10 is ten tokens of 784 weights in, a
    bias and 10 weights out, and all units of all networks are examples of the same map. What no unit carries is one
    more token. Weights between two classes have ``channels // pairs`` features for each pair: in every layer a unit
    receives Σ_j e_ij ⊙ (A n_j)/√m of the units at the other end, and what the pair says of both of them.
    """

    def __init__(
        self,
        baseline: UnitBaseline,
        *,
        channels: int = 128,
        layers: int = 3,
        heads: int = 4,
        pairs: int = 4,
        dropout: float = 0.0,
        conditions: int,
    ) -> None:
        super().__init__()
        for name, value in (("channels", channels), ("layers", layers), ("heads", heads), ("pairs", pairs)):
            check_count(name, value)
        if channels % heads or channels % pairs:
            raise InputError(f"channels is {channels}; expected a multiple of heads, {heads}, and of pairs, {pairs}")
        self.sizes: Mapping[Key, tuple[int, ...]] = baseline.reading
        thin = channels // pairs
        ends = {key: shape[-1] for key, shape in self.sizes.items()}
        self.first = nn.ModuleDict(
            {_name(key): nn.Linear(n, thin if len(key) > 1 else channels) for key, n in ends.items()}
        )
        names = dict.fromkeys(name for key in ends for name in key)
        self.kinds = nn.ParameterDict({_name((name,)): nn.Parameter(torch.zeros(channels)) for name in names})
        joins = [key for key in ends if len(key) > 1]
        self.blocks = nn.ModuleList(
            _UnitBlock(joins, channels, thin, heads, conditions, dropout) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(channels)
        self.seen = nn.ModuleDict({_name(key): _Ends(channels, thin) for key in joins})
        self.last = nn.ModuleDict(
            {_name(key): nn.Linear(thin if len(key) > 1 else channels, n) for key, n in ends.items()}
        )
        for layer in self.last.values():
            nn.init.zeros_(layer.weight)  # type: ignore[arg-type]
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]

    def of(self, baseline: UnitBaseline) -> Self:
        """The same weights, for networks with other numbers of units."""
        other = copy.copy(self)
        other.sizes = baseline.reading
        return other

    def forward(self, rows: Tensor, conditions: Tensor) -> Tensor:
        parts = split(rows, self.sizes)
        edges = {key: self.first[_name(key)](part) for key, part in parts.items() if len(key) > 1}
        tokens: dict[Key, Tensor] = {}
        for name, kind in zip(self._classes, self.kinds.values(), strict=True):
            own = (
                self.first[_name((name,))](parts[name,])
                if (name,) in parts
                else rows.new_zeros(len(rows), self._count(name), len(kind))
            )
            tokens[name,] = own + kind
        if () in parts:
            tokens[()] = self.first[_name(())](parts[()])[:, None]
        counts = [part.shape[1] for part in tokens.values()]
        whole = torch.cat(list(tokens.values()), 1)

        def apart(x: Tensor) -> dict[Key, Tensor]:
            return dict(zip(tokens, torch.split_with_sizes(x, counts, 1), strict=True))

        for block in self.blocks:
            whole, edges = block(whole, edges, conditions, apart)
        found = apart(self.norm(whole))
        said: list[Tensor] = []
        for key, shape in self.sizes.items():
            if len(key) > 1:
                x = functional.gelu(edges[key] + self.seen[_name(key)](found[key[:1]], found[key[1:]]))
            else:
                x = found[key] if key else found[key][:, 0]
            said.append(self.last[_name(key)](x).reshape(len(rows), *shape))
        return joined(said)

    @property
    def _classes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for key in self.sizes for name in key))

    def _count(self, name: str) -> int:
        return next(shape[key.index(name)] for key, shape in self.sizes.items() if name in key)


class _Ends(nn.Module):
    """What a pair is told of both of its units: (N, n, c), (N, m, c) → (N, n, m, thin)."""

    def __init__(self, channels: int, thin: int) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(channels, thin, bias=False), nn.Linear(channels, thin, bias=False)

    def forward(self, one: Tensor, two: Tensor) -> Tensor:
        result: Tensor = self.one(one)[:, :, None] + self.two(two)[:, None]
        return result


class _Messages(nn.Module):
    """Over the pairs of two classes: what units at each end receive, and new features of pairs."""

    def __init__(self, channels: int, thin: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(thin)
        self.ends, self.own = _Ends(channels, thin), nn.Linear(thin, thin)
        self.sent = nn.ModuleList(nn.Linear(channels, thin) for _ in range(2))
        self.received = nn.ModuleList(nn.Linear(2 * thin, channels) for _ in range(2))
        self.change = nn.Linear(thin, thin)

    def forward(self, edge: Tensor, one: Tensor, two: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        normed = self.norm(edge)
        inner = functional.gelu(self.own(normed) + self.ends(one, two))
        forth = torch.einsum("bijc,bjc->bic", normed, self.sent[0](two)) / math.sqrt(two.shape[1])
        back = torch.einsum("bijc,bic->bjc", normed, self.sent[1](one)) / math.sqrt(one.shape[1])
        to_one = self.received[0](torch.cat([forth, inner.mean(2)], -1))
        to_two = self.received[1](torch.cat([back, inner.mean(1)], -1))
        return edge + self.change(inner), to_one, to_two


class _UnitBlock(nn.Module):
    def __init__(self, joins: list[Key], channels: int, thin: int, heads: int, conditions: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(channels, elementwise_affine=False) for _ in range(2))
        self.change = nn.Linear(conditions, 6 * channels)
        self.of_tokens, self.mix = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.inner = nn.Sequential(
            nn.Linear(channels, 4 * channels), nn.GELU(), nn.Dropout(dropout), nn.Linear(4 * channels, channels)
        )
        self.messages = nn.ModuleDict({_name(key): _Messages(channels, thin) for key in joins})

    def forward(
        self,
        x: Tensor,
        edges: dict[Key, Tensor],
        conditions: Tensor,
        apart: Callable[[Tensor], dict[Key, Tensor]],
    ) -> tuple[Tensor, dict[Key, Tensor]]:
        """New tokens and features of pairs; ``apart`` takes tokens apart by classes."""
        changes = self.change(functional.silu(conditions))[:, None].chunk(6, -1)
        normed = self.norms[0](x) * (1 + changes[0]) + changes[1]
        parts = self.of_tokens(normed).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = self.mix(functional.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))
        if edges:
            tokens, told = apart(normed), apart(torch.zeros_like(x))
            edges = dict(edges)
            for key, edge in edges.items():
                edges[key], one, two = self.messages[_name(key)](edge, tokens[key[:1]], tokens[key[1:]])
                told[key[:1]] = told[key[:1]] + one
                told[key[1:]] = told[key[1:]] + two
            attended = attended + torch.cat(list(told.values()), 1)
        x = x + (1 + changes[2]) * attended
        return x + (1 + changes[5]) * self.inner(self.norms[1](x) * (1 + changes[3]) + changes[4]), edges


def _name(key: Key) -> str:
    return part_name("of", key)
