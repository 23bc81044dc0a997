"""Which entry of which parameter belongs to which unit, with which charges."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from coset.symmetry.axes import Concat, Fixed, Interleaved, Node, Units, size_of
from coset.symmetry.parameters import Family
from coset.symmetry.structure import Appearance, Stretch, Structure

if TYPE_CHECKING:
    from coset.symmetry.symmetry import Symmetry


def appearances(sym: "Symmetry", parameter: str) -> Iterator[tuple[Stretch, Appearance]]:
    """Every appearance of a class on a parameter, with its stretch; none on one that does not move."""
    structure = sym.structures.get(parameter)
    for stretch in structure.stretches if structure is not None else ():
        for item in stretch.appearances:
            yield stretch, item


def rows_along(tensor: Tensor, structure: Structure, stretch: Stretch) -> Tensor:
    """The entries of a parameter with positions along a stretch in rows, all else in order in columns: (n, rest)."""
    front = tuple(range(len(stretch.dims)))
    return tensor.reshape(structure.sizes).movedim(stretch.dims, front).reshape(stretch.size, -1)


def unit_rows(
    tensor: Tensor, lead: int, structure: Structure, stretch: Stretch, item: Appearance
) -> tuple[Tensor, Tensor, Tensor]:
    """Positions along a stretch in rows; the rows of a class, unit by unit; and the tensor with these axes in front.

    ``lead``: how many axes of samples stand in front.
    """
    whole = tensor.reshape(*tensor.shape[:lead], *structure.sizes)
    moved = whole.movedim(tuple(lead + dim for dim in stretch.dims), tuple(range(len(stretch.dims))))
    order = item.unit.argsort(stable=True)
    order = order[item.unit[order] >= 0].to(tensor.device)
    return moved.reshape(stretch.size, -1), order, moved


def spread(values: Tensor, structure: Structure, stretch: Stretch) -> Tensor:
    """Values (n,) along a stretch in a shape that broadcasts with a parameter taken apart into ``structure.sizes``."""
    return values.reshape([size if dim in stretch.dims else 1 for dim, size in enumerate(structure.sizes)])


def unit_labels(sym: "Symmetry", parameter: str, family: Family, power: int = 1) -> Tensor:
    """The unit whose scale each entry of a parameter carries with ``power``, −1 for none; of the parameter's shape."""
    structure = sym.structures[parameter]
    found = torch.full(structure.sizes, -1)
    for stretch, item in appearances(sym, parameter):
        if item.scales.get(family.key) == power:
            found = torch.maximum(found, spread(item.unit, structure, stretch))
    return found.reshape(sym.parameters[parameter].shape)


def block_count(sym: "Symmetry", name: str) -> int:
    """The number of blocks in which a class stands: 1 for one that is not nested."""
    return math.prod(sym.shape(name)[:-1])


def largest_by_block(sym: "Symmetry", parameter: str, tensor: Tensor) -> dict[str, list[float]]:
    """For every class on a parameter, block by block, the largest |entry| of ``tensor`` where it stands."""
    sizes = tensor.abs().reshape(sym.structures[parameter].sizes)
    found: dict[str, Tensor] = {}
    largest: dict[int, Tensor] = {}
    for stretch, item in appearances(sym, parameter) if tensor.numel() else ():
        if id(stretch) not in largest:
            rest = [dim for dim in range(sizes.ndim) if dim not in stretch.dims]
            largest[id(stretch)] = (sizes.amax(rest) if rest else sizes).flatten().cpu()
        here = item.unit >= 0
        block = item.unit[here] // sym.classes[item.name].size
        before = found.get(item.name, sizes.new_zeros(block_count(sym, item.name), device="cpu"))
        found[item.name] = before.scatter_reduce(0, block, largest[id(stretch)][here], "amax")
    return {name: values.tolist() for name, values in found.items()}


def standing(sym: "Symmetry", parameter: str, name: str, block: int) -> Tensor:
    """Which entries of a parameter carry units of a block of a class, as a mask of its shape."""
    structure = sym.structures[parameter]
    mask = torch.zeros(structure.sizes, dtype=torch.bool)
    for stretch, item in appearances(sym, parameter):
        if item.name == name:
            # Where the class does not stand the unit is −1, whose block is −1, too.
            here = item.unit.div(sym.classes[name].size, rounding_mode="floor") == block
            mask |= spread(here, structure, stretch)
    return mask.reshape(sym.parameters[parameter].shape)


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
