"""From the description of a parameter's axes to the arrays by which an element acts on it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from coset.errors import InputError
from coset.symmetry.axes import (
    Charge,
    Concat,
    Fixed,
    Interleaved,
    Node,
    Product,
    Units,
    factors_of,
    parts_of,
    size_of,
    units_of,
)


@dataclass(frozen=True)
class UnitClass:
    """A class of interchangeable units: ``size`` of them, in every unit of ``parent`` if it is nested.

    ``permutes`` is False for a class whose order is fixed but whose units may still be scaled or flipped. ``follows``:
    another class that is not nested, as whose units these move in every block: units that lie in blocks of two classes
    at once (channels between two grouped convolutions) are nested in one that follows the second, inside the first.
    """

    name: str
    size: int
    parent: str | None = None
    permutes: bool = True
    follows: str | None = None


def ancestors(name: str, classes: Mapping[str, UnitClass]) -> tuple[str, ...]:
    """The classes around ``name``, outermost first."""
    chain: list[str] = []
    parent = classes[name].parent
    while parent is not None:
        chain.insert(0, parent)
        parent = classes[parent].parent
    return tuple(chain)


def surroundings(name: str, classes: Mapping[str, UnitClass]) -> frozenset[str]:
    """The classes around ``name``, and those as which these move."""
    outer = ancestors(name, classes)
    return frozenset(outer) | {other for item in outer if (other := classes[item].follows) is not None}


def shape_of(name: str, classes: Mapping[str, UnitClass]) -> tuple[int, ...]:
    """The shape of a class's permutations and scales: (sizes of the classes around it, outermost first; its size)."""
    return (*(classes[outer].size for outer in ancestors(name, classes)), classes[name].size)


def stands_for(name: str, wanted: str, same_axis: bool, classes: Mapping[str, UnitClass]) -> bool:
    """Whether a class on an axis of a parameter is ``wanted`` or, on another axis, the one that ``wanted`` follows."""
    return name == wanted or (not same_axis and name == classes[wanted].follows)


def with_followers(permutations: Mapping[str, Tensor], classes: Mapping[str, UnitClass]) -> Mapping[str, Tensor]:
    """Permutations by class, with those of classes that follow others; a follower of one without any has none."""
    following = {name: item.follows for name, item in classes.items() if item.follows is not None}
    if not following:
        return permutations
    moving = {name: other for name, other in following.items() if other in permutations}
    return {
        **permutations,
        **{name: permutations[other].expand(shape_of(name, classes)) for name, other in moving.items()},
    }


@dataclass(frozen=True)
class Leaf:
    """One appearance of a class along a stretch of positions.

    ``local`` (n,): the unit's number within its block at each position, −1 where the class does not stand;
    ``stride`` (n,): how far one unit is from the next; ``axis``: the parameter's axis it was written on.
    """

    name: str
    charges: tuple[Charge, ...]
    local: Tensor
    stride: Tensor
    axis: int


@dataclass(frozen=True, eq=False)
class Appearance:
    """A class along a stretch of a parameter.

    ``unit`` (n,): the unit, numbered over all blocks, at each of the n positions, −1 where the class does not stand;
    ``stride`` (n,): how far one unit is from the next.
    """

    name: str
    charges: tuple[Charge, ...]
    unit: Tensor
    stride: Tensor

    @cached_property
    def present(self) -> Tensor:
        """Where the class stands, (n,)."""
        return self.unit >= 0

    @cached_property
    def positions(self) -> Tensor:
        """The positions at which the class stands, in order."""
        return self.present.nonzero().flatten()

    @cached_property
    def known(self) -> Tensor:
        """``unit``, with 0 where the class does not stand."""
        return torch.where(self.present, self.unit, 0)

    @property
    def scales(self) -> dict[str, int]:
        """The families whose scales the entries carry, with their powers."""
        return {charge.key(self.name): charge.scale for charge in self.charges if charge.scale}

    @property
    def signs(self) -> tuple[str, ...]:
        """The families whose signs the entries carry."""
        return tuple(charge.key(self.name) for charge in self.charges if charge.sign)


@dataclass(frozen=True, eq=False)
class Stretch:
    """Dimensions of a parameter (as ``Structure`` takes it apart) that move by one index.

    ``dims``: their numbers, more than one only if another dimension stands between them. New position i comes from old
    position base[i] + Σ stride[i]·(the old number of the unit at i), over ``appearances``; where a stretch is ``plain``
    there is just one, and unit i stands at position i.
    """

    dims: tuple[int, ...]
    size: int
    plain: bool
    base: Tensor
    appearances: tuple[Appearance, ...]


@dataclass(frozen=True)
class Structure:
    """How a parameter is taken apart: ``sizes`` of its dimensions, and what moves there.

    Products are split into their factors; neighbours that move together, or not at all, are one dimension.
    """

    sizes: tuple[int, ...]
    stretches: tuple[Stretch, ...]


def _enumerate(node: Node, sizes: Mapping[str, int], axis: int) -> tuple[Tensor, list[Leaf]]:
    """Positions of a node: the offset due to its fixed parts (n,), and its leaves."""
    if isinstance(node, Fixed):
        return torch.arange(node.size), []
    if isinstance(node, Units):
        local = torch.arange(sizes[node.name])
        leaf = Leaf(node.name, node.charges, local, torch.ones_like(local), axis)
        return torch.zeros_like(local), [leaf]
    if isinstance(node, Product):
        return _multiply([_enumerate(factor, sizes, axis) for factor in node.factors])
    parts = [_enumerate(segment, sizes, axis) for segment in node.segments]
    total, offset = sum(len(base) for base, _ in parts), 0
    whole, leaves = torch.zeros(total, dtype=torch.long), []
    for number, (base, inner) in enumerate(parts):
        # Where the positions of the segment are: one after the other, or in turns with those of others.
        start, step = (number, len(parts)) if isinstance(node, Interleaved) else (offset, 1)
        here = slice(start, start + step * len(base), step)
        whole[here] = base * step + start
        for leaf in inner:
            local = torch.full((total,), -1)
            stride = torch.zeros(total, dtype=torch.long)
            local[here] = leaf.local
            stride[here] = leaf.stride * step
            leaves.append(replace(leaf, local=local, stride=stride))
        offset += len(base)
    return whole, leaves


def _multiply(parts: Sequence[tuple[Tensor, list[Leaf]]]) -> tuple[Tensor, list[Leaf]]:
    """Row-major product of enumerated parts."""
    base, leaves = torch.zeros(1, dtype=torch.long), list[Leaf]()
    for right, right_leaves in parts:
        n, m = len(base), len(right)
        base = (base[:, None] * m + right[None, :]).reshape(-1)
        leaves = [
            *(replace(o, local=o.local.repeat_interleave(m), stride=o.stride.repeat_interleave(m) * m) for o in leaves),
            *(replace(o, local=o.local.repeat(n), stride=o.stride.repeat(n)) for o in right_leaves),
        ]
    return base, leaves


def _resolve(leaves: list[Leaf], classes: Mapping[str, UnitClass], where: str) -> tuple[Appearance, ...]:
    """Number the units over all blocks: the block is the unit of the class around it beside which the leaf stands.

    A class that follows another appears as that one: so it moves.
    """
    known: dict[int, Tensor] = {}

    def around(leaf: Leaf, outer: str) -> Tensor:
        """The number of the unit of ``outer`` in which a leaf stands, −1 where it stands in none."""
        block, item = torch.full_like(leaf.local, -1), classes[outer]
        named = sorted((o for o in leaves if o.name == outer), key=lambda o: o.axis != leaf.axis)
        if item.parent is None or item.follows is None:
            for other in named:
                block = torch.where(block < 0, units(other), block)
            return block
        # A follower is inside of what is around the leaf, on whatever axis it stands, itself or what it follows.
        beyond = around(leaf, item.parent)
        for other in (*named, *(o for o in leaves if o.name == item.follows and o.axis != leaf.axis)):
            there = (other.local >= 0) & (beyond >= 0) & (block < 0)
            block = torch.where(there, beyond * item.size + other.local, block)
        return block

    def units(leaf: Leaf) -> Tensor:
        if id(leaf) not in known:
            parent = classes[leaf.name].parent
            block = torch.zeros_like(leaf.local) if parent is None else around(leaf, parent)
            if bool(((leaf.local >= 0) & (block < 0)).any()):
                raise InputError(
                    f"{where}: the class '{leaf.name}' is nested in '{parent}', which does not stand beside it"
                )
            unit = block * classes[leaf.name].size + leaf.local
            known[id(leaf)] = torch.where(leaf.local >= 0, unit, -1)
        return known[id(leaf)]

    found = []
    for leaf in leaves:
        unit, followed = units(leaf), classes[leaf.name].follows
        found.append(Appearance(followed or leaf.name, leaf.charges, leaf.local if followed else unit, leaf.stride))
    return tuple(found)


def _linked(dims: list[tuple[int, Node]], classes: Mapping[str, UnitClass], where: str) -> list[list[int]]:
    """Group dimensions that must move together: those with nested classes, and those with the classes around these."""
    groups = [[index] for index in range(len(dims))]
    names = [{unit.name for unit in units_of(node)} for _, node in dims]
    for index, (axis, _) in enumerate(dims):
        outside = {classes[name].parent for name in names[index]}
        # What a class follows may stand for it; it is inside of what is around it here.
        outside |= {classes[name].parent for name in outside if name is not None and classes[name].follows is not None}
        for outer in sorted(name for name in outside - names[index] if name is not None):
            carriers = [other for other in range(len(dims)) if outer in names[other]]
            carriers = carriers or [
                other
                for other in range(len(dims))
                if any(stands_for(name, outer, dims[other][0] == axis, classes) for name in names[other])
            ]
            near = [other for other in carriers if dims[other][0] == axis] or carriers
            if len(near) != 1:
                found = f"on axes {[dims[other][0] for other in near]}" if near else "nowhere"
                raise InputError(
                    f"{where}: axis {axis} carries a class nested in '{outer}', which must stand once beside it or on "
                    f"one other axis; it stands {found}"
                )
            mine = next(group for group in groups if index in group)
            theirs = next(group for group in groups if near[0] in group)
            if mine is not theirs:
                groups.remove(theirs)
                mine.extend(theirs)
    return [sorted(group) for group in groups]


def build_structure(axes: Sequence[Node], classes: Mapping[str, UnitClass], where: str) -> Structure:
    """Take a parameter apart into dimensions and say how each moves.

    Independent factors of a product become dimensions of their own (a flattened channel × space axis moves in blocks),
    nested classes are joined with the classes around them, on whichever axis these stand.
    """
    sizes = {name: item.size for name, item in classes.items()}
    factors = [(axis, factor) for axis, node in enumerate(axes) for factor in factors_of(node)]
    moving = [
        group
        for group in _linked(factors, classes, where)
        if any(True for index in group for _ in units_of(factors[index][1]))
    ]
    owner = {index: number for number, group in enumerate(moving) for index in group}
    dims, place = _merged([size_of(node, sizes) for _, node in factors], owner)
    stretches = []
    for group in moving:
        nodes = [factors[index] for index in group]
        where_to = tuple(dict.fromkeys(place[index] for index in group))
        plain = nodes[0][1] if len(nodes) == 1 else None
        if isinstance(plain, Units) and classes[plain.name].parent is None:
            every = torch.arange(sizes[plain.name])
            one = Appearance(plain.name, plain.charges, every, torch.ones_like(every))
            stretches.append(Stretch(where_to, len(every), True, torch.zeros_like(every), (one,)))
            continue
        base, leaves = _multiply([_enumerate(node, sizes, axis) for axis, node in nodes])
        stretches.append(Stretch(where_to, len(base), False, base, _resolve(leaves, classes, where)))
    return Structure(dims, tuple(stretches))


def check_standing(axes: Sequence[Node], classes: Mapping[str, UnitClass], where: str) -> None:
    """Raise if units do not stand beside what they lie in."""
    named = {unit.name for node in axes for unit in units_of(node)}
    if any(classes[name].follows is not None for name in named) or any(map(_in_parts, axes)):
        build_structure(axes, classes, where)
    else:
        # Without segments and followers units stand beside a class everywhere or nowhere.
        _linked([(axis, factor) for axis, node in enumerate(axes) for factor in factors_of(node)], classes, where)


def _in_parts(node: Node) -> bool:
    """Whether a concatenation is in it."""
    return isinstance(node, Concat) or any(map(_in_parts, parts_of(node)))


def _merged(sizes: Sequence[int], owner: Mapping[int, int]) -> tuple[tuple[int, ...], list[int]]:
    """Join neighbouring factors of one owner (or of none); returns the sizes and, for each factor, its dimension."""
    dims: list[int] = []
    place: list[int] = []
    for index, size in enumerate(sizes):
        if index and owner.get(index) == owner.get(index - 1):
            dims[-1] *= size
        else:
            dims.append(size)
        place.append(len(dims) - 1)
    return tuple(dims), place
