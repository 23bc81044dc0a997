"""The general scheme of messages on graphs of networks, and its smallest instances (thesis, section 5.1.1).

    n_i ← φ_N(n_i, ⊕_{j ∈ N_i} φ_M(e_ij, n_i, n_j))        (5.1)
    e_ij ← φ_E(e_ij, e_ji, n_i, n_j)                        (5.2), whose second e_ij is e_ji

Edges are one tensor for each parameter, (N, *slots, channels). The features of a weight stand for both of its
directions, e_ij and e_ji at once: messages run from every end to every other one, with maps of their own along and
against.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coset.metanet._blocks import Block, End, Layout

Edges = dict[str, Tensor]
"""Block → features of its entries, (N, *slots, channels)."""

ALONG, AGAINST = 0, 1
"""Ways of a message: to the first end of a parameter, which is the one it writes to, or to another."""


def gathered(nodes: Tensor, block: Block, end: End) -> Tensor:
    """Rows of nodes at an end, in a shape that broadcasts with the entries of the block."""
    if end.first is not None:
        return block.along(nodes[:, end.first : end.first + len(end.nodes)], end.slot)
    return block.along(nodes[:, end.nodes.to(nodes.device)], end.slot)


def over_others(values: Tensor, block: Block, slot: int) -> tuple[int, ...]:
    """The dimensions of entries over all slots but one."""
    return tuple(1 + other for other in range(len(block.slots)) if other != slot)


def added(table: Tensor, end: End, rows: Tensor) -> Tensor:
    """``table`` (N, nodes, …) with rows (N, n, …) added at the nodes of an end, in place."""
    if end.first is not None:
        table[:, end.first : end.first + len(end.nodes)] += rows
        return table
    return table.index_add_(1, end.nodes.to(rows.device), rows)


def raised(table: Tensor, end: End, rows: Tensor) -> Tensor:
    """The maximum of ``table`` and of rows at the nodes of an end."""
    index = end.nodes.to(rows.device).reshape(1, -1, *[1] * (rows.ndim - 2)).expand_as(rows)
    return table.scatter_reduce(1, index, rows, "amax")


class MessagePassing(nn.Module):
    """One step of (5.1) and (5.2): a subclass says ``message``, ``combine`` and the two updates."""

    def seen(self, nodes: Tensor) -> Tensor:
        """What messages and edges see of nodes."""
        return nodes

    def message(self, edge: Tensor, target: Tensor, source: Tensor, way: int) -> Any:
        """φ_M(e_ij, n_i, n_j), for entries (N, *slots, …); the nodes broadcast."""
        raise TypeError(f"{type(self).__name__} has no message")

    def combine(self, layout: Layout, messages: list[tuple[Block, End, Any]], nodes: Tensor) -> Tensor:
        """⊕: what all messages make of every node, (N, nodes, …)."""
        raise TypeError(f"{type(self).__name__} has no combine")

    def update_nodes(self, nodes: Tensor, combined: Tensor) -> Tensor:
        """φ_N."""
        raise TypeError(f"{type(self).__name__} has no update of nodes")

    def update_edges(self, edge: Tensor, first: Tensor, others: Tensor) -> Tensor:
        """φ_E: of an entry, its first end and the sum of the others; by default edges stay."""
        return edge

    def forward(self, layout: Layout, nodes: Tensor, edges: Edges, extra: Mapping[str, Tensor]) -> tuple[Tensor, Edges]:
        """New nodes and edges; ``extra``: features that signs make, added to those of edges."""
        return self.by_messages(layout, nodes, edges, extra)

    def by_messages(
        self, layout: Layout, nodes: Tensor, edges: Edges, extra: Mapping[str, Tensor]
    ) -> tuple[Tensor, Edges]:
        """The same, with every single message made as the equations have it."""
        edges = {name: edge + extra[name] if name in extra else edge for name, edge in edges.items()}
        if not layout.edges:
            return nodes, edges
        messages, seen = [], self.seen(nodes)
        for block in layout.edges:
            for number, end in enumerate(block.ends):
                target = gathered(seen, block, end)
                source = _total([gathered(seen, block, other) for other in block.ends if other is not end])
                messages.append((block, end, self.message(edges[block.name], target, source, min(number, 1))))
        nodes = self.update_nodes(nodes, self.combine(layout, messages, nodes))
        seen, found = self.seen(nodes), {}
        for block in layout.edges:
            first, *others = [gathered(seen, block, end) for end in block.ends]
            found[block.name] = self.update_edges(edges[block.name], first, _total(others))
        return nodes, found


def _total(parts: list[Tensor]) -> Tensor:
    result = parts[0]
    for part in parts[1:]:
        result = result + part
    return result


def summed(layout: Layout, messages: list[tuple[Block, End, Tensor]], nodes: Tensor) -> Tensor:
    """Σ over the messages of every node."""
    width = messages[0][2].shape[-1]
    total = nodes.new_zeros(*nodes.shape[:2], width)
    for block, end, values in messages:
        values = values.expand(*nodes.shape[:1], *block.sizes, width)
        total = added(total, end, values.sum(over_others(values, block, end.slot)) if len(block.slots) > 1 else values)
    return total


def attended(layout: Layout, messages: list[tuple[Block, End, tuple[Tensor, Tensor]]], nodes: Tensor) -> Tensor:
    """Σ_j softmax_j(a_ij)·v_ij over all messages of a node, by heads.

    Messages are pairs of a (N, *slots, heads) and v (N, *slots, heads, width). Returns (N, nodes, heads·width).
    """
    greatest = greatest_logits(layout, [(block, end, logits) for block, end, (logits, _) in messages], nodes)
    heads, width = messages[0][2][1].shape[-2:]
    total = nodes.new_zeros(*nodes.shape[:2], heads, width)
    weight = nodes.new_zeros(*nodes.shape[:2], heads)
    for block, end, (logits, values) in messages:
        w = (logits - gathered(greatest, block, end)).exp()
        dims = over_others(w, block, end.slot)
        weight = added(weight, end, w.sum(dims) if dims else w)
        product = w[..., None] * values
        total = added(total, end, product.sum(dims) if dims else product)
    # Nodes without neighbours: 0/1, whose derivative is finite.
    return (total / torch.where(weight == 0, 1.0, weight)[..., None]).flatten(-2)


@torch.no_grad()
def greatest_logits(layout: Layout, messages: list[tuple[Block, End, Tensor]], nodes: Tensor) -> Tensor:
    """The greatest logit of every node, (N, nodes, heads), by which exponentials are held below 1; 0 where none is."""
    heads = messages[0][2].shape[-1]
    greatest = nodes.new_full((*nodes.shape[:2], heads), -torch.inf)
    for block, end, logits in messages:
        dims = over_others(logits, block, end.slot)
        greatest = raised(greatest, end, logits.detach().amax(dims) if dims else logits.detach())
    return torch.where(greatest == -torch.inf, 0.0, greatest)


class GCN(MessagePassing):
    """Averages of a map of the neighbours (Kipf and Welling 2016), φ_M(e, n_i, n_j) = GELU(W n_j + U e).

    Without GELU averages of nodes and of edges would stand beside each other, and nothing tell which edge goes where.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.nodes = nn.ModuleList(nn.Linear(channels, channels) for _ in (ALONG, AGAINST))
        self.edges = nn.ModuleList(nn.Linear(channels, channels, bias=False) for _ in (ALONG, AGAINST))
        self.norm = nn.LayerNorm(channels)

    def message(self, edge: Tensor, target: Tensor, source: Tensor, way: int) -> Tensor:
        return F.gelu(self.nodes[way](source) + self.edges[way](edge))

    def combine(self, layout: Layout, messages: list[tuple[Block, End, Tensor]], nodes: Tensor) -> Tensor:
        degrees = layout.degrees.to(nodes).clamp_min(1)
        return summed(layout, messages, nodes) / degrees[:, None]

    def update_nodes(self, nodes: Tensor, combined: Tensor) -> Tensor:
        result: Tensor = nodes + F.gelu(self.norm(combined))
        return result


class GAT(MessagePassing):
    """Attention by a vector on both nodes and the edge (Veličković et al. 2018): a_ij = LeakyReLU(α·[W n_i, W n_j, U
    e]).
    """

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.values = nn.ModuleList(nn.Linear(channels, channels) for _ in (ALONG, AGAINST))
        self.edges = nn.ModuleList(nn.Linear(channels, channels, bias=False) for _ in (ALONG, AGAINST))
        self.scores = nn.ModuleList(nn.Linear(channels, heads) for _ in range(6))
        self.norm = nn.LayerNorm(channels)

    def message(self, edge: Tensor, target: Tensor, source: Tensor, way: int) -> tuple[Tensor, Tensor]:
        own, other, by_edge = self.scores[3 * way], self.scores[3 * way + 1], self.scores[3 * way + 2]
        logits = F.leaky_relu(own(target) + other(source) + by_edge(edge), 0.2)
        values = self.values[way](source) + self.edges[way](edge)
        return logits, by_heads(values, self.heads)

    def combine(
        self, layout: Layout, messages: list[tuple[Block, End, tuple[Tensor, Tensor]]], nodes: Tensor
    ) -> Tensor:
        return attended(layout, messages, nodes)

    def update_nodes(self, nodes: Tensor, combined: Tensor) -> Tensor:
        result: Tensor = nodes + F.gelu(self.norm(combined))
        return result


class Perceptron(nn.Sequential):
    """Linear, GELU, linear."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__(nn.Linear(inputs, hidden), nn.GELU(), nn.Linear(hidden, outputs))


def scaled_logits(queries: Tensor, keys: Tensor, heads: int) -> Tensor:
    """q·k/√d by heads: (N, *slots, heads)."""
    product = by_heads(queries * keys, heads)
    return product.sum(-1) / math.sqrt(product.shape[-1])


def by_heads(features: Tensor, heads: int) -> Tensor:
    """(…, channels) → (…, heads, channels/heads)."""
    return features.reshape(*features.shape[:-1], heads, -1)
