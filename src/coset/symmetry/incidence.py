"""Which entry of which parameter belongs to which unit, with which charges."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from coset.symmetry.axes import Charge, Concat, Fixed, Interleaved, Node, Units, size_of
from coset.symmetry.structure import Stretch

if TYPE_CHECKING:
    from coset.symmetry.symmetry import Symmetry


@dataclass(frozen=True, eq=False)
class Appearance:
    """A class along a stretch of a parameter.

    ``unit`` (n,): the unit, numbered over all blocks, at each of the n positions of ``stretch``, −1 where the class
    does not stand; ``stride`` (n,): how far one unit is from the next.
    """

    name: str
    charges: tuple[Charge, ...]
    stretch: Stretch
    unit: Tensor
    stride: Tensor

    @property
    def everywhere(self) -> bool:
        """Whether a unit of the class stands at every position."""
        return bool((self.unit >= 0).all())


def along(stretch: Stretch) -> Iterator[Appearance]:
    """The appearances of classes along a stretch."""
    if stretch.plain is not None:
        every = torch.arange(stretch.size)
        yield Appearance(stretch.plain.name, stretch.plain.charges, stretch, every, torch.ones_like(every))
    for member in stretch.members:
        yield Appearance(member.name, member.charges, stretch, member.unit, member.stride)


def appearances(sym: "Symmetry", parameter: str) -> Iterator[Appearance]:
    """Every appearance of a class on a parameter; none on one that does not move."""
    structure = sym.structures.get(parameter)
    for stretch in structure.stretches if structure is not None else ():
        yield from along(stretch)


def block_count(sym: "Symmetry", name: str) -> int:
    """The number of blocks in which a class stands: 1 for one that is not nested."""
    return math.prod(sym.shape(name)[:-1])


def largest_by_block(sym: "Symmetry", parameter: str, tensor: Tensor) -> dict[str, list[float]]:
    """For every class on a parameter, block by block, the largest |entry| of ``tensor`` where it stands."""
    sizes = tensor.abs().reshape(sym.structures[parameter].sizes)
    found: dict[str, Tensor] = {}
    largest: dict[int, Tensor] = {}
    for item in appearances(sym, parameter) if tensor.numel() else ():
        if id(item.stretch) not in largest:
            rest = [dim for dim in range(sizes.ndim) if dim not in item.stretch.dims]
            largest[id(item.stretch)] = (sizes.amax(rest) if rest else sizes).flatten().cpu()
        here = item.unit >= 0
        block = item.unit[here] // sym.classes[item.name].size
        before = found.get(item.name, sizes.new_zeros(block_count(sym, item.name), device="cpu"))
        found[item.name] = before.scatter_reduce(0, block, largest[id(item.stretch)][here], "amax")
    return {name: values.tolist() for name, values in found.items()}


def standing(sym: "Symmetry", parameter: str, name: str, block: int) -> Tensor:
    """Which entries of a parameter carry units of a block of a class, as a mask of its shape."""
    structure = sym.structures[parameter]
    mask = torch.zeros(structure.sizes, dtype=torch.bool)
    for item in appearances(sym, parameter):
        if item.name == name:
            # Where the class does not stand the unit is −1, whose block is −1, too.
            here = item.unit.div(sym.classes[name].size, rounding_mode="floor") == block
            mask |= _spread(here, item.stretch.dims, structure.sizes)
    return mask.reshape(sym.parameters[parameter].shape)


def _spread(values: Tensor, dims: tuple[int, ...], sizes: tuple[int, ...]) -> Tensor:
    """Values along a stretch as a tensor that broadcasts with a parameter taken apart into ``sizes``."""
    return values.reshape([size if dim in dims else 1 for dim, size in enumerate(sizes)])


def positions_of(axis: Node, sizes: dict[str, int], name: str) -> Tensor:
    """The positions of an axis on which a class stands, in order."""

    def mask(node: Node) -> Tensor:
        if isinstance(node, Fixed | Units):
            here = isinstance(node, Units) and node.name == name
            return torch.full((size_of(node, sizes),), here)
        if isinstance(node, Concat):
            masks = [mask(segment) for segment in node.segments]
            return torch.stack(masks, 1).reshape(-1) if isinstance(node, Interleaved) else torch.cat(masks)
        total = torch.zeros(1, dtype=torch.bool)
        for factor in node.factors:
            total = (total[:, None] | mask(factor)).reshape(-1)
        return total

    return mask(axis).nonzero().flatten()
