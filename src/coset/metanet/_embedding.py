"""From the entries of a graph to features of nodes and edges."""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from coset.errors import InputError
from coset.metanet._blocks import Block, Layout
from coset.metanet._graph import NeuralGraph

OUTLIER = 30.0
"""Entries count as this many medians at most where typical sizes are taken; of normal draws none is so large."""

LINEAR = 5.0
"""In typical sizes: up to here entries are features as they are."""


class Projection(nn.Module):
    """Entries (…, features) → (…, channels), linear: kernels of all sizes by one matrix, in the middle of the largest.

    Features that are no kernel, such as the positions behind a flatten, have a matrix for each number of them.
    """

    def __init__(self, layouts: Sequence[Layout], channels: int) -> None:
        super().__init__()
        blocks = [block for layout in layouts for block in (*layout.blocks, *layout.written)]
        kernels = [_two(block.kernel) for block in blocks if block.centred]
        self.largest = tuple(max((kernel[side] for kernel in kernels), default=1) for side in (0, 1))
        self.kernel = nn.Parameter(torch.randn(channels, *self.largest) / math.sqrt(math.prod(self.largest)))
        flat = sorted({block.features for block in blocks if not block.centred} | {2 * b.features for b in blocks})
        self.flat = nn.ParameterDict({str(n): nn.Parameter(torch.randn(channels, n) / math.sqrt(n)) for n in flat})

    def matrix(self, block: Block, features: int) -> Tensor:
        """The matrix of a block's entries, (channels, features)."""
        if block.centred and features == block.features:
            size = _two(block.kernel)
            begin = [(most - own) // 2 for most, own in zip(self.largest, size, strict=True)]
            if min(begin) < 0:
                raise InputError(f"'{block.name}' has kernels {size}; expected at most {self.largest}, as when made")
            part: Tensor = self.kernel[:, begin[0] : begin[0] + size[0], begin[1] : begin[1] + size[1]]
            return part.reshape(len(part), -1)
        if str(features) not in self.flat:
            raise InputError(f"'{block.name}' has {features} positions of a kernel, as no network had that was given")
        found: Tensor = self.flat[str(features)]
        return found

    def forward(self, block: Block, entries: Tensor) -> Tensor:
        result: Tensor = nn.functional.linear(entries, self.matrix(block, entries.shape[-1]))
        return result


def _two(kernel: tuple[int, ...]) -> tuple[int, int]:
    """A kernel of at most two axes as one of two."""
    return (*(1,) * (2 - len(kernel)), *kernel)[0], (*(1,) * (2 - len(kernel)), *kernel)[1]


class Names(nn.Module):
    """A vector for every name, for each of several positions if it has these; 0 for names that are not known.

    ``counts``: names with numbers of positions; a name may have several, in networks of several architectures.
    """

    def __init__(self, counts: Iterable[tuple[str, int]], channels: int) -> None:
        super().__init__()
        self.starts: dict[str, int] = {}
        total = 0
        for name, count in dict.fromkeys(counts):
            self.starts[f"{name}/{count}"] = total
            total += count
        self.table = nn.Parameter(0.3 * torch.randn(total, channels))

    def forward(self, name: str, count: int = 1) -> Tensor:
        """(count, channels)."""
        start = self.starts.get(f"{name}/{count}")
        return self.table.new_zeros(count, self.table.shape[1]) if start is None else self.table[start : start + count]


class Embedding(nn.Module):
    """Features of nodes (N, nodes, channels) and of edges, block → (N, *slots, channels), before the first layer.

    Entries are divided by the typical size of their parameter on the networks that ``calibrate`` has seen, and those
    that are far larger count by their logarithm.
    """

    sizes: Tensor
    probe_sizes: Tensor

    def __init__(self, layouts: Sequence[Layout], channels: int, probes: int) -> None:
        super().__init__()
        self.channels = channels
        self.project = Projection(layouts, channels)
        blocks = [block for layout in layouts for block in layout.blocks]
        sets = [item for layout in layouts for item in layout.sets]
        roles = [
            (f"{block.name}@{number}", slot.role_count)
            for block in blocks
            for number, slot in enumerate(block.slots)
            if slot.role_count > 1
        ]
        self.block_names = Names([(block.name, 1) for block in blocks], channels)
        self.kinds = Names([(_kind(block), 1) for block in blocks], channels)
        self.roles = Names(roles, channels)
        self.set_names = Names([(item.name, 1) for item in sets], channels)
        self.identities = Names([(item.name, item.kinds) for item in sets if item.kinds > 1], channels)
        self.depth = nn.Parameter(0.3 * torch.randn(2, channels))
        self.factor = nn.Parameter(0.3 * torch.randn(channels))
        self.probe = nn.Linear(probes, channels) if probes else None
        keys = list(dict.fromkeys((*(block.name for block in blocks), *(_kind(block) for block in blocks))))
        self.rows = {name: number for number, name in enumerate(keys)}
        self.register_buffer("sizes", torch.ones(len(keys)))
        self.probe_rows = {name: number for number, name in enumerate(dict.fromkeys(item.name for item in sets))}
        self.register_buffer("probe_sizes", torch.ones(len(self.probe_rows)))

    @torch.no_grad()
    def calibrate(self, graph: NeuralGraph) -> None:
        """Take the root mean squares of the entries of each parameter, and of its kind, as typical sizes.

        Entries are cut at ``OUTLIER`` times the median: in the gauge of a unit that weight decay has killed, biases are
        larger than others by any factor, and of all others nothing would be left.
        """
        by_kind: dict[str, list[Tensor]] = {}
        for block in graph.layout.blocks:
            size = _root_mean_square(_without_outliers(graph.entries[block.name].double().abs()))
            by_kind.setdefault(_kind(block), []).append(size)
            if block.name in self.rows:
                self.sizes[self.rows[block.name]] = _usable(size)
        for kind, sizes in by_kind.items():
            if kind in self.rows:
                self.sizes[self.rows[kind]] = _usable(_root_mean_square(torch.stack(sizes)))
        for name, values in graph.probes.items():
            if name in self.probe_rows:
                self.probe_sizes[self.probe_rows[name]] = _usable(_root_mean_square(values))

    def scaled(self, block: Block, entries: Tensor) -> Tensor:
        """Entries over their typical size."""
        return entries / self.size(block)

    def size(self, block: Block) -> Tensor:
        """The typical size of a parameter's entries."""
        row = self.rows.get(block.name, self.rows.get(_kind(block)))
        found: Tensor = self.sizes.new_ones(()) if row is None else self.sizes[row]
        return found

    def named(self, layout: Layout, block: Block) -> Tensor:
        """What a block is: its name, its kind, where it stands; (1…, channels)."""
        depth = layout.depth[block.source]
        found = self.block_names(block.name) + self.kinds(_kind(block)) + self.depth[0] * depth + self.depth[1]
        total: Tensor = found.reshape(*[1] * (1 + len(block.slots)), self.channels)
        for number, slot in enumerate(block.slots):
            if slot.role_count > 1:
                rows = self.roles(f"{block.name}@{number}", slot.role_count)[slot.roles.to(found.device)]
                total = total + block.along(rows[None], number)
        return total

    def forward(self, graph: NeuralGraph) -> tuple[Tensor, dict[str, Tensor]]:
        layout = graph.layout
        rows = []
        for item in layout.sets:
            own = self.set_names(item.name)
            if item.kinds > 1:
                own = own + self.identities(item.name, item.kinds)[item.places.to(own.device)]
            rows.append(own.expand(item.count, -1))
        nodes = torch.cat(rows)[None].expand(len(graph), -1, -1).clone()
        nodes[:, 0] += graph.factors[:, None] * self.factor
        for name, values in graph.probes.items():
            units = layout.by_name.get(name)
            if self.probe is None:
                raise InputError("the graph has probes, and the reader was made without; give it probes=")
            if values.shape[-1] != self.probe.in_features:
                raise InputError(
                    f"the graph has {values.shape[-1]} probes; expected {self.probe.in_features}, as probes= says"
                )
            if units is not None:
                row = self.probe_rows.get(name)
                own = values if row is None else values / self.probe_sizes[row]
                nodes[:, units.start : units.start + units.count] += self.probe(own)
        edges: dict[str, Tensor] = {}
        for block in layout.blocks:
            own = graph.entries[block.name]
            # Other gauges have settled signs, or show them.
            x = compressed(self.scaled(block, even_part(block, own) if graph.gauge == "layers" else own))
            features = self.project(block, x) + self.named(layout, block)
            if block.joins:
                edges[block.name] = features
            else:
                end = block.ends[0]
                nodes = nodes.index_add(1, end.nodes.to(nodes.device), features)
        return nodes, edges


def compressed(x: Tensor) -> Tensor:
    """x up to ``LINEAR``, and sign(x)·(c + log(1 + |x| − c)) beyond c = ``LINEAR``: odd, with a continuous slope."""
    beyond = (x.abs() - LINEAR).clamp_min(0)
    return x.clamp(-LINEAR, LINEAR) + x.sign() * beyond.log1p()


def _without_outliers(sizes: Tensor) -> Tensor:
    """Sizes, cut at ``OUTLIER`` times the median of those that are not 0."""
    known = sizes[(sizes > 0) & sizes.isfinite()]
    return sizes.clamp_max(OUTLIER * float(known.median())) if known.numel() else sizes


def even_part(block: Block, entries: Tensor) -> Tensor:
    """Entries as signs do not change them: absolute values where a sign is carried."""
    signed = [item for item in block.carried if item.sign]
    if not signed:
        return entries
    masks = [block.along((item.unit >= 0)[None], item.slot)[..., None].to(entries.device) for item in signed]
    mask = masks[0]
    for other in masks[1:]:
        mask = mask | other
    return torch.where(mask, entries.abs(), entries)


def _kind(block: Block) -> str:
    return f"kind {block.kind} {block.part}"


def _root_mean_square(values: Tensor) -> Tensor:
    """In float64, over the largest, so that squares stay numbers."""
    values = values.double()
    largest = _usable(values.abs().max())
    return largest * (values / largest).square().mean().sqrt()


def _usable(size: Tensor) -> Tensor:
    """A size to divide by: 1 where there is none."""
    return torch.where((size > 0) & torch.isfinite(size), size, torch.ones_like(size))
