"""What an axis of a parameter is made of: fixed positions, units of a class, products and concatenations of these."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Charge:
    """The powers with which an axis carries a family's scale and sign: entries get the factor |d|^scale·sign(d)^sign.

    ``family`` is the family's name within its class; "" is the class's own.
    """

    family: str
    scale: int
    sign: int

    def key(self, owner: str) -> str:
        """The name under which elements keep the family of a class: the class's own name, or class:family."""
        return family_key(owner, self.family)


def family_key(owner: str, family: str) -> str:
    """The name under which elements keep a family: the class's own name, or class:family."""
    return f"{owner}:{family}" if family else owner


@dataclass(frozen=True)
class Fixed:
    """``size`` positions that never move (0 stands for "as many as the axis has")."""

    size: int


@dataclass(frozen=True)
class Units:
    """The units of one class, in order; inside a block of its parent if the class is nested."""

    name: str
    charges: tuple[Charge, ...] = ()


@dataclass(frozen=True)
class Product:
    """Positions numbered row-major by several factors: channel × space after a flatten, head × head dimension."""

    factors: tuple["Node", ...]


@dataclass(frozen=True)
class Concat:
    """Segments one after the other; segments never exchange."""

    segments: tuple["Node", ...]


@dataclass(frozen=True)
class Interleaved(Concat):
    """Segments of one size in turns: the first position of each, then the second of each, and so on."""


Node = Fixed | Units | Product | Concat


def parts_of(node: Node) -> tuple[Node, ...]:
    """The factors of a product, the segments of a concatenation."""
    return node.factors if isinstance(node, Product) else node.segments if isinstance(node, Concat) else ()


def units_of(node: Node) -> Iterator[Units]:
    """Every appearance of a class in ``node``, left to right."""
    if isinstance(node, Units):
        yield node
    for part in parts_of(node):
        yield from units_of(part)


def turns_of(node: Node) -> Iterator[Interleaved]:
    """Every part of ``node`` whose segments take turns."""
    if isinstance(node, Interleaved):
        yield node
    for part in parts_of(node):
        yield from turns_of(part)


def size_of(node: Node, sizes: Mapping[str, int]) -> int:
    """How many positions ``node`` has, given the sizes of the classes."""
    if isinstance(node, Fixed):
        return node.size
    if isinstance(node, Units):
        return sizes[node.name]
    parts = [size_of(part, sizes) for part in parts_of(node)]
    return math.prod(parts) if isinstance(node, Product) else sum(parts)


def factors_of(node: Node) -> tuple[Node, ...]:
    """The factors of a product, products within products included; any other node is its own only factor."""
    if isinstance(node, Product):
        return tuple(inner for factor in node.factors for inner in factors_of(factor))
    return (node,)
