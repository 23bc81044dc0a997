"""Readers of networks: graphs in, layers of messages, a head out."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as checkpointed

from coset._checks import check_choice, check_count, check_seed, is_number
from coset.errors import InputError
from coset.metanet._blocks import Layout
from coset.metanet._embedding import Embedding
from coset.metanet._graph import GAUGES, NeuralGraph, layout_of, neural_graph
from coset.metanet._heads import HEADS, InvariantHead
from coset.metanet._messages import GAT, GCN, MessagePassing
from coset.metanet._odd import OddLayer, no_odd_features, sign_families
from coset.metanet._pna import PNALayer
from coset.metanet._relational import RelationalLayer
from coset.symmetry import Symmetry

CALIBRATED = 256
"""Summaries are taken of so many networks at most."""


class Reader(nn.Module):
    """A network that reads networks: ``reader(stack)`` for N networks of one architecture, or for one of them.

    ``sym``: the symmetry of the networks, or several. ``head`` "invariant": a vector for each network, (N,
    ``outputs``); "units": class → (N, *shape, ``outputs``); "equivariant": parameter → (N, *shape). ``gauge``: see
    ``neural_graph``; "canonical" is exactly invariant under permutations, scales, signs, turns, GL and translations,
    "layers" under permutations, scales, signs and half-turns, "none" under permutations. ``classifier``: of canonical
    forms. ``probes``: how many activations each unit is given. ``everywhere``: messages run between every two nodes,
    too, in networks of at most 256. ``checkpoint``: compute layers again in the backward pass. ``conditions``: so many
    numbers are given with every network, ``reader(stack, conditions=…)`` (N, conditions), and all features see them.
    ``dropout``: this share of the hidden features of the invariant head is left out in training mode.

    Weights of networks of several architectures are told by ``reader(stack, sym=…)``. What an architecture calls its
    layers is learned; one that was not given when the reader was made shares what kinds of layers have in common.
    """

    def __init__(
        self,
        sym: Symmetry | Sequence[Symmetry],
        outputs: int = 1,
        *,
        head: str = "invariant",
        gauge: str = "canonical",
        channels: int = 32,
        layers: int = 4,
        heads: int = 4,
        probes: int = 0,
        everywhere: bool = False,
        classifier: bool | str = False,
        checkpoint: bool = False,
        conditions: int = 0,
        dropout: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.symmetries = (sym,) if isinstance(sym, Symmetry) else tuple(sym)
        if not self.symmetries or not all(isinstance(item, Symmetry) for item in self.symmetries):
            raise InputError("sym holds no symmetry, or something else; expected a Symmetry, as discover gives it")
        check_choice("head", head, HEADS)
        check_choice("gauge", gauge, GAUGES)
        for name, value in (("outputs", outputs), ("channels", channels), ("layers", layers), ("heads", heads)):
            check_count(name, value, 1)
        check_count("probes", probes, 0)
        check_count("conditions", conditions, 0)
        if not is_number(dropout) or not 0 <= dropout < 1:
            raise InputError(f"dropout is {dropout!r}; expected a number from 0 to below 1")
        if channels % heads:
            raise InputError(f"channels is {channels} and heads is {heads}; expected a multiple of heads")
        self.gauge, self.classifier, self.checkpoint, self.heads = gauge, classifier, checkpoint, heads
        self.everywhere = everywhere
        layouts = [layout_of(item, tuple(item.parameters), gauge == "layers", everywhere) for item in self.symmetries]
        self.delta = _log_degree(layouts)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(check_seed(seed))
            self.embedding = Embedding(layouts, channels, probes)
            self.layers = nn.ModuleList(self.make_layer(channels) for _ in range(layers))
            signed = gauge == "layers" and any(sign_families(item) for item in self.symmetries)
            self.odd = nn.ModuleList(OddLayer(layouts, channels) for _ in range(layers if signed else 0))
            self.head = HEADS[head](layouts, channels, outputs, dropout, probes)
            self.conditions = Conditions(conditions, channels, layers) if conditions else None

    def make_layer(self, channels: int) -> MessagePassing:
        """A layer of messages."""
        raise TypeError(
            f"{type(self).__name__} has no layers; expected RelationalTransformer, PNA, GCNReader, GATReader"
        )

    def read(
        self,
        params: Mapping[str, Tensor],
        *,
        sym: Symmetry | None = None,
        model: nn.Module | None = None,
        inputs: Tensor | None = None,
    ) -> NeuralGraph:
        """Networks as a graph in the reader's gauge, which it may be given in their place, again and again."""
        if not isinstance(params, Mapping):
            raise InputError(
                f"params is a {type(params).__name__}; expected parameters by name, of one network or many"
            )
        if sym is None and len(self.symmetries) > 1:
            raise InputError(f"the reader knows {len(self.symmetries)} architectures; expected sym= of these networks")
        own = self.symmetries[0] if sym is None else sym
        return neural_graph(
            own,
            params,
            gauge=self.gauge,
            classifier=self.classifier,
            everywhere=self.everywhere,
            model=model,
            inputs=inputs,
        )

    def calibrate(self, params: Mapping[str, Tensor] | NeuralGraph, *, sym: Symmetry | None = None) -> None:
        """Take typical sizes of weights, and how far summaries of networks are apart, before training."""
        graph = params if isinstance(params, NeuralGraph) else self.read(params, sym=sym)
        self.embedding.calibrate(graph)
        if isinstance(self.head, InvariantHead):
            few = graph[:CALIBRATED]
            with torch.no_grad():
                nodes, edges, _ = self.features(few)
                self.head.calibrate(few, self.embedding, nodes, edges)

    def forward(
        self,
        params: Mapping[str, Tensor] | NeuralGraph,
        *,
        sym: Symmetry | None = None,
        model: nn.Module | None = None,
        inputs: Tensor | None = None,
        conditions: Tensor | None = None,
    ) -> Any:
        """What the head says; of one network without a leading axis, if it was given without."""
        if isinstance(params, NeuralGraph):
            graph = params
            if graph.gauge != self.gauge:
                raise InputError(f"the graph has the gauge {graph.gauge!r}; expected {self.gauge!r}, as the reader has")
        else:
            graph = self.read(params, sym=sym, model=model, inputs=inputs)
        result = self.head(graph, self.embedding, *self.features(graph, conditions=conditions))
        if not graph.single:
            return result
        return {name: t[0] for name, t in result.items()} if isinstance(result, dict) else result[0]

    def features(
        self, graph: NeuralGraph, layers: int | None = None, conditions: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        """Features of nodes, of edges, and those that signs flip, after so many layers (all of them)."""
        graph = graph.to(self.embedding.factor)
        nodes, edges = self.embedding(graph)
        if (self.conditions is None) != (conditions is None):
            raise InputError("conditions are numbers for each network where the reader was made with conditions=, only")
        if self.conditions is not None and conditions is not None:
            nodes, edges = self.conditions.begin(nodes, edges, conditions)
        odd = no_odd_features(graph.layout, len(graph), nodes.shape[-1], nodes) if self.odd else {}
        for number, layer in enumerate(self.layers[:layers]):
            if self.conditions is not None and conditions is not None:
                nodes = self.conditions.at(number, nodes, conditions)
            step = _Step(graph, self.embedding, layer, self.odd[number] if self.odd else None)
            if self.checkpoint and torch.is_grad_enabled():
                nodes, edges, odd = checkpointed(step, nodes, edges, odd, use_reentrant=False)
            else:
                nodes, edges, odd = step(nodes, edges, odd)
        return nodes, edges, odd


class Conditions(nn.Module):
    """What numbers (N, C) that are given with networks change: all features at the start, nodes before every layer."""

    def __init__(self, count: int, channels: int, layers: int) -> None:
        super().__init__()
        self.start = nn.Linear(count, 2 * channels)
        changes = [nn.Linear(count, 2 * channels) for _ in range(layers)]
        for change in changes:
            nn.init.zeros_(change.weight)
            nn.init.zeros_(change.bias)
        self.changes = nn.ModuleList(changes)

    def begin(self, nodes: Tensor, edges: dict[str, Tensor], given: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Features of nodes and of edges, with what the numbers add to them."""
        of_nodes, of_edges = self.start(given).chunk(2, -1)
        moved = {n: e + of_edges.reshape(len(e), *[1] * (e.ndim - 2), -1) for n, e in edges.items()}
        return nodes + of_nodes[:, None], moved

    def at(self, layer: int, nodes: Tensor, given: Tensor) -> Tensor:
        """Features of nodes before a layer, n·(1 + a) + b."""
        scale, shift = self.changes[layer](given).chunk(2, -1)
        result: Tensor = nodes * (1 + scale[:, None]) + shift[:, None]
        return result


class _Step:
    """One layer, with that of signs before it."""

    def __init__(self, graph: NeuralGraph, embedding: Embedding, layer: nn.Module, odd: nn.Module | None) -> None:
        self.graph, self.embedding, self.layer, self.odd = graph, embedding, layer, odd

    def __call__(self, nodes: Tensor, edges: dict[str, Tensor], odd: dict[str, Tensor]) -> Any:
        extra: dict[str, Tensor] = {}
        if self.odd is not None:
            nodes, extra, odd = self.odd(self.graph, self.embedding, nodes, edges, odd)
        nodes, edges = self.layer(self.graph.layout, nodes, edges, extra)
        return nodes, edges, odd


class RelationalTransformer(Reader):
    """The relational transformer on weights (thesis, equations 5.5 and 5.6)."""

    def make_layer(self, channels: int) -> MessagePassing:
        return RelationalLayer(channels, self.heads)


class PNA(Reader):
    """Principal neighbourhood aggregation on weights (thesis, equations 5.3 and 5.4)."""

    def make_layer(self, channels: int) -> MessagePassing:
        return PNALayer(channels, self.delta)


class GCNReader(Reader):
    """Averages of neighbours on weights: the smallest instance of the scheme."""

    def make_layer(self, channels: int) -> MessagePassing:
        return GCN(channels)


class GATReader(Reader):
    """Attention by vectors on weights."""

    def make_layer(self, channels: int) -> MessagePassing:
        return GAT(channels, self.heads)


def _log_degree(layouts: Sequence[Layout]) -> float:
    """The mean of log(d + 1) over all nodes that have edges."""
    degrees = torch.cat([layout.degrees for layout in layouts])
    known = degrees[degrees > 0]
    return float((known + 1).log().mean()) if len(known) else math.log(2)
