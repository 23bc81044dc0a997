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


Carrier = tuple[Stretch, Appearance]
"""An appearance of a class on a parameter, with its stretch."""


def appearances(sym: "Symmetry", parameter: str, name: str | None = None) -> Iterator[Carrier]:
    """Every appearance of a class, or of the class ``name``, on a parameter; none on one that does not move."""
    structure = sym.structures.get(parameter)
    for stretch in structure.stretches if structure is not None else ():
        for item in stretch.appearances:
            if name is None or item.name == name:
                yield stretch, item


def together(one: Appearance, two: Appearance) -> bool:
    """Whether two appearances along one stretch share a position."""
    return bool((one.present & two.present).any())


def unit_order(item: Appearance) -> Tensor:
    """The positions at which a class stands along a stretch, unit by unit."""
    order = item.unit.argsort(stable=True)
    return order[item.present[order]]


def sums_by_unit(sym: "Symmetry", values: Tensor, item: Appearance) -> Tensor:
    """Σ of values (…, n) along a stretch over the positions of each unit: (…, ∏shape)."""
    zeros = values.new_zeros(*values.shape[:-1], math.prod(sym.shape(item.name)))
    return zeros.index_add_(-1, item.unit[item.positions], values.index_select(-1, item.positions))


def moving_dims(structure: Structure) -> set[int]:
    """The dimensions of a parameter along which something moves."""
    return {dim for stretch in structure.stretches for dim in stretch.dims}


def other_stretches(structure: Structure, without: int | None) -> list[Stretch]:
    """The stretches of a parameter but the one of this number; all of them for None."""
    return [stretch for number, stretch in enumerate(structure.stretches) if number != without]


def rows_along(tensor: Tensor, structure: Structure, stretch: Stretch, lead: int = 0) -> Tensor:
    """The entries of a parameter with positions along a stretch in rows, all else in order in columns: (n, rest).

    ``lead``: how many axes of samples stand in front, and stay there.
    """
    front = tuple(range(lead, lead + len(stretch.dims)))
    samples = tensor.shape[:lead]
    whole = tensor.reshape(*samples, *structure.sizes).movedim(tuple(lead + dim for dim in stretch.dims), front)
    return whole.reshape(*samples, stretch.size, -1)


def unit_rows(
    tensor: Tensor, lead: int, structure: Structure, stretch: Stretch, item: Appearance
) -> tuple[Tensor, Tensor, Tensor]:
    """Positions along a stretch in rows; the rows of a class, unit by unit; and the tensor with these axes in front.

    ``lead``: how many axes of samples stand in front.
    """
    whole = tensor.reshape(*tensor.shape[:lead], *structure.sizes)
    moved = whole.movedim(tuple(lead + dim for dim in stretch.dims), tuple(range(len(stretch.dims))))
    return moved.reshape(stretch.size, -1), unit_order(item).to(tensor.device), moved


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
    for stretch, item in appearances(sym, parameter, name):
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
