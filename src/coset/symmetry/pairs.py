"""Classes whose units are pairs of coordinates that turn: queries and keys with rotary positions.

The units are complex numbers z = x + iy, in real coordinates (x, y); positions multiply queries and keys by e^{iθ}, and
scores see Re(q·k̄) alone. So z may become e^{iφ}·z on both sides, with an angle for every unit; the moduli of such
factors are scales of the class.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from coset.symmetry.axes import Concat, Fixed, Interleaved, Node, Product, Units, factors_of
from coset.symmetry.incidence import unit_rows
from coset.symmetry.structure import Appearance, Stretch, Structure, UnitClass, build_structure

if TYPE_CHECKING:
    from coset.symmetry.symmetry import Symmetry

Couple = tuple[Stretch, Appearance, Appearance]
"""Where the first and the second coordinates of all pairs stand, along one stretch of a parameter."""


def paired_structure(axes: tuple[Node, ...], name: str, classes: Mapping[str, UnitClass], where: str) -> Structure:
    """How a parameter is taken apart if both coordinates of a class of pairs are to be seen."""
    return build_structure([_side_by_side(node, name) for node in axes], classes, where)


def _side_by_side(node: Node, name: str) -> Node:
    """A node with two appearances of a class where it stood beside two positions: pair·2 in turns, 2·pair in halves."""
    if isinstance(node, Interleaved):
        return Interleaved(tuple(_side_by_side(part, name) for part in node.segments))
    if isinstance(node, Concat):
        return Concat(tuple(_side_by_side(part, name) for part in node.segments))
    if not isinstance(node, Product):
        return node
    factors = [_side_by_side(factor, name) for factor in factors_of(node)]
    for at, unit in enumerate(factors):
        if isinstance(unit, Units) and unit.name == name:
            if factors[at + 1 : at + 2] == [Fixed(2)]:
                factors[at : at + 2] = [Interleaved((unit, unit))]
            elif at and factors[at - 1] == Fixed(2):
                factors[at - 1 : at + 1] = [Concat((unit, unit))]
            break
    return factors[0] if len(factors) == 1 else Product(tuple(factors))


def couples(structure: Structure, name: str) -> list[Couple] | None:
    """The coordinates of a class of pairs on a parameter; None where they do not come two by two, with equal powers."""
    found: list[Couple] = []
    for stretch in structure.stretches:
        items = [item for item in stretch.appearances if item.name == name]
        found += [(stretch, one, two) for one, two in zip(items[::2], items[1::2], strict=False)]
        if len(items) % 2:
            return None
    return found if all(_alike(one, two) for _, one, two in found) else None


def _alike(one: Appearance, two: Appearance) -> bool:
    """Whether units appear as often, and with the same scales and signs."""
    units = (item.unit[item.unit >= 0].sort().values for item in (one, two))
    return one.charges == two.charges and torch.equal(*units)


def pairs_of_parameter(sym: "Symmetry", name: str, parameter: str, tensor: Tensor) -> list[Tensor]:
    """The coordinates of the pairs at each couple of a parameter: (blocks, n, 2, all else)."""
    *outer, n = sym.shape(name)
    structure = sym.paired[name, parameter]
    found = []
    for stretch, *sides in couples(structure, name) or ():
        both = []
        for item in sides:
            rows, order, _ = unit_rows(tensor, 0, structure, stretch, item)
            both.append(rows[order].reshape(math.prod(outer), n, -1))
        found.append(torch.stack(both, 2))
    return found


def turned(sym: "Symmetry", name: str, parameter: str, tensor: Tensor, matrix: Tensor) -> Tensor:
    """A parameter with the pairs of a class multiplied by their matrices, (…, 2, 2); samples may stand in front."""
    lead = tensor.ndim - len(sym.parameters[parameter].shape)
    structure = sym.paired[name, parameter]
    for stretch, one, two in couples(structure, name) or ():
        rows, first, moved = unit_rows(tensor, lead, structure, stretch, one)
        second = unit_rows(tensor, lead, structure, stretch, two)[1]
        # Half precision holds no rotation: products are taken in single.
        wide = torch.promote_types(rows.dtype, torch.float32)
        own = matrix.reshape(-1, 1, 2, 2).to(rows.device, wide)
        x, y = (rows[order].to(wide).reshape(len(own), len(first) // len(own), -1) for order in (first, second))
        for row, order in enumerate((first, second)):
            new = own[..., row, :1] * x + own[..., row, 1:] * y
            rows = rows.index_copy(0, order, new.reshape(len(order), -1).to(rows.dtype))
        back = tuple(lead + dim for dim in stretch.dims)
        tensor = rows.reshape(moved.shape).movedim(tuple(range(len(stretch.dims))), back).reshape(tensor.shape)
    # In order, as every other part of an action leaves them: files hold such tensors only.
    return tensor.contiguous()


def rotations(angles: Tensor) -> Tensor:
    """R(φ) = (cos φ, −sin φ; sin φ, cos φ); (…) → (…, 2, 2)."""
    cos, sin = angles.cos(), angles.sin()
    return torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], -2)


def best_rotations(scores: Tensor) -> tuple[Tensor, Tensor]:
    """R(φ) with the largest ⟨R(φ), M⟩, and that value: φ = arg z, worth |z|, z = M₀₀ + M₁₁ + i(M₁₀ − M₀₁).

    ``scores``: (…, 2, 2) → (…, 2, 2), (…).
    """
    real, imaginary = scores[..., 0, 0] + scores[..., 1, 1], scores[..., 1, 0] - scores[..., 0, 1]
    return rotations(torch.atan2(imaginary, real)), torch.hypot(real, imaginary)
