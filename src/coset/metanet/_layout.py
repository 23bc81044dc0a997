"""From a symmetry to its graph: which nodes stand at the ends of every parameter."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coset.errors import InputError
from coset.metanet._blocks import RESULT, Block, Carried, End, Layout, NodeSet, Slot, Turning
from coset.symmetry import Symmetry
from coset.symmetry.axes import Fixed, Node, factors_of, size_of, units_of
from coset.symmetry.graph import Graph
from coset.symmetry.incidence import appearances, moving_dims
from coset.symmetry.layers import INPUT
from coset.symmetry.structure import Stretch, ancestors, surroundings

NETWORK, GIVEN = "the network", "the input"
"""Nodes on which stands what no unit carries (single numbers, the factor of a canonical form), and what is given."""


class _Sets:
    """Node sets as they are asked for."""

    def __init__(self, sym: Symmetry) -> None:
        self.sym = sym
        self.found: dict[str, NodeSet] = {}
        self.named(NETWORK, 1)

    def named(self, name: str, count: int, places: Tensor | None = None) -> NodeSet:
        """A set of this name and size, of nodes that never move or of given ``places``; another size, another name."""
        if name in self.found and self.found[name].count != count:
            name = f"{name}:{count}"
        if name not in self.found:
            start = sum(item.count for item in self.found.values())
            places = torch.arange(count) if places is None else places
            self.found[name] = NodeSet(name, count, start, places, int(places.max()) + 1)
        return self.found[name]

    def of_class(self, name: str) -> NodeSet:
        """All units of a class, block by block; of those that permute none is known by its place in its block."""
        classes = self.sym.classes
        places = torch.zeros(1, dtype=torch.long)
        for level in (*ancestors(name, classes), name):
            item = classes[classes[level].follows or level]
            own = torch.zeros(item.size, dtype=torch.long) if item.permutes else torch.arange(item.size)
            places = (places[:, None] * (1 if item.permutes else item.size) + own).flatten()
        return self.named(name, len(places), places)


EVERYWHERE, MOST_NODES = "every pair", 256
"""The block that joins all nodes with all, without weights, and up to how many nodes there may be one."""


def make_layout(sym: Symmetry, names: Sequence[str], *, turns: bool = False, everywhere: bool = False) -> Layout:
    """The graph of the parameters of these names, tied ones once.

    ``turns``: half-turns flip entries like signs, and biases that they shift are seen by cosine and sine.
    ``everywhere``: besides, every two nodes are neighbours.
    """
    sets, owners = _Sets(sym), _Owners(sym.graph)
    tied = {name: other for name in names if (other := sym.parameters[name].tied) is not None and other in names}
    plain = [_block(sym, sets, owners, name) for name in names if name not in tied]
    written = [_flipping(sym, block) for block in plain] if turns else plain
    blocks = [part for block in written for part in (_parts(sym, block) if turns else [block])]
    depth = {block.source: owners.depth(block.source) for block in plain} | {EVERYWHERE: 0.5}
    if everywhere:
        blocks.append(_every_pair(sum(item.count for item in sets.found.values())))
    return Layout(sym, tuple(sets.found.values()), tuple(blocks), tuple(written), depth, tied)


def _every_pair(nodes: int) -> Block:
    """A block that joins all nodes with all."""
    if nodes > MOST_NODES:
        raise InputError(f"the networks have {nodes} nodes; every two are made neighbours of at most {MOST_NODES}")
    slot = Slot(nodes, torch.zeros(nodes, dtype=torch.long))
    ends = tuple(End(number, torch.arange(nodes)) for number in (0, 1))
    return Block(
        EVERYWHERE, EVERYWHERE, EVERYWHERE, (nodes, nodes), (0, 1), (slot, slot), ends, (), (), (), True, (nodes, nodes)
    )


def half_turns(sym: Symmetry) -> dict[str, str]:
    """The turns that only flip and shift, of which cosine and sine show the sign: the family's name → class."""
    return {f"turn:{key}": turn.owner for key, turn in sym.turns.items() if turn.order == 0 and not turn.taken}


def _flipping(sym: Symmetry, block: Block) -> Block:
    """A block whose half-turns are signs."""
    known = half_turns(sym)
    flips = [
        Carried(item.slot, item.owner, f"turn:{item.key}", item.unit, 0, True)
        for item in block.turning
        if item.flip and f"turn:{item.key}" in known
    ]
    return replace(block, carried=(*block.carried, *flips)) if flips else block


def _parts(sym: Symmetry, block: Block) -> list[Block]:
    """A block itself or, where half-turns shift all of it, its cosine and its sine with the signs that these carry."""
    shifted = [item for item in block.turning if item.shift and f"turn:{item.key}" in half_turns(sym)]
    if not shifted:
        return [block]
    scales = tuple(replace(item, sign=False) for item in block.carried if item.scale)
    own = tuple(replace(item, scale=0) for item in block.carried if item.sign and not item.family.startswith("turn:"))
    turned = [(item, Carried(item.slot, item.owner, f"turn:{item.key}", item.unit, 0, True)) for item in shifted]
    cosine = tuple(carried for _, carried in turned)
    sine = (*own, *(carried for item, carried in turned if not item.flip))
    period = abs(shifted[0].shift)
    return [
        replace(block, name=f"{block.name}#{part}", carried=(*scales, *signs), part=part, shifts=period)
        for part, signs in (("cos", cosine), ("sin", sine))
    ]


@dataclass(frozen=True)
class _Piece:
    """A dimension of a parameter that does not move: the ``axis`` it is on, its ``size``, whether it is all of it."""

    axis: int
    size: int
    whole: bool


def _still_runs(axes: Sequence[Node], sizes: dict[str, int]) -> Iterator[list[_Piece]]:
    """The runs of neighbouring factors on which no class stands, each by axes."""
    run: list[_Piece] = []
    for axis, node in enumerate(axes):
        for factor in factors_of(node):
            if any(True for _ in units_of(factor)):
                if run:
                    yield run
                run = []
                continue
            size, before = size_of(factor, sizes), run[-1:]
            joined = bool(before) and before[0].axis == axis
            whole = isinstance(node, Fixed) or not any(True for _ in units_of(node))
            run[-1:] = [_Piece(axis, size * before[0].size, whole)] if joined else [*before, _Piece(axis, size, whole)]
    if run:
        yield run


def _block(sym: Symmetry, sets: _Sets, owners: "_Owners", name: str) -> Block:
    """A parameter as a block."""
    parameter = sym.parameters[name]
    sizes = {key: item.size for key, item in sym.classes.items()}
    runs = list(_still_runs(parameter.axes, sizes))
    structure = sym.structures.get(name)
    dims = structure.sizes if structure is not None else tuple(math.prod(p.size for p in run) for run in runs)
    moving = moving_dims(structure) if structure else set()
    fine: list[int] = []
    place: dict[int, list[int]] = {}
    still: list[tuple[int, _Piece]] = []
    waiting = iter(runs)
    for dim, size in enumerate(dims):
        pieces = [] if dim in moving else next(waiting)
        assert dim in moving or math.prod(piece.size for piece in pieces) == size, name
        place[dim] = list(range(len(fine), len(fine) + max(len(pieces), dim in moving)))
        still += zip(place[dim], pieces, strict=True) if pieces else []
        fine += [piece.size for piece in pieces] if pieces else [size]
    slots: list[tuple[Slot, list[int], list[End], list[Carried], list[Turning]]] = []
    for stretch in structure.stretches if structure else ():
        where = [index for dim in stretch.dims for index in place[dim]]
        slots.append((*_moving_slot(sym, sets, name, stretch, where),))
    nodes = [(index, p) for index, p in still if p.whole and p.axis < 2 and p.size > 1]
    for index, piece in nodes:
        found = sets.named(*owners.positions(sym, name, piece.axis, piece.size))
        end = End(0, torch.arange(found.start, found.start + piece.size))
        slots.append((Slot(piece.size, torch.zeros(piece.size, dtype=torch.long)), [index], [end], [], []))
    slots.sort(key=lambda item: min(item[1]))
    kernel = [(index, piece) for index, piece in still if index not in dict(nodes)]
    behind = [piece.size for _, piece in kernel if piece.whole and piece.axis >= 2]
    ones = all(piece.size == 1 for _, piece in kernel if not (piece.whole and piece.axis >= 2))
    centred = ones and len(behind) <= 2
    order = (*(index for item in slots for index in item[1]), *(index for index, _ in kernel))
    ends, carried, turning = _numbered(slots)
    if not ends:
        ends = (End(0, torch.zeros(1, dtype=torch.long)),)
        slots = [(Slot(1, torch.zeros(1, dtype=torch.long)), [], [], [], [])]
    return Block(
        name, name, owners.kind(name), tuple(fine), order, tuple(item[0] for item in slots), ends, carried, turning,
        tuple(behind) if centred else tuple(piece.size for _, piece in kernel if piece.size > 1), centred,
        parameter.shape,
    )  # fmt: skip


def _numbered(
    slots: Sequence[tuple[Slot, list[int], list[End], list[Carried], list[Turning]]],
) -> tuple[tuple[End, ...], tuple[Carried, ...], tuple[Turning, ...]]:
    """What stands on the slots, with the numbers that these have in order."""
    ends, carried, turning = list[End](), list[Carried](), list[Turning]()
    for number, (_, _, own, charges, turns) in enumerate(slots):
        ends += [End(number, end.nodes) for end in own]
        carried += [Carried(number, c.owner, c.family, c.unit, c.scale, c.sign) for c in charges]
        turning += [Turning(number, t.owner, t.key, t.unit, t.flip, t.shift) for t in turns]
    return tuple(ends), tuple(carried), tuple(turning)


def _moving_slot(
    sym: Symmetry, sets: _Sets, name: str, stretch: Stretch, where: list[int]
) -> tuple[Slot, list[int], list[End], list[Carried], list[Turning]]:
    """A stretch as a slot: the units at its ends, those of classes around them left out; its charges and turns."""
    items = stretch.appearances
    present = torch.stack([item.unit >= 0 for item in items])
    for outer, item in enumerate(items):
        for inner, other in enumerate(items):
            if inner != outer and item.name in surroundings(other.name, sym.classes):
                present[outer] &= other.unit < 0
    rank = present.long().cumsum(0) - 1
    ends = []
    for number in range(max(int(present.sum(0).max()), 1)):
        nodes = torch.full((stretch.size,), -1)
        for row, item in enumerate(items):
            here = present[row] & (rank[row] == number)
            if bool(here.any()):
                nodes = torch.where(here, sets.of_class(item.name).start + item.unit, nodes)
        empty = (nodes < 0).nonzero().flatten()
        if len(empty) and number == 0:
            still = sets.named(f"positions of {name} {where[0]}", len(empty))
            nodes[empty] = still.start + torch.arange(len(empty))
        elif len(empty):
            nodes[empty] = sets.found[NETWORK].start
        ends.append(End(0, nodes))
    marks = torch.stack([stretch.base, *present.long()], 1)
    roles = torch.unique(marks, dim=0, return_inverse=True)[1]
    carried = [
        Carried(0, item.name, charge.key(item.name), item.unit, charge.scale, bool(charge.sign))
        for item in items
        for charge in item.charges
    ]
    return Slot(stretch.size, roles), where, ends, carried, list(_turning(sym, name, stretch))


def _turning(sym: Symmetry, name: str, stretch: Stretch) -> Iterator[Turning]:
    """The turns of the units along a stretch; a turn's places are in the order of appearances on the parameter."""
    for key, turn in sym.turns.items():
        places = turn.places.get(name, ())
        for (other, item), place in zip(appearances(sym, name, turn.owner), places, strict=False):
            if other is stretch and (place.flip or place.shift):
                yield Turning(0, turn.owner, key, item.unit, place.flip, place.shift)


class _Owners:
    """Which layer a parameter belongs to, and what its positions stand for."""

    def __init__(self, graph: Graph) -> None:
        self.layers = {layer.name: layer for layer in graph.layers}
        self.owner = {name: layer for layer in graph.layers for name in layer.parameters}
        self.order = {layer.name: number for number, layer in enumerate(graph.layers)}
        self.ends = set(graph.ends)
        self._waiting = {name for end in graph.ends for name in self._sources(end)}

    def _sources(self, name: str) -> list[str]:
        """The nearest layers with parameters, or the input, from which a layer's output comes."""
        found: list[str] = []
        seen: set[str] = set()
        stack = [name]
        while stack:
            here = stack.pop()
            if here in seen:
                continue
            seen.add(here)
            layer = self.layers.get(here)
            if layer is None or layer.parameters:
                found.append(here)
            else:
                stack += layer.reads
        return found

    def kind(self, name: str) -> str:
        """The kind of the layer, and the parameter's own name."""
        layer = self.owner.get(name)
        return f"{layer.kind if layer else ''}.{name.rpartition('.')[2]}"

    def depth(self, name: str) -> float:
        """Where the parameter's layer stands among all, 0 to 1."""
        layer = self.owner.get(name)
        return self.order[layer.name] / max(len(self.order) - 1, 1) if layer else 0.5

    def positions(self, sym: Symmetry, name: str, axis: int, size: int) -> tuple[str, int]:
        """The name of what never moves on an axis: outputs of a layer, what it reads, the network's input or output."""
        layer = self.owner.get(name)
        prefix = layer.name if layer else name.rpartition(".")[0]
        if len(sym.parameters[name].shape) == 1:
            # A bias stands where a weight of the same layer has as many positions.
            for other in layer.parameters if layer else ():
                shape, axes = sym.parameters[other].shape, sym.parameters[other].axes
                fits = [at for at in range(min(len(shape), 2)) if isinstance(axes[at], Fixed) and shape[at] == size]
                if len(shape) > 1 and fits:
                    axis = fits[0]
                    break
        if axis == 0:
            return (RESULT if prefix in self._waiting else f"outputs of {prefix}"), size
        sources = {source for read in (layer.reads if layer else ()) for source in self._sources(read)}
        if sources == {INPUT}:
            return GIVEN, size
        return (f"outputs of {next(iter(sources))}" if len(sources) == 1 else f"inputs of {prefix}"), size


def layout_names(sym: Symmetry, given: Sequence[str]) -> list[str]:
    """The parameters that are read, in the order of the symmetry; an InputError for what it does not know."""
    for name in given:
        if name not in sym.parameters and name not in sym.unsaved:
            known = ", ".join(list(sym.parameters)[:4])
            raise InputError(f"'{name}' is not explained by the symmetry, which knows {known}, …")
    return [name for name in sym.parameters if name in given]
