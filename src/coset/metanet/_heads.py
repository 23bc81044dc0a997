"""What a reader says of networks: a vector each, a vector for every unit, a value for every parameter."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coset.canonical import Canonical, decanonicalize
from coset.metanet._blocks import Block, Layout
from coset.metanet._embedding import Embedding, Projection
from coset.metanet._gauge import charged
from coset.metanet._graph import NeuralGraph
from coset.metanet._messages import Edges, Perceptron, gathered
from coset.metanet._odd import Odd, at_entries, sign_families
from coset.metanet._summaries import Summaries
from coset.symmetry.group import full_map
from coset.symmetry.stacks import one_of


class InvariantHead(nn.Module):
    """A vector per network, from standardised summaries of every layer of units and of every parameter.

    W₂ GELU(Σ_t (W_kind(t) + W_t) s_t/√T + b) + c over T summaries s_t, where t is the name of what is summarised; names
    that no network had that was given are read by their kind alone. Without standardisation it would see little:
    networks that have begun at the same weights differ by a hundredth of their summaries.
    """

    def __init__(
        self, layouts: Sequence[Layout], channels: int, outputs: int, dropout: float = 0.0, probes: int = 0
    ) -> None:
        super().__init__()
        self.summaries = Summaries(layouts, channels, probes)
        hidden = 4 * channels
        self.maps = nn.ParameterDict(
            {
                part: nn.Parameter(torch.randn(len(self.summaries.rows[part]), hidden, width) / math.sqrt(2 * width))
                for part, width in self.summaries.widths.items()
            }
        )
        self.bias = nn.Parameter(torch.zeros(hidden))
        self.last = nn.Sequential(nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, outputs))

    def forward(self, graph: NeuralGraph, embedding: Embedding, nodes: Tensor, edges: Edges, odd: Odd) -> Tensor:
        found = self.summaries(graph, embedding, nodes, edges)
        total = self.bias.expand(len(graph), -1)
        for summary in found:
            matrix = self.maps[summary.part][self.summaries.known(summary)].sum(0)
            total = total + F.linear(summary.values, matrix) / math.sqrt(len(found))
        result: Tensor = self.last(total)
        return result

    def calibrate(self, graph: NeuralGraph, embedding: Embedding, nodes: Tensor, edges: Edges) -> None:
        """Take means and deviations of summaries from networks."""
        self.summaries.calibrate(self.summaries.raw(graph, embedding, nodes, edges))


class UnitHead(nn.Module):
    """A vector for every unit of every class, which moves as the units do: class → (N, *shape, outputs).

    Of classes that matrices mix canonical forms have units of their own, which stay where they are.
    """

    def __init__(
        self, layouts: Sequence[Layout], channels: int, outputs: int, dropout: float = 0.0, probes: int = 0
    ) -> None:
        super().__init__()
        self.last = nn.Sequential(nn.LayerNorm(channels), Perceptron(channels, 2 * channels, outputs))

    def forward(
        self, graph: NeuralGraph, embedding: Embedding, nodes: Tensor, edges: Edges, odd: Odd
    ) -> dict[str, Tensor]:
        sym, found = graph.layout.sym, {}
        for name in sym.classes:
            item = graph.layout.by_name.get(name)
            if item is not None and item.count == math.prod(sym.shape(name)):
                values = self.last(nodes[:, item.start : item.start + item.count])
                if graph.form is not None and name not in graph.form.element.matrices:
                    values = values[torch.arange(len(graph))[:, None], _own_order(graph, name)]
                found[name] = values.reshape(len(graph), *sym.shape(name), -1)
        return found


def _own_order(graph: NeuralGraph, name: str) -> Tensor:
    """Where the units of a class, as they stand in the networks, are in canonical forms: (N, units)."""
    assert graph.form is not None
    sym, element = graph.layout.sym, graph.form.element
    return torch.stack([full_map(sym, one_of(element, number), name) for number in range(len(graph))])


class EquivariantHead(nn.Module):
    """A value for every parameter, which moves as the parameters do: name → (N, *shape).

    Values are made in the gauge of the graph and brought back: multiplied by the norms of units to the power of their
    charges, or by the element of the canonical form. A value is x·a(e) + b(e) and, where signs are carried,
    x·a(e) + ∏ o·b(e), which flips with them. Buffers are parameters here, and whole numbers have no value.
    """

    def __init__(
        self, layouts: Sequence[Layout], channels: int, outputs: int, dropout: float = 0.0, probes: int = 0
    ) -> None:
        super().__init__()
        self.hidden = nn.Sequential(nn.LayerNorm(channels), Perceptron(channels, 2 * channels, channels))
        self.entry = nn.Sequential(nn.LayerNorm(channels), Perceptron(channels, channels, 1))
        self.odd = nn.Linear(channels, channels, bias=False)
        self.values = Projection(layouts, channels)

    def forward(
        self, graph: NeuralGraph, embedding: Embedding, nodes: Tensor, edges: Edges, odd: Odd
    ) -> dict[str, Tensor]:
        layout, found = graph.layout, dict[str, Tensor]()
        for block in layout.written:
            features = edges[block.name] if block.joins else gathered(nodes, block, block.ends[0])
            width = graph.entries[_first_part(layout, block)].shape[-1]
            own = graph.entries.get(block.name)
            own = None if own is None else embedding.scaled(block, own)
            values = self._values(block, graph, features, width, odd, own)
            found[block.source] = block.tensor(charged(block, values * embedding.size(block), graph.norms))
        real = {name: _without_parts(tensor) for name, tensor in found.items()}
        if graph.form is not None:
            real = self._brought_back(graph, real)
        return real | {name: real[other] for name, other in layout.tied.items()}

    def _values(
        self, block: Block, graph: NeuralGraph, features: Tensor, width: int, odd: Odd, own: Tensor | None
    ) -> Tensor:
        """Values in the gauge of the graph; ``own``: the entries themselves, where the block is read as it is."""
        matrix = self.values.matrix(block, width) / math.sqrt(self.values.kernel.shape[0])
        known = sign_families(graph.layout.sym) if graph.gauge == "layers" else {}
        carried = [item for item in block.carried if item.sign and item.family in known]
        changed = 0.0 if own is None else self.entry(features) * own
        plain: Tensor = self.hidden(features) @ matrix
        if not carried:
            return plain + changed
        flipping = self.odd(features)
        mask = torch.zeros((), dtype=torch.bool, device=features.device)
        for item in carried:
            flipping = flipping * at_entries(odd, block, item)
            mask = mask | block.along((item.unit >= 0)[None].to(features.device), item.slot)
        return torch.where(mask[..., None], flipping @ matrix, plain) + changed

    def _brought_back(self, graph: NeuralGraph, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """The change of the networks when their canonical forms change by these values."""
        assert graph.form is not None
        form = graph.form
        moved = dict(form.params) | {name: form.params[name].to(value) + value for name, value in values.items()}
        after = decanonicalize(form_with(graph, moved))
        before = decanonicalize(form_with(graph, {name: form.params[name].to(moved[name]) for name in form.params}))
        return {name: after[name] - before[name] for name in values}


def form_with(graph: NeuralGraph, params: dict[str, Tensor]) -> Canonical[Mapping[str, Tensor]]:
    """The canonical form of a graph with other parameters; further names of tied ones follow."""
    assert graph.form is not None
    whole = params | {name: params[other] for name, other in graph.layout.tied.items() if name in params}
    return replace(graph.form, params=whole)


def _first_part(layout: Layout, block: Block) -> str:
    """The name under which a parameter's entries are read."""
    return next(other.name for other in layout.blocks if other.source == block.source)


def _without_parts(tensor: Tensor) -> Tensor:
    """(…, parts) → (…): complex numbers of their two parts."""
    return torch.view_as_complex(tensor.contiguous()) if tensor.shape[-1] == 2 else tensor[..., 0]


HEADS = {"invariant": InvariantHead, "units": UnitHead, "equivariant": EquivariantHead}
"""What a reader may say of a network."""
