"""Which class stands on which axis of a feature: found by moving the units of the network and looking on."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from coset.alignment.matching.feature_layouts import ANY, candidates, carries, missing, moved, pieces
from coset.symmetry import Element, Symmetry
from coset.symmetry.axes import Node

TOLERANCE = 1e-9
"""Relative to the size of a feature, in float64: rounding stays far below, another order of the units far above."""


@dataclass(frozen=True)
class Search:
    """A symmetry, what may stand on an axis, and the elements by which the network is moved."""

    sym: Symmetry
    elements: tuple[Element, ...]
    known: tuple[Node, ...] = field(init=False)
    orders: dict[tuple[int, tuple[Node, ...], tuple[int, ...]], Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "known", pieces(self.sym))

    def candidates(self, length: int) -> tuple[Node, ...]:
        """What may stand on an axis of ``length`` positions."""
        return candidates(self.known, length, {name: item.size for name, item in self.sym.classes.items()})

    def order(self, number: int, axes: tuple[Node, ...], shape: tuple[int, ...]) -> Tensor:
        """Where the entries of a feature with these axes come from by one of the elements, flat."""
        key = (number, axes, shape)
        if key not in self.orders:
            self.orders[key] = moved(self.sym, axes, shape, self.elements[number]).reshape(-1)
        return self.orders[key]


def enough_elements(sym: Symmetry) -> int:
    """How many random permutations tell any two classes apart, but for one chance in a thousand.

    Two classes of n units move alike with chance 1/n!; there are fewer than (number of classes)² pairs.
    """
    sizes = [sym.classes[name].size for name in sym.permuting if sym.classes[name].size > 1]
    bits = 10 + 2 * math.log2(max(len(sizes), 1))
    return max(2, math.ceil(bits / (math.lgamma(min(sizes, default=2) + 1) / math.log(2))))


def describe(search: Search, before: Tensor, after: Sequence[Tensor]) -> tuple[Node, ...] | None:
    """The axes of a feature, given its values ``before`` and ``after`` each element has moved the network.

    Axis by axis: what is summed over all other axes does not notice their order, so each axis is found by itself, and a
    nested class together with the axes of the classes around it. The whole is then compared entry by entry. None where
    nothing moves, or what moves is not understood.
    """
    size = before.square().mean().sqrt()
    if not bool(torch.isfinite(size)) or size == 0 or not all(bool(torch.isfinite(part).all()) for part in after):
        return None
    view = _View(search, [_wave(part / size) for part in (before, *after)])
    axes = range(before.ndim)
    moving = [axis for axis in axes if not view.agrees({axis: ANY})]
    found: dict[int, Node] = {}
    for axis in moving:
        closed = (node for node in view.candidates(axis) if not missing(node, search.sym.classes))
        if (match := next((node for node in closed if view.agrees({axis: node})), None)) is not None:
            found[axis] = match
    waiting = [axis for axis in moving if axis not in found]
    while waiting:
        steps = ((axis, view.nested(axis, found, moving)) for axis in waiting)
        axis, step = next(((axis, step) for axis, step in steps if step), (-1, {}))
        if not step:
            return None
        found |= step
        waiting.remove(axis)
    described = tuple(found.get(axis, ANY) for axis in axes)
    if not found or not _is_unambiguous(search.sym, described):
        return None
    shape = tuple(before.shape)
    limit = TOLERANCE * before.abs().max()
    same = all(
        bool(((part.reshape(-1) - before.reshape(-1)[search.order(number, described, shape)]).abs() <= limit).all())
        for number, part in enumerate(after)
    )
    return described if same else None


def _wave(values: Tensor) -> Tensor:
    """A bounded function of every entry whose sums tell units apart even where norms and means are fixed."""
    return torch.sin(2 * values + 0.5)


def _are_close(table: Tensor, before: Tensor, order: Tensor) -> bool:
    return bool(((table.reshape(-1) - before.reshape(-1)[order]).abs() <= TOLERANCE).all())


def _is_unambiguous(sym: Symmetry, axes: Sequence[Node]) -> bool:
    """Whether every class around a nested one stands beside it, or on exactly one other axis."""
    return all(sum(carries(other, name) for other in axes) == 1 for node in axes for name in missing(node, sym.classes))


@dataclass(frozen=True)
class _View:
    """One feature before and after every element, as ``_wave``."""

    search: Search
    waves: list[Tensor]
    tables: dict[tuple[int, tuple[int, ...]], Tensor] = field(default_factory=dict)

    def candidates(self, axis: int) -> tuple[Node, ...]:
        return self.search.candidates(self.waves[0].shape[axis])

    def agrees(self, nodes: dict[int, Node]) -> bool:
        """Whether the sums over all other axes are re-ordered as ``nodes`` on these axes say, by every element."""
        axes = tuple(sorted(nodes))
        described = tuple(nodes[axis] for axis in axes)
        before = self._table(0, axes)
        shape = tuple(before.shape)
        return all(
            _are_close(self._table(number + 1, axes), before, self.search.order(number, described, shape))
            for number in range(len(self.waves) - 1)
        )

    def _table(self, number: int, axes: tuple[int, ...]) -> Tensor:
        """The means over all other axes, computed once."""
        if (number, axes) not in self.tables:
            waves = self.waves[number]
            others = [axis for axis in range(waves.ndim) if axis not in axes]
            self.tables[number, axes] = waves.mean(others) if others else waves
        return self.tables[number, axes]

    def nested(self, axis: int, found: dict[int, Node], moving: Sequence[int]) -> dict[int, Node]:
        """What stands on an axis whose blocks are told by another axis, and what stands there; empty if nothing."""
        for node in self.candidates(axis):
            gap = missing(node, self.search.sym.classes)
            for host, around in self._hosts(axis, gap, found, moving) if gap else ():
                step = {axis: node, host: around}
                if self.agrees(self._with_hosts(step, found)):
                    return step
        return {}

    def _hosts(
        self, axis: int, gap: frozenset[str], found: dict[int, Node], moving: Sequence[int]
    ) -> Iterator[tuple[int, Node]]:
        """Axes that may carry the classes in ``gap``: known ones, and ones that keep their order."""
        for host, node in found.items():
            if all(carries(node, name) for name in gap):
                yield host, node
        for host in range(self.waves[0].ndim):
            if host != axis and host not in moving and host not in found:
                for node in self.candidates(host):
                    if all(carries(node, name) for name in gap) and not missing(node, self.search.sym.classes):
                        yield host, node

    def _with_hosts(self, nodes: dict[int, Node], found: dict[int, Node]) -> dict[int, Node]:
        """``nodes`` with the axes of the classes around theirs, as far as these are known."""
        while True:
            gaps = {name for node in nodes.values() for name in missing(node, self.search.sym.classes)}
            gaps -= {name for name in gaps if any(carries(node, name) for node in nodes.values())}
            more = {axis: node for axis, node in found.items() if any(carries(node, name) for name in gaps)}
            if not more.keys() - nodes.keys():
                return nodes
            nodes = more | nodes
