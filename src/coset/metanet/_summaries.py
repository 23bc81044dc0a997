"""What an invariant head sees of networks: summaries of every layer of units and of every parameter, standardised."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from coset.metanet._blocks import RESULT, Block, Layout
from coset.metanet._embedding import Embedding, compressed, even_part
from coset.metanet._graph import NeuralGraph
from coset.metanet._messages import Edges

QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
"""Those that are taken of the entries of a parameter."""

LEAST, LEAST_OF_ALL = 1e-3, 1e-4
"""Numbers that differ between networks by less than the first share of their size are divided by their size: in single
precision what would be magnified further could be rounding. Those that are smaller than the second share of the largest
in their summary are divided by the largest: a mean that the gauge brings to 0 is nothing but rounding.
"""

UNITS, EDGES, ENTRIES = "units", "edges", "entries"


class Summary(NamedTuple):
    """Numbers of each network (N, F): of what (``part``), its name, and its kind across architectures."""

    part: str
    name: str
    kind: str
    values: Tensor


class Summaries(nn.Module):
    """Mean, deviation, maximum and minimum of features over the units of each class and over the entries of each
    parameter that joins units, and mean, deviation and quantiles of the entries of every parameter; standardised. Of
    networks with probes what they give, too, which is known by its place.
    """

    def __init__(self, layouts: Sequence[Layout], channels: int, probes: int = 0) -> None:
        super().__init__()
        self.widths = {UNITS: 4 * channels, EDGES: 4 * channels, ENTRIES: 2 + len(QUANTILES)}
        given = [layout.by_name[RESULT].count for layout in layouts if RESULT in layout.by_name and probes]
        self.widths |= {_outputs(count): count * probes for count in given}
        named: dict[str, list[str]] = {part: [] for part in self.widths}
        for layout in layouts:
            named[UNITS] += ["kind units", *(item.name for item in layout.sets)]
            for part, blocks in ((EDGES, layout.edges), (ENTRIES, layout.blocks)):
                named[part] += [name for block in blocks for name in (_kind(block), block.name)]
            for count in given:
                named[_outputs(count)] = [RESULT]
        self.rows = {
            part: {name: number for number, name in enumerate(dict.fromkeys(names))} for part, names in named.items()
        }
        for part, width in self.widths.items():
            count = len(self.rows[part])
            self.register_buffer(f"{part}_mean", torch.zeros(count, width))
            self.register_buffer(f"{part}_size", torch.ones(count, width))

    def known(self, summary: Summary) -> list[int]:
        """The rows of tables that a summary has: of its kind, and of its name."""
        rows = self.rows[summary.part]
        return [rows[name] for name in (summary.kind, summary.name) if name in rows]

    def raw(self, graph: NeuralGraph, embedding: Embedding, nodes: Tensor, edges: Edges) -> list[Summary]:
        """Summaries as they are."""
        graph, found = graph.to(nodes), []
        for item in graph.layout.sets:
            rows = nodes[:, item.start : item.start + item.count]
            found.append(Summary(UNITS, item.name, "kind units", _spread(rows)))
        for block in graph.layout.edges:
            found.append(Summary(EDGES, block.name, _kind(block), _spread(edges[block.name].flatten(1, -2))))
        for block in graph.layout.blocks:
            own = graph.entries[block.name]
            own = compressed(embedding.scaled(block, even_part(block, own) if graph.gauge == "layers" else own))
            found.append(Summary(ENTRIES, block.name, _kind(block), _ranked(own.flatten(1))))
        if RESULT in graph.probes and _outputs(graph.probes[RESULT].shape[1]) in self.widths:
            own = graph.probes[RESULT]
            found.append(Summary(_outputs(own.shape[1]), RESULT, "", own.flatten(1)))
        return found

    def forward(self, graph: NeuralGraph, embedding: Embedding, nodes: Tensor, edges: Edges) -> list[Summary]:
        """Summaries as they differ from those of the networks of ``calibrate``: (s − m)/σ, what is far by its
        logarithm.
        """
        found = []
        for summary in self.raw(graph, embedding, nodes, edges):
            rows = self.known(summary)
            if rows:
                mean, size = (self.get_buffer(f"{summary.part}_{what}")[rows[-1]] for what in ("mean", "size"))
                summary = summary._replace(values=compressed((summary.values - mean) / size))
            found.append(summary)
        return found

    @torch.no_grad()
    def calibrate(self, found: Sequence[Summary]) -> None:
        """Take mean and deviation of every summary over networks; of their kinds, those of all that are of a kind."""
        by_row: dict[tuple[str, int], list[Tensor]] = {}
        for summary in found:
            for row in self.known(summary):
                by_row.setdefault((summary.part, row), []).append(summary.values)
        for (part, row), parts in by_row.items():
            values = torch.cat(parts).double()
            if len(values) > 1:
                size, whole = values.std(0), values.square().mean(0).sqrt()
                size = torch.where(size < LEAST * whole, whole, size)
                size = torch.where(whole < LEAST_OF_ALL * whole.max(), whole.max(), size)
                self.get_buffer(f"{part}_mean")[row] = values.mean(0)
                self.get_buffer(f"{part}_size")[row] = torch.where(size > 0, size, torch.ones_like(size))


def _outputs(count: int) -> str:
    return f"{count} outputs"


def _kind(block: Block) -> str:
    return f"kind {block.kind} {block.part}"


def _spread(features: Tensor) -> Tensor:
    """Mean, deviation, maximum and minimum over positions: (N, positions, channels) → (N, 4·channels)."""
    deviation = (features.var(1, correction=0) + 1e-6).sqrt()
    return torch.cat([features.mean(1), deviation, features.amax(1), features.amin(1)], -1)


def _ranked(entries: Tensor) -> Tensor:
    """Mean, deviation and quantiles of every row: (N, entries) → (N, 2 + len(QUANTILES))."""
    deviation = (entries.var(1, correction=0) + 1e-6).sqrt()
    return torch.cat([torch.stack([entries.mean(1), deviation], 1), quantiles(entries, QUANTILES)], 1)


def quantiles(rows: Tensor, shares: Sequence[float]) -> Tensor:
    """Quantiles of every row, (rows, shares); interpolated by hand, since torch.quantile refuses large inputs."""
    ranked = rows.sort(1).values
    place = torch.tensor(shares, dtype=rows.dtype, device=rows.device) * (rows.shape[1] - 1)
    below, above = ranked[:, place.floor().long()], ranked[:, place.ceil().long()]
    return below + (above - below) * (place - place.floor())
