"""Principal neighbourhood aggregation on graphs of networks (Corso et al. 2020; thesis, equations 5.3 and 5.4)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coset.metanet._blocks import Block, End, Layout
from coset.metanet._messages import AGAINST, ALONG, MessagePassing, Perceptron, added, over_others, raised

_TINY = 1e-5


class PNALayer(MessagePassing):
    """Messages modulated by edges; mean, deviation, maximum and minimum of these, each by three scalers of the degree.

        φ_M = γ(e_ij) ⊙ M(n_i, n_j) + β(e_ij)                                  (FiLM, Brockschmidt 2020)
        ⊕ = [1; S(d, 1); S(d, −1)] ⊗ [mean; std; max; min],  S(d, a) = (log(d + 1)/δ)^a     (5.3), (5.4)

    ``delta``: the mean of log(d + 1) over the nodes of the networks that the layer was made for.
    """

    def __init__(self, channels: int, delta: float) -> None:
        super().__init__()
        self.delta = delta
        self.node_norm, self.edge_norm = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.targets = nn.ModuleList(nn.Linear(channels, channels) for _ in (ALONG, AGAINST))
        self.sources = nn.ModuleList(nn.Linear(channels, channels, bias=False) for _ in (ALONG, AGAINST))
        self.film = nn.ModuleList(nn.Linear(channels, 2 * channels) for _ in (ALONG, AGAINST))
        self.mix = nn.Linear(12 * channels, channels)
        self.node_update = nn.Sequential(nn.LayerNorm(channels), Perceptron(channels, 2 * channels, channels))
        self.own = nn.Linear(channels, channels)
        self.ends = nn.ModuleList(nn.Linear(channels, channels, bias=False) for _ in (ALONG, AGAINST))
        self.edge_update = nn.Linear(channels, channels)

    def seen(self, nodes: Tensor) -> Tensor:
        result: Tensor = self.node_norm(nodes)
        return result

    def message(self, edge: Tensor, target: Tensor, source: Tensor, way: int) -> Tensor:
        gain, offset = self.film[way](self.edge_norm(edge)).chunk(2, -1)
        result: Tensor = (1 + gain) * (self.targets[way](target) + self.sources[way](source)) + offset
        return result

    def combine(self, layout: Layout, messages: list[tuple[Block, End, Tensor]], nodes: Tensor) -> Tensor:
        width = messages[0][2].shape[-1]
        shape = (*nodes.shape[:2], width)
        total, squares = nodes.new_zeros(shape), nodes.new_zeros(shape)
        greatest, least = nodes.new_full(shape, -torch.inf), nodes.new_full(shape, -torch.inf)
        for block, end, values in messages:
            dims = over_others(values, block, end.slot)
            total = added(total, end, values.sum(dims) if dims else values)
            greatest = raised(greatest, end, values.amax(dims) if dims else values)
            least = raised(least, end, (-values).amax(dims) if dims else -values)
        degrees = layout.degrees.to(nodes)[:, None]
        mean = total / degrees.clamp_min(1)
        for block, end, values in messages:
            dims = over_others(values, block, end.slot)
            apart = (values - _at(mean, block, end)).square()
            squares = added(squares, end, apart.sum(dims) if dims else apart)
        deviation = (squares / degrees.clamp_min(1) + _TINY).sqrt()
        empty = degrees == 0
        greatest, least = torch.where(empty, 0.0, greatest), torch.where(empty, 0.0, -least)
        four = torch.cat([mean, deviation, greatest, least], -1)
        scaler = (degrees + 1).log() / self.delta
        inverse = torch.where(empty, 0.0, 1 / scaler.clamp_min(_TINY))
        return torch.cat([four, scaler * four, inverse * four], -1)

    def update_nodes(self, nodes: Tensor, combined: Tensor) -> Tensor:
        nodes = nodes + self.mix(combined)
        result: Tensor = nodes + self.node_update(nodes)
        return result

    def update_edges(self, edge: Tensor, first: Tensor, others: Tensor) -> Tensor:
        inner = self.own(self.edge_norm(edge)) + self.ends[ALONG](first) + self.ends[AGAINST](others)
        result: Tensor = edge + self.edge_update(F.gelu(inner))
        return result


def _at(table: Tensor, block: Block, end: End) -> Tensor:
    return block.along(table[:, end.nodes.to(table.device)], end.slot)
