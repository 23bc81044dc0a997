"""Layers that respect signs: features of units that flip with them, beside those that do not.

An entry that carries the signs s_1 … s_k is odd in each. Every unit with a sign has features o that flip with it; of an
entry x, x·∏ o over all of its signs does not change, and x·∏ o over all but one flips with that one alone. So what does
not change goes to edges and nodes, and what flips goes on to the odd features of units:

    o_f ← W o_f ⊙ g(n) + Σ_{entries that carry f} x · ∏_{f′ ≠ f} o_f′ ⊙ g(e)
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from coset.metanet._blocks import Block, Carried, Layout
from coset.metanet._embedding import Embedding, Projection
from coset.metanet._graph import NeuralGraph
from coset.metanet._layout import half_turns
from coset.metanet._messages import Edges, gathered, over_others
from coset.symmetry import Symmetry

Odd = dict[str, Tensor]
"""Family of signs → features that flip with its units, (N, units, channels)."""


def sign_families(sym: Symmetry) -> dict[str, str]:
    """Families of signs, and turns that are signs, with their classes."""
    return {key: sym.families[key].owner for key in sym.flipping} | half_turns(sym)


def signed_blocks(layout: Layout) -> list[tuple[Block, list[Carried]]]:
    """Blocks with the signs that they carry."""
    known = sign_families(layout.sym)
    found = [(b, [item for item in b.carried if item.sign and item.family in known]) for b in layout.blocks]
    return [(block, carried) for block, carried in found if carried]


def at_entries(odd: Odd, block: Block, item: Carried) -> Tensor:
    """Odd features of the units whose sign is carried, in a shape that broadcasts with entries; 1 where there is
    none.
    """
    features = odd[item.family]
    here = (item.unit >= 0).to(features.device)
    rows = features[:, item.unit.clamp_min(0).to(features.device)]
    return block.along(torch.where(here[:, None], rows, 1.0), item.slot)


class OddLayer(nn.Module):
    """What signed entries give to edges, to nodes and to the odd features of units."""

    def __init__(self, layouts: Sequence[Layout], channels: int) -> None:
        super().__init__()
        self.invariant, self.equivariant = Projection(layouts, channels), Projection(layouts, channels)
        self.to_edges = nn.Linear(channels, channels, bias=False)
        self.to_nodes = nn.Linear(channels, channels, bias=False)
        self.from_units = nn.Linear(channels, channels, bias=False)
        self.edge_gate = nn.Linear(channels, channels)
        self.node_gate = nn.Linear(channels, channels)
        self.keep = nn.Linear(channels, channels, bias=False)
        self.left, self.right = (nn.Linear(channels, channels, bias=False) for _ in range(2))

    def forward(
        self, graph: NeuralGraph, embedding: Embedding, nodes: Tensor, edges: Edges, odd: Odd
    ) -> tuple[Tensor, dict[str, Tensor], Odd]:
        """New nodes, what is added to edges, new odd features."""
        layout, extra = graph.layout, dict[str, Tensor]()
        flips: dict[str, Tensor] = {key: torch.zeros_like(features) for key, features in odd.items()}
        for block, carried in signed_blocks(layout):
            x = embedding.scaled(block, graph.entries[block.name])
            factors = [at_entries(odd, block, item) for item in carried]
            whole = self.invariant(block, x)
            for factor in factors:
                whole = whole * factor
            gate = torch.sigmoid(self.edge_gate(_features(block, nodes, edges)))
            if block.joins:
                extra[block.name] = self.to_edges(whole)
            else:
                end = block.ends[0]
                nodes = nodes.index_add(1, end.nodes.to(nodes.device), self.to_nodes(whole))
            flipping = self.equivariant(block, x) * gate
            for number, item in enumerate(carried):
                rest = flipping
                for other, factor in enumerate(factors):
                    if other != number:
                        rest = rest * factor
                dims = over_others(rest, block, item.slot)
                many = math.prod(block.sizes) / block.sizes[item.slot]
                rows = (rest.sum(dims) if dims else rest) / math.sqrt(many)
                here = item.unit >= 0
                index = item.unit[here].to(rows.device)
                flips[item.family] = flips[item.family].index_add(1, index, rows[:, here.to(rows.device)])
        found: Odd = {}
        owners = sign_families(layout.sym)
        for key, features in odd.items():
            units = layout.by_name.get(owners[key])
            if units is None:
                # Blocks of units carry signs, and no weight stands on a block itself.
                found[key] = _normed(self.keep(features) + flips[key])
                continue
            own = torch.arange(units.start, units.start + units.count, device=nodes.device)
            kept = self.keep(features) * torch.sigmoid(self.node_gate(nodes[:, own]))
            found[key] = _normed(kept + flips[key])
            change = self.from_units(self.left(found[key]) * self.right(found[key]))
            nodes = nodes.index_add(1, own, change)
        return nodes, extra, found


def no_odd_features(layout: Layout, count: int, channels: int, like: Tensor) -> Odd:
    """Odd features before the first layer: 0."""
    return {
        key: like.new_zeros(count, math.prod(layout.sym.shape(owner)), channels)
        for key, owner in sign_families(layout.sym).items()
    }


def _features(block: Block, nodes: Tensor, edges: Mapping[str, Tensor]) -> Tensor:
    return edges[block.name] if block.joins else gathered(nodes, block, block.ends[0])


def _normed(odd: Tensor) -> Tensor:
    """o over its root mean square plus a constant, which is odd."""
    return odd / (odd.square().mean(-1, keepdim=True) + 1e-4).sqrt()
