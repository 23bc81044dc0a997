"""How the units of a class may lie along the axes of a feature, told from how they lie along those of parameters."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from coset.symmetry import Element, Parameter, Symmetry
from coset.symmetry.axes import Concat, Fixed, Node, Product, Units, factors_of, size_of, units_of
from coset.symmetry.structure import Structure, UnitClass, ancestors, build_structure

ANY = Fixed(0)
"""Positions that never move, as many as the axis has: samples."""


def pieces(sym: Symmetry) -> tuple[Node, ...]:
    """Everything that stands on an axis of a parameter, whole or taken apart: segments, factors, neighbouring factors.

    A linear map reads its inputs as its weight's axis describes them; a reshape takes products apart.
    """
    found: dict[Node, None] = {}
    for parameter in sym.parameters.values():
        for axis in parameter.axes:
            found.update(dict.fromkeys(_pieces(_bare(axis))))
    return tuple(node for node in found if any(True for _ in units_of(node)))


def _bare(node: Node) -> Node:
    """The node without charges."""
    if isinstance(node, Units):
        return Units(node.name)
    if isinstance(node, Product):
        return _product([_bare(factor) for factor in node.factors])
    if isinstance(node, Concat):
        return replace(node, segments=tuple(_bare(segment) for segment in node.segments))
    return node


def _product(factors: Sequence[Node]) -> Node:
    flat = tuple(inner for factor in factors for inner in factors_of(factor))
    return flat[0] if len(flat) == 1 else Product(flat)


def _pieces(node: Node) -> Iterator[Node]:
    yield node
    factors = factors_of(node)
    for start in range(len(factors)):
        for stop in range(start + 1, len(factors) + 1):
            if stop - start < len(factors):
                yield _product(factors[start:stop])
    for factor in factors:
        for segment in factor.segments if isinstance(factor, Concat) else ():
            yield from _pieces(segment)


def candidates(known: Sequence[Node], length: int, sizes: Mapping[str, int]) -> tuple[Node, ...]:
    """What may stand on an axis of ``length`` positions: pieces of that size, then pieces beside samples.

    Samples on the same axis are positions behind a channel (a flatten) or a batch before a head.
    """
    exact = [node for node in known if size_of(node, sizes) == length]
    parts = [node for node in known if size_of(node, sizes) < length and length % size_of(node, sizes) == 0]
    return (*exact, *(_product([ANY, part]) for part in parts), *(_product([part, ANY]) for part in parts))


def missing(node: Node, classes: Mapping[str, UnitClass]) -> frozenset[str]:
    """The classes around those in ``node`` that do not stand there themselves."""
    names = {unit.name for unit in units_of(node)}
    parents = {classes[name].parent for name in names}
    return frozenset(name for name in parents if name is not None and name not in names)


def carries(node: Node, name: str) -> bool:
    """Whether a class stands in ``node``."""
    return any(unit.name == name for unit in units_of(node))


def resolved(node: Node, length: int, sizes: Mapping[str, int]) -> Node:
    """``node`` with the number of its samples filled in, on an axis of ``length`` positions."""
    if node == ANY:
        return Fixed(length)
    if isinstance(node, Product) and ANY in node.factors:
        rest = size_of(Product(tuple(factor for factor in node.factors if factor != ANY)), sizes)
        return Product(tuple(Fixed(length // rest) if factor == ANY else factor for factor in node.factors))
    return node


def fits(axes: Sequence[Node], shape: Sequence[int], sizes: Mapping[str, int]) -> bool:
    """Whether a feature of this shape may have these axes."""
    return len(axes) == len(shape) and all(
        size_of(resolved(node, length, sizes), sizes) == length for node, length in zip(axes, shape, strict=True)
    )


def moved(sym: Symmetry, axes: Sequence[Node], shape: Sequence[int], g: Element) -> Tensor:
    """Where each entry of a feature comes from when ``g`` permutes the units: old flat positions, of ``shape``."""
    sizes = {name: item.size for name, item in sym.classes.items()}
    nodes = tuple(resolved(node, length, sizes) for node, length in zip(axes, shape, strict=True))
    there = {unit.name for node in nodes for unit in units_of(node)}
    there |= {outer for name in there for outer in ancestors(name, sym.classes)}
    there |= {followed for name in there if (followed := sym.classes[name].follows) is not None}
    classes = {name: item for name, item in sym.classes.items() if name in there}
    feature = Symmetry(classes, {}, {"feature": Parameter(tuple(shape), nodes)})
    positions = torch.arange(torch.Size(shape).numel()).reshape(tuple(shape))
    own = Element({name: g.permutations[name] for name in feature.permuting})
    return feature.act(own, {"feature": positions})["feature"]


@lru_cache(maxsize=4096)
def structure(axes: tuple[Node, ...], shape: tuple[int, ...], classes: tuple[UnitClass, ...]) -> Structure:
    """How a feature of this shape is taken apart; the class's units are numbered over all blocks."""
    sizes = {item.name: item.size for item in classes}
    nodes = tuple(resolved(node, length, sizes) for node, length in zip(axes, shape, strict=True))
    return build_structure(nodes, {item.name: item for item in classes}, "feature")
