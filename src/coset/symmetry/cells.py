"""Parts of parameters on which one set of classes stands: a path through each axis, segment by segment."""

from collections.abc import Mapping

import torch
from torch import Tensor

from coset.symmetry.axes import Concat, Fixed, Node, Units
from coset.symmetry.structure import UnitClass

Paths = tuple[list[frozenset[str]], Tensor]
"""The classes on each path through an axis, and for every position (n,) the number of its path."""


def paths(node: Node, classes: Mapping[str, UnitClass]) -> Paths:
    """Positions of an axis that carry the same classes in the same way."""
    if isinstance(node, Fixed):
        return [frozenset()], torch.zeros(node.size, dtype=torch.long)
    if isinstance(node, Units):
        return [frozenset([node.name])], torch.zeros(classes[node.name].size, dtype=torch.long)
    if isinstance(node, Concat):
        names: list[frozenset[str]] = []
        labels = []
        for segment in node.segments:
            inner, numbers = paths(segment, classes)
            labels.append(numbers + len(names))
            names += inner
        return names, torch.cat(labels)
    names, total = [frozenset()], torch.zeros(1, dtype=torch.long)
    for factor in node.factors:
        inner, numbers = paths(factor, classes)
        total = (total[:, None] * len(inner) + numbers).reshape(-1)
        names = [one | two for one in names for two in inner]
    return names, total


def largest_by_class(axes: tuple[Node, ...], classes: Mapping[str, UnitClass], tensor: Tensor) -> dict[str, float]:
    """For every class on a parameter the largest |entry| of ``tensor``, of the parameter's shape, where it stands."""
    sets = [frozenset[str]()]
    found = tensor.abs().reshape(tuple(len(paths(axis, classes)[1]) for axis in axes))
    for dim, axis in enumerate(axes):
        names, labels = paths(axis, classes)
        smaller = found.new_zeros([*found.shape[:dim], len(names), *found.shape[dim + 1 :]])
        index = labels.to(found.device).reshape(-1, *(1,) * (found.ndim - dim - 1)).expand(found.shape)
        found = smaller.scatter_reduce(dim, index, found, "amax")
        sets = [one | two for one in sets for two in names]
    result: dict[str, float] = {}
    for present, value in zip(sets, found.flatten().tolist(), strict=True):
        for name in present:
            result[name] = max(result.get(name, 0.0), value)
    return result


def positions_of(axis: Node, classes: Mapping[str, UnitClass], name: str) -> Tensor:
    """The positions of an axis on which a class stands, in order."""
    names, labels = paths(axis, classes)
    chosen = torch.tensor([name in present for present in names])
    return chosen[labels].nonzero().flatten()


def standing(axes: tuple[Node, ...], classes: Mapping[str, UnitClass], name: str) -> Tensor:
    """Which entries of a parameter carry a class on any axis, as a mask of the sizes of its axes."""
    mask = torch.zeros(tuple(len(paths(axis, classes)[1]) for axis in axes), dtype=torch.bool)
    for dim, axis in enumerate(axes):
        mask.index_fill_(dim, positions_of(axis, classes, name), True)
    return mask
