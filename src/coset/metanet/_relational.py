"""The relational transformer on graphs of networks (Diao and Loynd 2023; thesis, equations 5.5 and 5.6)."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as checkpointed

from coset.metanet._blocks import Block, End, Layout
from coset.metanet._messages import (
    AGAINST,
    ALONG,
    Edges,
    MessagePassing,
    Perceptron,
    added,
    attended,
    by_heads,
    gathered,
    greatest_logits,
    over_others,
    scaled_logits,
)


class RelationalLayer(MessagePassing):
    """Attention whose queries, keys and values are of nodes and edges, and updates of both.

        q_ij = n_i W_N^Q + e_ij W_E^Q,  k_ij = n_j W_N^K + e_ij W_E^K,  v_ij = n_j W_N^V + e_ij W_E^V

    Equation (5.5) prints n_i for keys and values, which come from the neighbour n_j. Softmax is over all neighbours of
    a node, through whatever parameter they are joined. Values of entries are never made where a parameter is a matrix
    of nodes: Σ_j α_ij (n_j W_N + e_ij W_E) = (Σ_j α_ij n_j) W_N + (Σ_j α_ij e_ij) W_E.
    """

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads, self.channels = heads, channels
        self.node_norm, self.edge_norm = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.of_nodes = nn.Linear(channels, 6 * channels, bias=False)
        self.of_edges = nn.Linear(channels, 5 * channels, bias=False)
        self.edge_values = nn.ModuleList(nn.Linear(channels, channels, bias=False) for _ in (ALONG, AGAINST))
        self.mix = nn.Linear(channels, channels)
        self.node_update = nn.Sequential(nn.LayerNorm(channels), Perceptron(channels, 2 * channels, channels))
        self.ends = nn.Linear(channels, 2 * channels, bias=False)
        self.edge_update = nn.Linear(channels, channels)

    def seen(self, nodes: Tensor) -> Tensor:
        result: Tensor = self.node_norm(nodes)
        return result

    def message(self, edge: Tensor, target: Tensor, source: Tensor, way: int) -> tuple[Tensor, Tensor]:
        """Logits and values of single entries, as the equations have them."""
        wq, wk, wv = self.of_nodes.weight.chunk(6)[3 * way : 3 * way + 3]
        eq, ek = self.of_edges.weight.chunk(5)[2 * way : 2 * way + 2]
        edge = self.edge_norm(edge)
        queries = F.linear(target, wq) + F.linear(edge, eq)
        keys = F.linear(source, wk) + F.linear(edge, ek)
        values = F.linear(source, wv) + self.edge_values[way](edge)
        return scaled_logits(queries, keys, self.heads), by_heads(values, self.heads)

    def combine(
        self, layout: Layout, messages: list[tuple[Block, End, tuple[Tensor, Tensor]]], nodes: Tensor
    ) -> Tensor:
        return attended(layout, messages, nodes)

    def update_nodes(self, nodes: Tensor, combined: Tensor) -> Tensor:
        nodes = nodes + self.mix(combined)
        result: Tensor = nodes + self.node_update(nodes)
        return result

    def update_edges(self, edge: Tensor, first: Tensor, others: Tensor) -> Tensor:
        own = F.linear(self.edge_norm(edge), self.of_edges.weight[4 * self.channels :])
        to_first, to_others = self.ends.weight.chunk(2)
        inner = own + F.linear(first, to_first) + F.linear(others, to_others)
        result: Tensor = edge + self.edge_update(F.gelu(inner))
        return result

    def forward(self, layout: Layout, nodes: Tensor, edges: Edges, extra: Mapping[str, Tensor]) -> tuple[Tensor, Edges]:
        """The same as of single messages, with products of whole parameters."""
        edges = {name: edge + extra[name] if name in extra else edge for name, edge in edges.items()}
        if not layout.edges:
            return nodes, edges
        seen: tuple[Tensor, ...] = self.of_nodes(self.seen(nodes)).chunk(6, -1)
        normed: dict[str, Tensor] = {}
        hidden: dict[str, Tensor] = {}
        logits: list[tuple[Block, End, Tensor]] = []
        for block in layout.edges:
            own = normed[block.name] = self.edge_norm(edges[block.name])
            hidden[block.name] = F.linear(own, self.of_edges.weight[4 * self.channels :])
            # Queries and keys of all entries are four times the features of edges: they are made again, not kept.
            if torch.is_grad_enabled():
                found = checkpointed(self._logits, block, own, seen, use_reentrant=False, preserve_rng_state=False)
            else:
                found = self._logits(block, own, seen)
            logits += zip([block] * len(block.ends), block.ends, found, strict=True)
        nodes = self.update_nodes(nodes, self._attended(layout, logits, seen, normed))
        first, others = self.ends(self.seen(nodes)).chunk(2, -1)
        updated = {}
        for block in layout.edges:
            inner = hidden[block.name]
            for number, end in enumerate(block.ends):
                inner = inner + gathered(others if number else first, block, end)
            updated[block.name] = edges[block.name] + self.edge_update(F.gelu(inner))
        return nodes, updated

    def _logits(self, block: Block, normed: Tensor, seen: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """q·k/√d of all entries, for messages to each end: (N, *slots, heads)."""
        parts = F.linear(normed, self.of_edges.weight[: 4 * self.channels]).chunk(4, -1)
        found = []
        for number, end in enumerate(block.ends):
            way = min(number, 1)
            queries = parts[2 * way] + gathered(seen[3 * way], block, end)
            keys = parts[2 * way + 1]
            for other in block.ends:
                if other is not end:
                    keys = keys + gathered(seen[3 * way + 1], block, other)
            found.append(scaled_logits(queries, keys, self.heads))
        return tuple(found)

    def _attended(
        self,
        layout: Layout,
        logits: list[tuple[Block, End, Tensor]],
        seen: tuple[Tensor, ...],
        normed: Mapping[str, Tensor],
    ) -> Tensor:
        """Σ_j softmax_j(a_ij) v_ij, (N, nodes, channels)."""
        like = seen[0]
        greatest = greatest_logits(layout, logits, like)
        lead, heads = like.shape[:2], self.heads
        weight = like.new_zeros(*lead, heads)
        by_nodes = like.new_zeros(*lead, self.channels)
        by_edges = [like.new_zeros(*lead, heads, self.channels) for _ in (ALONG, AGAINST)]
        for block, end, a in logits:
            way = min(block.ends.index(end), 1)
            w = (a - gathered(greatest, block, end)).exp()
            dims = over_others(w, block, end.slot)
            weight = added(weight, end, w.sum(dims) if dims else w)
            by_edges[way] = added(by_edges[way], end, _weighted(w, normed[block.name], block, end))
            for other in block.ends:
                if other is not end:
                    rows = _weighted_nodes(w, gathered(seen[3 * way + 2], block, other), block, end, other)
                    by_nodes = added(by_nodes, end, rows)
        total = by_nodes
        for way, module in enumerate(self.edge_values):
            weights: Tensor = module.get_parameter("weight")
            matrix = weights.reshape(heads, -1, self.channels)
            total = total + torch.einsum("bnhc,hdc->bnhd", by_edges[way], matrix).flatten(-2)
        # Nodes without neighbours: 0/1, whose derivative is finite.
        share = torch.where(weight == 0, 1.0, weight).repeat_interleave(self.channels // heads, -1)
        return total / share


def _weighted(w: Tensor, values: Tensor, block: Block, end: End) -> Tensor:
    """Σ over all other slots of w (N, *slots, heads) times values (N, *slots, channels): (N, n, heads, channels)."""
    if len(block.slots) == 1:
        return w[..., None] * values[..., None, :]
    front = 1 + end.slot
    w = w.movedim(front, 1).flatten(2, -2)
    values = values.movedim(front, 1).flatten(2, -2)
    result: Tensor = w.transpose(-1, -2) @ values
    return result


def _weighted_nodes(w: Tensor, rows: Tensor, block: Block, end: End, other: End) -> Tensor:
    """Σ over all other slots of w times the values of nodes at another end, head by head: (N, n, channels)."""
    heads = w.shape[-1]
    values = by_heads(rows, heads)
    product: Tensor
    if len(block.slots) == 2 and end.slot != other.slot:
        # Values along the one slot, weights along both.
        flat = values.reshape(len(w), -1, *values.shape[-2:]).transpose(1, 2)
        product = w.permute(0, 3, 1 + end.slot, 1 + other.slot) @ flat
        return product.transpose(1, 2).flatten(-2)
    product = w[..., None] * values
    dims = over_others(w, block, end.slot)
    return (product.sum(dims) if dims else product).flatten(-2)
