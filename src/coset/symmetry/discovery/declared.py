"""The graph of a symmetry that was declared by hand: it is matched to the one that discovery finds.

Both describe the axes of the same parameters. Where they do so alike, a class of the one is a class of the other; and
which scales and signs of the larger group an element of the declared one has, its charges on the parameters tell.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, cast

from torch import nn

from coset.symmetry._linear import Number, Reduce, Row, null_space, parity, rational
from coset.symmetry.axes import Charge, Concat, Fixed, Interleaved, Node, Product, Units, factors_of, size_of, units_of
from coset.symmetry.discovery.discover import discover
from coset.symmetry.graph import Graph
from coset.symmetry.layers import Activation
from coset.symmetry.structure import ancestors
from coset.symmetry.symmetry import Symmetry


def with_graph(sym: Symmetry, model: nn.Module, example_inputs: Any) -> Symmetry:
    """``sym`` itself where it has a graph; one that was declared with that of ``model``, in its own classes.

    What a declared symmetry moves otherwise than any that is found has no place in its graph.
    """
    if sym.graph.contractions:
        return sym
    return sym.annotated(graph=matched_graph(sym, discover(model, example_inputs)))


def matched_graph(sym: Symmetry, found: Symmetry) -> Graph:
    """The graph of ``found`` in the classes and families of ``sym``, a subgroup of it."""
    match = _Match(sym, found)
    for name, parameter in sym.parameters.items():
        match.compare(parameter.axes, found.parameters[name].axes)
    scales, signs = match.solved(rational), match.solved(parity)
    tensors = {}
    for name, item in found.graph.tensors.items() if scales is not None and signs is not None else ():
        try:
            axes = match.translated(item.axes, scales or {}, signs or {})
        except _Unlike:
            continue
        tensors[name] = Activation(item.shape, axes)
    layers, ends, contractions = found.graph.layers, found.graph.ends, found.graph.contractions
    return Graph(layers, ends, contractions=contractions, nodes=sym.classes).with_tensors(tensors)


class _Unlike(Exception):
    """Two descriptions of one axis do not fit into each other."""


Solution = Mapping[str, Row[str]]
"""Family of the declared symmetry → powers of the families found that an element of it has."""

_Branch = tuple[tuple[Units, ...], tuple[Units, ...]]
"""The classes of both symmetries at some positions of an axis: one segment of each concatenation."""


@dataclass
class _Match:
    """``classes``: found → declared, None where the declared group moves nothing. ``unlike``: found, without a match.

    ``equations``: for entries of parameters the powers of the families declared and of those found, scales and signs.
    """

    sym: Symmetry
    found: Symmetry
    classes: dict[str, str | None] = field(default_factory=dict)
    unlike: set[str] = field(default_factory=set)
    equations: list[tuple[tuple[Row[str], Row[str]], tuple[Row[str], Row[str]]]] = field(default_factory=list)

    def compare(self, ours: Sequence[Node], theirs: Sequence[Node]) -> None:
        """Take down what two descriptions of a parameter have in common."""
        axes = [list(self._branches(own, other)) for own, other in zip(ours, theirs, strict=True)]
        for branches in product(*axes):
            own, other = ([unit for branch in branches for unit in branch[side]] for side in (0, 1))
            self.equations.append((_powers(own), _powers(other)))

    def _size(self, node: Node, side: int) -> int:
        sym = (self.sym, self.found)[side]
        return size_of(node, {unit.name: sym.classes[unit.name].size for unit in units_of(node)})

    def _branches(self, ours: Node, theirs: Node) -> Iterator[_Branch]:
        """Pairs of classes at all positions of an axis; classes that correspond are noted."""
        nodes = (_as_product(ours), _as_product(theirs))
        sides = [[(part, self._size(part, side)) for part in factors_of(nodes[side])] for side in (0, 1)]
        single = [tuple(unit for part, size in parts if size == 1 for unit in units_of(part)) for parts in sides]
        groups = _aligned(*([item for item in parts if item[1] > 1] for parts in sides), times=True)
        inner = [list(self._pairs(own, other)) for own, other in groups]
        for branches in product(*inner):
            yield (
                (*single[0], *(unit for branch in branches for unit in branch[0])),
                (*single[1], *(unit for branch in branches for unit in branch[1])),
            )

    def _pairs(self, ours: Sequence[Node], theirs: Sequence[Node]) -> Iterator[_Branch]:
        """The same for factors of which neither some at the front nor at the back correspond."""
        one, other = (parts[0] if len(parts) == 1 else None for parts in (ours, theirs))
        if isinstance(one, Units) and isinstance(other, Units):
            self._note(other.name, one.name)
            yield (one,), (other,)
        elif isinstance(one, Concat) and type(one) is type(other):
            cuts = [[(part, self._size(part, side)) for part in node.segments] for side, node in ((0, one), (1, other))]
            for some, others in _aligned(*cuts, times=False):
                if len(some) == len(others) == 1:
                    yield from self._branches(some[0], others[0])
                else:
                    yield from self._unlike_parts(some, others)
        else:
            yield from self._unlike_parts(ours, theirs)

    def _unlike_parts(self, ours: Sequence[Node], theirs: Sequence[Node]) -> Iterator[_Branch]:
        """Where the declared group moves nothing; where it moves something else, nothing can be said."""
        moves = any(True for node in ours for _ in units_of(node))
        for unit in (unit for node in theirs for unit in units_of(node)):
            if moves:
                self.unlike.add(unit.name)
            else:
                self._note(unit.name, None)
        if not moves:
            for parts in product(*(_standing(node) for node in theirs)):
                yield (), tuple(unit for part in parts for unit in part)

    def _note(self, theirs: str, ours: str | None) -> None:
        if self.classes.setdefault(theirs, ours) != ours:
            self.unlike.add(theirs)

    def solved(self, field: Reduce) -> Solution | None:
        """For every declared family with scales (or signs) the powers with which an element has those found."""
        which = 0 if field is rational else 1
        result = {}
        for key, family in self.sym.families.items():
            if not (family.scales, family.signs)[which]:
                continue
            common = self.sym.classes[family.owner].size == 1
            theirs_all = self.found.families.items()
            open_to = [k for k, item in theirs_all if common or family.owner in self._around(item.owner)]
            rows = []
            for ours, theirs in self.equations:
                row: Row[str] = {k: theirs[which][k] for k in open_to if k in theirs[which]}
                rows.append(row | {"": -ours[which].get(key, 0)})
            basis = null_space(rows, ["", *open_to], field)
            if not basis or not basis[0].get(""):
                return None
            result[key] = {k: power for k, power in basis[0].items() if k}
        return result

    def _around(self, name: str) -> list[str | None]:
        """The declared classes of a class that was found and of those around it."""
        return [self.classes.get(outer) for outer in (*ancestors(name, self.found.classes), name)]

    def translated(self, axes: Sequence[Node], scales: Solution, signs: Solution) -> tuple[Node, ...]:
        """The axes of a tensor in the classes that are declared."""
        parts = [list(factors_of(self._node(node, scales, signs))) for node in axes]
        homes = [
            (axis, at) for axis, factors in enumerate(parts) for at, part in enumerate(factors) if type(part) is Units
        ]
        for axis, factors in enumerate(parts):
            for carried in [part for part in factors if isinstance(part, _Carried)]:
                own = [(a, b) for a, b in homes if cast(Units, parts[a][b]).name == carried.name]
                if not own:
                    raise _Unlike
                a, b = next((home for home in own if home[0] == axis), own[0])
                parts[a][b] = Units(carried.name, _sum(cast(Units, parts[a][b]).charges, carried.charges))
        kept = [[part for part in factors if not isinstance(part, _Carried)] for factors in parts]
        axes = tuple(_product(factors) for factors in kept)
        if any(isinstance(unit, _Carried) for node in axes for unit in units_of(node)):
            raise _Unlike  # in a segment, and the class around it is not
        return axes

    def _node(self, node: Node, scales: Solution, signs: Solution) -> Node:
        """The same of an axis, with the charges of classes around it beside it."""
        if isinstance(node, Fixed):
            return node
        if isinstance(node, Product):
            return _product(self._node(part, scales, signs) for part in node.factors)
        if isinstance(node, Concat):
            return type(node)(tuple(self._node(part, scales, signs) for part in node.segments))
        if node.name in self.unlike:
            raise _Unlike
        ours, theirs = self.classes.get(node.name), _powers([node])
        charges: dict[str, list[Charge]] = {}
        for key, family in self.sym.families.items():
            scale = sum(theirs[0].get(k, 0) * power for k, power in scales.get(key, {}).items())
            sign = sum(theirs[1].get(k, 0) * power for k, power in signs.get(key, {}).items()) % 2
            if scale or sign:
                charges.setdefault(family.owner, []).append(Charge(family.name, _whole(scale), _whole(sign)))
        if any(owner not in self._around(node.name) and self.sym.classes[owner].size > 1 for owner in charges):
            raise _Unlike
        size = self.found.classes[node.name].size
        place: Node = Fixed(size) if ours is None else Units(ours, tuple(charges.pop(ours, ())))
        single = {owner: self.sym.classes[owner].size == 1 for owner in charges}
        others = [(Units if single[owner] else _Carried)(owner, tuple(items)) for owner, items in charges.items()]
        return _product([place, *others])


class _Carried(Units):
    """Charges of a class around another one, to be added to those it has itself."""


def _sum(one: Sequence[Charge], other: Sequence[Charge]) -> tuple[Charge, ...]:
    found = {charge.family: charge for charge in one}
    for charge in other:
        known = found.get(charge.family, Charge(charge.family, 0, 0))
        found[charge.family] = Charge(charge.family, known.scale + charge.scale, (known.sign + charge.sign) % 2)
    return tuple(found[family] for family in sorted(found) if found[family].scale or found[family].sign)


def _as_product(node: Node) -> Node:
    """Equal segments one after the other, or in turns, as the product that they are."""
    if isinstance(node, Concat) and len(set(node.segments)) == 1:
        count, segment = Fixed(len(node.segments)), node.segments[0]
        return Product((segment, count) if isinstance(node, Interleaved) else (count, segment))
    return node


def _standing(node: Node) -> list[tuple[Units, ...]]:
    """What stands at some positions of a node, for each segment of its concatenations."""
    if isinstance(node, Concat):
        return [units for segment in node.segments for units in _standing(segment)]
    if isinstance(node, Product):
        parts = product(*(_standing(factor) for factor in node.factors))
        return [tuple(unit for part in some for unit in part) for some in parts]
    return [(node,)] if isinstance(node, Units) else [()]


def _whole(number: Number) -> int:
    if number != int(number):
        raise _Unlike
    return int(number)


def _product(parts: Any) -> Node:
    flat = tuple(inner for part in parts for inner in factors_of(part))
    return flat[0] if len(flat) == 1 else Product(flat)


def _powers(units: Sequence[Units]) -> tuple[Row[str], Row[str]]:
    """With which powers entries carry scales, and signs, of families."""
    scales: Row[str] = {}
    signs: Row[str] = {}
    for unit in units:
        for charge in unit.charges:
            key = charge.key(unit.name)
            scales[key] = scales.get(key, 0) + charge.scale
            signs[key] = signs.get(key, 0) + charge.sign
    return scales, signs


def _aligned(
    ours: Sequence[tuple[Node, int]], theirs: Sequence[tuple[Node, int]], *, times: bool
) -> Iterator[tuple[list[Node], list[Node]]]:
    """The shortest runs of parts that have the same sizes on both sides, multiplied or added up."""
    rest = [list(ours), list(theirs)]
    while rest[0] or rest[1]:
        taken: tuple[list[Node], list[Node]] = ([], [])
        sizes = [1, 1] if times else [0, 0]
        while not (taken[0] and taken[1] and sizes[0] == sizes[1]):
            side = 0 if sizes[0] <= sizes[1] and rest[0] else 1
            if not rest[side]:
                break
            node, size = rest[side].pop(0)
            taken[side].append(node)
            sizes[side] = sizes[side] * size if times else sizes[side] + size
        yield taken
