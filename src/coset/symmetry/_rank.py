"""How many independent directions the free scales of a symmetry have.

Scales of two families may overlap: in a matrix whose rows and columns both scale freely, a factor common to all rows is
one common to all columns. Logarithms of scales are split into parts that belong to one class each: for n units in every
block, numbers that sum to 0 over each block. Parts of different classes never overlap, and units of one class behave
alike: the rank is that of a small matrix of charges for every class, times the dimension of its part.
"""

import math
from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING

from coset.symmetry._linear import Row, rank, rational
from coset.symmetry.axes import Concat, Node, Product, Units
from coset.symmetry.structure import ancestors, stands_for

if TYPE_CHECKING:
    from coset.symmetry.symmetry import Symmetry

Appearance = tuple[int, Units]
"""A class on an axis, with the number of the axis."""

Coordinate = tuple[int, int]
"""A cell of a parameter, and which appearance of a class in it."""


def scale_rank(sym: "Symmetry") -> int:
    """The rank of (logarithms of scales) ↦ (logarithms of the factors of all entries)."""
    free = {key: family for key, family in sym.families.items() if family.scales}
    # One row of charges for every family and class around (None: constants).
    rows: dict[str | None, dict[str, Row[Coordinate]]] = {name: {} for name in (None, *sym.classes)}
    for cell, appearances in enumerate(_cells(sym)):
        for number, (_, unit) in enumerate(appearances):
            for charge in unit.charges:
                key = charge.key(unit.name)
                if key not in free or not charge.scale:
                    continue
                for level, at in _levels(sym, appearances, number):
                    row = rows[level].setdefault(key, {})
                    row[cell, at] = row.get((cell, at), 0) + charge.scale
    total = rank(rows[None].values(), rational)
    for name, item in sym.classes.items():
        blocks = math.prod(sym.shape(name)[:-1])
        total += blocks * (item.size - 1) * (rank(rows[name].values(), rational) if item.size > 1 else 0)
    return total


def _levels(sym: "Symmetry", appearances: list[Appearance], number: int) -> Iterator[tuple[str | None, int]]:
    """The class itself and the ones around it, each with its appearance beside this one; None for constants."""
    yield None, 0
    axis, unit = appearances[number]
    yield unit.name, number
    for outer in ancestors(unit.name, sym.classes):
        beside = [
            at
            for at, (there, other) in enumerate(appearances)
            if stands_for(other.name, outer, there == axis, sym.classes)
        ]
        yield outer, min(beside, key=lambda at: (appearances[at][1].name != outer, appearances[at][0] != axis))


def _cells(sym: "Symmetry") -> Iterator[list[Appearance]]:
    """The parts of all parameters whose entries are scaled alike: a path through every axis; alike ones once."""
    seen = set()
    for parameter in sym.parameters.values():
        if parameter.axes in seen:
            continue
        seen.add(parameter.axes)
        paths = [[[(axis, unit) for unit in path] for path in _paths(node)] for axis, node in enumerate(parameter.axes)]
        for choice in product(*paths):
            if any(choice):
                yield [appearance for path in choice for appearance in path]


def _paths(node: Node) -> list[list[Units]]:
    """The classes on each way through an axis."""
    if isinstance(node, Units):
        return [[node]]
    if isinstance(node, Concat):
        return [path for segment in node.segments for path in _paths(segment)]
    if isinstance(node, Product):
        return [[unit for path in choice for unit in path] for choice in product(*map(_paths, node.factors))]
    return [[]]
