"""Values of the graph of a network: sets of nodes, and parameters as blocks of edges between them.

A parameter is taken apart into slots, runs of dimensions that stand for nodes, and features, positions of a kernel. A
slot carries the units of one class (or of several, one behind the other), or positions that never move, such as the
inputs: these are nodes of their own. So a weight (out, in) has two slots, a bias one, and a kernel (out, in, 3, 3) two
slots and nine features. Grouped convolutions, whose units lie in blocks, have one slot of pairs of units. No tensor has
an entry for two nodes that no weight joins.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from coset.symmetry import Symmetry

RESULT = "the output"
"""Nodes of what a network gives. Names with spaces are no names of classes."""


@dataclass(frozen=True, eq=False)
class NodeSet:
    """``count`` nodes from ``start`` on. ``places`` (count,): by what a node that does not exchange with all others is
    known, its position among those that never move; one of ``kinds`` numbers.
    """

    name: str
    count: int
    start: int
    places: Tensor
    kinds: int


@dataclass(frozen=True, eq=False)
class End:
    """The nodes at one end of a block's entries, position by position along a slot: ``nodes`` (n,)."""

    slot: int
    nodes: Tensor

    @cached_property
    def first(self) -> int | None:
        """The first node, where they are one after the other."""
        start = int(self.nodes[0])
        in_order = torch.equal(self.nodes, torch.arange(start, start + len(self.nodes), device=self.nodes.device))
        return start if in_order else None


@dataclass(frozen=True, eq=False)
class Carried:
    """A charge along a slot: entries carry the family's scale with the power ``scale``, and its sign if ``sign``.

    ``unit`` (n,): the unit of the family's class at each position, −1 where there is none.
    """

    slot: int
    owner: str
    family: str
    unit: Tensor
    scale: int = 0
    sign: bool = False


@dataclass(frozen=True, eq=False)
class Turning:
    """What one turn of the units of a class does along a slot: x → ±x + ``shift`` (n,), where ``unit`` is not −1."""

    slot: int
    owner: str
    key: str
    unit: Tensor
    flip: bool
    shift: float


@dataclass(frozen=True, eq=False)
class Slot:
    """Positions along which nodes stand. ``roles`` (n,): which of several appearances of a unit a position is."""

    size: int
    roles: Tensor

    @property
    def role_count(self) -> int:
        """How many roles there are."""
        return int(self.roles.max()) + 1


@dataclass(frozen=True, eq=False)
class Block:
    """A parameter as entries (slots…, features).

    ``fine``: the sizes of its dimensions, ``order``: those of the slots, then those of features. ``kernel``: the sizes
    of the positions of a kernel, with ``centred`` where these are whole axes behind the first two. ``kind``: what it is
    called across architectures: kind of the layer, own name. ``source``: the parameter, which ``name`` is but where
    half-turns shift its entries by ``shifts``: then there is a block of cosines and one of sines, as ``part`` says.
    """

    name: str
    source: str
    kind: str
    fine: tuple[int, ...]
    order: tuple[int, ...]
    slots: tuple[Slot, ...]
    ends: tuple[End, ...]
    carried: tuple[Carried, ...]
    turning: tuple[Turning, ...]
    kernel: tuple[int, ...]
    centred: bool
    shape: tuple[int, ...]
    part: str = "value"
    shifts: float = 0.0

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the slots."""
        return tuple(slot.size for slot in self.slots)

    @property
    def features(self) -> int:
        """The number of features of an entry."""
        return math.prod(self.kernel)

    @property
    def joins(self) -> bool:
        """Whether its entries join nodes: edges, not features of a node."""
        return len(self.ends) > 1

    def entries(self, tensor: Tensor) -> Tensor:
        """(N, *shape, parts) → (N, *sizes, features·parts); complex numbers have two parts."""
        count, parts = len(tensor), tensor.shape[-1]
        dims = (0, *(1 + dim for dim in self.order), 1 + len(self.fine))
        whole = tensor.reshape(count, *self.fine, parts).permute(dims)
        return whole.reshape(count, *self.sizes, self.features * parts)

    def tensor(self, entries: Tensor) -> Tensor:
        """(N, *sizes, features·parts) → (N, *shape, parts)."""
        count, parts = len(entries), entries.shape[-1] // self.features
        whole = entries.reshape(count, *(self.fine[dim] for dim in self.order), parts)
        back = sorted(range(len(self.order)), key=self.order.__getitem__)
        dims = (0, *(1 + dim for dim in back), 1 + len(self.fine))
        return whole.permute(dims).reshape(count, *self.shape, parts)

    def along(self, rows: Tensor, slot: int) -> Tensor:
        """Rows (N, n, …) of positions of a slot, in a shape that broadcasts with entries (N, *sizes, …)."""
        before, after = slot, len(self.slots) - slot - 1
        return rows.reshape(rows.shape[0], *[1] * before, rows.shape[1], *[1] * after, *rows.shape[2:])


@dataclass(frozen=True, eq=False)
class Layout:
    """Node sets and blocks of a symmetry.

    ``written``: the parameters themselves, where ``blocks`` has cosines and sines. ``depth``: where in the network a
    parameter stands, between 0 and 1. ``tied``: further names of parameters.
    """

    sym: Symmetry
    sets: tuple[NodeSet, ...]
    blocks: tuple[Block, ...]
    written: tuple[Block, ...]
    depth: dict[str, float]
    tied: dict[str, str]

    @property
    def nodes(self) -> int:
        """The number of all nodes."""
        return sum(item.count for item in self.sets)

    @cached_property
    def by_name(self) -> dict[str, NodeSet]:
        """Node sets by their names."""
        return {item.name: item for item in self.sets}

    @cached_property
    def edges(self) -> tuple[Block, ...]:
        """The blocks that join nodes."""
        return tuple(block for block in self.blocks if block.joins)

    @cached_property
    def degrees(self) -> Tensor:
        """At how many entries of edges each node stands, (nodes,)."""
        found = torch.zeros(self.nodes, dtype=torch.float64)
        for block in self.edges:
            for end in block.ends:
                each = math.prod(block.sizes) // block.sizes[end.slot]
                found.index_add_(0, end.nodes, torch.full((len(end.nodes),), float(each), dtype=torch.float64))
        return found
